"""Routes from a proxy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ordermq import Message, Producer
from ordermq.client import proxy as proxy_module
from ordermq.client.session import ClientSession, SessionEvents
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, RouteError
from ordermq.grpc.messages import (
    Address,
    Broker,
    Code,
    Endpoints,
    Permission,
    QueryRouteRequest,
    QueryRouteResponse,
    Queue,
    Status,
)
from ordermq.model.message_queue import MessageQueue
from tests.component.conftest import eventually
from tests.component.grpc_server import Asked, Said, grpc_server_thread

DAY_MS = 24 * 3_600_000
CONFIG = RemotingConfig(route_interval_ms=DAY_MS, heartbeat_interval_ms=DAY_MS)


class Proxy:
    """A proxy that answers routes, with its own endpoint for every broker.

    Attributes: cold: answers to the next requests instead; None: no answer.
    """

    def __init__(self, *brokers: str, cold: Sequence[Said | None] = ()) -> None:
        self.brokers = brokers
        self.asked: list[str] = []
        self.cold = list(cold)

    def __call__(self, asked: Asked) -> Said | None:
        request = QueryRouteRequest.from_bytes(asked.message)
        assert request.topic is not None
        assert request.endpoints is not None
        self.asked.append(request.topic.name)
        if self.cold:
            return self.cold.pop(0)
        if request.topic.name != "orders":
            status = Status(code=Code.TOPIC_NOT_FOUND, message="no")
            return Said((QueryRouteResponse(status=status).to_bytes(),))
        queues = [
            Queue(
                id=number,
                permission=Permission.READ_WRITE if number < 2 else Permission.READ,
                broker=Broker(
                    name=name,
                    endpoints=Endpoints(
                        scheme=1,
                        addresses=[
                            Address(host="10.255.0.1", port=1),
                            *request.endpoints.addresses,
                        ],
                    ),
                ),
            )
            for name in self.brokers
            for number in range(3)
        ]
        answer = QueryRouteResponse(status=Status(code=Code.OK), message_queues=queues)
        return Said((answer.to_bytes(),))


def test_a_route_has_the_queues_of_each_broker_at_the_endpoint_that_answered() -> None:
    with grpc_server_thread(Proxy("a", "b")) as address:
        session = ClientSession(f"grpc://{address}", CONFIG)
        try:
            assert session.call(session.queues("orders")) == [
                MessageQueue("orders", name, number) for name in "ab" for number in range(3)
            ]
            route = session.routes.known("orders")
            assert route is not None
            assert [each.write_queue_nums for each in route.queues] == [2, 2]
            assert session.routes.master_of("a") == session.routes.master_of("b") == address
            assert session.call(session.routes.get("nothing")) is None
        finally:
            session.close()


@pytest.mark.parametrize("errors", [0, 1])
def test_a_broker_that_left_the_routes_is_looked_for_until_it_is_back(
    errors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    left, look = [RuntimeError("broken for a test")] * errors, ClientSession._look_for_brokers

    async def broken(session: ClientSession) -> None:
        if left:
            raise left.pop()
        await look(session)

    monkeypatch.setattr(ClientSession, "_look_for_brokers", broken)
    proxy = Proxy("a", "b")
    with grpc_server_thread(proxy) as address:
        session = ClientSession(
            f"grpc://{address}",
            CONFIG,
            events=SessionEvents(
                on_broker_back=lambda: None, on_internal_error=lambda: counted.append(1)
            ),
        )
        try:
            session.call(session.routes.get("orders"))
            session.start()
            proxy.brokers = ("a",)
            session.call(session.routes.refresh("orders"))
            assert session.routes.is_away("b")
            proxy.brokers = ("a", "b")
            eventually(lambda: not session.routes.is_away("b"), "it is back")
            assert len(counted) == errors
        finally:
            session.close()


QUICK = RemotingConfig(
    route_interval_ms=DAY_MS, heartbeat_interval_ms=DAY_MS, request_timeout_ms=100
)


def refusal(code: int) -> Said:
    """Return the answer of a proxy that gives no route."""
    return Said((QueryRouteResponse(status=Status(code=code, message="no")).to_bytes(),))


@pytest.mark.parametrize(
    "said",
    [None, Said(status=14, reason="it starts"), refusal(Code.PROXY_TIMEOUT), refusal(50_000)],
)
def test_a_proxy_that_is_just_starting_is_asked_again(
    said: Said | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "_COLD_PROXY_PAUSE_MS", 1)
    proxy = Proxy("a", cold=[said, said])
    with grpc_server_thread(proxy) as address:
        session = ClientSession(f"grpc://{address}", QUICK)
        try:
            assert session.call(session.queues("orders"))
        finally:
            session.close()
    assert len(proxy.asked) == 3


def test_the_first_send_waits_for_a_proxy_that_is_just_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_module, "_COLD_PROXY_PAUSE_MS", 1)
    proxy = Proxy("a", cold=[Said(status=14, reason="it starts")])
    with (
        grpc_server_thread(proxy) as address,
        Producer("shop", name_servers=f"grpc://{address}") as producer,
        pytest.raises(RouteError, match="topic not found"),
    ):
        producer.send(Message("nothing", b"a"), sharding_key="k")
    assert proxy.asked == ["nothing", "nothing"]


def test_a_proxy_that_stays_cold_is_named_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_module, "_COLD_PROXY_MS", 0)
    with grpc_server_thread(Proxy("a", cold=[None])) as address:
        session = ClientSession(f"grpc://{address}", QUICK)
        try:
            with pytest.raises(RouteError, match=rf"no proxy answers \({address}\): .*orders"):
                session.call(session.routes.get("orders"))
        finally:
            session.close()


def test_a_refusal_is_no_reason_to_wait() -> None:
    proxy = Proxy("a", cold=[refusal(Code.UNAUTHORIZED)])
    with grpc_server_thread(proxy) as address:
        session = ClientSession(f"grpc://{address}", QUICK)
        try:
            with pytest.raises(BrokerError, match="no route"):
                session.call(session.routes.get("orders"))
        finally:
            session.close()
    assert proxy.asked == ["orders"]


def test_a_proxy_that_has_answered_before_is_asked_once() -> None:
    proxy = Proxy("a")
    with grpc_server_thread(proxy) as address:
        session = ClientSession(f"grpc://{address}", QUICK)
        try:
            session.call(session.routes.get("orders"))
            proxy.cold = [Said(status=14, reason="it ends")]
            with pytest.raises(RouteError, match="no proxy answers"):
                session.call(session.routes.refresh("orders"))
        finally:
            session.close()
    assert proxy.asked == ["orders", "orders"]
