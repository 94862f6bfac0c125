"""Consumer offsets of every group; an offset is visible only once it is durable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ordermq.broker.store import Done, Statement, Store, Write
from ordermq.errors import StoreError

OffsetKey = tuple[str, str, int]  # group, topic, queue id
MAX_OFFSET = (1 << 63) - 1  # Java's Long.MAX_VALUE

_UPSERT = (
    "INSERT INTO offsets VALUES (?, ?, ?, ?)"
    " ON CONFLICT (grp, topic, queue_id) DO UPDATE SET off = excluded.off"
)


class ConsumerOffsets:
    """Committed offsets, and resets that members have not seen yet.

    The broker stores each commit as it comes, even a lower offset
    (docs/internals/semantics.md#pull-loop).
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._offsets: dict[OffsetKey, int] = {}
        self._uncommitted_writes: dict[OffsetKey, int] = {}  # submitted, not durable: how many
        self._resetting: set[OffsetKey] = set()  # by a write that is not durable
        self._resets: dict[OffsetKey, int] = {}
        for group, topic, queue_id, offset in store.rows("SELECT * FROM offsets"):
            self._offsets[str(group), str(topic), int(str(queue_id))] = int(str(offset))

    def get(self, key: OffsetKey) -> int | None:
        """Return the durable offset, None if the group never committed."""
        return self._offsets.get(key)

    def commit(self, key: OffsetKey, offset: int, done: Done) -> None:
        """Store an offset; `done` is called once it is durable."""
        self._uncommitted_writes[key] = self._uncommitted_writes.get(key, 0) + 1

        def finish(error: StoreError | None) -> None:
            if self._uncommitted_writes[key] == 1:
                del self._uncommitted_writes[key]
            else:
                self._uncommitted_writes[key] -= 1
            if error is None:
                # Only now: a member that reads it may start there, and a power cut must not take
                # back what it has seen.
                self._offsets[key] = offset
            done(error)

        self._store.submit(Write(finish, statements=[self.statement(key, offset)]))

    def reset(
        self, offsets: Mapping[OffsetKey, int], done: Done, more: Sequence[Statement] = ()
    ) -> None:
        """Store offsets that an administrator set; `done` is called once they are durable.

        No other reset of these keys may be under way: ask `is_resetting`.

        Args:
            more: done with the same write.
        """

        def finish(error: StoreError | None) -> None:
            self._resetting.difference_update(offsets)
            if error is None:
                self._offsets.update(offsets)
            done(error)

        # One write for all queues: after a crash either all of the group was moved, or none of it.
        statements = [self.statement(key, offset) for key, offset in offsets.items()]
        self._store.submit(Write(finish, statements=[*statements, *more]))
        self._resetting.update(offsets)

    def is_resetting(self, key: OffsetKey) -> bool:
        """Return True while a reset is not durable: a commit now would undo it."""
        return key in self._resetting

    def announce_reset(self, key: OffsetKey, offset: int) -> None:
        """Answer the group's next pull of the queue with `offset`; ignore commits until then."""
        self._resets[key] = offset

    def has_unseen_reset(self, key: OffsetKey) -> bool:
        """Return True if the queue's owner has not pulled since a reset.

        A commit of it would be of work from before the reset, and undo it.
        """
        return key in self._resets

    def take_reset(self, key: OffsetKey) -> int | None:
        """Return the offset to continue from after a reset, once; None if there was none."""
        # Every pull asks: the empty dictionary is tested first, it almost always is.
        return self._resets.pop(key, None) if self._resets else None

    def after_commits(self, key: OffsetKey, done: Done) -> None:
        """Call `done` when every commit of the key submitted so far has ended.

        A client that queries after its commit sees it, and no client sees an offset that a
        power cut could still undo.
        """
        if key in self._uncommitted_writes:
            # An empty write: writes end in the order of submission, so it ends after them.
            self._store.submit(Write(done))
        else:
            done(None)

    def statement(self, key: OffsetKey, offset: int) -> Statement:
        """Return the statement that stores an offset; call `note` when its write is durable."""
        return Statement(_UPSERT, (*key, offset))

    def note(self, key: OffsetKey, offset: int) -> None:
        """Take over an offset that another write made durable."""
        self._offsets[key] = offset

    # Linear, as the next one: topics and groups are deleted by hand, offsets are read per pull.
    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a topic that was deleted."""
        for offsets in (self._offsets, self._resets):
            for key in [key for key in offsets if key[1] == topic]:
                del offsets[key]

    def deletion(self, group: str) -> Statement:
        """Return the statement that deletes a group's offsets; call `forget_group` then."""
        return Statement("DELETE FROM offsets WHERE grp = ?", (group,))

    def forget_group(self, group: str) -> None:
        """Drop the offsets of a group that was deleted."""
        for offsets in (self._offsets, self._resets):
            for key in [key for key in offsets if key[0] == group]:
                del offsets[key]

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """Return (topic, queue id) -> offset of one group."""
        return {
            (topic, queue_id): offset
            for (name, topic, queue_id), offset in self._offsets.items()
            if name == group
        }

    def groups(self, topic: str | None = None) -> set[str]:
        """Return the groups that have an offset, of one topic or of any."""
        return {name for name, of, _ in self._offsets if topic in (None, of)}
