"""A producer on an embedded broker: order, pipelining, refusals, the end
(docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import pytest

from ordermq import Message, MessageQueue, Producer, PushConsumer, SendReceipt, SendStatus
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    OrderingError,
    RequestTimeout,
    RouteError,
    StateError,
)
from ordermq.model.message import MessageView
from ordermq.producer.queue_selector import java_index
from ordermq.remoting.bodies import BrokerData
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, Seen, assert_in_order, eventually, numbered


def orders(body: object = "x", topic: str = "orders") -> Message:
    return Message(topic, str(body).encode())


def places(receipts: Sequence[SendReceipt]) -> dict[MessageQueue, list[int]]:
    found: dict[MessageQueue, list[int]] = defaultdict(list)
    for receipt in receipts:
        found[receipt.message_queue].append(receipt.queue_offset)
    return found


def create_topic(broker: EmbeddedBroker, topic: str, queues: int) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    with WireClient(broker.port) as client:
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


# -- where messages go ---------------------------------------------------------------------


def test_a_receipt_tells_where_the_message_lies(producer: Producer) -> None:
    first = producer.send(orders(), sharding_key="o-17")
    second = producer.send(orders(), sharding_key="o-17")
    assert first.message_queue == second.message_queue
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.status is SendStatus.SEND_OK
    assert first.message_id != second.message_id
    assert len(first.offset_message_id) == 32


def test_a_key_goes_where_javas_selector_sends_it(producer: Producer) -> None:
    producer.send(orders())  # creates the topic
    assert len(producer.queues("orders")) == 8
    for key in ("order-1", "订单-7", -5, "polygenelubricants"):
        queue = producer.send(orders(), sharding_key=key).message_queue
        assert queue.queue_id == java_index(key, 8)


class Word(str, Enum):  # noqa: UP042 - what is meant: formatted, it is its name
    """Names and keys as many programs have them."""

    TOPIC = "orders"
    GROUP = "g"
    NAMESPACE = "shop"
    TAG = "paid"
    KEY = "o-17"


@pytest.mark.parametrize("namespace", ["", Word.NAMESPACE], ids=["plain", "namespace"])
def test_names_tags_and_keys_of_an_enum_are_their_values(
    broker: EmbeddedBroker, seen: Seen, namespace: str
) -> None:
    settings: Any = {"name_servers": broker.name_servers, "namespace": namespace}
    consumer = PushConsumer(Word.GROUP, consume_from_where="first_offset", **settings)
    consumer.subscribe(Word.TOPIC, Word.TAG)
    told = []

    @consumer.orderly
    def listen(messages: Sequence[MessageView], context: Any) -> None:
        told.extend(
            (each.topic, each.tags, each.keys, each.properties["mine"]) for each in messages
        )
        seen.take(messages, context)

    with Producer(Word.GROUP, **settings) as producer:
        for topic, tag, key in (Word.TOPIC, Word.TAG, Word.KEY), ("orders", "paid", "o-17"):
            message = Message(topic, b"x", tags=tag, keys=[key], properties={"mine": key})
            receipt = producer.send(message, sharding_key=key)
            assert receipt.message_queue.queue_id == java_index("o-17", 4)
            assert type(receipt.message_queue.topic) is str
        with consumer:
            seen.wait_for_count(2)
    assert told == 2 * [("orders", "paid", ["o-17"], "o-17")]
    assert seen.bodies_of("o-17") == [b"x", b"x"]


def test_messages_without_a_key_go_to_the_queues_in_turn(producer: Producer) -> None:
    receipts = [producer.send(orders()) for _ in range(16)]
    assert sorted(map(len, places(receipts).values())) == [2] * 8


def test_a_queue_given_by_hand_is_taken(producer: Producer) -> None:
    producer.send(orders())
    queue = producer.queues("orders")[5]
    assert producer.send(orders(), sharding_key="order-1", queue=queue).message_queue == queue
    with pytest.raises(ConfigError, match="another topic"):
        producer.send(orders(topic="other"), queue=queue)


def test_a_selector_of_the_callers_own_chooses_and_is_checked(broker: EmbeddedBroker) -> None:
    stranger = MessageQueue("orders", "nowhere", 0)
    answers = iter(["last", stranger])

    def choose(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        answer = next(answers)
        return queues[-1] if isinstance(answer, str) else answer

    with Producer("p", name_servers=broker.name_servers, selector=choose) as producer:
        assert producer.send(orders(), sharding_key="k").message_queue.queue_id == 3
        with pytest.raises(ConfigError, match="expected one of the queues it was given"):
            producer.send(orders(), sharding_key="k")


def test_an_unknown_topic_is_created_with_the_queues_asked_for(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=3) as producer:
        producer.send(orders(topic="fresh"), sharding_key="k")
        assert len(producer.queues("fresh")) == 3


# -- order ---------------------------------------------------------------------------------


def test_send_many_keeps_the_order_of_each_key_and_hands_receipts_out_in_order(
    producer: Producer,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
) -> None:
    events = numbered(3_000, keys=20)
    receipts = producer.send_many(events, max_in_flight=64)
    assert len(receipts) == 3_000
    by_key: dict[str, list[SendReceipt]] = defaultdict(list)
    for (_, key), receipt in zip(events, receipts, strict=True):
        by_key[key].append(receipt)
    for of_key in by_key.values():
        (offsets,) = places(of_key).values()
        assert offsets == sorted(offsets)
    make_consumer(seen.take, consume_message_batch_max_size=32).start()
    seen.wait_for_count(3_000)
    assert_in_order(seen, 3_000, keys=20)


def test_send_many_keeps_the_order_while_its_topics_are_still_unknown(
    producer: Producer,
) -> None:
    # Each message then waits for a route, and whoever is answered first would go first.
    events = [(orders(n, topic=f"t{n % 3}"), "k") for n in range(300)]
    receipts = producer.send_many(events, max_in_flight=8)
    for offsets in places(receipts).values():
        assert offsets == list(range(100))


def test_messages_in_flight_are_pipelined_into_batches(producer: Producer) -> None:
    producer.send(orders())
    receipts = producer.send_many([(orders(n), "k") for n in range(500)])
    (offsets,) = places(receipts).values()
    assert offsets == list(range(offsets[0], offsets[0] + 500))


def test_send_stream_takes_an_endless_source_no_further_than_in_flight(producer: Producer) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield orders(taken), "k"

    receipts = producer.send_stream(endless(), max_in_flight=10)  # type: ignore[arg-type]
    for _ in range(10):
        next(receipts)
    assert taken <= 20


def test_send_many_has_sent_when_it_returns(producer: Producer) -> None:
    receipts = producer.send_many((orders(n), "k") for n in range(10))
    assert [receipt.queue_offset for receipt in receipts] == list(range(10))
    producer.send_many([(orders(10), "k")])  # nobody reads the receipts
    assert producer.send(orders(11), sharding_key="k").queue_offset == 11


def test_a_stream_that_is_dropped_unread_warns_and_has_sent_nothing(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    with pytest.warns(RuntimeWarning, match=r"send_stream\(\) was never read, so nothing was sent"):
        producer.send_stream([(orders(), "k")])  # no name holds it, so it is dropped here
    producer.flush()
    assert broker.statistics.messages_stored == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in producer.send_stream((orders(n), "k") for n in range(10)):
            break  # read, if only once
        gc.collect()


def test_arguments_of_a_stream_are_checked_in_the_call(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers) as producer:
        with pytest.raises(ConfigError, match=r"max_in_flight=1: expected 2\.\.1000000"):
            producer.send_stream([], max_in_flight=1)
        with pytest.raises(ConfigError, match=r"max_in_flight=1: expected 2\.\.1000000"):
            producer.send_many([], max_in_flight=1)
    with pytest.raises(StateError, match="not running"):
        producer.send_stream([])


def test_what_is_no_pair_or_no_queue_is_refused_in_words(producer: Producer) -> None:
    with pytest.raises(ConfigError, match=r"got a \(str, str\): expected pairs"):
        producer.send_many([("orders", "order-17")])
    with pytest.raises(ConfigError, match=r"got a Message: expected pairs \(message, sharding key"):
        producer.send_many([orders()])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"got a \(Message\): expected pairs"):
        producer.send_many([(orders(),)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"queue=3: expected a MessageQueue, one of producer\."):
        producer.send(orders(), queue=3)  # type: ignore[arg-type]
    assert len(producer.send_many([(orders(), None)])) == 1


def test_a_producer_that_does_not_run_says_what_to_do(broker: EmbeddedBroker) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    with pytest.raises(StateError, match=r"call start\(\) \(asyncio: await start\(\)\), or use"):
        producer.send(orders())
    with producer:
        producer.send(orders())
    with pytest.raises(StateError, match=r"it was closed; create a new one \[group='p'\]"):
        producer.send(orders())


def test_send_nowait_keeps_the_order_and_its_futures_tell_the_outcome(producer: Producer) -> None:
    futures = [producer.send_nowait(orders(n), sharding_key="k") for n in range(200)]
    producer.flush()
    assert all(future.done() for future in futures)
    assert [future.result().queue_offset for future in futures] == list(range(200))
    assert not futures[0].cancel()
    late = producer.send_nowait(orders(200), sharding_key="k")
    assert not late.cancel()  # it is sent, whatever its caller thinks of it later
    assert late.result(DEADLINE_S).queue_offset == 200


def test_a_failed_send_nowait_raises_where_its_result_is_read(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers, selector=lambda *_: None) as producer:  # type: ignore[arg-type, return-value]
        future = producer.send_nowait(orders(), sharding_key="k")
        producer.flush()
        with pytest.raises(ConfigError, match="expected one of the queues it was given"):
            future.result(DEADLINE_S)


def test_flush_waits_no_longer_than_it_was_told() -> None:
    with EmbeddedBroker() as broker:
        producer = Producer("p", name_servers=broker.name_servers, send_timeout_ms=60_000)
        producer.start()
        producer.send(orders(), sharding_key="k")
        producer.queues("orders")  # the route is known: only the send itself is left to fail
    future = producer.send_nowait(orders(), sharding_key="k")
    with pytest.raises(RequestTimeout, match=r"wait for their receipts after 0\.05 s"):
        producer.flush(0.05)
    producer.close(0.05)
    with pytest.raises((StateError, RequestTimeout)):
        future.result(DEADLINE_S)


def test_a_batch_lies_back_to_back_in_one_queue(producer: Producer) -> None:
    receipts = producer.send_batch([orders(n) for n in range(50)], sharding_key="k")
    (offsets,) = places(receipts).values()
    assert offsets == list(range(50))
    for wrong in ([], [orders(), orders(topic="other")]):
        with pytest.raises(ConfigError):
            producer.send_batch(wrong)


def test_asend_serves_any_loop(producer: Producer) -> None:
    async def work() -> list[SendReceipt]:
        return [await producer.asend(orders(n), sharding_key="k") for n in range(5)]

    (offsets,) = places(asyncio.run(work())).values()
    assert offsets == [0, 1, 2, 3, 4]


def test_threads_send_at_the_same_time(producer: Producer) -> None:
    receipts: list[SendReceipt] = []

    def send(key: str) -> None:
        for n in range(50):
            receipts.append(producer.send(orders(n), sharding_key=key))

    threads = [threading.Thread(target=send, args=(f"k{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(r.message_queue, r.queue_offset) for r in receipts}) == 400


def test_a_oneway_message_arrives_without_a_receipt(
    producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    producer.send(orders("first"), sharding_key="k")
    producer.send_oneway(orders("second"), sharding_key="k")
    make_consumer(seen.take).start()
    seen.wait_for_count(2)
    assert seen.bodies_of("k") == [b"first", b"second"]


# -- refusals ------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_before_it_is_sent(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers, max_message_bytes=10) as producer:
        producer.send(Message("orders", b"x" * 10))
        with pytest.raises(ConfigError, match="11 bytes: expected at most 10"):
            producer.send(Message("orders", b"x" * 11))


def test_what_the_broker_refuses_does_not_fail_the_key(broker: EmbeddedBroker) -> None:
    settings = {"max_message_bytes": 16_000_000, "send_timeout_ms": 10_000}
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        with pytest.raises(BrokerError) as caught:
            producer.send(Message("orders", random.randbytes(4_194_305)), sharding_key="k")
        assert caught.value.response_code == 13
        producer.send(orders(), sharding_key="k")


@pytest.mark.parametrize("broker_config", [BrokerConfig(max_message_bytes=20_000)])
def test_messages_that_the_broker_takes_one_by_one_are_not_refused_for_their_company(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer]
) -> None:
    plain = {"compress_msg_body_over_howmuch": 1 << 31}
    bodies = [b"%03d" % number + b"x" * 5_000 for number in range(60)]
    with Producer("p", name_servers=broker.name_servers, **plain) as producer:
        futures = [
            producer.send_nowait(Message("orders", body), sharding_key="k") for body in bodies
        ]
        offsets = [future.result(DEADLINE_S).queue_offset for future in futures]
        assert offsets == list(range(60))
        receipts = producer.send_many([(Message("orders", body), "k") for body in bodies])
        assert [receipt.queue_offset for receipt in receipts] == list(range(60, 120))
        with pytest.raises(BrokerError, match="max_batch_bytes"):
            producer.send_batch([Message("orders", body) for body in bodies], sharding_key="k")
        producer.send(orders("last"), sharding_key="k")
    seen = Seen()
    make_consumer(seen.take).start()
    seen.wait_for_count(121)
    assert seen.bodies_of("k") == [*bodies, *bodies, b"last"]


@pytest.mark.parametrize("topic", ["a b", "", "SCHEDULE_TOPIC_XXXX"])
def test_an_illegal_topic_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match="topic"):
        Message(topic, b"x")


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "a b", "g" * 121])
def test_an_illegal_group_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        Producer(group, name_servers="127.0.0.1:9876")


def test_a_message_that_fails_in_send_stream_raises_where_its_receipt_is_read(
    producer: Producer,
) -> None:
    events = [(orders(n), "k") for n in range(5)]
    events[3] = (Message("orders", b"x", properties={"TAGS": "mine"}), "k")
    receipts = producer.send_stream(events)
    assert [next(receipts).queue_offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="is reserved by the protocol"):
        next(receipts)


def test_without_a_name_server_a_send_says_who_does_not_answer() -> None:
    with Producer("p", name_servers="127.0.0.1:1") as producer, pytest.raises(RouteError) as caught:
        producer.send(orders())
    assert "127.0.0.1:1" in str(caught.value)


def test_a_topic_whose_queues_change_stops_its_keys_unless_that_is_allowed(
    broker: EmbeddedBroker,
) -> None:
    create_topic(broker, "orders", 4)
    settings = {"name_servers": broker.name_servers, "route_interval_ms": 10}
    with (
        Producer("strict", **settings) as strict,
        Producer("easy", **settings, allow_queue_change=True) as easy,
    ):
        for producer in (strict, easy):
            producer.send(orders(), sharding_key="k")
        create_topic(broker, "orders", 8)
        eventually(lambda: len(easy.queues("orders")) == 8, "the new queues are known")

        def is_refused() -> bool:
            try:
                strict.send(orders(), sharding_key="k")
            except OrderingError as error:
                return "had 4 queues" in str(error) and "has 8 now" in str(error)
            return False

        eventually(is_refused, "the strict producer refuses")
        taken = {strict.send(orders()).message_queue.queue_id for _ in range(16)}
        assert taken == set(range(8))  # what has no key goes to the new queues too
        assert easy.send(orders(), sharding_key="k").message_queue in easy.queues("orders")


# -- the end -------------------------------------------------------------------------------


def test_closing_sends_what_waits_and_awaits_what_is_in_flight(broker: EmbeddedBroker) -> None:
    async def work(producer: Producer) -> list[asyncio.Task[SendReceipt]]:
        tasks = [asyncio.create_task(producer.asend(orders(n))) for n in range(200)]
        await asyncio.sleep(0.001)
        await asyncio.to_thread(producer.close)
        await asyncio.wait(tasks)
        return tasks

    producer = Producer("p", name_servers=broker.name_servers)
    producer.start()
    producer.send(orders())
    tasks = asyncio.run(work(producer))
    assert all(task.exception() is None for task in tasks)


def test_a_producer_that_does_not_run_says_so(broker: EmbeddedBroker) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    with pytest.raises(StateError, match=r"call start\(\)"):
        producer.send(orders())
    producer.start()
    with pytest.raises(StateError, match="only once"):
        producer.start()
    producer.close()
    producer.close()
    with pytest.raises(StateError):
        producer.send(orders())


def test_send_many_goes_on_when_two_threads_hand_in_at_once(producer: Producer) -> None:
    counts: list[int] = []

    def send(key: str) -> None:
        events = [(orders(n), key) for n in range(2_000)]
        counts.append(len(producer.send_many(events, max_in_flight=4)))

    threads = [threading.Thread(target=send, args=(f"k{n}",), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert counts == [2_000] * 4


def test_a_wake_up_that_finds_nothing_does_not_put_send_many_to_sleep(
    producer: Producer,
) -> None:
    # Two threads hand in at once: the look one of them woke takes what both brought, and the
    # other's look finds nothing. The next message must wake a look all the same.
    accumulator = producer._accumulator
    assert accumulator is not None
    producer._live().runtime.post(accumulator._drain)
    assert len(producer.send_many([(orders(), "k")])) == 1


def test_a_message_handed_in_while_the_producer_closes_is_turned_away(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    producer.start()
    producer.close()
    monkeypatch.setattr(producer, "_live", lambda: producer._client)  # it looked just before
    with pytest.raises(StateError, match="not running"):
        producer.send(orders())


def test_send_stream_read_on_after_the_close_says_so(broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=broker.name_servers) as producer:
        receipts = producer.send_stream(((orders(n), "k") for n in range(100)), max_in_flight=2)
        next(receipts)
    with pytest.raises(StateError, match="not running"):
        list(receipts)


def test_closing_gives_up_at_its_deadline_and_tells_the_sender() -> None:
    broker = EmbeddedBroker()
    broker.start()
    producer = Producer("p", name_servers=broker.name_servers, send_timeout_ms=60_000)
    producer.start()
    producer.send(orders(), sharding_key="k")
    producer.queues("orders")  # the route is known: only the send itself is left to fail
    broker.close()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            producer.send(orders(), sharding_key="k")
        except (StateError, RequestTimeout) as error:
            failures.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    senders = producer._senders
    assert senders is not None
    eventually(lambda: not senders.are_idle, "it is sending")
    producer.close(timeout_s=0.05)
    thread.join(10)
    assert not thread.is_alive()
    assert len(failures) == 1


# -- compressed bodies ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_large_bodies_lie_compressed_and_arrive_as_they_were(
    kind: str,
    broker: EmbeddedBroker,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
) -> None:
    large, short = b"all work and no play " * 1_000, b"short"
    stored: list[tuple[int, int]] = []

    def take(messages: Sequence[MessageView], context: object) -> None:
        stored.extend((message.sys_flag, len(message.stored_body)) for message in messages)
        seen.take(messages, context)

    with Producer("p", name_servers=broker.name_servers, compress_type=kind) as producer:
        producer.send(Message("orders", large), sharding_key="k")
        producer.send(Message("orders", short), sharding_key="k")
        producer.send(Message("orders", large, delay_level=1), sharding_key="k")
        producer.send_oneway(Message("orders", large), sharding_key="k")
    # Another producer: the one-way message could share the request of a batch, uncompressed.
    with Producer("p", name_servers=broker.name_servers, compress_type=kind) as producer:
        producer.send_batch([Message("orders", large)] * 2, sharding_key="k")
    with make_consumer(take):
        seen.wait_for_count(6)
    assert sorted(seen.bodies_of("k")) == sorted([large] * 5 + [short])
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}[kind]
    assert sorted(flag & 0x701 for flag, _ in stored) == sorted([flags] * 3 + [0] * 3)
    assert all(size < len(large) // 10 for flag, size in stored if flag & 1)


def test_a_compressor_that_is_not_installed_is_refused_at_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(ConfigError, match=r"lz4.*ordermq\[compression\]"):
        Producer("p", name_servers=broker.name_servers, compress_type="lz4")


# -- brokers that do not take a message ----------------------------------------------------


@pytest.mark.parametrize("send_latency_fault", [False, True])
def test_unordered_messages_go_to_another_broker_and_ordered_ones_stay_with_theirs(
    broker: EmbeddedBroker, send_latency_fault: bool
) -> None:
    create_topic(broker, "orders", 2)
    with Producer(
        "p", name_servers=broker.name_servers, retry_times=1, retry_delay_ms=1,
        reconnect_delay_ms=1, send_latency_fault=send_latency_fault,
    ) as producer:  # fmt: skip
        (first, *_) = producer.queues("orders")
        away = MessageQueue("orders", "away", 0)
        routes = producer._live().routes
        routes._learn(BrokerData("away", {0: "127.0.0.1:1"}))  # nobody listens there
        producer._routing._unkeyed = lambda queues: (away, first)
        producer._routing._latest.clear()
        receipts = [producer.send(orders()) for _ in range(6)]
        assert {receipt.message_queue for receipt in receipts} == {first}
        for number in range(4):
            batch = producer.send_batch([orders() for _ in range(3)])
            offsets = [6 + 3 * number + at for at in range(3)]
            assert [receipt.message_queue for receipt in batch] == [first] * 3
            assert [receipt.queue_offset for receipt in batch] == offsets
        with pytest.raises(ConnectFailed):
            producer.send(orders(), queue=away)
        with pytest.raises(ConnectFailed):
            producer.send_batch([orders(), orders()], queue=away)
