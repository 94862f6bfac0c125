"""A run that ends with what there is now fails where it cannot know, or read, all of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError, LockRefused, OrderMQError, RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually
from tests.component.name_server import NameServer

WAIT_MS = 400
GROUPS = pytest.mark.parametrize("group", [{}, {"group": "g", "lock_wait_ms": str(WAIT_MS)}])


class Pair:
    """Two brokers with two queues each, of which the second may be away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = NameServer()
        self._brokers: dict[str, EmbeddedBroker] = {}
        self.drivers: list[StreamDriver] = []
        for name in "ab":
            self.start(name)

    def start(self, name: str, port: int = 0, queues: int = 2) -> None:
        config = BrokerConfig(broker_name=name, durability="os")
        self._brokers[name] = EmbeddedBroker(self._folder / name, port=port, config=config).start()
        self._names.register(name, self._brokers[name], "orders", queues)

    def stop(self, name: str) -> int:
        """Stop a broker that stays in the routes, as of one that was killed; return its port."""
        broker = self._brokers.pop(name)
        broker.close()
        return broker.port

    def widen(self) -> None:
        self._names.register("b", self._brokers["b"], "orders", 3)

    def fill(self, count: int, queues: int = 2) -> None:
        with Producer("p", name_servers=self._names.address) as producer:
            for name in self._brokers:
                for number in range(queues):
                    bodies = [Message("orders", b"%d" % n) for n in range(count)]
                    producer.send_batch(bodies, queue=MessageQueue("orders", name, number))

    def run(self, **options: str) -> StreamDriver:
        given = {"name_servers": self._names.address, "route_interval_ms": "50"}
        given |= {} if "queues" in options else {"topic": "orders"}
        given |= {"read_timeout_ms": str(WAIT_MS), "offset_timeout_ms": "300"}
        self.drivers.append(StreamDriver(SourceOptions.of(given | options)))
        return self.drivers[-1]

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        for broker in self._brokers.values():
            broker.close()
        self._names.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with contextlib.closing(Pair(tmp_path)) as running:
        running.fill(3)
        yield running


def stored(offset: StreamOffset | None) -> StreamOffset:
    """The offset as it comes back from a checkpoint."""
    assert offset is not None
    return StreamOffset.of(json.loads(json.dumps(offset.to_json())))


def rows(start: StreamOffset, end: StreamOffset) -> int:
    return sum(end.queues.values()) - sum(start.queues.values())


def read_all(driver: StreamDriver) -> StreamOffset:
    """Read what there is in a first batch; return its end."""
    start = driver.initial()
    end = driver.next_end(start, None)
    driver.begin_batch(start, stored(end))
    assert driver.next_end(stored(end), None) is None
    driver.close()
    return stored(end)


@GROUPS
def test_a_run_fails_while_a_broker_does_not_tell_what_it_has(pair, group):
    end = read_all(pair.run(**group))
    pair.fill(5)
    port = pair.stop("b")
    with pytest.raises(RequestTimeout, match=r"read_timeout_ms=400.*start the query.*broker='b'"):
        pair.run(**group).freeze_end()
    pair.start("b", port)
    again = pair.run(**group)
    again.freeze_end()
    assert rows(end, stored(again.next_end(end, None))) == 20


def test_a_run_waits_for_a_broker_that_comes_back(pair, monkeypatch):
    end = read_all(pair.run())
    pair.fill(5)
    port = pair.stop("b")
    driver = pair.run(read_timeout_ms="60000")
    ask = driver._latest.get_now
    asked: list[int] = []

    def counted() -> dict[MessageQueue, int]:
        asked.append(1)
        if len(asked) == 3:
            pair.start("b", port)
        return ask()

    monkeypatch.setattr(driver._latest, "get_now", counted)
    driver.freeze_end()
    assert rows(end, stored(driver.next_end(end, None))) == 20


def test_a_run_fails_at_once_where_a_broker_refuses_to_tell(pair, monkeypatch):
    driver = pair.run(read_timeout_ms="60000")
    refusal = BrokerError("no permission", response_code=16)
    ends_at = driver._latest._ends_at

    async def ends(topic: str, broker: str, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        if broker == "b":
            raise refusal
        return await ends_at(topic, broker, queues)

    monkeypatch.setattr(driver._latest, "_ends_at", ends)
    with pytest.raises(BrokerError, match="no permission"):
        driver.freeze_end()


@GROUPS
def test_a_run_whose_broker_dies_between_two_batches_does_not_end_as_finished(pair, group):
    end = read_all(pair.run(**group))
    pair.fill(5)
    driver = pair.run(**group)
    driver.freeze_end()
    half = stored(driver.next_end(end, 4))
    driver.begin_batch(end, half)
    pair.stop("b")
    with pytest.raises(OrderMQError, match="broker='b'"):
        driver.next_end(half, None)


def test_a_run_fails_where_another_member_holds_a_new_queue(pair):
    group = {"group": "g", "lock_wait_ms": str(WAIT_MS)}
    end = read_all(pair.run(**group))
    pair.widen()
    holder = pair.run(group="g", queues="orders@b:2", lock_wait_ms="60000")
    eventually(lambda: bool(holder.initial().queues), "the lock of the new queue")
    driver = pair.run(**group)
    driver.freeze_end()
    with pytest.raises(LockRefused, match=r"orders.*queue_id=2"):
        driver.next_end(end, None)
