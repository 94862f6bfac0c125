"""The API of the old clients, on RocketMQ."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from ordermq.rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from tests.interop.cluster import DEADLINE_S, eventually
from tests.interop.run import Run


class Inbox:
    """A callback that records messages and rejects the first delivery of some bodies."""

    def __init__(self, *refused: bytes) -> None:
        self._lock = threading.Lock()
        self._refused = set(refused)
        self.messages: list[ReceivedMessage] = []

    def __call__(self, got: ReceivedMessage) -> ConsumeStatus:
        with self._lock:
            self.messages.append(got)
            if got.body in self._refused:
                self._refused.remove(got.body)
                return ConsumeStatus.RECONSUME_LATER
            return ConsumeStatus.CONSUME_SUCCESS

    def bodies(self) -> list[bytes]:
        with self._lock:
            return [each.body for each in self.messages]


@pytest.fixture
def topic(run: Run) -> str:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    return run.topic


@pytest.fixture
def producer(run: Run, topic: str) -> Iterator[Producer]:
    made = Producer(f"producer-{run.group}", True)
    made.set_name_server_address(run.cluster.name_servers)
    with made:
        yield made


@pytest.fixture
def consumers(run: Run) -> Iterator[list[PushConsumer]]:
    made: list[PushConsumer] = []
    yield made
    for each in made:
        each.shutdown()


def push_consumer(run: Run, consumers: list[PushConsumer], inbox: Inbox, orderly: bool) -> None:
    consumer = PushConsumer(run.group, orderly)
    consumer.set_name_server_address(run.cluster.name_servers)
    consumer.set_message_batch_max_size(4)
    consumer.subscribe(run.topic, inbox)
    consumers.append(consumer)
    consumer.start()


def message(topic: str, body: str) -> Message:
    made = Message(topic)
    made.set_body(body)
    made.set_keys(f"key-{body}")
    made.set_property("number", body)
    return made


def puller(run: Run) -> PullConsumer:
    consumer = PullConsumer(f"puller-{run.group}")
    consumer.set_namesrv_addr(run.cluster.name_servers)
    return consumer


def test_keys_sent_through_the_old_api_arrive_in_order_at_an_orderly_consumer(
    run: Run, topic: str, producer: Producer, consumers: list[PushConsumer]
) -> None:
    for number in range(200):
        sent = producer.send_orderly_with_sharding_key(
            message(topic, str(number)), f"k{number % 7}"
        )
        assert sent.status == SendStatus.OK
    inbox = Inbox(b"40", b"41", b"150")
    push_consumer(run, consumers, inbox, True)
    eventually(lambda: len(inbox.bodies()) >= 203, "200 messages, three of them twice")
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for got in inbox.messages:
        by_key[got["__SHARDINGKEY"]].append(int(got["number"]))
    assert len(by_key) == 7
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key!r} out of order"
        assert set(numbers) == set(range(int(key[1:]), 200, 7))


def test_messages_that_a_concurrent_callback_rejects_are_redelivered(
    run: Run, topic: str, producer: Producer, consumers: list[PushConsumer]
) -> None:
    for number in range(40):
        producer.send_sync(message(topic, str(number)))
    inbox = Inbox(b"3", b"17")
    push_consumer(run, consumers, inbox, False)
    eventually(lambda: len(set(inbox.bodies())) == 40, "all 40")
    eventually(lambda: len(inbox.bodies()) >= 42, "two again")
    again = [got for got in inbox.messages if got.reconsume_times]
    assert {got.body for got in again} >= {b"3", b"17"}
    assert {got.topic for got in again} == {topic}


def test_every_send_method_of_the_old_api_is_pulled_from_both_brokers(
    run: Run, topic: str, producer: Producer
) -> None:
    told = threading.Event()
    results: list[SendResult] = []

    def succeeded(result: SendResult) -> None:
        results.append(result)
        told.set()

    def select(mq_size: int, msg: ReceivedMessage, arg: int) -> int:
        assert mq_size == 8
        return ctypes.cast(arg, ctypes.POINTER(ctypes.c_int))[0]

    for number in range(8):
        producer.send_orderly(message(topic, f"orderly{number}"), number)
        producer.send_orderly(message(topic, f"chosen{number}"), number, queue_selector=select)
    producer.send_oneway(message(topic, "oneway"))
    producer.send_oneway_orderly(message(topic, "oneway5"), 5)
    assert producer.send_batch([message(topic, "batch0"), message(topic, "batch1")]).status == 0
    producer.send_async(message(topic, "async"), succeeded, None)
    assert told.wait(DEADLINE_S)
    assert results[0].status == SendStatus.OK
    # 0.4.4 kept one offset for the queues of one number on all brokers, and lost the others'.
    with puller(run) as consumer:
        found: dict[bytes, ReceivedMessage] = {}

        def all_there() -> bool:
            found.update({got.body: got for got in consumer.pull(topic, max_num=3)})
            return len(found) == 21

        eventually(all_there, "21 messages")
        assert list(consumer.pull(topic)) == []
    for number in range(8):
        assert found[f"orderly{number}".encode()].queue_id == number % 4
        assert found[f"chosen{number}".encode()].queue_id == number % 4
    assert found[b"async"].id == results[0].msg_id
    assert found[b"oneway5"].keys == b"key-oneway5"


def test_transactions_of_the_old_api_end_as_their_local_transaction(run: Run, topic: str) -> None:
    checked: list[bytes] = []

    def check(got: ReceivedMessage) -> TransactionStatus:
        checked.append(got.body)
        return TransactionStatus.COMMIT

    answers = {b"kept": TransactionStatus.COMMIT, b"gone": TransactionStatus.ROLLBACK}
    producer = TransactionMQProducer(f"producer-{run.group}", check)
    producer.set_name_server_address(run.cluster.name_servers)
    with producer, puller(run) as consumer:
        for body in ("gone", "kept"):
            sent = producer.send_message_in_transaction(
                message(topic, body), lambda got, user_args: answers[got.body]
            )
            assert sent.status == SendStatus.OK
        bodies: list[bytes] = []

        def is_there() -> bool:
            bodies.extend(got.body for got in consumer.pull(topic))
            return bool(bodies)

        eventually(is_there, "the committed one")
        assert bodies == [b"kept"]
        assert checked == []
