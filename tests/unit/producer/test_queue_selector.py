"""Selectors, the queues of keys while brokers come and go, and brokers that are avoided."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from client.known_routes import routes_from
from hypothesis import given
from hypothesis import strategies as st

from ordermq.client.routes import Routes
from ordermq.clock import ManualClock
from ordermq.config import SendConfig
from ordermq.errors import ConfigError, OrderingError, RouteError
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.queue_selector import (
    LatencyFaults,
    QueueRouting,
    ShardingKey,
    _sip_hash_24,
    go_index,
    grpc_index,
    java_index,
    selector_of,
    sha256_index,
    sip_index,
)
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("key", "indexes"),
    [
        ("order-1", (2, 2, 6, 14)),
        ("polygenelubricants", (2, 0, 0, 0)),
        ("\U0001f600", (1, 3, 3, 3)),
        ("订单-7", (2, 1, 5, 13)),
        (-5, (2, 1, 5, 5)),
        (-(1 << 31), (2, 0, 0, 0)),
    ],
)
def test_the_java_selector_chooses_as_java_does_for_3_4_8_and_16_queues(
    key: ShardingKey, indexes: tuple[int, ...]
) -> None:
    assert tuple(java_index(key, count) for count in (3, 4, 8, 16)) == indexes


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("b", 0xE70C2DE5), ("foobar", 0xBF9CF968)],
)
def test_the_go_selector_is_fnv_1a(text: str, value: int) -> None:
    assert go_index(text, 1 << 32) == value


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (0, 0x726FDB47DD0E0E31),
        (1, 0x74F839C593DC67FD),
        (7, 0xAB0200F58B01D137),
        (8, 0x93F5F5799A932462),
        (15, 0xA129CA6149BE45E5),
    ],
)
def test_sip_hash_gives_the_values_of_its_paper(size: int, value: int) -> None:
    assert _sip_hash_24(bytes(range(size))) == value


def test_the_sip_selector_takes_the_hash_for_a_signed_long() -> None:
    # Hash of "" is 0x726f..., of the paper's 15 bytes 0xa129..., negative as a long: the
    # remainder must still be a queue, as Go's and Java's floorMod give it.
    negative = bytes(range(15)).decode()
    assert sip_index("", 3) == 0x726FDB47DD0E0E31 % 3
    assert sip_index(negative, 3) == (0xA129CA6149BE45E5 - (1 << 64)) % 3


# Answers of Guava 32.0.1, as in RocketMQ 5.3.3: Hashing.consistentHash(key.hashCode(), count).
_COUNTS = (1, 2, 3, 4, 7, 8, 16, 64, 1000, 65535)
_GUAVA = {
    "": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "a": (0, 0, 0, 0, 0, 0, 0, 29, 346, 49599),
    "o-17": (0, 0, 0, 0, 5, 5, 12, 12, 513, 35574),
    "user-1": (0, 1, 1, 1, 1, 1, 1, 39, 39, 5601),
    "order-4711": (0, 0, 0, 3, 3, 3, 3, 20, 400, 11473),
    "Aa": (0, 1, 1, 1, 5, 5, 14, 14, 234, 48121),
    "BB": (0, 1, 1, 1, 5, 5, 14, 14, 234, 48121),
    "polygenelubricants": (0, 1, 2, 2, 2, 2, 2, 58, 185, 39408),
    "äöü": (0, 0, 0, 0, 4, 4, 13, 26, 64, 59923),
    "中文": (0, 0, 0, 3, 3, 3, 3, 36, 401, 16951),
    "😀": (0, 1, 1, 1, 4, 4, 4, 31, 748, 38160),
    "-42": (0, 1, 1, 1, 4, 4, 15, 57, 975, 58866),
    "9223372036854775807": (0, 0, 0, 0, 6, 6, 8, 46, 196, 17747),
    "zzzzzzzzzzzzzzzz": (0, 1, 1, 3, 3, 3, 10, 10, 64, 33061),
    "k0": (0, 0, 0, 0, 6, 6, 10, 57, 668, 44070),
    "k63": (0, 0, 2, 3, 4, 7, 13, 13, 874, 62158),
}


@pytest.mark.parametrize("key", _GUAVA)
def test_the_grpc_selector_takes_the_queue_of_guavas_consistent_hash(key: str) -> None:
    assert tuple(grpc_index(key, count) for count in _COUNTS) == _GUAVA[key]


def test_the_sha256_selector_takes_the_digest_as_one_big_number() -> None:
    digest = 0xBA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD
    assert [sha256_index("abc", count) for count in (3, 7, 16)] == [
        digest % 3,
        digest % 7,
        digest % 16,
    ]


@given(KEYS, st.integers(1, 64), st.sampled_from(["java", "go", "grpc", "sip", "sha256"]))
def test_every_selector_gives_one_of_the_queues_and_always_the_same(
    key: ShardingKey, count: int, name: str
) -> None:
    queues = [MessageQueue("T", "b", number) for number in range(count)]
    message = Message("T", b"x")
    chosen = selector_of(name)(queues, message, key)
    assert chosen in queues
    assert selector_of(name)(queues, message, key) == chosen


def test_no_choice_depends_on_the_process() -> None:
    script = (
        "from ordermq.producer.queue_selector import _INDEXES as all;"
        "print([f('订单-7', 1000) for f in all.values()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_function_is_taken_as_it_is_and_an_unknown_name_is_refused() -> None:
    assert selector_of(len) is len  # type: ignore[arg-type,comparison-overlap]
    with pytest.raises(ConfigError, match=r"'rust': expected one of \['go', 'grpc', 'java'"):
        selector_of("rust")


# -- the queues of keys while brokers come, go and change ----------------------------------

TOPIC = "T"


def first_of(queues: object, message: Message, key: object) -> MessageQueue:
    """A selector: the queue of broker b with the number that the key is."""
    return MessageQueue(TOPIC, "b", int(str(key)))


class KnownRoutes:
    """The routes a name server returns, and the producer's routing among them."""

    def __init__(self, *, allow_queue_change: bool = False) -> None:
        self.route: TopicRoute | None = None
        self.routes = routes_from(self)
        config = SendConfig(allow_queue_change=allow_queue_change)
        self.routing = QueueRouting(first_of, config)

    async def topic_route(self, topic: str) -> TopicRoute | None:
        return self.route

    def has(self, **counts: int) -> None:
        self._has(0, counts)

    def has_slaves_only(self, **counts: int) -> None:
        self._has(1, counts)

    def _has(self, broker_id: int, counts: dict[str, int]) -> None:
        brokers = tuple(BrokerData(name, {broker_id: f"{name}:1"}) for name in counts)
        queues = tuple(QueueData(name, count, count) for name, count in counts.items())
        self.route = TopicRoute(brokers, queues)
        asyncio.run(self.routes.refresh(TOPIC))

    def queue_of(self, key: str) -> MessageQueue:
        return self.routing.choose(self.routes, Message(TOPIC, b"x"), key, None)

    def without_key(self) -> set[str]:
        chosen = (
            self.routing.choose(self.routes, Message(TOPIC, b"x"), None, None) for _ in range(16)
        )
        return {queue.broker_name for queue in chosen}


def test_keys_keep_their_queues_while_a_broker_is_away_and_unordered_messages_avoid_it() -> None:
    known = KnownRoutes()
    known.has(a=2, b=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    known.has(a=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert known.routes.master_of("b") == "b:1"
    assert known.without_key() == {"a"}
    known.has(a=2, b=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert known.without_key() == {"a", "b"}


@pytest.mark.parametrize("allow_queue_change", [False, True])
def test_keys_keep_their_queues_while_all_brokers_are_away_and_unordered_messages_fail(
    allow_queue_change: bool,
) -> None:
    known = KnownRoutes(allow_queue_change=allow_queue_change)
    known.has(a=2, b=2)
    known.queue_of("1")
    known.has_slaves_only(a=2, b=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert known.routes.master_of("b") == "b:1"
    with pytest.raises(RouteError, match="no writable queue has a live master"):
        known.without_key()
    assert known.routing.fallback(known.routes, MessageQueue(TOPIC, "b", 1)) is None
    known.has(a=2, b=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert known.without_key() == {"a", "b"}


def test_a_key_is_refused_while_its_topic_has_had_no_queue_yet() -> None:
    known = KnownRoutes()
    known.has_slaves_only(a=2)
    with pytest.raises(RouteError, match="no writable queue has a live master"):
        known.queue_of("1")
    known.has(b=2)
    assert known.queue_of("1") == MessageQueue(TOPIC, "b", 1)


@pytest.mark.parametrize("now", [{"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 1}])
def test_a_change_of_queues_is_refused_unless_allowed(now: dict[str, int]) -> None:
    strict, easy = KnownRoutes(), KnownRoutes(allow_queue_change=True)
    for known in (strict, easy):
        known.has(a=2, b=2)
        known.queue_of("1")
        known.has(**now)
    with pytest.raises(OrderingError, match="had 4 queues"):
        strict.queue_of("1")
    assert easy.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert len(easy.routing.queues(easy.routes, TOPIC)) == sum(now.values())


def test_keys_move_at_once_if_allowed() -> None:
    known = KnownRoutes(allow_queue_change=True)
    known.has(a=2, b=2)
    known.queue_of("1")
    known.has(b=2)
    assert len(known.routing.queues(known.routes, TOPIC)) == 2


# -- brokers that are avoided (MQFaultStrategy) --------------------------------------------


@pytest.mark.parametrize(
    ("spent_ms", "avoided_ms"),
    [
        (0, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000), (3_000, 6_000),
        (5_000, 10_000), (14_999, 10_000), (15_000, 30_000), (1 << 40, 30_000),
    ],
)  # fmt: skip
def test_a_slow_broker_is_avoided_for_as_long_as_in_javas_table(
    spent_ms: int, avoided_ms: int
) -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    faults.record("b", spent_ms)
    assert faults.is_available("b") == (avoided_ms == 0)
    clock.advance(max(avoided_ms - 1, 0))
    assert faults.is_available("b") == (avoided_ms == 0)
    clock.advance(1)
    assert faults.is_available("b")


def test_a_silent_broker_is_avoided_for_ten_seconds_or_until_it_is_quick_again() -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    faults.record_unanswered("b")
    clock.advance(9_999)
    assert not faults.is_available("b")
    assert faults.is_available("other")
    faults.record("b", 1)
    assert faults.is_available("b")


def routing_of(
    faults: LatencyFaults | None, *brokers: str, is_behind_proxy: bool = False
) -> tuple[QueueRouting, Routes]:
    route = TopicRoute(
        tuple(BrokerData(name, {0: "127.0.0.1:1"}) for name in brokers),
        tuple(QueueData(name, 2, 2) for name in brokers),
    )

    class NameServers:
        async def topic_route(self, topic: str) -> TopicRoute:
            return route

    routes = routes_from(NameServers())
    asyncio.run(routes.refresh("T"))
    routing = QueueRouting(
        selector_of("java"), SendConfig(), faults, is_behind_proxy=is_behind_proxy
    )
    return routing, routes


def turns(routing: QueueRouting, routes: Routes, count: int) -> list[str]:
    message = Message("T", b"x")
    return [routing.choose(routes, message, None, None).broker_name for _ in range(count)]


def test_an_avoided_broker_still_gets_the_messages_of_its_keys() -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    routing, routes = routing_of(faults, "a", "b")
    assert set(turns(routing, routes, 4)) == {"a", "b"}
    before = [routing.choose(routes, Message("T", b"x"), f"k{n}", None) for n in range(20)]
    faults.record_unanswered("a")
    assert set(turns(routing, routes, 8)) == {"b"}
    after = [routing.choose(routes, Message("T", b"x"), f"k{n}", None) for n in range(20)]
    assert after == before
    assert {queue.broker_name for queue in after} == {"a", "b"}
    clock.advance(10_000)
    assert set(turns(routing, routes, 8)) == {"a", "b"}


def test_if_all_brokers_are_avoided_all_are_used_in_turn() -> None:
    faults = LatencyFaults(ManualClock())
    routing, routes = routing_of(faults, "a", "b")
    faults.record_unanswered("a")
    faults.record_unanswered("b")
    assert set(turns(routing, routes, 8)) == {"a", "b"}


def test_a_fallback_is_a_queue_of_another_broker_if_there_is_one() -> None:
    routing, routes = routing_of(None, "a", "b", "c")
    (first, *_) = routing.queues(routes, "T")
    found = {routing.fallback(routes, first) for _ in range(12)}
    assert {queue.broker_name for queue in found if queue} == {"b", "c"}
    alone, routes = routing_of(None, "a")
    assert alone.fallback(routes, first) is None


def test_behind_a_proxy_messages_without_a_key_have_one_queue_of_each_broker() -> None:
    routing, routes = routing_of(None, "a", "b", is_behind_proxy=True)
    chosen = [routing.choose(routes, Message("T", b"x"), None, None) for _ in range(4)]
    untold = [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)]
    assert chosen == untold * 2
    assert routing.fallback(routes, untold[0]) == untold[1]
    keyed = {routing.choose(routes, Message("T", b"x"), f"k{n}", None) for n in range(40)}
    assert keyed == set(routing.queues(routes, "T"))
    assert len(keyed) == 4
