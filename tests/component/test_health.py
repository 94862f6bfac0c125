"""`health()` for probes (docs/health.md): what it says of clients and broker, well and unwell."""

from __future__ import annotations

import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.group_commit import _GroupChanges
from ordermq.clock import ManualClock
from ordermq.health import BrokerHealth, ClientHealth, ConsumerHealth, Health
from tests.component.conftest import Seen, eventually
from tests.component.docs_examples import examples

PAGE = Path(__file__).parents[2] / "docs" / "health.md"


def plain(health: Health) -> dict[str, Any]:
    """A probe reader's view."""
    found: dict[str, Any] = json.loads(json.dumps(health.as_dict()))
    return found


def test_a_consumer_that_works(
    producer: Producer,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    broker: EmbeddedBroker,
) -> None:
    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = make_consumer(seen.take, heartbeat_interval_ms=50, route_interval_ms=50)
    assert consumer.health().reasons == (
        "the consumer is not running: it was closed, or not started",
    )
    consumer.start()
    seen.wait_for_count(1)
    eventually(lambda: len(consumer.health().queues) > 8, "it holds all queues")
    eventually(lambda: consumer.health().is_ready, f"it is ready: {consumer.health()}")
    health = consumer.health()
    assert isinstance(health, ConsumerHealth)
    assert (health.is_alive, health.reasons, health.loops) == (True, (), ())
    assert health.connected == (broker.address,)
    assert health.not_connected == ()
    assert f"{consumer.assigned_queues()[0]}" in health.queues
    assert health.lease_left_ms is not None
    assert 0 < health.lease_left_ms <= 7_500, "half of the broker's 15 s"
    for age_ms in (health.heartbeat_age_ms, health.route_age_ms, health.poll_age_ms):
        assert age_ms is not None
        assert 0 <= age_ms < 20_000
    assert plain(health)["queues"] == list(health.queues)
    consumer.close()
    assert not consumer.health().is_alive


def test_a_blocked_queue_is_shown_and_makes_nothing_unready(
    producer: Producer, make_consumer: Callable[..., PushConsumer]
) -> None:
    def fail(messages: Any, context: Any) -> None:
        raise ValueError("poison")

    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = make_consumer(fail)
    consumer.start()
    eventually(lambda: consumer.health().oldest_blocked is not None, "the queue is blocked")
    health = consumer.health()
    assert health.oldest_blocked is not None
    assert health.oldest_blocked.startswith("orders@b/")
    assert health.blocked_ms is not None
    eventually(lambda: consumer.health().is_ready, "and the consumer ready")


def test_without_any_broker_a_member_is_alive_and_not_ready(tmp_path: Path, seen: Seen) -> None:
    with EmbeddedBroker(tmp_path / "b.db") as broker:
        Producer("p", name_servers=broker.name_servers).close()
        consumer = PushConsumer("g", name_servers=broker.name_servers, reconnect_delay_ms=50)
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        consumer.start()
        eventually(lambda: consumer.health().is_ready, "ready")
    eventually(lambda: not consumer.health().is_ready, "no broker is connected")
    health = consumer.health()
    assert health.is_alive, "a restart would not help"
    assert "no broker is connected" in " ".join(health.reasons)
    assert health.connected == ()
    assert len(health.not_connected) == 1
    consumer.close(0.0)


def test_heartbeats_and_polls_that_stay_away_are_reasons(
    broker: EmbeddedBroker, producer: Producer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = LitePullConsumer("g", name_servers=broker.name_servers, clock=clock)
    consumer.assign(producer.queues("orders"))
    with consumer:
        eventually(lambda: consumer.health().is_ready, "ready")
        member = consumer._member
        assert member is not None
        monkeypatch.setattr(
            member.parts.fetcher, "oldest_poll", lambda now_ms: (90_000, "orders@b/0")
        )
        monkeypatch.setattr(member.client.heartbeats, "acknowledged_ms", clock.now_ms() - 100_000)
        assert consumer.health().reasons == (
            "no broker has acknowledged a heartbeat for 100 s",
            "orders@b/0 has not been polled for 90 s",
        )
        assert consumer.health().is_alive


def test_pulls_that_the_member_makes_again_before_they_are_due_are_not_missed(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    # The broker holds the pulls of queues without messages; each change of the route ends them.
    clock = ManualClock()
    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = LitePullConsumer("g", name_servers=broker.name_servers, clock=clock)
    queues = producer.queues("orders")
    consumer.assign(queues)
    with consumer:
        member = consumer._member
        assert member is not None
        fetcher = member.parts.fetcher

        async def doubt() -> None:
            fetcher.doubt("orders")

        for _ in range(4):
            eventually(lambda: all(map(fetcher.is_pulling, queues)), "all are pulled")
            clock.advance(20_000)  # of the 30 s that a pull may take
            assert not [each for each in consumer.health().reasons if "polled" in each]
            member.client.runtime.call(doubt())
        eventually(lambda: all(map(fetcher.is_pulling, queues)), "all are pulled")


def test_a_loop_that_fails_is_a_reason_and_after_a_minute_a_reason_to_restart(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    client = Producer("p2", name_servers=broker.name_servers, clock=clock)
    with client:
        session = client._client
        assert session is not None

        async def broken() -> None:
            raise RuntimeError("a defect")

        async def start() -> None:
            session.supervisor.start("defect", broken)

        session.call(start())
        eventually(lambda: bool(client.health().loops), "the loop has failed")
        health = client.health()
        assert isinstance(health, ClientHealth)
        assert (health.is_alive, health.is_ready) == (True, False)
        assert health.reasons == (
            "loop 'defect' has been failing for 0.0 s: RuntimeError: a defect",
        )
        clock.advance(60_000)
        assert not client.health().is_alive
        assert plain(client.health())["loops"][0]["name"] == "defect"
        session.call(session.supervisor.stop())


def test_an_io_thread_that_hangs_is_told_in_time(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.health.ANSWER_TIMEOUT_S", 0.2)
    assert producer._client is not None
    blocked = threading.Event()
    producer._client.runtime.post(blocked.wait)
    health = producer.health()
    blocked.set()
    assert not health.is_alive
    assert "the I/O thread has not answered" in health.reasons[0]
    eventually(lambda: producer.health().is_alive, "it answers again")


def test_an_embedded_broker_that_cannot_write(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = broker.health()
    assert isinstance(health, BrokerHealth)
    assert (health.is_alive, health.is_ready, health.reasons) == (True, True, ())
    assert health.address == broker.address
    plain(health)

    def full(self: _GroupChanges, *arguments: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(_GroupChanges, "_append", full)
        with pytest.raises(Exception, match="disk is full"):
            producer.send(Message("orders", b"x"), sharding_key="k")
        health = broker.health()
        assert (health.is_alive, health.is_ready) == (True, False)
        assert health.failed_commits > 0
    producer.resolve("orders", "k")
    producer.send(Message("orders", b"x"), sharding_key="k")
    assert broker.health().is_ready
    broker.close()
    assert broker.health().reasons == ("the broker is not running: it was closed, or not started",)


def test_the_probe_of_the_page(
    producer: Producer, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    _, example = examples(PAGE.read_text())
    assert len([line for line in example.splitlines() if line]) <= 16
    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = make_consumer(seen.take)
    names: dict[str, Any] = {"consumer": consumer}
    exec(compile(example.replace("8080", "0"), str(PAGE), "exec"), names)
    server: HTTPServer = names["server"]

    def ask(path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}") as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:  # its connection
                return error.code, json.load(error)

    try:
        assert ask("/live")[0] == ask("/ready")[0] == 503
        consumer.start()
        eventually(lambda: ask("/ready")[0] == 200, "ready")
        status, found = ask("/live")
        assert (status, found["is_alive"]) == (200, True)
    finally:
        server.shutdown()
        server.server_close()
