"""How far each group is: known here only once it is durable."""

from __future__ import annotations

from ordermq.broker.group_commit import Done, Statement, Write
from ordermq.broker.store import Store
from ordermq.errors import StoreError

OffsetKey = tuple[str, str, int]  # group, topic, queue id

_UPSERT = (
    "INSERT INTO offsets VALUES (?, ?, ?, ?)"
    " ON CONFLICT (grp, topic, queue_id) DO UPDATE SET off = excluded.off"
)


class ConsumerOffsets:
    """Committed offsets; the broker stores what comes, also backwards (semantics 7)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._offsets: dict[OffsetKey, int] = {}
        self._on_the_way: dict[OffsetKey, int] = {}
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
        for key in [key for key in self._offsets if key[1] == topic]:
            del self._offsets[key]

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """(topic, queue id) -> offset of one group."""
        return {
            (topic, queue_id): offset
            for (name, topic, queue_id), offset in self._offsets.items()
            if name == group
        }
