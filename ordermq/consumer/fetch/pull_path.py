"""PullPath: how pulled messages of one queue get into its buffer, chosen at construction.

There are two: `PythonPath` (fetcher.py), which does everything, and `EnginePath`
(engine_loop.py), for what the native engine can do. `QueueFetcher` decides for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, FillPermit
from ordermq.model.message import MessageBatch
from ordermq.remoting.command import Command
from ordermq.remoting.framing import PullFrames
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.core.contract import IdWindow

C = TypeVar("C")  # a connection for pulls


class PullTarget(Protocol):
    """The queue that a pull loop fills, and whoever is notified of it.

    Every answer is of the generation in which the loop began; the loop ends as soon as `accept`
    would refuse it.
    """

    def accept(
        self, batch: MessageBatch, next_offset: int, max_offset: int
    ) -> Callable[[], object] | None:
        """Buffer a batch; return what to call once the connection has read all there is.

        Args:
            max_offset: the end of the queue at the broker.
        """

    def may_pull(self) -> bool:
        """Return whether to pull on: the queue is still held, and has room."""


class EngineTarget(PullTarget, Protocol):
    """A target whose queue is filled without `accept`, by whoever has its permit."""

    def permit(self, permit: FillPermit) -> bool:
        """Give the queue's permit; False: the generation in which the loop began is over."""

    def filled(self, is_dispatched: bool) -> None:
        """Note that messages were buffered.

        Args:
            is_dispatched: the queue's dispatch flag was set, so it must be submitted.
        """

    def counted(self, pulls: int, messages: int, spent_ms: int, buckets: Sequence[int]) -> None:
        """Count pulls with messages, also by their times; any thread."""


class QueuePulls(Value):
    """The pulls of one loop, and the queue they are for.

    Args:
        offset: of the first pull.
        broker_id: the replica that is asked; the loop ends where the broker suggests another.
        is_filtered: the broker passes messages over.
        window: end with an answer that has copies of messages noted there.
    """

    assigned: AssignedQueue
    target: EngineTarget
    frames: PullFrames
    config: PullConfig
    offset: int
    tags: tuple[bytes, ...]
    broker_id: int
    is_filtered: bool
    window: IdWindow | None


class RunningPulls(Protocol):
    """A pull loop: it pulls while each answer is messages and there is room for more.

    Attributes:
        ended: done when the loop is over, with the answer that was no batch of messages, or
            None; or with what `Connection.request` raises. Cancel it to end the loop.
        offset: where the last pull was, once the loop is over.
    """

    ended: asyncio.Future[Command | None]
    offset: int

    @property
    def asked_ms(self) -> int:
        """The time of the last pull, on the monotonic clock."""

    @property
    def is_asking(self) -> bool:
        """True while a pull waits for its answer."""

    def start(self) -> None:
        """Send the first pull."""

    def configure(self, config: PullConfig) -> None:
        """Keep other limits from now on."""


class PullPath(Protocol[C]):
    """Makes the pull loops of a member's queues."""

    async def connect(self, address: str) -> C:
        """Return the connection to a broker by which it is pulled.

        Raises: ConnectFailed: it cannot be opened.
        """

    def begin(self, connection: C, pulls: QueuePulls) -> RunningPulls:
        """Return a loop that can start; it fails at once if the connection has ended."""
