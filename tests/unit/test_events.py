"""The lines of a history."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ordermq.errors import ConfigError
from ordermq.events import EventType, GuardedRecorder, History, NoHistory
from tests.waiting import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_of(path: Path) -> int:
    """Return the number of whole lines of a file that is being written, and may be read torn."""
    return path.read_bytes().count(b"\n")


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


def test_members_that_are_no_unicode_are_escaped_and_all_others_are_utf8(path: Path) -> None:
    with History(path, "m1") as history:
        history.record(EventType.DIVERT, topic="café", detail="no file b\udcff")
        history.record(EventType.CRASH, client="naïve")
    _, torn, whole, _ = path.read_bytes().splitlines()
    assert json.loads(torn)["detail"] == "no file b\udcff"
    assert json.loads(torn)["topic"] == "café"
    assert '"client":"naïve"' in whole.decode()


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


class HangingDisk:
    """`os.write` that waits until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = os.write
        self.works = threading.Event()
        self.is_called = threading.Event()
        monkeypatch.setattr("os.write", self)

    def __call__(self, file: int, data: bytes) -> int:
        self.is_called.set()
        assert self.works.wait(30)
        return self._write(file, data)


def test_a_disk_that_hangs_holds_up_no_event_and_one_commit_for_a_second(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.events._WAIT_S", 0.05)
    history = History(path, "p1", in_background=True)
    disk = HangingDisk(monkeypatch)
    for offset in range(100):
        history.record(EventType.START, offs=[offset])
    assert disk.is_called.wait(10)
    assert [line["type"] for line in lines(path)] == ["OPEN"]
    history.wait_written()  # in vain
    monkeypatch.setattr("ordermq.events._WAIT_S", 30)
    history.wait_written()  # not again
    disk.works.set()
    eventually(lambda: count_of(path) == 101 and not history._is_stalled, "the disk works again")
    history.record(EventType.UNLOCK)
    history.wait_written()  # it is waited for again
    assert len(lines(path)) == 102
    history.close()
    assert [line["seq"] for line in lines(path)] == list(range(103))


def test_a_thread_that_never_ran_is_started_again_at_a_later_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.events._WAIT_S", 0.05)
    monkeypatch.setattr("ordermq.background_writer._START_S", 0.0)
    history = History(tmp_path / "h.jsonl", "p1", in_background=True)
    with monkeypatch.context() as patched:  # as where there is no memory for it
        patched.setattr("ordermq.background_writer.start_aside", lambda thread: None)
        history.record(EventType.COMMIT_SENT, off=1)
        history.wait_written()
        assert len(lines(tmp_path / "h.jsonl")) == 1
    history.wait_written()
    eventually(lambda: count_of(tmp_path / "h.jsonl") == 2, "the line is written")
    history.close()


def test_a_history_is_closed_though_its_disk_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.events._WAIT_S", 0.05)
    history = History(path, "p1", in_background=True)
    disk = HangingDisk(monkeypatch)
    history.record(EventType.UNLOCK)
    assert disk.is_called.wait(10)
    history.close()
    history.record(EventType.UNLOCK)  # nothing any more
    disk.works.set()


def test_lines_of_a_thread_are_written_together_and_none_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(path, "p1", in_background=True)
    write, sizes = os.write, []

    def counted(file: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(file, data)

    monkeypatch.setattr("os.write", counted)
    for _ in range(10_000):
        history.record(EventType.STORE, offs=[1])
    history.wait_written()
    assert [line["seq"] for line in lines(path)] == list(range(10_001))
    assert len(sizes) < 10_000
    history.close()


@pytest.mark.parametrize("fits", [0, 1, 30, 1_000])
def test_lines_without_space_are_counted_and_the_next_ones_are_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    history = History(path, "p1", in_background=True)
    failed: list[OSError] = []
    guarded = GuardedRecorder(history, lambda: failed.append(OSError()))
    write, disk = os.write, HangingDisk(monkeypatch)
    guarded.record(EventType.UNLOCK)
    assert disk.is_called.wait(10)

    def full(file: int, data: bytes) -> int:
        if not fits:
            raise OSError(28, "No space left on device")
        return write(file, data[:fits])

    for offset in range(50):  # they leave in one write, when this one is done
        guarded.record(EventType.STORE, offs=[offset])
    monkeypatch.setattr("os.write", full)
    disk.works.set()
    history.wait_written()
    monkeypatch.setattr("os.write", write)
    guarded.record(EventType.UNLOCK)
    guarded.close()
    whole = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    sequence = [line["seq"] for line in whole]
    assert sequence == sorted(sequence)
    assert sequence[-2:] == [52, 53]  # an audit finds the gap
    assert len(failed) == 54 - len(whole)


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_lines_into_a_file_that_was_deleted_are_counted_and_told(
    path: Path, caplog: pytest.LogCaptureFixture, in_background: bool, is_replaced: bool
) -> None:
    failed: list[None] = []
    guarded = GuardedRecorder(
        History(path, "p1", in_background=in_background), lambda: failed.append(None)
    )
    guarded.record(EventType.UNLOCK)
    guarded.wait_written()
    assert not failed
    path.unlink()
    if is_replaced:
        path.write_text("")
    guarded.record(EventType.UNLOCK)
    guarded.record(EventType.UNLOCK)
    guarded.wait_written()
    assert len(failed) == 2
    (told,) = caplog.records
    assert f"it was deleted, and is written anew after a restart: '{path}'" in told.getMessage()
    guarded.close()


def test_a_history_that_was_moved_goes_on_in_its_file(path: Path) -> None:
    with History(path, "p1", in_background=True) as history:
        path.rename(path.with_suffix(".1"))
        history.record(EventType.UNLOCK)
    assert [line["type"] for line in lines(path.with_suffix(".1"))] == ["OPEN", "UNLOCK", "CLOSE"]


def test_events_beyond_what_may_wait_are_counted_and_leave_a_gap(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.events._MOST_WAITING_BYTES", 200)
    history = History(path, "p1", in_background=True)
    disk = HangingDisk(monkeypatch)
    history.record(EventType.UNLOCK)
    assert disk.is_called.wait(10)
    history.record(EventType.STORE, offs=list(range(40)))
    with pytest.raises(OSError, match=r"\d\d bytes of lines wait"):
        history.record(EventType.UNLOCK)
    disk.works.set()
    history.wait_written()
    history.record(EventType.UNLOCK)
    history.close()
    assert [line["seq"] for line in lines(path)] == [0, 1, 2, 4, 5]


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
