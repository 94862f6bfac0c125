"""kombu's own integration tests of transports, with `ordermq://`; ci/frameworks.sh runs them.

They are in kombu's sdist, as the package `t`.
"""

from __future__ import annotations

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


@pytest.fixture
def connection(name_servers: str) -> Connection:
    return Connection(f"ordermq://{name_servers}/")


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection("ordermq://127.0.0.1:1/", transport_options={"client": QUICK})


@pytest.fixture
def failover_connection(name_servers: str) -> Connection:
    return Connection(
        f"ordermq://127.0.0.1:1;ordermq://{name_servers}",
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
