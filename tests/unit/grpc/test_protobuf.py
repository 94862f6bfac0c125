"""The encoding of protocol buffers."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ProtocolError
from ordermq.grpc.messages import (
    Address,
    Duration,
    Endpoints,
    Message,
    Queue,
    Resource,
    SendResultEntry,
    Status,
    SystemProperties,
    TelemetryCommand,
    Timestamp,
)
from ordermq.grpc.protobuf import ProtoMessage

# Written by protobuf 7.36 of the public definition.
VECTORS: list[tuple[ProtoMessage, str]] = [
    (Status(code=20000, message="OK"), "08a09c0112024f4b"),
    (Resource(name="käse"), "12056bc3a47365"),
    (SendResultEntry(offset=-1), "20ffffffffffffffffff01"),
    (
        Endpoints(scheme=1, addresses=[Address(host="a", port=8081), Address(host="b")]),
        "080112060a016110913f12030a0162",
    ),
    (
        Message(
            topic=Resource(name="t"),
            user_properties={"u": "v"},
            system_properties=SystemProperties(
                tag="", keys=["x", "y"], queue_offset=0, message_group="k"
            ),
            body=b"\0\xff",
        ),
        "0a03120174" "12060a01751201761a0e0a0012017812017970008a01016b" "220200ff",
    ),
    (Duration.of_ms(1_500), "08011080cab5ee01"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "data"), VECTORS)
def test_a_message_has_the_bytes_of_the_public_definition(message: ProtoMessage, data: str) -> None:
    assert message.to_bytes().hex() == data
    assert type(message).from_bytes(bytes.fromhex(data)) == message


def test_fields_without_a_value_are_not_sent_and_empty_optional_ones_are() -> None:
    assert Status().to_bytes() == b""
    assert SystemProperties(tag="").to_bytes() == b"\x0a\0"
    assert SystemProperties.from_bytes(b"").tag is None


def test_fields_that_nobody_knows_are_skipped() -> None:
    unknown = b"\xa0\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa2\x06\x01x"
    assert Status.from_bytes(unknown + b"\x08\x05") == Status(code=5)


def test_lists_of_numbers_are_read_packed_and_one_by_one() -> None:
    assert Queue.from_bytes(b"\x2a\x02\x01\x02").accept_message_types == [1, 2]
    assert Queue.from_bytes(b"\x28\x01\x28\x02").accept_message_types == [1, 2]
    assert Queue(accept_message_types=[1, 2]).to_bytes() == b"\x28\x01\x28\x02"


TEXTS = st.text(max_size=5)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
SYSTEMS = st.builds(
    SystemProperties,
    tag=st.none() | TEXTS,
    keys=st.lists(TEXTS, max_size=3),
    message_id=TEXTS,
    queue_id=NUMBERS,
    queue_offset=st.none() | NUMBERS,
    born_timestamp=st.none() | st.builds(Timestamp, seconds=NUMBERS, nanos=NUMBERS),
)
MESSAGES = st.builds(
    Message,
    topic=st.none() | st.builds(Resource, name=TEXTS),
    user_properties=st.dictionaries(TEXTS, TEXTS, max_size=3),
    system_properties=st.none() | SYSTEMS,
    body=st.binary(max_size=300),
)


@given(MESSAGES)
def test_what_is_written_is_read(message: Message) -> None:
    assert Message.from_bytes(message.to_bytes()) == message


@given(MESSAGES, st.data())
def test_a_truncated_message_is_refused_or_is_a_shorter_one(
    message: Message, data: st.DataObject
) -> None:
    whole = message.to_bytes()
    part = whole[: data.draw(st.integers(0, max(len(whole) - 1, 0)))]
    try:
        read = Message.from_bytes(part)
    except ProtocolError:
        return
    assert len(read.to_bytes()) <= len(whole)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_protocol_error(data: bytes) -> None:
    for kind in (Message, TelemetryCommand, Queue):
        with contextlib.suppress(ProtocolError):
            kind.from_bytes(data)
