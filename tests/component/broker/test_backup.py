"""Back-ups made while the broker serves, restoring them, and the check after a crash
(docs/embedded-broker.md#back-up)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.backup import back_up, restore
from ordermq.cli.main import main
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
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
