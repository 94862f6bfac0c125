"""The section of targets, the figures it takes from results, and what the newer programs sum up."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.core.call_cost import split
from bench.end_to_end import (
    bench_hand_off,
    bench_processes,
    bench_produce,
    bench_queues,
    bench_start,
    ready_sender,
)
from bench.end_to_end.bench_hand_off import Moves, row_of
from bench.end_to_end.lock_requests import counted, file_of, most_per_second
from bench.end_to_end.ordermq_latency import stamp_of
from bench.end_to_end.page import (
    hand_off_section,
    processes_section,
    produce_section,
    queues_section,
    start_section,
)
from bench.end_to_end.processes_consumer import EVERY
from bench.peers.pull_floor import FLOOR
from bench.targets import Measured, Row, rows, section
from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.remoting.command import Command, encode
from ordermq.testing import wait_until_consumed

MACHINE = dict.fromkeys(("cpu", "cores", "system", "python", "core", "date", "ordermq"), "?")


def page_of(**results: dict[str, Any]) -> str:
    made = {name: {"command": f"run {name}"} | result for name, result in results.items()}
    return section(made.get)


def line_of(page: str, *words: str) -> list[str]:
    """Return the cells of the one row that has all these words."""
    (line,) = [line for line in page.splitlines() if all(word in line for word in words)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def caught_up(rate: float, cpu: float) -> dict[str, Any]:
    row = {"messages_per_second": 1_000, "cpu_us_per_message": 0.5}
    return {
        "rows": {"ordermq, batch 32": row, FLOOR: row},
        "ratios": {"32": {FLOOR: {"rate": rate, "cpu": cpu}}},
    }


def test_every_row_without_results_is_not_measured() -> None:
    page = page_of()
    assert page.count("| not measured |") == len(list(rows()))
    assert "| yes |" not in page
    assert "**no**" not in page


@pytest.mark.parametrize(("rate", "met"), [(0.8, "yes"), (0.79, "**no** [1]")])
def test_a_target_is_met_from_its_bound_on(rate: float, met: str) -> None:
    page = page_of(catch_up_rocketmq=caught_up(rate, 2.0))
    line = line_of(page, "RocketMQ, batch 32: throughput", FLOOR)
    assert line[1:] == ["1,000/s", FLOOR, "1,000/s", f"{rate:.2f}x", ">= 0.8x", met,
                        "`bench_rocketmq`"]  # fmt: skip
    assert "`run catch_up_rocketmq`" in page


def test_a_result_without_a_peer_leaves_that_peers_rows_unmeasured() -> None:
    page = page_of(catch_up_rocketmq=caught_up(1.0, 2.0))
    assert line_of(page, "RocketMQ, batch 32: throughput", "Java client")[6] == "not measured"
    assert line_of(page, "RocketMQ, batch 1: throughput", FLOOR)[6] == "not measured"


def test_latency_stamped_at_the_call_is_not_taken_for_one_from_the_due_time() -> None:
    row = {"p50_us": 1_000, "p99_us": 2_000}
    of_rate = {
        "rows": {"ordermq": row, "Java client": row},
        "ratios": {"p50_us": 0.9, "p99_us": 0.95},
    }
    old: dict[str, Any] = {"workload": {}, "rates": {"1000": of_rate}}
    words = ("latency at 1,000 messages/s", ": p50")
    assert line_of(page_of(latency_rocketmq=old), *words)[6] == "not measured"
    page = page_of(latency_rocketmq=old | {"workload": {"from": "the due time"}})
    assert line_of(page, *words)[6] == "yes"
    assert line_of(page, "latency at 1,000 messages/s", ": p99")[6] == "**no**"


def test_a_miss_of_the_lanes_tells_what_bare_threads_reach() -> None:
    shares = {"share": 0.7, "cpu_us": 10.0}
    of_case = {"native": shares, "python": shares, "bare": shares | {"share": 0.72}}
    page = page_of(lanes_embedded={"rows": {"32 threads, 1 ms": of_case}})
    assert line_of(page, "32 threads, 1 ms")[6] == "**no** [1]"
    assert "\n1. In the same run threads that only wait: 0.72." in page


def test_a_row_without_a_target_only_informs() -> None:
    row = Row("it", "none", lambda result: Measured(1.0, "1"))
    assert (row.target, row.is_met(1.0)) == ("", None)


def test_the_costs_of_calls_and_of_a_pass_are_told_apart() -> None:
    per_message = {
        f"{size} messages in batches of 1": (200 * size + 1_500) / size for size in (32, 256)
    }
    found = split(per_message)
    assert found == pytest.approx({"call_ns": 200.0, "pass_ns": 1_500.0})


def test_a_message_carries_the_time_at_which_it_was_due() -> None:
    assert int.from_bytes(stamp_of(12.5), "big") == 12_500_000_000


def test_lock_requests_are_counted_within_any_second() -> None:
    assert most_per_second([]) == 0
    assert most_per_second([3.0, 0.0, 0.9, 1.0, 1.8, 1.85]) == 4  # from 0.9 on
    assert most_per_second([0.0, 1.0]) == 1


def test_a_member_leaves_the_times_of_its_lock_requests(tmp_path: Path) -> None:
    history = tmp_path / "resident-0.jsonl"
    with EmbeddedBroker(tmp_path / "broker") as broker:
        with Producer("p", name_servers=broker.address) as producer:
            producer.send(Message("locks", b"one"))
        with counted(file_of(history)):
            consumer = PushConsumer("g", name_servers=broker.address,
                                    consume_from_where="first_offset")  # fmt: skip
            consumer.subscribe("locks")
            consumer.orderly(lambda messages, context: None)
            with consumer:
                wait_until_consumed(broker.address, "g", "locks")
    assert most_per_second(json.loads(file_of(history).read_text())) >= 1


def test_the_most_lock_requests_of_any_member_are_shown() -> None:
    pauses = {"join": [10.0, 30.0], "leave": [20.0]}
    row = row_of([Moves(pauses, 0, {"a": 3, "b": 7}), Moves(pauses, 1, {"a": 5})])
    assert row["lock_requests_per_second"] == 7
    assert row["duplicates"] == 1
    java = row_of([Moves(pauses, 0, {})])
    assert "lock_requests_per_second" not in java
    text = hand_off_section({
        "command": "x", "machine": MACHINE,
        "workload": {"messages_per_second": 400, "queues": 8, "members": "2", "rocketmq": "5.3.3",
                     "alternations": 1},
        "rows": [row | {"client": "ordermq", "listener_ms": 0},
                 java | {"client": "Java client", "listener_ms": 0}],
    })  # fmt: skip
    assert "| ordermq | 0 ms | join | 4 | 20 | 30 | 1 | 7 |" in text
    assert "| Java client | 0 ms | join | 2 | 20 | 30 | 0 |  |" in text


class DeafMember:
    """A member that never gets a queue."""

    made: ClassVar[list[DeafMember]] = []

    def __init__(self, *work: Any) -> None:
        self.group = work[4]
        self.killed = False
        self.made.append(self)

    def wait_for_queues(self, count: int) -> None:
        raise SystemExit(f"no {count} queues within 30 s")

    def kill(self) -> None:
        self.killed = True


def test_a_group_that_gave_up_is_ended_and_another_one_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_hand_off, "Member", DeafMember)
    monkeypatch.setattr(DeafMember, "made", [])
    way = {"rounds": 1, "listener_ms": 0, "program": []}
    with pytest.raises(SystemExit, match="no 8 queues"):
        bench_hand_off.group_moves("broker", tmp_path, "movers", way)
    groups = [member.group for member in DeafMember.made]
    assert groups == ["movers-0", "movers-1", "movers-2"]
    assert all(member.killed for member in DeafMember.made)


def test_bare_sqlite_writes_every_row_in_commits_of_the_given_size(tmp_path: Path) -> None:
    assert bench_produce.write_rows(tmp_path / "bare.db", 130, 64) > 0


def test_the_share_of_bare_sqlite_is_that_of_each_round() -> None:
    rounds = [
        {
            "rate": rate,
            "bare_rate": bare,
            "per_commit": 60.0,
            "broker_cpu_us": 10.0,
            "producer_rate": 7.0,
            "producer_cpu_us": 17.0,
        }
        for rate, bare in ((10.0, 20.0), (30.0, 40.0), (1.0, 100.0))
    ]
    found = bench_produce.summary(rounds)
    assert found["share_of_bare"] == 0.5  # not 10 of 40, the medians
    work = {"in_flight": 64, "queues": 8, "body_bytes": 100, "row_bytes": 250, "rounds": 3}
    text = produce_section({"command": "x", "machine": MACHINE, "workload": work, "figures": found})
    assert "| 10 | 40 | 0.50 | 60 |" in text
    assert "10.0 us of CPU. A producer takes longer, 17.0 us, and sends 7 messages/s." in text


def test_ready_requests_are_all_stored(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        with Producer("p", name_servers=broker.address, default_topic_queue_nums=8) as producer:
            producer.send(Message("ready", b"first"))
        line = ready_sender.send(
            broker.address, ready_sender.frames("ready", 64, b"x", 130), warm=30, in_flight=64
        )
        assert json.loads(line)["messages"] == 100
        ready_sender.send(broker.address, ready_sender.frames("ready", 3, b"x", 2), 0, 3)
        assert broker.statistics.messages_stored == 133
        assert broker.statistics.copies_dropped == 0


def test_an_answer_that_tells_no_success_ends_the_load(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.recv(1 << 16)
            accepted.sendall(encode(Command(0, opaque=3, flag=1)))
            accepted.sendall(encode(Command(1, opaque=4, flag=1)))
            accepted.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=refuse, args=(listener,))
        server.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(subprocess.CalledProcessError):
            ready_sender.send(address, ready_sender.frames("ready", 2, b"x", 2), 0, 2)
        server.join(20)
    assert "not stored as it should be" in capfd.readouterr().err


def test_the_idle_share_is_shown_of_runs_that_watched_it() -> None:
    run = {"messages": 100, "seconds": 1.0, "cpu_seconds": 0.001, "close_seconds": 0.25,
           "peak_mib": 40.0}  # fmt: skip
    many = bench_queues.summary([run | {"idle_share": 0.008}])
    few = bench_queues.summary([run | {"idle_share": None}])
    assert many["idle_cpu_percent"] == 0.8
    assert "idle_cpu_percent" not in few
    result = {
        "command": "x", "machine": MACHINE, "rows": {"1000": many, "8": few},
        "ratios": {"rate": 1.0, "cpu": 1.0},
        "workload": {"messages": 100, "body_bytes": 100, "idle_seconds": 5.0, "rounds": 1},
    }  # fmt: skip
    assert "| 1,000 | 100 | 10.00 | 0.80 % of a core | 250 | 40 |" in queues_section(result)
    assert line_of(page_of(queues_embedded=result), "1,000 queues", "close")[6] == "yes"


def test_an_import_is_compared_with_the_modules_it_needs() -> None:
    found = bench_start.factors(
        {"pass": 10.0, "import asyncio, ssl, logging, json": 50.0, "import ordermq": 90.0}
    )
    assert found == {"import ordermq": 2.0}
    result = bench_start.summary(
        [{"first_message_ms": ms, "peak_mib": 33.0, "detail": {}} for ms in (9.0, 30.0, 12.0)]
    ) | {"import": found, "command": "x", "machine": MACHINE, "workload": {"runs": 3}}
    assert "12.0 ms (median of 3 processes, 9.0 to 30.0)" in start_section(result)
    assert line_of(page_of(start_embedded=result), "`import ordermq`: CPU")[6] == "yes"


def test_only_the_middle_half_of_the_messages_is_timed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.settimeout(0.01)
        reports = threading.Thread(target=lambda: [theirs.send(b".") for _ in range(3)])
        reports.start()
        assert bench_processes.middle(ours, 4 * EVERY) >= 0
        reports.join()
        with pytest.raises(TimeoutError):
            bench_processes.middle(ours, 4 * EVERY)


def test_two_processes_are_compared_round_by_round() -> None:
    found = bench_processes.summary({1: [2.0, 4.0, 9.0], 2: [1.0, 4.0, 3.0]}, 100)
    assert found["ratio"] == 2.0
    work = {"listener_us": 100, "queues": 8, "rounds": 3}
    text = processes_section({"command": "x", "machine": MACHINE, "workload": work} | found)
    assert "| 2 | 17 |" in text
