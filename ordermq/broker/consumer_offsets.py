"""How far each group is: known here only once it is durable."""

from __future__ import annotations

from collections.abc import Mapping

from ordermq.broker.group_commit import Done, Statement, Write
from ordermq.broker.store import Store
from ordermq.errors import StoreError

OffsetKey = tuple[str, str, int]  # group, topic, queue id

_UPSERT = (
    "INSERT INTO offsets VALUES (?, ?, ?, ?)"
    " ON CONFLICT (grp, topic, queue_id) DO UPDATE SET off = excluded.off"
)


class ConsumerOffsets:
    """Committed offsets; the broker stores what comes, also backwards
    (docs/internals/semantics.md#pull-loop)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._offsets: dict[OffsetKey, int] = {}
        self._on_the_way: dict[OffsetKey, int] = {}
        self._resets: dict[OffsetKey, int] = {}
        for group, topic, queue_id, offset in store.rows("SELECT * FROM offsets"):
            self._offsets[str(group), str(topic), int(str(queue_id))] = int(str(offset))

    def get(self, key: OffsetKey) -> int | None:
        """The durable offset, None if the group never committed."""
        return self._offsets.get(key)

    def commit(self, key: OffsetKey, offset: int, done: Done) -> None:
        """Store an offset; `done` follows once the disk has it."""
        self._on_the_way[key] = self._on_the_way.get(key, 0) + 1

        def finish(error: StoreError | None) -> None:
            if self._on_the_way[key] == 1:
                del self._on_the_way[key]
            else:
                self._on_the_way[key] -= 1
            if error is None:
                self._offsets[key] = offset
            done(error)

        self._store.submit(Write(finish, statements=[self.statement(key, offset)]))

    def reset(self, offsets: Mapping[OffsetKey, int], done: Done) -> None:
        """Move groups on purpose, either way; `done` follows once the disk has it."""

        def finish(error: StoreError | None) -> None:
            if error is None:
                self._offsets.update(offsets)
            done(error)

        statements = [self.statement(key, offset) for key, offset in offsets.items()]
        self._store.submit(Write(finish, statements=statements))

    def send_members(self, key: OffsetKey, offset: int) -> None:
        """Answer the queue's next pull with `offset`; what members commit until then is void."""
        self._resets[key] = offset

    def is_void(self, key: OffsetKey) -> bool:
        """Whether a commit of a member comes from before a reset it has not heard of."""
        return key in self._resets

    def take_reset(self, key: OffsetKey) -> int | None:
        """Where a pull shall go instead; told once."""
        return self._resets.pop(key, None) if self._resets else None

    def after_commits(self, key: OffsetKey, done: Done) -> None:
        """Call `done` when every commit of the key submitted so far has ended.

        A reader that comes behind its own commit sees it, and nobody sees an offset that a
        power cut could still take back.
        """
        if key in self._on_the_way:
            self._store.submit(Write(done))
        else:
            done(None)

    def statement(self, key: OffsetKey, offset: int) -> Statement:
        """What stores an offset as part of a larger write; `note` it when that is done."""
        return _UPSERT, (*key, offset)

    def note(self, key: OffsetKey, offset: int) -> None:
        """Take over an offset that another write made durable."""
        self._offsets[key] = offset

    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic's offsets; the store drops its rows."""
        for offsets in (self._offsets, self._resets):
            for key in [key for key in offsets if key[1] == topic]:
                del offsets[key]

    def forget_group(self, group: str) -> Statement:
        """Drop a group's offsets; returns what makes it durable."""
        for offsets in (self._offsets, self._resets):
            for key in [key for key in offsets if key[0] == group]:
                del offsets[key]
        return "DELETE FROM offsets WHERE grp = ?", (group,)

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """(topic, queue id) -> offset of one group."""
        return {
            (topic, queue_id): offset
            for (name, topic, queue_id), offset in self._offsets.items()
            if name == group
        }
