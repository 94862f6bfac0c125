"""The work of a sorted map of offsets, the same for ordermq and the Python peers.

A map of constant size gets one new key and loses one, 50,000 times:

- ascending: add the next offset, remove the smallest;
- disorder: as ascending, but each 16 offsets arrive shuffled;
- random: of 2n neighbouring offsets, add any absent one and remove any present one;
- sparse: as random, of offsets below 2**48, of which hardly two are neighbours.

"by block": the same, but 256 keys are added and 256 removed at a time, by the widest calls of each
library.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from bench import workloads
from bench.core.figures import Figures, Work

PAIRS = workloads.CORE_MAP_PAIRS
BLOCK = workloads.CORE_MAP_BLOCK
ORDERS = ("ascending", "disorder", "random", "sparse")


class Subject(Protocol):
    """A map under test; each method is the tightest loop its library allows."""

    def fill(self, keys: Iterable[int]) -> None: ...
    def put_and_pop_first(self, keys: list[int]) -> int:
        """Put each key and pop the smallest; return the sum of the popped."""

    def put_and_remove(self, come: list[int], go: list[int]) -> None: ...
    def blocks(self, come: list[int], go: list[int]) -> list[tuple[Any, Any]]:
        """The keys in blocks, as `put_and_remove_blocks` wants them; untimed."""

    def put_and_remove_blocks(self, blocks: list[tuple[Any, Any]]) -> None: ...
    def keys(self) -> list[int]: ...


class DictLike:
    """The work of maps with a dict's interface.

    Args:
        entries: the empty map.
    """

    def __init__(self, entries: Any) -> None:
        self._map = entries

    def put_and_remove(self, come: list[int], go: list[int]) -> None:
        entries = self._map
        for key, gone in zip(come, go, strict=True):
            entries[key] = key
            del entries[gone]

    def blocks(self, come: list[int], go: list[int]) -> list[tuple[Any, Any]]:
        return [
            (list(zip(keys, keys, strict=True)), gone)
            for keys, gone in zip(parts(come), parts(go), strict=True)
        ]

    def put_and_remove_blocks(self, blocks: list[tuple[Any, Any]]) -> None:
        entries = self._map
        update = entries.update
        for pairs, gone in blocks:
            update(pairs)
            for key in gone:
                del entries[key]

    def keys(self) -> list[int]:
        return list(self._map)


def parts(keys: list[int]) -> Iterator[list[int]]:
    """Return the keys block by block."""
    return (keys[start : start + BLOCK] for start in range(0, len(keys), BLOCK))


def plan(order: str, size: int, together: int) -> tuple[list[int], list[int], list[int]]:
    """Return (initial keys, keys to add, keys to remove), for `together` keys at a time."""
    rng = random.Random(workloads.SEED + size)
    if order in ("ascending", "disorder"):
        come = list(range(size, size + PAIRS))
        if order == "disorder":
            width = workloads.CORE_MAP_DISORDER
            for start in range(0, PAIRS, width):
                part = come[start : start + width]
                rng.shuffle(part)
                come[start : start + width] = part
        return list(range(size)), come, list(range(PAIRS))
    keys = list(range(2 * size))
    if order == "sparse":
        keys = rng.sample(range(1 << 48), 2 * size)
    rng.shuffle(keys)
    held, free = keys[:size], keys[size:]
    standing = list(held)
    come, go = [], []
    while len(come) < PAIRS:
        count = min(together, PAIRS - len(come))
        into, out = rng.sample(range(size), count), rng.sample(range(size), count)
        come += [free[i] for i in into]
        go += [held[i] for i in out]
        for i, o in zip(into, out, strict=True):
            held[o], free[i] = free[i], held[o]
    # New int objects, neighbours in memory: a caller's offsets are fresh ones, and the shuffled
    # ones above would make every map wait for the same scattered memory.
    return list(array("q", standing)), list(array("q", come)), list(array("q", go))


def by_key(make: Callable[[], Subject], order: str, size: int) -> Work:
    """Add one key and remove another, again and again."""
    standing, come, go = plan(order, size, 1)
    subject = make()
    subject.fill(standing)
    popped = 0

    def pop_first() -> None:
        nonlocal popped
        popped = subject.put_and_pop_first(come)

    def remove() -> None:
        subject.put_and_remove(come, go)

    takes_first = order in ("ascending", "disorder")

    def check() -> None:
        assert subject.keys() == left(standing, come, go)
        assert popped == (sum(go) if takes_first else 0)

    return Work(f"{order}, size {size}", PAIRS, pop_first if takes_first else remove, check)


def by_block(make: Callable[[], Subject], order: str, size: int) -> Work:
    """Add a block of keys, then remove another."""
    standing, come, go = plan(order, size, BLOCK)
    subject = make()
    subject.fill(standing)
    blocks = subject.blocks(come, go)

    def run() -> None:
        subject.put_and_remove_blocks(blocks)

    def check() -> None:
        assert subject.keys() == left(standing, come, go)

    return Work(f"{order} by block, size {size}", PAIRS, run, check)


def left(standing: list[int], come: list[int], go: list[int]) -> list[int]:
    """Return the keys that are left, ascending."""
    found = set(standing)
    for key_in, key_out in zip(come, go, strict=True):
        found.add(key_in)
        found.remove(key_out)
    return sorted(found)


def measure(figures: Figures, make: Callable[[], Subject], sizes: Iterable[int]) -> None:
    """Take the figures of every order and size."""
    for order in ORDERS:
        for size in sizes:
            figures.time(by_key(make, order, size))
            figures.time(by_block(make, order, size))
