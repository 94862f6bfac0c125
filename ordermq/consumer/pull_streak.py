"""Pull after pull of one queue, as long as each answer is messages and there is room for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.model.message import MessageBatch
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command, next_opaque
from ordermq.remoting.connection import Connection
from ordermq.remoting.framing import PullFrames
from ordermq.remoting.response_futures import ResponseFuture


class PullStreak(ResponseFuture):
    """On the I/O thread, without a task: an answer is buffered, and the next pull sent, as it is
    read. A task a pull cost more than all of that.

    Args:
        generation: of the queue; the streak ends where it does.
        broker_id: the replica that is asked; the streak ends where the broker suggests another.
        on_batch: told the messages of each batch, before it is buffered.
        submit: gives the queue a turn.
        has_room: whether to pull on.
    Attributes:
        ended: done when the streak is over, with the answer that was no batch of messages, or
            None; or with what `Connection.request` raises. Cancel it to end the streak.
        offset: where the last pull was.
    """

    __slots__ = (
        "_assigned",
        "_connection",
        "_frames",
        "_generation",
        "_has_room",
        "_on_batch",
        "_submit",
        "_suggestion",
        "_tags",
        "_timeout_ms",
        "ended",
        "offset",
    )

    def __init__(
        self,
        connection: Connection,
        frames: PullFrames,
        timeout_ms: int,
        assigned: AssignedQueue,
        generation: int,
        offset: int,
        tags: tuple[bytes, ...],
        broker_id: int,
        on_batch: Callable[[int], None],
        submit: Callable[[AssignedQueue], None],
        has_room: Callable[[], bool],
    ) -> None:
        self.code = frames.code
        self._connection = connection
        self._frames = frames
        self._timeout_ms = timeout_ms
        self._assigned = assigned
        self._generation = generation
        self.offset = offset
        self._tags = tags
        self._suggestion = str(broker_id)
        self._on_batch = on_batch
        self._submit = submit
        self._has_room = has_room
        self.ended: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Send the first pull."""
        self._ask()

    @property
    def asked_ms(self) -> int:
        """When the last pull was sent, on the monotonic clock."""
        return self.deadline_ms - self._timeout_ms

    # ResponseFuture

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def answered(self, command: Command) -> None:
        if self.ended.done():
            return
        try:
            self._take(command)
        except Exception as error:  # noqa: BLE001 - for whoever awaits the end, as in a task
            self.ended.set_exception(error)

    def failed(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _take(self, command: Command) -> None:
        fields, assigned = command.ext, self._assigned
        next_offset = fields.get("nextBeginOffset", "")
        if (
            command.code != ResponseCode.SUCCESS
            or fields.get("suggestWhichBrokerId", "0") != self._suggestion
            or not next_offset.isdecimal()
            or not len(batch := self._batch(command.body))
        ):
            self.ended.set_result(command)
            return
        self._on_batch(len(batch))
        self.offset = int(next_offset)
        if assigned.accept(self._generation, batch, self.offset):
            # The broker is asked for more before a listener's thread wants the interpreter.
            self._connection.after_read(partial(self._submit, assigned))
        if (
            assigned.generation == self._generation
            and assigned.state is QueueState.ACTIVE
            and self._has_room()
            and self._connection.is_writable
        ):
            self._ask()
        else:
            self.ended.set_result(None)

    def _batch(self, body: bytes) -> MessageBatch:
        return MessageBatch(self._assigned.queue, body, self._tags, self._connection.namespace)

    def _ask(self) -> None:
        opaque = next_opaque()
        if self._connection.is_framing:
            frame = self._connection.frame(self._frames.command(self.offset, opaque))
        else:
            frame = self._frames.frame(self.offset, opaque)
        self._connection.ask(opaque, frame, self, self._timeout_ms)
