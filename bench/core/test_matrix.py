"""Ours alone, every operation by shape, size and depth: one pytest-benchmark a case.

    pytest bench/core --benchmark-only -k "process_queue and batches"
    ORDERMQ_BENCH=quick pytest bench/core --benchmark-disable      each once, and its check

`python -m bench.core.matrix` runs all of it on both native cores and keeps the medians.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import pytest

from bench.core import (
    bench_codec,
    bench_consume_loop,
    bench_frame_path,
    bench_id_window,
    bench_lane_map,
    bench_lock_table,
    bench_offset_map,
    bench_process_queue,
    bench_send_path,
)
from bench.core.figures import Work, ours

MODULES: tuple[ModuleType, ...] = (
    bench_process_queue,
    bench_offset_map,
    bench_lane_map,
    bench_lock_table,
    bench_codec,
    bench_consume_loop,
    bench_frame_path,
    bench_id_window,
    bench_send_path,
)
CASES = [
    pytest.param(make, id=f"{module.__name__.rpartition('bench_')[2]}-{name}")
    for module in MODULES
    for name, make in module.matrix()
]


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that is used here; it has no types."""

    extra_info: dict[str, Any]

    def pedantic(
        self, target: Callable[[], object], *, setup: Callable[[], None], rounds: int
    ) -> object: ...


@pytest.fixture(autouse=True, scope="session")
def native_core() -> None:
    ours("matrix")  # refuses the reference


@pytest.mark.parametrize("make", CASES)
def test_it_does_what_is_timed(make: Callable[[], Work], benchmark: Benchmark) -> None:
    work = make()
    benchmark.extra_info["items"] = work.items
    gc.collect()

    def setup() -> None:
        if work.setup is not None:
            work.setup()

    benchmark.pedantic(work.run, setup=setup, rounds=work.times)
    work.check()
