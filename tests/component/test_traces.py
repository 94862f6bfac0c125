"""Hooks around sends, and message traces of producer and consumer, on an embedded broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ordermq import Message, Producer, PushConsumer, SendCall, TransactionProducer, TransactionState
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError, StateError
from ordermq.remoting.trace import (
    DELAYED,
    HALF,
    NORMAL,
    ConsumeBegun,
    ConsumeEnded,
    Published,
    TraceRecord,
    read,
)
from tests.component.broker.wire_client import WireClient, records
from tests.component.conftest import Seen, eventually

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACED = {"enable_msg_trace": True, "trace_interval_ms": 20}


def traces(broker: EmbeddedBroker, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    """Every record in the trace topic, a queue after the other."""
    with WireClient(broker.port) as client:
        answers = [client.pull(topic, 0, queue_id, count=1_000) for queue_id in range(8)]
    found = [m for answer in answers if answer.code == 0 for m in records(answer.body)]
    return [record for message in found for record in read(message.body.decode())]


def of_kind(broker: EmbeddedBroker, kind: type[TraceRecord], count: int) -> list[TraceRecord]:
    eventually(
        lambda: sum(isinstance(r, kind) for r in traces(broker)) >= count,
        f"{count} {kind.__name__}",
    )
    return [record for record in traces(broker) if isinstance(record, kind)]


def orders(body: bytes = b"paid", **more: object) -> Message:
    return Message("orders", body, **more)  # type: ignore[arg-type]


# -- hooks ---------------------------------------------------------------------------------


class Noted:
    """A hook that keeps what it saw."""

    def __init__(self) -> None:
        self.before_calls: list[tuple[str, str]] = []
        self.after_calls: list[SendCall] = []

    def before(self, call: SendCall) -> None:
        assert call.receipt is None
        call.notes["mine"] = len(self.before_calls)
        self.before_calls.append((call.message_id, threading.current_thread().name))

    def after(self, call: SendCall) -> None:
        self.after_calls.append(call)


def test_a_send_hook_sees_each_message_before_and_what_became_of_it_after(
    broker: EmbeddedBroker,
) -> None:
    hook = Noted()
    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_hook(hook)
    with producer:
        one = producer.send(orders(), sharding_key="k")
        batch = producer.send_batch([orders(b"1"), orders(b"2")])
        many = producer.send_many([(orders(b"3"), "a"), (orders(b"4"), None)])
        with pytest.raises(StateError, match="add_hook"):
            producer.add_hook(hook)
    receipts = [one, *batch, *many]
    assert [id_ for id_, _ in hook.before_calls] == [receipt.message_id for receipt in receipts]
    assert {name for _, name in hook.before_calls} == {threading.current_thread().name}
    assert {call.message_id: call.receipt for call in hook.after_calls} == {
        receipt.message_id: receipt for receipt in receipts
    }
    assert [call.notes["mine"] for call in sorted(hook.after_calls, key=lambda c: c.notes["mine"])]
    assert hook.after_calls[0].sharding_key == "k"
    assert {call.region for call in hook.after_calls} == {"DefaultRegion"}


def test_a_send_hook_hears_of_failures_too(broker: EmbeddedBroker) -> None:
    hook = Noted()
    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_hook(hook)
    with producer, pytest.raises(BrokerError) as refused:
        producer.send(orders(delay_ms=1 << 40))
    (call,) = hook.after_calls
    assert call.exception is refused.value
    assert call.receipt is None


def test_a_send_hook_that_raises_is_logged_and_counted_and_every_message_sent(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def before(self, call: SendCall) -> None:
            raise ValueError("before")

        def after(self, call: SendCall) -> None:
            raise ValueError("after")

    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_hook(Broken())
    with producer:
        batch = producer.send_batch([orders() for _ in range(3)])
        assert [receipt.queue_offset for receipt in batch] == [0, 1, 2]
        assert producer.hook_errors == 6
    # One line per step of a hook, which may raise at each message; all are counted.
    first = batch[0]
    said = f"message {first.message_id}: a send hook raised"
    assert [text.partition(";")[0] for text in caplog.messages] == [
        f"orders: {said}",
        f"{first.message_queue}: {said}",
    ]


def test_what_a_check_raises_is_raised_by_every_way_of_sending_and_nothing_is_sent(
    broker: EmbeddedBroker,
) -> None:
    def check(message: Message) -> None:
        if message.body == b"forbidden":
            raise PermissionError("not this one")

    producer = TransactionProducer(
        "p", check=lambda _: TransactionState.COMMIT, name_servers=broker.name_servers
    )
    producer.add_check(check)
    forbidden = orders(b"forbidden")
    with producer:
        producer.send(orders())
        for send in (
            lambda: producer.send(forbidden),
            lambda: producer.send_batch([orders(), forbidden]),
            lambda: producer.send_many([(forbidden, None)]),
            lambda: list(producer.send_stream([(forbidden, None)])),
            lambda: producer.send_nowait(forbidden),
            lambda: producer.send_oneway(forbidden),
            lambda: producer.send_in_transaction(forbidden, execute=lambda *_: None),
        ):
            with pytest.raises(PermissionError):
                send()
    assert broker.statistics.messages_stored == 1


# -- traces --------------------------------------------------------------------------------


def test_sends_of_a_producer_are_traced(broker: EmbeddedBroker) -> None:
    started_ms = time.time_ns() // 1_000_000
    with Producer("p", name_servers=broker.name_servers, **TRACED) as producer:
        normal = producer.send(orders(tags="t", keys=["o-1", "all"]), sharding_key="k")
        delayed = producer.send(orders(b"later", delay_ms=60_000))
        assert producer.traces_dropped == 0
    found = {record.message_id: record for record in of_kind(broker, Published, 2)}
    record = found[normal.message_id]
    assert isinstance(record, Published)
    assert started_ms <= record.at_ms <= time.time_ns() // 1_000_000
    assert 0 <= record.cost_ms < 20_000
    assert record == Published(
        record.at_ms, "DefaultRegion", "p", "orders", normal.message_id, "t", "o-1 all",
        f"127.0.0.1:{broker.port}", 4, record.cost_ms, NORMAL, normal.offset_message_id, True,
    )  # fmt: skip
    other = found[delayed.message_id]
    assert isinstance(other, Published)
    assert (other.kind, other.tags, other.keys) == (DELAYED, None, None)


def test_a_half_message_is_traced_as_one(broker: EmbeddedBroker) -> None:
    with TransactionProducer(
        "p", check=lambda _: None, name_servers=broker.name_servers, **TRACED
    ) as producer:
        producer.send_in_transaction(orders(), execute=lambda *_: TransactionState.COMMIT)
    (record,) = of_kind(broker, Published, 1)
    assert isinstance(record, Published)
    assert record.kind == HALF


def test_listener_calls_are_traced_with_their_ends(
    broker: EmbeddedBroker,
    producer: Producer,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
) -> None:
    fails = [True]

    def listen(messages: object, context: object) -> None:
        if fails:
            fails.pop()
            raise ValueError("once")
        seen.take(messages, context)

    receipt = producer.send(orders(keys=["o-1"]))
    with make_consumer(listen, suspend_current_queue_time_ms=10, **TRACED) as consumer:
        seen.wait_for_count(1)
        ended = of_kind(broker, ConsumeEnded, 2)
        assert consumer.traces_dropped == 0
    begun = of_kind(broker, ConsumeBegun, 2)
    for record in [*begun, *ended]:
        assert (record.group, record.message_id, record.keys) == ("g", receipt.message_id, "o-1")
    requests = [record.request_id for record in begun if isinstance(record, ConsumeBegun)]
    assert len(set(requests)) == 2
    outcomes = {
        record.request_id: (record.is_success, record.code)
        for record in ended
        if isinstance(record, ConsumeEnded)
    }
    assert outcomes.keys() == set(requests)
    assert sorted(outcomes.values()) == [(False, 2), (True, 0)]


def test_a_trace_is_found_by_the_id_of_its_message(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers, **TRACED) as producer:
        receipts = [producer.send(orders()) for _ in range(3)]
    with WireClient(broker.port) as client:
        ext = {
            "topic": TRACE_TOPIC, "key": receipts[1].message_id, "maxNum": "64",
            "beginTimestamp": "0", "endTimestamp": str(1 << 60),
        }  # fmt: skip
        answer = client.call(12, ext)
    found = [r for m in records(answer.body) for r in read(m.body.decode())]
    assert receipts[1].message_id in [record.message_id for record in found]


def test_another_topic_may_take_the_traces_and_is_not_traced_itself(
    broker: EmbeddedBroker,
) -> None:
    settings = TRACED | {"customized_trace_topic": "mine"}
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        producer.send(orders())
        producer.send(Message("mine", b"not a trace"))
        producer.send(orders())
    eventually(lambda: len(traces(broker, "mine")) == 2, "two traces")


class TestWhereNoBrokerTakesThem:
    @pytest.fixture
    def broker_config(self) -> BrokerConfig:
        return BrokerConfig(broker_name="b", durability="os", auto_create_topics=False)

    def test_traces_are_dropped_and_counted_and_sends_go_on(
        self, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        with WireClient(broker.port) as client:
            ext = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            assert client.call(17, ext).code == 0
        with Producer("p", name_servers=broker.name_servers, **TRACED) as producer:
            for _ in range(3):
                producer.send(orders())
            eventually(lambda: producer.traces_dropped == 3, "all are dropped")
        assert broker.statistics.messages_stored == 3
        assert caplog.text.count("dropping message traces") == 1


def test_traces_beyond_the_buffer_are_dropped_and_counted(broker: EmbeddedBroker) -> None:
    settings = TRACED | {"trace_buffer_max": 5, "trace_interval_ms": 86_400_000}
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        for _ in range(8):
            producer.send(orders())
        # Callers get their receipts first.
        eventually(lambda: producer.traces_dropped == 3, "three are dropped")
    # What waited was sent at the close.
    assert len(of_kind(broker, Published, 5)) == 5


def test_thousands_of_traces_go_in_messages_brokers_take(broker: EmbeddedBroker) -> None:
    settings = TRACED | {"trace_buffer_max": 10_000}
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        events = [
            (orders(keys=["key-of-forty-characters-" + str(n) * 4]), f"k{n}") for n in range(3_000)
        ]
        receipts = producer.send_many(events)
        assert producer.traces_dropped == 0
    found = {record.message_id for record in of_kind(broker, Published, 3_000)}
    assert found == {receipt.message_id for receipt in receipts}


def test_many_traces_are_sent_before_their_interval_is_over(broker: EmbeddedBroker) -> None:
    settings = TRACED | {"trace_buffer_max": 3_000, "trace_interval_ms": 86_400_000}
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        sent = 0
        while sent < 9_000:
            producer.send_many([(orders(), f"k{n % 8}") for n in range(1_000)])
            sent += 1_000
            stored = broker.statistics
            eventually(
                lambda: stored.messages_stored > sent,  # noqa: B023
                "some of them are sent",
            )
        assert producer.traces_dropped == 0


def test_batches_and_oneway_messages_are_traced_as_hooks_see_them(broker: EmbeddedBroker) -> None:
    hook = Noted()
    producer = Producer("p", name_servers=broker.name_servers, **TRACED)
    producer.add_hook(hook)
    with producer:
        receipts = [*producer.send_batch([orders(b"1"), orders(b"22", keys=["o-1"])])]
        producer.send_oneway(orders())  # without a receipt nothing is known to be stored
        producer.send_oneway(orders(), sharding_key="k")
        producer.flush()
    found = of_kind(broker, Published, 3)
    published = {r.message_id: r for r in found if isinstance(r, Published)}
    assert [published[r.message_id].body_length for r in receipts] == [1, 2]
    assert [published[r.message_id].keys for r in receipts] == [None, "o-1"]
    assert published.keys() == {c.message_id for c in hook.after_calls if c.receipt is not None}


def test_a_call_of_a_thousand_messages_is_traced_whole(
    broker: EmbeddedBroker,
    producer: Producer,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
) -> None:
    keys = [f"a-key-of-thirty-characters-{n:04}" for n in range(1_024)]
    receipts = producer.send_batch([orders(keys=[key]) for key in keys])
    settings = TRACED | {"consume_message_batch_max_size": 1_024, "pull_batch_size": 1_024}
    with make_consumer(seen.take, **settings) as consumer:
        seen.wait_for_count(1_024)
        ended = of_kind(broker, ConsumeEnded, 1_024)
        assert consumer.traces_dropped == 0
    assert {record.message_id for record in ended} == {receipt.message_id for receipt in receipts}
