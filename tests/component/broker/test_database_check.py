"""`ordermq broker check`, and databases that are wrong in every way."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.database_check import check_database
from ordermq.cli.main import main
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient

STEP = 1_024  # bytes between two places of damage; a page has 4,096


def fill(client: WireClient) -> None:
    for number in range(60):
        client.send("orders", b"%05d" % number + b"y" * 200, number % 3)
    client.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "pg"}, sys_flag=4)
    client.send("orders", b"later", properties={"DELAY": "5", "UNIQ_KEY": "A" * 32})
    client.send("orders", b"timed", properties={"TIMER_DELAY_SEC": "600"})
    client.lock("group", "orders", 0, 1)
    client.commit("group", "orders", 7)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good" / "broker.db"
    path.parent.mkdir()
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        fill(client)
    return path


def test_a_whole_database_is_whole_also_while_a_broker_serves_and_after_a_crash(
    good: Path, tmp_path: Path
) -> None:
    report = check_database(good.parent)
    assert (report.problems, report.queues, report.messages) == ([], 6, 63)
    assert report.is_closed
    with EmbeddedBroker(good) as broker, WireClient(broker.port) as client:
        client.send("orders", b"more")
        report = check_database(good)
        assert (report.problems, report.messages, report.is_closed) == ([], 64, False)


DAMAGES = {
    "UPDATE log_3 SET record = zeroblob(200) WHERE off = 3": "offset 3: ",
    "UPDATE log_3 SET record = NULL WHERE off = 3": "offset 3: ",
    "UPDATE log_3 SET record = (SELECT record FROM log_3 WHERE off = 4) WHERE off = 3":
        "offset 3: the record says topic 'orders', queue 0, 4",
    "DELETE FROM log_3 WHERE off = 3": "offset 4: the one before is 2, messages are missing",
    "DROP TABLE log_3": "its table log_3 is missing",
    "DELETE FROM queues WHERE id = 3": "table log_3 belongs to no queue",
    "UPDATE queues SET queue_id = 1 WHERE id = 3": "queue 1 of topic 'orders' is there twice",
    "UPDATE offsets SET off = 99": "its offset 99 of queue 0 of topic 'orders' is out of range",
    "UPDATE offsets SET off = 'x'": "its offset 'x'",
    "UPDATE locks SET epoch = 99": "has epoch 99: expected 1..2",
    "UPDATE meta SET value = 'x' WHERE name = 'next_epoch'": "the next epoch is 'x'",
    "UPDATE meta SET value = 9 WHERE name = 'format'": "format is 9: expected 1",
    "DROP TABLE locks": "tables are missing: locks",
    "UPDATE topics SET config = '[]'": "topic 'orders': its configuration is not a JSON object",
    "DELETE FROM topics": "topic 'orders' has messages, but no configuration",
}  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), DAMAGES.items())
def test_each_broken_rule_is_named(good: Path, sql: str, expected: str) -> None:
    with closing(sqlite3.connect(good)) as database, database:
        database.execute(sql)
    found = check_database(good).problems
    assert any(expected in problem for problem in found), found


def test_a_flipped_bit_of_a_body_is_found(good: Path) -> None:
    content = good.read_bytes()
    at = content.index(b"00030" + b"y" * 200)
    good.write_bytes(content[:at] + b"x" + content[at + 1 :])
    (problem,) = check_database(good).problems
    assert "its body does not have its checksum" in problem


def refusal(call: Callable[[], object]) -> str:
    """The text of a StoreError; other errors fail the test."""
    try:
        call()
    except StoreError as error:
        return str(error)
    return ""


def test_damage_anywhere_ends_as_an_error_that_says_what_to_do(good: Path, tmp_path: Path) -> None:
    path, size, config = tmp_path / "damaged.db", good.stat().st_size, BrokerConfig(durability="os")
    named: list[bool] = []
    content = good.read_bytes()
    refused = 0
    for at in range(0, size, STEP):
        path.write_bytes(content[:at] + b"\0" * 512 + content[at + 512 :])
        unreadable = refusal(lambda: named.append(bool(check_database(path).problems)))
        why = refusal(lambda: EmbeddedBroker(path, config=config).start().close())
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        if why:
            refused += 1
            assert "ordermq broker restore" in why
            assert unreadable or named[-1], f"{at}: {why}"
    assert refused > 10


def test_a_pull_of_a_damaged_page_says_what_to_do(good: Path) -> None:
    with EmbeddedBroker(good) as broker, WireClient(broker.port) as client:
        with closing(sqlite3.connect(good)) as database:
            database.execute("DROP TABLE log_3")
        answer = client.pull("orders", 0)
        assert answer.code == 1
        assert "ordermq broker check" in (answer.remark or "")
        assert client.send("orders", b"x", 1).code == 0


@pytest.mark.parametrize("name", ["broker.db", "broker.db.lock", "broker.db-wal", "broker.db-shm"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "id_rsa.pub", tmp_path / "shared"
    victim.write_text("ssh-ed25519 AAAA... me")
    victim.chmod(0o644)
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link is not followed"):
        EmbeddedBroker(folder / "broker.db").start()
    assert victim.read_text() == "ssh-ed25519 AAAA... me"
    assert victim.stat().st_mode & 0o777 == 0o644
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreError, match="symbolic link is not followed"):
        EmbeddedBroker(folder / "broker.db").start()
    assert not (tmp_path / "nothing").exists()


def test_the_command_prints_what_is_wrong_and_ends_with_1(good: Path, tmp_path: Path) -> None:
    whole = CliRunner().invoke(main, ["broker", "check", str(good.parent)])
    assert whole.exit_code == 0
    assert "is whole: 63 messages in 6 queues" in whole.output
    shutil.copy(good, tmp_path / "copy.db")
    with closing(sqlite3.connect(good)) as database, database:
        database.execute("DELETE FROM log_3 WHERE off = 3")
    damaged = CliRunner().invoke(main, ["broker", "check", str(good)])
    assert damaged.exit_code == 1
    assert "messages are missing" in damaged.output
    assert "ordermq broker restore" in damaged.output
    as_json = CliRunner().invoke(main, ["broker", "check", str(tmp_path / "copy.db"), "--json"])
    found = json.loads(as_json.stdout)
    assert (found["problems"], found["messages"], found["closed"]) == ([], 63, True)
    text = tmp_path / "notes.txt"
    text.write_text("no database " * 100)
    junk = CliRunner().invoke(main, ["broker", "check", str(text)])
    assert junk.exit_code == 1
    assert "file is not a database" in junk.output


def test_what_a_damaged_log_has_cost_is_found_by_the_receipts_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    broker = BrokerProcess(path)
    with WireClient(broker.port) as client:
        receipts = [int(client.send("orders", b"x" * 500).ext["queueOffset"]) for _ in range(60)]
    broker.kill()
    wal = Path(f"{path}-wal")
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 1
    wal.write_bytes(content)
    with EmbeddedBroker(path) as again, WireClient(again.port) as client:
        assert client.max_offset("orders") <= receipts[-1]
    assert check_database(path).problems == []
