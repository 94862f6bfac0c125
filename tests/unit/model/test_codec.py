"""Codecs, and what is refused as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ordermq import AsyncProducer, FunctionCodec, JsonCodec, Producer, PullConsumer, PydanticCodec
from ordermq.errors import ConfigError, DecodeError, StateError
from ordermq.model.codec import require_codec
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from tests.unit.core.stored_records import record

QUEUE = MessageQueue("orders", "b", 3)


class Order(BaseModel):
    number: str
    amount: int


@dataclass
class Paid:
    amount: int


def received(body: bytes, codec: Any) -> Any:
    """Return the value of a received message."""
    batch = MessageBatch(QUEUE, record(body=body, offset=7))
    batch.codec = codec
    return batch[0].value()


def test_json_is_written_and_read() -> None:
    codec = JsonCodec()
    assert codec.decode(codec.encode({"amount": 3, "é": [None, 1.5]})) == {
        "amount": 3,
        "é": [None, 1.5],
    }
    assert codec.encode(Paid(3)) == b'{"amount":3}'


def test_a_pydantic_model_is_checked_both_ways() -> None:
    codec = PydanticCodec(Order)
    order = Order(number="o-17", amount=3)
    assert codec.encode(order) == b'{"number":"o-17","amount":3}'
    assert codec.decode(codec.encode(order)) == order
    for wrong in ({"number": "o-17"}, "o-17"):
        with pytest.raises(ValidationError):
            codec.encode(wrong)
    assert PydanticCodec(list[int]).decode(b"[1,2]") == [1, 2]


def test_a_message_is_made_of_a_value_and_keeps_its_other_fields() -> None:
    for kind in (Producer, AsyncProducer):
        producer: Any = kind("shop", name_servers="a:1", codec=JsonCodec())
        message = producer.message("orders", [1], tags="paid", keys="o-17", properties={"a": "b"})
        assert (message.topic, message.body, message.tags) == ("orders", b"[1]", "paid")
        assert (message.keys, message.properties) == (("o-17",), {"a": "b"})


def test_a_value_that_cannot_be_encoded_raises_at_the_caller() -> None:
    producer = Producer("shop", name_servers="a:1", codec=JsonCodec())
    with pytest.raises(TypeError, match="not JSON serializable"):
        producer.message("orders", object())
    texts: Any = FunctionCodec(str, str)
    with pytest.raises(ConfigError, match="body is a str: expected bytes"):
        Producer("shop", name_servers="a:1", codec=texts).message("orders", 1)


def test_a_body_that_does_not_decode_names_its_message_and_not_its_content() -> None:
    with pytest.raises(DecodeError, match=r"6 bytes: JSONDecodeError") as raised:
        received(b"secret", JsonCodec())
    error = raised.value
    assert (error.topic, error.broker, error.queue_id, error.offset) == ("orders", "b", 3, 7)
    assert "secret" not in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_json_has_null_for_what_is_no_number() -> None:
    assert require_codec(JsonCodec(), "g").encode({"a": float("nan"), "b": 1.5}) == (
        b'{"a":null,"b":1.5}'
    )


def test_without_a_codec_a_value_is_refused_and_says_what_to_give() -> None:
    with pytest.raises(StateError, match="give codec="):
        Producer("shop", name_servers="a:1").message("orders", 1)
    with pytest.raises(StateError, match="give codec="):
        MessageBatch(QUEUE, record(body=b"1"))[0].value()


async def wait(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "codec",
    [JsonCodec, repr, FunctionCodec(wait, int), FunctionCodec(repr, wait), (repr, int)],  # type: ignore[arg-type]
)
def test_what_is_no_codec_is_refused_at_construction(codec: Any) -> None:
    for kind in (Producer, PullConsumer):
        with pytest.raises(ConfigError, match=r"codec"):
            kind("g", name_servers="a:1", codec=codec)


def test_a_function_that_hides_a_coroutine_is_refused_as_it_is_called() -> None:
    hidden = FunctionCodec(lambda value: wait(value), lambda body: wait(body))  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="asynchronous"):
        Producer("g", name_servers="a:1", codec=hidden).message("orders", 1)
    with pytest.raises(DecodeError, match="ConfigError"):
        received(b"1", require_codec(hidden, "g"))
