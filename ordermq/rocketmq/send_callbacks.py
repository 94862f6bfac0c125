"""The thread that runs callbacks of sends; they may block, which the I/O thread may not."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ordermq.callables import require_plain_result
from ordermq.model.receipts import SendReceipt
from ordermq.rocketmq.exceptions import ProducerSendAsyncFailed, async_failure
from ordermq.rocketmq.status import SendResult, result_of
from ordermq.threads import Lock, start_thread

OnSuccess = Callable[[SendResult], object] | None
OnException = Callable[[ProducerSendAsyncFailed], object] | None
_Outcome = tuple["concurrent.futures.Future[SendReceipt]", OnSuccess, OnException]

_log = logging.getLogger("ordermq.rocketmq")


class SendCallbacks:
    """Runs callbacks one after the other, in the order in which the sends ended."""

    def __init__(self) -> None:
        # A simple queue: the I/O thread puts into it, and must never wait.
        self._ended: SimpleQueue[_Outcome | None] = SimpleQueue()
        self._lock = Lock()
        self._awaited = 0
        self._thread: threading.Thread | None = None

    def expect(
        self,
        send: concurrent.futures.Future[SendReceipt],
        on_success: OnSuccess,
        on_exception: OnException,
    ) -> None:
        """Run one of the two callbacks when `send` has ended."""
        with self._lock:
            self._awaited += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ordermq-send-callbacks", daemon=True
                )
                start_thread(self._thread)
        send.add_done_callback(lambda ended: self._ended.put((ended, on_success, on_exception)))

    def close(self) -> None:
        """Wait until every callback has run; return at once on their own thread."""
        thread = self._thread
        if thread is None:
            return
        self._ended.put(None)
        if thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        is_closing = False
        # A send may end after close() asked: the thread stays until none is awaited.
        while not (is_closing and self._awaited == 0):
            outcome = self._ended.get()
            if outcome is None:
                is_closing = True
                continue
            _call(*outcome)
            with self._lock:
                self._awaited -= 1


def _call(
    send: concurrent.futures.Future[SendReceipt], on_success: OnSuccess, on_exception: OnException
) -> None:
    error = concurrent.futures.CancelledError() if send.cancelled() else send.exception()
    try:
        if error is None:
            if on_success is not None:
                returned = on_success(result_of([send.result()]))
                require_plain_result("callback", on_success, returned)
        elif on_exception is not None:
            require_plain_result("callback", on_exception, on_exception(async_failure(error)))
        else:
            _log.error("send_async failed, and no exception_callback was given", exc_info=error)
    # Also sys.exit(): it would end the thread, and `close` would wait for it for ever.
    except BaseException:  # noqa: BLE001 - logged; no caller is left to raise it to
        _log.exception("a callback of send_async raised")
