"""Routes from a proxy."""

from __future__ import annotations

import pytest

from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
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
    """A proxy that answers routes, with its own endpoint for every broker."""

    def __init__(self, *brokers: str) -> None:
        self.brokers = brokers
        self.asked: list[str] = []

    def __call__(self, asked: Asked) -> Said:
        request = QueryRouteRequest.from_bytes(asked.message)
        assert request.topic is not None
        assert request.endpoints is not None
        self.asked.append(request.topic.name)
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
            on_broker_back=lambda: None,
            on_internal_error=lambda: counted.append(1),
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
