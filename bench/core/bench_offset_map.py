"""Offset map: puts and removals by key and by column, by order of the keys and standing size.

As a program: what offset_work.py says, as the Python peers do it. The matrix adds looking up.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.offset_work import ORDERS, PAIRS, DictLike, by_block, by_key, measure, parts, plan
from ordermq.core import OffsetMap


class Ours(DictLike):
    def __init__(self) -> None:
        super().__init__(OffsetMap())

    def fill(self, keys: Iterable[int]) -> None:
        entries = self._map
        for key in keys:
            entries[key] = key

    def put_and_pop_first(self, keys: list[int]) -> int:
        entries, pop_first = self._map, self._map.pop_first
        total = 0
        for key in keys:
            entries[key] = key
            total += pop_first(1)[0][0]
        return total

    def blocks(self, come: list[int], go: list[int]) -> list[tuple[Any, Any]]:
        return [
            ((array("q", keys), array("Q", keys)), array("q", gone))
            for keys, gone in zip(parts(come), parts(go), strict=True)
        ]

    def put_and_remove_blocks(self, blocks: list[tuple[Any, Any]]) -> None:
        put_columns, remove_columns = self._map.put_columns, self._map.remove_columns
        for (offsets, tokens), gone in blocks:
            put_columns(offsets, tokens)
            remove_columns(gone)


def looked_up(operation: str, order: str, size: int) -> Work:
    """Look up keys of a map, in any order; each is there."""
    standing, _, _ = plan(order, size, 1)
    entries = OffsetMap()
    for key in standing:
        entries[key] = key
    wanted = random.Random(workloads.SEED).choices(standing, k=PAIRS)
    sums: list[int] = []

    def get() -> None:
        find = entries.get
        sums.append(sum(find(key) or 0 for key in wanted))

    def floor() -> None:
        find = entries.floor
        sums.append(sum((find(key) or (0, 0))[1] for key in wanted))

    def check() -> None:
        assert set(sums) == {sum(wanted)}

    run = {"get": get, "floor": floor}[operation]
    return Work(f"{order}, {operation}, size {size}", PAIRS, run, check, times=5)


def read_in_order(order: str, size: int) -> Work:
    """Copy the whole map out, as columns."""
    standing, _, _ = plan(order, size, 1)
    entries = OffsetMap()
    for key in standing:
        entries[key] = key
    found: tuple[memoryview, memoryview] = entries.columns()

    def run() -> None:
        nonlocal found
        found = entries.columns()

    def check() -> None:
        assert [column.tolist() for column in found] == [sorted(standing)] * 2

    return Work(f"{order}, columns, size {size}", size, run, check, times=5)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for order in ORDERS:
        for size in workloads.CORE_MAP_SIZES:
            case = f"{order}-{size}"
            yield f"{case}-by_key", partial(by_key, Ours, order, size)
            yield f"{case}-by_block", partial(by_block, Ours, order, size)
            yield f"{case}-get", partial(looked_up, "get", order, size)
            yield f"{case}-floor", partial(looked_up, "floor", order, size)
            yield f"{case}-columns", partial(read_in_order, order, size)


def main() -> None:
    measure(ours("offset_map"), Ours, workloads.CORE_MAP_SIZES[:1])  # warms up
    figures = ours("offset_map")
    measure(figures, Ours, workloads.CORE_MAP_SIZES)
    figures.print()


if __name__ == "__main__":
    main()
