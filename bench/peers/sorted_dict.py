"""sortedcontainers.SortedDict as a map of offsets; the work: bench/core/offset_work.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from bench import workloads
from bench.core.figures import Figures
from bench.core.offset_work import measure, parts

_library = importlib.import_module("sortedcontainers")


class SortedDict:
    def __init__(self) -> None:
        self._map = _library.SortedDict()

    def fill(self, keys: Iterable[int]) -> None:
        self._map.update((key, key) for key in keys)

    def put_and_pop_first(self, keys: list[int]) -> int:
        entries = self._map
        total = 0
        for key in keys:
            entries[key] = key
            total += entries.popitem(0)[0]
        return total

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


def main() -> None:
    figures = Figures("SortedDict", "offset_map", sortedcontainers=version("sortedcontainers"))
    measure(figures, SortedDict, workloads.CORE_MAP_SIZES)
    figures.print()


if __name__ == "__main__":
    main()
