"""Process queue: put 32, take 32, commit, over a standing number of buffered messages."""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Callable, Sequence

from bench import workloads
from bench.core.figures import Figures, ours
from bench.core.pull_bodies import TOPIC, pull_body
from ordermq.core import ProcessQueue, interface
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

BATCH = workloads.CORE_BATCH
COUNT = workloads.CORE_BATCHES_TIMED
_QUEUE = MessageQueue(TOPIC, "broker-a", 3)


class Columns:
    """A batch of which nothing is read but its columns: fills a queue to its depth."""

    def __init__(self, first: int) -> None:
        self.offsets = array("q", range(first, first + BATCH))
        self.body_sizes = array("i", [100]) * BATCH

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> int:
        return self.offsets[index]


def objects(figures: Figures, depth: int) -> None:
    queue = ProcessQueue()
    for first in range(0, depth, BATCH):
        queue.put([(offset, object()) for offset in range(first, first + BATCH)], [100] * BATCH)
    sizes = [100] * BATCH
    groups = [
        [(offset, object()) for offset in range(first, first + BATCH)]
        for first in range(depth, depth + COUNT * BATCH, BATCH)
    ]
    last: list[object] = []
    done = 0

    def run() -> None:
        nonlocal last, done
        put, take, commit = queue.put, queue.take, queue.commit
        for group in groups:
            put(group, sizes)
            last = take(BATCH)
            done += commit()

    figures.take(f"objects, depth {depth}", COUNT * BATCH, run)
    check(queue, depth, done)
    if depth < COUNT * BATCH:
        sent = [message for group in groups for _, message in group]
        assert last == sent[COUNT * BATCH - depth - BATCH : COUNT * BATCH - depth]


def batches(figures: Figures, depth: int) -> None:
    queue = ProcessQueue()
    for first in range(0, depth, BATCH):
        queue.put_batch(Columns(first))
    ready = [
        MessageBatch(_QUEUE, pull_body(BATCH, 100, first))
        for first in range(depth, depth + COUNT * BATCH, BATCH)
    ]
    last: Sequence[interface.Segment] = []
    done = 0

    def run() -> None:
        nonlocal last, done
        put_batch, take_segments, commit = queue.put_batch, queue.take_segments, queue.commit
        for batch in ready:
            put_batch(batch)
            last = take_segments(BATCH)
            done += commit()

    figures.take(f"batches, depth {depth}", COUNT * BATCH, run)
    check(queue, depth, done)
    ((batch, index, count),) = last
    assert (batch.offsets[index], count) == ((COUNT - 1) * BATCH, BATCH)


def columns(figures: Figures, depth: int) -> None:
    queue = ProcessQueue()
    sizes = array("i", [100]) * BATCH
    for first in range(0, depth, BATCH):
        tokens = array("Q", range(first, first + BATCH))
        queue.put_columns(array("q", tokens), tokens, sizes)
    ready = [
        (array("q", range(first, first + BATCH)), array("Q", range(first, first + BATCH)))
        for first in range(depth, depth + COUNT * BATCH, BATCH)
    ]
    last: tuple[memoryview, memoryview] | None = None
    done = 0

    def run() -> None:
        nonlocal last, done
        put_columns, take_columns, commit = queue.put_columns, queue.take_columns, queue.commit
        for offsets, tokens in ready:
            put_columns(offsets, tokens, sizes)
            last = take_columns(BATCH)
            done += commit()

    figures.take(f"columns, depth {depth}", COUNT * BATCH, run)
    check(queue, depth, done)
    wanted = list(range((COUNT - 1) * BATCH, COUNT * BATCH))
    assert last is not None
    assert [column.tolist() for column in last] == [wanted, wanted]


def check(queue: interface.ProcessQueue, depth: int, done: int) -> None:
    """Every commit moved the offset by one batch, and as much is buffered as before."""
    assert done == BATCH * COUNT * (COUNT + 1) // 2, done
    assert queue.next_uncommitted == COUNT * BATCH
    assert (queue.message_count, queue.consuming_count) == (depth, 0)
    assert queue.size_bytes == depth * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=workloads.CORE_DEPTHS)
    arguments = parser.parse_args()
    figures = ours("process_queue")
    shapes: list[Callable[[Figures, int], None]] = [objects, batches, columns]
    for shape in shapes:
        shape(ours("process_queue"), 0)  # warms up; its figure is not kept
        for depth in arguments.depths:
            shape(figures, depth // BATCH * BATCH)
    figures.print()


if __name__ == "__main__":
    main()
