"""kombu's own integration tests of transports, with `ordermq://`; ci/frameworks.sh runs them.

They are in kombu's sdist, as the package `t`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kombu import Connection
from t.integration.common import (
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BaseTimeToLive,
    BasicFunctionality,
)

import ordermq.contrib.kombu  # noqa: F401 - it registers ordermq://
from ordermq.broker import EmbeddedBroker


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def connection(embedded: EmbeddedBroker) -> Connection:
    return Connection(f"ordermq://{embedded.name_servers}/")


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection("ordermq://127.0.0.1:1/", transport_options={"client": QUICK})


@pytest.fixture
def failover_connection(embedded: EmbeddedBroker) -> Connection:
    return Connection(
        f"ordermq://127.0.0.1:1;ordermq://{embedded.name_servers}",
        connect_timeout=10,
        transport_options={"client": QUICK},
    )


QUICK = {"connect_timeout_ms": 200}


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestFailover(BaseFailover):
    pass


class TestMessage(BaseMessage):
    pass
