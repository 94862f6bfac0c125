"""Lock table: one member renews its locks, by batch and entries of the table.

The table is filled with groups of 1,024 queues, each held by one member; renewals go round
the groups. "name" hands in queue names, as the embedded broker's table knows them, made
ahead; "message queue" makes them of MessageQueue objects, as that broker does. The caller's
clock is not read: Java's manager reads its own once a queue.
"""

from __future__ import annotations

from bench import workloads
from bench.core.figures import Figures, ours
from ordermq.broker.locks import queue_name
from ordermq.core import LockTable
from ordermq.model.message_queue import MessageQueue

TOPIC = "OrderEvents"
OWNER = "10.0.0.1@4711"
NOW_MS = 1_000_000


def measure(figures: Figures, entries: int) -> None:
    size = min(entries, workloads.CORE_LOCK_GROUP)
    queues = [MessageQueue(TOPIC, "broker-a", number) for number in range(size)]
    names = [queue_name(queue) for queue in queues]
    groups = [f"group-{number}" for number in range(entries // size)]
    table = LockTable()
    for group in groups:
        assert 0 not in table.try_lock_batch(group, names, OWNER, NOW_MS)
    for batch in workloads.CORE_LOCK_BATCHES:
        if batch > size:
            continue
        times = workloads.CORE_LOCK_RENEWALS // batch
        starts = range(0, size - batch + 1, batch)
        plan = [
            (groups[n % len(groups)], starts[n // len(groups) % len(starts)]) for n in range(times)
        ]
        name_lists = {start: names[start : start + batch] for start in starts}
        queue_lists = {start: queues[start : start + batch] for start in starts}
        by_name = [(group, name_lists[start]) for group, start in plan]
        by_queue = [(group, queue_lists[start]) for group, start in plan]
        got: list[int] = []

        def renew(plan: list[tuple[str, list[str]]] = by_name) -> None:
            nonlocal got
            try_lock_batch = table.try_lock_batch
            for group, wanted in plan:
                got = try_lock_batch(group, wanted, OWNER, NOW_MS + 1)

        def renew_queues(plan: list[tuple[str, list[MessageQueue]]] = by_queue) -> None:
            nonlocal got
            try_lock_batch = table.try_lock_batch
            for group, wanted in plan:
                got = try_lock_batch(
                    group, [queue_name(queue) for queue in wanted], OWNER, NOW_MS + 1
                )

        for kind, run in (("name", renew), ("message queue", renew_queues)):
            got = []
            figures.take(f"{kind}, batch {batch}, entries {entries}", times * batch, run, 5)
            group, start = plan[-1]
            held = [table.holder(group, name) for name in names[start : start + batch]]
            assert held == [(OWNER, epoch, NOW_MS + 1) for epoch in got]
            assert len(held) == batch
    assert len(table) == len(groups) * size


def main() -> None:
    measure(ours("lock_table"), 1_024)  # warms up; its figures are not kept
    figures = ours("lock_table")
    for entries in workloads.CORE_LOCK_ENTRIES:
        measure(figures, entries)
    figures.print()


if __name__ == "__main__":
    main()
