"""Clients and brokers of a process that has no file descriptor or thread left, and then has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ordermq import Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import NoThread
from tests.thread_limit import ThreadLimit

MAKE = {
    "Producer": "Producer('p', name_servers=servers, send_timeout_ms=timeout_ms)",
    "PushConsumer": "PushConsumer('g', name_servers=servers)",
    "LitePullConsumer": "LitePullConsumer('g', name_servers=servers)",
    "PullConsumer": "PullConsumer('g', name_servers=servers)",
    "EmbeddedBroker": "EmbeddedBroker()",
}
PROGRAM = """
    import os, resource, sys
    from ordermq import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
    from ordermq.broker import EmbeddedBroker
    from ordermq.errors import OrderMQError

    servers = sys.argv[1]

    def attempt(timeout_ms):
        client = {make}
        if hasattr(client, "subscribe"):
            client.subscribe("orders")
        if isinstance(client, PushConsumer):
            client.orderly(lambda messages, context: None)
        try:
            client.start()
            if isinstance(client, Producer):
                client.send(Message("orders", b"x"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            client.close()

    used = len(os.listdir("/proc/self/fd"))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for left in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, most))
        try:
            attempt(1_000)
        except OrderMQError as error:
            if "ulimit -n" not in str(error):
                raise
            print("told")
    attempt(30_000)
    print("works")
"""


@pytest.mark.parametrize("kind", MAKE)
def test_a_client_without_descriptors_says_so_and_a_later_one_works(
    kind: str, broker: EmbeddedBroker
) -> None:
    program = dedent(PROGRAM).format(make=MAKE[kind])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, broker.name_servers],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    told = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert told[-1] == "works"
    assert "told" in told
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_without_threads_says_so_and_releases_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = ThreadLimit(monkeypatch, 0)
    path = tmp_path / "broker.db"
    for limit in range(2):  # its own thread, and the one that writes
        system.limit = limit
        with pytest.raises(NoThread, match="ulimit -u"):
            EmbeddedBroker(path).start()
    system.limit = 100
    with EmbeddedBroker(path) as broker:
        assert broker.health().is_ready


def test_a_client_without_a_thread_says_so_and_a_later_one_works(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"name_servers": broker.name_servers, "client_ip": "127.0.0.1"}
    system = ThreadLimit(monkeypatch, 0)
    with pytest.raises(NoThread, match="ulimit -u"):
        Producer("p", **settings).start()
    system.limit = 100
    with Producer("p", **settings):
        pass
