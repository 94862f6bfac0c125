"""Figures the latency bench makes of a round, and rounds it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from bench.end_to_end import bench_latency
from bench.end_to_end.bench_latency import middle, summary
from bench.end_to_end.page import latency_section


def round_of(latencies_us: list[int], seconds: float = 1.0) -> dict[str, Any]:
    return {
        "peer": "ordermq",
        "messages": 1_000,
        "seconds": seconds,
        "cpu_seconds": 0.25,
        "latencies_us": latencies_us,
    }


def test_a_round_is_summed_up_by_its_quantiles() -> None:
    found = summary(round_of(list(range(1_000, 0, -1))), 1)
    assert found == {
        "p50_us": 501,
        "p90_us": 901,
        "p99_us": 991,
        "p999_us": 1_000,
        "worst_us": 1_000,
        "cpu_us_per_message": 250.0,
    }
    assert middle([found, found | {"p50_us": 900}, found | {"p50_us": 502}])["p50_us"] == 502


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (round_of([1] * 1_000, seconds=1.03), "the rate was not kept"),
        (round_of([1] * 999), "999 times of 1000 messages"),
    ],
)
def test_a_round_of_another_load_is_refused(row: dict[str, Any], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        summary(row, 1)


@pytest.mark.parametrize("kept_at", [1, 2, 3])
def test_a_refused_round_is_repeated_on_a_topic_of_its_own(
    monkeypatch: pytest.MonkeyPatch, kept_at: int
) -> None:
    topics: list[str] = []

    def run(module: str, work: list[str]) -> dict[str, Any]:
        topics.append(work[1])
        return round_of([1] * 1_000, seconds=1.0 if len(topics) == kept_at else 2.0)

    monkeypatch.setattr(bench_latency, "run_json", run)
    monkeypatch.setattr(bench_latency, "make", lambda address, topic: None)
    found = bench_latency.one_round("broker", "ordermq", "r", [], 1)
    assert found["p50_us"] == 1
    assert len(set(topics)) == kept_at


def test_a_round_that_is_refused_each_time_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = iter([round_of([1] * 1_000, seconds=2.0)] * bench_latency.ATTEMPTS)
    monkeypatch.setattr(bench_latency, "run_json", lambda module, work: next(rows))
    monkeypatch.setattr(bench_latency, "make", lambda address, topic: None)
    with pytest.raises(SystemExit, match="the rate was not kept"):
        bench_latency.one_round("broker", "ordermq", "r", [], 1)
    assert list(rows) == []


def test_the_page_shows_both_clients_and_their_ratios() -> None:
    row = summary(round_of(list(range(1_000, 2_000))), 1)
    text = latency_section(
        {
            "command": "python -m x",
            "machine": dict.fromkeys(
                ("cpu", "cores", "system", "python", "core", "date", "ordermq"), "?"
            ),
            "workload": dict.fromkeys(
                ("rocketmq", "keys", "queues", "body_bytes", "seconds", "warm_seconds", "rounds"), 1
            ),
            "rates": {
                "1000": {
                    "rows": {"ordermq": row, "Java client": row},
                    "ratios": dict.fromkeys(row, 1.0),
                }
            },
        }
    )
    assert "| 1,000 | ordermq | 1.50 | 1.90 | 1.99 | 2.00 | 2.0 | 250 |" in text
    assert "| 1,000 | ordermq / Java | 1.00x | 1.00x | 1.00x | 1.00x |  | 1.00x |" in text
