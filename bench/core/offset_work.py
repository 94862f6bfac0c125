"""What a sorted map of offsets is made to do: ours and the Python peers do the same.

A map of a standing size gets one new key and loses one, 50,000 times:

- ascending: the next offset comes, the smallest goes;
- disorder: as ascending, but each 16 offsets arrive shuffled among themselves;
- random: of 2n neighbouring offsets any absent one comes and any present one goes;
- sparse: as random, of offsets below 2**48, of which hardly two are neighbours.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from bench import workloads
from bench.core.figures import Figures

PAIRS = workloads.CORE_MAP_PAIRS
ORDERS = ("ascending", "disorder", "random", "sparse")


class Subject(Protocol):
    """A map under test; each method is the tightest loop its library allows."""

    def fill(self, keys: Iterable[int]) -> None: ...
    def put_and_pop_first(self, keys: list[int]) -> int:
        """Put each key and pop the smallest; return the sum of the popped."""

    def put_and_remove(self, come: list[int], go: list[int]) -> None: ...
    def keys(self) -> list[int]: ...


def work(order: str, size: int) -> tuple[list[int], list[int], list[int]]:
    """(what the map holds before, what comes, what goes: empty if that is the smallest)."""
    rng = random.Random(workloads.SEED + size)
    if order in ("ascending", "disorder"):
        come = list(range(size, size + PAIRS))
        if order == "disorder":
            width = workloads.CORE_MAP_DISORDER
            for start in range(0, PAIRS, width):
                part = come[start : start + width]
                rng.shuffle(part)
                come[start : start + width] = part
        return list(range(size)), come, []
    keys = list(range(2 * size))
    if order == "sparse":
        keys = rng.sample(range(1 << 48), 2 * size)
    rng.shuffle(keys)
    held, free = keys[:size], keys[size:]
    standing = list(held)
    come, go = [], []
    for _ in range(PAIRS):
        into, out = rng.randrange(size), rng.randrange(size)
        come.append(free[into])
        go.append(held[out])
        held[out], free[into] = free[into], held[out]
    # New objects, side by side: a caller's offsets are fresh ones, and those shuffled above
    # would make every map wait for the same scattered ints.
    return list(array("q", standing)), list(array("q", come)), list(array("q", go))


def measure(figures: Figures, make: Callable[[], Subject], sizes: Iterable[int]) -> None:
    """Take the figures of every order and size, and check what is left."""
    for order in ORDERS:
        for size in sizes:
            standing, come, go = work(order, size)
            subject = make()
            subject.fill(standing)
            case = f"{order}, size {size}"
            if go:
                figures.take(case, PAIRS, partial(subject.put_and_remove, come, go))
                left = set(standing)
                for key_in, key_out in zip(come, go, strict=True):
                    left.add(key_in)
                    left.remove(key_out)
                assert subject.keys() == sorted(left)
                continue
            popped: list[int] = []
            figures.take(case, PAIRS, partial(pop_first, subject, come, popped))
            assert popped == [sum(range(PAIRS))], (case, popped)
            assert subject.keys() == list(range(PAIRS, PAIRS + size))


def pop_first(subject: Subject, keys: list[int], popped: list[int]) -> None:
    popped.append(subject.put_and_pop_first(keys))
