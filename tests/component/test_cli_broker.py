"""The commands against an embedded broker."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.config import BrokerConfig
from ordermq.events import is_being_written
from ordermq.producer.queue_selector import java_index
from tests.component.name_server import NameServer

ORDERS = "id,what\no-17,made\no-18,made\no-17,paid\no-17,sent\n"


@pytest.fixture
def name_servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.name_servers


@pytest.fixture
def nowhere() -> str:
    """An address nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def ordermq(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text)


def produce(name_servers: str, *options: str, text: str = ORDERS) -> Result:
    return ordermq("produce", "orders", "--name-servers", name_servers, *options, text=text)


def consume(name_servers: str, *options: str) -> Result:
    start = ("consume", "billing", "orders", "--from", "first", "--timeout", "20")
    return ordermq(*start, "--name-servers", name_servers, *options)


def test_csv_rows_are_consumed_in_order_within_their_key(name_servers: str) -> None:
    sent = produce(name_servers, "--csv", "--key-column", "id", "--json")
    assert sent.exit_code == 0, sent.output
    assert json.loads(sent.stdout)["stored"] == 4
    got = consume(name_servers, "--count", "4", "--json")
    assert got.exit_code == 0, got.output
    messages = [json.loads(line) for line in got.stdout.splitlines()]
    bodies = [json.loads(message["body"]) for message in messages if message["key"] == "o-17"]
    assert [body["what"] for body in bodies] == ["made", "paid", "sent"]


def test_rows_without_a_header_are_keyed_by_number(name_servers: str) -> None:
    options = ("--csv", "--no-header", "--key-column", "0")
    assert produce(name_servers, *options, text="o-1,a\no-1,b\n").exit_code == 0
    got = consume(name_servers, "--count", "2")
    lines = [line.split("\t") for line in got.stdout.splitlines() if "\t" in line]
    assert [(key, body) for _, _, key, body in lines] == [
        ("o-1", '["o-1","a"]'),
        ("o-1", '["o-1","b"]'),
    ]


def test_a_count_within_a_batch_commits_just_what_was_printed(name_servers: str) -> None:
    produce(name_servers, "--key", "k", text="1\n2\n3\n4\n5\n")
    first = consume(name_servers, "--count", "2", "--json", "--batch", "32")
    rest = consume(name_servers, "--count", "3", "--json")
    bodies = [json.loads(line)["body"] for line in (first.stdout + rest.stdout).splitlines()]
    assert bodies == ["1", "2", "3", "4", "5"]


def test_fewer_messages_than_asked_for_end_with_1(name_servers: str) -> None:
    produce(name_servers, "--key", "k", text="1\n")
    result = ordermq(
        *("consume", "billing", "orders", "--from", "first", "--count", "2", "--timeout", "3"),
        *("--name-servers", name_servers),
    )
    assert result.exit_code == 1
    assert "stopped after 1 of 2 messages" in result.stderr


def test_a_key_column_that_is_not_there_is_a_wrong_usage(name_servers: str) -> None:
    result = produce(name_servers, "--csv", "--key-column", "order")
    assert result.exit_code == 2
    assert "no column 'order': the file has id, what" in result.stderr


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("o-2,b,surplus", "row 2 (line 3) has 3 fields, the header has 2"),
        ("o-2", "row 2 (line 3) has 1 fields, the header has 2"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_an_error_unless_lenient(
    name_servers: str, row: str, fault: str
) -> None:
    rows = f"id,what\no-1,a\n{row}\no-3,c\n"
    result = produce(name_servers, "--csv", "--json", text=rows)
    assert result.exit_code == 1
    assert fault in result.stderr
    assert json.loads(result.stdout)["resume_with_skip"] == 1
    lenient = produce(name_servers, "--csv", "--lenient", "--json", text=rows)
    assert lenient.exit_code == 0, lenient.output
    assert json.loads(lenient.stdout)["stored"] == 3


def test_a_header_with_one_name_twice_is_an_error_unless_lenient(name_servers: str) -> None:
    rows = "id,what,id\n1,a,2\n"
    result = produce(name_servers, "--csv", text=rows)
    assert result.exit_code == 2
    assert "the header has 'id' twice" in result.stderr
    assert produce(name_servers, "--csv", "--lenient", text=rows).exit_code == 0
    assert "need --csv" in produce(name_servers, "--lenient").stderr


def test_a_row_that_is_too_short_says_where_to_resume(name_servers: str) -> None:
    rows = "o-1,a\n" * 3 + "short\n"
    options = ("--csv", "--no-header", "--key-column", "1", "--in-flight", "2")
    result = produce(name_servers, *options, text=rows)
    assert result.exit_code == 1
    assert "row 4 has 1 columns" in result.stderr
    assert "Resume with --skip" in result.stderr


def test_a_broker_that_is_away_does_not_hide_what_another_one_may_have_stored(
    name_servers: str, nowhere: str
) -> None:
    routes = NameServer()
    routes.register_address("b", name_servers, "orders", 1)
    routes.tell("a", nowhere, "orders", 1)
    keys = sorted(map(str, range(4)), key=lambda key: java_index(key, 2))
    try:
        result = produce(routes.address, "--csv", "--key-column", "0", text="\n".join(["x", *keys]))
    finally:
        routes.close()
    assert result.exit_code == 3
    assert "cannot connect" in result.stderr
    assert "Resume with --skip 0" in result.stderr
    assert consume(name_servers, "--count", "2").exit_code == 0


def test_an_input_that_is_empty_or_not_utf_8_is_reported(name_servers: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"fine\n\xfc\n")
    result = ordermq("produce", "orders", str(file), "--name-servers", name_servers)
    assert result.exit_code in (1, 2)  # the first line may be stored by then
    assert "not UTF-8" in result.stderr
    assert "iconv" in result.stderr
    result = produce(name_servers, "--key", "k", text="")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 messages stored in orders" in result.stderr


def test_lines_may_be_skipped_to_resume(name_servers: str) -> None:
    result = produce(name_servers, "--key", "k", "--skip", "2", "--json", text="1\n2\n3\n")
    assert json.loads(result.stdout)["stored"] == 1
    assert json.loads(consume(name_servers, "--count", "1", "--json").stdout)["body"] == "3"


def test_no_broker_ends_with_3(nowhere: str) -> None:
    for result in (produce(nowhere), consume(nowhere)):
        assert result.exit_code == 3
        assert "no name server answers" in result.stderr
        assert "topic='orders'" in result.stderr, "not a topic that nobody named"


def start_broker(*options: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "ordermq", "broker", "--json", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["name_servers"]


def test_a_broker_process_keeps_its_messages_and_leaves_on_sigterm(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path / "data"), "--history", str(tmp_path / "broker.jsonl"))
    for number in range(2):
        process, name_servers = start_broker(*options)
        try:
            if number == 0:
                assert produce(name_servers, "--csv", "--key-column", "id").exit_code == 0
            else:
                history = ("--history", str(tmp_path / "consumer.jsonl"))
                assert consume(name_servers, "--count", "4", *history).exit_code == 0
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert process.stdout is not None
            process.stdout.close()
    report = audit([tmp_path / "broker.jsonl", tmp_path / "consumer.jsonl"], start_offsets=0)
    assert report.ok, report.violation
    assert (report.stored, report.delivered, report.committed) == (4, 4, 4)


def test_a_port_that_is_taken_ends_with_3(name_servers: str) -> None:
    result = ordermq("broker", "--port", name_servers.rpartition(":")[2])
    assert result.exit_code == 3
    assert "the broker cannot listen" in result.stderr


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (["--port", "{taken}"], 3),
        (["--port", "99999"], 2),
        (["--port", "0", "--data", "{held}"], 1),
    ],
    ids=["taken port", "wrong port", "data of another"],
)
def test_a_broker_that_could_not_start_is_no_crash_to_an_audit(
    name_servers: str, options: list[str], exit_code: int, tmp_path: Path
) -> None:
    held, path = tmp_path / "held", tmp_path / "broker.jsonl"
    held.mkdir()
    taken = name_servers.rpartition(":")[2]
    given = [option.format(taken=taken, held=held) for option in options]
    with EmbeddedBroker(held / "broker.db"):
        result = ordermq("broker", *given, "--history", str(path))
    assert result.exit_code == exit_code, result.output
    assert not is_being_written(path)
    report = audit([path])
    assert (report.ok, report.crashes) == (True, 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--port", "99999"], "port=99999: expected 1..65535"),
        (["--tls-certificate", "{file}"], "tls_certificate="),
        (["--history", "{file}/none.jsonl"], "cannot be written"),
        (["--data", "{file}"], "use another"),
    ],
    ids=["port", "certificate", "history", "data"],
)
def test_an_unusable_broker_option_is_a_wrong_usage(
    options: list[str], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("neither a certificate nor a folder")
    given = [option.format(file=file) for option in options]
    result = ordermq("broker", "--port", "0", *given)
    assert result.exit_code == 2, result.output
    assert told in result.stderr


def test_a_history_that_cannot_be_written_is_named_by_a_consumer(name_servers: str) -> None:
    result = consume(name_servers, "--history", "/nowhere/at/all.jsonl", "--timeout", "0.1")
    assert result.exit_code == 2, result.output
    assert "history='/nowhere/at/all.jsonl' cannot be written" in result.stderr


def test_a_lease_out_of_range_is_a_wrong_usage() -> None:
    result = ordermq("broker", "--lease-ms", "1")
    assert result.exit_code == 2
    assert "lock_max_live_ms" in result.stderr


def test_retention_is_set_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[BrokerConfig] = []
    monkeypatch.setattr("ordermq.cli.broker._serve", lambda *given: served.append(given[3]))
    for given in ((), ("--new-groups-start-at-zero",)):
        assert ordermq("broker", *given).exit_code == 0
        assert served.pop() == BrokerConfig()
    options = ("--retention-ms", "1000", "--retention-bytes", "5000")
    assert ordermq("broker", *options, "--new-groups-start-by-setting").exit_code == 0
    kept = BrokerConfig(retention_ms=1_000, retention_bytes=5_000, new_groups_start_at_zero=False)
    assert served == [kept]
    result = ordermq("broker", "--retention-ms", "-1")
    assert result.exit_code == 2
    assert "retention_ms" in result.stderr


def test_a_new_group_starts_at_zero_unless_configured_otherwise(
    name_servers: str,
) -> None:
    process, by_setting = start_broker("--new-groups-start-by-setting")
    try:
        got = {}
        for servers, patience in ((name_servers, "20"), (by_setting, "1.5")):
            produce(servers, "--key", "k", text="1\n")
            options = ("--from", "last", "--count", "1", "--timeout", patience)
            got[servers] = consume(servers, *options).exit_code
        assert got == {name_servers: 0, by_setting: 1}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
