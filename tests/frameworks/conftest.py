"""The broker that the frameworks' tests run on; ci/frameworks.sh chooses it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ordermq.broker import EmbeddedBroker


@pytest.fixture(scope="session", autouse=True)
def name_servers() -> Iterator[str]:
    """Those of RocketMQ that the environment names, or of an embedded broker."""
    if given := os.environ.get("ORDERMQ_NAME_SERVERS"):
        yield given
        return
    with EmbeddedBroker() as broker, pytest.MonkeyPatch.context() as patched:
        patched.setenv("ORDERMQ_NAME_SERVERS", broker.name_servers)
        yield broker.name_servers
