"""Messages of RocketMQ's proxy as stored records, on every core."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.core import _cython, reference
from ordermq.core.compression import compress
from ordermq.core.status import MAX_OFFSET
from ordermq.errors import ProtocolError
from ordermq.grpc.messages import (
    AckMessageResponse,
    AckMessageResultEntry,
    BodyEncoding,
    Message,
    ReceiveMessageResponse,
    SendMessageResponse,
    SendResultEntry,
    Status,
    SystemProperties,
    Timestamp,
)
from ordermq.model import properties as props
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)
LONGEST = 32_767  # bytes of properties


def part_of(data):
    """Return a part of an answer with this message."""
    return ReceiveMessageResponse(message=data).to_bytes()


def message(*, users=None, body=b"body", **system):
    system = {"queue_offset": 41, "queue_id": 3} | system
    return Message(
        user_properties=users or {}, system_properties=SystemProperties(**system), body=body
    ).to_bytes()


def properties_of(record):
    [view] = MessageBatch(QUEUE, record)
    return dict(view.properties)


def test_a_message_becomes_the_record_of_a_broker(core):
    data = message(
        users={"country": "AT"}, tag="t", keys=["a", "b"], message_id="id", message_group="k",
        receipt_handle="handle", delivery_attempt=3, born_timestamp=Timestamp.of_ms(5_001),
        store_timestamp=Timestamp.of_ms(6_002), trace_context="trace",
    )  # fmt: skip
    *place, record = core.read_proxy_message(part_of(data), "orders")
    assert place == [3, 41, "id", "handle"]
    [view] = MessageBatch(QUEUE, record, (), "", True, (3, 41, 42))
    assert (bytes(view.body), view.tags, view.keys) == (b"body", "t", ["a", "b"])
    assert (view.message_id, view.sharding_key, view.get_property("country")) == ("id", "k", "AT")
    assert (view.queue_offset, view.reconsume_times) == (41, 2)
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (5_001, 6_002)
    assert view.get_property("TRACE_CONTEXT") == "trace"


def test_what_is_absent_or_empty_is_no_property(core):
    data = message(users={"": "x", "y": ""}, tag="", keys=[""], message_id="")
    *place, record = core.read_proxy_message(part_of(data), "orders")
    assert place == [3, 41, "", ""]
    assert properties_of(record) == {}


def test_of_a_name_that_occurs_twice_rocketmqs_own_counts(core):
    data = message(users={props.UNIQ_KEY: "theirs", props.TAGS: "theirs"}, message_id="id", tag="t")
    *_, record = core.read_proxy_message(part_of(data), "orders")
    assert properties_of(record) == {props.UNIQ_KEY: "id", props.TAGS: "t"}


@pytest.mark.parametrize("ms", [0, 1_767_225_609_123])
def test_a_timed_message_has_its_time(core, ms):
    data = message(delivery_timestamp=Timestamp.of_ms(ms))
    *_, record = core.read_proxy_message(part_of(data), "orders")
    assert properties_of(record) == {props.TIMER_DELIVER_MS: str(ms)}


def test_a_compressed_body_is_said_to_be_so(core):
    for encoding, flag in ((BodyEncoding.IDENTITY, 0), (BodyEncoding.GZIP, 0x301)):
        *_, record = core.read_proxy_message(part_of(message(body_encoding=encoding)), "orders")
        assert struct.unpack_from(">i", record, 36) == (flag,)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_what_a_proxy_calls_gzip_is_read_whatever_compressed_it(core, kind):
    packed, sys_flag = compress(b"body" * 9, kind, 3)
    data = message(body=packed, body_encoding=BodyEncoding.GZIP)
    *_, record = core.read_proxy_message(part_of(data), "orders")
    assert struct.unpack_from(">i", record, 36) == (sys_flag,)
    [view] = MessageBatch(QUEUE, record)
    assert view.body == b"body" * 9


def test_the_longest_properties_are_taken_and_longer_ones_refused(core):
    rest = len("name\x01\x02")
    *_, record = core.read_proxy_message(
        part_of(message(users={"name": "x" * (LONGEST - rest)})), "orders"
    )
    assert len(properties_of(record)["name"]) == LONGEST - rest
    with pytest.raises(ProtocolError, match="too long"):
        core.read_proxy_message(
            part_of(message(users={"name": "x" * (LONGEST - rest + 1)})), "orders"
        )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no offset"),
        (message(queue_offset=None), "no offset"),
        (message(queue_offset=-1), "out of its range"),
        (message(queue_offset=MAX_OFFSET + 1), "out of its range"),
        (message(queue_id=1 << 31), "out of its range"),
        (message(delivery_attempt=1 << 31), "out of its range"),
        (message(born_timestamp=Timestamp(seconds=(1 << 53) + 1)), "out of its range"),
        (message(store_timestamp=Timestamp(nanos=-1)), "out of its range"),
        (b"\x1a\x03\x0a\x01\xff" + message(), "no fault: the last one counts"),
        (message() + b"\x1a\x05\x70\x01\x0a\x01\xff", "not UTF-8"),
        (message() + b"\x12\x03\x0a\x01\xff", "not UTF-8"),
        (message() + b"\x18\x01", "malformed"),  # system properties as a number
        (message() + b"\x1a\x03\x72\x01x", "malformed"),  # an offset as a text
        (message() + b"\x23", "malformed"),  # a group
        (message() + b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "malformed"),
        (message() + b"\xa0" + b"\x80" * 10 + b"\x01", "malformed"),  # a number of 11 bytes
        (message()[:-1], "malformed"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_the_reason(core, data, why):
    if why.startswith("no fault"):
        core.read_proxy_message(part_of(data), "orders")
        return
    with pytest.raises(ProtocolError, match=f"message of the proxy cannot be read: .*{why}"):
        core.read_proxy_message(part_of(data), "orders")


def test_fields_that_nobody_knows_are_skipped(core):
    unknown = b"\xa0\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa2\x06\x01x"
    plain = core.read_proxy_message(part_of(message()), "orders")
    assert core.read_proxy_message(part_of(unknown + message()), "orders") == plain
    assert core.read_proxy_message(unknown + part_of(message()), "orders") == plain


TEXTS = st.text(max_size=5) | st.text("\x01\x02a", max_size=3)
NUMBERS = st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.builds(Timestamp, seconds=NUMBERS, nanos=st.integers(-1, 1 << 31))
SYSTEMS = st.builds(
    SystemProperties,
    tag=st.none() | TEXTS,
    keys=st.lists(TEXTS, max_size=3),
    message_id=TEXTS,
    body_encoding=st.integers(0, 3),
    born_timestamp=st.none() | TIMES,
    store_timestamp=st.none() | TIMES,
    delivery_timestamp=st.none() | TIMES,
    receipt_handle=st.none() | TEXTS,
    queue_id=NUMBERS,
    queue_offset=st.none() | st.integers(0, MAX_OFFSET) | NUMBERS,
    delivery_attempt=st.none() | NUMBERS,
    message_group=st.none() | TEXTS,
    trace_context=st.none() | TEXTS,
)
MESSAGES = st.builds(
    Message,
    user_properties=st.dictionaries(TEXTS, TEXTS, max_size=3),
    system_properties=st.none() | SYSTEMS,
    body=st.binary(max_size=300),
)


def same(data, topic="orders"):
    """Return what both cores make of these bytes, which is the same."""
    found = []
    for core in (reference, _cython):
        try:
            found.append(core.read_proxy_message(data, topic))
        except ProtocolError as error:
            found.append(type(error))
    assert found[0] == found[1]
    return found[0]


@given(MESSAGES, st.sampled_from(["orders", "t" * 200]))
def test_cores_agree_about_messages(one, topic):
    same(part_of(one.to_bytes()), topic)


@given(MESSAGES, st.data())
def test_cores_agree_about_damaged_messages(one, data):
    changed = bytearray(one.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        cut = data.draw(st.integers(0, 3))
        changed[at : at + cut] = data.draw(st.binary(max_size=3))
    found = same(part_of(bytes(changed)))
    if found is not ProtocolError:
        assert len(MessageBatch(QUEUE, found[-1])) == 1


@given(st.binary(max_size=200))
def test_cores_agree_about_any_bytes(data):
    same(data)
    same(part_of(data))
    same(part_of(b"\x1a" + bytes((len(data) % 128,)) + data))


def test_a_part_without_a_message_has_none(core):
    assert core.read_proxy_message(b"", "orders") is None
    assert core.read_proxy_message(ReceiveMessageResponse(status=OK).to_bytes(), "orders") is None


@pytest.mark.parametrize("data", [b"\x10\x01", b"\x12\x05", b"\x0b"])
def test_a_part_that_is_malformed_is_refused(core, data):
    with pytest.raises(ProtocolError, match="malformed"):
        core.read_proxy_message(data, "orders")


OK = Status(code=20_000, message="OK")
FENCED = Status(code=40_013)


def answer(*statuses, whole=OK):
    entries = [AckMessageResultEntry(message_id="id", status=each) for each in statuses]
    return AckMessageResponse(status=whole, entries=entries).to_bytes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (answer(OK, OK), True),
        (answer(), True),
        (answer(OK, FENCED), False),
        (answer(OK, None), False),
        (answer(OK, whole=FENCED), False),
        (answer(OK, whole=None), False),
        (answer(OK, whole=Status()), False),
        (answer(OK)[:-1], False),
        (answer(OK) + b"\x10\x01", False),  # an entry as a number
        (answer(OK) + b"\x08\x01", False),  # a status as a number
        (b"", False),
    ],
)
def test_an_acknowledgement_was_taken_if_every_status_says_so(core, data, expected):
    assert core.all_acknowledged(data) is expected


STATUSES = st.none() | st.sampled_from([OK, FENCED, Status()])
ANSWERS = st.builds(lambda whole, each: answer(*each, whole=whole), STATUSES, st.lists(STATUSES))


@given(ANSWERS | st.binary(max_size=60), st.data())
def test_cores_agree_about_acknowledgements(data, draw):
    changed = bytearray(data)
    at = draw.draw(st.integers(0, len(changed)))
    changed[at : at + draw.draw(st.integers(0, 2))] = draw.draw(st.binary(max_size=2))
    for each in (data, bytes(changed)):
        assert reference.all_acknowledged(each) == _cython.all_acknowledged(each)


STORED = SendResultEntry(
    status=OK, message_id="id", transaction_id="t", offset=MAX_OFFSET, recall_handle="r"
)


def sent(*entries, whole=OK):
    return SendMessageResponse(status=whole, entries=list(entries)).to_bytes()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (sent(STORED), ("id", MAX_OFFSET, "t", "r")),
        (sent(SendResultEntry(status=OK)), ("", 0, "", "")),
        (b"\xa2\x06\x01x" + sent(STORED), ("id", MAX_OFFSET, "t", "r")),
        (sent(), None),
        (sent(STORED, SendResultEntry(status=OK, message_id="j")), ("id,j", MAX_OFFSET, "t", "r")),
        (sent(SendResultEntry(status=OK), STORED), (",id", 0, "", "")),
        (sent(STORED, SendResultEntry(status=FENCED, message_id="id")), None),
        (sent(STORED, SendResultEntry(status=OK, offset=-1)), None),
        (sent(STORED, whole=FENCED), None),
        (sent(STORED, whole=None), None),
        (sent(SendResultEntry(status=FENCED, message_id="id")), None),
        (sent(SendResultEntry(message_id="id")), None),
        (sent(SendResultEntry(status=OK, offset=-1)), None),
        (sent(SendResultEntry(status=OK, offset=MAX_OFFSET + 1)), None),
        (sent(STORED)[:-1], None),
        (sent(SendResultEntry(status=OK, message_id="id")).replace(b"id", b"\xffd"), None),
        (b"", None),
    ],
)
def test_a_send_is_stored_where_its_answer_says_so_of_each_message(core, data, expected):
    assert core.stored_by_proxy(data) == expected


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 3))
def test_cores_agree_about_answers_to_sends(new, at, cut):
    data = bytearray(sent(STORED, STORED))
    data[at : at + cut] = new
    for each in (new, bytes(data)):
        assert reference.stored_by_proxy(each) == _cython.stored_by_proxy(each)
