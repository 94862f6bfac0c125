"""A discrete-event model of the Java client's hand-off rules
(docs/internals/semantics.md#leases-and-renewal, 4, J marks).

One group, one queue, one broker that checks no lock at a commit. It writes the history
a run of such clients would leave, so that the checker can be seen to fail it. Rules kept:
lease renewed every 20 s and distrusted after 30 s, but looked at only before a listener
call; a dropped queue is never committed again; a dropped queue is unlocked by force 20 s
after the last renewal, listener or not; offsets are flushed by a timer every 5 s.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from audit_histories import BROKER_LEASE_MS, MS, Run

RENEW_MS = 20_000
CLIENT_LEASE_MS = 30_000
FLUSH_MS = 5_000
REBALANCE_MS = 1_000


class JavaGroup:
    """A broker, its one queue, and members that follow Java's rules.

    Args:
        messages: how many the queue holds.
        listener_ms: how long each message takes.
    """

    def __init__(self, *, messages: int, listener_ms: int) -> None:
        self.run = Run()
        self.run.store(*range(messages), keys=[f"k{each}" for each in range(messages)])
        self.messages = messages
        self.listener_ms = listener_ms
        self.now_ms = 0
        self.owner: Member | None = None
        self.granted_ms = -BROKER_LEASE_MS
        self.epoch = 0
        self.offset = 0
        self._zero = self.run.t
        self._order = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._order), action))

    def play(self, until_ms: int) -> Run:
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._due)
            self.run.t = max(self.run.t, self._zero + self.now_ms * MS)
            action()
        return self.run

    def try_lock(self, member: Member) -> bool:
        live = self.now_ms - self.granted_ms <= BROKER_LEASE_MS
        if self.owner is not None and self.owner is not member and live:
            return False
        if self.owner is not member or not live:
            self.epoch += 1  # Java has none; the number is what the audit tells owners by
        self.owner, self.granted_ms = member, self.now_ms
        self.run.lock(member.name, self.epoch)
        return True

    def unlock(self, member: Member) -> None:
        if self.owner is member:
            self.owner = None


class Member:
    """One client; `stop` is SIGSTOP, `drop` is a rebalance that takes its queue away."""

    def __init__(self, group: JavaGroup, name: str) -> None:
        self.group = group
        self.name = name
        self.held = self.dropped = self.running = False
        self.locked_ms = 0
        self.stopped_until_ms = 0
        self.next = 0
        self.memory: int | None = None  # offset to flush
        group.run.open(name)
        group.after(FLUSH_MS, self._flush)

    def join(self) -> None:
        if not self.group.try_lock(self):
            self.group.after(REBALANCE_MS, self._when_awake(self.join))
            return
        self.held, self.dropped, self.locked_ms = True, False, self.group.now_ms
        self.next = self.group.offset
        self.group.after(RENEW_MS, self._when_awake(self._renew))
        self._consume()

    def drop(self) -> None:
        self.dropped = True
        self._flush_now()
        self._try_unlock()

    def stop(self, for_ms: int) -> None:
        self.stopped_until_ms = self.group.now_ms + for_ms

    def _when_awake(self, action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            asleep_ms = self.stopped_until_ms - self.group.now_ms
            if asleep_ms > 0:
                self.group.after(asleep_ms, action)
            else:
                action()

        return run

    def _renew(self) -> None:
        if not self.held or self.dropped:
            return
        if self.group.try_lock(self):
            self.locked_ms = self.group.now_ms
            self.group.after(RENEW_MS, self._when_awake(self._renew))
        else:
            self.held = False
            self.group.run.record(self.name, "LOCK_LOST")

    def _consume(self) -> None:
        expired = self.group.now_ms - self.locked_ms > CLIENT_LEASE_MS
        if self.dropped or not self.held or expired or self.next >= self.group.messages:
            return
        self.running = True
        self.group.run.start(self.name, self.next)
        self.group.after(self.group.listener_ms, self._when_awake(self._finish))

    def _finish(self) -> None:
        self.running = False
        self.group.run.end(self.name)
        self.next += 1
        if not self.dropped:  # the finished batch of a dropped queue is not committed
            self.memory = self.next
        self._consume()

    def _flush(self) -> None:
        self._flush_now()
        self.group.after(FLUSH_MS, self._when_awake(self._flush))

    def _flush_now(self) -> None:
        if self.memory is not None:
            self.group.offset = self.memory  # whoever sends it, backwards too
            self.group.run.commit(self.name, self.memory)
            self.memory = None

    def _try_unlock(self) -> None:
        forced = self.group.now_ms > self.locked_ms + RENEW_MS
        if self.running and not forced:
            self.group.after(REBALANCE_MS, self._when_awake(self._try_unlock))
            return
        self.held = False
        self.group.unlock(self)
        self.group.run.unlock(self.name)
