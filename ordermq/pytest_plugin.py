"""pytest fixtures for applications: an embedded broker in memory, and what tests do with it
(docs/testing.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pytest

# What a fixture needs it imports itself: pytest loads plugins for every run, also where no test
# asks for one of these.
if TYPE_CHECKING:
    from ordermq import MessageView, Producer
    from ordermq.broker import EmbeddedBroker
    from ordermq.config import BrokerConfig


class Read(Protocol):
    """Type of `ordermq_read`."""

    def __call__(self, topic: str, count: int, timeout_s: float = 10.0) -> list[MessageView]: ...


class WaitUntilConsumed(Protocol):
    """Type of `ordermq_wait_until_consumed`."""

    def __call__(self, group: str, topic: str, timeout_s: float = 10.0) -> None: ...


@pytest.fixture
def ordermq_broker_config() -> BrokerConfig:
    """Settings of `ordermq_broker`: define a fixture of this name to have others."""
    from ordermq.config import BrokerConfig

    return BrokerConfig()


@pytest.fixture
def ordermq_broker(ordermq_broker_config: BrokerConfig) -> Iterator[EmbeddedBroker]:
    """Run an `EmbeddedBroker` for one test; pass `ordermq_broker.name_servers` to any client."""
    from ordermq.broker import EmbeddedBroker

    with EmbeddedBroker(config=ordermq_broker_config) as broker:
        yield broker


@pytest.fixture
def ordermq_producer(ordermq_broker: EmbeddedBroker) -> Iterator[Producer]:
    """Run a `Producer` at `ordermq_broker` for one test."""
    from ordermq import Producer

    with Producer("pytest", name_servers=ordermq_broker.name_servers) as producer:
        yield producer


@pytest.fixture
def ordermq_read(ordermq_broker: EmbeddedBroker) -> Read:
    """Return `ordermq.testing.read` at `ordermq_broker`."""
    from ordermq.testing import read

    return partial(read, ordermq_broker.name_servers)


@pytest.fixture
def ordermq_wait_until_consumed(ordermq_broker: EmbeddedBroker) -> WaitUntilConsumed:
    """Return `ordermq.testing.wait_until_consumed` at `ordermq_broker`."""
    from ordermq.testing import wait_until_consumed

    return partial(wait_until_consumed, ordermq_broker.name_servers)
