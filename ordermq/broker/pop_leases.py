"""Leases of messages that were popped in order, one batch per group and queue
(docs/internals/semantics.md#pop).

The rules are those of RocketMQ's ConsumerOrderInfoManager, with three differences: a lease survives
a restart of the broker, each batch of a queue has a later time than the one before it, and an
acknowledgement of a batch that the broker does not know moves no offset. A change is visible only
once it is durable, and until then its queue hands out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ordermq import json_text
from ordermq.broker.consumer_offsets import ConsumerOffsets, OffsetKey
from ordermq.broker.store import Done, Statement, Store, Write
from ordermq.clock import SteadyWall
from ordermq.errors import StoreError

_UPSERT = "INSERT OR REPLACE INTO pop_leases VALUES (?, ?, ?, ?)"


@dataclass(slots=True)
class PopLease:
    """The last batch that was popped from a queue. Times are ms since 1970.

    Args:
        pop_ms: names the batch; ahead of the clock where that was set back.
        since_ms: when it was popped, or the time of a message was changed last.
        attempt_id: of the request that popped it; None: it had none.
        offsets: of its messages, ascending.
        acked: those that are done.
        visible_ms: when a message may be popped again, where that is not `invisible_ms` after
            `since_ms`.
        deliveries: how often a message was delivered before, where it was.
    """

    pop_ms: int
    since_ms: int
    invisible_ms: int
    attempt_id: str | None
    offsets: tuple[int, ...]
    acked: set[int] = field(default_factory=set)
    visible_ms: dict[int, int] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)

    @property
    def next_offset(self) -> int:
        """The offset to continue from: of the first message that is not done."""
        for offset in self.offsets:
            if offset not in self.acked:
                return offset
        return self.offsets[-1] + 1

    @property
    def blocked_until_ms(self) -> int:
        """The time from which on the queue may be popped again; 0 with every message done."""
        # RocketMQ asks for all messages that are not done: renewing one keeps the queue blocked.
        return max((end_ms for _, end_ms in self.ends()), default=0)

    @property
    def is_done(self) -> bool:
        return len(self.acked) == len(self.offsets)

    def ends(self) -> list[tuple[int, int]]:
        """Return (offset, end of its lease) of each message that is not done."""
        default_ms = self.since_ms + self.invisible_ms
        return [
            (at, self.visible_ms.get(at, default_ms)) for at in self.offsets if at not in self.acked
        ]

    def is_blocked(self, now_ms: int, attempt_id: str | None) -> bool:
        """Return True if a request must not pop the queue now."""
        is_repeated = attempt_id is not None and attempt_id == self.attempt_id
        return not is_repeated and now_ms < self.blocked_until_ms

    def acknowledged(self, offsets: Iterable[int]) -> PopLease:
        """Return this lease with more of its messages done."""
        return replace(self, acked=self.acked | set(offsets))

    def reopened(self, offsets: Iterable[int]) -> PopLease:
        """Return this lease with these messages not done."""
        return replace(self, acked=self.acked.difference(offsets))

    def extended(self, offset: int, now_ms: int, wait_ms: int) -> PopLease:
        """Return this lease with one message that may be popped after a while from now."""
        times = dict.fromkeys(self.offsets, self.since_ms + self.invisible_ms) | self.visible_ms
        return replace(self, since_ms=now_ms, visible_ms=times | {offset: now_ms + wait_ms})

    def from_now(self, now_ms: int) -> PopLease:
        """Return this lease after a restart of the broker: for the whole time again, at least."""
        # The member may be alive, and have renewed just before. The clock may have been set back
        # meanwhile: no message waits longer than it would have waited then.
        behind_ms = max(self.since_ms - now_ms, 0)
        until_ms = now_ms + self.invisible_ms
        times = {at: max(end_ms - behind_ms, until_ms) for at, end_ms in self.visible_ms.items()}
        return replace(self, since_ms=now_ms, visible_ms=times)

    def text(self) -> str:
        """Return the lease as it is stored."""
        return json_text.dumps(
            [
                self.pop_ms, self.invisible_ms, self.attempt_id, self.offsets, sorted(self.acked),
                sorted(self.visible_ms.items()), sorted(self.deliveries.items()), self.since_ms,
            ]
        ).decode()  # fmt: skip

    @classmethod
    def of_text(cls, text: str) -> PopLease:
        (
            pop_ms, invisible_ms, attempt_id, offsets, acked, visible, deliveries, *since
        ) = json_text.loads(text)  # fmt: skip
        since_ms = since[0] if since else pop_ms  # older stores have none
        return cls(
            pop_ms, since_ms, invisible_ms, attempt_id, tuple(offsets), set(acked), dict(visible),
            dict(deliveries),
        )  # fmt: skip


def next_lease(
    before: PopLease | None,
    now_ms: int,
    invisible_ms: int,
    attempt_id: str | None,
    offsets: Sequence[int],
) -> PopLease:
    """Return the lease of a batch that is popped now; counts what it delivers again."""
    pop_ms, deliveries = now_ms, {}
    if before is not None:
        # Two batches of one millisecond would accept each other's acknowledgements.
        pop_ms = max(now_ms, before.pop_ms + 1)
        if attempt_id is not None and attempt_id == before.attempt_id:
            # The answer was lost: nobody has seen these messages, so nothing is counted.
            deliveries = {at: count for at, count in before.deliveries.items() if at in offsets}
        else:
            again = set(before.offsets).intersection(offsets)
            deliveries = {at: before.deliveries.get(at, 0) + 1 for at in sorted(again)}
    return PopLease(pop_ms, now_ms, invisible_ms, attempt_id, tuple(offsets), deliveries=deliveries)


class PopLeases:
    """The leases of all groups, made durable; used on the loop thread.

    Args:
        quiet_ms: nothing is popped for so long.
        on_change: called with a queue's key once its change is durable, or has failed.
    """

    def __init__(
        self,
        store: Store,
        offsets: ConsumerOffsets,
        steady: SteadyWall,
        quiet_ms: int,
        on_change: Callable[[OffsetKey], None],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._steady = steady
        self._on_change = on_change
        self._changing: set[OffsetKey] = set()  # by a write that is not durable
        self._leases: dict[OffsetKey, PopLease] = {}
        now_ms = steady.ms()
        for group, topic, queue_id, text in store.rows("SELECT * FROM pop_leases"):
            lease = PopLease.of_text(str(text)).from_now(now_ms)
            self._leases[str(group), str(topic), int(str(queue_id))] = lease
        # After a back-up was restored: members may still have batches that it does not know.
        self._first_pop_ms = now_ms + quiet_ms

    def get(self, key: OffsetKey) -> PopLease | None:
        """Return the durable lease of a queue's last batch; None: nothing was popped yet."""
        return self._leases.get(key)

    def is_changing(self, key: OffsetKey) -> bool:
        """Return True while a change of the queue is not durable."""
        return key in self._changing

    def is_behind(self, key: OffsetKey, offset: int) -> bool:
        """Return True if a commit would move a group that pops back.

        It came late: batches were popped and acknowledged since its member asked for the offset.
        """
        stored = self._offsets.get(key)
        return key in self._leases and stored is not None and offset < stored

    def blocked_until_ms(self, key: OffsetKey, attempt_id: str | None) -> int:
        """Return when a queue may be popped; 0: now. While it is changing, nobody knows: -1."""
        if key in self._changing:
            return -1
        now_ms, lease = self._steady.ms(), self._leases.get(key)
        if now_ms < self._first_pop_ms:
            return self._first_pop_ms
        if lease is None or not lease.is_blocked(now_ms, attempt_id):
            return 0
        return lease.blocked_until_ms

    def grant(self, batches: Sequence[tuple[OffsetKey, int, PopLease]], done: Done) -> None:
        """Lease a batch of each queue, and store the group's offset there; then call `done`."""
        self._write([(key, lease, start) for key, start, lease in batches], done)

    def change(self, key: OffsetKey, lease: PopLease, offset: int | None, done: Done) -> None:
        """Store a changed lease, and the group's offset unless it is None; then call `done`."""
        self._write([(key, lease, offset)], done)

    def _write(self, changes: Sequence[tuple[OffsetKey, PopLease, int | None]], done: Done) -> None:
        statements = [Statement(_UPSERT, (*key, lease.text())) for key, lease, _ in changes]
        moved = {key: offset for key, _, offset in changes if offset is not None}
        statements += [self._offsets.statement(key, offset) for key, offset in moved.items()]

        def finish(error: StoreError | None) -> None:
            for key, lease, _ in changes:
                self._changing.discard(key)
                if error is None:
                    self._leases[key] = lease
            if error is None:
                for key, offset in moved.items():
                    self._offsets.note(key, offset)
            # Answered first: whoever waits for a message is served behind the one who asked.
            done(error)
            for key, _, _ in changes:
                self._on_change(key)

        self._store.submit(Write(finish, statements=statements))
        self._changing.update(key for key, _, _ in changes)

    def deletion_of(self, key: OffsetKey) -> Statement:
        """Return the statement that deletes a queue's lease; call `forget` then."""
        return Statement("DELETE FROM pop_leases WHERE grp = ? AND topic = ? AND queue_id = ?", key)

    def forget(self, key: OffsetKey) -> None:
        """Drop the lease of a queue whose group was moved."""
        self._leases.pop(key, None)

    # Linear, as in ConsumerOffsets: topics and groups are deleted by hand.
    def forget_topic(self, topic: str) -> None:
        """Drop the leases of a topic that was deleted."""
        for key in [key for key in self._leases if key[1] == topic]:
            del self._leases[key]

    def deletion(self, group: str) -> Statement:
        """Return the statement that deletes a group's leases; call `forget_group` then."""
        return Statement("DELETE FROM pop_leases WHERE grp = ?", (group,))

    def forget_group(self, group: str) -> None:
        """Drop the leases of a group that was deleted."""
        for key in [key for key in self._leases if key[0] == group]:
            del self._leases[key]
