"""Offset map: one put and one removal, by order of the keys and standing size."""

from __future__ import annotations

from collections.abc import Iterable

from bench import workloads
from bench.core.figures import ours
from bench.core.offset_work import measure
from ordermq.core import OffsetMap


class Ours:
    def __init__(self) -> None:
        self._map = OffsetMap()

    def fill(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._map.put(key, key)

    def put_and_pop_first(self, keys: list[int]) -> int:
        put, pop_first = self._map.put, self._map.pop_first
        total = 0
        for key in keys:
            put(key, key)
            total += pop_first(1)[0][0]
        return total

    def put_and_remove(self, come: list[int], go: list[int]) -> None:
        put, remove = self._map.put, self._map.remove
        for key, gone in zip(come, go, strict=True):
            put(key, key)
            remove(gone)

    def keys(self) -> list[int]:
        return list(self._map)


def main() -> None:
    measure(ours("offset_map"), Ours, workloads.CORE_MAP_SIZES[:1])  # warms up
    figures = ours("offset_map")
    measure(figures, Ours, workloads.CORE_MAP_SIZES)
    figures.print()


if __name__ == "__main__":
    main()
