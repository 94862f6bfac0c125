"""Records for the store and batches to send (docs/internals/protocol.md#stored-message,
docs/internals/protocol.md#batch-body), on each core."""

import struct
from itertools import pairwise

import pytest
import stored_records
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ordermq.core import reference
from ordermq.errors import ProtocolError
from ordermq.model.hashing import string_hash
from ordermq.model.stored_message import host_bytes

V4_HOST, V6_HOST = host_bytes("10.0.0.1", 50_000), host_bytes("2001:db8::1", 10_911)
BATCH_TIMES = {"sys_flag": 0, "born_ms": 1, "stored_ms": 2}
TIMES = {"flag": 0, **BATCH_TIMES}


def writer_of(core, topic="t", born=V4_HOST, store=V4_HOST):
    return core.RecordWriter(topic, 0, born, store)


def text(fields):
    return "".join(f"{name}\x01{value}\x02" for name, value in fields.items())


def test_a_record_is_javas_byte_for_byte(core):
    expected = stored_records.v4()
    writer = core.RecordWriter("TopicTest", 1, V4_HOST, host_bytes("192.168.1.10", 10_911))
    block = writer.write(
        b"hello",
        expected[-93:],
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
    )
    assert block.rows(42, 4_096) == [(42, string_hash("TagA"), expected)]


def test_a_long_topic_and_wide_hosts_are_javas_byte_for_byte(core):
    writer = core.RecordWriter(
        "%RETRY%" + "g" * 125, 0, host_bytes("2001:db8::1", 50_000), host_bytes("::1", 10_911)
    )
    block = writer.write(
        b"x",
        b"",
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
        reconsume_times=3,
    )
    assert block.rows(0, 0) == [(0, 0, stored_records.v12())]


@pytest.mark.parametrize("born", [V4_HOST, V6_HOST])
@pytest.mark.parametrize("store", [V4_HOST, V6_HOST])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 32767])
def test_a_batch_written_is_read_again_field_by_field(core, size, born, store):
    flags = [0, -1, 2**31 - 1, -(2**31)]
    fields = [{"TAGS": "a", "KEYS": "k"}, {}, {"TAGS": "订单"}, {"TAGS": "a", "X": "x" * 32_755}]
    bodies = [b"one", b"", b"three" * 99, bytes(300)]
    batch = core.encode_batch(bodies, [text(one) for one in fields], flags)
    writer = core.RecordWriter("t" * size, 7, born, store)
    block = writer.write_batch(batch, sys_flag=0x30 | 0x2, born_ms=-5, stored_ms=2**63 - 1)
    rows = block.rows(100, 2**40)
    index = core.MessageIndex(b"".join(record for _, _, record in rows), (), True)
    hosts = (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0)
    assert len(block) == len(index) == 4
    assert (
        block.tags
        == [tag for _, tag, _ in rows]
        == index.columns("tag_hashes")["tag_hashes"].tolist()
    )
    for row, (offset, _, record) in enumerate(rows):
        view = core.MessageView(index, row)
        assert bytes(view.body) == bodies[row]
        assert view.properties == fields[row]
        assert (view.flag, view.sys_flag) == (flags[row], 0x2 | hosts)
        assert (view.queue_offset, view.physical_offset) == (offset, 2**40 + row)
        assert (offset, view.queue_id, view.reconsume_times) == (100 + row, 7, 0)
        assert (view.born_timestamp_ms, view.store_timestamp_ms) == (-5, 2**63 - 1)
        assert (view.born_host_bytes, view.store_host_bytes) == (born, store)
        assert b"t" * size in record


def test_rows_given_again_have_their_new_places_and_memory_of_their_own(core):
    block = writer_of(core).write_batch(
        core.encode_batch([b"a", b"b"], ["", ""], [0, 0]), **BATCH_TIMES
    )
    first = block.rows(1, 10)
    again = [bytes(record) for _, _, record in block.rows(5, 50)]
    assert [record[20:36] for _, _, record in first] == [
        struct.pack(">qq", 1, 10),
        struct.pack(">qq", 2, 11),
    ]
    first[0][2][:] = b""
    assert [record for _, _, record in block.rows(5, 50)] == again
    assert all(type(record) is bytearray for _, _, record in first)


def test_a_batch_of_none_has_no_rows(core):
    block = writer_of(core).write_batch(core.encode_batch([], [], []), **BATCH_TIMES)
    assert (len(block), block.tags, block.rows(0, 0)) == (0, [], [])


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        ("", None),
        ("TAGS\1TagA\2", "TagA"),
        ("KEYS\1k\2TAGS\1订单\2WAIT\1true\2", "订单"),
        ("KEYS\1k\2TAGS\1last", "last"),
        ("TAGS\1one\2TAGS\1two\2", "two"),
        ("MYTAGS\1no\2", None),
        ("KEYS\1TAGS\2", None),
        ("TAGS\1\2KEYS\1k\2", None),
    ],
)
def test_the_tag_is_found_in_the_text(core, properties, tag):
    expected = string_hash(tag) if tag else 0
    writer = writer_of(core)
    assert writer.write(b"", properties.encode(), **TIMES).tags == [expected]
    batch = core.encode_batch([b""], [properties], [0])
    assert writer.write_batch(batch, **BATCH_TIMES).tags == [expected]
    assert writer.write(b"", properties.encode(), tag=2**62, **TIMES).tags == [2**62]


ENTRY = stored_records.entry(b"body", b"A\x01b\x02")
MALFORMED = {
    "cut head": (ENTRY + ENTRY[:19], "message 1, byte 30: message is truncated"),
    "cut body": (ENTRY + ENTRY[:29], "message 1, byte 30: message is truncated"),
    "zeros": (bytes(40), "message 0, byte 0: message is truncated"),
    "negative": (b"\xff" * 40, "message 0, byte 0: message is truncated"),
    "body long": (ENTRY[:16] + b"\0\0\0\x0b" + ENTRY[20:], "message 0, byte 16: its body length"),
    "body negative": (ENTRY[:16] + b"\xff" * 4 + ENTRY[20:], "byte 16: its body length"),
    "body short": (ENTRY[:19] + b"\3" + ENTRY[20:], "byte 23: it does not end with its prop"),
    "properties long": (ENTRY[:25] + b"\5" + ENTRY[26:], "byte 24: it does not end"),
    "properties negative": (ENTRY[:24] + b"\xff\xff" + ENTRY[26:], "byte 24: it does not end"),
    "delayed": (ENTRY + stored_records.entry(b"", b"DELAY\x013"), "message 1, byte 52: messages"),
    "transactional": (
        stored_records.entry(b"", b"A\x01b\x02TRAN_MSG\x01true\x02"),
        "message 0, byte 22: messages of a batch can be neither",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_batch_is_named_with_its_message_and_its_byte(core, case):
    batch, what = MALFORMED[case]
    with pytest.raises(ProtocolError, match=f"batch of {len(batch)} bytes: .*{what}"):
        writer_of(core).write_batch(batch, **BATCH_TIMES)


@pytest.mark.parametrize("properties", [b"MY_DELAY\x013\x02", b"DELAY\x01\x02", b"K\x01DELAY\x02"])
def test_only_the_property_itself_delays(core, properties):
    batch = stored_records.entry(b"", properties)
    assert len(writer_of(core).write_batch(batch, **BATCH_TIMES)) == 1


def test_numbers_over_their_field_are_refused(core):
    writer = writer_of(core)
    for name in ("flag", "sys_flag", "reconsume_times"):
        for number in (2**31, -(2**31) - 1, 2**70):
            with pytest.raises(OverflowError):
                writer.write(b"", b"", **{**TIMES, name: number})
    for name in ("born_ms", "stored_ms", "tag"):
        for number in (2**63, -(2**63) - 1):
            with pytest.raises(OverflowError):
                writer.write(b"", b"", **{**TIMES, name: number})
    with pytest.raises(OverflowError):
        writer.write_batch(ENTRY, sys_flag=2**31, born_ms=0, stored_ms=0)
    with pytest.raises(OverflowError):
        writer.write(b"", b"", **TIMES).rows(2**63, 0)
    with pytest.raises(OverflowError):
        core.RecordWriter("t", 2**31, V4_HOST, V4_HOST)
    with pytest.raises(OverflowError):
        core.encode_batch([b""], [""], [2**31])


def test_what_no_record_can_hold_is_refused(core):
    with pytest.raises(ValueError, match="out of its range"):
        core.RecordWriter("t" * 32768, 0, V4_HOST, V4_HOST)
    for hosts in ((b"", V4_HOST), (V4_HOST, bytes(9))):
        with pytest.raises(ValueError, match="out of its range"):
            core.RecordWriter("t", 0, *hosts)
    with pytest.raises(ValueError, match="properties of 32768 bytes"):
        writer_of(core).write(b"", bytes(32768), **TIMES)
    with pytest.raises(ValueError, match="out of its range"):
        core.encode_batch([b""], ["订" * 10_923], [0])
    with pytest.raises(ValueError, match="2 bodies, 1 properties, 2 flags"):
        core.encode_batch([b"", b""], [""], [0, 0])


def test_what_is_not_bytes_or_text_is_refused(core):
    for arguments in (([""], [""], [0]), ([b""], [b""], [0]), ([b""], [""], ["0"])):
        with pytest.raises((TypeError, AttributeError)):
            core.encode_batch(*arguments)
    with pytest.raises(UnicodeEncodeError):
        core.encode_batch([b""], ["\ud800"], [0])


names = st.sampled_from(["TAGS", "KEYS", "DELAY", "XDELAY", "TRAN_MSG", "A"])
values = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=9
)
texts = st.lists(st.tuples(names, values), max_size=3).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
offsets = st.integers(0, 2**62)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
topics = st.sampled_from([0, 1, 126, 127, 128, 32767]).map(lambda size: "t" * size) | st.just(
    "订单"
)
messages = st.lists(st.tuples(st.binary(max_size=40), texts, int32), max_size=5)


def outcome(work):
    """Return the result of a call, or its error as text."""
    try:
        return work()
    except (ProtocolError, ValueError) as error:
        return type(error).__name__, str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(topics, int32, hosts, hosts, messages, int32, int64, int64, int32, offsets, offsets)
def test_what_is_written_is_what_the_reference_writes(
    native_core, topic, queue_id, born, store, parts, sys_flag, born_ms, stored_ms, times, offset,
    physical,
):  # fmt: skip
    columns = [list(column) for column in zip(*parts, strict=True)] or [[], [], []]
    batch = native_core.encode_batch(*columns)
    assert batch == reference.encode_batch(*columns)

    def written(core):
        writer = core.RecordWriter(topic, queue_id, born, store)
        numbers = {"sys_flag": sys_flag, "born_ms": born_ms, "stored_ms": stored_ms}
        blocks = [
            writer.write(body, text.encode(), flag=flag, reconsume_times=times, **numbers)
            for body, text, flag in parts
        ]
        singles = [block.rows(offset, physical) for block in blocks]
        joined = outcome(lambda: writer.write_batch(batch, **numbers).rows(offset, physical))
        return singles, joined

    assert written(native_core) == written(reference)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    messages,
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([0, 1, 2, 0x16, 0x7F, 0x80, 0xFF])),
        max_size=3,
    ),
    st.integers(0, 60),
)
@example([(b"", "", 0)], [(3, 0x15)], 0)
def test_a_damaged_batch_is_written_or_refused_as_by_the_reference(
    native_core, parts, damages, cut
):
    columns = [list(column) for column in zip(*parts, strict=True)] or [[], [], []]
    damaged = bytearray(reference.encode_batch(*columns))
    for at, value in damages:
        if at < len(damaged):
            damaged[at] = value
    batch = bytes(damaged[: max(0, len(damaged) - cut // 2 * (cut % 2))])

    def written(core):
        writer = writer_of(core)
        return outcome(lambda: writer.write_batch(batch, **BATCH_TIMES).rows(3, 4))

    assert written(native_core) == written(reference)


def test_a_large_batch_is_written_whole(native_core):
    bodies = [
        bytes([number % 256]) * 1000 for number in range(400)
    ]  # long enough to release the GIL
    batch = native_core.encode_batch(bodies, ["TAGS\x01a\x02"] * 400, range(400))
    rows = writer_of(native_core).write_batch(batch, **BATCH_TIMES).rows(0, 9)
    index = native_core.MessageIndex(b"".join(record for _, _, record in rows), (), True)
    assert [bytes(native_core.MessageView(index, row).body) for row in range(400)] == bodies
    assert all(after[0] == before[0] + 1 for before, after in pairwise(rows))
