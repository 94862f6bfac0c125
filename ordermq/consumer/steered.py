"""What a user may do to a push consumer while it runs, besides ending it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import replace

from ordermq.config import ConsumerConfig
from ordermq.consumer.group.group_member import Member
from ordermq.errors import ConfigError, StateError
from ordermq.model.message_queue import MessageQueue


class SteeredConsumer(ABC):
    """The part of `PushConsumer` that needs a live membership; from any thread."""

    group: str
    config: ConsumerConfig

    @abstractmethod
    def _member(self) -> Member | None:
        """The membership; None before the start and after the close."""

    def _live(self) -> Member:
        member = self._member()
        if member is None:
            raise StateError("the consumer is not running", group=self.group)
        return member

    def assigned_queues(self) -> list[MessageQueue]:
        """The queues that are ours now, sorted; [] before the start and after the close."""
        running = self._member()
        return running.assigned_queues() if running is not None else []

    def pause(self, message_queue: MessageQueue | None = None, *, release: bool = False) -> None:
        """Call the listener no more for a queue, or for any, until `resume`.

        Args:
            message_queue: one of ours, also if it moves away and comes back; None for all.
            release: keep no lock. A queue is handed over as in a rebalance and not taken again;
                whoever asks for its lock gets it, but the group's other members do not ask, for
                it stays our share. With no queue named we leave the group's member list, and
                the others take all over. Returns at once; `on_revoked` tells of the end.
        Raises: StateError: not running; the queue is not ours, and `release` is not given.
        """
        member = self._live()
        if message_queue is not None:
            member.steering.pause(message_queue, release)
        elif release:
            member.step_out()
        else:
            member.steering.pause_all()

    def resume(self, message_queue: MessageQueue | None = None) -> None:
        """End a `pause`, or a stop by `Stop()`, of a queue, or of all that we have paused.

        Raises: StateError: not running; the queue is neither ours nor released by us.
        """
        member = self._live()
        if message_queue is not None:
            member.steering.resume(message_queue)
            return
        member.steering.resume_all()
        member.step_in()

    def seek(self, message_queue: MessageQueue, offset: int) -> Future[None]:
        """Go on from `offset`, in either direction (docs/internals/semantics.md#pause-and-seek).

        The running batch ends and does not count beyond it; what is buffered is dropped; the
        group's offset is set, even backwards. One the broker does not have becomes its first or
        its next one.

        Returns: a future of it. Wait for it anywhere but in a listener of this queue.
        Raises: StateError: not running, or the queue is not ours. ConfigError: offset below 0.
            The future: StateError if it moved away first; RemotingError or RouteError if the
            broker was not reached: then we go on from `offset`, and the next commit tells it.
        """
        if offset < 0:
            raise ConfigError(f"seek to offset {offset}: expected 0 or more", group=self.group)
        return self._live().steering.seek(message_queue, offset)

    def seek_to_time(self, message_queue: MessageQueue, timestamp_ms: int) -> Future[None]:
        """Go on from the first message stored at `timestamp_ms` (since 1970) or later.

        Returns and raises as `seek`.
        """
        return self._live().steering.seek_to_time(message_queue, timestamp_ms)

    def resize(self, threads: int) -> None:
        """Have at most so many listener calls at once, as `consume_thread_count` says at first.

        Fewer threads than now end as their listeners return. An `async def` listener of an
        orderly group needs none: it runs once a queue.

        Raises: ConfigError: not in the range of `consume_thread_count`. StateError: not running.
        """
        replace(self.config.consume, consume_thread_count=threads)  # checks the range
        self._live().resize(threads)

    def parked_keys(self) -> dict[MessageQueue, list[str]]:
        """The sharding keys that `ParkKey` holds back at this member, by queue."""
        found = self._live().steering.parked_keys()
        return {queue: [key.decode(errors="replace") for key in found[queue]] for queue in found}

    def unpark(self, key: str) -> bool:
        """Go on with a parked sharding key, at the message that was given up.

        What lies in a parking topic is consumed first, in order, with `attempt` 0 and offsets
        of that topic; if one of it fails, the key stays parked from there on.

        Returns: False if this member has not parked it; each member knows its own queues.
        """
        return self._live().steering.unpark(key.encode())
