"""GroupConsumer: the state of a consumer around its `GroupMember`, and its hurried end."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING

from ordermq.closing import Starting, not_running
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.consumer.group.group_member import GroupMember
from ordermq.consumer.group.member_parts import MemberSettings
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.statistics import ConsumerStatistics, HeldQueue, Lag
from ordermq.errors import OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.connecting import taking_descriptors

if TYPE_CHECKING:
    from ordermq.client.user_code import UserCode
    from ordermq.clock import Clock
    from ordermq.health import ConsumerHealth


_CANCELLED = asyncio.CancelledError, concurrent.futures.CancelledError
_CLOSED_MEANWHILE = "close() was called while start() was under way; create a new consumer"


class GroupConsumer(ExplainsMethods, Starting):
    """Base of the consumers that are members of a group, whatever receives their messages."""

    group: str
    statistics: ConsumerStatistics
    _kind = "consumer"
    _clock: Clock
    _guard: DeadLetterGuard
    _newest_version = 0  # of the subscriptions so far
    _member: GroupMember | None = None  # from `start` on
    _is_closing = False
    _is_start_given_up = False
    _is_starting = False
    _is_close_called = False  # `stop` is not meant: what it ends may be started

    def _begin_counting(self, most_letters: int, window: int) -> None:
        """Make `statistics` and `_guard`, which are there before a member and after it.

        Args: most_letters, window: as of `DeadLetterGuard`.
        """
        self.statistics = ConsumerStatistics(self._clock)
        self._guard = DeadLetterGuard(self.group, most_letters, window, self.statistics)

    def stop(self) -> None:
        """Make whoever consumes come to an end; any thread."""
        raise NotImplementedError

    def _next_version(self) -> int:
        """Return the version of another subscription, above those of all before."""
        # Brokers keep the subscription with the greatest version: a second call within one
        # millisecond, or after the clock was set back, must win too.
        self._newest_version = max(self._clock.wall_ms(), self._newest_version + 1)
        return self._newest_version

    def _join(self, user_code: UserCode) -> None:
        """Make `_member` and start it."""
        raise NotImplementedError

    def _join_or_leave(self, user_code: UserCode) -> None:
        """`_join`; a member that an exception finds started leaves the group."""
        try:
            self._is_starting = True
            # Also of a module that is imported now, since few consumers need it.
            with taking_descriptors("cannot start"):
                self._join(user_code)
        except BaseException as error:
            member, self._member = self._member, None
            if member is not None:
                # Registered already: without a goodbye the group would wait for it to expire.
                member.abandon_start()
            # Whatever a closed connection has raised in it, also a cancellation.
            if self._is_close_called and isinstance(error, (OrderMQError, *_CANCELLED)):
                raise StateError(_CLOSED_MEANWHILE, group=self.group) from error
            raise
        finally:
            self._is_starting = False

    def _start(self, settings: MemberSettings) -> GroupMember:
        # Set before it starts: a listener or `on_assigned` may be called, and seek, meanwhile.
        member = self._member = GroupMember(settings)
        if self._is_close_called:  # it has found no member yet
            member.close(0.0)
            raise StateError(_CLOSED_MEANWHILE, group=self.group)
        if self._is_start_given_up:
            member.give_up_start()
        member.start()
        return member

    def _begin_close(self) -> GroupMember | None:
        """Return the member to close; None if there is none, or `start` is about to make it.

        Raises: StateError: called by a listener or callback of the member, as `close` says, or on
            the I/O thread.
        """
        if self._member is None and not self._is_starting:
            return None
        if self._member is not None:
            self._member.client.runtime.require_other_thread()
            if not self._is_closing:
                self._member.require_may_close()
        # Before the member is looked for: a `start` that makes it now reads this afterwards.
        self._is_closing = self._is_close_called = True
        return self._member

    def give_up_start(self) -> None:
        """Have a `start` that is under way, and waits for servers, raise; any thread."""
        self._is_start_given_up = True
        if (member := self._member) is not None:
            member.give_up_start()

    def hurry_close(self) -> None:
        """End the wait of a `close` that was called, or is about to be; any thread."""
        if (member := self._member) is not None:
            self.stop()
            self._is_closing = True
            member.hurry_close()

    def health(self) -> ConsumerHealth:
        """Return what this consumer can do at this moment, for a probe; any thread, never raises.

        It answers within two seconds even if the I/O thread is blocked.
        """
        from ordermq.health import ConsumerHealth  # here: few ask, and its classes are slow to make

        member = self._running_member()
        if member is None:
            reason = "the consumer is not running: it was closed, or not started"
            return ConsumerHealth(is_alive=False, is_ready=False, reasons=(reason,))
        return member.client.ask_health(member.state.health, ConsumerHealth)

    def lag(self) -> dict[MessageQueue, Lag]:
        """Return how far each held queue is behind, from what is done; not on the I/O thread.

        A queue that is not being pulled, because its buffer is full, is asked for its end at its
        broker, for at most five seconds. {} before the start and after the close.
        """
        member = self._running_member()
        return {} if member is None else member.state.ask_lag()

    def held_queues(self) -> list[HeldQueue]:
        """Return each held queue with its buffer and its lease, sorted; any thread.

        [] before the start and after the close.
        """
        member = self._running_member()
        return [] if member is None else member.state.held_queues()

    def _running_member(self) -> GroupMember | None:
        return None if self._is_closing else self._member

    def _has_ended(self) -> bool:
        """Return True once its methods are refused, as nothing of it runs any more."""
        return self._is_closing

    def _live(self) -> GroupMember:
        if self._member is None or self._has_ended():
            raise not_running("consumer", self.group, was_closed=self._has_ended())
        return self._member
