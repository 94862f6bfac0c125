"""User functions whose results must be awaited although they are no `async def`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import (
    ConsumeResult,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.errors import ConfigError
from ordermq.model.status import TransactionState
from ordermq.rocketmq import client as rocketmq
from ordermq.rocketmq.exceptions import ProducerSendOrderlyFailed
from tests.component.conftest import Seen, assert_in_order, eventually, numbered

MakeConsumer = Callable[..., PushConsumer]


class AsyncObject:
    """Takes its messages after a turn of the loop; the first call of each message may fail."""

    def __init__(self, seen: Seen, fails: bool = False, answer: Any = None) -> None:
        self._seen = seen
        self._fails = fails
        self._answer = answer
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def __call__(self, messages: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        self.loops.add(asyncio.get_running_loop())
        if self._fails and not context.attempt:
            raise ValueError("a test's own failure")
        self._seen.take(messages, context)
        return self._answer


def forms(target: AsyncObject) -> dict[str, Any]:
    return {
        "object": target,
        "method": target.__call__,
        "partial of an object": functools.partial(target),
        "lambda": lambda messages, context: target(messages, context),
        "partial of a lambda": functools.partial(
            lambda messages, context: target(messages, context)
        ),
    }


FORMS = ["object", "method", "partial of an object", "lambda", "partial of a lambda"]


@pytest.mark.parametrize("with_hook", [False, True])
@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent"])
@pytest.mark.parametrize("form", FORMS)
def test_listeners_are_awaited(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    form: str,
    kind: str,
    with_hook: bool,
) -> None:
    outcomes: list[bool] = []

    class Hook:
        def before(self, call: Any) -> None: ...

        def after(self, call: Any) -> None:
            outcomes.append(call.is_success)

    target = AsyncObject(seen, answer=ConsumeResult.SUCCESS)
    settings = {"order_by_key": True} if kind == "by key" else {}
    consumer = make_consumer(forms(target)[form], concurrent=kind == "concurrent", **settings)
    if with_hook:
        consumer.add_hook(Hook())
    producer.send_many(numbered(50))
    with consumer:
        seen.wait_for_count(50)
        eventually(lambda: consumer.statistics["messages_done"] == 50, "all are done")
    assert len(target.loops) == 1
    assert seen.duplicates() == 0
    if kind != "concurrent":
        assert_in_order(seen, 50)
    assert outcomes == [True] * len(outcomes)
    assert bool(outcomes) == with_hook


@pytest.mark.parametrize("form", FORMS)
def test_what_an_awaited_listener_raises_is_no_success(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, form: str
) -> None:
    target = AsyncObject(seen, fails=True)
    consumer = make_consumer(forms(target)[form], suspend_current_queue_time_ms=10)
    producer.send_many(numbered(5, keys=1))
    with consumer:
        seen.wait_for_count(5)
        eventually(lambda: consumer.statistics["messages_done"] == 5, "all are done")
    assert consumer.statistics["listener_errors"] == 5
    assert_in_order(seen, 5, keys=1)


def test_callbacks_of_queues_are_awaited(producer: Producer, broker: EmbeddedBroker) -> None:
    producer.send(Message("orders", b"x"))
    told: list[str] = []

    async def tell(what: str) -> None:
        await asyncio.sleep(0)
        told.append(what)

    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        on_assigned=lambda queue: tell("assigned"),
        on_revoked=functools.partial(lambda what, queue: tell(what), "revoked"),
    )
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with consumer:
        eventually(lambda: len(consumer.assigned_queues()) > 1, "it has queues")
        eventually(lambda: told.count("assigned") > 1, "told of queues")
    eventually(lambda: told.count("revoked") == told.count("assigned") > 1, "told of their end")


def test_local_transactions_are_awaited(broker: EmbeddedBroker) -> None:
    class Executes:
        async def __call__(self, message: Message, argument: Any) -> TransactionState:
            await asyncio.sleep(0)
            return TransactionState.COMMIT

    executes = Executes()
    with TransactionProducer(
        "shop", check=lambda _: None, name_servers=broker.name_servers
    ) as producer:
        for execute in (executes, lambda message, argument: executes(message, argument)):
            receipt = producer.send_in_transaction(Message("orders", b"x"), execute=execute)
            assert receipt.state is TransactionState.COMMIT
        asyncio.run(
            producer.asend_in_transaction(Message("orders", b"x"), execute=executes)  # type: ignore[arg-type]
        )


def test_filters_and_hooks_that_cannot_be_awaited_are_refused(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    async def keep(message: Any) -> bool:
        return False

    class Hook:
        async def before(self, call: Any) -> None: ...

        def after(self, call: Any) -> None: ...

    consumer = make_consumer(seen.take, suspend_current_queue_time_ms=10)
    with pytest.raises(ConfigError, match=r"filter .* is asynchronous"):
        consumer.add_filter(keep)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"hook .* is asynchronous"):
        consumer.add_hook(Hook())  # type: ignore[arg-type]
    consumer.add_filter(lambda message: keep(message))  # type: ignore[arg-type,return-value]
    producer.send(Message("orders", b"x"))
    with consumer:
        eventually(lambda: consumer.statistics["listener_errors"] > 1, "it fails, and is retried")
    assert seen.deliveries == []


# Functions that nothing awaits: `async def` is refused where it is given; a plain function that
# returns a coroutine, at its call.


async def asynchronous(*arguments: Any) -> Any:
    """A user function of any kind, which only works if it is awaited."""
    raise AssertionError("nothing awaits this")


def returns_coroutine(*arguments: Any) -> Any:
    return asynchronous(*arguments)


class AsyncHook:
    before = after = staticmethod(asynchronous)


class CoroutineHook:
    before = after = staticmethod(returns_coroutine)


class AsyncStore:
    open = take_over = read = write = staticmethod(asynchronous)


def test_user_code_of_producers_is_refused_where_it_is_given(broker: EmbeddedBroker) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    with pytest.raises(ConfigError, match=r"check .* is asynchronous: expected a plain function"):
        producer.add_check(asynchronous)
    with pytest.raises(ConfigError, match=r"hook .* is asynchronous"):
        producer.add_hook(AsyncHook())
    with pytest.raises(ConfigError, match=r"selector .* is asynchronous"):
        Producer("p", name_servers=broker.name_servers, selector=asynchronous)


@pytest.mark.parametrize("sends", [1, 2])
def test_a_coroutine_of_a_check_refuses_the_message(broker: EmbeddedBroker, sends: int) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_check(returns_coroutine)
    with producer, pytest.raises(ConfigError, match=r"check .* is asynchronous"):
        producer.send_batch([Message("orders", b"x")] * sends, sharding_key="k")


def test_coroutines_of_send_hooks_are_counted_and_the_send_goes_on(broker: EmbeddedBroker) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_hook(CoroutineHook())  # type: ignore[arg-type]
    with producer:
        producer.send(Message("orders", b"x"), sharding_key="k")
        assert producer.hook_errors == 2


def test_a_coroutine_of_a_selector_refuses_the_message(broker: EmbeddedBroker) -> None:
    producer = Producer("p", name_servers=broker.name_servers, selector=returns_coroutine)
    with producer, pytest.raises(ConfigError, match=r"selector .* is asynchronous"):
        producer.send(Message("orders", b"x"), sharding_key="k")


@pytest.mark.parametrize("consumer_class", [PushConsumer, LitePullConsumer])
def test_user_code_of_consumers_is_refused_where_it_is_given(consumer_class: Any) -> None:
    with pytest.raises(ConfigError, match=r"allocation .* is asynchronous"):
        consumer_class("g", name_servers="127.0.0.1:1", allocation=asynchronous)
    ordered = {} if consumer_class is PushConsumer else {"ordered": True}
    with pytest.raises(ConfigError, match=r"offset_store .* is asynchronous"):
        consumer_class("g", name_servers="127.0.0.1:1", offset_store=AsyncStore(), **ordered)


def test_a_coroutine_of_an_allocation_is_an_error_that_names_it(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(Message("orders", b"x"))
    consumer = make_consumer(seen.take, allocation=returns_coroutine)
    with consumer:
        eventually(lambda: "is asynchronous" in caplog.text, "the rebalance says so")
    assert not seen.deliveries


def test_user_code_of_the_old_names_is_refused(broker: EmbeddedBroker) -> None:
    consumer = rocketmq.PushConsumer("g")
    with pytest.raises(ConfigError, match=r"callback .* is asynchronous"):
        consumer.subscribe("orders", asynchronous)
    with pytest.raises(ConfigError, match=r"checker_callback .* is asynchronous"):
        rocketmq.TransactionMQProducer("g", asynchronous)
    producer = rocketmq.Producer("p")
    producer.set_name_server_address(broker.name_servers)
    producer.start()
    try:
        with pytest.raises(ConfigError, match=r"callback .* is asynchronous"):
            producer.send_async(rocketmq.Message("orders"), asynchronous, None)  # type: ignore[arg-type]
        message = rocketmq.Message("orders")
        message.set_body("x")
        with pytest.raises(ProducerSendOrderlyFailed, match=r"queue_selector .* is asynchronous"):
            producer.send_orderly(message, 1, queue_selector=returns_coroutine)
    finally:
        producer.shutdown()


def test_a_coroutine_of_an_old_callback_is_no_success(
    broker: EmbeddedBroker, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(Message("orders", b"x"), sharding_key="k")
    consumer = rocketmq.PushConsumer("g", orderly=True)
    consumer.set_name_server_address(broker.name_servers)
    consumer.subscribe("orders", returns_coroutine)
    consumer.start()
    try:
        eventually(lambda: "is asynchronous" in caplog.text, "the callback fails")
    finally:
        consumer.shutdown()
    with PullConsumer("g", name_servers=broker.name_servers) as direct:
        for queue in direct.fetch_subscribe_message_queues("orders"):
            assert not direct.fetch_consume_offset(queue, from_store=True)
