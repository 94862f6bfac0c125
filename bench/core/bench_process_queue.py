"""Process queue: each operation over a standing number of buffered messages.

As a program: put 32, take 32, commit, as the peers do it. For the matrix: by operation, shape,
messages a call and depth.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.standing_queues import BODY_BYTES, SHAPES, Standing

BATCH = workloads.CORE_BATCH
COUNT = workloads.CORE_BATCHES_TIMED
_TIMES = 7


def beside_peers(shape: str, depth: int) -> Work:
    """Return the work that Java's ProcessQueue and the other peers do, too."""
    standing = SHAPES[shape](depth)
    ready = standing.ready(COUNT, BATCH)

    def check() -> None:
        assert standing.committed == standing.queue.next_uncommitted == COUNT * BATCH
        assert standing.last_offsets() == list(range((COUNT - 1) * BATCH, COUNT * BATCH))
        check_standing(standing, depth)

    def run() -> None:
        standing.cycle(ready, BATCH)

    return Work(f"{shape}, depth {depth}", COUNT * BATCH, run, check)


def check_standing(standing: Standing, depth: int) -> None:
    queue = standing.queue
    assert (queue.message_count, queue.consuming_count) == (depth, 0)
    assert queue.size_bytes == depth * BODY_BYTES


@lru_cache(maxsize=1)  # filling ten million takes seconds; the cases of a depth are neighbours
def standing_queue(shape: str, depth: int) -> Standing:
    return SHAPES[shape](depth)


class Operations:
    """The operations on a queue, `count` times `batch` messages each.

    A method is one operation: it makes its work, whose setup brings the queue back to the
    depth before every timing.
    """

    def __init__(self, shape: str, depth: int, batch: int) -> None:
        self.standing = standing_queue(shape, depth)
        self.depth = depth
        self.batch = batch
        self.count = max(1, workloads.CORE_MATRIX_MESSAGES // batch)
        self.messages = self.count * batch
        self._case = f"{shape}, {{}}, batch {batch}, depth {depth}"

    def work(
        self,
        name: str,
        prepare: Callable[[], object],
        run: Callable[[], object],
        pending: int,
        consuming: int,
    ) -> Work:
        def check() -> None:
            queue = self.standing.queue
            found = queue.pending_count, queue.consuming_count
            assert found == (pending, consuming), (name, found)
            assert queue.size_bytes == (pending + consuming) * BODY_BYTES
            if self.standing.last is not None:
                offsets = self.standing.last_offsets()
                assert len(offsets) == self.batch
                assert offsets == list(range(offsets[0], offsets[0] + self.batch))

        return Work(self._case.format(name), self.messages, run, check, prepare, _TIMES)

    def _prepare(self, extra: int) -> None:
        self.standing.last = None
        self.standing.hold(self.depth + extra)

    def put(self) -> Work:
        ready: list[object] = []

        def prepare() -> None:
            self._prepare(0)
            ready[:] = self.standing.ready(self.count, self.batch)

        pending = self.depth + self.messages
        return self.work("put", prepare, lambda: self.standing.put(ready), pending, 0)

    def take(self) -> Work:
        return self.work(
            "take",
            lambda: self._prepare(self.messages),
            lambda: self.standing.take_each(self.count, self.batch),
            self.depth,
            self.messages,
        )

    def commit(self) -> Work:
        return self.work(
            "take and commit",
            lambda: self._prepare(self.messages),
            lambda: self.standing.take_and_commit(self.count, self.batch),
            self.depth,
            0,
        )

    def rollback(self) -> Work:
        return self.work(
            "take and roll back",
            lambda: self._prepare(self.batch),
            lambda: self.standing.take_and_roll_back(self.count, self.batch),
            self.depth + self.batch,
            0,
        )

    def cycle(self) -> Work:
        ready: list[object] = []

        def prepare() -> None:
            self._prepare(0)
            ready[:] = self.standing.ready(self.count, self.batch)

        return self.work(
            "put, take, commit",
            prepare,
            lambda: self.standing.cycle(ready, self.batch),
            self.depth,
            0,
        )

    def remove(self) -> Work:
        return self._remove("remove", shuffled=False)

    def remove_shuffled(self) -> Work:
        return self._remove("remove, shuffled", shuffled=True)

    def _remove(self, name: str, *, shuffled: bool) -> Work:
        parts: list[list[int]] = []
        rng = random.Random(workloads.SEED)

        def prepare() -> None:
            self._prepare(self.messages)
            first = self.standing.queue.first_pending
            offsets = list(range(first, first + self.messages))
            if shuffled:
                rng.shuffle(offsets)
            starts = range(0, self.messages, self.batch)
            parts[:] = [offsets[start : start + self.batch] for start in starts]

        return self.work(name, prepare, lambda: self.standing.remove(parts), self.depth, 0)


OPERATIONS = ("put", "take", "commit", "cycle", "rollback", "remove", "remove_shuffled")


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for shape in SHAPES:
        for depth in workloads.CORE_DEPTHS:
            standing = depth // BATCH * BATCH
            # What is received differs from other batches as it is put, and nowhere else.
            for operation in OPERATIONS if shape != "received" else ("put", "cycle"):
                for batch in workloads.CORE_MATRIX_BATCHES:

                    def make(
                        shape: str = shape,
                        depth: int = standing,
                        batch: int = batch,
                        operation: str = operation,
                    ) -> Work:
                        found = getattr(Operations(shape, depth, batch), operation)()
                        assert isinstance(found, Work)
                        return found

                    yield f"{shape}-{operation}-{batch}-{standing}", make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=workloads.CORE_DEPTHS)
    arguments = parser.parse_args()
    figures = ours("process_queue")
    for shape in SHAPES:
        ours("process_queue").time(beside_peers(shape, 0))  # warms up; its figure is not kept
        for depth in arguments.depths:
            figures.time(beside_peers(shape, depth // BATCH * BATCH))
    figures.print()


if __name__ == "__main__":
    main()
