"""Sends in the shape of other clients' calls: each is refused with a call that is right."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest

from ordermq import AsyncProducer, Message, Producer, TransactionProducer
from ordermq.errors import ConfigError

MESSAGE = Message("orders", b"paid")
SENDS = [
    Producer.send,
    Producer.asend,
    Producer.asend_nowait,
    Producer.send_nowait,
    Producer.send_oneway,
    Producer.request,
    Producer.arequest,
    TransactionProducer.send_in_transaction,
    TransactionProducer.asend_in_transaction,
    AsyncProducer.send,
    AsyncProducer.send_nowait,
    AsyncProducer.send_oneway,
    AsyncProducer.request,
]
BATCHES = [Producer.send_batch, Producer.asend_batch, AsyncProducer.send_batch]


def _called(call: Callable[..., object], *given: object) -> object:
    # Refused before the producer is looked at, so none is needed.
    result = call(None, *given)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@pytest.mark.parametrize("call", SENDS, ids=lambda call: call.__qualname__)
@pytest.mark.parametrize(
    "given",
    [
        ("orders", b"paid"),  # kafka-python, aiokafka
        ("orders", "order-17", b"paid", "order-17"),  # the routing key of pika between them
        ("orders",),
        (b"paid",),
        ({"topic": "orders"},),
        ([],),
        (Message,),
    ],
    ids=["kafka", "pika", "topic", "body", "dict", "list", "class"],
)
def test_a_send_without_a_message_shows_a_right_call(
    call: Callable[..., object], given: tuple[object, ...]
) -> None:
    name = call.__name__
    shown = rf"write producer\.{name}\(Message\(topic, body\), sharding_key=key\)$"
    with pytest.raises(TypeError, match=rf"^{call.__qualname__}\(\) was given .*: {shown}"):
        _called(call, *given)


@pytest.mark.parametrize("call", SENDS, ids=lambda call: call.__qualname__)
def test_a_send_of_a_batch_shows_the_call_for_it(call: Callable[..., object]) -> None:
    name = "asend_batch" if call is Producer.asend else "send_batch"
    shown = rf"write producer\.{name}\(messages, sharding_key=key\)$"
    for given in ([MESSAGE], (MESSAGE, MESSAGE)):
        with pytest.raises(TypeError, match=shown):
            _called(call, given)


def test_a_sharding_key_or_a_callback_by_place_is_refused() -> None:
    # rocketmq-client-python: send_orderly_with_sharding_key(message, "order-17")
    with pytest.raises(TypeError, match=r"\(Message, str\) by place: .*sharding_key=key"):
        _called(Producer.send, MESSAGE, "order-17")
    with pytest.raises(TypeError, match=r"\(Message, function\) by place"):
        _called(Producer.send_nowait, MESSAGE, lambda receipt: None)


def test_errors_of_shape_have_no_values() -> None:
    with pytest.raises(TypeError) as refused:
        _called(Producer.send, "orders", b"a secret body")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("call", BATCHES, ids=lambda call: call.__qualname__)
@pytest.mark.parametrize(
    "given",
    [
        ("orders", [b"paid"]),
        ("orders",),
        ([b"paid"],),
        ([MESSAGE, "paid"],),
        (MESSAGE,),
        (iter([MESSAGE]),),
    ],
    ids=["topic-and-bodies", "topic", "bodies", "mixed", "one", "iterator"],
)
def test_a_batch_of_anything_but_messages_shows_a_right_call(
    call: Callable[..., object], given: tuple[object, ...]
) -> None:
    with pytest.raises(
        TypeError, match=r"write producer\..*\(\[Message\(topic, body\), \.\.\.\], "
    ):
        _called(call, *given)


def test_a_batch_has_messages_of_one_topic() -> None:
    with pytest.raises(ConfigError, match="at least one message"):
        _called(Producer.send_batch, [])
    with pytest.raises(ConfigError, match="one topic only"):
        _called(Producer.send_batch, [MESSAGE, Message("bills", b"sent")])
