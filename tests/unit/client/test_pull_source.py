"""Replica that a queue is pulled from; the rules are Java's PullAPIWrapper's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from client.known_routes import routes_from
from ordermq.client.routes import PullSource, Routes
from ordermq.errors import RequestTimeout, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

QUEUE = MessageQueue("T", "b", 0)
MASTER, SLAVE, OTHER_SLAVE = (0, "master:1"), (1, "slave:1"), (2, "other-slave:1")


class FakeNameServer:
    def __init__(self, *replicas: tuple[int, str]) -> None:
        self.asked = 0
        self.is_away = False
        self.put(*replicas)

    def put(self, *replicas: tuple[int, str]) -> None:
        self.route = TopicRoute((BrokerData("b", dict(replicas)),), (QueueData("b", 1, 1),))

    async def topic_route(self, topic: str) -> TopicRoute:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise RequestTimeout("away")
        return self.route


def with_source(
    server: FakeNameServer, work: Callable[[PullSource, Routes], Awaitable[None]]
) -> None:
    async def run() -> None:
        routes = routes_from(server)
        await routes.get("T")
        await work(PullSource(routes, QUEUE), routes)

    asyncio.run(run())


def test_pulls_go_to_the_suggested_replica_and_back_to_the_master() -> None:
    async def work(source: PullSource, routes: Routes) -> None:
        assert source.choose() == MASTER
        assert not source.suggest(0)
        assert source.suggest(1)
        assert source.choose() == SLAVE
        assert not source.suggest(1)
        assert source.suggest(0)
        assert source.choose() == MASTER

    with_source(FakeNameServer(MASTER, SLAVE), work)


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        ((MASTER, SLAVE), 1, SLAVE),
        ((MASTER, OTHER_SLAVE), 1, OTHER_SLAVE),
        ((MASTER, OTHER_SLAVE), 4, MASTER),
        ((SLAVE, OTHER_SLAVE), 0, SLAVE),
        ((OTHER_SLAVE,), 0, OTHER_SLAVE),
    ],
)
def test_a_missing_replica_is_replaced_by_another(
    there: tuple[tuple[int, str], ...], wanted: int, chosen: tuple[int, str]
) -> None:
    async def work(source: PullSource, routes: Routes) -> None:
        source.suggest(wanted)
        assert source.choose() == chosen

    with_source(FakeNameServer(*there), work)


def test_a_suggested_replica_that_is_missing_changes_nothing() -> None:
    async def work(source: PullSource, routes: Routes) -> None:
        assert not source.suggest(3)
        assert source.choose() == MASTER

    with_source(FakeNameServer(MASTER), work)


def test_a_failed_pull_goes_to_another_replica_and_refreshes_the_route() -> None:
    server = FakeNameServer(MASTER, SLAVE)

    async def work(source: PullSource, routes: Routes) -> None:
        await source.failed()
        assert source.choose() == SLAVE, "the route still names the master"
        await source.failed()
        assert source.choose() == MASTER
        server.put(SLAVE)
        await source.failed()
        assert source.choose() == SLAVE
        await source.failed()
        assert source.choose() == SLAVE, "there is no other"
        server.put(MASTER, SLAVE)
        await source.failed()
        assert source.choose() == MASTER
        assert server.asked == 6

    with_source(server, work)


def test_queues_that_fail_together_refresh_the_route_once() -> None:
    server = FakeNameServer(MASTER, SLAVE)

    async def work(source: PullSource, routes: Routes) -> None:
        sources = [PullSource(routes, QUEUE) for _ in range(20)]
        await asyncio.gather(*(each.failed() for each in sources))
        assert server.asked == 2
        assert {each.choose() for each in sources} == {SLAVE}

    with_source(server, work)


def test_an_unreachable_name_server_leaves_the_known_replicas() -> None:
    server = FakeNameServer(MASTER, SLAVE)

    async def work(source: PullSource, routes: Routes) -> None:
        server.is_away = True
        await source.failed()
        assert source.choose() == SLAVE

    with_source(server, work)


def test_a_master_missing_in_the_route_is_asked_at_its_last_address() -> None:
    server = FakeNameServer(MASTER)

    async def work(source: PullSource, routes: Routes) -> None:
        server.put()
        await source.failed()
        assert source.choose() == MASTER

    with_source(server, work)


def test_a_broker_without_route_cannot_be_pulled_from() -> None:
    async def work(source: PullSource, routes: Routes) -> None:
        stray = PullSource(routes, MessageQueue("T", "gone", 0))
        with pytest.raises(RouteError, match="no known route has a master") as caught:
            stray.choose()
        assert caught.value.broker == "gone"

    with_source(FakeNameServer(MASTER), work)


def test_slaves_and_masters_are_listed_separately() -> None:
    async def work(source: PullSource, routes: Routes) -> None:
        assert routes.masters() == ["master:1"]
        assert routes.slaves() == ["other-slave:1", "slave:1"]

    with_source(FakeNameServer(MASTER, SLAVE, OTHER_SLAVE), work)
