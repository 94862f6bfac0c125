"""kombu's transport on an embedded broker: acknowledgement, order, times, exchanges, endings.

kombu's own integration tests are run by ci/frameworks.sh, Celery's workers by test_celery.py.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

import ordermq.contrib.kombu
from ordermq import Admin, Message
from ordermq import Producer as Sender
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError
from ordermq.testing import read
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, eventually

OPTIONS: dict[str, Any] = {"consumer": {"suspend_current_queue_time_ms": 10}, "queues": 1}


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=15_000)
    with EmbeddedBroker(config=config) as broker:
        yield broker


def connect(broker: EmbeddedBroker) -> Connection:
    return Connection(f"ordermq://{broker.name_servers}/", transport_options=OPTIONS)


def test_a_message_is_redelivered_until_it_is_acknowledged(embedded: EmbeddedBroker) -> None:
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery.fast")
        queue.put({"n": 1})
        first = queue.get(timeout=DEADLINE_S)
        assert first.payload == {"n": 1}
        assert first.delivery_info["redelivered"] is False
        first.requeue()
        again = queue.get(timeout=DEADLINE_S)
        assert (again.payload, again.delivery_info["redelivered"]) == ({"n": 1}, True)
        again.ack()
        queue.put({"n": 2})
        following = queue.get(timeout=DEADLINE_S)
        assert following.payload == {"n": 2}
        following.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()
        eventually(lambda: queue.qsize() == 0, "both are committed")
        queue.close()


def test_what_a_closed_connection_had_not_acknowledged_goes_to_the_next_one(
    embedded: EmbeddedBroker,
) -> None:
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery")
        for n in range(3):
            queue.put(n)
        queue.get(timeout=DEADLINE_S).ack()
        assert queue.get(timeout=DEADLINE_S).payload == 1
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery")
        left = sorted(queue.get(timeout=DEADLINE_S).payload for _ in range(2))
        assert left == [1, 2]


def test_messages_of_one_key_wait_for_each_other_and_others_do_not(
    embedded: EmbeddedBroker,
) -> None:
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery")
        for text in ("a1", "a2", "b1"):
            queue.put(text, headers={"sharding_key": text[0]})
        got = {}
        for _ in range(2):
            message = queue.get(timeout=DEADLINE_S)
            got[message.payload] = message
        assert got.keys() == {"a1", "b1"}
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.2)
        got["a1"].ack()
        assert queue.get(timeout=DEADLINE_S).payload == "a2"


def test_a_rejected_message_and_a_foreign_one_become_dead_letters(
    embedded: EmbeddedBroker,
) -> None:
    with connect(embedded) as connection, Sender("p", name_servers=embedded.name_servers) as sender:
        queue = connection.SimpleQueue("celery")
        for body in (b"\xff", b"[]", b'{"properties": {}}'):
            sender.send(Message("celery", body), sharding_key="foreign")
        with WireClient(embedded.port) as client:  # it is said to be compressed, and is not
            assert client.send("celery", b"!!", sys_flag=0x301).code == 0
        queue.put("bad")
        message = queue.get(timeout=DEADLINE_S)
        message.reject()
        letters = read(embedded.name_servers, "%DLQ%kombu-celery", 5, DEADLINE_S)
        found = {bytes(each.stored_body)[:2] for each in letters}
        assert found == {b"\xff", b"[]", b'{"', b"!!"}
        queue.put("good")
        assert queue.get(timeout=DEADLINE_S).payload == "good"


def test_a_message_with_an_eta_arrives_when_it_is_due(embedded: EmbeddedBroker) -> None:
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery")
        due = datetime.now(UTC) + timedelta(seconds=1)
        queue.put("later", headers={"eta": due.isoformat()})
        queue.put("odd", headers={"eta": "soon"})
        queue.put("past", headers={"eta": "2001-01-01T00:00:00"})
        assert {queue.get(timeout=DEADLINE_S).payload for _ in range(2)} == {"odd", "past"}
        assert queue.get(timeout=DEADLINE_S).payload == "later"
        assert datetime.now(UTC) >= due - timedelta(milliseconds=10)  # brokers keep milliseconds


def test_an_expired_message_is_not_delivered(embedded: EmbeddedBroker) -> None:
    with connect(embedded) as connection:
        queue = connection.SimpleQueue("celery")
        queue.put("old", expiration=0.001)
        queue.put("new", headers={"sharding_key": "k"})
        assert queue.get(timeout=DEADLINE_S).payload == "new"
        eventually(lambda: queue.qsize() == 1, "the old one is passed over")


def test_prefetch_counts_what_is_not_acknowledged(embedded: EmbeddedBroker) -> None:
    got: list[Any] = []
    with connect(embedded) as connection:
        queue = Queue("celery", Exchange("celery"), routing_key="celery")
        producer = Producer(connection)
        for n in range(4):
            producer.publish(n, exchange="celery", routing_key="celery", declare=[queue])
        channel = connection.channel()
        consumer = Consumer(channel, [queue], callbacks=[lambda body, message: got.append(message)])
        consumer.qos(prefetch_count=2)
        with consumer:
            while len(got) < 2:
                connection.drain_events(timeout=DEADLINE_S)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.2)
            got[0].ack()
            connection.drain_events(timeout=DEADLINE_S)
            assert len(got) == 3


def test_every_transient_queue_of_an_exchange_gets_what_it_is_bound_to(
    embedded: EmbeddedBroker,
) -> None:
    with connect(embedded) as first, connect(embedded) as second, connect(embedded) as third:
        got: list[tuple[str, Any]] = []

        def reader(connection: Connection, name: str, exchange: Exchange, key: str = "") -> Any:
            queue = Queue(name, exchange, routing_key=key, auto_delete=True, durable=False)
            take = [lambda body, message: got.append((name, body))]
            return Consumer(connection.channel(), [queue], callbacks=take, no_ack=True)

        news, events = Exchange("news", "fanout"), Exchange("events", "topic")
        with (
            reader(first, "n1", news),
            reader(second, "n2", news),
            reader(second, "workers", events, "worker.#"),
        ):
            producer = Producer(third)
            with WireClient(embedded.port) as client:  # what is no message of kombu stops no reader
                for queue_id in range(8):
                    client.send("kombu-exchange-news", b"!!", queue_id, sys_flag=0x301)
            producer.publish("hello", exchange=news, declare=[news])
            producer.publish("up", exchange=events, routing_key="worker.up", declare=[events])
            producer.publish("no", exchange=events, routing_key="task.sent", declare=[events])
            producer.publish("down", exchange=events, routing_key="worker.down", declare=[events])
            first.drain_events(timeout=DEADLINE_S)
            while len(got) < 4:
                second.drain_events(timeout=DEADLINE_S)
    assert sorted(got) == [
        ("n1", "hello"), ("n2", "hello"), ("workers", "down"), ("workers", "up"),
    ]  # fmt: skip


def test_a_queue_is_counted_purged_and_deleted(embedded: EmbeddedBroker) -> None:
    with connect(embedded) as connection, Admin(embedded.name_servers) as admin:
        channel = connection.channel()
        with pytest.raises(ChannelError, match="no queue 'tasks/eu'"):
            channel.queue_declare("tasks/eu", passive=True)
        queue = Queue("tasks/eu", channel=channel)
        queue.declare()
        assert [topic.name for topic in admin.topics()] == ["tasks%2Feu"]
        for n in range(3):
            Producer(channel).publish(n, routing_key="tasks/eu")
        assert channel.queue_declare("tasks/eu", passive=True).message_count == 3
        assert queue.purge() == 3
        assert channel.queue_declare("tasks/eu", passive=True).message_count == 0


def test_a_broker_that_is_away_and_options_that_are_none_are_told(
    embedded: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    away = Connection(
        "ordermq://127.0.0.1:1", transport_options={"client": {"connect_timeout_ms": 100}}
    )
    with pytest.raises(OperationalError):
        away.ensure_connection(max_retries=1, interval_start=0.01)
    wrong = Connection("ordermq://127.0.0.1:1", transport_options={"consumer": 3})
    with pytest.raises(ConfigError, match="expected a dict of settings"):
        _ = wrong.transport
    with caplog.at_level(logging.DEBUG, "ordermq.kombu"):
        _ = Connection("ordermq://127.0.0.1:1", transport_options={"quees": 3}).transport
    assert "'quees' is not one of ordermq" in caplog.text


def test_the_address_names_the_accounts_keys() -> None:
    transport = Connection("ordermq://key:secret@broker:19876").transport
    assert isinstance(transport, ordermq.contrib.kombu.Transport)
    assert transport.name_servers == "broker:19876"
    assert transport.client_settings == {"access_key": "key", "secret_key": "secret"}
    assert transport.driver_version() == ordermq.__version__
