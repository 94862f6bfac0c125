"""A batch on its way: tried until it is stored, refused, or nobody can say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.errors import OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.packing import is_packed, packed
from ordermq.producer.pending_message import Entry, batch_body, is_single
from ordermq.producer.retry_policy import (
    AfterFailure,
    decide,
    delay_ms,
    is_doubtful,
    may_go_elsewhere,
)
from ordermq.producer.selectors import ShardingKey
from ordermq.producer.send_protocol import Destination
from ordermq.remoting.command import Command
from ordermq.remoting.response_futures import ResponseFuture

_log = logging.getLogger("ordermq.producer")


class Sending(ResponseFuture):
    """One batch of a lane; on the I/O thread, but for `start_from_caller`.

    Its request is sent where it starts and its answer read where it arrives. A task is made
    only for what must be awaited: a connection, compression, the pause before another try.

    Args:
        detour: as the lane's.
        fail: lets no later message of a key pass.
        on_end: called once, when every entry is done; False after a defect, or `stop`.
    """

    __slots__ = (
        "_batch",
        "_body",
        "_client",
        "_config",
        "_destination",
        "_detour",
        "_fail",
        "_is_doubtful",
        "_is_over",
        "_on_end",
        "_sys_flag",
        "_task",
        "_tries",
    )

    def __init__(
        self,
        client: ClientSession,
        destination: Destination,
        config: SendConfig,
        batch: Sequence[Entry],
        detour: Callable[[MessageQueue, Entry], bool],
        fail: Callable[[ShardingKey, str], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self._client = client
        self._destination = destination
        self._config = config
        self._batch = batch
        self._detour = detour
        self._fail = fail
        self._on_end = on_end
        self._body: bytes | None = None  # as it goes to the broker; None until it is made
        self._sys_flag = 0
        self._tries = 0
        self._is_doubtful = False  # whether an earlier try may have been stored
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send, now if nothing must be awaited before."""
        if not self._is_over:
            self._guarded(self._start)

    def start_from_caller(self) -> None:
        """Send from another thread, where that can be done at once; else the I/O thread starts."""
        try:
            is_asked = self._is_body_made() and self._ask()
        except Exception:  # noqa: BLE001 - the I/O thread meets it, too, and knows what to do
            is_asked = False
        if not is_asked:
            self._client.runtime.post(self.start)

    async def stop(self) -> None:
        """Give up now; whether it arrives is unknown."""
        task, self._task = self._task, None
        self._abandon("the producer was closed")
        await cancelled(task)

    def _start(self) -> None:
        try:
            is_asked = self._is_body_made() and self._ask()
        except OrderMQError as error:
            self._after(error)
            return
        if not is_asked:
            self._spawn(0)

    def _is_body_made(self) -> bool:
        """Make the body, if that need not be awaited."""
        if self._body is None:
            one = self._batch[0]
            if not is_single(self._batch):
                self._body, self._sys_flag = batch_body(self._batch), 0  # never compressed
            elif not is_packed(one.bodies[0], self._config):
                self._body, self._sys_flag = one.bodies[0], one.sys_flag
        return self._body is not None

    def _ask(self) -> bool:
        assert self._body is not None
        return self._destination.ask(self._batch, self._body, self._sys_flag, self)

    def _spawn(self, pause_ms: int) -> None:
        name = f"send {self._destination.queue}"
        self._task = self._client.runtime.spawn(self._ask_later(pause_ms), name)

    async def _ask_later(self, pause_ms: int) -> None:
        try:
            if pause_ms:
                await self._client.clock.sleep_ms(pause_ms)
            if not self._is_body_made():
                one = self._batch[0]
                self._body, sys_flag = await packed(one.bodies[0], self._config)
                self._sys_flag = sys_flag | one.sys_flag
            try:
                while not self._ask():
                    await self._destination.ready(self._batch)
            except OrderMQError as error:
                self._after(error)
        except BaseException as error:
            # Stopped, or a defect of ours: nobody may wait for this batch for ever.
            self._abandon(repr(error))
            raise

    # ResponseFuture

    @property
    def is_over(self) -> bool:
        return self._is_over

    def answered(self, command: Command) -> None:
        if not self._is_over:
            self._guarded(lambda: self._take(command))

    def failed(self, error: Exception) -> None:
        if not self._is_over:
            self._guarded(lambda: self._after(error))

    def _take(self, answer: Command) -> None:
        assert self._body is not None
        try:
            receipts = self._destination.receipts(self._batch, len(self._body), answer)
        except OrderMQError as error:
            self._after(error)
            return
        self._is_over = True
        try:
            # The next request first: callers that are woken want the interpreter, too.
            self._on_end(True)
        finally:
            for entry, its_receipts in zip(self._batch, receipts, strict=True):
                entry.finish(its_receipts, None)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a defect: yet nobody may wait for ever
            _log.exception("%s: a batch was given up", self._destination.queue)
            self._abandon(repr(error))

    # After a try that failed.

    def _after(self, error: Exception) -> None:
        if not isinstance(error, OrderMQError):
            raise error
        queue = self._destination.queue
        self._tries += 1
        self._destination.note_failure(error)
        stayed = self._without_detours(error)
        if len(stayed) < len(self._batch):
            self._batch, self._body = stayed, None
        if not stayed:
            self._is_over = True
            self._on_end(True)
            return
        step = decide(error, self._tries, self._is_doubtful, self._config)
        self._is_doubtful = self._is_doubtful or is_doubtful(error)
        if step is AfterFailure.SEND_AGAIN:
            _log.warning("%s: try %d failed, sending again: %s", queue, self._tries, error)
            self._spawn(delay_ms(self._tries, self._config))
        else:
            self._give_up(error, step)
            self._on_end(True)

    def _without_detours(self, error: OrderMQError) -> Sequence[Entry]:
        """What is tried here again; the rest is another broker's now."""
        batch, queue = self._batch, self._destination.queue
        if not any(entry.moves_left for entry in batch) or not may_go_elsewhere(error):
            return batch
        stayed = [e for e in batch if not (e.moves_left and self._detour(queue, e))]
        if len(stayed) < len(batch):
            self._destination.note_detour(error)
        return stayed

    def _give_up(self, error: OrderMQError, step: AfterFailure) -> None:
        self._is_over = True
        if step is AfterFailure.UNKNOWN:
            for entry in self._batch:
                if entry.key is not None:
                    self._fail(entry.key, str(error))
        for entry in self._batch:
            entry.finish(None, error)

    def _abandon(self, why: str) -> None:
        if self._is_over:
            return
        outcome = f"whether it arrived is unknown ({why})"
        self._give_up(stopped(self._destination.queue, outcome), AfterFailure.UNKNOWN)
        self._on_end(False)


def stopped(queue: MessageQueue, outcome: str) -> StateError:
    """What messages that were not acknowledged fail with."""
    return StateError(
        f"the producer stopped sending before this message was acknowledged; {outcome}",
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
    )
