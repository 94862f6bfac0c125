"""Which queues a producer and a group see (docs/internals/protocol.md#name-server,
docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio

import pytest

from ordermq.client.routes import Routes, are_brokers_away, publish_queues, subscribe_queues
from ordermq.errors import RequestTimeout, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

MASTER = BrokerData("b", {0: "127.0.0.1:1", 1: "127.0.0.1:2"})
HEADLESS = BrokerData("a", {1: "127.0.0.1:3"})


def queues(*names: str) -> list[MessageQueue]:
    return [MessageQueue("T", name.split("/")[0], int(name.split("/")[1])) for name in names]


def test_a_producer_sees_writable_queues_with_a_live_master_sorted() -> None:
    route = TopicRoute(
        (MASTER, HEADLESS, BrokerData("c", {0: "127.0.0.1:4"})),
        (
            QueueData("c", 4, 2, 2),
            QueueData("b", 1, 2, 6),
            QueueData("a", 2, 2, 6),
            QueueData("b", 1, 1, 4),
        ),
    )
    assert publish_queues("T", route) == queues("b/0", "b/1", "c/0", "c/1")


def test_a_group_shares_readable_queues_even_without_a_master() -> None:
    route = TopicRoute(
        (MASTER, HEADLESS),
        (QueueData("b", 2, 9, 4), QueueData("a", 1, 9, 6), QueueData("b", 5, 5, 2)),
    )
    assert subscribe_queues("T", route) == queues("a/0", "b/0", "b/1")


def test_an_order_configuration_alone_defines_the_queues() -> None:
    # A broker that is away must not move keys: sends to it fail instead
    # (docs/internals/semantics.md#ordered-sends).
    route = TopicRoute((MASTER,), (QueueData("b", 8, 8),), "b:2;gone:1")
    assert publish_queues("T", route) == queues("b/0", "b/1", "gone/0")


@pytest.mark.parametrize(
    ("now", "are_away"),
    [
        (("a/0", "a/1"), True),
        (("b/0",), True),
        (("a/0", "a/1", "b/0"), False),  # nothing is
        (("a/0", "b/0"), False),  # a has fewer
        (("a/0",), False),
        (("a/0", "a/1", "c/0"), False),  # c is another one
        (("a/0", "a/1", "b/0", "b/1"), False),  # b has more
    ],
)
def test_brokers_are_away_where_all_queues_of_some_are_missing_and_no_other(
    now: tuple[str, ...], are_away: bool
) -> None:
    assert are_brokers_away(queues(*now), queues("a/0", "a/1", "b/0")) is are_away


class FakeNameServer:
    def __init__(self) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.asked: list[str] = []
        self.is_away = False

    async def topic_route(self, topic: str) -> TopicRoute | None:
        self.asked.append(topic)
        if self.is_away:
            raise RequestTimeout("away")
        return self.routes.get(topic)


def route_of(count: int) -> TopicRoute:
    return TopicRoute((MASTER,), (QueueData("b", count, count),))


def test_a_known_route_is_requested_once_and_an_unknown_one_each_time() -> None:
    async def work() -> None:
        server, changes = FakeNameServer(), list[str]()
        routes = Routes(server, changes.append)  # type: ignore[arg-type]
        assert await routes.get("T") is None
        server.routes["T"] = route_of(4)
        assert await routes.get("T") == route_of(4)
        assert await routes.get("T") is await routes.get("T")
        assert server.asked == ["T", "T"]
        assert changes == [], "the first route is no change"

    asyncio.run(work())


def test_a_refresh_reports_changes_only_and_keeps_an_unchanged_route() -> None:
    async def work() -> None:
        server, changes = FakeNameServer(), list[str]()
        server.routes = {"T": route_of(4), "U": route_of(1)}
        routes = Routes(server, changes.append)  # type: ignore[arg-type]
        first = await routes.get("T")
        await routes.get("U")
        server.routes["T"] = route_of(4)
        await routes.refresh_all()
        assert await routes.get("T") is first
        server.routes["T"] = route_of(8)
        await routes.refresh_all()
        assert changes == ["T"]
        assert await routes.get("T") == route_of(8)

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", ":10911", "host", "host:0", "host:99999", "[::1:1", "null:x"])
def test_a_malformed_address_is_skipped_with_one_warning_a_route(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        server, changes = FakeNameServer(), list[str]()
        bad, slave = BrokerData("bad", {0: text}), BrokerData("b", {0: "127.0.0.1:1", 1: text})
        counts = (QueueData("b", 2, 2), QueueData("bad", 2, 2))
        server.routes["T"] = TopicRoute((slave, bad), counts)
        server.routes["U"] = TopicRoute((bad,), counts[1:])
        routes = Routes(server, changes.append)  # type: ignore[arg-type]
        found = await routes.get("T")
        await routes.get("U")
        for _ in range(3):
            await routes.refresh_all()
        assert found is not None
        assert publish_queues("T", found) == queues("b/0", "b/1")
        assert routes.masters() == ["127.0.0.1:1"]
        assert routes.slaves() == []
        assert changes == [], "a skipped address is no change of the route"
        # Another route of the topic is another warning; one that is well has none.
        server.routes["T"] = TopicRoute((MASTER, bad), counts)
        await routes.refresh_all()
        server.routes["T"] = TopicRoute((MASTER,), counts)
        await routes.refresh_all()

    asyncio.run(work())
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [each.partition(":")[0] for each in warned] == ["topic T", "topic U", "topic T"]
    assert f"b (1) {text!r}, bad (0) {text!r}" in warned[0]


def test_an_unreachable_or_empty_name_server_changes_no_route() -> None:
    async def work() -> None:
        server = FakeNameServer()
        server.routes["T"] = route_of(4)
        routes = Routes(server, lambda topic: None)  # type: ignore[arg-type]
        await routes.get("T")
        server.routes = {}
        await routes.refresh_all()
        server.is_away = True
        await routes.refresh_all()
        assert await routes.get("T") == route_of(4)
        assert routes.masters() == ["127.0.0.1:1"]

    asyncio.run(work())


def test_a_broker_without_route_has_no_master() -> None:
    async def work() -> None:
        server = FakeNameServer()
        routes = Routes(server, lambda topic: None)  # type: ignore[arg-type]
        with pytest.raises(RouteError, match="no known route has a master") as caught:
            routes.master_of("b")
        assert caught.value.broker == "b"
        server.routes["T"] = route_of(4)
        await routes.get("T")
        assert routes.master_of("b") == "127.0.0.1:1"

    asyncio.run(work())
