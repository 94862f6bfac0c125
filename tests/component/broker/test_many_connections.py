"""Ten thousand connections at once, and the memory they take (docs/embedded-broker.md#limits)."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient

log = logging.getLogger(__name__)

WANTED = 10_000
_SPARE = 200  # descriptors of the test itself


@pytest.fixture
def count() -> Iterator[int]:
    """Number of connections that the descriptors of a process allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(WANTED, hard - _SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_ten_thousand_connections_cost_little_and_disturb_nobody(
    tmp_path: Path, count: int
) -> None:
    settings = {"max_connections": WANTED + 10, "max_connections_per_address": WANTED + 10}
    with BrokerProcess(tmp_path / "broker.db", settings) as broker, contextlib.ExitStack() as all_:
        client = all_.enter_context(WireClient(broker.port))
        client.send("orders")
        before = resident_bytes(broker.pid)
        started = time.monotonic()
        for _ in range(count):
            all_.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=10))
        # Accepted in the order in which they came: the last one's answer is the proof for all.
        all_.enter_context(WireClient(broker.port)).round_trip()
        seconds = time.monotonic() - started
        each = (resident_bytes(broker.pid) - before) / count
        assert client.send("orders").code == 0
        assert client.max_offset("orders") == 2
        log.info("%d connections in %.1f s, %d bytes each", count, seconds, each)
        assert each < 10_000
