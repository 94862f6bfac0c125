"""BTrees.LOBTree as a map of offsets; the work: bench/core/offset_work.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import version

from bench import workloads
from bench.core.figures import Figures
from bench.core.offset_work import DictLike, measure

_library = importlib.import_module("BTrees.LOBTree")


class LOBTree(DictLike):
    def __init__(self) -> None:
        super().__init__(_library.LOBTree())

    def fill(self, keys: Iterable[int]) -> None:
        entries = self._map
        for key in keys:
            entries[key] = key

    def put_and_pop_first(self, keys: list[int]) -> int:
        entries = self._map
        first = entries.minKey
        total = 0
        for key in keys:
            entries[key] = key
            smallest = first()
            del entries[smallest]
            total += smallest
        return total


def main() -> None:
    figures = Figures("LOBTree", "offset_map", BTrees=version("BTrees"))
    measure(figures, LOBTree, workloads.CORE_MAP_SIZES)
    figures.print()


if __name__ == "__main__":
    main()
