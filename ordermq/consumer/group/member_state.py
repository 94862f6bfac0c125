"""MemberState: what a member of a group tells about itself at this moment."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from dataclasses import fields
from typing import TYPE_CHECKING

from ordermq.client.runtime import NotDoneInTime
from ordermq.consumer.group.member_parts import MemberParts
from ordermq.consumer.offsets.offset_committer import STORE_ERRORS
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import HeldQueue, Lag
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue

if TYPE_CHECKING:
    from ordermq.health import ConsumerHealth

_LAG_TIMEOUT_S = 5.0  # half of a scrape's
_POLLS_MISSED = 2  # times the time-out of a pull


class MemberState:
    """The queues of one member, their lag, and its health, for whoever asks."""

    def __init__(self, parts: MemberParts) -> None:
        self._parts = parts
        self._client = parts.client
        self._held = parts.rebalancer.assigned

    def health(self) -> ConsumerHealth:
        """Return the member's health at this moment; on the I/O thread."""
        from ordermq.health import ConsumerHealth

        parts = self._parts
        base, now_ms = self._client.health(), self._client.clock.now_ms()
        held = self._held()
        locks = [item.lease for item in held if item.lease is not None and item.lease.is_lock]
        lost = [item for item in held if item.lease is None and item.state is QueueState.ACTIVE]
        reasons = list(base.reasons)
        if lost:
            reasons.append(
                f"{len(lost)} of {len(held)} queues have no valid lease, as {lost[0].queue}; they "
                "are asked for again"
            )
        if parts.rebalancer.membership.problem:
            reasons.append(f"group {parts.member.group}: {parts.rebalancer.membership.problem}")
        if parts.check.problem:
            reasons.append(parts.check.problem)
        if parts.settings.guard.reason:
            reasons.append(parts.settings.guard.reason)
        if parts.locks.refusals:
            reasons.append(f"lock requests are refused: {min(parts.locks.refusals.values())}")
        reasons += parts.rebalancer.lost_topics()
        if problems := parts.rebalancer.problems():
            reasons.append(f"{len(problems)} queues cannot be held: {problems[0]}")
        if unread := [item for item in held if item.bad_answer_at >= 0]:
            reasons.append(
                f"{len(unread)} queues cannot be read, as {unread[0].queue}: {unread[0].bad_answer}"
            )
        if refusals := parts.fetcher.refusals():
            reasons.append(f"pulls of {len(refusals)} queues are refused: {min(refusals)}")
        if refusals := parts.offsets.refused_commits:
            reasons.append(f"commits of {len(refusals)} queues are refused: {min(refusals)}")
        reasons += parts.member.refusals.reasons(held)
        age_ms, oldest = parts.fetcher.oldest_poll(now_ms) or (None, None)
        if age_ms is not None and age_ms > _POLLS_MISSED * parts.settings.pull.pull_timeout_ms:
            reasons.append(f"{oldest} has not been polled for {age_ms / 1_000:.0f} s")
        blocked = parts.settings.statistics.blocked()
        common = {each.name: getattr(base, each.name) for each in fields(base)}
        return ConsumerHealth(
            **common | {"is_ready": base.is_alive and not reasons, "reasons": tuple(reasons)},
            queues=tuple(str(item.queue) for item in held),
            lease_left_ms=min((lock.deadline_ms - now_ms for lock in locks), default=None),
            poll_age_ms=age_ms,
            oldest_poll=None if oldest is None else str(oldest),
            blocked_ms=now_ms - blocked[0].since_ms if blocked else None,
            oldest_blocked=str(blocked[0].queue) if blocked else None,
        )

    def assigned_queues(self, *, with_draining: bool) -> list[MessageQueue]:
        """Return the queues this member may work now, sorted; any thread."""
        return [
            item.queue
            for item in self._held()
            if item.lease and (with_draining or item.state is QueueState.ACTIVE)
        ]

    def held_queues(self) -> list[HeldQueue]:
        """Return the state of each held queue, sorted; any thread."""
        now_ms = self._client.clock.now_ms()
        return [_state_of(item, now_ms) for item in self._held()]

    def ask_lag(self) -> dict[MessageQueue, Lag]:
        """Return `lag()`, or what was known before if it cannot be had; from any other thread."""
        self._client.runtime.require_other_thread()
        try:
            return self._client.call(self.lag(), _LAG_TIMEOUT_S)
        except (NotDoneInTime, CancelledError, StateError):  # the thread has just ended
            pass
        wall_ms = self._client.clock.wall_ms()
        return {item.queue: _lag_of(item, wall_ms, False) for item in self._held()}

    async def lag(self) -> dict[MessageQueue, Lag]:
        """Return the lag of each held queue; its broker is asked where no pull waits for it."""
        held = self._held()
        # A broker answers a waiting pull as soon as there is a message. One whose buffer is full,
        # or whose broker is away, is not pulled: its last answer may be old.
        resting = [item for item in held if not self._parts.fetcher.is_pulling(item.queue)]
        answers = await asyncio.gather(*(self._ask_end(item) for item in resting))
        unknown = {item for item, answer in zip(resting, answers, strict=True) if not answer}
        wall_ms = self._client.clock.wall_ms()
        return {item.queue: _lag_of(item, wall_ms, item not in unknown) for item in held}

    async def _ask_end(self, assigned: AssignedQueue) -> bool:
        """Ask for the end of a queue; False if its broker does not answer."""
        queue = assigned.queue
        try:
            address = self._client.routes.master_of(queue.broker_name)
            end = await self._client.api.max_offset(address, queue)
            await self._parts.fetcher.refresh(assigned)
        except STORE_ERRORS:
            return False  # told to the caller; the loops that need this broker log it
        # A pull may have been answered meanwhile.
        assigned.max_offset = max(assigned.max_offset, end)
        return True


def _state_of(assigned: AssignedQueue, now_ms: int) -> HeldQueue:
    lease, buffered = assigned.lease, assigned.process_queue
    left_ms: int | None = 0
    if lease is not None:
        left_ms = max(lease.deadline_ms - now_ms, 0) if lease.is_lock else None
    return HeldQueue(
        queue=assigned.queue,
        buffered_messages=buffered.message_count,
        buffered_bytes=buffered.size_bytes,
        lease_left_ms=left_ms,
        is_paused=assigned.is_paused,
        parked_keys=len(assigned.parked_keys()),
    )


def _lag_of(assigned: AssignedQueue, wall_ms: int, is_current: bool) -> Lag:
    messages = assigned.behind
    if not messages:
        return Lag(0, 0.0, is_current)
    stored_ms = assigned.oldest_stored_ms()
    # The broker's clock may be ahead of this machine's.
    seconds = None if stored_ms is None else max(wall_ms - stored_ms, 0) / 1_000
    return Lag(messages, seconds, is_current)
