"""Requests that send messages to RocketMQ's proxy, on every core."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.core import _cython, encode_batch, reference
from ordermq.errors import ProtocolError
from ordermq.grpc.messages import (
    BodyEncoding,
    Duration,
    MessageType,
    Resource,
    SendMessageRequest,
    Timestamp,
)
from ordermq.model import properties as props

TOPIC = Resource(namespace="shop", name="orders")
NOW_MS = 1_767_225_600_123
MOST = 1 << 53


def encoded(core, text, body=b"body", **more):
    given_ = {"flag": 0, "is_zipped": False, "born_ms": NOW_MS, "now_ms": NOW_MS} | more
    return core.encode_proxy_send(TOPIC.to_bytes(), body, text, **given_)


def sent(core, properties, **more):
    data, is_keyed = encoded(core, props.encode(properties), **more)
    [message] = SendMessageRequest.from_bytes(data).messages
    assert is_keyed == (props.SHARDING_KEY in properties)
    return message


def test_what_a_message_says_is_in_its_fields(core):
    message = sent(core, {
        props.SHARDING_KEY: "k", props.TAGS: "t", props.KEYS: " a  b\u00a0c ", props.UNIQ_KEY: "id",
        props.WAIT: "true", "TRACE_CONTEXT": "trace", props.CHECK_IMMUNITY_S: "60",
        "country": "Österreich", "order": "x" * 200,
    }, body=b"y" * 300)  # fmt: skip
    system = message.system_properties
    assert message.topic == TOPIC
    assert message.body == b"y" * 300
    assert message.user_properties == {"country": "Österreich", "order": "x" * 200}
    assert (system.message_group, system.message_type) == ("k", MessageType.FIFO)
    assert (system.tag, system.keys, system.message_id) == ("t", ["a", "b\u00a0c"], "id")
    assert (system.body_encoding, system.trace_context) == (BodyEncoding.IDENTITY, "trace")
    assert system.orphaned_transaction_recovery == Duration(seconds=60)
    assert system.born_timestamp == Timestamp.of_ms(NOW_MS)
    assert system.delivery_timestamp is None


def test_of_a_name_that_occurs_twice_the_last_one_counts(core):
    text = "TAGS\x01a\x02x\x01a\x02TAGS\x01b\x02x\x01b\x02\x01c\x02TAGS\x01\x02TAGS"
    data, _ = encoded(core, text)
    [message] = SendMessageRequest.from_bytes(data).messages
    assert message.system_properties.tag == "b"
    assert message.user_properties == {"x": "b"}


@pytest.mark.parametrize("name", sorted(props.PROTOCOL_NAMES - {props.DELAY}))
def test_what_rocketmq_gives_a_meaning_to_is_no_property_of_the_user(core, name):
    near = {f"{name}x": "y", f"x{name}": "y", name[:-1]: "y"}
    near = {each: "y" for each in near if each not in props.PROTOCOL_NAMES and each}
    transient = {f"{props.TRANSIENT_PREFIX}{name}": "y", props.TRANSIENT_PREFIX: "y"}
    assert sent(core, {name: "1"} | near | transient).user_properties == near


@pytest.mark.parametrize(
    ("properties", "kind", "due_ms"),
    [
        ({}, MessageType.NORMAL, None),
        ({props.SHARDING_KEY: "k"}, MessageType.FIFO, None),
        ({props.TIMER_DELIVER_MS: "1767225609000"}, MessageType.DELAY, 1_767_225_609_000),
        ({props.TIMER_DELAY_MS: "0250"}, MessageType.DELAY, NOW_MS + 250),
        ({props.TIMER_DELAY_S: "-2"}, MessageType.DELAY, NOW_MS - 2_000),
        ({props.TIMER_DELAY_S: str(MOST)}, MessageType.DELAY, NOW_MS + MOST * 1_000),
        ({props.TIMER_DELIVER_MS: "-1"}, MessageType.DELAY, -1),
        ({props.TIMER_DELAY_S: "2", props.TIMER_DELAY_MS: "3"}, MessageType.DELAY, NOW_MS + 3),
        ({props.TIMER_DELAY_MS: "3", props.TIMER_DELIVER_MS: "0"}, MessageType.DELAY, 0),
        ({props.TRANSACTION_PREPARED: "true"}, MessageType.TRANSACTION, None),
        ({props.TRANSACTION_PREPARED: "t", props.SHARDING_KEY: "k"}, MessageType.TRANSACTION, None),
    ],
)  # fmt: skip
def test_the_type_of_a_message_follows_from_its_properties(core, properties, kind, due_ms):
    system = sent(core, properties).system_properties
    assert system.message_type == kind
    assert system.delivery_timestamp == (None if due_ms is None else Timestamp.of_ms(due_ms))


def test_a_compressed_body_is_said_to_be_so(core):
    assert sent(core, {}, is_zipped=True).system_properties.body_encoding == BodyEncoding.GZIP


def test_an_empty_body_and_a_time_of_zero_are_defaults(core):
    message = sent(core, {}, body=b"", born_ms=0)
    assert (message.body, message.system_properties.born_timestamp) == (b"", Timestamp())


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("DELAY\x013\x02", {}),
        ("", {"flag": -1}),
        *(
            (f"{name}\x01{value}\x02", {})
            for name in (*props.TIMERS, props.CHECK_IMMUNITY_S)
            for value in ("x", "-", "1 ", "+1", "1_0", "٣", "9" * 5_000, f"-{MOST + 1}")
        ),
    ],
)
def test_what_the_protocol_has_no_way_to_say_is_none(core, text, more):
    assert encoded(core, text, **more) is None


@pytest.mark.parametrize("times", [{"born_ms": -1}, {"now_ms": -1}, {"now_ms": MOST + 1}])
def test_times_out_of_their_range_are_refused(core, times):
    with pytest.raises(ValueError, match="out of its range"):
        encoded(core, "", **times)


def batch_of(*texts, flag=0):
    return encode_batch([b"body"] * len(texts), list(texts), [flag] * len(texts))


def test_a_batch_becomes_its_messages(core):
    texts = [props.encode({props.UNIQ_KEY: str(number), "n": str(number)}) for number in range(3)]
    data, is_keyed = encoded(core, None, batch_of(*texts))
    messages = SendMessageRequest.from_bytes(data).messages
    assert [each.user_properties for each in messages] == [{"n": str(n)} for n in range(3)]
    assert [each.system_properties.message_id for each in messages] == ["0", "1", "2"]
    assert {each.body for each in messages} == {b"body"}
    assert not is_keyed


@pytest.mark.parametrize(
    "batch",
    [
        batch_of("", flag=1),
        batch_of("", "DELAY\x011\x02"),
        batch_of("TRAN_MSG\x01true\x02"),
        batch_of("")[:-1],
        batch_of("") + b"x",
        b"x",
        batch_of("aa\x01b\x02").replace(b"aa", b"a\xff"),
    ],
)
def test_a_batch_that_is_malformed_or_cannot_be_said_is_none(core, batch):
    assert encoded(core, None, batch) is None


NAMES = st.sampled_from(sorted(props.PROTOCOL_NAMES)) | st.text("ab\x01\x02 é", max_size=3)
VALUES = st.text("12-x \x01\x02é", max_size=4) | st.text("x", min_size=120, max_size=140)
TEXTS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)


@given(TEXTS, st.binary(max_size=200), st.sampled_from([0, 0, 1]), st.integers(0, MOST))
def test_cores_agree_about_messages(text, body, flag, ms):
    native = encoded(_cython, text, body, flag=flag, born_ms=ms, now_ms=ms)
    assert native == encoded(reference, text, body, flag=flag, born_ms=ms, now_ms=ms)
    if native is not None:
        SendMessageRequest.from_bytes(native[0])


@given(st.lists(TEXTS, max_size=3), st.data())
def test_cores_agree_about_damaged_batches(texts, data):
    batch = bytearray(batch_of(*texts))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(batch)))
        batch[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    native = encoded(_cython, None, bytes(batch))
    assert native == encoded(reference, None, bytes(batch))
    if native is not None:
        try:
            SendMessageRequest.from_bytes(native[0])
        except ProtocolError as error:
            raise AssertionError(bytes(batch)) from error
