"""A log whose messages leave one by one, in any order: half messages and timed messages.

The tag column of a row holds a number of the log's owner, 0 or greater. The newest row is
kept, marked, when its message leaves: a restart continues counting after a table's greatest
offset, and an offset assigned twice would let an old commit end a new transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ordermq.broker.store.group_commit import QueueLog, Statement
from ordermq.broker.store.store import Store

_GONE = -1  # number of a row that only keeps its offset from being assigned again


class Removal(NamedTuple):
    """The statements that remove one message, and the marked rows they delete and add."""

    statements: list[Statement]
    swept: frozenset[int]
    marked: int | None


class PendingLog:
    """Queue 0 of one of the broker's own topics; used on the loop thread."""

    def __init__(self, store: Store, topic: str) -> None:
        self.log: QueueLog = store.log(topic, 0)
        self._store = store
        self._marked: set[int] = set()

    def load(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, number) of every stored message, ascending; call once, after opening."""
        for offset, number in self._store.tags(self.log):
            if number == _GONE:
                self._marked.add(offset)
            else:
                yield offset, number

    def containing(self, words: bytes, above: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, number, record) of messages with some bytes and a greater number."""
        return self._store.tagged_with(self.log, above, words)

    def record(self, offset: int) -> bytes:
        """Return the record of a message that has not left."""
        record = self._store.record(self.log, offset)
        # Held in memory by its owner as long as the row exists; a missing row is a defect.
        assert record is not None, f"{self.log.topic} has lost offset {offset}"
        return record

    def renumber(self, offset: int, number: int) -> Statement:
        """Return the statement that changes a message's number."""
        change = f"UPDATE {self.log.table} SET tag = ? WHERE off = ?"
        return Statement(change, (number, offset), self.log)

    def removal(self, offset: int) -> Removal:
        """Return what a write needs to remove a message; call `removed` when it is durable."""
        newest = self.log.max_offset - 1
        delete = f"DELETE FROM {self.log.table} WHERE off = ?"
        # A marked row was the newest once. It goes with the next removal after a newer row came.
        swept = frozenset(old for old in self._marked if old < newest)
        statements = [Statement(delete, (old,), self.log) for old in swept]
        # Below the newest row a plain delete is safe; the newest itself is only marked.
        if offset < newest:
            gone = Statement(delete, (offset,), self.log)
            return Removal([*statements, gone], swept, None)
        return Removal([*statements, self.renumber(offset, _GONE)], swept, offset)

    def removed(self, removal: Removal) -> None:
        """Note that the write with this removal is durable."""
        self._marked -= removal.swept
        if removal.marked is not None:
            self._marked.add(removal.marked)
