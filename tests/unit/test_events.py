"""The lines of a history."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ordermq.errors import ConfigError
from ordermq.events import EventType, History, NoHistory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_history_opens_counts_and_closes(path: Path) -> None:
    with History(path, "p1") as history:
        history.record(
            EventType.START,
            group="G", topic="T", broker="b", queue=0, epoch=7, offs=[4, 5], attempt=0,
        )  # fmt: skip
    found = lines(path)
    assert [line["type"] for line in found] == ["OPEN", "START", "CLOSE"]
    assert [line["seq"] for line in found] == [0, 1, 2]
    assert {line["p"] for line in found} == {"p1"}
    assert [line["t"] for line in found] == sorted(line["t"] for line in found)
    start = {name: value for name, value in found[1].items() if name not in ("p", "seq", "t")}
    assert start == {
        "type": "START", "group": "G", "topic": "T", "broker": "b", "queue": 0, "epoch": 7,
        "offs": [4, 5], "attempt": 0,
    }  # fmt: skip


def test_an_event_without_a_queue_carries_no_queue(path: Path) -> None:
    with History(path, "p1") as history:
        history.record(EventType.CRASH, client="c")
    assert set(lines(path)[1]) == {"p", "seq", "t", "type", "client"}


def test_a_line_is_in_the_file_before_the_call_returns(path: Path) -> None:
    history = History(path, "p1")
    history.record(EventType.UNLOCK, group="G", topic="T", broker="b", queue=0)
    assert len(lines(path)) == 2, "a process killed now leaves both"
    history.close()


def test_a_closed_history_takes_no_more_and_closes_once(path: Path) -> None:
    history = History(path, "p1")
    history.close()
    history.close()
    history.record(EventType.CRASH)
    assert [line["type"] for line in lines(path)] == ["OPEN", "CLOSE"]


def test_an_interrupted_close_leaves_no_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    history = History(path, "p1")
    with monkeypatch.context() as patch:
        patch.setattr("os.write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            history.close()
    history.close()
    assert [line["type"] for line in lines(path)] == ["OPEN"], "as of a process that crashed"


def test_a_later_incarnation_appends(path: Path) -> None:
    for process in ("p1", "p2"):
        History(path, process).close()
    assert [line["p"] for line in lines(path)] == ["p1", "p1", "p2", "p2"]


def test_threads_write_whole_lines_in_the_order_of_their_numbers(path: Path) -> None:
    history = History(path, "p1")

    def write() -> None:
        for _ in range(200):
            history.record(EventType.STORE, offs=list(range(50)))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history.close()
    assert [line["seq"] for line in lines(path)] == list(range(802))


def test_without_a_history_nothing_is_recorded() -> None:
    nothing = NoHistory()
    assert not nothing.enabled
    nothing.record(EventType.START, offs=[1])
    nothing.close()


@pytest.mark.parametrize("is_read", [True, False])
def test_a_pipe_is_no_history_for_its_reader_may_stop(path: Path, is_read: bool) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    try:
        with pytest.raises(ConfigError, match=r"history=.*: give a file"):
            History(path, "p")
    finally:
        if is_read:
            os.close(reader)
