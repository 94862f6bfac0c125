"""The table of what options cost."""

from __future__ import annotations

from bench.end_to_end.bench_options import BASE, beside_nearest, turns
from bench.end_to_end.page import options_section


def test_a_run_without_an_option_is_near_each_option() -> None:
    found = turns([BASE, "a", "b", "c", "d"])
    assert found == [BASE, "a", "b", "c", BASE, "d", BASE]


def test_a_run_is_compared_with_the_nearest_base() -> None:
    rows = beside_nearest([("b", 1.0), ("x", 3.0), ("y", 3.0), ("b", 2.0)], "b")
    assert [row["ratio"] for _, row in rows] == [1.0, 3.0, 1.5, 1.0]


def test_the_page_shows_both_batches_of_an_option_in_one_row() -> None:
    row = {"cpu_us_per_message": 1.2, "ratio": 1.08, "rounds": 3}
    result = {
        "command": "python -m bench.end_to_end.bench_options",
        "machine": {
            "cpu": "c", "cores": 2, "system": "s", "python": "3",
            "core": "cython", "date": "2026-11-26",
        },
        "workload": {
            "rocketmq": "5.3.3", "messages": 240_000, "body_bytes": 100, "queues": 8,
            "pull_size": 32, "in_flight": 256,
        },
        "rows": {"TLS, batch 32": row, "TLS, batch 1": row | {"ratio": 2.0}},
        "sends": {"stream of 256, TLS": row},
    }  # fmt: skip
    assert "| TLS | 1.20 | 1.08x | 1.20 | 2.00x |" in options_section(result)
    assert "| stream of 256, TLS | 1.20 | 1.08x |" in options_section(result)
