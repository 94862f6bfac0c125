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
from ordermq.errors import BrokerError, DataLoss, LockRefused, OrderMQError, RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually
from tests.component.name_server import NameServer

WAIT_MS = 400
# As Spark 4.2 tells it, and as the first answer of a run on a Spark that does not.
ENDS = pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
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

    def withdraw(self, name: str) -> None:
        """Let a broker be in no route any more, as some time after it was stopped."""
        self._names.forget(name)

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


def planned(driver: StreamDriver, start: StreamOffset, *, is_told: bool) -> StreamOffset | None:
    """Plan the batch with which a run may end."""
    if is_told:
        driver.freeze_end()
        return driver.next_end(start, None)
    with driver.last_answer():
        return driver.next_end(start, None)


@ENDS
@GROUPS
def test_a_run_fails_while_a_broker_does_not_tell_what_it_has(pair, group, is_told):
    end = read_all(pair.run(**group))
    pair.fill(5)
    port = pair.stop("b")
    with pytest.raises(RequestTimeout, match=r"read_timeout_ms=400.*start the query.*broker='b'"):
        planned(pair.run(**group), end, is_told=is_told)
    pair.start("b", port)
    assert rows(end, stored(planned(pair.run(**group), end, is_told=is_told))) == 20


@ENDS
def test_a_run_fails_where_a_broker_is_in_no_route_any_more(pair, is_told):
    end = read_all(pair.run())
    pair.fill(5)
    pair.withdraw("b")
    driver = pair.run()
    with pytest.raises(DataLoss, match="broker b is in no route of the topic any more"):
        planned(driver, end, is_told=is_told)
    if not is_told:  # a batch behind the first one is of a run that goes on
        assert rows(end, stored(driver.next_end(end, None))) == 10


@ENDS
def test_a_run_reads_fewer_messages_than_min_rows(pair, is_told):
    end = read_all(pair.run())
    pair.fill(5)
    driver = pair.run(min_rows="1000")
    assert is_told or driver.next_end(end, None) is None
    assert rows(end, stored(planned(driver, end, is_told=is_told))) == 20


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


@ENDS
def test_a_run_fails_where_another_member_holds_a_new_queue(pair, is_told):
    group = {"group": "g", "lock_wait_ms": str(WAIT_MS)}
    end = read_all(pair.run(**group))
    pair.widen()
    holder = pair.run(group="g", queues="orders@b:2", lock_wait_ms="60000")
    eventually(lambda: bool(holder.initial().queues), "the lock of the new queue")
    with pytest.raises(LockRefused, match=r"orders.*queue_id=2"):
        planned(pair.run(**group), end, is_told=is_told)
