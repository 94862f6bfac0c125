"""`ordermq topics`, `groups`, `reset`, `peek` and `dlq` against an embedded broker."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordermq import Admin, DeadLetter, Message, ParkKey, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.cli.output import out
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import eventually

SENT = 24


class Cli:
    """Runs commands against one broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker

    def run(self, line: str, text: str | None = None) -> Result:
        servers = ["--name-servers", self.broker.name_servers]
        return CliRunner().invoke(main, [*line.split(), *servers], input=text)

    def shown(self, line: str) -> str:
        got = self.run(line)
        assert got.exit_code == 0, got.output
        return got.stdout + got.stderr

    def json(self, line: str) -> Any:
        got = self.run(f"{line} --json")
        assert got.exit_code == 0, got.output
        return json.loads(got.stdout)


@pytest.fixture
def cli() -> Iterator[Cli]:
    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for number in range(SENT):
                producer.send(Message("orders", b"%d" % number), sharding_key=f"o-{number % 3}")
        yield Cli(broker)


def test_topics_are_created_listed_described_and_deleted(cli: Cli) -> None:
    assert len(cli.json("topics create made --queues 3")["queues"]) == 3
    assert cli.run("topics create made --queues 4").exit_code == 1
    assert {row["name"]: row["queues"] for row in cli.json("topics list")} == {
        "made": 3,
        "orders": 4,
    }
    assert "orders@embedded/0" in cli.shown("topics describe orders")
    assert cli.json("topics describe orders")["messages"] == SENT
    assert "2 topics" in cli.shown("topics list")
    assert "'made' is deleted" in cli.shown("topics delete made --yes")
    assert [row["name"] for row in cli.json("topics list")] == ["orders"]
    missing = cli.run("topics describe made")
    assert missing.exit_code == 3
    assert "made" in missing.stderr


@pytest.mark.parametrize(
    "line",
    [
        "topics delete orders",
        "reset billing orders --to first",
        "groups delete billing",
    ],
)
def test_what_cannot_be_undone_is_refused_where_nobody_can_be_asked(cli: Cli, line: str) -> None:
    got = cli.run(line)
    assert got.exit_code == 2
    assert "--yes" in got.stderr
    assert cli.json("topics describe orders")["messages"] == SENT
    assert cli.json("groups list") == []


@pytest.mark.parametrize(("answer", "is_deleted"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_on_a_terminal_it_asks_first(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, is_deleted: bool
) -> None:
    # The runner's input is no terminal; `confirm` asks only there.
    monkeypatch.setattr("ordermq.cli.output._is_attended", lambda: True)
    got = cli.run("topics delete orders", answer)
    assert got.exit_code == (0 if is_deleted else 1)
    assert f"Delete topic 'orders' with {SENT} messages?" in got.stderr
    assert (cli.json("topics list") == []) is is_deleted


def test_a_group_is_reset_and_listed(cli: Cli) -> None:
    moved = cli.json("reset billing orders --to last --yes")
    assert sum(row["after"] for row in moved) == SENT
    assert cli.json("groups list") == [
        {"group": "billing", "members": 0, "topics": ["orders"], "lag": 0}
    ]
    shown = cli.run("reset billing orders --to-time 2000-01-01T00:00 --yes")
    assert "of 4 queues moved" in shown.output
    assert "start at those" in shown.output, "of a group with its offsets in a database"
    assert "0 of 4 queues moved" in cli.shown("reset billing orders --to first --yes")
    assert "is its name right?" in cli.run("reset bilingg orders --to first --yes").output
    assert cli.json("groups list")[0]["lag"] == SENT
    assert f"{SENT} messages behind" in cli.shown("groups describe billing")
    assert [
        row["queue"] for row in cli.json("reset billing orders --to-offset 0 --queue 1 --yes")
    ] == ["orders@embedded/1"]
    assert cli.run("reset billing orders --to-time 2h --yes").exit_code == 0
    assert cli.run("reset billing orders --to 2h --yes").exit_code == 0


@pytest.mark.parametrize(
    "place",
    [
        "", "--to 1795581149741", "--to 20261125", "--to 5", "--to-time 1795581149741",
        "--to-time 1795581149",
        "--to-time 20261125", "--to-time first", "--to-offset -1", "--to-offset 2h",
        "--to first --to-offset 1",
    ],
)  # fmt: skip
def test_a_place_whose_unit_would_be_guessed_is_a_wrong_usage(cli: Cli, place: str) -> None:
    assert cli.run(f"reset billing orders --yes {place}").exit_code == 2
    assert cli.json("groups list") == []


def test_what_is_unread_in_queues_that_a_topic_has_no_more_is_told_beside_the_lag(
    cli: Cli,
) -> None:
    with Admin(cli.broker.name_servers) as admin:
        admin.reset("billing", "orders", to="first")
        rows = admin.topic("orders").queues.items()
        counts = {queue.queue_id: ends.end for queue, ends in rows if queue.queue_id and ends.end}
    with WireClient(cli.broker.port) as client:
        client.create_topic("orders", 1)
    for command in ("lag", "groups describe"):
        got = " ".join(cli.run(f"{command} billing").stderr.split())
        assert f"withdrawn queues: {len(counts)}, with {sum(counts.values())} unread" in got
        assert "mqadmin updateTopic -r" in got
    left = cli.json("lag billing")["withdrawn"]
    assert {each["queue"]: each["unread"] for each in left} == counts
    assert {each["offset"] for each in left} == {0}


def test_an_offset_that_a_queue_does_not_have_is_refused(cli: Cli) -> None:
    got = cli.run("reset billing orders --to-offset 1795581149741 --yes")
    assert got.exit_code == 2
    assert "--to-time" in " ".join(got.stderr.split())
    assert cli.json("groups list") == []


@pytest.mark.parametrize("place", ["middle", "-1", "2026-13-01", "9999999999999d"])
def test_a_place_that_is_none_is_a_wrong_usage(cli: Cli, place: str) -> None:
    got = cli.run(f"peek orders --from={place}")
    assert got.exit_code == 2
    assert "first, last, an offset" in " ".join(got.output.split())


def test_a_group_is_described_with_its_members(cli: Cli) -> None:
    consumer = PushConsumer("billing", name_servers=cli.broker.name_servers)
    consumer.subscribe("orders", "paid || sent")
    consumer.subscribe("later")
    consumer.orderly(lambda messages, context: None)
    with consumer, Admin(cli.broker.name_servers) as admin:
        eventually(lambda: len(admin.group("billing").holdings) == 4, "it holds the queues")
        (member,) = cli.json("groups describe billing")["members"]
        assert member["client_id"] == consumer.client_id
        assert member["subscriptions"]["orders"] == "paid || sent"
        assert member["queues"] == [f"orders@embedded/{number}" for number in range(4)]
        described = cli.run("groups describe billing")
        assert "orders [paid || sent]" in described.stdout
        assert "topic later, which members subscribe to, is on no broker" in described.stderr
        assert cli.json("groups describe billing")["absent"] == ["later"]
    nobody = cli.run("groups describe nobody")
    assert nobody.exit_code == 1
    assert "no member and no offset" in nobody.stderr


def test_messages_are_peeked_as_a_table_and_as_json(cli: Cli) -> None:
    everything = cli.json("peek orders --count 100")
    assert sorted(int(row["body"]) for row in everything) == list(range(SENT))
    queue = everything[-1]["queue"]
    of_queue = [row["body"] for row in everything if row["queue"] == queue]
    place = f"peek orders --queue {queue} --count 2"
    assert [row["body"] for row in cli.json(place)] == of_queue[-2:]
    assert [row["body"] for row in cli.json(f"{place} --from first")] == of_queue[:2]
    assert "o-2" in cli.shown("peek orders")
    assert "no message there" in cli.shown("peek orders --from 1000")
    assert cli.json("groups list") == []


def test_tables_of_messages_have_their_tags(cli: Cli) -> None:
    with Producer("shop", name_servers=cli.broker.name_servers) as producer:
        producer.send(Message("tagged", b"paid", tags="tag-of-it", keys=["k-1"]))
    for typed in ("peek tagged", "messages find tagged --key k-1"):
        shown = cli.shown(typed)
        assert "tags" in shown
        assert "tag-of-it" in shown


def test_a_body_is_shown_without_markup_and_without_commands_to_the_terminal(cli: Cli) -> None:
    with Producer("shop", name_servers=cli.broker.name_servers) as producer:
        producer.send(Message("odd", b"[red]a\x1b[2Jb\nc"))
        producer.send(Message("odd", b"\xff\xfe"))
    shown = cli.shown("peek odd")
    assert "[red]a\ufffd[2Jb c" in shown
    assert "\x1b" not in shown
    assert {row.get("body_base64") for row in cli.json("peek odd")} == {None, "//4="}


def send_damaged(cli: Cli, topic: str, key: str = "o-1") -> None:
    """Store a message that is said to be compressed, and is not."""
    with WireClient(cli.broker.port) as client:
        client.create_topic(topic, 1)  # what is sent behind it is behind it in its queue
        properties = {"__SHARDINGKEY": key, "UNIQ_KEY": f"damaged-{key}"}
        assert client.send(topic, b"not \xff", properties=properties, sys_flag=0x301).code == 0


def test_a_body_that_cannot_be_decompressed_is_shown_as_it_is_stored(cli: Cli) -> None:
    send_damaged(cli, "damaged")
    with Producer("shop", name_servers=cli.broker.name_servers) as producer:
        producer.send(Message("damaged", b"behind it"), sharding_key="o-1")
    (shown,) = [row for row in cli.json("peek damaged --from first") if "body_error" in row]
    assert base64.b64decode(shown["body_base64"]) == b"not \xff"
    assert "damaged: not zlib data" in shown["body_error"]
    assert "damaged: not zlib data" in cli.shown("peek damaged --from first")
    lines = cli.run("consume damagers damaged --from first --count 2")
    assert lines.exit_code == 0
    assert "not \\xff" in lines.stdout
    assert "behind it" in lines.stdout
    assert "offset 0: message body is damaged" in lines.stderr
    printed = cli.run("consume others damaged --from first --count 2 --json").stdout
    assert ["body_error" in json.loads(line) for line in printed.splitlines()] == [True, False]


def test_a_dead_letter_whose_body_cannot_be_read_is_named_with_the_way_out(
    cli: Cli, tmp_path: Path
) -> None:
    send_damaged(cli, "%DLQ%billing")
    (letter,) = cli.json("dlq show billing --from first")
    refused = cli.run("dlq redrive billing --to-topic mended --yes")
    assert (refused.exit_code, letter["message_id"] in refused.stderr) == (1, True)
    assert "dlq skip" in refused.stderr
    corrected = tmp_path / "corrected"
    corrected.write_bytes(b"corrected")
    line = f"dlq redrive billing --id {letter['message_id']} --body {corrected} --to-topic mended"
    assert "1 dead letter of 1 key sent again, 0 left" in cli.shown(f"{line} --yes")


def give_up_all(cli: Cli) -> None:
    """Have the group "billing" give up every message."""
    consumer = PushConsumer(
        "billing",
        name_servers=cli.broker.name_servers,
        consume_from_where="first_offset",
        on_failure=DeadLetter(max_attempts=1),
        pause_after_dead_letters=0,
        suspend_current_queue_time_ms=10,
    )
    consumer.subscribe("orders")

    @consumer.orderly
    def fail(messages: Any, context: Any) -> None:
        raise ValueError("a test's own failure")

    with consumer:
        eventually(lambda: consumer.statistics["diverted"] == SENT, "all were given up")


def test_dead_letters_are_listed_shown_and_sent_again(cli: Cli) -> None:
    assert cli.json("dlq list") == []
    assert cli.shown("dlq list") == "0 groups with dead letters\n"
    for line in ("dlq redrive billing --yes", "dlq show billing"):
        refused = cli.run(line)
        assert (refused.exit_code, "group 'billing' has no dead letters" in refused.stderr) == (
            1,
            True,
        )
    give_up_all(cli)
    (row,) = cli.json("dlq list")
    assert (row["group"], row["messages"], row["waiting"]) == ("billing", SENT, SENT)
    letters = cli.json("dlq show billing --count 100")
    assert len(letters) == SENT
    assert {(each["topic"], each["sent_to"]) for each in letters} == {("%DLQ%billing", "orders")}
    assert {each["failure"]["error"] for each in letters} == {"ValueError: a test's own failure"}
    shown = cli.shown("dlq show billing")
    assert re.search(r"^ queue +topic +why +key ", shown, re.MULTILINE)
    assert cli.run("dlq redrive billing").exit_code == 2  # nobody to ask
    done = cli.json("dlq redrive billing --count 4 --yes")
    assert 0 < done.pop("overtaken_by") < SENT
    assert done == {
        "group": "billing",
        "sent": 4,
        "keys": len({m["key"] for m in cli.json("dlq show billing --from first --count 4")}),
        "left": SENT - 4,
    }
    # The name of the topic means its group, too.
    waiting = cli.json("dlq show %DLQ%billing --waiting --from first --count 5")
    assert [each["offset"] for each in waiting] == [4, 5, 6, 7, 8]
    assert len(cli.json("dlq show billing --waiting --count 100")) == SENT - 4
    said = cli.shown("dlq redrive billing --yes")
    assert f"{SENT - 4} dead letters of 3 keys sent again, 0 left" in said
    assert "of their queues were stored behind them" in " ".join(said.split())
    assert cli.json("topics describe orders")["messages"] == 2 * SENT
    assert "1 group with dead letters" in cli.shown("dlq list")
    assert cli.json("dlq show billing --waiting --from first") == []


def test_one_dead_letter_is_sent_again_with_another_body_or_skipped(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_all(cli)
    letters = cli.json("dlq show billing --from first --count 100")
    (first, second, third), other = (
        [each["message_id"] for each in letters if each["key"] == "o-1"][:3],
        next(each["message_id"] for each in letters if each["key"] == "o-2"),
    )
    assert f" {first} " in cli.shown("dlq show billing --from first")
    refused = cli.run(f"dlq redrive billing --id {third} --yes")
    assert (refused.exit_code, f"beginning with {first}" in refused.stderr) == (1, True)
    corrected = tmp_path / "corrected"
    corrected.write_bytes(b"corrected")
    assert cli.run(f"dlq redrive billing --id {first} --body {corrected}").exit_code == 2
    said = cli.shown(f"dlq redrive billing --id {first} --body {corrected} --yes")
    assert f"1 dead letter of 1 key sent again, {SENT - 1} left" in said
    assert cli.json("peek orders --count 1")[0]["body"] == "corrected"
    piped = cli.run(f"dlq redrive billing --id {second} --body - --yes --json", text="piped")
    assert json.loads(piped.stdout)["left"] == SENT - 2
    assert cli.json("peek orders --count 1")[0]["body"] == "piped"
    assert cli.run(f"dlq skip billing {other}").exit_code == 2  # nobody to ask
    assert cli.json(f"dlq skip billing {other} {third} --yes") == {
        "group": "billing",
        "skipped": 2,
        "left": SENT - 4,
    }
    again = cli.run(f"dlq skip billing {other} --yes")
    assert (again.exit_code, "was sent again or skipped before" in again.stderr) == (1, True)
    waiting = cli.json("dlq show billing --waiting --from first --count 100")
    left = [each["message_id"] for each in letters]
    for each in (first, second, third, other):
        left.remove(each)
    assert [each["message_id"] for each in waiting] == left
    for wrong in (f"--body {corrected}", f"--id {other} --count 2"):
        assert cli.run(f"dlq redrive billing {wrong} --yes").exit_code == 2
    # On a terminal where ids have no room they are not cut.
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", 100)
    narrow = cli.shown("dlq show billing --waiting")
    assert "tags and ids need a terminal of 130 columns" in narrow
    assert left[-1] not in narrow
    monkeypatch.setattr(out, "_width", 130)
    assert f" {left[-1]} " in cli.shown("dlq show billing --waiting")


def test_parked_keys_are_listed_shown_and_consumed_once_they_may(cli: Cli) -> None:
    is_healed = threading.Event()
    consumer = PushConsumer(
        "billing",
        name_servers=cli.broker.name_servers,
        consume_from_where="first_offset",
        on_failure=ParkKey("held", max_attempts=1),
        order_by_key=True,
        suspend_current_queue_time_ms=10,
    )
    consumer.subscribe("orders")

    @consumer.orderly
    def bill(messages: Any, context: Any) -> None:
        if messages[0].sharding_key == "o-1" and not is_healed.is_set():
            raise ValueError("a test's own failure")

    with consumer:
        eventually(lambda: consumer.statistics["diverted"] == SENT // 3, "all of the key is parked")
        (row,) = cli.json("parked list held")
        assert (row["group"], row["key"], row["messages"]) == ("billing", "o-1", SENT // 3)
        assert "1 parked key" in cli.shown("parked list held --group billing")
        parked = cli.json("parked show held billing o-1")
        assert [int(message["body"]) for message in parked] == list(range(1, SENT, 3))
        assert cli.run("parked redrive held billing").exit_code == 2  # nobody to ask
        queue, offset = parked[0]["queue"], parked[0]["offset"]
        find = f"messages find orders --offset {offset} --queue {queue} --parking-topic"
        (found,) = cli.json(f"{find} held")
        assert (found["body"], found["groups"]) == ("1", {"billing": "parked"})
        (found,) = cli.json(f"{find} orders")  # no parking topic
        assert found["groups"] != {"billing": "parked"}
        assert cli.run("parked redrive held billing o-2 --yes").exit_code == 1
        is_healed.set()
        assert cli.json("parked redrive held billing o-1 --yes --wait 20") == []
    assert cli.json("parked list held") == []


@pytest.mark.parametrize("option", ["", " --orderly"])
def test_a_group_is_created_once_ordered_or_not(cli: Cli, option: str) -> None:
    assert "group 'fresh' is created" in cli.shown("groups create fresh" + option)
    with WireClient(cli.broker.port) as client:
        answer = client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "fresh"})
    assert json.loads(answer.body)["consumeMessageOrderly"] is bool(option)
    again = cli.run("groups create fresh --json")
    assert again.exit_code == 1
    assert "the group exists" in again.stderr
    assert cli.json("groups create other --orderly") == {"group": "other", "is_orderly": True}


def test_a_group_is_deleted(cli: Cli) -> None:
    cli.shown("reset billing orders --to last --yes")
    assert "group 'billing' is deleted" in cli.shown("groups delete billing --yes")
    assert cli.json("groups list") == []
    again = cli.run("groups delete billing --dead-letters --yes")
    assert again.exit_code == 1
    assert "no broker knows the group" in again.stderr
