"""A broker on a clock that the test moves, and clients of its wire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from tests.component.broker.wire_client import WireClient

Connect = Callable[..., WireClient]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig()


@pytest.fixture
def broker(
    tmp_path: Path, clock: ManualClock, broker_config: BrokerConfig
) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker.db", config=broker_config, clock=clock) as running:
        yield running


@pytest.fixture
def stop_writing(broker: EmbeddedBroker) -> Callable[[], None]:
    """Has the broker's store take no more writes, as when it closes; connections stay."""
    server, loop = broker._server, broker._loop
    assert server is not None
    assert loop is not None
    stopped = threading.Event()

    def stop_on_the_loop() -> None:
        server._context.store.stop_writing()
        stopped.set()

    def stop() -> None:
        loop.call_soon_threadsafe(stop_on_the_loop)
        assert stopped.wait(20)

    return stop


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Iterator[Connect]:
    """Makes clients; they are closed after the test, before the broker."""
    made: list[WireClient] = []

    def make(name: str = "client-1", port: int | None = None) -> WireClient:
        client = WireClient(port or broker.port, name)
        made.append(client)
        client.round_trip()  # the broker's timers run from here on
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect) -> WireClient:
    return connect()
