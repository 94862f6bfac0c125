"""The classic pull consumer on a real broker in the same process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, MessageQueue, Producer, PullConsumer, PullStatus
from ordermq.broker import EmbeddedBroker, message_routing
from ordermq.errors import BrokerError, ConfigError, RouteError, StateError
from ordermq.model.names import dead_letter_topic, retry_topic
from tests.component.conftest import DEADLINE_S, eventually

ORDERS = MessageQueue("orders", "b", 0)


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[PullConsumer]:
    with PullConsumer("g", name_servers=broker.name_servers) as running:
        yield running


def send(producer: Producer, count: int, tags: tuple[str | None, ...] = (None,)) -> None:
    producer.queues("orders")  # the first send creates the topic
    for number in range(count):
        message = Message("orders", str(number).encode(), tags=tags[number % len(tags)])
        producer.send(message, queue=ORDERS)


def test_pulls_follow_each_other_to_the_end_of_the_queue(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 50)
    got, offset = [], 0
    while (result := consumer.pull(ORDERS, "*", offset, 32)).status is PullStatus.FOUND:
        got += [(m.queue_offset, bytes(m.body), m.message_queue) for m in result.messages]
        offset = result.next_begin_offset
    assert got == [(n, str(n).encode(), ORDERS) for n in range(50)]
    assert (result.status, result.next_begin_offset) == (PullStatus.NO_NEW_MSG, 50)
    assert (result.min_offset, result.max_offset, len(result.messages)) == (0, 50, 0)


def test_an_offset_the_broker_does_not_have_is_illegal_and_the_next_one_is_told(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 3)
    result = consumer.pull(ORDERS, "*", 7, 32)
    assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 3)


def test_a_tag_expression_filters_and_what_it_skips_is_not_looked_at_again(
    producer: Producer, consumer: PullConsumer
) -> None:
    # Aa and BB have one hash in Java: the broker passes both, the client must not.
    send(producer, 9, tags=("Aa", "BB", "other"))
    result = consumer.pull(ORDERS, "Aa", 0, 32)
    assert [m.queue_offset for m in result.messages] == [0, 3, 6]
    only_the_other_hash = consumer.pull(ORDERS, "Aa", 1, 1)
    assert only_the_other_hash.status is PullStatus.NO_MATCHED_MSG
    assert only_the_other_hash.next_begin_offset == 2
    none = consumer.pull(ORDERS, "nothing", 0, 32)
    assert (none.status, none.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 9)


def test_a_waiting_pull_returns_with_the_message_that_comes(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 1)
    results = []
    waiter = threading.Thread(
        target=lambda: results.append(consumer.pull_block_if_not_found(ORDERS, "*", 1, 32))
    )
    waiter.start()
    send(producer, 1)
    waiter.join(DEADLINE_S)
    (result,) = results
    assert result.status is PullStatus.FOUND
    assert [m.queue_offset for m in result.messages] == [1]


def test_a_waiting_pull_ends_without_a_message_when_its_time_is_over(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    send(producer, 1)
    with PullConsumer("g", name_servers=broker.name_servers, broker_suspend_ms=1) as consumer:
        result = consumer.pull_block_if_not_found(ORDERS, "*", 1, 32)
    assert (result.status, result.next_begin_offset) == (PullStatus.NO_NEW_MSG, 1)


def test_pulls_run_from_asyncio_code_side_by_side(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 20)

    async def pull_all() -> list[int]:
        results = await asyncio.gather(
            *(consumer.apull(ORDERS, "*", offset, 5) for offset in (0, 5, 10)),
            consumer.apull_block_if_not_found(ORDERS, "*", 15, 5),
        )
        return [m.queue_offset for result in results for m in result.messages]

    assert asyncio.run(pull_all()) == list(range(20))


def test_offsets_are_kept_at_the_broker_and_the_last_one_known_also_here(
    broker: EmbeddedBroker, producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 9)
    assert consumer.fetch_consume_offset(ORDERS) is None
    consumer.update_consume_offset(ORDERS, 4)
    with PullConsumer("g", name_servers=broker.name_servers) as other:
        assert other.fetch_consume_offset(ORDERS) == 4
        other.update_consume_offset(ORDERS, 2)  # back, too
    assert consumer.fetch_consume_offset(ORDERS) == 4
    assert consumer.fetch_consume_offset(ORDERS, from_store=True) == 2
    assert consumer.fetch_consume_offset(ORDERS) == 2


def test_what_a_queue_reaches_and_where_a_time_lies(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 3)
    middle_ms = int(time.time() * 1000) + 2
    eventually(lambda: time.time() * 1000 > middle_ms + 1, "the next millisecond")
    send(producer, 4)
    assert (consumer.min_offset(ORDERS), consumer.max_offset(ORDERS)) == (0, 7)
    assert consumer.search_offset(ORDERS, middle_ms) == 3
    assert consumer.search_offset(ORDERS, 0) == 0
    assert consumer.search_offset(ORDERS, middle_ms + 3_600_000) == 7


def test_the_queues_of_a_topic_are_sorted_and_an_unknown_topic_has_none(
    producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 1)
    queues = consumer.fetch_subscribe_message_queues("orders")
    assert queues == [MessageQueue("orders", "b", number) for number in range(8)]
    with pytest.raises(RouteError, match="create it first"):
        consumer.fetch_subscribe_message_queues("nowhere")


def test_a_message_sent_back_comes_again_or_becomes_a_dead_letter(
    producer: Producer, consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = len(message_routing.DELAY_LEVELS_MS)
    monkeypatch.setattr(message_routing, "DELAY_LEVELS_MS", (1,) * levels)
    send(producer, 2)
    first, second = consumer.pull(ORDERS, "*", 0, 32).messages
    consumer.send_back(first)
    consumer.send_back(second, -1)
    again = MessageQueue(retry_topic("g"), "b", 0)
    (message,) = consumer.pull_block_if_not_found(again, "*", 0, 32).messages
    assert (message.topic, bytes(message.body), message.reconsume_times) == ("orders", b"0", 1)
    dead = MessageQueue(dead_letter_topic("g"), "b", 0)
    (message,) = consumer.pull(dead, "*", 0, 32).messages
    assert bytes(message.body) == b"1"


def test_it_takes_no_share_of_a_group_that_is_at_work(
    broker: EmbeddedBroker, producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 1)
    consumer.update_consume_offset(ORDERS, 0)
    with LitePullConsumer("g", name_servers=broker.name_servers) as member:
        member.subscribe("orders")
        assert len(member.assignment()) == 8
        with PullConsumer("g", name_servers=broker.name_servers) as other:
            assert other.fetch_consume_offset(ORDERS) == 0
            member.subscribe("orders")  # looks at its share again
            assert len(member.assignment()) == 8


def test_wrong_arguments_and_states_say_what_is_wrong(
    broker: EmbeddedBroker, producer: Producer, consumer: PullConsumer
) -> None:
    send(producer, 1)
    wrong: list[tuple[Any, Any]] = [(-1, 32), (0, 0), (0, 1025), (0.5, 32), (True, 32), ("0", 32)]
    wrong += [(0, 1.5), (0, True), (0, "3")]
    for offset, count in wrong:
        with pytest.raises(ConfigError, match=r"expected 1\.\.1024, from 0 on"):
            consumer.pull(ORDERS, "*", offset, count)
    with pytest.raises(ConfigError, match="contains no tag"):
        consumer.pull(ORDERS, "||", 0, 32)
    for take in (
        partial(consumer.pull, expression="*", offset=0, max_count=32),
        consumer.min_offset,
        consumer.max_offset,
        partial(consumer.search_offset, timestamp_ms=0),
        consumer.fetch_consume_offset,
        partial(consumer.update_consume_offset, offset=0),
    ):
        with pytest.raises(ConfigError, match=r"^queue 'orders': .*fetch_subscribe_message_queues"):
            take("orders")
    with pytest.raises(ConfigError, match="not both"):
        consumer.pull(ORDERS, "paid", 0, 32, sql="a > 5")
    with pytest.raises(BrokerError, match="does not filter by SQL92"):
        consumer.pull(ORDERS, "*", 0, 32, sql="a > 5")
    with pytest.raises(ConfigError, match="offset -1"):
        consumer.update_consume_offset(ORDERS, -1)
    with pytest.raises(BrokerError, match=r"expected 0\.\.7"):
        consumer.pull(MessageQueue("orders", "b", 8), "*", 0, 32)
    with pytest.raises(StateError, match="may be called only once"):
        consumer.start()
    idle = PullConsumer("g", name_servers=broker.name_servers)
    with pytest.raises(StateError, match="not running"):
        idle.pull(ORDERS, "*", 0, 32)
    with pytest.raises(StateError, match="not running"):
        asyncio.run(idle.apull(ORDERS, "*", 0, 32))
    with pytest.raises(ConfigError, match="did you mean 'pull_timeout_ms'"):
        PullConsumer("g", name_servers=broker.name_servers, pull_timeot_ms=1)
    with pytest.raises(ConfigError, match="every idle pull times out"):
        PullConsumer("g", name_servers=broker.name_servers, broker_suspend_ms=30_000)


def test_a_consumer_without_a_name_server_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    consumer = PullConsumer("g", name_servers=f"127.0.0.1:{port}")
    with pytest.raises(RouteError, match="no name server answers"):
        consumer.start()
    consumer.close()
