"""The core's process queue and lock table compared with RocketMQ's classes, step by step.

Random operations with kept seeds go to the Java class and to each core; every result and the
state after it must be equal. Where ours differs on purpose the generator does not go:
tests/unit/core/test_core_process_queue.py holds those differences, with Java's traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq.core import _cython, cffi_binding, reference
from tests.interop.cluster import Cluster
from tests.interop.java_process import JavaProcess

CORES = {"cython": _cython, "cffi": cffi_binding, "reference": reference}
LEASE_MS = 60_000  # RebalanceLockManager's own
# Java's class reads the wall clock. No sum of these comes within 10 s of the lease, so the real
# time a run takes never decides whether a lock has expired.
STEPS_MS = (25_000, 50_000, 100_000)
QUEUE_SEEDS = range(10)
QUEUE_STEPS = 2_200
LOCK_SEEDS = range(3)
LOCK_STEPS = 1_000


@pytest.fixture(scope="module")
def java(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    folder: Path = tmp_path_factory.mktemp("structures")
    process = JavaProcess(cluster.version, "Structures", folder)
    yield process
    process.leave()


class BesideJava:
    """One process queue of a core and one of Java, with the same operations."""

    def __init__(self, java: JavaProcess, make: Callable[[], Any]) -> None:
        self._java = java
        self._ours = make()
        self.pending: dict[int, int] = {}  # offset -> bytes
        self.consuming: dict[int, int] = {}
        java.ask("new")

    def check(self, line: str, result: Any) -> None:
        """Compare one step's result, and the counters after it."""
        ours = self._ours
        assert self._java.ask(line) == {
            "result": result,
            "count": ours.message_count,
            "bytes": ours.size_bytes,
            "span": ours.max_span,
        }, line
        ours._check()

    def put(self, sizes: dict[int, int]) -> None:
        listed = ",".join(f"{offset}:{size}" for offset, size in sizes.items())
        messages = [(offset, offset) for offset in sizes]
        self.check(f"put {listed}", self._ours.put(messages, list(sizes.values())))
        self.pending |= sizes

    def take(self, count: int) -> None:
        taken = self._ours.take(count)
        self.check(f"take {count}", taken)
        for offset in taken:
            self.consuming[offset] = self.pending.pop(offset)

    def commit(self) -> None:
        self.check("commit", self._ours.commit())
        self.consuming.clear()

    def rollback(self) -> None:
        self._ours.rollback()
        self.check("rollback", True)
        self.pending |= self.consuming
        self.consuming.clear()

    def make_again(self, offsets: list[int]) -> None:
        listed = ",".join(f"{offset}:{self.consuming[offset]}" for offset in offsets)
        self._ours.make_again(offsets)
        self.check(f"again {listed}", True)
        for offset in offsets:
            self.pending[offset] = self.consuming.pop(offset)

    def remove(self, offsets: list[int]) -> None:
        listed = ",".join(f"{offset}:{self.pending[offset]}" for offset in offsets)
        self.check(f"remove {listed}", self._ours.remove(offsets))
        for offset in offsets:
            del self.pending[offset]


def some(chance: random.Random, offsets: dict[int, int]) -> list[int]:
    return chance.sample(sorted(offsets), chance.randint(1, min(len(offsets), 8)))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("seed", QUEUE_SEEDS)
def test_a_process_queue_behaves_as_javas(java: JavaProcess, core: str, seed: int) -> None:
    chance = random.Random(seed)
    both = BesideJava(java, CORES[core].ProcessQueue)
    is_ordered = seed % 2 == 0  # take and commit; otherwise remove, as a concurrent group does
    next_offset = chance.randint(0, 1_000)
    for _ in range(QUEUE_STEPS // len(CORES)):
        step = chance.choice(
            ("put", "take", "take", "commit", "rollback", "again") if is_ordered
            else ("put", "remove", "remove")
        )  # fmt: skip
        if step == "put":
            # Some that are buffered already, then new ones, ascending and with gaps.
            known = some(chance, both.pending) if both.pending and chance.random() < 0.3 else []
            sizes = {offset: both.pending[offset] for offset in sorted(known)}
            for _ in range(chance.randint(0 if known else 1, 32)):
                next_offset += chance.choice((1, 1, 1, 1, 2, 50))
                sizes[next_offset] = chance.randint(0, 500)
            both.put(sizes)
        elif step == "take":
            both.take(chance.randint(1, 40))
        elif step == "commit":
            both.commit()
        elif step == "rollback":
            both.rollback()
        elif step == "again" and both.consuming:
            both.make_again(some(chance, both.consuming))
        elif step == "remove" and both.pending:
            both.remove(some(chance, both.pending))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("seed", LOCK_SEEDS)
def test_a_lock_table_grants_as_javas(java: JavaProcess, core: str, seed: int) -> None:
    chance = random.Random(seed)
    ours = CORES[core].LockTable(LEASE_MS)
    now_ms = 0
    java.ask("locks")
    for _ in range(LOCK_STEPS):
        group, owner = f"g{chance.randint(0, 2)}", f"10.0.0.{chance.randint(1, 3)}@1"
        ids = chance.sample(range(12), chance.randint(1, 8))
        listed = ",".join(map(str, ids))
        queues = [f"orders@broker-a/{number}" for number in ids]
        step = chance.choice(("lock", "lock", "lock", "unlock", "later"))
        if step == "lock":
            epochs = ours.try_lock_batch(group, queues, owner, now_ms)
            granted = sorted(number for number, epoch in zip(ids, epochs, strict=True) if epoch)
            assert java.ask(f"lock {group} {owner} {listed}")["result"] == granted
        elif step == "unlock":
            ours.unlock_batch(group, queues, owner)
            java.ask(f"unlock {group} {owner} {listed}")
        else:
            passed_ms = chance.choice(STEPS_MS)
            now_ms += passed_ms
            java.ask(f"later {passed_ms}")
    ours._check()
