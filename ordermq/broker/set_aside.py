"""A log whose messages leave one by one, in any order: halves of transactions, timers.

A message's tag column is a number of its owner's, 0 or more. The newest row stays when its
message leaves, marked: a table's greatest offset is where a restart goes on counting, and an
offset given twice would let an old commit end a new transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ordermq.broker.group_commit import QueueLog, Statement
from ordermq.broker.store import Store

_GONE = -1


class Removal(NamedTuple):
    """What a write carries for it, and which marks come and go with that."""

    statements: list[Statement]
    swept: frozenset[int]
    marked: int | None


class SetAside:
    """Queue 0 of a topic of the broker's own; on the loop thread."""

    def __init__(self, store: Store, topic: str) -> None:
        self.log: QueueLog = store.log(topic, 0)
        self._store = store
        self._marked: set[int] = set()  # rows that stand for their offset only

    def load(self) -> Iterator[tuple[int, int]]:
        """(offset, number) of what a restart found, ascending; call it once, before all else."""
        for offset, number in self._store.tags(self.log):
            if number == _GONE:
                self._marked.add(offset)
            else:
                yield offset, number

    def record(self, offset: int) -> bytes:
        """A message that has not left."""
        record = self._store.record(self.log, offset)
        assert record is not None, f"{self.log.topic} has lost offset {offset}"
        return record

    def renumber(self, offset: int, number: int) -> Statement:
        """What a write carries to change a message's number."""
        return f"UPDATE {self.log.table} SET tag = ? WHERE off = ?", (number, offset)

    def removal(self, offset: int) -> Removal:
        """Let a message leave."""
        newest = self.log.max_offset - 1
        delete = f"DELETE FROM {self.log.table} WHERE off = ?"
        swept = frozenset(old for old in self._marked if old < newest)
        statements: list[Statement] = [(delete, (old,)) for old in swept]
        if offset < newest:
            return Removal([*statements, (delete, (offset,))], swept, None)
        return Removal([*statements, self.renumber(offset, _GONE)], swept, offset)

    def removed(self, removal: Removal) -> None:
        """Note that a write with this removal is durable."""
        self._marked -= removal.swept
        if removal.marked is not None:
            self._marked.add(removal.marked)
