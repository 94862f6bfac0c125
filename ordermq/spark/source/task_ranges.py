"""The tasks of a batch: queues packed into fewer tasks, or ranges of queues cut into more.

A task costs Spark 80 to 130 ms of CPU time whatever it reads, and a topic has often more queues
than a cluster has cores. So several queues share a task: each queue whole, one after the other.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Sequence

from ordermq.model.message_queue import MessageQueue

Range = tuple[MessageQueue, int, int]  # queue, first offset, and end, exclusive

# A driver cannot see how many cores its executors have. It takes its own machine for one of them,
# twice, so that a task which takes longer leaves the others something to do.
_TASKS_PER_CORE = 2
_LEAST_TASKS = 4
# A large backlog gets more tasks: from here on, what a task costs is little beside its rows.
_ROWS_PER_TASK = 100_000
# The cost of a queue in rows: it is pulled at least once, which takes as long as some hundred rows.
_COST_OF_QUEUE = 200


def task_count(ranges: Sequence[Range], wanted: int | None) -> int:
    """Return how many tasks read these ranges: at most one per range.

    Args: wanted: the option `tasks`; None for about as many as can run at once.
    """
    if wanted is None:
        rows = sum(end - start for _, start, end in ranges)
        wanted = max(_LEAST_TASKS, _TASKS_PER_CORE * _cores(), -(-rows // _ROWS_PER_TASK))
    return min(wanted, len(ranges))


def _cores() -> int:
    # Those that this process may use, where the system tells: a container may have fewer than
    # the machine.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pack(ranges: Sequence[Range], tasks: int | None) -> list[list[Range]]:
    """Return the ranges of each task, about as many rows in each.

    The same for the same arguments: a batch that runs again has the same tasks.

    Args: tasks: their number, as `task_count` returned it; None for one per range.
    """
    ordered = sorted(ranges)
    if tasks is None or tasks >= len(ordered):
        return [[each] for each in ordered]
    packed: list[list[Range]] = [[] for _ in range(tasks)]
    loads = [(0, number) for number in range(tasks)]  # a heap: the least loaded task first
    # The largest first, so that the small ones even out what the large ones leave.
    for each in sorted(ordered, key=lambda one: (one[1] - one[2], one)):
        load, number = loads[0]
        packed[number].append(each)
        heapq.heapreplace(loads, (load + each[2] - each[1] + _COST_OF_QUEUE, number))
    return [sorted(task) for task in packed]


def split(ranges: Sequence[Range], parts: int) -> list[Range]:
    """Cut large ranges until there are at least `parts`, as far as there are rows."""
    rows = sum(end - start for _, start, end in ranges)
    found: list[Range] = []
    for queue, start, end in sorted(ranges):
        # Rounded up: the sum of the parts is at least what was asked for.
        own = min(-(-(end - start) * parts // max(rows, 1)), end - start)
        cuts = [start + (end - start) * part // own for part in range(own + 1)]
        found += [(queue, low, high) for low, high in itertools.pairwise(cuts)]
    return found
