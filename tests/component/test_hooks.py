"""Hooks around listener calls, filters before them, and the rates they are counted in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ordermq import (
    ConsumeCall,
    ConsumeResult,
    ConsumeReturn,
    Message,
    Producer,
    PushConsumer,
    SendCall,
)
from ordermq.broker import EmbeddedBroker
from ordermq.errors import StateError
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


class Notes:
    """A hook that keeps the calls it sees."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.ended: list[tuple[list[int], ConsumeReturn | None, bool]] = []

    def before(self, call: ConsumeCall) -> None:
        call.notes["bodies"] = [int(bytes(message.body)) for message in call.messages]
        assert call.outcome is None
        self.begun.append(call.notes["bodies"])

    def after(self, call: ConsumeCall) -> None:
        assert call.group == "g"
        assert call.message_queue.topic == "orders"
        assert call.spent_ms >= 0
        self.ended.append((call.notes["bodies"], call.outcome, call.is_success))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_hooks_see_each_call_before_and_after_with_its_outcome(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, kind: str
) -> None:
    send_all(producer, numbered(4, keys=1))
    tries: list[int] = []

    def answer(messages: Any, context: Any) -> ConsumeResult | None:
        number = int(bytes(messages[0].body))
        tries.append(number)
        if tries.count(number) == 1 and number == 1:
            raise ValueError("a test's own failure")
        if tries.count(number) == 1 and number == 2:
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return None

    async def answer_async(messages: Any, context: Any) -> ConsumeResult | None:
        return answer(messages, context)

    notes = Notes()
    consumer = make_consumer(
        answer if kind == "plain" else answer_async, suspend_current_queue_time_ms=10
    )
    consumer.add_hook(notes)
    with consumer:
        seen.wait_for_count(4)
    good = ConsumeReturn.SUCCESS, True
    assert notes.ended == [
        ([0], *good),
        ([1], ConsumeReturn.EXCEPTION, False),
        ([1], *good),
        ([2], ConsumeReturn.FAILED, False),
        ([2], *good),
        ([3], *good),
    ]
    assert notes.begun == [bodies for bodies, _, _ in notes.ended]


def test_a_call_that_took_as_long_as_the_timeout_is_labelled_time_out(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(1))
    notes = Notes()

    def listen(messages: Any, context: Any) -> None:
        deadline = consumer._clock.now_ms() + 5
        while consumer._clock.now_ms() < deadline:
            pass
        seen.take(messages, context)

    consumer = make_consumer(listen, consume_timeout_ms=5)
    consumer.add_hook(notes)
    with consumer:
        seen.wait_for_count(1)
    assert notes.ended == [([0], ConsumeReturn.TIME_OUT, True)]


def test_a_hook_that_raises_is_counted_and_stops_nothing(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(20))

    class Broken:
        def before(self, call: ConsumeCall) -> None:
            raise ValueError("a test's own failure")

        def after(self, call: ConsumeCall) -> None:
            raise ValueError("a test's own failure")

    notes = Notes()
    consumer = make_consumer(seen.take)
    consumer.add_hook(Broken())
    consumer.add_hook(notes)
    with consumer:
        seen.wait_for_count(20)
    assert_in_order(seen, 20)
    assert consumer.statistics["hook_errors"] == 40
    assert len(notes.ended) == 20


@pytest.mark.parametrize("batch", [1, 16])
def test_a_filter_drops_messages_that_are_done_and_counted_all_the_same(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, batch: int
) -> None:
    send_all(producer, numbered(200, keys=1))
    consumer = make_consumer(seen.take, consume_message_batch_max_size=batch)
    consumer.add_filter(lambda message: int(bytes(message.body)) % 2 == 0)
    consumer.add_filter(lambda message: int(bytes(message.body)) % 3 == 0)
    with consumer:
        seen.wait_for_count(34)
        eventually(lambda: consumer.statistics["messages_done"] == 200, "all are done")
    assert [int(body) for body in seen.bodies_of("k0")] == list(range(0, 200, 6))
    assert consumer.statistics["filtered"] == 166
    assert committed(broker) == 200


def test_a_partial_result_counts_the_messages_the_listener_got(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60, keys=1))

    def listen(messages: Any, context: Any) -> int:
        queue = context.message_queue.queue_id
        done = (len(messages) + 1) // 2
        seen.add([(queue, m.queue_offset, m.sharding_key, bytes(m.body)) for m in messages[:done]])
        return done

    consumer = make_consumer(
        listen, consume_message_batch_max_size=12, suspend_current_queue_time_ms=10
    )
    consumer.add_filter(lambda message: int(bytes(message.body)) % 3 != 0)
    with consumer:
        seen.wait_for_count(40)
    assert [int(b) for b in seen.bodies_of("k0")] == [n for n in range(60) if n % 3]
    assert committed(broker) == 60


def test_an_ack_index_counts_the_messages_the_listener_got(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    for number in range(8):
        producer.send(Message("orders", str(number).encode()), sharding_key="k")

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if not context.attempt:
            context.ack_index = 0
            context.delay_level = 1

    consumer = make_consumer(listen, concurrent=True, consume_message_batch_max_size=8)
    consumer.add_filter(lambda message: int(bytes(message.body)) % 2 == 1)
    with consumer:
        seen.wait_for(lambda got: {b for _, _, _, b in got} >= {b"1", b"3", b"5", b"7"}, "all odd")
        counts = consumer.statistics
        eventually(lambda: counts["sent_back"] + counts["messages_done"] >= 8, "all are settled")
    assert not {body for _, _, _, body in seen.deliveries} & {b"0", b"2", b"4", b"6"}


ANSWERS: list[tuple[Any, int | None, int]] = [  # result, ack_index, messages done of 8
    (None, None, 8),
    (None, 0, 1),
    (ConsumeResult.SUCCESS, 6, 7),
    (ConsumeResult.SUCCESS, -1, 0),
    (ConsumeResult.SUCCESS, 99, 8),
    (ConsumeResult.SUSPEND, 3, 0),
    (5, None, 5),
    (8, None, 8),
    ("SUCCESS", None, 0),  # nobody understands it
    (True, None, 0),
    (9, None, 0),
    (None, True, 0),  # an `ack_index` that is no number
]


@pytest.mark.parametrize(("result", "ack_index", "done"), ANSWERS)
def test_hooks_are_told_what_is_sent_back(
    producer: Producer,
    make_consumer: MakeConsumer,
    result: Any,
    ack_index: int | None,
    done: int,
) -> None:
    bodies = [Message("orders", str(number).encode()) for number in range(8)]
    producer.send_batch(bodies, sharding_key="k")

    def listen(messages: Any, context: Any) -> Any:
        if context.attempt:
            return None
        context.ack_index = ack_index
        return result

    class Told:
        def __init__(self) -> None:
            self.calls: list[ConsumeCall] = []

        def before(self, call: ConsumeCall) -> None: ...

        def after(self, call: ConsumeCall) -> None:
            self.calls.append(call)

    hook = Told()
    consumer = make_consumer(listen, concurrent=True, consume_message_batch_max_size=8)
    consumer.add_hook(hook)
    with consumer:
        counts = consumer.statistics
        eventually(lambda: counts["sent_back"] + counts["messages_done"] >= 8, "all are settled")
    first = hook.calls[0]
    assert len(first.messages) == 8
    assert first.done == done
    assert first.is_success == (done == 8)
    wanted = ConsumeReturn.SUCCESS if done == 8 else ConsumeReturn.FAILED
    assert first.outcome is wanted


@pytest.mark.parametrize("namespace", ["", "tenant"])
def test_hooks_are_told_the_namespace_that_names_leave_out(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, namespace: str
) -> None:
    told: list[tuple[str, str, str, str]] = []

    class Told:
        def before(self, call: Any) -> None:
            told.append(self.names("before", call))

        def after(self, call: Any) -> None:
            told.append(self.names("after", call))

        def names(self, step: str, call: SendCall | ConsumeCall) -> tuple[str, str, str, str]:
            topic = call.message.topic if isinstance(call, SendCall) else call.message_queue.topic
            return step, call.namespace, call.group, topic

    producer = Producer("p", name_servers=broker.name_servers, namespace=namespace)
    producer.add_hook(Told())
    with producer:
        producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = make_consumer(seen.take, namespace=namespace)
    consumer.add_hook(Told())
    with consumer:
        seen.wait_for_count(1)
    assert told == [
        (step, namespace, group, "orders") for group in "pg" for step in ("before", "after")
    ]


def test_throughput_of_pulls_and_calls_is_counted_by_topic(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(100)
        eventually(lambda: consumer.statistics["messages_done"] == 100, "turns ended")
        rates = consumer.statistics.rates("orders")
    assert rates.consume_ok_tps > 0
    assert rates.pull_tps > 0
    assert rates.consume_failed_tps == 0
    assert rates.pull_rt_ms >= 0


def test_hooks_and_filters_are_added_before_the_start(
    make_consumer: MakeConsumer, seen: Seen
) -> None:
    consumer = make_consumer(seen.take)
    with consumer:
        with pytest.raises(StateError, match="add_hook before"):
            consumer.add_hook(Notes())
        with pytest.raises(StateError, match="add_filter before"):
            consumer.add_filter(bool)
