"""A broker that registered an address nobody can reach, behind a forwarded port.

The address is a name that never resolves: a connection that `address_map` has not led elsewhere
fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from ordermq import Admin, LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.config import LitePullConsumerConfig, ProducerConfig
from ordermq.errors import ConfigError, ConnectFailed
from tests.component.broker.wire_client import WireClient, locked
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.name_server import NameServer
from tests.component.test_key_ordered_consumer import orders_queue
from tests.forwarding import Forwarder

TOLD = "broker-0.invalid:10911"
SETTINGS: dict[str, Any] = {
    "consume_from_where": "first_offset", "lock_interval_ms": 50, "heartbeat_interval_ms": 50,
}  # fmt: skip


@pytest.fixture
def name_server(broker: EmbeddedBroker) -> Iterator[NameServer]:
    server = NameServer()
    server.register_address("b", broker.address, "orders", 1, told=TOLD)
    yield server
    server.close()


@pytest.fixture
def port(broker: EmbeddedBroker) -> Iterator[str]:
    """The address that leads to the broker."""
    with Forwarder(0, broker.address) as forwarder:
        yield forwarder.address


def test_every_request_of_producer_and_member_goes_to_the_mapped_address(
    broker: EmbeddedBroker, name_server: NameServer, port: str, seen: Seen, has_engine: bool
) -> None:
    at: dict[str, Any] = {
        "name_servers": name_server.address, "address_map": {TOLD: port}, **SETTINGS,
    }  # fmt: skip
    consumer = PushConsumer("g", **at)
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with Producer("p", name_servers=at["name_servers"], address_map=at["address_map"]) as producer:
        producer.send_many(numbered(200))
        with WireClient(broker.port) as direct, consumer:
            seen.wait_for_count(200)
            assert_in_order(seen, 200)
            lease = orders_queue(consumer).lease
            assert lease is not None
            first_ms = lease.deadline_ms
            eventually(
                lambda: getattr(orders_queue(consumer).lease, "deadline_ms", 0) > first_ms,
                "the lock is renewed",
            )
            assert direct.members("g") == [consumer.client_id]
            assert consumer.health().connected == (port,)
            consumer.close()
            # Unregistered, committed and unlocked before `close` returned.
            assert direct.members("g") == []
            assert direct.committed("g", "orders") == 200
            assert locked(direct.lock("g", "orders", 0)) == [0]


def test_a_lite_pull_consumer_and_the_environment_form(
    name_server: NameServer, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERMQ_NAME_SERVERS", name_server.address)
    # The host for all of its ports would not do: the port is another one, too.
    monkeypatch.setenv("ORDERMQ_ADDRESS_MAP", f"*:10911={port};10.0.0.6=gateway")
    monkeypatch.setenv("ORDERMQ_GROUP", "g")
    with Producer(config=ProducerConfig.from_env()) as producer:
        producer.send(Message("orders", b"0"))
    config = LitePullConsumerConfig.from_env()
    consumer = LitePullConsumer(config=config)
    with consumer:
        (queue,) = consumer.fetch_message_queues("orders")
        consumer.assign([queue])
        consumer.seek_to_begin(queue)
        got: list[bytes] = []

        def poll() -> bool:
            got.extend(bytes(message) for message in consumer.poll(100))
            return bool(got)

        eventually(poll, "the message comes")
    assert got == [b"0"]


def test_without_an_entry_the_error_names_the_address_that_was_told(
    name_server: NameServer, port: str
) -> None:
    with (
        Producer(
            "p", name_servers=name_server.address, address_map={"broker-1.invalid:10911": port},
            retry_times=0, send_timeout_ms=2_000,
        ) as producer,
        pytest.raises(ConnectFailed, match=r"broker-0\.invalid"),
    ):  # fmt: skip
        producer.send(Message("orders", b"0"))


def test_admin_reaches_what_it_asks_through_the_map(name_server: NameServer, port: str) -> None:
    with Admin(name_server.address, address_map={TOLD: port}) as admin:
        assert [step.name for step in admin.check() if step.is_ok][1:] == [
            "brokers",
            f"broker b at {port}",
        ]
        assert [queue.broker_name for queue in admin.topic("orders").queues] == ["b"]


def check(name_server: NameServer, *arguments: str, **env: str) -> tuple[int, list[Any], str]:
    got = CliRunner().invoke(
        main,
        ["config", "check", "--name-servers", name_server.address, "--json", *arguments],
        env=env,
    )
    return got.exit_code, json.loads(got.stdout)["steps"] if got.stdout else [], got.stderr


def test_config_check_takes_the_map_from_an_option_or_the_environment(
    name_server: NameServer, port: str
) -> None:
    entry = f"{TOLD}={port}"
    for code, steps, error in (
        check(name_server, "--address-map", entry, "--topic", "orders"),
        check(name_server, "--topic", "orders", ORDERMQ_ADDRESS_MAP=entry),
    ):
        assert (code, steps[-1]["name"]) == (0, "topic orders"), error
    code, steps, error = check(name_server)
    assert (code, steps[-1]["is_ok"]) == (3, False)
    assert "broker-0.invalid" in error


def test_config_check_says_what_is_wrong_with_an_entry(name_server: NameServer) -> None:
    code, steps, error = check(name_server, ORDERMQ_ADDRESS_MAP="10.0.0.5:10911")
    assert (code, [step["name"] for step in steps]) == (2, ["environment"])
    assert "'10.0.0.5:10911': expected told=reachable" in error
    code, _, error = check(name_server, "--address-map", "10.0.0.5:10911=localhost")
    assert (code, "give both a port, or neither" in error) == (2, True)


def test_two_brokers_that_become_one_address_are_refused_by_name(
    broker: EmbeddedBroker, name_server: NameServer, port: str
) -> None:
    name_server.register_address("c", broker.address, "orders", 1, told="broker-1.invalid:10911")
    both = {"*:10911": port}
    with (
        Producer("p", name_servers=name_server.address, address_map=both) as producer,
        pytest.raises(ConfigError, match=r"b \(broker-0.*c \(broker-1.*both become"),
    ):
        producer.send(Message("orders", b"0"))
    code, steps, error = check(name_server, "--address-map", f"*:10911={port}")
    assert (code, steps[-1]["name"], "both become" in error) == (1, "brokers", True)
