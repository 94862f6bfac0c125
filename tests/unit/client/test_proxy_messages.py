"""Messages of the proxy, from sends and to stored records."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq import core
from ordermq.client.proxy_messages import is_keyed, messages_to_send, record_of
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ProtocolError
from ordermq.grpc.messages import (
    BodyEncoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
    Timestamp,
)
from ordermq.model import properties as props
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.headers import SendHeader

CONFIG = RemotingConfig(namespace_v2="shop")
NOW_MS = 1_767_225_600_000


def header(properties: dict[str, str], **more: Any) -> SendHeader:
    return SendHeader("p", "orders", 3, properties=props.encode(properties), **more)


def sent(properties: dict[str, str], **more: Any) -> Message:
    request = messages_to_send(CONFIG, header(properties, **more), b"body", NOW_MS)
    [message] = request.messages
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
    request = messages_to_send(CONFIG, header({}, batch=True), body, NOW_MS)
    assert [each.body for each in request.messages] == [b"x", b"yy", b"z"]
    assert [system_of(each).message_id for each in request.messages] == ["0", "1", "2"]
    assert not is_keyed(request)


@pytest.mark.parametrize(
    ("properties", "more", "what"),
    [
        ({props.DELAY: "3"}, {}, "delay_level"),
        ({}, {"flag": 7}, "flag"),
        ({}, {"sys_flag": 0x1 | 0x100}, "zlib"),
    ],
)
def test_what_a_proxy_has_no_way_to_say_is_refused(
    properties: dict[str, str], more: dict[str, Any], what: str
) -> None:
    with pytest.raises(BrokerError, match=what):
        sent(properties, **more)


def test_a_received_message_becomes_the_record_of_a_broker() -> None:
    message = Message(
        user_properties={"country": "AT"},
        system_properties=SystemProperties(
            tag="t", keys=["a", "b"], message_id="id", message_group="k", queue_id=3,
            queue_offset=41, delivery_attempt=3, born_timestamp=Timestamp.of_ms(5_001),
            store_timestamp=Timestamp.of_ms(6_002),
        ),
        body=b"body",
    )  # fmt: skip
    queue = MessageQueue("orders", "broker-a", 3)
    [view] = MessageBatch(queue, record_of(message, "orders"), (), "", True, (3, 41, 42))
    assert (bytes(view.body), view.tags, view.keys) == (b"body", "t", ["a", "b"])
    assert (view.message_id, view.sharding_key, view.get_property("country")) == ("id", "k", "AT")
    assert (view.queue_offset, view.reconsume_times) == (41, 2)
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (5_001, 6_002)


def test_a_message_without_an_offset_is_refused() -> None:
    with pytest.raises(ProtocolError, match="offset"):
        record_of(Message(system_properties=SystemProperties()), "orders")
