"""Members that speak gRPC, and what a proxy knows of them (docs/grpc.md)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer, forking
from ordermq.consumer.pop import fetcher, grpc_pop
from ordermq.errors import UsedAfterFork
from tests.component.conftest import eventually
from tests.component.forked import in_child
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


def test_a_topic_without_a_route_is_not_said_to_be_deleted_behind_a_proxy(
    proxy: WholeProxy, endpoint: str
) -> None:
    """The connection to the proxy stands also while the brokers are away."""
    consumer = PushConsumer("g", name_servers=endpoint, route_interval_ms=50, **QUICK)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with consumer:
        eventually(lambda: consumer.health().is_ready, "it is ready")
        proxy.has_route = False
        told = "orders: the proxy has no route of this topic any more: its brokers are away, or"
        eventually(lambda: told in " ".join(consumer.health().reasons), "it says what it knows")
        proxy.has_route = True
        eventually(lambda: consumer.health().is_ready, "it is ready again")


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_member_says_itself_whether_its_group_is_ordered(is_orderly: bool) -> None:
    proxy, got = WholeProxy(is_ordered=None), list[bytes]()
    with grpc_server_thread(proxy) as address:
        consumer = PushConsumer("g", name_servers=f"grpc://{address}", pop_poll_ms=100, **QUICK)
        consumer.subscribe("orders")
        choose = consumer.orderly if is_orderly else consumer.concurrently
        choose(lambda messages, context: got.extend(bytes(each.body) for each in messages))
        proxy.put(b"first")
        with consumer:  # refused where it said nothing, or the opposite
            eventually(lambda: got == [b"first"], "the message")


@pytest.mark.parametrize("is_orderly", [True, False])
def test_nothing_is_consumed_of_a_group_that_is_ordered_in_another_way_now(
    proxy: WholeProxy,
    endpoint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_orderly: bool,
) -> None:
    monkeypatch.setattr(fetcher, "_REFUSED_PAUSE_MS", 100)
    got: list[bytes] = []
    proxy.is_ordered = is_orderly
    consumer = PushConsumer("g", name_servers=endpoint, pop_poll_ms=100, **QUICK)
    consumer.subscribe("orders")
    choose = consumer.orderly if is_orderly else consumer.concurrently
    choose(lambda messages, context: got.extend(bytes(each.body) for each in messages))
    with consumer:
        proxy.put(b"early")
        eventually(lambda: got == [b"early"], "the first message")
        proxy.is_ordered = not is_orderly  # an admin, or a broker that made the group by itself
        proxy.put(b"refused")
        eventually(lambda: not consumer.health().is_ready, "it is not ready")
        assert any("mqadmin updateSubGroup -g g" in each for each in consumer.health().reasons)
        # Nothing more is leased in the wrong way: it would have left its place in the queue.
        proxy.put(b"late")
        told = proxy.settings
        eventually(lambda: proxy.settings >= told + 2, "the proxy is asked again")
        assert got == [b"early"]
        proxy.is_ordered = is_orderly
        eventually(lambda: got == [b"early", b"late"], "what comes once it is as it was")
        eventually(lambda: consumer.health().is_ready, "it is ready")
    (line,) = [each for each in caplog.messages if "not consumed" in each]
    assert "orders@broker-a/0: not consumed from offset 1 to 1" in line


def test_a_proxy_that_answers_no_receive_is_asked_again(
    proxy: WholeProxy,
    endpoint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_pop, "_SHORTEST_POLL_MS", 100)
    proxy.is_ordered, proxy.is_silent = False, True
    got: list[bytes] = []
    consumer = PushConsumer(
        "g", name_servers=endpoint, pop_poll_ms=100, request_timeout_ms=100, **QUICK
    )
    consumer.subscribe("orders")
    consumer.concurrently(
        lambda messages, context: got.extend(bytes(each.body) for each in messages)
    )
    with consumer:
        proxy.put(b"late")
        eventually(lambda: consumer.statistics.as_dict().get("pull_errors"), "a receive failed")
        proxy.is_silent = False
        eventually(lambda: got == [b"late"], "the message")
        assert consumer.health().internal_errors == 0
    assert not [each for each in caplog.messages if "internal error" in each]


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


def test_clients_go_on_beside_their_forks_and_a_child_has_its_own(
    proxy: WholeProxy, endpoint: str
) -> None:
    got: list[bytes] = []
    with Producer("p", name_servers=endpoint) as producer, member(endpoint, got) as consumer:
        producer.send(Message("orders", b"x"), sharding_key="k")
        sockets = set(forking._descriptors)

        def child() -> None:
            assert sockets
            for number in sockets:  # else the parent's answers could be read here
                assert stat.S_ISCHR(os.fstat(number).st_mode)
            assert not consumer.close()
            with pytest.raises(UsedAfterFork, match="PushConsumer g"):
                consumer.health()
            with pytest.raises(UsedAfterFork, match="Producer p"):
                producer.send(Message("orders", b"y"), sharding_key="k")
            own: list[bytes] = []
            with Producer("p", name_servers=endpoint) as mine, member(endpoint, own) as other:
                assert other.client_id != consumer.client_id
                mine.send(Message("orders", b"z"), sharding_key="k")

        for _ in range(3):
            in_child(child)
        assert proxy.clients == {consumer.client_id}  # the producer has told nothing yet
        proxy.put(b"late")
        eventually(lambda: got == [b"late"], "the message")
        producer.send(Message("orders", b"y"), sharding_key="k")
        assert consumer.health().is_ready


def test_two_members_of_one_process_have_ids_of_their_own(proxy: WholeProxy, endpoint: str) -> None:
    got: list[bytes] = []
    with member(endpoint, got) as one, member(endpoint, got) as two:
        assert proxy.clients == {one.client_id, two.client_id}
        assert len(proxy.clients) == 2
