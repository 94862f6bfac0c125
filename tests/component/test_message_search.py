"""Messages found by key, id, offset and time, with their states in groups (docs/operations.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from ordermq import Admin, DeadLetter, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.cli.main import main
from ordermq.errors import ConfigError, RouteError
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from tests.component.conftest import Seen, eventually
from tests.component.test_orderly_consumer import committed

MakeConsumer = Callable[..., PushConsumer]


def test_a_message_is_found_by_each_of_its_names(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    receipts = [
        producer.send(
            Message("orders", b"%d" % n, keys=[f"o-{n}", "all"]), sharding_key=f"k{n % 3}"
        )
        for n in range(30)
    ]
    wanted = receipts[17]
    with Admin(name_servers=broker.name_servers) as admin:
        (by_key,) = admin.find_messages("orders", key="o-17")
        (by_id,) = admin.find_messages("orders", message_id=wanted.message_id)
        (stored,) = admin.find_messages("orders", message_id=by_key.message.offset_message_id)
        (by_offset,) = admin.find_messages(
            "orders", offset=wanted.queue_offset, queues=[wanted.message_queue.queue_id]
        )
        for found in (by_key, by_id, stored, by_offset):
            assert found.message.text() == "17"
            assert found.message.message_queue == wanted.message_queue
            assert found.message.queue_offset == wanted.queue_offset
            assert found.groups == {}
        several = admin.find_messages("orders", key="all", count=7)
        times = [each.message.store_timestamp_ms for each in several]
        assert (len(times), times) == (7, sorted(times))
        every = admin.find_messages("orders", key="all")
        assert sum(each.message.store_timestamp_ms > times[0] for each in every) <= 7, "the newest"
        moment = datetime.fromtimestamp(by_key.message.store_timestamp_ms / 1000, UTC)
        since = admin.find_messages("orders", at=moment)
        assert {"17", "29"} <= {each.message.text() for each in since}
        assert admin.find_messages("orders", at=moment + timedelta(days=1)) == []
        assert len(admin.find_messages("orders", at="1h")) == 30
        assert len(admin.peek("orders", 100, start="1h")) == 30
        with pytest.raises(ConfigError, match=r"start='soon'.*an age as '2h'"):
            admin.peek("orders", start="soon")
        assert admin.find_messages("orders", key="o-1 7") == []
        assert admin.find_messages("orders", message_id="AB" * 16) == []
        assert len(admin.find_messages("orders", offset=0)) == 3
        with pytest.raises(RouteError):
            admin.find_messages("nothing", key="o-17")


@pytest.mark.parametrize("key", ["a\tb", "a\u3000b", "a\nb"])
def test_white_space_other_than_a_blank_belongs_to_its_key(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, key: str
) -> None:
    producer.send(Message("orders", b"1", keys=[key, "other"]), sharding_key="k")
    keys: list[list[str]] = []

    def listen(messages: Any, context: Any) -> None:
        keys.extend(message.keys for message in messages)
        seen.take(messages, context)

    with make_consumer(listen):
        seen.wait_for_count(1)
    assert keys == [[key, "other"]]
    with Admin(name_servers=broker.name_servers) as admin:
        assert [found.message.text() for found in admin.find_messages("orders", key=key)] == ["1"]
        assert admin.find_messages("orders", key="b") == []


def test_its_state_in_each_group_is_told(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    for n in range(3):
        producer.send(Message("orders", b"%d" % n, keys=[f"o-{n}"]), sharding_key="k")

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"1":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(listen, on_failure=DeadLetter(1)):
        seen.wait_for_count(2)
        eventually(lambda: committed(broker) == 3, "all is committed")
    other = PushConsumer(
        "late", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    other.subscribe("orders")
    other.orderly(lambda messages, context: 0)
    with other, Admin(name_servers=broker.name_servers) as admin:
        states = [admin.find_messages("orders", key=f"o-{n}")[0].groups for n in range(3)]
    assert [each["g"] for each in states] == ["done", "dead", "done"]
    assert {each["late"] for each in states} == {"waiting"}


def test_offsets_and_routes_are_asked_once_for_all_messages(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in range(30):
        producer.send(Message("orders", b"%d" % n), sharding_key=f"k{n}")

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"1":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(listen, on_failure=DeadLetter(1)):
        eventually(lambda: committed(broker) == 30, "all is committed")
    asked: list[tuple[int, str]] = []
    handlers = dict(server.HANDLERS)

    def note(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        asked.append((request.code, request.ext["topic"]))
        handlers[request.code](context, connection, request)

    codes = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_ROUTEINFO_BY_TOPIC
    for code in codes:
        monkeypatch.setitem(server.HANDLERS, code, note)
    with Admin(name_servers=broker.name_servers) as admin:
        found = admin.find_messages("orders", at="1h")
    states = [each.groups["g"] for each in found]
    assert (states.count("done"), states.count("dead")) == (29, 1)
    queues = {each.message.message_queue for each in found}
    assert asked.count((codes[0], "orders")) == len(queues)
    # Whether it is there; and then for its brokers, from name servers and in the routes.
    assert asked.count((codes[1], "%DLQ%g")) == 3


@pytest.mark.parametrize("given", [{}, {"key": "a", "offset": 1}])
def test_exactly_one_way_to_find_is_given(broker: EmbeddedBroker, given: dict[str, Any]) -> None:
    with (
        Admin(name_servers=broker.name_servers) as admin,
        pytest.raises(ConfigError, match="expected one of key, message_id, offset, at"),
    ):
        admin.find_messages("orders", **given)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"key": b"a"}, "a str"),
        ({"message_id": 5}, "a str"),
        ({"offset": "1"}, "an int"),
        ({"offset": True}, "an int"),
        ({"at": 5}, "a datetime, or an age as '2h'"),
        ({"at": "latest"}, "a datetime, or an age as '2h'"),
    ],
)
def test_what_names_a_message_has_its_type(
    broker: EmbeddedBroker, given: dict[str, Any], kind: str
) -> None:
    ((name, value),) = given.items()
    with (
        Admin(name_servers=broker.name_servers) as admin,
        pytest.raises(ConfigError, match=f"{name}={value!r}: expected {kind}"),
    ):
        admin.find_messages("orders", **given)


def test_the_command_prints_what_it_finds(producer: Producer, broker: EmbeddedBroker) -> None:
    producer.send(Message("orders", b"a body", keys=["o-1"], tags="new"), sharding_key="k")

    def shown(*options: str) -> str:
        arguments = ["messages", "find", "orders", "--name-servers", broker.name_servers, *options]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "1 message of orders" in shown("--key", "o-1")
    (row,) = json.loads(shown("--key", "o-1", "--json"))
    assert (row["key"], row["keys"], row["groups"]) == ("k", ["o-1"], {})
    table = shown("--key", "o-1")
    assert re.search(r"queue +key +tags +body +groups +offset +stored +id", table)
    assert re.search(rf"b/\d +k +new +a body +- +0 +[-\d]+ [:\d]+ +{row['message_id']} ", table)
    assert row["stored_ms"] > 0
    assert shown("--key", "o-2", "--json").strip() == "[]"
