"""Messages to send, and views of received ones (docs/internals/protocol.md#stored-message, V4, V5,
V7, V12)."""

from __future__ import annotations

import copy
import hashlib
import pickle
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ordermq import core
from ordermq.core import RecordWriter, compression
from ordermq.errors import ConfigError, DecodeError, ProtocolError
from ordermq.model.codec import JsonCodec, require_codec
from ordermq.model.message import (
    RESERVED_PROPERTIES,
    Message,
    MessageBatch,
    MessageRun,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.properties import PROTOCOL_NAMES, decode, encode
from ordermq.model.stored_message import (
    MAGIC_LONG_TOPIC,
    StoredMessage,
    host_bytes,
    stored_at,
)
from tests.unit.core.stored_records import INNER_BATCH
from tests.unit.core.stored_records import record as stored_record

QUEUE = MessageQueue("TopicTest", "broker-a", 1)
LONG_TOPIC = "%RETRY%" + "g" * 125
V4_PROPERTIES = {
    "TAGS": "TagA",
    "KEYS": "k1",
    "UNIQ_KEY": "0A00000104D2000000050000ABCD0007",
    "WAIT": "true",
    "CLUSTER": "DefaultCluster",
}


def v12() -> bytes:
    writer = RecordWriter(
        LONG_TOPIC, 0, host_bytes("2001:db8::1", 50_000), host_bytes("::1", 10_911)
    )
    written = writer.write(
        b"x",
        b"",
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
        reconsume_times=3,
    )
    ((_, _, record),) = written.rows(0, 0)
    return bytes(record)


def record(offset: int, body: bytes = b"b", properties: str = "", stored_ms: int = 2) -> bytes:
    writer = RecordWriter("TopicTest", 1, host_bytes("10.0.0.1", 1), host_bytes("10.0.0.2", 2))
    written = writer.write(
        body, properties.encode(), flag=0, sys_flag=0, born_ms=1, stored_ms=stored_ms
    )
    ((_, _, placed),) = written.rows(offset, 0)
    return bytes(placed)


# -- received ------------------------------------------------------------------------------


def test_every_field_of_v4_is_read(vector: Callable[[str], bytes]) -> None:
    (view,) = MessageBatch(QUEUE, vector("messages/stored_v1_ipv4"))
    assert view.message_queue is QUEUE
    assert (view.topic, view.stored_topic, view.tags, view.keys) == (
        "TopicTest", "TopicTest", "TagA", ["k1"],
    )  # fmt: skip
    assert bytes(view.body) == b"hello"
    assert view.properties == V4_PROPERTIES
    assert (view.queue_offset, view.physical_offset, view.flag, view.sys_flag) == (42, 4_096, 0, 0)
    assert (view.born_timestamp_ms, view.born_host) == (1_700_000_000_000, "10.0.0.1:50000")
    assert (view.store_timestamp_ms, view.store_host) == (
        1_700_000_000_005, "192.168.1.10:10911",
    )  # fmt: skip
    assert view.reconsume_times == 0
    assert view.sharding_key is None
    assert view.message_id == "0A00000104D2000000050000ABCD0007"
    assert view.offset_message_id == "C0A8010A00002A9F0000000000001000"
    assert "TopicTest@broker-a/1" in repr(view)


def test_v4_is_written_byte_for_byte(vector: Callable[[str], bytes]) -> None:
    expected = vector("messages/stored_v1_ipv4")
    writer = RecordWriter(
        "TopicTest", 1, host_bytes("10.0.0.1", 50_000), host_bytes("192.168.1.10", 10_911)
    )
    written = writer.write(
        b"hello",
        expected[-93:],
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
    )
    ((_, _, placed),) = written.rows(42, 4_096)
    assert bytes(placed) == expected
    assert stored_at(expected) == 1_700_000_000_005


def test_v12_is_written_byte_for_byte() -> None:
    written = v12()
    assert len(written) == 249
    assert written[:12].hex() == "000000f9daa320ab0cdc1683"
    assert hashlib.sha256(written).hexdigest().startswith("55cddb6c409af6de")
    assert stored_at(written) == 1_700_000_000_005


def test_every_field_of_v12_is_read() -> None:
    queue = MessageQueue(LONG_TOPIC, "broker-a", 0)
    (view,) = MessageBatch(queue, v12())
    assert (bytes(view.body), view.properties, view.sys_flag) == (b"x", {}, 0x30)
    assert (view.born_host, view.store_host) == ("[2001:db8::1]:50000", "[::1]:10911")
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (
        1_700_000_000_000, 1_700_000_000_005,
    )  # fmt: skip
    assert view.reconsume_times == 3
    assert view.message_id == view.offset_message_id
    assert view.offset_message_id == "0" * 31 + "100002A9F" + "0" * 16


def test_the_broker_reads_both_vectors_whole(vector: Callable[[str], bytes]) -> None:
    first = StoredMessage.read(vector("messages/stored_v1_ipv4"))
    assert (first.topic, first.queue_offset, first.body) == ("TopicTest", 42, b"hello")
    assert first.store_host == host_bytes("192.168.1.10", 10_911)
    second = StoredMessage.read(v12())
    assert (second.topic, second.reconsume_times, second.body) == (LONG_TOPIC, 3, b"x")
    assert second.born_host == host_bytes("2001:db8::1", 50_000)
    assert int.from_bytes(v12()[4:8], "big", signed=True) == MAGIC_LONG_TOPIC


def test_a_truncated_record_is_a_protocol_error_wherever_it_ends(
    vector: Callable[[str], bytes],
) -> None:
    whole = vector("messages/stored_v1_ipv4")
    for size in range(1, len(whole)):
        with pytest.raises(ProtocolError):
            MessageBatch(QUEUE, whole[:size])


def test_the_crc_covers_the_stored_body_in_31_bits() -> None:
    assert int.from_bytes(record(0, b"a")[8:12], "big") == 1_756_872_259


def test_the_client_drops_messages_whose_tag_only_shares_the_hash() -> None:
    # "Aa" and "BB" have one hash in Java, so the broker lets both through.
    body = b"".join(
        record(offset, properties=f"TAGS\x01{tag}\x02" if tag else "")
        for offset, tag in enumerate(["Aa", "BB", "", "Aa"])
    )
    assert [view.queue_offset for view in MessageBatch(QUEUE, body, (b"Aa",))] == [0, 3]
    assert len(MessageBatch(QUEUE, body)) == 4


def test_a_retried_message_shows_the_topic_it_was_sent_to() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 0)
    (view,) = MessageBatch(queue, record(0, properties="RETRY_TOPIC\x01orders\x02"))
    assert (view.topic, view.stored_topic) == ("orders", "%RETRY%g")


def test_a_batch_is_a_sequence_of_views() -> None:
    batch = MessageBatch(QUEUE, b"".join(record(offset) for offset in (5, 7, 9)))
    assert [view.queue_offset for view in batch] == [5, 7, 9]
    assert batch[-1].queue_offset == 9
    assert [view.queue_offset for view in batch[1:]] == [7, 9]
    with pytest.raises(IndexError, match="of 3"):
        batch[3]


def test_a_run_joins_pieces_of_batches_without_making_views() -> None:
    first = MessageBatch(QUEUE, b"".join(record(offset) for offset in (5, 7, 9)))
    second = MessageBatch(QUEUE, b"".join(record(offset) for offset in (10, 11)))
    run = MessageRun([(first, 1, 2), (second, 0, 1)])
    assert len(run) == 3
    assert run.offsets() == [7, 9, 10] == [view.queue_offset for view in run]
    assert (run.first_offset, run.last_offset) == (7, 10)
    assert [run[i].queue_offset for i in (0, 1, 2, -1, -3)] == [7, 9, 10, 10, 7]
    assert [view.queue_offset for view in run[::-2]] == [10, 7]
    for position in (3, -4):
        with pytest.raises(IndexError):
            run[position]


def test_a_message_goes_to_another_process_alone_and_as_it_was() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 1)
    inner = core.encode_batch([b"a", b"bb"], ["TAGS\x01x", "UNIQ_KEY\x01u"], [0, 7])
    records = [
        record(5, b'{"n":1}', "RETRY_TOPIC\x01space%orders\x02"),
        stored_record(offset=7, body=inner, sys_flag=INNER_BATCH),
        record(9, b"long" * 5_000),
    ]
    batch = MessageBatch(queue, b"".join(records), namespace="space")
    batch.codec = require_codec(JsonCodec(dict[str, int]), "g")
    batch.set_attempts(5, 2)
    names = [name for name in dir(batch[0]) if not name.startswith("_") and name != "index"]
    for view in batch:
        here = pickle.loads(pickle.dumps(view))
        for name in names:
            known = getattr(view, name)
            if not callable(known):
                assert getattr(here, name) == known, name
        assert bytes(here) == bytes(view)
        assert copy.copy(view) is copy.deepcopy(view) is view, "nobody can change it"
    first = pickle.loads(pickle.dumps(batch[0]))
    assert (first.reconsume_times, first.value()) == (2, {"n": 1})
    assert len(pickle.dumps(batch[0])) < 2_000, "without the others of its batch"
    run = MessageRun([(batch, 1, 2), (batch, 3, 1)])
    there = pickle.loads(pickle.dumps(run))
    assert [view.queue_offset for view in there] == run.offsets() == [7, 8, 9]
    assert list(run) == there == list(run)


def test_a_message_is_found_in_its_batch_whenever_its_views_were_made() -> None:
    queue = MessageQueue("TopicTest", "b", 1)
    batch = MessageBatch(queue, b"".join(map(record, (3, 4, 5))))
    run = MessageRun([(batch, 0, 3)])
    for messages in batch, run, list(run), run[:]:
        assert [messages.index(message) for message in run] == [0, 1, 2]
        assert all(message in messages and messages.count(message) == 1 for message in run)
        assert "no message" not in messages
    assert len({*run, *run, *batch}) == 3
    other_queue = MessageBatch(queue._replace(queue_id=2), record(3))[0]
    other_life = MessageBatch(queue, record(3, stored_ms=9))[0]
    assert other_queue not in run
    assert other_life not in run


# -- to send -------------------------------------------------------------------------------


def properties_of(message: Message, key: str | None = None) -> dict[str, str]:
    return decode(message.wire_properties(key, "ID"))


def test_the_properties_of_a_send_carry_what_the_protocol_reads() -> None:
    message = Message(
        "T", b"x", tags="a", keys=["k1", "k2"], properties={"mine": "1"}, delay_level=3
    )
    assert properties_of(message, "o-17") == {
        "mine": "1",
        "TAGS": "a",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "__SHARDINGKEY": "o-17",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
    }


def test_a_plain_message_carries_only_its_id_and_the_wait_mark() -> None:
    assert properties_of(Message("T", b"x")) == {"UNIQ_KEY": "ID", "WAIT": "true"}


class Array:
    """Has no truth value, like those of NumPy and pandas."""

    def __init__(self, *items: str) -> None:
        self._items = items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


def test_keys_may_be_given_as_a_str_or_anything_to_iterate_over() -> None:
    assert Message("T", b"x", keys="o-17").keys == ("o-17",)
    # A generator can be read once only, and pandas' and NumPy's arrays have no truth value.
    for several in (each for each in ("a", "b")), {"a": 1, "b": 2}, Array("a", "b"):
        message = Message("T", b"x", keys=several)  # type: ignore[arg-type] # no Sequence
        assert message.keys == ("a", "b")
        assert "KEYS\x01a b\x02" in message.wire_properties(None, "id")
    for none in None, "", (), [], iter(()):
        assert not Message("T", b"x", keys=none).keys  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "a b"}, "topic name"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "is a system topic of the broker"),
        ({"body": b""}, "body is empty"),
        ({"body": "text"}, "encode text first"),
        ({"keys": ["a b"]}, "without blanks"),
        ({"keys": [5]}, "expected str without blanks"),
        ({"keys": 5}, "keys=5: expected a str, or a list of them"),
        ({"keys": "a b"}, "for several give a list"),
        ({"body": "Tag", "tags": b"body"}, r"write Message\(topic, body, tags=\)"),  # as in Java
        ({"body": "Tag", "tags": "key", "keys": b"body"}, "bytes in place of tags or keys"),
        ({"body": b"Tag", "tags": "key", "keys": b"body"}, "bytes in place of tags or keys"),
        ({"delay_level": 19}, r"delay_level=19: expected 0\.\.18"),
        ({"delay_level": -1}, "delay_level=-1"),
        ({"delay_ms": -1}, "delay_ms=-1"),
        ({"delay_ms": "soon"}, "delay_ms='soon': expected ms as an int, a text with a unit"),
        ({"deliver_at_ms": "2h"}, "deliver_at_ms='2h': .*; delay_ms takes a length of time"),
        ({"delay_level": "3"}, "delay_level='3': expected an int"),
        ({"flag": 1.5}, "flag=1.5: expected an int"),
        ({"deliver_at_ms": -1}, "deliver_at_ms=-1"),
        ({"delay_ms": 1, "delay_level": 1}, "one of"),
        ({"delay_ms": 1, "deliver_at_ms": 1}, "one of"),
        ({"deliver_at_ms": 1_795_333_164}, "looks like seconds: write 1795333164000"),
        ({"flag": 1 << 31}, "flag"),
    ],
)
def test_a_message_no_broker_would_take_is_refused_when_it_is_made(
    fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Message(**({"topic": "T", "body": b"x"} | fields))  # type: ignore[arg-type]


def test_times_of_delivery_are_given_as_times_and_lengths_of_time() -> None:
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
    message = Message("T", b"x", deliver_at_ms=noon)
    assert message.deliver_at_ms == 1_795_867_200_000
    assert message == Message("T", b"x", deliver_at_ms=1_795_867_200_000)
    for span in ("3s", "3000ms", timedelta(seconds=3), 3_000):
        assert Message("T", b"x", delay_ms=span).delay_ms == 3_000
    assert not Message("T", b"x", delay_ms="0s").is_delayed


@pytest.mark.parametrize(
    "body", [memoryview(array("I", [1, 2])), memoryview(b"abcdefgh").cast("B", (2, 4))]
)
def test_a_body_has_the_length_of_its_bytes_whatever_its_items(body: memoryview) -> None:
    assert len(Message("T", body).body) == 8


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "DELAY", "PGROUP"])
def test_a_property_of_the_protocol_cannot_be_set_by_hand(name: str) -> None:
    with pytest.raises(ConfigError, match="is reserved by the protocol"):
        Message("T", b"x", properties={name: "v"}).wire_properties(None, "ID")


@pytest.mark.parametrize("character", ["p", "订"])
def test_properties_leave_room_below_the_16_bits_of_their_length(character: str) -> None:
    width = len(character.encode())
    own = 32_127 - len("p\x01\x02UNIQ_KEY\x01ID\x02WAIT\x01true\x02")
    fits = character * (own // width)
    Message("T", b"x", properties={"p": fits}).wire_properties(None, "ID")
    with pytest.raises(ConfigError, match="at most 32127"):
        Message("T", b"x", properties={"p": fits + character}).wire_properties(None, "ID")


def test_queues_are_ordered_as_java_orders_them() -> None:
    queues = [
        MessageQueue("b", "a", 0),
        MessageQueue("a", "b", 0),
        MessageQueue("a", "a", 10),
        MessageQueue("a", "a", 9),
    ]
    assert [str(queue) for queue in sorted(queues)] == ["a@a/9", "a@a/10", "a@b/0", "b@a/0"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 40])
def test_a_run_is_cut_into_parts_across_its_batches(size: int) -> None:
    batches = [
        MessageBatch(QUEUE, b"".join(map(record, range(start, start + 4)))) for start in (0, 10, 20)
    ]
    run = MessageRun([(batches[0], 1, 3), (batches[1], 0, 4), (batches[2], 2, 2)])
    parts = list(run.parts(size))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= size
    offsets = [offset for part in parts for offset in part.offsets()]
    assert offsets == run.offsets() == [1, 2, 3, 10, 11, 12, 13, 22, 23]
    assert [len(part.offsets()) for part in parts] == [len(part) for part in parts]


# Reading a body, telling of a message, copying it.


def view_of(body: bytes, properties: bytes = b"", sys_flag: int = 0, flag: int = 0) -> Any:
    writer = RecordWriter("TopicTest", 1, host_bytes("10.0.0.1", 5), host_bytes("10.0.0.2", 6))
    block = writer.write(
        body, properties, flag=flag, sys_flag=sys_flag, born_ms=1, stored_ms=2, reconsume_times=3
    )
    ((_, _, record),) = block.rows(17, 4_096)
    return MessageBatch(QUEUE, bytes(record))[0]


def test_a_body_is_read_as_bytes_as_text_and_as_json() -> None:
    view = view_of('{"paid": "\u00e4"}'.encode())
    assert bytes(view) == bytes(view.body) == '{"paid": "\u00e4"}'.encode()
    assert view.text() == '{"paid": "\u00e4"}'
    assert view.json() == {"paid": "\u00e4"}
    assert view_of(b"\xe4").text("latin-1") == "\u00e4"
    assert view.offset == view.queue_offset == 17


@pytest.mark.parametrize("call", ["text", "json"])
def test_a_body_that_is_no_text_and_no_json_names_its_place(call: str) -> None:
    with pytest.raises(DecodeError, match="the body is no") as caught:
        getattr(view_of(b'"\xe4"'), call)()
    error = caught.value
    assert (error.topic, error.broker, error.queue_id, error.offset) == (*QUEUE, 17)
    assert error.__cause__ is not None


def test_a_message_tells_what_one_looks_for_and_not_its_body() -> None:
    told = encode({"__SHARDINGKEY": "o-17", "TAGS": "paid", "KEYS": "a b"}).encode()
    assert repr(view_of(b"secret", told)) == (
        f"<MessageView {QUEUE} offset=17 sharding_key='o-17' tags='paid' keys=['a', 'b'] "
        "reconsume_times=3 6 bytes>"
    )
    damaged = repr(view_of(b"secret", b"TAGS\x01\xff\x02"))
    assert "with unreadable properties" in damaged
    assert repr(Message("orders", b"secret", tags="paid", delay_level=3)) == (
        "<Message orders 6 bytes tags='paid' delay_level=3>"
    )


def test_a_copy_has_what_is_the_users_and_nothing_of_the_protocol() -> None:
    everything = dict.fromkeys(sorted(PROTOCOL_NAMES), "x") | {
        "TAGS": "paid",
        "KEYS": "o-17 c-3",
        "RETRY_TOPIC": "orders",
        "__RMQ.TRANSIENT.TOPIC_SYS_FLAG": "1",
        "region": "eu",
        "traceparent": "00-1-2-01",
    }
    body, compressed = compression.compress(b"paid" * 100, "zlib", 5)
    view = view_of(body, encode(everything).encode(), sys_flag=compressed, flag=-7)
    copy = Message.from_view(view)
    assert copy == Message(
        "orders",
        b"paid" * 100,
        tags="paid",
        keys=("o-17", "c-3"),
        properties={"region": "eu", "traceparent": "00-1-2-01"},
        flag=-7,
    )
    sent = decode(copy.wire_properties(view.sharding_key, "ID"))
    assert sent == {
        "TAGS": "paid", "KEYS": "o-17 c-3", "region": "eu", "traceparent": "00-1-2-01",
        "__SHARDINGKEY": "x", "UNIQ_KEY": "ID", "WAIT": "true",
    }  # fmt: skip
    assert Message.from_view(view, topic="archive").topic == "archive"


def test_what_a_sender_may_not_set_is_never_copied() -> None:
    assert RESERVED_PROPERTIES <= PROTOCOL_NAMES


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tags": ["a"]}, r"message tags=\['a'\]: expected one tag as a str, not a list"),
        ({"tags": 3}, "message tags=3: expected one tag"),
        ({"tags": b"a"}, "message tags=b'a': expected one tag"),
        ({"properties": [("a", "b")]}, "message properties are a list: expected a dict"),
    ],
)
def test_tags_and_properties_of_a_wrong_type_are_refused_by_their_argument(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        Message("orders", b"x", **given)


def test_tags_that_are_assigned_later_are_refused_by_that_name() -> None:
    message = Message("orders", b"x")
    message.tags = 3  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"^message tags=3: expected one tag as a str"):
        message.wire_properties(None, "id")


@pytest.mark.parametrize("tags", ["a || b", " a", "a b", "a,b"])
def test_a_tag_that_no_expression_names_is_sent_as_other_clients_do(tags: str) -> None:
    """RocketMQ's own client and brokers take it, so a copy of such a message can be made."""
    assert f"TAGS\x01{tags}\x02" in Message("orders", b"x", tags=tags).wire_properties(None, "id")
