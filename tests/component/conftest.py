"""A consumer group on an embedded broker, and what its listeners saw."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer, core
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.events import History
from tests.component.certificates import Authority, Certificate
from tests.waiting import eventually as eventually

DEADLINE_S = 40.0


class Seen:
    """Collects what listeners of one group got; waits for conditions on it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.deliveries: list[tuple[int, int, str | None, bytes]] = []

    def take(self, messages: Any, context: Any) -> None:
        """A listener."""
        queue_id = context.message_queue.queue_id
        self.add([(queue_id, m.queue_offset, m.sharding_key, bytes(m.body)) for m in messages])

    def add(self, deliveries: list[tuple[int, int, str | None, bytes]]) -> None:
        with self._changed:
            self.deliveries += deliveries
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[list[Any]], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.deliveries), DEADLINE_S):
                pytest.fail(f"not within {DEADLINE_S} s: {what}; saw {len(self.deliveries)}")

    def wait_for_count(self, count: int) -> None:
        self.wait_for(lambda seen: len(seen) >= count, f"{count} deliveries")

    def bodies_of(self, key: str) -> list[bytes]:
        with self._changed:
            return [body for _, _, k, body in self.deliveries if k == key]

    def duplicates(self) -> int:
        with self._changed:
            places = [(queue, offset) for queue, offset, _, _ in self.deliveries]
        return len(places) - len(set(places))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that clients and brokers of the tests of TLS trust."""
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="session")
def server_certificate(authority: Authority) -> Certificate:
    return authority.sign("server")


@pytest.fixture(params=["engine", "asyncio"])
def has_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run the test as the core is, and again with all bytes on the I/O thread."""
    if request.param == "asyncio":
        monkeypatch.setattr(core, "HAS_ENGINE", False)
    return core.HAS_ENGINE


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background of a shell that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=15_000)


@pytest.fixture
def broker_history(tmp_path: Path) -> Path:
    """The broker's history, for the audit."""
    return tmp_path / "broker.jsonl"


@pytest.fixture
def broker(
    tmp_path: Path, broker_config: BrokerConfig, broker_history: Path
) -> Iterator[EmbeddedBroker]:
    with (
        contextlib.closing(History(broker_history, "broker")) as history,
        EmbeddedBroker(tmp_path / "broker.db", config=broker_config, history=history) as running,
    ):
        yield running


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=8) as running:
        yield running


@pytest.fixture
def make_consumer(broker: EmbeddedBroker) -> Iterator[Callable[..., PushConsumer]]:
    """Consumers of group "g" on topic "orders", started by the test, closed after it."""
    made: list[PushConsumer] = []

    def make(
        listener: Any, *, tags: str = "*", concurrent: bool = False, **settings: Any
    ) -> PushConsumer:
        settings = {"consume_from_where": "first_offset", "commit_interval_ms": 50} | settings
        consumer = PushConsumer("g", name_servers=broker.name_servers, **settings)
        consumer.subscribe("orders", tags)
        (consumer.concurrently if concurrent else consumer.orderly)(listener)
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close(10.0)


def numbered(count: int, keys: int = 10, start: int = 0) -> list[tuple[Message, str]]:
    """Events of `keys` keys, numbered through within each."""
    return [
        (Message("orders", str(number).encode()), f"k{number % keys}")
        for number in range(start, start + count)
    ]


def assert_in_order(seen: Seen, count: int, keys: int = 10) -> None:
    """Every key's numbers arrived, each once, ascending."""
    for key in range(keys):
        got = [int(body) for body in seen.bodies_of(f"k{key}")]
        assert got == list(range(key, count, keys)), f"key k{key}: {got[:20]}..."
