"""Brokers and topics that are gone when a streaming query starts again, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import LockRefused, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.name_server import NameServer
from tests.component.spark_batches import planned_batch, runs_of

STAYS, GOES = MessageQueue("orders", "b", 0), MessageQueue("orders", "c", 0)
BILLS = MessageQueue("bills", "b", 0)
GROUPS = pytest.mark.parametrize("group", [{}, {"group": "g"}], ids=["plain", "ordered"])
FINISHED = pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "unfinished"])
TIMES = {"route_interval_ms": "50", "forget_broker_after_ms": "300", "read_timeout_ms": "500"}
LOCKS = {"release_in_flight": "afterPause", "release_pause_ms": "1", "lock_wait_ms": "500"}


class Brokers:
    """Two brokers of the topic "orders" under one name server; the second one can go."""

    def __init__(self, folder: Path) -> None:
        self.names = NameServer()
        self._running = {name: self._start(folder, name) for name in ("b", "c")}
        self.name_servers = self.names.address

    def _start(self, folder: Path, name: str) -> EmbeddedBroker:
        config = BrokerConfig(broker_name=name, durability="os")
        broker = EmbeddedBroker(folder / f"{name}.db", config=config).start()
        self.names.register(name, broker, "orders", 1)
        return broker

    def lose_one(self) -> None:
        """Let the second broker go for good."""
        self._running.pop("c").close()
        self.names.forget("c")

    def close(self) -> None:
        for broker in self._running.values():
            broker.close()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    running = Brokers(tmp_path)
    yield running
    running.close()


def send(name_servers: str, *queues: MessageQueue) -> None:
    with Producer("p", name_servers=name_servers) as producer:
        for queue in queues:
            producer.send(Message(queue.topic, b"x"), queue=queue)


def two_batches(
    make: Callable[..., StreamDriver], name_servers: str, *queues: MessageQueue
) -> tuple[StreamOffset, StreamOffset]:
    """Finish one batch of these queues and begin another one; return their ends."""
    driver = make()
    send(name_servers, *queues)
    first = planned_batch(driver, driver.initial())
    send(name_servers, *queues)
    second = planned_batch(driver, first)
    assert [queue for queue, _, _ in driver.begin_batch(first, second)] == sorted(queues)
    driver.close()
    return first, second


@FINISHED
@GROUPS
def test_without_fail_on_data_loss_a_query_starts_again_without_a_broker_that_is_gone(
    brokers, caplog, group, is_finished
):
    always = TIMES | LOCKS | group | {"fail_on_data_loss": "false"}
    with runs_of(brokers.name_servers, **always) as make:
        first, second = two_batches(make, brokers.name_servers, STAYS, GOES)
        brokers.lose_one()
        again = make()
        if not is_finished:
            assert again.begin_batch(first, second) == [(STAYS, 1, 2)]
            assert "orders@c:0: 1 messages of a batch that runs again are left out" in caplog.text
        send(brokers.name_servers, STAYS)
        third = planned_batch(again, second)
        assert again.begin_batch(second, third) == [(STAYS, 2, 3)]


@GROUPS
def test_a_batch_that_runs_again_is_not_given_without_a_broker_that_is_gone(brokers, group):
    with runs_of(brokers.name_servers, **TIMES, **LOCKS, **group) as make:
        first, second = two_batches(make, brokers.name_servers, STAYS, GOES)
        brokers.lose_one()
        with pytest.raises((RouteError, LockRefused), match="no known route has a master"):
            make().begin_batch(first, second)


def test_a_broker_that_comes_back_in_time_is_read_and_locked_again(brokers):
    """While it is in no route nothing of it is read; nor may anybody else hold its queue then."""
    options = TIMES | LOCKS | {"group": "g", "forget_broker_after_ms": "60000"}
    with runs_of(brokers.name_servers, **options) as make:
        _, second = two_batches(make, brokers.name_servers, STAYS, GOES)
        address = brokers._running["c"].address
        brokers.names.forget("c")
        again = make()
        send(brokers.name_servers, STAYS)
        third = planned_batch(again, second)
        assert again.begin_batch(second, third) == [(STAYS, 2, 3)]
        brokers.names.tell("c", address, "orders", 1)
        send(brokers.name_servers, GOES)
        fourth = planned_batch(again, third)
        assert again.begin_batch(third, fourth) == [(GOES, 2, 3)]
        assert again._locks is not None
        assert GOES in again._locks._held


@GROUPS
def test_a_topic_that_was_left_out_and_deleted_ends_no_batch_that_runs_again(tmp_path, group):
    with contextlib.ExitStack() as opened:
        config = BrokerConfig(broker_name="b", durability="os")
        broker = opened.enter_context(EmbeddedBroker(tmp_path / "b.db", config=config))
        admin = opened.enter_context(Admin(name_servers=broker.name_servers))
        admin.create_topic("orders", 1)
        admin.create_topic("bills", 1)
        always = TIMES | LOCKS | group | {"fail_on_data_loss": "false"}
        make = opened.enter_context(runs_of(broker.name_servers, **always))
        first, second = two_batches(
            lambda: make(topic="orders,bills"), broker.name_servers, STAYS, BILLS
        )
        left_out = make(topic="orders")
        assert left_out.begin_batch(first, second) == [(BILLS, 1, 2), (STAYS, 1, 2)]
        left_out.close()
        admin.delete_topic("bills")
        assert make(topic="orders").begin_batch(first, second) == [(STAYS, 1, 2)]
