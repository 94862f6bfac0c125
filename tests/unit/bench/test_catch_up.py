"""Ratios of the catch-up benchmark, the pages it fills, and its floor, the pull loop in C."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.end_to_end import bench_rocketmq
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.bench_rocketmq import work_of
from bench.end_to_end.page import catch_up_section, rocketmq_section
from bench.end_to_end.summary import ratios, summarise
from bench.peers.pull_floor import FLOOR
from ordermq.broker import EmbeddedBroker

MESSAGES = 4_000
MACHINE = dict.fromkeys(("cpu", "cores", "system", "python", "core", "date", "ordermq"), "?")
WORK = {"rocketmq": "5.3.3", "messages": 1_000, "body_bytes": 100, "queues": 8, "pull_size": 32}


def run_of(messages: int, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    return {
        "messages": messages,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mib": 30.0,
        "detail": {},
    }


def test_ratios_are_per_message_because_slow_clients_read_fewer() -> None:
    ours = [run_of(1_000, 1.0, 0.5), run_of(1_000, 2.0, 0.5), run_of(1_000, 4.0, 0.5)]
    theirs = [run_of(100, 1.0, 0.5)] * 3
    assert ratios(ours, theirs) == {"rate": 5.0, "cpu": 0.1}


def test_ratios_need_every_round_of_both() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios([run_of(1, 1.0, 1.0)] * 2, [run_of(1, 1.0, 1.0)])


def test_the_floor_pulls_from_the_broker_itself_and_has_no_group() -> None:
    work = work_of(FLOOR, {"name-server": "ns:1", "broker-a": "broker:2"}, 1, 1, 1_000)
    assert work[0] == "broker:2"
    assert "--group" not in work
    assert work[work.index("--warm") + 1] == 500


def test_the_page_shows_the_floor_and_the_ratios_to_each_client() -> None:
    rows = {
        "ordermq, batch 1": summarise([run_of(1_000, 1.0, 0.002)], 1_000),
        "ordermq, batch 32": summarise([run_of(1_000, 0.5, 0.001)], 1_000),
        "Go client, batch 1": summarise([run_of(100, 1.0, 0.002)], 100),
        FLOOR: summarise([run_of(1_000, 0.25, 0.0005)], 1_000),
    }
    of_floor = {"rate": 0.25, "cpu": 4.0}
    text = rocketmq_section({
        "command": "python -m x", "machine": MACHINE, "workload": WORK, "rows": rows,
        "ratios": {
            "1": {"Go client": {"rate": 10.0, "cpu": 0.1}, FLOOR: of_floor},
            "32": {FLOOR: {"rate": 0.5, "cpu": 2.0}},
        },
    })  # fmt: skip
    assert "| pull loop in C |  | 4,000 | 0.50 | 0.25x / 0.50x | 4.000x / 2.000x | 30 |" in text
    assert "| Go client | 1 | 100 | 20.00 | 10.00x | 0.100x | 30 |" in text
    assert "| ordermq | 1 | 1,000 | 2.00 |  |  | 30 |" in text
    embedded = summarise([run_of(1_000, 1.0, 1.0) | {"broker_cpu_seconds": 1.0}], 1_000)
    text = catch_up_section({
        "command": "python -m x", "machine": MACHINE, "workload": WORK,
        "rows": {FLOOR: embedded | {"share_of_bare": 1.0}},
    })  # fmt: skip
    assert "| floor: pull and discard, in C | 1,000 |" in text


@contextlib.contextmanager
def no_broker(version: str, *options: str) -> Iterator[dict[str, str]]:
    yield {"name-server": "ns:1", "broker-a": "broker:2"}


def catch_up_without(monkeypatch: pytest.MonkeyPatch, broken: str) -> dict[str, Any]:
    """Measure with clients that take a second each, of which one fails in the second round."""

    def run(module: str, work: list[Any]) -> dict[str, Any]:
        name = next(name for name, its in bench_rocketmq.CONSUMERS.items() if its == module)
        runs.append(name)
        if name == broken and runs.count(name) > 3:
            raise subprocess.CalledProcessError(1, module)
        batch = "" if name == FLOOR else f", batch {work[work.index('--batch') + 1]}"
        return run_of(500, 1.0, 0.5) | {"peer": f"{name}{batch}"}

    runs: list[str] = []
    monkeypatch.setattr(bench_rocketmq, "rocketmq_parts", no_broker)
    monkeypatch.setattr(bench_rocketmq, "fill", lambda address, messages: None)
    monkeypatch.setattr(bench_rocketmq, "run_json", run)
    clients = ["ordermq", "Java client", "Go client", FLOOR]
    return bench_rocketmq.measure("5.3.3", 2, 1_000, clients)


def test_a_client_that_fails_is_left_out_of_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = catch_up_without(monkeypatch, "Go client")
    assert set(found["ratios"]["1"]) == set(found["ratios"]["32"]) == {"Java client", FLOOR}
    assert not any("Go" in peer for peer in found["rows"])
    assert "Go client LEFT OUT" in capsys.readouterr().err


def test_the_catch_up_ends_when_ordermq_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        catch_up_without(monkeypatch, "ordermq")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        fill(broker.address, MESSAGES)
        yield broker.address


def pull(cache: Path, address: str, messages: int, warm: int = 0) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.pull_floor", address, TOPIC, "--queues", "8",
         "--pull-size", "32", "--messages", str(messages), "--warm", str(warm)],
        env={"XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_pull_loop_in_c_receives_every_message_once(filled: str, tmp_path: Path) -> None:
    code, out, err = pull(tmp_path, filled, MESSAGES, warm=1_000)
    assert code == 0, err
    row = json.loads(out)
    assert (row["peer"], row["messages"]) == (FLOOR, MESSAGES - 1_000)
    # 500 messages per queue are 16 pulls; with the last one each queue asks for more.
    assert 8 * 16 <= row["detail"]["pulls"] <= 8 * 17
    assert 0 < row["cpu_seconds"] < 60
    assert 0 < row["seconds"] < 60


def test_the_pull_loop_in_c_reports_missing_messages(filled: str, tmp_path: Path) -> None:
    code, out, err = pull(tmp_path, filled, MESSAGES + 1)
    assert code != 0
    assert out == ""
    assert f"only {MESSAGES} of {MESSAGES + 1} messages" in err
