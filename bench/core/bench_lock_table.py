"""Lock table: renewals, grants, expiry and the calls on the whole table, by batch and entries.

The table is filled with groups of up to 1,024 queues, each held by one member, who goes round
the groups. A batch is handed in four ways: "id" is a column of interned ids; "name" a list of
strings and "message queue" of `MessageQueue` objects, both those that the table holds;
"equal message queue" objects that are new each time with strings that are new too, as a
broker decodes them. All are made ahead. The caller's clock is not read: Java's manager reads
its own once a queue.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from bench import workloads
from bench.core.figures import Figures, Work, ours
from ordermq.core import LockTable, contract
from ordermq.model.message_queue import MessageQueue

TOPIC = "OrderEvents"
BROKER = "broker-a"
OWNER = "10.0.0.1@4711"
OTHER = "10.0.0.2@4711"
NOW_MS = 1_000_000
REPEATS = 3
GRANTS = "unlock and lock"
Table = contract.LockTable[Any]
Plan = list[tuple[Any, Any]]  # (group, batch)


class Filled:
    """A table in which one member holds `entries` queues, in groups.

    Args: by_name: its queues are strings, else message queues.
    """

    def __init__(self, entries: int, *, by_name: bool) -> None:
        self.entries = entries  # asked for; whole groups of them are there
        self.size = min(entries, workloads.CORE_LOCK_GROUP)
        self.groups = [f"group-{number}" for number in range(entries // self.size)]
        known = [MessageQueue(TOPIC, BROKER, number) for number in range(self.size)]
        self.queues: list[Any] = [str(queue) for queue in known] if by_name else list(known)
        self.table: Table = LockTable()
        for group in self.groups:
            assert 0 not in self.table.try_lock_batch(group, self.queues, OWNER, NOW_MS)

    def plan(self, batch: int, cut: Callable[[int], object], groups: list[Any]) -> Plan:
        """(group, batch) of every call: round the groups, and on in each with every round."""
        starts = range(0, self.size - batch + 1, batch)
        return [
            (groups[n % len(groups)], cut(starts[n // len(groups) % len(starts)]))
            for n in range(workloads.CORE_LOCK_RENEWALS // batch)
        ]


def known_batches(queues: Any, batch: int) -> Callable[[int], object]:
    """The same batch each time."""
    made = {start: queues[start : start + batch] for start in range(0, len(queues), batch)}
    return made.__getitem__


def decoded_batches(batch: int) -> Callable[[int], object]:
    """New and equal message queues each time, none of whose strings was hashed before."""
    topic, broker = TOPIC.encode(), BROKER.encode()
    return lambda start: [
        MessageQueue(topic.decode(), broker.decode(), number)
        for number in range(start, start + batch)
    ]


def renewals(kind: str, filled: Filled, batch: int) -> Work:
    """A member renews what it holds, handed in as `kind`."""
    table, owner = filled.table, OWNER
    groups: list[Any] = filled.groups
    by_id = kind == "id"
    cut = known_batches(filled.queues, batch)
    if kind == "equal message queue":
        cut = decoded_batches(batch)
    if by_id:
        groups = [table.intern(group) for group in groups]
        cut = known_batches(array("Q", map(table.intern, filled.queues)), batch)
    try_lock: Callable[..., Any] = table.try_lock_ids if by_id else table.try_lock_batch
    holder: Any = table.intern(owner) if by_id else owner
    plan: Plan = []
    got: Any = None

    def setup() -> None:
        plan[:] = filled.plan(batch, cut, groups)

    def run() -> None:
        nonlocal got
        for group, wanted in plan:
            got = try_lock(group, wanted, holder, NOW_MS + 1)

    def check() -> None:
        group, queues = plan[-1]
        if by_id:
            group, queues = table.name_of(group), [table.name_of(number) for number in queues]
        held = [table.holder(group, queue) for queue in queues]
        assert held == [(owner, epoch, NOW_MS + 1) for epoch in got]
        assert len(held) == batch

    items = workloads.CORE_LOCK_RENEWALS // batch * batch
    case = f"{kind}, batch {batch}, entries {filled.entries}"
    return Work(case, items, run, check, setup, REPEATS)


def grants(filled: Filled, batch: int) -> Work:
    """Unlock a batch and lock it again, by message queue; so that the table stays full."""
    table = filled.table
    plan = filled.plan(batch, known_batches(filled.queues, batch), filled.groups)
    items, count, before = len(plan) * batch, len(table), table.next_epoch
    got: Any = None

    def run() -> None:
        nonlocal got
        for group, wanted in plan:
            table.unlock_batch(group, wanted, OWNER)
            got = table.try_lock_batch(group, wanted, OWNER, NOW_MS)

    def check() -> None:
        given = table.next_epoch - before
        assert (len(table), given % items) == (count, 0)
        assert given > 0
        assert 0 not in got

    case = f"{GRANTS}, batch {batch}, entries {filled.entries}"
    return Work(case, items, run, check, times=REPEATS)


def whole_table(figures: Figures, entries: int, *, distinct: bool) -> None:
    """Time the calls that visit every lock: snapshot, restore, take-over after expiry, sweeps.

    Args: distinct: each lock has a queue of its own, else the groups share their names.
    """
    size = min(entries, workloads.CORE_LOCK_GROUP)
    rows = [
        (
            f"group-{n // size}",
            MessageQueue(TOPIC, BROKER, n if distinct else n % size),
            OWNER,
            n + 1,
            NOW_MS,
        )
        for n in range(entries)
    ]
    late_ms = NOW_MS + 60_001
    kind = f"{'distinct' if distinct else 'shared'} names, entries {entries}"
    table: Table = LockTable()
    figures.take(f"restore, {kind}", entries, lambda: table.restore(rows, entries + 1))
    assert len(table) == entries
    figures.take(f"snapshot, {kind}", entries, table.snapshot, 3)
    figures.take(f"sweep of none, {kind}", entries, lambda: table.sweep(NOW_MS), REPEATS)
    batches = [
        (rows[first][0], [row[1] for row in rows[first : first + size]])
        for first in range(0, entries, size)
    ]

    def take_over() -> None:
        for group, queues in batches[1:]:
            assert 0 not in table.try_lock_batch(group, queues, OTHER, late_ms)

    if len(batches) > 1:
        figures.take(f"take over, {kind}", entries - size, take_over)
    swept: list[Any] = []
    figures.take(f"sweep after it, {kind}", entries, lambda: swept.extend(table.sweep(late_ms)))
    assert {row[0] for row in swept} == {"group-0"}
    assert len(swept) == size
    table.try_lock_batch("group-0", batches[0][1], OWNER, NOW_MS)
    figures.take(f"sweep of one group, {kind}", size, lambda: table.sweep(late_ms))
    assert len(table) == entries - size
    if len(table):
        figures.take(f"sweep of all, {kind}", len(table), lambda: table.sweep(late_ms + 60_001))
    assert len(table) == 0


def slowest_growth(figures: Figures, entries: int) -> None:
    """One group that grows to all entries: the longest call, in which it is moved."""
    table: Table = LockTable()
    group, owner = table.intern("group"), table.intern(OWNER)
    ids = array("Q", [table.intern(number) for number in range(entries)])
    slowest = 0
    for first in range(0, entries, 64):
        column = ids[first : first + 64]
        start = time.perf_counter_ns()
        table.try_lock_ids(group, column, owner, NOW_MS)
        slowest = max(slowest, time.perf_counter_ns() - start)
    assert len(table) == entries
    figures.put(f"one group grows: slowest batch of 64, entries {entries}", slowest)


@lru_cache(maxsize=1)  # filling a million takes seconds; the cases of a table are neighbours
def filled_table(entries: int, by_name: bool) -> Filled:
    return Filled(entries, by_name=by_name)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case that leaves the table as it was."""
    for entries in workloads.CORE_LOCK_ENTRIES:
        for kind in ("name", "message queue", "equal message queue", "id", GRANTS):
            for batch in workloads.CORE_LOCK_BATCHES:
                if batch <= min(entries, workloads.CORE_LOCK_GROUP):

                    def make(entries: int = entries, kind: str = kind, batch: int = batch) -> Work:
                        filled = filled_table(entries, kind == "name")
                        if kind == GRANTS:
                            return grants(filled, batch)
                        return renewals(kind, filled, batch)

                    yield f"{kind}-{batch}-{entries}", make


def main() -> None:
    warm = Filled(1_024, by_name=False)
    for kind in ("message queue", "equal message queue", "id"):
        ours("lock_table").time(renewals(kind, warm, 64))  # its figures are not kept
    figures = ours("lock_table")
    for _, prepared in matrix():
        figures.time(prepared())
    for entries in workloads.CORE_LOCK_ENTRIES[-2:]:
        whole_table(figures, entries, distinct=False)
        whole_table(figures, entries, distinct=True)
        slowest_growth(figures, entries)
    figures.print()


if __name__ == "__main__":
    main()
