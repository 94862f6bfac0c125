"""sortedcontainers.SortedDict as a map of offsets; the work: bench/core/offset_work.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import version

from bench import workloads
from bench.core.figures import Figures
from bench.core.offset_work import DictLike, measure

_library = importlib.import_module("sortedcontainers")


class SortedDict(DictLike):
    def __init__(self) -> None:
        super().__init__(_library.SortedDict())

    def fill(self, keys: Iterable[int]) -> None:
        self._map.update((key, key) for key in keys)

    def put_and_pop_first(self, keys: list[int]) -> int:
        entries = self._map
        total = 0
        for key in keys:
            entries[key] = key
            total += entries.popitem(0)[0]
        return total


def main() -> None:
    figures = Figures("SortedDict", "offset_map", sortedcontainers=version("sortedcontainers"))
    measure(figures, SortedDict, workloads.CORE_MAP_SIZES)
    figures.print()


if __name__ == "__main__":
    main()
