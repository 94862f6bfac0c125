"""Back-ups made while the broker serves, restoring them, and the check after a crash
(docs/embedded-broker.md#back-up)."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.backup import back_up, restore
from ordermq.broker.store.integrity import integrity_rows
from ordermq.cli.main import main
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.remoting.codes import RequestCode, ResponseCode
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, epochs, locked, records


def ordermq(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def no_progress(done: int, total: int) -> None:
    pass


def bodies(client: WireClient, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while (answer := client.pull("orders", len(found), queue_id, count=1_000)).code == 0:
        found += [message.body for message in records(answer.body)]
    return found


def test_a_back_up_is_one_moment_of_a_broker_that_serves(tmp_path: Path) -> None:
    """Each message is followed by its commit, so no moment has a commit beyond its messages."""
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    data.mkdir()
    seen: list[tuple[int, int]] = []
    is_over = threading.Event()

    def load(port: int) -> None:
        with WireClient(port) as client:
            number = 0
            while not is_over.is_set():
                client.send("orders", str(number).encode() * 100)
                number += 1
                client.commit("group", "orders", number)

    with BrokerProcess(data / "broker.db") as broker:
        with WireClient(broker.port) as client:
            for _ in range(20):
                client.send_batch("filler", [bytes(100_000)] * 10)
        loading = threading.Thread(target=load, args=(broker.port,))
        loading.start()
        back_up(data, copy, lambda done, total: seen.append((done, total)))
        is_over.set()
        loading.join()
    assert len(seen) > 2
    assert seen[-1][0] == seen[-1][1]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "data"]
    restore(copy, tmp_path / "again.db", no_progress)
    with EmbeddedBroker(tmp_path / "again.db") as again, WireClient(again.port) as client:
        found = bodies(client)
        assert found == [str(number).encode() * 100 for number in range(len(found))]
        committed = client.committed("group", "orders") or 0
        assert len(found) - 1 <= committed <= len(found)


def test_the_commands_back_up_and_restore(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    data.mkdir()
    with EmbeddedBroker(data) as broker, WireClient(broker.port) as client:
        client.send("orders", b"in the back-up")
        made = ordermq("broker", "backup", data, copy)
        assert made.exit_code == 0, made.output
        client.send("orders", b"later")
        running = ordermq("broker", "restore", copy, data)
        assert running.exit_code == 1
        assert "open in another broker" in running.output
    assert "exists: give a new file" in ordermq("broker", "backup", data, copy).output
    done = ordermq("broker", "restore", copy, data)
    assert done.exit_code == 0, done.output
    with EmbeddedBroker(data) as broker, WireClient(broker.port) as client:
        assert bodies(client) == [b"in the back-up"]
    # What was there before is still there, under another name.
    (before,) = data.glob("broker.db.before-*")
    with EmbeddedBroker(before) as broker, WireClient(broker.port) as client:
        assert bodies(client) == [b"in the back-up", b"later"]


def test_a_database_that_was_named_as_a_file_is_restored_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "orders.db", tmp_path / "copy.db"
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        client.send("orders", b"in the back-up")
        assert ordermq("broker", "backup", path, copy).exit_code == 0
        client.send("orders", b"later")
    with monkeypatch.context() as patch:
        replaced(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            restore(copy, path, no_progress)
    assert not path.exists()  # ended in the last step
    for _ in range(2):
        done = ordermq("broker", "restore", copy, path)
        assert done.exit_code == 0, done.output
        with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
            assert bodies(client) == [b"in the back-up"]


def test_help_of_the_commands_has_an_example() -> None:
    for command in ("backup", "restore"):
        assert f"ordermq broker {command} " in ordermq("broker", command, "--help").output


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "only copied"])
def test_epochs_never_go_back_after_a_back_up(tmp_path: Path, is_restored: bool) -> None:
    clock = ManualClock()
    data, copy = tmp_path / "broker.db", tmp_path / "copy.db"

    def take_turns(broker: EmbeddedBroker, count: int) -> list[int]:
        with WireClient(broker.port, "member") as client:
            found = []
            for _ in range(count):
                found += epochs(client.lock("group", "orders", 0))
                client.unlock("group", "orders", 0)
            return found

    given: list[int] = []
    with EmbeddedBroker(data, clock=clock) as broker:
        given += take_turns(broker, 5)
        with WireClient(broker.port, "old") as old:
            given += epochs(old.lock("group", "orders", 1))
        back_up(data, copy, no_progress)
        given += take_turns(broker, 50)
        with WireClient(broker.port, "holder") as holder:
            # Locked after the back-up: it knows nothing of this lock.
            given += epochs(holder.lock("group", "orders", 2))
    for _ in range(3):  # the same back-up, again and again
        if is_restored:
            restore(copy, data, no_progress)
        else:
            data.unlink()
            shutil.copy(copy, data)
        with (
            EmbeddedBroker(data, clock=clock) as broker,
            WireClient(broker.port, "thief") as thief,
            WireClient(broker.port, "old") as old,
        ):
            # Nobody gets a lock before the leases that may be held have expired, also not who
            # held it at the back-up.
            clock.advance(59_000)
            assert locked(thief.lock("group", "orders", 0, 1, 2)) == []
            assert locked(old.lock("group", "orders", 1)) == []
            clock.advance(1_001)
            (fresh, *_) = epochs(thief.lock("group", "orders", 0, 1, 2))
            assert fresh > max(given)
            given += [fresh, *take_turns(broker, 20)]
            assert sorted(given[-21:]) == given[-21:]
    # Once a lease has passed, a restart is a restart.
    with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port, "thief") as thief:
        assert locked(thief.lock("group", "orders", 0)) == [0]


def read_on(client: WireClient, offset: int, **more: Any) -> tuple[list[bytes], int]:
    """Every body from an offset on, as a consumer pulls, and the next offset; in a few pulls."""
    found: list[bytes] = []
    for _ in range(20):
        answer = client.pull("orders", offset, **more)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found, offset
        records_ = records(answer.body)
        assert [m.queue_offset for m in records_] == sorted(m.queue_offset for m in records_)
        found += [m.body for m in records_]
        offset = int(answer.ext["nextBeginOffset"])
    raise AssertionError("the end is not reached")


@pytest.mark.parametrize("days", [0, 1, 365])
def test_offsets_are_not_given_again_after_a_restore(tmp_path: Path, days: int) -> None:
    clock = ManualClock(wall_ms=time.time_ns() // 1_000_000 + days * 86_400_000)
    data, copy = tmp_path / "broker.db", tmp_path / "copy.db"
    config = BrokerConfig(retention_ms=86_400_000, retention_interval_ms=1_000)
    with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
        for number in range(40):
            client.send("orders", str(number).encode(), properties={"TAGS": "a", "KEYS": "old"})
        client.commit("group", "orders", 10)
        back_up(data, copy, no_progress)
        client.send_batch("orders", [b"lost"] * 1_000)
        assert client.commit("group", "orders", 1_040).code == 0
    restore(copy, data, no_progress)
    old = [str(number).encode() for number in range(40)]
    with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
        # Nothing new yet, and the member that was ahead is at the end, or behind it at no record.
        assert read_on(client, 0, count=7) == (old, client.max_offset("orders"))
        assert read_on(client, 1_040)[0] == []
        assert client.committed("group", "orders") == 10
        before_new_ms = clock.wall_ms()
        clock.advance(1_000)
        first = client.send("orders", b"new 0", properties={"TAGS": "a", "KEYS": "new"})
        assert int(first.ext["queueOffset"]) > 1_040
        client.send_batch("orders", [b"new 1", b"new 2"], properties={"TAGS": "b"})
        new = [b"new 0", b"new 1", b"new 2"]
        assert read_on(client, 0, count=7)[0] == old + new
        assert read_on(client, 1_040)[0] == new
        assert read_on(client, 0, tags="a")[0] == [*old, b"new 0"]
        # A pull from within the gap with room for one record only: none twice.
        within = int(first.ext["queueOffset"]) - 2
        assert read_on(client, within, max_bytes=1)[0] == new

        def search(boundary: str) -> int:
            ext = {"topic": "orders", "queueId": "0", "boundaryType": boundary}
            ext["timestamp"] = str(before_new_ms + 1)
            answer = client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
            return int(answer.ext["offset"])

        assert read_on(client, search("lower"))[0] == new
        assert search("upper") == 39
        for key, count in (("old", 40), ("new", 1)):
            ext = {"topic": "orders", "key": key, "maxNum": "64", "beginTimestamp": "0"}
            ext["endTimestamp"] = str(clock.wall_ms() + 1)
            answer = client.call(RequestCode.QUERY_MESSAGE, ext)
            assert len(records(answer.body)) == count
    with (
        EmbeddedBroker(data, clock=clock, config=config) as broker,
        WireClient(broker.port) as client,
    ):
        assert read_on(client, 0)[0] == old + new
        deadline = time.monotonic() + 10
        clock.advance(90_000_000)  # all but the newest message is too old
        while client.min_offset("orders") < int(first.ext["queueOffset"]):
            assert time.monotonic() < deadline
            clock.advance(1_000)
        assert client.send("orders").code == 0


def test_an_empty_restored_queue_keeps_its_place_across_restarts(tmp_path: Path) -> None:
    clock = ManualClock()
    data, copy = tmp_path / "broker.db", tmp_path / "copy.db"
    with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
        client.send("orders", b"old")
        back_up(data, copy, no_progress)
    restore(copy, data, no_progress)
    ends = []
    for _ in range(3):
        with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
            ends.append(client.max_offset("orders"))
    assert ends == [ends[0]] * 3
    assert ends[0] > 1


def test_a_restart_within_the_quiet_time_keeps_it(tmp_path: Path) -> None:
    clock = ManualClock()
    data, copy = tmp_path / "broker.db", tmp_path / "copy.db"
    with EmbeddedBroker(data, clock=clock):
        back_up(data, copy, no_progress)
    restore(copy, data, no_progress)
    for _ in range(2):
        with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
            assert locked(client.lock("group", "orders", 0)) == []
            clock.advance(30_001)
    with EmbeddedBroker(data, clock=clock) as broker, WireClient(broker.port) as client:
        assert locked(client.lock("group", "orders", 0)) == [0]


def test_what_is_no_back_up_is_not_restored(tmp_path: Path) -> None:
    data = tmp_path / "broker.db"
    with EmbeddedBroker(data) as broker, WireClient(broker.port) as client:
        client.send("orders", b"kept")
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("no database " * 100)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE meta (name TEXT, value)")
    database.close()
    for wrong in (text, other, tmp_path / "missing"):
        with pytest.raises(StoreError, match=wrong.name):
            restore(wrong, data, no_progress)
    with pytest.raises(StoreError, match="no database"):
        back_up(tmp_path / "nowhere", tmp_path / "copy.db", no_progress)
    with EmbeddedBroker(data) as broker, WireClient(broker.port) as client:
        assert bodies(client) == [b"kept"]


def crashed(tmp_path: Path) -> Path:
    path = tmp_path / "broker.db"
    broker = BrokerProcess(path)
    with WireClient(broker.port) as client:
        for number in range(50):
            client.send("orders", str(number).encode() * 1_000)
    broker.kill()
    return path


def test_a_database_is_checked_after_a_crash_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = crashed(tmp_path)
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        assert len(bodies(client)) == 50
    assert "checking database, it was not closed" in caplog.text
    assert "database is whole" in caplog.text
    caplog.clear()
    with EmbeddedBroker(path):
        pass
    assert "checking" not in caplog.text


def test_a_damaged_database_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = crashed(tmp_path)
    copy = tmp_path / "copy.db"
    back_up(path, copy, no_progress)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    with open(path, "r+b") as file:
        for page in range(5, file.seek(0, os.SEEK_END) // 4_096):
            file.seek(page * 4_096)
            file.write(b"\xff" * 64)
    Path(f"{path}-wal").write_bytes(b"left by a crash")
    with pytest.raises(StoreError, match=r"damaged.*ordermq broker restore"):
        EmbeddedBroker(path).start()
    unchecked = BrokerConfig(check_after_crash=False)
    with pytest.raises(StoreError, match="ordermq broker restore"):
        EmbeddedBroker(path, config=unchecked).start()
    restore(copy, path, no_progress)
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        assert len(bodies(client)) == 50


def replaced(monkeypatch: pytest.MonkeyPatch, ends_at: int) -> None:
    """Let a restore end at one of its renames, as SIGKILL does."""
    calls = itertools.count(1)

    def replace(source: str | Path, target: str | Path) -> None:
        if next(calls) == ends_at:
            raise KeyboardInterrupt
        os.rename(source, target)

    monkeypatch.setattr("ordermq.broker.store.backup.os.replace", replace)


@pytest.mark.parametrize("ends_at", [1, 2, 3, 4])
def test_a_restore_that_ends_before_its_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_at: int
) -> None:
    """An empty broker in the place of the database would look like the loss of all messages."""
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    data.mkdir()
    with BrokerProcess(data / "broker.db") as broker:
        with WireClient(broker.port) as client:
            client.send("orders", b"in the back-up")
            back_up(data, copy, no_progress)
            client.send("orders", b"later")
        broker.kill()  # so that there is a write-ahead log
    # Renames: the whole copy, the database, its log, (its index,) the copy into its place.
    with monkeypatch.context() as patch:
        replaced(patch, ends_at)
        with pytest.raises(KeyboardInterrupt):
            restore(copy, data, no_progress)
    if (data / "broker.db").exists():
        with EmbeddedBroker(data) as again, WireClient(again.port) as client:
            assert bodies(client) == [b"in the back-up", b"later"]
    else:
        with pytest.raises(StoreError, match="restore` was ended in its last step"):
            EmbeddedBroker(data).start()
        restore(copy, data, no_progress)
        with EmbeddedBroker(data) as again, WireClient(again.port) as client:
            assert bodies(client) == [b"in the back-up"]
    assert not list(data.glob("*.restored*"))


class StuckDatabase:
    """A database whose check does not end until it is interrupted."""

    def __init__(self) -> None:
        self.begun, self.interrupted = threading.Event(), threading.Event()

    def execute(self, sql: str) -> list[tuple[str]]:
        self.begun.set()
        assert self.interrupted.wait(60)
        raise sqlite3.OperationalError("interrupted")

    def interrupt(self) -> None:
        self.interrupted.set()


def test_a_signal_ends_the_check_of_a_large_database() -> None:
    database: Any = StuckDatabase()
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def interrupt() -> None:
        assert database.begun.wait(60)
        signal.pthread_kill(main, signal.SIGUSR1)

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            integrity_rows(database, 3)
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, before)
    assert database.interrupted.is_set()
