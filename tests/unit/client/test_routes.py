"""Queues that a producer and a group see (docs/internals/protocol.md#name-server,
docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio

import pytest

from client.known_routes import FORGET_AFTER_MS, ToldEvents, routes_from
from ordermq.client.routes import (
    PullSource,
    are_brokers_away,
    publish_queues,
    read_order_conf,
    subscribe_queues,
)
from ordermq.clock import ManualClock
from ordermq.errors import ConnectFailed, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ, BrokerData, QueueData, TopicRoute

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
    ("text", "counts", "malformed"),
    [
        ("a:4;b:2;", {"a": 4, "b": 2}, []),
        (" a : 4 ; b:2", {"a": 4, "b": 2}, []),
        ("a:4;a:4", {"a": 4}, []),
        ("a;b:x;:3;c:-1;d:2", {"d": 2}, ["a", "b:x", ":3", "c:-1"]),
        ("a:99999999999999999999;b:131072;c:\u0664", {}, None),
        ('{"a":1}', {}, None),
    ],
)
def test_entries_of_an_order_configuration_that_name_no_count_are_told_apart(
    text: str, counts: dict[str, int], malformed: list[str] | None
) -> None:
    assert read_order_conf(text) == (counts, text.split(";") if malformed is None else malformed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b:2;b", ["'b' is not broker:count", "they are ignored", "updateOrderConf"]),
        ("b", ["'b' is not broker:count", "names no queue, so nothing is sent"]),
        ("b:0", ["no queue", "so nothing is sent"]),
    ],
)
def test_a_malformed_order_configuration_is_reported_once(
    text: str, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeNameServer()
    server.routes = {"T": TopicRoute((MASTER,), (), text)}

    async def read_twice() -> None:
        routes = routes_from(server)
        for _ in range(2):
            await routes.refresh("T")

    asyncio.run(read_twice())
    (said,) = [each.getMessage() for each in caplog.records if "order conf" in each.getMessage()]
    for word in words:
        assert word in said


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
    route = TopicRoute((), ())
    assert are_brokers_away(route, queues(*now), queues("a/0", "a/1", "b/0")) is are_away


def test_a_broker_that_is_up_and_may_not_be_written_to_is_not_away() -> None:
    up = TopicRoute((BrokerData("b", {0: "127.0.0.1:1"}),), (QueueData("b", 1, 1, PERM_READ),))
    assert not are_brokers_away(up, queues("a/0", "a/1"), queues("a/0", "a/1", "b/0"))
    with_slave = TopicRoute((BrokerData("b", {1: "127.0.0.1:1"}),), (QueueData("b", 1, 1),))
    assert are_brokers_away(with_slave, queues("a/0", "a/1"), queues("a/0", "a/1", "b/0"))


class FakeNameServer:
    def __init__(self) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.asked: list[str] = []
        self.is_away = False

    async def topic_route(self, topic: str) -> TopicRoute | None:
        self.asked.append(topic)
        if self.is_away:
            raise RouteError("no name server answers")
        return self.routes.get(topic)

    async def lists_a_broker(self) -> bool:
        return any(route.brokers for route in self.routes.values())


def route_of(count: int) -> TopicRoute:
    return TopicRoute((MASTER,), (QueueData("b", count, count),))


def test_a_known_route_is_requested_once_and_an_unknown_one_each_time() -> None:
    async def work() -> None:
        server, events = FakeNameServer(), ToldEvents()
        routes = routes_from(server, events)
        assert await routes.get("T") is None
        server.routes["T"] = route_of(4)
        assert await routes.get("T") == route_of(4)
        assert await routes.get("T") is await routes.get("T")
        assert server.asked == ["T", "T"]
        assert ("changed", "T") not in events.told, "the first route is no change"

    asyncio.run(work())


def test_a_refresh_reports_changes_only_and_keeps_an_unchanged_route() -> None:
    async def work() -> None:
        server, events = FakeNameServer(), ToldEvents()
        server.routes = {"T": route_of(4), "U": route_of(1)}
        routes = routes_from(server, events)
        events.take()
        first = await routes.get("T")
        await routes.get("U")
        server.routes["T"] = route_of(4)
        await routes.refresh_all()
        assert await routes.get("T") is first
        server.routes["T"] = route_of(8)
        await routes.refresh_all()
        assert events.take()[-1] == ("changed", "T")
        assert await routes.get("T") == route_of(8)

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", ":10911", "host", "host:0", "host:99999", "[::1:1", "null:x"])
def test_a_malformed_address_is_skipped_with_one_warning_a_route(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        server, events = FakeNameServer(), ToldEvents()
        bad, slave = BrokerData("bad", {0: text}), BrokerData("b", {0: "127.0.0.1:1", 1: text})
        counts = (QueueData("b", 2, 2), QueueData("bad", 2, 2))
        server.routes["T"] = TopicRoute((slave, bad), counts)
        server.routes["U"] = TopicRoute((bad,), counts[1:])
        routes = routes_from(server, events)
        found = await routes.get("T")
        await routes.get("U")
        for _ in range(3):
            await routes.refresh_all()
        assert found is not None
        assert publish_queues("T", found) == queues("b/0", "b/1")
        assert routes.masters() == ["127.0.0.1:1"]
        assert routes.slaves() == []
        assert events.take() == [("new", "127.0.0.1:1")], (
            "a skipped address is no change of the route"
        )
        # Another route of the topic is another warning; one that is well has none.
        server.routes["T"] = TopicRoute((MASTER, bad), counts)
        await routes.refresh_all()
        server.routes["T"] = TopicRoute((MASTER,), counts)
        await routes.refresh_all()

    asyncio.run(work())
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [each.partition(":")[0] for each in warned] == ["topic T", "topic U", "topic T"]
    assert f"b (1) {text!r}, bad (0) {text!r}" in warned[0]


def test_an_unreachable_or_just_restarted_name_server_changes_no_route() -> None:
    async def work() -> None:
        server = FakeNameServer()
        server.routes["T"] = route_of(4)
        routes = routes_from(server)
        await routes.get("T")
        server.routes = {}
        await routes.refresh_all()
        server.is_away = True
        await routes.refresh_all()
        assert await routes.get("T") == route_of(4)
        assert routes.master_of("b") == "127.0.0.1:1"

    asyncio.run(work())


def test_a_broker_without_route_has_no_master() -> None:
    async def work() -> None:
        server = FakeNameServer()
        routes = routes_from(server)
        with pytest.raises(RouteError, match="no known route has a master") as caught:
            routes.master_of("b")
        assert caught.value.broker == "b"
        server.routes["T"] = route_of(4)
        await routes.get("T")
        assert routes.master_of("b") == "127.0.0.1:1"

    asyncio.run(work())


# -- brokers that leave, come back, move and are forgotten ------------------------------------


def brokers(**addresses: str) -> TopicRoute:
    """A route with one queue on each of these masters."""
    return TopicRoute(
        tuple(BrokerData(name, {0: address}) for name, address in addresses.items()),
        tuple(QueueData(name, 1, 1) for name in addresses),
    )


class Watched:
    """The routes of T and U at a name server, as a client refreshes them."""

    def __init__(self) -> None:
        self.server, self.events, self.clock = FakeNameServer(), ToldEvents(), ManualClock()
        self.connected: set[str] = set()
        self.routes = routes_from(self.server, self.events, self.clock, self.connected)

    def told(self, **routes: TopicRoute) -> list[tuple[str, str]]:
        """Refresh after the name server has these routes alone; return what the client heard."""
        self.server.routes = dict(routes)

        async def work() -> None:
            for topic in ("T", "U"):
                await self.routes.refresh(topic)
            await self.routes.refresh_all()

        asyncio.run(work())
        return self.events.take()

    def told_by_nobody(self) -> list[tuple[str, str]]:
        """Refresh while no name server answers; return what the client heard."""
        self.server.is_away = True
        asyncio.run(self.routes.refresh_all())
        self.server.is_away = False
        return self.events.take()


def test_a_broker_that_left_every_route_is_no_master_but_expected_at_its_address() -> None:
    watched = Watched()
    both, one = brokers(a="a:1", b="b:1"), brokers(a="a:1")
    assert watched.told(T=both, U=both) == [("new", "a:1"), ("new", "b:1")]
    assert watched.told(T=one, U=both) == [("changed", "T")]
    assert watched.routes.masters() == ["a:1", "b:1"], "U still has it"
    assert watched.told(T=one, U=one) == [("changed", "U")]
    routes = watched.routes
    assert routes.masters() == ["a:1"]
    assert routes.is_away("b")
    assert routes.is_expected("b:1")
    assert routes.master_of("b") == "b:1"
    assert watched.told(T=both, U=both) == [("changed", "T"), ("changed", "U")]
    assert routes.masters() == ["a:1", "b:1"]
    assert not routes.is_away("b")


def test_a_broker_of_which_only_a_slave_is_left_has_no_master_and_is_not_away() -> None:
    watched = Watched()
    queues = (QueueData("a", 1, 1), QueueData("b", 1, 1))
    whole = (BrokerData("a", {0: "a:1"}), BrokerData("b", {0: "b:1", 1: "b:2"}))
    left = (BrokerData("a", {0: "a:1"}), BrokerData("b", {1: "b:2"}))
    watched.told(T=TopicRoute(whole, queues))
    assert watched.routes.has_master("b")
    watched.told(T=TopicRoute(left, queues))
    assert not watched.routes.has_master("b")
    assert not watched.routes.is_away("b")
    assert watched.routes.last_master_of("b") == "b:1", "it may come back there"
    watched.told(T=brokers(a="a:1"))
    assert not watched.routes.has_master("b")
    assert not watched.routes.has_master("unknown")


def test_a_broker_that_does_not_come_back_is_forgotten_with_its_address() -> None:
    watched = Watched()
    one = brokers(a="a:1")
    watched.told(T=brokers(a="a:1", b="b:1"), U=one)
    watched.told(T=one, U=one)
    watched.clock.advance(FORGET_AFTER_MS - 1)
    assert watched.told(T=one, U=one) == []
    watched.clock.advance(1)
    assert watched.told(T=one, U=one) == [("unused", "b:1")]
    routes = watched.routes
    assert not routes.is_expected("b:1")
    assert routes.last_master_of("b") is None
    with pytest.raises(RouteError, match="in no route for 60 s"):
        routes.master_of("b")
    assert watched.told(T=brokers(a="a:1", b="b:2"), U=one)[0] == ("new", "b:2")
    assert routes.master_of("b") == "b:2"


def test_a_topic_that_no_broker_has_any_more_is_forgotten_later_than_a_restart_takes() -> None:
    watched = Watched()
    only = brokers(b="b:1")
    watched.told(T=only)
    assert watched.told() == [("lost", "T")]
    assert watched.told() == [], "told once"
    assert watched.routes.known("T") == only
    assert watched.routes.masters() == []
    watched.clock.advance(FORGET_AFTER_MS - 1)
    assert watched.told(T=only) == [("changed", "T")], "restarted, or the topic was made anew"
    assert watched.routes.masters() == ["b:1"]
    watched.told()
    watched.clock.advance(FORGET_AFTER_MS)
    assert watched.told() == [("changed", "T"), ("unused", "b:1")]
    assert watched.routes.known("T") is None
    assert watched.told(T=only) == [("new", "b:1")]
    assert watched.routes.known("T") == only


def test_nothing_is_forgotten_while_no_name_server_answers() -> None:
    watched = Watched()
    only = brokers(b="b:1")
    watched.told(T=only)
    watched.told()
    assert watched.routes.is_away("b"), "a name server that was restarted knows nobody yet"
    for _ in range(3):
        watched.clock.advance(FORGET_AFTER_MS)
        assert watched.told_by_nobody() == []
    assert watched.told() == [], "restarted once more"
    assert watched.routes.master_of("b") == "b:1"
    watched.clock.advance(FORGET_AFTER_MS - 1)
    assert watched.told() == []
    watched.clock.advance(1)
    assert watched.told() == [("changed", "T"), ("unused", "b:1")]


def test_name_servers_that_list_no_broker_say_nothing_of_one_that_is_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    both = brokers(a="a:1", b="b:1")
    watched.told(T=both)
    watched.connected.add("a")
    for _ in range(3):
        watched.clock.advance(FORGET_AFTER_MS)
        assert watched.told() == []
        assert watched.routes.masters() == ["a:1", "b:1"]
        assert not watched.routes.is_missing("T")
    (told,) = [record.getMessage() for record in caplog.records]
    assert "list no broker" in told
    assert "namesrvAddr" in told
    assert watched.told(U=brokers(c="c:1")) == [("lost", "T"), ("new", "c:1")], "another is listed"
    watched.told(T=both)
    watched.connected.clear()
    assert watched.told() == [("lost", "T")], "none of its brokers answers, either"
    watched.clock.advance(FORGET_AFTER_MS - 1)
    watched.connected.add("a")
    assert watched.told() == [], "another one may have its address"
    assert watched.routes.masters() == []
    watched.clock.advance(1)
    assert ("unused", "a:1") in watched.told(), "forgotten"


def test_a_pull_that_fails_because_its_broker_was_forgotten_asks_for_the_route() -> None:
    watched = Watched()
    both, one = brokers(a="a:1", b="b:1"), brokers(a="a:1")
    watched.told(T=both)
    source = PullSource(watched.routes, MessageQueue("T", "b", 0))
    assert source.choose() == (0, "b:1")
    watched.told(T=one)
    watched.clock.advance(FORGET_AFTER_MS)
    assert watched.told(T=one) == [("unused", "b:1")]
    asyncio.run(source.failed())
    with pytest.raises(RouteError, match="in no route"):
        source.choose()
    watched.told(T=both)
    assert source.choose() == (0, "b:1")


def test_a_master_with_another_address_voids_the_locks_before_it_is_asked_anything() -> None:
    watched = Watched()
    watched.told(T=brokers(b="b:1"))
    moved = watched.told(T=brokers(b="b:2"))
    assert moved == [("moved", "b"), ("new", "b:2"), ("unused", "b:1"), ("changed", "T")]
    assert watched.routes.masters() == ["b:2"]


def test_a_slave_that_becomes_the_master_voids_the_locks_and_keeps_the_connections() -> None:
    watched = Watched()
    queue = (QueueData("b", 1, 1),)
    watched.told(T=TopicRoute((BrokerData("b", {0: "b:1", 1: "b:2"}),), queue))
    alone = TopicRoute((BrokerData("b", {1: "b:2"}),), queue)
    assert watched.told(T=alone) == [("changed", "T")], "the old master is expected back"
    assert watched.routes.masters() == []
    assert watched.routes.master_of("b") == "b:1"
    switched = TopicRoute((BrokerData("b", {0: "b:2", 1: "b:1"}),), queue)
    assert watched.told(T=switched) == [("moved", "b"), ("new", "b:2"), ("changed", "T")]


def test_the_address_of_a_broker_that_is_away_is_that_of_the_broker_which_has_it_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    both = brokers(a="a:1", b="b:1")
    watched.told(T=both)
    watched.told()
    source = PullSource(watched.routes, MessageQueue("T", "b", 0))
    # Both have restarted, a where b was; b has not registered yet.
    told = watched.told(T=brokers(a="b:1"))
    assert told.count(("moved", "a")) == told.count(("moved", "b")) == 1, "no lock of b's is held"
    assert ("unused", "b:1") not in told
    routes = watched.routes
    assert routes.masters() == ["b:1"]
    assert routes.brokers_at("b:1") == {"a"}
    assert routes.is_away("b")
    # As an error that is tried again: it is expected back.
    with pytest.raises(ConnectFailed, match="another one has its last address"):
        routes.master_of("b")
    with pytest.raises(ConnectFailed, match="another one has its last address"):
        source.choose()
    assert "broker b: its last address, b:1, is that of a now" in caplog.text
    assert watched.told(T=brokers(a="b:1", b="a:1")) == [("new", "a:1"), ("changed", "T")]
    assert routes.master_of("b") == "a:1"
    assert source.choose() == (0, "a:1")


def test_a_broker_whose_address_was_taken_is_forgotten_as_every_other_one() -> None:
    watched = Watched()
    watched.told(T=brokers(a="a:1", b="b:1"))
    now = brokers(a="b:1")
    watched.told(T=now)
    watched.clock.advance(FORGET_AFTER_MS)
    assert watched.told(T=now) == []
    with pytest.raises(RouteError, match="in no route for 60 s"):
        watched.routes.master_of("b")


@pytest.mark.parametrize("as_other_topics", [False, True])
def test_a_broker_behind_a_proxy_keeps_the_address_that_all_of_them_have(
    as_other_topics: bool,
) -> None:
    """A proxy names itself as the address of every broker, also in its routes of one topic."""
    watched = Watched()
    both = {"T": brokers(a="p:1", b="p:1")}
    if as_other_topics:
        both = {"T": brokers(a="p:1"), "U": brokers(b="p:1")}
    watched.told(**both)
    # One of them dies; then another proxy answers, and the first one again.
    for proxy in ("p:1", "p:2", "p:1"):
        told = watched.told(T=brokers(a=proxy))
        assert ("moved", "b") not in told
        assert watched.routes.is_away("b")
        assert watched.routes.master_of("b") == "p:1"
    watched.told(**both)
    assert watched.routes.masters() == ["p:1"]


def test_an_address_that_two_brokers_seem_to_have_is_that_of_the_one_which_came_later() -> None:
    """A name server lists a broker whose host has died for two minutes more."""
    watched = Watched()
    watched.told(T=brokers(a="a:1", b="b:1"))
    for _ in range(2):
        watched.told(T=brokers(a="b:1", b="b:1"))
    assert watched.told(T=brokers(a="b:1")).count(("moved", "b")) == 1
    with pytest.raises(ConnectFailed, match="another one has its last address"):
        watched.routes.master_of("b")


def test_brokers_that_change_addresses_at_once_are_told_apart() -> None:
    watched = Watched()
    watched.told(T=brokers(a="a:1", b="b:1"))
    told = watched.told(T=brokers(a="b:1", b="a:1"))
    assert told.count(("moved", "a")) == told.count(("moved", "b")) == 1
    assert watched.routes.master_of("a") == "b:1"
    assert watched.routes.master_of("b") == "a:1"


def test_topics_are_refreshed_together_and_not_all_at_once() -> None:
    class SlowNameServer(FakeNameServer):
        waiting = most = 0

        async def topic_route(self, topic: str) -> TopicRoute | None:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            await asyncio.sleep(0)
            self.waiting -= 1
            return route_of(1)

    async def work() -> None:
        server = SlowNameServer()
        routes = routes_from(server)
        topics = [f"T{number}" for number in range(100)]
        assert list(await routes.get_all(topics)) == topics
        assert 1 < server.most <= 32
        server.most = 0
        await routes.refresh_all()
        assert 1 < server.most <= 32

    asyncio.run(work())
