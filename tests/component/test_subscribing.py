"""Topics, expressions, threads and thresholds changed while a consumer runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import NoneType
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer, json_text
from ordermq.broker import EmbeddedBroker
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.broker.server import HANDLERS
from ordermq.clock import SystemClock
from ordermq.config import PullConfig
from ordermq.errors import BrokerError, ConfigError, StateError
from ordermq.remoting.codes import PullFlag, RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient, locked
from tests.component.conftest import DEADLINE_S, Seen, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all
from tests.component.test_queue_control import lock_body

MakeConsumer = Callable[..., PushConsumer]


def send_to(producer: Producer, topic: str, numbers: range, tags: str | None = None) -> None:
    for number in numbers:
        producer.send(Message(topic, str(number).encode(), tags=tags), sharding_key="k")


def topics_of(consumer: PushConsumer) -> set[str]:
    return {queue.topic for queue in consumer.assigned_queues()}


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_topic_subscribed_while_running_is_consumed_and_one_given_up_is_handed_over(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    concurrent: bool,
) -> None:
    send_to(producer, "orders", range(5))
    send_to(producer, "invoices", range(5, 10))
    assigned: list[str] = []
    revoked: list[str] = []
    with make_consumer(
        seen.take,
        concurrent=concurrent,
        on_assigned=lambda queue: assigned.append(queue.topic),
        on_revoked=lambda queue: revoked.append(queue.topic),
    ) as consumer:
        seen.wait_for_count(5)
        consumer.subscribe("invoices")
        seen.wait_for_count(10)
        consumer.unsubscribe("orders")
        # An orderly group has its retry topic for brokers only: nothing is ever in it.
        assert topics_of(consumer) == {"invoices"} | ({"%RETRY%g"} if concurrent else set())
        assert {each.queue.topic for each in consumer.held_queues()} == {"%RETRY%g", "invoices"}
        assert [item.topic for item in consumer.subscriptions()] == ["%RETRY%g", "invoices"]
        # Handed over means committed and unlocked: nobody has to wait for a lease to end.
        assert committed(broker) == 5
        with WireClient(broker.port, "tool") as tool:
            assert tool.members("g") == [consumer.client_id]
        eventually(lambda: set(revoked) == {"orders"}, "told")
        send_to(producer, "orders", range(90, 95))
        send_to(producer, "invoices", range(10, 15))
        seen.wait_for_count(15)
        consumer.subscribe("orders")
        seen.wait_for_count(20)
    assert sorted(int(body) for body in seen.bodies_of("k")) == [*range(15), *range(90, 95)]
    told = {"orders", "invoices"} | ({"%RETRY%g"} if concurrent else set())
    assert (set(assigned), set(revoked)) == (told, told)


def test_the_locks_of_a_topic_given_up_are_free_at_once(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_to(producer, "orders", range(5))
    with make_consumer(seen.take) as consumer, WireClient(broker.port, "tool") as tool:
        seen.wait_for_count(5)
        queue = consumer.assigned_queues()[-1]
        held = tool.call(RequestCode.LOCK_BATCH_MQ, {}, lock_body(queue))
        assert locked(held) == []
        consumer.unsubscribe("orders")
        free = tool.call(RequestCode.LOCK_BATCH_MQ, {}, lock_body(queue))
        assert locked(free) == [queue.queue_id]
        ext = {"consumerGroup": "g", "clientId": consumer.client_id}
        info = tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert info.code != ResponseCode.SUCCESS, "it is no member any more"


def test_another_expression_holds_from_the_next_pull_on(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_to(producer, "orders", range(3), tags="paid")
    send_to(producer, "orders", range(3, 6), tags="refunded")
    with make_consumer(seen.take, tags="paid") as consumer:
        seen.wait_for_count(3)
        consumer.subscribe("orders", "refunded")
        send_to(producer, "orders", range(6, 9), tags="paid")
        send_to(producer, "orders", range(9, 12), tags="refunded")
        seen.wait_for_count(6)
        consumer.subscribe("orders")
        send_to(producer, "orders", range(12, 14), tags="paid")
        seen.wait_for_count(8)
    assert [int(body) for body in seen.bodies_of("k")] == [0, 1, 2, 9, 10, 11, 12, 13]


class SetBackClock(SystemClock):
    """The system's clock, whose wall time an operator has set back."""

    set_back_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() - self.set_back_ms


@pytest.mark.parametrize("again", [False, True], ids=["at once", "given up before"])
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_the_last_expression_counts_after_the_clock_was_set_back(
    broker: EmbeddedBroker, producer: Producer, kind: Any, again: bool
) -> None:
    # Brokers keep the one with the greatest version: pulls of Java's members are filtered by it.
    send_to(producer, "orders", range(1))
    clock = SetBackClock()
    consumer = kind("g", name_servers=broker.name_servers, clock=clock)
    if kind is PushConsumer:
        consumer.orderly(lambda messages, context: None)
    consumer.subscribe("orders", "paid")
    with consumer, WireClient(broker.port, "tool") as tool:
        for number, expression in enumerate(("refunded", "sent")):
            clock.set_back_ms = 3_600_000 * (number + 1)
            if again:
                consumer.unsubscribe("orders")
            consumer.subscribe("orders", expression)
            answer = tool.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
            table = json_text.loads(answer.body)["subscriptionTable"]
            assert table["orders"]["subString"] == expression


def test_a_condition_in_sql_is_refused_by_a_broker_without_it_and_says_what_to_set(
    producer: Producer, make_consumer: MakeConsumer, broker: EmbeddedBroker, seen: Seen
) -> None:
    send_to(producer, "orders", range(1))
    refused = PushConsumer("g", name_servers=broker.name_servers)
    refused.subscribe("orders", sql="a > 5")
    refused.orderly(seen.take)
    with pytest.raises(BrokerError, match=r"enablePropertyFilter=true in their broker\.conf"):
        refused.start()
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(1)
        with pytest.raises(BrokerError, match="sql='a > 5'"):
            consumer.subscribe("orders", sql="a > 5")
        send_to(producer, "orders", range(1, 3))
        seen.wait_for_count(3)  # it goes on as before
    with pytest.raises(ConfigError, match="not both"):
        refused.subscribe("orders", "paid", sql="a > 5")
    with pytest.raises(ConfigError, match="is empty"):
        refused.subscribe("orders", sql=" ")


def test_every_pull_names_its_condition_in_sql(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    has_engine: bool,
) -> None:
    """The one that a broker has registered may be another member's, of a clock that was ahead."""
    asked: list[Command] = []

    def accept(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        connection.reply(request, ResponseCode.SUCCESS)

    def pull(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        if request.ext.get("topic") == "orders":
            asked.append(request)
        plain_pull(context, connection, request)

    def register(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        request.body = request.body.replace(b"SQL92", b"TAG")  # the only type that it knows
        plain_register(context, connection, request)

    plain_pull = HANDLERS[RequestCode.PULL_MESSAGE]
    plain_register = HANDLERS[RequestCode.HEART_BEAT]
    monkeypatch.setitem(HANDLERS, RequestCode.HEART_BEAT, register)
    monkeypatch.setitem(HANDLERS, RequestCode.CHECK_CLIENT_CONFIG, accept)
    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, pull)
    send_to(producer, "orders", range(1))
    consumer = make_consumer(seen.take)
    consumer.subscribe("orders", sql="a > 5")
    with consumer:
        eventually(lambda: len(asked) >= 2, "pulls of the topic")
    assert {each.ext["subscription"] for each in asked} == {"a > 5"}
    assert all(int(each.ext["sysFlag"]) & PullFlag.SUBSCRIPTION for each in asked)


@pytest.mark.parametrize("kind", ["ordered", "by key", "concurrent", "async"])
def test_a_listener_that_gives_its_topic_up_does_not_wait_for_itself(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, kind: str
) -> None:
    send_to(producer, "orders", range(3))
    given_up = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if len(seen.deliveries) == 3:
            consumer.unsubscribe("orders")
            given_up.set()

    async def listen_async(messages: Any, context: Any) -> None:
        listen(messages, context)

    settings = {"by key": {"order_by_key": True}, "concurrent": {"concurrent": True}}
    listener = listen_async if kind == "async" else listen
    consumer = make_consumer(listener, **settings.get(kind, {}))
    with consumer:
        assert given_up.wait(20), "the listener waits for itself"
        eventually(lambda: topics_of(consumer) == set(), "its queues are handed over")
        assert committed(broker) == 3
        with WireClient(broker.port, "tool") as tool:
            eventually(lambda: tool.members("g") == [], "it has left the group")
        send_to(producer, "orders", range(3, 6))
        consumer.subscribe("orders")
        seen.wait_for_count(6)
    assert [int(body) for body in seen.bodies_of("k")] == [*range(6)]


def test_what_is_not_subscribed_cannot_be_given_up(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    consumer = make_consumer(seen.take)
    with pytest.raises(StateError, match="not subscribed"):
        consumer.unsubscribe("elsewhere")
    consumer.subscribe("elsewhere")
    consumer.unsubscribe("elsewhere")
    with consumer:
        pass
    with pytest.raises(StateError, match="closed"):
        consumer.subscribe("orders")


def test_two_threads_give_a_topic_up_at_once(
    producer: Producer, make_consumer: MakeConsumer
) -> None:
    calls: list[Any] = []
    may_return = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        calls.append(context)
        may_return.wait()

    send_all(producer, numbered(1))
    with make_consumer(listen) as consumer, ThreadPoolExecutor(2) as pool:
        eventually(lambda: bool(calls), "the listener runs")
        given_up = [pool.submit(consumer.unsubscribe, "orders") for _ in range(2)]
        eventually(calls[0].is_revoked, "they wait for the listener")
        may_return.set()
        for each in given_up:
            # The later one may find that it was given up already.
            assert isinstance(each.exception(DEADLINE_S), (StateError, NoneType))
        assert "orders" not in {each.topic for each in consumer.subscriptions()}


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent"])
def test_a_pool_grows_and_shrinks_while_listeners_run(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, kind: str
) -> None:
    send_all(producer, numbered(400, keys=40))
    lock = threading.Lock()
    running = most = 0
    wanted = threading.Semaphore(0)

    def listen(messages: Any, context: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        wanted.acquire(timeout=20)
        with lock:
            running -= 1
        seen.take(messages, context)

    with make_consumer(
        listen,
        consume_thread_count=2,
        concurrent=kind == "concurrent",
        order_by_key=kind == "by key",
    ) as consumer:
        eventually(lambda: running == 2, "two at once")
        consumer.resize(6)
        eventually(lambda: running == 6, "six at once")
        consumer.resize(3)
        wanted.release(3)
        eventually(lambda: len(seen.deliveries) == 3, "three end")
        wanted.release(5)
        eventually(lambda: len(seen.deliveries) == 8 and running == 3, "three at once")
        pool = consumer._live().parts.receiver._pool
        eventually(lambda: len(pool._threads) == 3, "three threads are left")  # type: ignore[attr-defined]
        wanted.release(1_000)
        seen.wait_for_count(400)
    assert most == 6
    with pytest.raises(ConfigError, match="consume_thread_count=0"):
        consumer.resize(0)


def test_a_topics_thresholds_are_divided_over_our_queues(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    config = PullConfig(pull_threshold_for_topic=100, pull_threshold_size_for_topic_mib=4)
    share = config.for_one_of(8)
    assert (share.pull_threshold_for_queue, share.pull_threshold_size_for_queue_mib) == (12, 1)
    assert PullConfig().for_one_of(8) == PullConfig()
    released = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if len(seen.deliveries) > 80:
            released.wait(60.0)

    send_all(producer, numbered(80, keys=80))
    with make_consumer(listen, pull_threshold_for_topic=160, pull_batch_size=1) as first:

        def buffered() -> list[int]:
            held = first._live()._rebalancer.assigned()
            return [a.process_queue.message_count for a in held if a.queue.topic == "orders"]

        # Only now: a queue pulled before the others are ours has a greater share.
        eventually(lambda: buffered() == [0] * 8, "all queues are ours, and empty")
        send_all(producer, numbered(2_000, keys=80, start=80))
        try:
            # 22: the listener's thread took all 21 at once, and nothing pending is always pulled.
            eventually(
                lambda: len(buffered()) == 8 and set(buffered()) <= {21, 22},
                "each queue has its eighth",
            )
        finally:
            released.set()


def test_a_pause_between_pulls_is_kept(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_to(producer, "orders", range(4))
    times: list[int] = []

    def listen(messages: Any, context: Any) -> None:
        times.append(consumer._clock.now_ms())
        seen.take(messages, context)

    consumer = make_consumer(listen, pull_interval_ms=60, pull_batch_size=1)
    with consumer:
        seen.wait_for_count(4)
    assert times[-1] - times[0] >= 150  # three pauses; a clock's tick may be missing


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_member_that_unsubscribed_from_everything_leaves_its_queues_to_the_others(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, concurrent: bool
) -> None:
    for number in range(8):
        producer.send(Message("orders", b"%d" % number), sharding_key=str(number))

    def orders_of(consumer: PushConsumer) -> int:
        return len([queue for queue in consumer.assigned_queues() if queue.topic == "orders"])

    one = make_consumer(seen.take, concurrent=concurrent)
    other = make_consumer(seen.take, concurrent=concurrent)
    with one, other:
        eventually(lambda: orders_of(one) == orders_of(other) == 4, "they share the queues")
        one.unsubscribe("orders")
        eventually(lambda: orders_of(other) == 8, "the other has all")
        assert one.assigned_queues() == []
        one.subscribe("orders")
        eventually(lambda: orders_of(one) == orders_of(other) == 4, "they share them again")
        eventually(
            lambda: "%RETRY%g" in [q.queue.topic for c in (one, other) for q in c.held_queues()],
            "the retry topic, too",
        )
