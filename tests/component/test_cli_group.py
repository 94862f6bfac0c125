"""`ordermq lag`, `locks` and `top` against an embedded broker, and the account and TLS options."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.broker import _accounts
from ordermq.cli.main import main
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from tests.component.conftest import eventually
from tests.waiting import killed_on_error

SENT = 24


def ordermq(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for number in range(SENT):
                producer.send(Message("orders", b"paid"), sharding_key=f"o-{number}")
        yield broker


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[PushConsumer]:
    """A member of `billing` that has done and committed every message."""
    done, left = threading.Event(), [SENT]
    consumer = PushConsumer(
        "billing",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        commit_interval_ms=0,
    )
    consumer.subscribe("orders")

    @consumer.orderly
    def bill(messages: object, context: object) -> None:
        left[0] -= len(messages)  # type: ignore[arg-type]
        if not left[0]:
            done.set()

    with consumer:
        assert done.wait(30)
        yield consumer


def test_a_group_that_never_consumed_is_behind_by_every_message(broker: EmbeddedBroker) -> None:
    got = ordermq("lag", "late", "orders", "--name-servers", broker.name_servers, "--json")
    assert got.exit_code == 0, got.output
    document = json.loads(got.stdout)
    assert document["lag"] == SENT
    assert {row["committed"] for row in document["queues"]} == {None}


def test_a_group_is_shown_with_all_its_queues_and_members(
    broker: EmbeddedBroker, consumer: PushConsumer
) -> None:
    consumer.close()  # commits
    got = ordermq("lag", "billing", "--name-servers", broker.name_servers, "--json")
    assert got.exit_code == 0, got.output
    rows = [row for row in json.loads(got.stdout)["queues"] if row["topic"] == "orders"]
    assert sum(row["committed"] for row in rows) == SENT
    assert json.loads(got.stdout)["lag"] == 0
    shown = ordermq("lag", "billing", "orders", "--name-servers", broker.name_servers)
    assert "0 messages behind, 0 members" in shown.stdout
    assert "orders@embedded/0" in shown.stdout


def test_what_a_member_has_consumed_and_not_committed_yet_is_no_lag(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor when it has become idle: as between two commits of a busy queue.
    monkeypatch.setattr(OffsetCommitter, "note_idle", lambda self: None)
    servers = ("--name-servers", broker.name_servers)
    consumer = PushConsumer(
        "billing",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        commit_interval_ms=86_400_000,
    )
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with consumer:
        eventually(lambda: consumer.statistics["messages_done"] == SENT, "everything is done")
        eventually(lambda: consumer.statistics["behind"] == 0, "and settled")
        document = json.loads(ordermq("lag", "billing", *servers, "--json").stdout)
        rows = [row for row in document["queues"] if row["topic"] == "orders"]
        assert sum(row["end"] for row in rows) == SENT
        assert [row["consumed"] for row in rows] == [row["end"] for row in rows]
        assert not any(row["committed"] for row in rows)
        assert document["lag"] == 0
        assert ordermq("lag", "billing", "--at-most", "0", *servers).exit_code == 0
        seen = ordermq("top", "billing", "--count", "1", *servers, "--json")
        document = json.loads(seen.stdout)
        assert document["lag"] == 0


def test_an_exporter_serves_the_lag_of_a_group_without_members(broker: EmbeddedBroker) -> None:
    servers = ["--name-servers", broker.name_servers]
    moved = ordermq("reset", "late", "orders", "--to", "first", "--yes", *servers)
    assert moved.exit_code == 0, moved.output
    line = [sys.executable, "-m", "ordermq", "exporter", "late", "--port", "0", *servers]
    with killed_on_error(subprocess.Popen(line, stderr=subprocess.PIPE, text=True)) as process:
        assert process.stderr is not None
        (address,) = re.findall(r"http://\S+", process.stderr.readline())
        page = urllib.request.urlopen(address).read().decode()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    lags = re.findall(r"^ordermq_group_lag\{.*\} (\S+)$", page, re.MULTILINE)
    assert sum(map(float, lags)) == SENT
    assert re.findall(r"^ordermq_group_members\{.*\} (\S+)$", page, re.MULTILINE) == ["0.0"]


def test_an_exporter_refuses_a_group_that_no_broker_knows(broker: EmbeddedBroker) -> None:
    refused = ordermq("exporter", "nobody", "--name-servers", broker.name_servers)
    assert refused.exit_code == 1
    assert "group 'nobody' has no member and no offset" in refused.stderr


def test_a_lag_above_the_limit_is_an_exit_code(broker: EmbeddedBroker) -> None:
    servers = ("--name-servers", broker.name_servers)
    assert ordermq("lag", "late", "orders", *servers, "--at-most", str(SENT)).exit_code == 0
    got = ordermq("lag", "late", "orders", *servers, "--at-most", str(SENT - 1))
    assert got.exit_code == 1
    assert f"{SENT} messages behind" in got.stderr


def test_an_unknown_group_is_an_error_that_says_what_to_do(broker: EmbeddedBroker) -> None:
    for command in ("lag", "locks"):
        got = ordermq(command, "nobody", "--name-servers", broker.name_servers)
        assert got.exit_code == 1
        assert "no member and no offset" in got.stderr
    got = ordermq("lag", "late", "no-such-topic", "--name-servers", broker.name_servers)
    assert got.exit_code == 3
    assert "no-such-topic" in got.stderr


def test_locks_are_shown_with_owner_epoch_and_the_members_report(
    broker: EmbeddedBroker, consumer: PushConsumer
) -> None:
    got = ordermq("locks", "billing", "orders", "--name-servers", broker.name_servers, "--json")
    assert got.exit_code == 0, got.output
    rows = json.loads(got.stdout)["queues"]
    assert len(rows) == 4
    for row in rows:
        assert row["owner"] == row["member"] == consumer.client_id
        assert row["locked"] is True
        assert row["epoch"] > 0
        assert 0 < row["left_ms"] <= 60_000
    shown = ordermq("locks", "billing", "orders", "--name-servers", broker.name_servers)
    assert "billing: 1 member" in shown.stdout


def test_locks_of_a_closed_member_are_gone(broker: EmbeddedBroker, consumer: PushConsumer) -> None:
    consumer.close()
    got = ordermq("locks", "billing", "orders", "--name-servers", broker.name_servers, "--json")
    assert got.exit_code == 0, got.output
    assert {row["owner"] for row in json.loads(got.stdout)["queues"]} == {None}


def test_top_shows_rates_from_the_first_refresh_on(
    broker: EmbeddedBroker, consumer: PushConsumer
) -> None:
    servers = ("--name-servers", broker.name_servers)
    got = ordermq("top", "billing", "orders", *servers, "--every", "0.1", "--count", "2", "--json")
    assert got.exit_code == 0, got.output
    first, second = (json.loads(part) for part in _documents(got.stdout))
    assert {row["stored_per_second"] for row in first["queues"]} == {None}
    assert {row["stored_per_second"] for row in second["queues"]} == {0.0}
    shown = ordermq("top", "billing", "orders", *servers, "--every", "0.1", "--count", "2")
    assert shown.exit_code == 0, shown.output
    assert "(locked)" in shown.stdout


def test_commands_sign_their_requests(tmp_path: Path) -> None:
    accounts = {"shop": "open sesame"}
    with EmbeddedBroker(config=BrokerConfig(accounts=accounts)) as broker:
        servers = ("--name-servers", broker.name_servers)
        denied = ordermq("lag", "late", "orders", *servers)
        assert denied.exit_code == 1
        assert "was not signed" in denied.stderr
        file = tmp_path / "orders.txt"
        file.write_text("made\npaid\n")
        keys = {"ORDERMQ_ACCESS_KEY": "shop", "ORDERMQ_SECRET_KEY": "open sesame"}
        sent = ordermq("produce", "orders", str(file), *servers, "--json", **keys)
        assert sent.exit_code == 0, sent.output
        got = ordermq("lag", "late", "orders", *servers, "--json", **keys)
        assert json.loads(got.stdout)["lag"] == 2


def test_a_wrong_file_of_accounts_is_refused_before_the_broker_starts(tmp_path: Path) -> None:
    file = tmp_path / "accounts.json"
    for text in (
        "not json", "[]", "{}", '{"a": {"policies": []}}', '{"a": {"secretKey": "s"}}',
        '{"a": {"secretKey": "s", "policies": [{"resource": "orders", "actions": ["PUB"]}]}}',
        '{"a": {"secretKey": "s", "policies": [{"topic": "orders", "actions": ["PUB"]}]}}',
    ):  # fmt: skip
        file.write_text(text)
        got = ordermq("broker", "--port", "0", "--accounts", str(file))
        assert got.exit_code == 2
        assert str(file) in got.stderr


def test_the_page_s_file_of_accounts_and_policies_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (example,) = re.findall(r"`(\{\"shop\": .*?\})`", page)
    file = tmp_path / "accounts.json"
    file.write_text(example)
    found = _accounts(file)
    assert found == {
        "accounts": {"shop": "..."},
        "policies": {"shop": [AccessPolicy("Topic:orders*", ["PUB"])]},
    }


def _documents(text: str) -> list[str]:
    return [part + "}" for part in text.split("\n}\n") if part.strip()]
