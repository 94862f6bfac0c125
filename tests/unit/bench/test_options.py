"""The table of what options cost."""

from __future__ import annotations

from typing import Any

import pytest

from bench.end_to_end.bench_options import BASE, Run, beside_nearest, java_options, turns
from bench.end_to_end.ordermq_options import OPTIONS
from bench.end_to_end.page import options_section
from bench.peers import java_classes, java_client


def test_a_run_without_an_option_is_near_each_option() -> None:
    found = turns([BASE, "a", "b", "c", "d"])
    assert found == [BASE, "a", "b", "c", BASE, "d", BASE]


def test_a_run_is_compared_with_the_nearest_base() -> None:
    ran = [(name, Run(cpu_us, rate=1.0)) for name, cpu_us in (("b", 1.0), ("x", 3.0), ("y", 3.0))]
    found = beside_nearest([*ran, ("b", Run(2.0, rate=1.0))], "b")
    assert [ratio for _, _, ratio in found] == [1.0, 3.0, 1.5, 1.0]


RESULT: dict[str, Any] = {
    "command": "python -m bench.end_to_end.bench_options",
    "machine": {
        "cpu": "c", "cores": 2, "system": "s", "python": "3",
        "core": "cython", "date": "2026-11-26",
    },
    "workload": {
        "rocketmq": "5.3.3", "messages": 240_000, "body_bytes": 100, "queues": 8,
        "pull_size": 32, "in_flight": 256, "java_messages": 1_000_000,
    },
    "rows": {
        "TLS, batch 32": {
            "cpu_us_per_message": 1.2, "ratio": 1.08, "rounds": 3, "messages_per_second": 800_000,
        },
        "TLS, batch 1": {
            "cpu_us_per_message": 1.2, "ratio": 2.0, "rounds": 3, "messages_per_second": 600_000,
        },
    },
    "sends": {"stream of 256, TLS": {"cpu_us_per_message": 1.2, "ratio": 1.08, "rounds": 3}},
}  # fmt: skip


def test_the_page_shows_both_batches_of_an_option_in_one_row() -> None:
    assert "| TLS | 1.20 | 1.08x | 1.20 | 2.00x |" in options_section(RESULT)
    assert "| stream of 256, TLS | 1.20 | 1.08x |" in options_section(RESULT)


def test_the_page_shows_java_beside_if_it_was_measured() -> None:
    java = {
        "TLS, batch 1": {"cpu_us_per_message": 8.0, "messages_per_second": 100_000},
        "TLS, batch 32": {"cpu_us_per_message": 6.0, "messages_per_second": 200_000},
    }
    row = "| TLS | 6.00 | 0.20x | 4.0x | 8.00 | 0.15x | 6.0x |"
    assert row in options_section(RESULT | {"java": java})
    for without in RESULT, RESULT | {"java": {}}:
        assert "Java" not in options_section(without)


def test_java_is_measured_with_options_that_ordermq_has_too() -> None:
    assert java_client.OPTIONS.keys() <= OPTIONS.keys()


def test_java_is_left_out_where_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java_classes, "missing", lambda: ["javac"])
    assert java_options() == []
    assert "Java client LEFT OUT: javac not found" in capsys.readouterr().err
    monkeypatch.setattr(java_classes, "missing", list)
    assert java_options() == list(java_client.OPTIONS)
