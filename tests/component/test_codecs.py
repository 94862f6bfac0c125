"""Values instead of bytes, from every way to send to every way to receive (docs/codecs.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    DeadLetter,
    FailureStory,
    FunctionCodec,
    JsonCodec,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import DecodeError
from ordermq.model.names import dead_letter_topic
from tests.component.conftest import DEADLINE_S, Seen, eventually
from tests.component.docs_examples import DOCS, examples, run_example

MakeConsumer = Callable[..., PushConsumer]
NUMBERS = FunctionCodec(lambda number: b"%d" % number, int)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Any:
    """A producer of numbers, over one queue."""
    with Producer(
        "p", name_servers=broker.name_servers, default_topic_queue_nums=1, codec=NUMBERS
    ) as running:
        yield running


def send(producer: Producer, *numbers: int) -> None:
    for number in numbers:
        producer.send(producer.message("orders", number), sharding_key=f"k{number % 2}")


def values(seen: Seen) -> list[Any]:
    return [value for *_, value in seen.deliveries]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("settings", [{}, {"order_by_key": True}, {"concurrent": True}], ids=str)
def test_listeners_filters_and_hooks_get_values(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, kind: str, settings: Any
) -> None:
    send(producer, *range(20))

    def listen(messages: Any, context: Any) -> None:
        seen.add([(0, m.offset, m.sharding_key, m.value()) for m in messages])

    async def listen_async(messages: Any, context: Any) -> None:
        listen(messages, context)

    hooked: list[int] = []

    class Hook:
        def before(self, call: Any) -> None:
            hooked.extend(message.value() for message in call.messages)

        def after(self, call: Any) -> None: ...

    consumer = make_consumer(
        listen if kind == "plain" else listen_async,
        codec=NUMBERS,
        consume_message_batch_max_size=4,
        **settings,
    )
    consumer.add_filter(lambda message: message.value() % 5 > 0)
    consumer.add_hook(Hook())
    kept = [number for number in range(20) if number % 5]
    with consumer:
        seen.wait_for_count(len(kept))
    assert sorted(values(seen)) == sorted(hooked) == kept


def test_polls_pulls_and_iteration_give_values(broker: EmbeddedBroker, producer: Producer) -> None:
    send(producer, 1, 2, 3)
    options: Any = {"name_servers": broker.name_servers, "codec": NUMBERS}
    first: Any = {**options, "consume_from_where": "first_offset"}

    with PullConsumer("pulling", **options) as pulling:
        (queue,) = pulling.fetch_subscribe_message_queues("orders")
        assert [m.value() for m in pulling.pull(queue, "*", 0, 10).messages] == [1, 2, 3]

    got: list[int] = []
    with LitePullConsumer("polling", poll_batch_size=2, **first) as polling:
        polling.subscribe("orders")
        while len(got) < 3:
            got += [message.value() for message in polling.poll(1_000)]
    assert got == [1, 2, 3]

    async def iterate() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer("iterating", "orders", **first) as consumer:
            async for batch in consumer:
                found += [message.value() for message in batch]
                if len(found) == 3:
                    return found
        return found

    assert asyncio.run(iterate()) == [1, 2, 3]


def test_an_async_producer_and_listener_exchange_values(broker: EmbeddedBroker) -> None:
    options: Any = {"name_servers": broker.name_servers, "codec": JsonCodec()}

    async def exchange() -> Any:
        got: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        consumer = AsyncConsumer("g", "orders", consume_from_where="first_offset", **options)

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            got.set_result(messages[0].value())

        async with AsyncProducer("p", **options) as producer, consumer:
            await producer.send(producer.message("orders", {"amount": 3}), sharding_key="o-17")
            return await asyncio.wait_for(got, DEADLINE_S)

    assert asyncio.run(exchange()) == {"amount": 3}


def test_a_reply_and_a_checked_message_have_values() -> None:
    config = BrokerConfig(transaction_timeout_ms=50, transaction_check_interval_ms=50)
    checked: list[int] = []

    def check(message: Any) -> TransactionState:
        checked.append(message.value())
        return TransactionState.COMMIT

    with EmbeddedBroker(config=config) as broker:
        options: Any = {"name_servers": broker.name_servers, "codec": NUMBERS}
        consumer = PushConsumer("g", consume_from_where="first_offset", **options)
        consumer.subscribe("orders")
        with TransactionProducer("p", check=check, **options) as producer:

            @consumer.orderly
            def listen(messages: Any, context: Any) -> None:
                for message in messages:
                    if message.wants_reply:
                        producer.reply(message, NUMBERS.encode(message.value() + 1))

            with consumer:
                reply = producer.request(producer.message("orders", 41), 20_000)
                assert reply.value() == 42
            producer.send_in_transaction(
                producer.message("orders", 7), execute=lambda *_: TransactionState.UNKNOWN
            )
            eventually(lambda: checked == [7], "the broker asks for the transaction's state")


def test_a_body_that_does_not_decode_goes_the_way_of_the_failure_policy(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(producer, 1)
    producer.send(Message("orders", b"two"), sharding_key="k")
    send(producer, 3)
    errors: list[BaseException] = []

    class Hook:
        def before(self, call: Any) -> None: ...

        def after(self, call: Any) -> None:
            errors.extend([] if call.exception is None else [call.exception])

    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            seen.add([(0, message.offset, None, message.value())])

    consumer = make_consumer(
        listen,
        codec=NUMBERS,
        on_failure=DeadLetter(max_attempts=2),
        suspend_current_queue_time_ms=10,
    )
    consumer.add_hook(Hook())
    with caplog.at_level(logging.WARNING), consumer:
        seen.wait_for(lambda found: values(seen)[-1:] == [3], "the message behind it")
        eventually(lambda: consumer.statistics["dead_letters"] == 1, "its dead letter")
    assert values(seen) == [1, 3]
    first, second = errors
    for error in (first, second):
        assert isinstance(error, DecodeError)
        assert (error.topic, error.queue_id, error.offset) == ("orders", 0, 1)
    assert "FunctionCodec does not decode the 3 bytes: ValueError" in caplog.text
    with PullConsumer("look", name_servers=broker.name_servers) as look:
        (queue,) = look.fetch_subscribe_message_queues(dead_letter_topic("g"))
        (letter,) = look.pull(queue, "*", 0, 10).messages
    assert letter.text() == "two"


def test_the_page_of_codecs_runs(tmp_path: Path) -> None:
    done = run_example("\n".join(examples((DOCS / "codecs.md").read_text())), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "billed 80",
        "o-19 Order(number='o-19', amount=70, note=None)",
        "Payment(number='o-18', amount=40)",
        "counted [1, 3]",
    ]


@dataclass
class Payment:
    number: str
    cents: int


def test_a_body_that_is_not_of_the_type_goes_to_the_dead_letters_at_its_first_failure(
    broker: EmbeddedBroker, producer: Producer, make_consumer: MakeConsumer
) -> None:
    taken: list[Payment] = []

    def listener(messages: Sequence[MessageView[Payment]], context: object) -> None:
        taken.extend(message.value() for message in messages)

    for body in (b'{"number": "a", "cents": 1}', b'{"number": "b", "cents": "2"}',
                 b'{"number": "c", "cents": 3, "more": 0}'):  # fmt: skip
        producer.send(Message("orders", body), sharding_key="k")
    policy = DeadLetter(dead_letter_on=DecodeError)
    with make_consumer(listener, codec=JsonCodec(Payment), on_failure=policy) as consumer:
        eventually(lambda: len(taken) == 2, "those of the type")
        assert consumer.statistics["diverted"] == 1
    assert taken == [Payment("a", 1), Payment("c", 3)]
    with Admin(broker.name_servers) as admin:
        (letter,) = admin.peek(dead_letter_topic("g"))
    story = FailureStory.of(letter)
    assert story is not None
    assert "JsonCodec(Payment) does not decode" in story.error
    assert "$.cents: expected an int, got a str" in story.error
