"""Messages of the proxy, from sends and to stored records."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq import core
from ordermq.client.proxy_messages import half_message_request, send_request
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ProtocolError
from ordermq.grpc.messages import (
    BodyEncoding,
    Message,
    MessageType,
    RecoverOrphanedTransaction,
    Resource,
    SendMessageRequest,
    SystemProperties,
    Timestamp,
)
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.headers import SendHeader

CONFIG = RemotingConfig(namespace_v2="shop")
NOW_MS = 1_767_225_600_000


def header(properties: dict[str, str], **more: Any) -> SendHeader:
    return SendHeader("p", "orders", 3, properties=props.encode(properties), **more)


def requested(properties: dict[str, str], body: bytes, **more: Any) -> tuple[list[Message], bool]:
    data, is_keyed = send_request(CONFIG, header(properties, **more), body, NOW_MS)
    return SendMessageRequest.from_bytes(data).messages, is_keyed


def sent(properties: dict[str, str], **more: Any) -> Message:
    [message], is_keyed = requested(properties, b"body", **more)
    assert is_keyed == (props.SHARDING_KEY in properties)
    return message


def system_of(message: Message) -> SystemProperties:
    assert message.system_properties is not None
    return message.system_properties


def test_a_message_with_a_key_is_one_of_its_message_group() -> None:
    message = sent(
        {
            props.SHARDING_KEY: "k", props.TAGS: "t", props.KEYS: "a b", props.UNIQ_KEY: "id",
            props.WAIT: "true", "country": "AT",
        }
    )  # fmt: skip
    system = system_of(message)
    assert message.topic == Resource(namespace="shop", name="orders")
    assert message.user_properties == {"country": "AT"}
    assert (system.message_group, system.message_type) == ("k", MessageType.FIFO)
    assert (system.tag, system.keys, system.message_id) == ("t", ["a", "b"], "id")
    assert system.body_encoding == BodyEncoding.IDENTITY


@pytest.mark.parametrize(
    ("properties", "kind", "due_ms"),
    [
        ({}, MessageType.NORMAL, None),
        ({props.TIMER_DELIVER_MS: "1767225609000"}, MessageType.DELAY, NOW_MS + 9_000),
        ({props.TIMER_DELAY_MS: "250"}, MessageType.DELAY, NOW_MS + 250),
        ({props.TIMER_DELAY_S: "2"}, MessageType.DELAY, NOW_MS + 2_000),
        ({props.TRANSACTION_PREPARED: "true"}, MessageType.TRANSACTION, None),
    ],
)
def test_the_type_of_a_message_follows_from_its_properties(
    properties: dict[str, str], kind: MessageType, due_ms: int | None
) -> None:
    system = system_of(sent(properties))
    assert system.message_type == kind
    assert system.delivery_timestamp == (None if due_ms is None else Timestamp.of_ms(due_ms))


def test_a_batch_becomes_its_messages() -> None:
    properties = [props.encode({props.UNIQ_KEY: str(number)}).encode() for number in range(3)]
    body = core.encode_batch([b"x", b"yy", b"z"], [text.decode() for text in properties], [0, 0, 0])
    messages, is_keyed = requested({}, body, batch=True)
    assert [each.body for each in messages] == [b"x", b"yy", b"z"]
    assert [system_of(each).message_id for each in messages] == ["0", "1", "2"]
    assert not is_keyed


@pytest.mark.parametrize(
    ("properties", "more", "what"),
    [
        ({props.DELAY: "3"}, {}, "delay_level"),
        ({}, {"flag": 7}, "flag"),
        ({props.TIMER_DELAY_MS: "soon"}, {}, "a time that is no number"),
        ({}, {"sys_flag": 0x1 | 0x100}, "zlib"),
    ],
)
def test_what_a_proxy_has_no_way_to_say_is_refused(
    properties: dict[str, str], more: dict[str, Any], what: str
) -> None:
    with pytest.raises(BrokerError, match=what):
        sent(properties, **more)


def test_a_question_about_a_half_message_has_its_record() -> None:
    message = Message(
        topic=Resource(name="orders"), user_properties={"country": "AT"}, body=b"body",
        system_properties=SystemProperties(message_id="id", queue_id=3),
    )  # fmt: skip
    recovery = RecoverOrphanedTransaction(message=message, transaction_id="t")
    request, message_id = half_message_request(recovery)
    record = StoredMessage.read(bytes(request.body))
    assert (message_id, record.topic, record.queue_id) == ("id", "orders", 3)
    assert props.decode_bytes(record.properties) == {"country": "AT", props.UNIQ_KEY: "id"}


def test_a_question_about_no_message_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no message"):
        half_message_request(RecoverOrphanedTransaction())
