"""A producer that goes on in order although the queues of its topic change."""

from __future__ import annotations

import threading

from ordermq import Message
from ordermq.errors import OrderingError
from tests.interop.run import Run

KEYS = 64  # enough that every queue gets some


class OrderedFlow:
    """Sends without end. Where the queues change it does as the error says: waits until everything
    is consumed, then goes on with a new producer."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.changes = 0
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> OrderedFlow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        run = self.run
        try:
            while not self._stop.wait(0.001):
                key = f"k{run.sent % KEYS}"
                message = Message(run.topic, str(run.sent).encode())
                try:
                    receipt = run.producer.send(message, sharding_key=key)
                except OrderingError:
                    run.wait_for_all()
                    run.renew_producer()
                    self.changes += 1
                else:
                    run.sent += 1
                    run.stored(receipt.message_queue, receipt.queue_offset, key)
        except BaseException as error:
            self.failures.append(error)
            raise
