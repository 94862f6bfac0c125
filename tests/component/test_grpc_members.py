"""Members that speak gRPC, and what a proxy knows of them (docs/grpc.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ordermq import PushConsumer
from tests.component.conftest import eventually
from tests.component.grpc_server import grpc_server_thread
from tests.component.whole_proxy import WholeProxy

QUICK: dict[str, Any] = {"heartbeat_interval_ms": 100, "pull_delay_on_error_ms": 50}


@pytest.fixture
def proxy() -> WholeProxy:
    return WholeProxy()


@pytest.fixture
def endpoint(proxy: WholeProxy) -> Iterator[str]:
    with grpc_server_thread(proxy) as address:
        yield f"grpc://{address}"


def member(endpoint: str, got: list[bytes]) -> PushConsumer:
    consumer = PushConsumer("g", name_servers=endpoint, pop_poll_ms=100, **QUICK)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: got.extend(bytes(each.body) for each in messages))
    return consumer


def test_a_member_that_its_proxy_has_forgotten_tells_its_settings_again(
    proxy: WholeProxy, endpoint: str
) -> None:
    got: list[bytes] = []
    with member(endpoint, got) as consumer:
        proxy.put(b"early")
        eventually(lambda: got == [b"early"], "the first message")
        proxy.clients.clear()  # as after a sleep of minutes
        proxy.put(b"late")
        eventually(lambda: got == [b"early", b"late"], "the second one")
        eventually(lambda: consumer.health().is_ready, "it is ready")
    assert proxy.clients == set()


def test_a_member_outlives_another_one_of_its_id(
    proxy: WholeProxy, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.consumer.push_consumer.new_client_id", lambda *_, **__: "copied")
    got: list[bytes] = []
    with member(endpoint, got):
        with member(endpoint, got):
            assert proxy.clients == {"copied"}
        proxy.put(b"late")
        eventually(lambda: got == [b"late"], "the message")


def test_settings_are_told_once_while_the_proxy_knows_them(
    proxy: WholeProxy, endpoint: str
) -> None:
    got: list[bytes] = []
    with member(endpoint, got):
        proxy.put(b"early")
        eventually(lambda: proxy.heartbeats >= 3, "heartbeats")
        assert proxy.settings == 1
