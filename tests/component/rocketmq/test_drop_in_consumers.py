"""The old clients' consumers: callbacks a message, the two clients' ways to answer, pulls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.errors import RouteError, StateError
from ordermq.rocketmq import exceptions
from ordermq.rocketmq.client import (
    ConsumeStatus,
    MessageModel,
    MessageProperty,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RecvMessage,
)
from ordermq.rocketmq.pull_consumer import PulledQueue
from tests.component.conftest import eventually
from tests.component.rocketmq.conftest import Inbox, message

Make = Callable[..., PushConsumer]


def send(producer: Producer, *bodies: str, key: str = "k", topic: str = "orders") -> None:
    for body in bodies:
        producer.send_orderly_with_sharding_key(message(body, topic), key)


def test_a_message_sent_before_the_group_began_is_received(
    producer: Producer, push_consumer: Make
) -> None:
    send(producer, "early")
    inbox = Inbox()
    consumer = push_consumer()
    consumer.subscribe("orders", inbox)
    consumer.start()
    assert inbox.wait_for(1) == [b"early"]
    assert inbox.messages[0][MessageProperty.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] != b""
    assert repr(inbox.messages[0]).startswith("<ReceivedMessage topic='orders' id=")


def test_an_orderly_consumer_repeats_a_message_before_its_successor(
    producer: Producer, push_consumer: Make
) -> None:
    send(producer, "1", "2", "3")
    failures = iter([ConsumeStatus.RECONSUME_LATER])

    def answer(got: ReceivedMessage) -> object:
        return next(failures, 0) if got.body == b"2" else ConsumeStatus.CONSUME_SUCCESS

    inbox = Inbox(answer)
    consumer = push_consumer("g", orderly=True)
    consumer.set_message_batch_max_size(8)
    consumer.subscribe("orders", inbox)
    consumer.start()
    # "1" is done though its batch failed: what a callback finished is not repeated.
    assert inbox.wait_for(4) == [b"1", b"2", b"2", b"3"]


@pytest.mark.parametrize("answer", [None, 7, "raises"])
def test_whoever_answers_nothing_gets_the_message_again(
    producer: Producer, push_consumer: Make, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([answer])

    def callback(got: ReceivedMessage) -> object:
        first = next(answers, ConsumeStatus.CONSUME_SUCCESS)
        if first == "raises":
            raise RuntimeError("mine")
        return first

    send(producer, "1")
    inbox = Inbox(callback)
    consumer = push_consumer("g", True)
    consumer.subscribe("orders", inbox)
    consumer.start()
    assert inbox.wait_for(2) == [b"1", b"1"]
    assert "message=<MessageView orders@b/" in caplog.text
    assert ("mine" if answer == "raises" else "expected ConsumeStatus") in caplog.text


def test_with_the_names_of_0_4_4_no_answer_is_done_and_raising_is_not(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    send(producer, "1", "2")
    failures = iter(["1"])

    def callback(got: RecvMessage) -> object:
        if got.body == b"2" and next(failures, None):
            raise RuntimeError("mine")
        return None

    inbox = Inbox(callback)
    consumer = PushConsumer("g", True)
    consumer.set_namesrv_addr(broker.name_servers)
    consumer.subscribe("orders", inbox)
    with consumer:
        assert inbox.wait_for(3) == [b"1", b"2", b"2"]


def test_with_the_names_of_0_4_4_reconsume_later_is_still_obeyed(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    send(producer, "1")
    answers = iter([ConsumeStatus.RECONSUME_LATER])
    inbox = Inbox(lambda got: next(answers, None))
    consumer = PushConsumer("g", True)
    consumer.set_namesrv_addr(broker.name_servers)
    consumer.subscribe("orders", inbox)
    with consumer:
        assert inbox.wait_for(2) == [b"1", b"1"]


def test_a_concurrent_failure_comes_again_from_the_retry_topic(
    broker: EmbeddedBroker, producer: Producer, push_consumer: Make
) -> None:
    send(producer, "1", "2")
    inbox = Inbox(
        lambda got: (
            ConsumeStatus.RECONSUME_LATER
            if got.body == b"1" and got.reconsume_times == 0
            else ConsumeStatus.CONSUME_SUCCESS
        )
    )
    consumer = push_consumer()
    consumer.set_thread_count(3)
    consumer.subscribe("orders", inbox)
    consumer.start()
    bodies = inbox.wait_for(3)  # the first pause of a retry is 10 s
    assert sorted(bodies) == [b"1", b"1", b"2"]
    again = inbox.messages[-1]
    assert (again.topic, again.body, again.reconsume_times) == ("orders", b"1", 1)


def test_each_topic_has_its_own_callback_and_expression(
    producer: Producer, push_consumer: Make
) -> None:
    # In both old clients the callback subscribed last got the messages of every topic.
    orders, bills = Inbox(), Inbox()
    consumer = push_consumer()
    consumer.subscribe("orders", orders, "paid")
    consumer.subscribe(b"bills", bills)
    for tag in ("paid", "open"):
        tagged = message(tag)
        tagged.set_tags(tag)
        producer.send_sync(tagged)
    send(producer, "bill", topic="bills")
    consumer.start()
    assert bills.wait_for(1) == [b"bill"]
    assert orders.wait_for(1) == [b"paid"]


def test_broadcasting_reaches_every_member(
    producer: Producer, push_consumer: Make, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    send(producer, "before")
    inboxes = {name: Inbox() for name in ("one", "two")}
    for name, inbox in inboxes.items():
        consumer = push_consumer("g", False, MessageModel.BROADCASTING)
        consumer.set_instance_name(name)
        consumer.subscribe("orders", inbox)
        consumer.start()
        eventually(
            lambda consumer=consumer: len(consumer._engine.assigned_queues()) == 4, "all queues"
        )
    send(producer, "all")
    for inbox in inboxes.values():
        assert b"all" in inbox.wait_for(1)


def test_consumers_of_one_instance_name_share_queues(
    producer: Producer, push_consumer: Make
) -> None:
    send(producer, "first")
    consumers = []
    for _ in range(2):
        consumer = push_consumer("g", True)
        consumer.set_instance_name("same")
        consumer.subscribe("orders", Inbox())
        consumer.start()
        consumers.append(consumer)

    def share(of: PushConsumer) -> int:
        return sum(queue.topic == "orders" for queue in of._engine.assigned_queues())

    eventually(
        lambda: [share(each) for each in consumers] == [2, 2],
        "each member has two of the four queues",
    )
    assert len({each._engine.client_id for each in consumers}) == 2


def test_a_consumer_without_a_subscription_does_not_start(push_consumer: Make) -> None:
    consumer = push_consumer()
    with pytest.raises(exceptions.PushConsumerStartFailed, match="no subscription") as caught:
        consumer.start()
    assert isinstance(caught.value.__cause__, StateError)
    consumer.shutdown()


def test_a_consumer_starts_once_its_subscription_is_there(
    producer: Producer, push_consumer: Make
) -> None:
    send(producer, "1")
    consumer = push_consumer()
    with pytest.raises(exceptions.PushConsumerStartFailed):
        consumer.start()
    inbox = Inbox()
    consumer.subscribe("orders", inbox)
    consumer.start()
    inbox.wait_for(1)
    with pytest.raises(exceptions.RocketMQException, match="before start"):
        consumer.subscribe("bills", inbox)
    consumer.shutdown()
    consumer.shutdown()


def test_a_callback_cannot_shut_its_consumer_down_and_another_thread_can_afterwards(
    producer: Producer, push_consumer: Make, broker: EmbeddedBroker
) -> None:
    send(producer, "one")
    refused: list[str] = []
    consumer = push_consumer()

    def call(received: ReceivedMessage) -> ConsumeStatus:
        with pytest.raises(exceptions.ConsumerException) as caught:
            consumer.shutdown()
        refused.append(str(caught.value))
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.subscribe("orders", call)
    consumer.start()
    eventually(lambda: bool(refused), "the callback was refused")
    assert "would wait for itself" in refused[0]
    consumer.shutdown()
    producer.shutdown()
    eventually(lambda: not broker.statistics.connections, "both are disconnected")


def test_impossible_counts_are_null_pointers_as_they_were(push_consumer: Make) -> None:
    consumer = push_consumer()
    for change in (consumer.set_thread_count, consumer.set_message_batch_max_size):
        with pytest.raises(exceptions.NullPointerException, match="at least 1"):
            change(0)
    with pytest.raises(exceptions.NullPointerException, match="group is None"):
        PushConsumer(None)
    with pytest.raises(TypeError, match="cannot be called"):
        consumer.subscribe("orders", None)


def test_an_unreachable_name_server_fails_the_start() -> None:
    consumer = PushConsumer("g")
    consumer.set_name_server_address("127.0.0.1:1")
    consumer.subscribe("orders", Inbox())
    with pytest.raises(exceptions.PushConsumerStartFailed) as caught:
        consumer.start()
    assert isinstance(caught.value.__cause__, RouteError)


def test_the_finalizer_can_be_removed_as_the_tests_of_0_4_4_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (PushConsumer, Producer, PullConsumer):
        monkeypatch.delattr(kind, "__del__")
        kind("g").shutdown()


# Pulling.


@pytest.fixture
def puller(broker: EmbeddedBroker) -> PullConsumer:
    consumer = PullConsumer("g")
    consumer.set_namesrv_addr(broker.name_servers)
    return consumer


def test_a_pull_gives_all_there_is_queue_by_queue_and_then_only_news(
    producer: Producer, puller: PullConsumer
) -> None:
    for number in range(100):
        producer.send_orderly(message(str(number)), number)
    with puller:
        got = list(puller.pull("orders", max_num=7))
        places = [(each.queue_id, each.queue_offset) for each in got]
        assert places == [(queue, offset) for queue in range(4) for offset in range(25)]
        assert list(puller.pull("orders")) == []
        producer.send_sync(message("news"))
        assert [each.body for each in puller.pull("orders")] == [b"news"]


def test_a_pull_filters_by_its_expression(producer: Producer, puller: PullConsumer) -> None:
    for number in range(40):
        tagged = message(str(number))
        tagged.set_tags("even" if number % 2 == 0 else "odd")
        producer.send_orderly(tagged, 0)
    with puller:
        got = [int(each.body) for each in puller.pull("orders", "odd")]
        assert got == list(range(1, 40, 2))
        assert list(puller.pull("orders", "none")) == []


def test_a_message_whose_work_failed_is_pulled_again(
    producer: Producer, puller: PullConsumer
) -> None:
    # 0.4.4 moved its offset behind the whole batch before it gave out the first message.
    for body in ("1", "2", "3"):
        producer.send_orderly(message(body), 0)
    with puller:

        def work() -> None:
            for each in puller.pull("orders"):
                if each.body == b"2":
                    raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            work()
        assert [each.body for each in puller.pull("orders")] == [b"2", b"3"]


def test_a_program_keeps_its_offsets_itself(broker: EmbeddedBroker, producer: Producer) -> None:
    kept: dict[str, int] = {}

    class Keeper(PullConsumer):
        def get_message_queue_offset(self, mq: PulledQueue) -> int:
            return kept.get(f"{mq.topic.decode()}@{mq.brokerName.decode()}@{mq.queueId}", 0)

        def set_message_queue_offset(self, mq: PulledQueue, offset: int) -> None:
            kept[f"{mq.topic.decode()}@{mq.brokerName.decode()}@{mq.queueId}"] = offset

    for bodies in (["1", "2"], ["3"]):
        for body in bodies:
            producer.send_orderly(message(body), 2)
        consumer = Keeper("g")
        consumer.set_name_server_address(broker.name_servers)
        with consumer:
            assert [each.body.decode() for each in consumer.pull("orders")] == bodies
    assert kept == {"orders@b@2": 3}


def test_two_pull_consumers_do_not_share_their_offsets(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    # 0.4.4 kept them in the class: a second consumer began where the first had ended.
    producer.send_sync(message())
    for _ in range(2):
        consumer = PullConsumer("g")
        consumer.set_namesrv_addr(broker.name_servers)
        with consumer:
            assert len(list(consumer.pull("orders"))) == 1


def test_pulls_that_fail_say_how(puller: PullConsumer, producer: Producer) -> None:
    with pytest.raises(exceptions.PullConsumerFetchMQFailed, match="call start"):
        next(puller.pull("orders"))
    with puller:
        with pytest.raises(exceptions.PullConsumerFetchMQFailed, match="topic not found"):
            next(puller.pull("missing"))
        producer.send_sync(message())
        with pytest.raises(exceptions.PullConsumerFetchMessageFailed, match=r"1\.\.1024"):
            next(puller.pull("orders", max_num=0))
    silent = PullConsumer("g")
    silent.set_namesrv_addr("127.0.0.1:1")
    with pytest.raises(exceptions.PullConsumerStartFailed):
        silent.start()


def test_a_generator_ends_with_its_consumer(producer: Producer, puller: PullConsumer) -> None:
    producer.send_orderly(message("1"), 0)
    puller.start()
    pulled = puller.pull("orders")
    next(pulled)
    puller.shutdown()
    with pytest.raises(exceptions.PullConsumerFetchMessageFailed, match="not running"):
        next(pulled)
