"""Runs of the send benchmark that are repeated, and a page without Java's figures."""

from __future__ import annotations

import subprocess
from typing import Any, cast

import pytest

from bench.end_to_end import bench_send
from bench.end_to_end.bench_send import MOST_IN_FLIGHT, RunRejected, one_run, peers_of
from bench.end_to_end.page import send_section
from bench.targets import section

MACHINE = dict.fromkeys(("cpu", "cores", "system", "python", "core", "date", "ordermq"), "?")


class Broker:
    """Stores what runs send: as many messages as `stores` tells of each, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stores: list[int | None]) -> None:
        self.stored = 1
        self.left = stores
        monkeypatch.setattr(bench_send, "stored", lambda consumer: self.stored)
        monkeypatch.setattr(bench_send, "stored_at_last", lambda consumer, wanted: self.stored)
        monkeypatch.setattr(bench_send, "run_json", self.run)
        monkeypatch.setattr(bench_send.time, "sleep", lambda seconds: None)

    def run(self, module: str, work: list[object]) -> dict[str, Any]:
        count = self.left.pop(0)
        if count is None:
            raise subprocess.CalledProcessError(1, module)
        self.stored += count
        return {"peer": "it"}


def run(broker: Broker) -> dict[str, Any]:
    return one_run(cast(Any, broker), "module", [], 10)


@pytest.mark.parametrize("stores", [[10], [12, 10], [None, 9, 10]])
def test_a_run_that_failed_or_stored_other_messages_is_repeated(
    monkeypatch: pytest.MonkeyPatch, stores: list[int | None]
) -> None:
    broker = Broker(monkeypatch, stores)
    assert run(broker) == {"peer": "it"}
    assert broker.left == []


def test_a_run_that_is_rejected_each_time_tells_what_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RunRejected, match="it: 11 messages stored of 10"):
        run(Broker(monkeypatch, [12, 12, 11]))


def test_a_client_that_fails_each_time_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(Broker(monkeypatch, [None, None, None]))


def test_threads_are_measured_with_eight_keys_only() -> None:
    assert [name for name, _, _ in peers_of(8)] == ["ordermq", "ordermq, threads", "Java client"]
    assert [name for name, _, _ in peers_of(256)] == ["ordermq", "Java client"]


def test_the_page_tells_where_javas_producer_failed() -> None:
    result = {
        "command": "x", "machine": MACHINE,
        "workload": {"rocketmq": "5.3.3", "body_bytes": 100, "queues": 8},
        "ratios": {MOST_IN_FLIGHT: {}},
        "rows": {MOST_IN_FLIGHT: {
            "ordermq": {"messages_per_second": 30_000, "cpu_us_per_message": 9.0}}},
    }  # fmt: skip
    assert "| 256 keys in flight | ordermq | 30,000 | failed |  | 9.0 |  |  |" in send_section(
        result
    )
    page = section({"send_rocketmq": result}.get)
    assert (
        "| sends to RocketMQ, 256 in flight: CPU per message | 9.0 us |  | Java client: failed "
        "|  | <= 10 us | yes | `bench_send` |"
    ) in page
