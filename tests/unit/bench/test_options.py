"""The table of what options cost."""

from __future__ import annotations

from bench.end_to_end.bench_options import BASE, turns
from bench.end_to_end.page import options_section


def test_a_run_without_an_option_is_near_each_option() -> None:
    found = turns([BASE, "a", "b", "c", "d"])
    assert found == [BASE, "a", "b", "c", BASE, "d", BASE]


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
            "pull_size": 32,
        },
        "rows": {"TLS, batch 32": row, "TLS, batch 1": row | {"ratio": 2.0}},
    }  # fmt: skip
    assert "| TLS | 1.20 | 1.08x | 1.20 | 2.00x |" in options_section(result)
