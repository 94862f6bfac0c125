"""Pulls on both paths: the engine must bring the same messages, and nothing that was given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer, core
from ordermq.broker import EmbeddedBroker
from ordermq.client.pull_connections import PullConnection, PullConnections
from ordermq.config import BrokerConfig
from ordermq.consumer.fetch.engine_loop import EnginePath
from ordermq.remoting.command import Command
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.damaging_proxy import DamagingProxy

MakeConsumer = Callable[..., PushConsumer]


def path_of(consumer: PushConsumer | LitePullConsumer) -> Any:
    return consumer._member.parts.fetcher._parts.path  # type: ignore[union-attr]


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("concurrent", [False, True])
def test_a_catch_up_brings_everything_and_counts_it_alike(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    has_engine: bool,
    batch: int,
    concurrent: bool,
) -> None:
    producer.send_many(numbered(1_600, keys=1))
    with make_consumer(
        seen.take, concurrent=concurrent, consume_message_batch_max_size=batch
    ) as consumer:
        assert isinstance(path_of(consumer), EnginePath) == has_engine
        seen.wait_for_count(1_600)
        assert seen.duplicates() == 0
        eventually(lambda: consumer.statistics["messages_done"] == 1_600, "the last call's end")
        assert consumer.statistics["pulls"] == 50
        assert consumer.statistics.behind().popitem()[1] == 0
        assert consumer.statistics.rates("orders").pull_tps > 0
        assert consumer.statistics.topics() == ["orders"]
    if not concurrent:
        assert_in_order(seen, 1_600, keys=1)


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("batch", [1, 32])
def test_pollers_are_fed_on_the_same_path(
    producer: Producer, broker: EmbeddedBroker, has_engine: bool, batch: int, is_ordered: bool
) -> None:
    producer.send_many(numbered(1_600))
    with LitePullConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        ordered=is_ordered,
        poll_batch_size=batch,
        pull_threshold_for_queue=64,
        pull_threshold_for_all=100,
    ) as consumer:
        consumer.subscribe("orders")
        assert isinstance(path_of(consumer), EnginePath) == has_engine
        got: dict[str, list[int]] = {}
        for polled in consumer.batches():
            for message in polled:
                got.setdefault(message.sharding_key, []).append(int(bytes(message.body)))
            if sum(map(len, got.values())) == 1_600:
                break
        assert got == {f"k{key}": list(range(key, 1_600, 10)) for key in range(10)}
        consumer.commit()
        assert consumer.statistics["polled"] == 1_600
        assert consumer.statistics.behind().popitem()[1] == 0


def test_what_comes_while_a_queue_is_paused_is_pulled_once_it_is_resumed(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    producer.send(Message("orders", b"makes the topic"))
    queues = producer.queues("orders")
    with LitePullConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    ) as consumer:
        consumer.assign(queues)
        assert len(consumer.poll(20_000)) == 1
        fetcher = consumer._live().parts.fetcher
        eventually(lambda: all(map(fetcher.is_pulling, queues)), "the broker holds every pull")
        consumer.pause(queues)
        for number, queue in enumerate(queues):
            producer.send(Message("orders", b"%d" % number), queue=queue)
        eventually(lambda: not any(map(fetcher.is_pulling, queues)), "every pull is answered")
        assert not consumer.poll(0)
        consumer.resume()
        got = [bytes(each.body) for _ in queues for each in consumer.poll(20_000)]
        assert sorted(got) == [b"%d" % number for number in range(len(queues))]
        assert not consumer.poll(0)


class Cuts:
    """Cuts the connection in place of every n-th answer with messages."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.answers = 0

    def __call__(self, command: Command) -> None:
        if "nextBeginOffset" in command.ext and command.body:
            self.answers += 1
            if self.answers % self._every == 0:
                raise ConnectionAbortedError("cut by the test")


@pytest.mark.parametrize("order_by_key", [False, True])
def test_nothing_is_lost_or_reordered_through_connections_that_are_cut(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, has_engine: bool, order_by_key: bool
) -> None:
    producer.send_many(numbered(4_000))
    cuts = Cuts(every=25)
    with DamagingProxy(broker.address, cuts) as proxy:
        consumer = PushConsumer(
            "g",
            name_servers=proxy.address,
            consume_from_where="first_offset",
            pull_delay_on_error_ms=10,
            order_by_key=order_by_key,
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for(lambda all: len({each[:2] for each in all}) == 4_000, "every message")
            assert cuts.answers > 100
    for key in range(10):
        # Repeated after a lease that was lost with the connection, if at all; never out of order.
        got = [int(body) for body in seen.bodies_of(f"k{key}")]
        assert list(dict.fromkeys(got)) == list(range(key, 4_000, 10))


def test_a_listener_that_stands_still_stops_the_pulls(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, has_engine: bool
) -> None:
    producer.send_many(numbered(2_000, keys=1))
    goes_on = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        assert goes_on.wait(20)
        seen.take(messages, context)

    with make_consumer(listen, pull_threshold_for_queue=100) as consumer:
        eventually(lambda: consumer.statistics["pulls"] >= 4, "more than a hundred messages")
        assert consumer.statistics["pulls"] == 4  # and there it stays: 128 messages wait
        goes_on.set()
        seen.wait_for_count(2_000)
    assert_in_order(seen, 2_000, keys=1)


@pytest.mark.parametrize("connections", [PullConnections] if core.HAS_ENGINE else [])
def test_thresholds_that_change_while_a_broker_is_connected_hold(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    connections: type[PullConnections],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected, goes_on = threading.Event(), threading.Event()
    get = connections.get

    async def get_late(pulls: PullConnections, address: str) -> PullConnection:
        connection = await get(pulls, address)
        await asyncio.to_thread(connected.wait, 60.0)
        return connection

    def listen(messages: Any, context: Any) -> None:
        goes_on.wait(60.0)
        seen.take(messages, context)

    monkeypatch.setattr(connections, "get", get_late)
    producer.send_many(numbered(1_600, keys=80))
    settings = {"pull_threshold_for_topic": 160, "pull_batch_size": 1}
    with make_consumer(listen, **settings) as first:
        eventually(lambda: len(first.assigned_queues()) == 8, "all are ours: 20 messages each")
        with make_consumer(listen, **settings) as second:
            eventually(
                lambda: [len(each.assigned_queues()) for each in (first, second)] == [4, 4],
                "each has half of the queues: 40 messages each",
            )
            connected.set()
            for consumer in (first, second):
                held = consumer._live()._rebalancer.assigned
                eventually(
                    lambda held=held: (
                        [
                            each.process_queue.message_count
                            for each in held()
                            if each.queue.topic == "orders"
                        ]
                        == [41] * 4
                    ),
                    "each queue has its quarter",
                )
            goes_on.set()
            seen.wait_for_count(1_600)


def test_messages_of_other_tags_are_passed_over(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, has_engine: bool
) -> None:
    # "Aa" and "BB" have one hash, which is all that brokers compare.
    tags = ["Aa", "BB", "C"]
    producer.send_many(
        [(Message("orders", b"%d" % each, tags=tags[each % 3]), "k") for each in range(900)]
    )
    with make_consumer(seen.take, tags="Aa") as consumer:
        seen.wait_for_count(300)
        eventually(lambda: consumer.statistics["behind"] == 0, "the rest passed over")
    assert [int(body) for body in seen.bodies_of("k")] == list(range(0, 900, 3))


ACCOUNT = {"access_key": "app", "secret_key": "secret" * 20}  # over a block of SHA-1


@pytest.mark.parametrize(
    "settings",
    [
        {"pull_interval_ms": 1},
        {"order_by_key": True},
        {"deduplicate": 100},
        {"namespace": "team"},
        {"namespace_v2": "region"},
        {"serialize_type": "rocketmq"},
        ACCOUNT,
        ACCOUNT | {"serialize_type": "rocketmq", "namespace": "team", "namespace_v2": "region"},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_an_option_of_requests_does_not_leave_the_path_or_change_what_comes(
    seen: Seen, has_engine: bool, settings: dict[str, Any]
) -> None:
    of_consumers = {"pull_interval_ms", "order_by_key", "deduplicate"}
    own = {name: value for name, value in settings.items() if name not in of_consumers}
    topics: set[str] = set()

    def listen(messages: Any, context: Any) -> None:
        topics.update(message.topic for message in messages)
        seen.take(messages, context)

    config = BrokerConfig(durability="os", accounts={"app": "secret" * 20})
    with EmbeddedBroker(config=config) as broker:
        account = ACCOUNT | own
        with Producer("p", name_servers=broker.name_servers, **account) as producer:
            producer.send_many(numbered(300, keys=1))
            consumer = PushConsumer(
                "g",
                name_servers=broker.name_servers,
                consume_from_where="first_offset",
                **(ACCOUNT | settings),
            )
            consumer.subscribe("orders")
            consumer.orderly(listen)
            with consumer:
                assert isinstance(path_of(consumer), EnginePath) == has_engine
                seen.wait_for_count(300)
                producer.send_many(numbered(300, keys=1, start=300))
                seen.wait_for_count(600)
    assert_in_order(seen, 600, keys=1)
    assert seen.duplicates() == 0
    assert topics == {"orders"}


def test_pulls_begin_anew_when_the_clients_own_connection_is_lost(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    has_engine: bool,
) -> None:
    # A middlebox that has gone silent has both: a pull alone would notice after its long poll.
    with make_consumer(seen.take) as consumer:
        producer.send_many(numbered(8))
        seen.wait_for_count(8)
        client = consumer._member.client
        before = client.pulls._open.get(broker.address)
        own = client.connections._open[broker.address]
        client.runtime.post(own.abort, ConnectionResetError("by the test"))
        if before is not None:
            eventually(lambda: before.error is not None, "the engine's connection has ended, too")
        producer.send_many(numbered(8, start=8))
        seen.wait_for_count(16)
    assert seen.duplicates() == 0
