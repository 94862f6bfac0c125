"""Fields and columns of an index, inner batches, checksums: every core alike."""

import gc
import random
import re
import struct
import zlib
from array import array

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_records import BORN_V6, INNER_BATCH, STORE_V6, V1, V2, entry, record, v4, v12

from ordermq.core import reference
from ordermq.core.status import COLUMNS
from ordermq.errors import ProtocolError, StateError
from ordermq.model.hashing import string_hash

FIELDS = (
    "queue_offset", "physical_offset", "queue_id", "flag", "sys_flag", "born_timestamp_ms",
    "store_timestamp_ms", "reconsume_times", "prepared_transaction_offset", "born_host_bytes",
    "store_host_bytes", "tags", "keys", "sharding_key", "properties",
)  # fmt: skip
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "X", "", "TAGS\x01A", "A\x02")


def said_by(view):
    """Every field of a view; of one that cannot be read, why."""
    said = [bytes(view.stored_body)]
    for read in (
        *(lambda name=name: getattr(view, name) for name in FIELDS),
        *(lambda name=name: view.get_property(name) for name in NAMES),
        lambda: bytes(view.body),
    ):
        try:
            said.append(read())
        except ProtocolError as error:
            said.append(str(error))
    return said


def everything(core, index):
    """Return what each view and each column says."""
    rows = [said_by(view) for view in index.views(core.MessageView, 0, len(index))]
    columns = index.columns(*COLUMNS)
    for name, column in columns.items():
        assert (column.format, len(column), column.readonly) == (COLUMNS[name][1], len(index), True)
    found = [[one.tolist() for one in index.property_columns(name)] for name in NAMES]
    offsets = [index.offset_at(row) for row in range(len(index))]
    numbers = {name: column.tolist() for name, column in columns.items()}
    return rows, numbers, found, offsets, *gathered(index)


def gathered(index):
    """All properties, and every column of pieces as one; of one that is no text, why."""
    entries = index.property_entries()
    assert [column.format for column in entries] == list("iIII")
    _, names, name_sizes, value_sizes = entries
    values = array("I", [at + size + 1 for at, size in zip(names, name_sizes, strict=True)])
    positions, sizes = index.columns("body_positions", "body_sizes").values()
    said = [column.tolist() for column in entries]
    for pieces, is_text in (
        ((positions, sizes), False),
        ((positions, sizes), True),
        ((names, name_sizes), True),
        ((values, value_sizes), True),
        *((index.property_columns(name), True) for name in NAMES),
    ):
        try:
            begins, data = index.gather(*pieces, is_text)
        except ProtocolError as error:
            said.append(str(error))
        else:
            assert (begins.format, begins.readonly) == ("i", True)
            said.append((begins.tolist(), data))
    return said


def test_every_field_of_v4_is_read(core):
    (view,) = core.MessageIndex(v4()).views(core.MessageView, 0, 1)
    assert (view.queue_offset, view.physical_offset, view.queue_id) == (42, 4096, 1)
    assert (view.flag, view.sys_flag, view.reconsume_times) == (0, 0, 0)
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (
        1_700_000_000_000, 1_700_000_000_005,
    )  # fmt: skip
    assert view.born_host_bytes == bytes((10, 0, 0, 1)) + struct.pack(">i", 50_000)
    assert view.store_host_bytes == bytes((192, 168, 1, 10)) + struct.pack(">i", 10_911)
    assert (bytes(view.body), view.tags, view.keys) == (b"hello", "TagA", ["k1"])
    assert (view.sharding_key, view.get_property("CLUSTER")) == (None, "DefaultCluster")
    assert len(view.properties) == 5
    assert view.properties is view.properties


def test_wide_hosts_and_long_topics_move_what_follows_them(core):
    index = core.MessageIndex(v4() + v12())
    view = core.MessageView(index, 1)
    assert view.index is index
    assert (bytes(view.body), view.properties, view.reconsume_times) == (b"x", {}, 3)
    assert view.born_host_bytes.hex() == "20010db8" + "00" * 11 + "01" + "0000c350"
    assert view.store_host_bytes == bytes(15) + b"\x01" + struct.pack(">i", 10_911)


PROPERTY_TEXTS = [
    (b"KEYS\x01a b\x02", ["a", "b"]),
    ("KEYS\x01a\u3000b\xa0c  d\te\x02".encode(), ["a\u3000b\xa0c", "d\te"]),
    (b"KEYS\x01 a\x1f \x02", ["a\x1f"]),
    (b"KEYS\x01\x7f\x02", ["\x7f"]),
    (b"KEYS\x01  \x02", []),
    (b"KEYS\x01\x02KEYS", []),
    (b"", []),
]


@pytest.mark.parametrize(("text", "keys"), PROPERTY_TEXTS)
def test_keys_are_split_at_blanks_as_brokers_split_them(core, text, keys):
    (view,) = core.MessageIndex(record(properties=text)).views(core.MessageView, 0, 1)
    assert view.keys == keys


@pytest.mark.parametrize("text", [b"\xff", b"A\x01\xc3\x28\x02", b"A\x01\xed\xa0\x80", b"\xf5\x80"])
def test_properties_that_are_no_text_fail_whichever_is_asked_for(core, text):
    index = core.MessageIndex(record(body=b"b", properties=b"TAGS\x01A\x02" + text))
    (view,) = index.views(core.MessageView, 0, 1)
    for read in (
        lambda: view.tags,
        lambda: view.keys,
        lambda: view.sharding_key,
        lambda: view.get_property("X"),
        lambda: view.properties,
    ):
        with pytest.raises(ProtocolError, match="message properties are not UTF-8: 'utf-8' codec"):
            read()
    assert bytes(view.body) == b"b"
    assert index.columns("tag_hashes")["tag_hashes"].tolist() == [65]


def test_tag_hashes_are_javas(core):
    tags = ["TagA", "订单", "😀x", "polygenelubricants", "", "Aa", "BB"]
    body = b"".join(record(properties=f"TAGS\x01{tag}\x02".encode()) for tag in tags)
    body += record(properties=b"TAGS\x01\xff\x02") + record()
    hashes = core.MessageIndex(body).columns("tag_hashes")["tag_hashes"].tolist()
    assert hashes == [*map(string_hash, tags), 0, 0]
    assert hashes[:4] == [2598919, 1129459, 54959989, -2147483648]


def test_a_column_that_is_none_is_refused_by_name(core):
    with pytest.raises(ValueError, match="no column 'offset': expected some of offsets, "):
        core.MessageIndex(v4()).columns("offset")
    assert core.MessageIndex(v4()).columns() == {}


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_numpy_shares_the_memory_of_every_column(core, rows):
    body = b"".join(record(offset=o, properties=b"TAGS\x01A\x02") for o in range(rows))
    index = core.MessageIndex(body)
    for name, column in index.columns(*COLUMNS).items():
        array = numpy.asarray(column)
        assert array.dtype == numpy.dtype({"q": "i8", "I": "u4", "i": "i4"}[column.format])
        if rows:
            assert numpy.shares_memory(array, numpy.frombuffer(column, array.dtype))
        assert not array.flags.writeable
        if name == "offsets":
            offsets = array
        if name == "tag_hashes":
            hashes = array
    del index, column, array
    gc.collect()
    junk = [core.MessageIndex(v12() * 100).columns(*COLUMNS) for _ in range(20)]
    assert offsets.tolist() == list(range(rows))
    assert hashes.tolist() == [65] * rows
    assert len(junk) == 20


def test_property_columns_point_at_the_values(core):
    body = v4() + record() + v4()
    positions, sizes = core.MessageIndex(body).property_columns("UNIQ_KEY")
    found = [body[at : at + size].decode() for at, size in zip(positions, sizes, strict=True)]
    assert found == ["0A00000104D2000000050000ABCD0007", "", "0A00000104D2000000050000ABCD0007"]


def test_pieces_are_gathered_one_behind_the_other(core):
    body = b"".join(record(offset=o, body=b"x" * o, properties=b"A\x01b") for o in range(4))
    index = core.MessageIndex(body)
    positions, sizes = index.columns("body_positions", "body_sizes").values()
    starts, data = index.gather(positions, sizes)
    assert (starts.tolist(), data) == ([0, 0, 1, 3, 6], b"x" * 6)
    starts, data = index.gather(positions[2:], sizes[2:], is_text=True)
    assert (starts.tolist(), data) == ([0, 2, 5], b"x" * 5)
    starts, data = index.gather(numpy.zeros(0, "u4"), numpy.zeros(0, "u4"))
    assert (starts.tolist(), data) == ([0], b"")


def test_of_a_property_that_comes_twice_only_the_last_is_an_entry(core):
    text = b"A\x01b\x02B\x01c\x02A\x01dd\x02\x01e\x02A\x01"
    index = core.MessageIndex(record() + record(properties=text))
    starts, names, name_sizes, value_sizes = index.property_entries()
    assert starts.tolist() == [0, 0, 2]
    assert index.gather(names, name_sizes)[1] == b"BA"
    assert (name_sizes.tolist(), value_sizes.tolist()) == ([1, 1], [1, 2])


def test_pieces_outside_the_body_are_refused(core):
    index = core.MessageIndex(v4())
    size = len(index.body)
    assert index.gather(array("I", [size]), array("I", [0]))[1] == b""
    for position, length in ((size, 1), (size - 1, 2), (2**32 - 1, 2**32 - 1), (0, 2**32 - 1)):
        with pytest.raises(ValueError, match="gather of 2 pieces: an argument is out of its range"):
            index.gather(array("I", [0, position]), array("I", [4, length]))
    with pytest.raises(ValueError, match="gather: 2 positions, 1 sizes"):
        index.gather(array("I", [0, 0]), array("I", [1]))
    with pytest.raises(TypeError, match="positions: expected a contiguous buffer of 4-byte"):
        index.gather(array("q", [0]), array("I", [1]))
    with pytest.raises(TypeError, match="sizes: expected a contiguous buffer of 4-byte"):
        index.gather(array("I", [0]), b"1")


def test_a_piece_that_is_no_text_is_named(core):
    index = core.MessageIndex(record(body=b"ok") + record(body=b"\xc3(") + record(body=b"\xff"))
    positions, sizes = index.columns("body_positions", "body_sizes").values()
    with pytest.raises(ProtocolError, match=r"^piece 1 is not UTF-8: 'utf-8' codec can't decode"):
        index.gather(positions, sizes, True)
    # Two halves of a character that meet are no text either.
    halves = core.MessageIndex(record(body=b"\xc3") + record(body=b"\xa4"))
    with pytest.raises(ProtocolError, match="piece 0 is not UTF-8"):
        halves.gather(*halves.columns("body_positions", "body_sizes").values(), True)


def test_more_pieces_than_two_gigabytes_are_refused(core):
    index = core.MessageIndex(record(body=b"x" * 65_000))
    with pytest.raises(ValueError, match="gather of 33100 pieces"):
        index.gather(numpy.full(33_100, 88, "u4"), numpy.full(33_100, 65_000, "u4"))


def test_a_name_that_holds_a_separator_is_nobodys(core):
    index = core.MessageIndex(record(properties=b"Z\x01z\x02A\x02\x01x"))
    (view,) = index.views(core.MessageView, 0, 1)
    for name in ("A\x02", "Z\x01z", "A\x02\x01"):
        assert view.get_property(name) is None
        assert index.property_columns(name)[1].tolist() == [0]


def test_views_of_rows_that_are_not_there_are_refused(core):
    index = core.MessageIndex(v4() * 3)
    assert [view.queue_offset for view in index.views(core.MessageView, 1, 2)] == [42, 42]
    assert list(index.views(core.MessageView, 3, 0)) == []
    for first, count in ((0, 4), (-1, 1), (3, 1), (1, -1), (2**70, 1)):
        with pytest.raises(IndexError, match="of 3"):
            index.views(core.MessageView, first, count)
    for row in (-1, 3):
        with pytest.raises(IndexError, match=f"message {row} of 3"):
            core.MessageView(index, row)
        with pytest.raises(IndexError, match=f"message {row} of 3"):
            index.offset_at(row)
    with pytest.raises(TypeError, match="a class of MessageViews"):
        index.views(dict, 0, 1)


def test_a_subclass_of_a_view_is_made_without_its_init(core):
    class Mine(core.MessageView):
        __slots__ = ()

        def __init__(self):
            raise AssertionError("not called")

    (view,) = core.MessageIndex(v4()).views(Mine, 0, 1)
    assert type(view) is Mine
    assert view.tags == "TagA"


def test_what_was_never_made_is_an_error_and_no_crash(core):
    view = core.MessageView.__new__(core.MessageView)
    for read in (lambda: view.body, lambda: view.tags, lambda: view.queue_offset):
        with pytest.raises(StateError, match="without its index"):
            read()
    index = core.MessageIndex(v4())
    with pytest.raises(StateError, match="made once"):
        index.__init__(b"")
    assert index.offset_at(0) == 42


def test_a_view_keeps_the_bytes_alive(core):
    view = core.MessageView(core.MessageIndex(v4() * 2), 1)
    body = view.body
    gc.collect()
    assert view.keys == ["k1"]
    del view
    gc.collect()
    assert bytes(body) == b"hello"
    assert body.readonly


@pytest.mark.parametrize("size", [0, 1, 7, 300])
def test_a_body_is_a_memoryview_like_any_other(core, size):
    stored = bytes(range(1, 256)) * 2
    body = record(body=b"zz") + record(body=stored[:size]) + record(body=b"zz")
    index = core.MessageIndex(body)
    part = core.MessageView(index, 1).body
    plain = memoryview(index.body)[len(record()) + 2 + 88 :][:size]
    assert part == plain
    names = ("nbytes", "itemsize", "format", "ndim", "shape", "strides", "suboffsets", "readonly")
    names += ("c_contiguous", "f_contiguous", "contiguous")
    assert [getattr(part, name) for name in names] == [getattr(plain, name) for name in names]
    assert part.obj is index.body
    assert (part.tobytes(), part.tolist(), part.hex(), hash(part), len(part)) == (
        plain.tobytes(), plain.tolist(), plain.hex(), hash(plain), len(plain),
    )  # fmt: skip
    assert (part[2:5], part[::-2], part.cast("b")) == (plain[2:5], plain[::-2], plain.cast("b"))
    with pytest.raises(IndexError):
        part[size]
    part.release()
    assert core.MessageView(index, 2).body == b"zz"


def test_a_compressed_body_is_decompressed_once_and_its_stored_form_stays(core):
    stored = zlib.compress(b"a" * 5000)
    (view,) = core.MessageIndex(record(body=stored, sys_flag=0x301)).views(core.MessageView, 0, 1)
    assert view.body == b"a" * 5000
    assert view.body.obj is view.body.obj
    assert view.stored_body == stored


# -- checksums -----------------------------------------------------------------------------


def test_checksums_are_compared_on_request_only(core):
    body = bytearray(v4() * 3)
    assert len(core.MessageIndex(bytes(body), check_crc=True)) == 3
    body[198 + 90] ^= 1
    assert len(core.MessageIndex(bytes(body))) == 3
    with pytest.raises(ProtocolError, match="record 1, byte 206: its checksum is not that"):
        core.MessageIndex(bytes(body), check_crc=True)


@given(st.lists(st.binary(max_size=300), max_size=4))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_the_native_checksum_is_zlibs(native_core, bodies):
    body = b"".join(record(body=one) for one in bodies)
    assert len(native_core.MessageIndex(body, check_crc=True)) == len(bodies)


def test_the_native_checksum_is_zlibs_at_every_size(native_core):
    draw = random.Random(7)
    sizes = [*range(500), 4_095, 65_536, 1_000_003]
    body = b"".join(record(body=draw.randbytes(size)) for size in sizes)
    assert len(native_core.MessageIndex(body, check_crc=True)) == len(sizes)


# -- inner batches -------------------------------------------------------------------------

INNER = entry(b"aa", b"TAGS\x01A\x02") + entry(b"", b"", flag=7) + entry(b"c", b"TAGS\x01B\x02")


def holding(body, **fields):
    return record(offset=100, sys_flag=INNER_BATCH, body=body, **fields)


def test_an_inner_batch_becomes_the_messages_it_holds(core):
    body = record(offset=99) + holding(INNER, reconsume_times=5, queue_id=3) + record(offset=103)
    index = core.MessageIndex(body)
    assert index.offsets.tolist() == [99, 100, 101, 102, 103]
    assert index.last_offset == 103
    views = list(index.views(core.MessageView, 1, 3))
    assert [bytes(view.body) for view in views] == [b"aa", b"", b"c"]
    assert [view.tags for view in views] == ["A", None, "B"]
    assert [view.flag for view in views] == [0, 7, 0]
    assert [view.queue_id for view in views] == [3, 3, 3]
    assert [view.reconsume_times for view in views] == [0, 0, 0]
    assert {view.store_host_bytes for view in index.views(core.MessageView, 0, 5)} == {v4()[64:72]}


def test_the_tags_of_an_inner_batch_are_those_of_its_messages(core):
    index = core.MessageIndex(holding(INNER, properties=b"TAGS\x01B\x02"), [b"A"])
    assert (index.offsets.tolist(), index.last_offset) == ([100], 102)
    assert core.MessageView(index, 0).tags == "A"


def test_an_inner_batch_of_none_is_scanned_over(core):
    index = core.MessageIndex(holding(b""))
    assert (len(index), index.last_offset) == (0, 100)


def test_an_inner_message_that_looks_like_a_record_is_none(core):
    index = core.MessageIndex(holding(entry(b"b", b"X\x01y\x02", magic=V1)))
    (view,) = index.views(core.MessageView, 0, 1)
    assert (view.body, view.get_property("X")) == (b"b", "y")


def test_both_bits_make_an_inner_batch(core):
    for flags in (0x40, 0x80):
        index = core.MessageIndex(record(offset=5, sys_flag=flags, body=INNER))
        assert (len(index), core.MessageView(index, 0).stored_body) == (1, INNER)


INNER_FAULTS = {
    "cut": (INNER[:-1], 88 + 31 + 22, "a message of its inner batch is too small or reaches"),
    "size": (b"\0\0\0\x15" + INNER[4:], 88, "a message of its inner batch is too small or"),
    "huge": (b"\xff" * 4 + INNER[4:], 88, "a message of its inner batch is too small or"),
    "trailing": (INNER + b"\0" * 21, 88 + len(INNER), "is too small or reaches past"),
    "body": (INNER[:16] + b"\0\0\0\x0b" + INNER[20:], 104, "has a body length that is negative"),
    "negative": (INNER[:16] + b"\xff" * 4 + INNER[20:], 104, "body length that is negative"),
    "properties": (INNER[:22] + b"\0\x05" + INNER[24:], 110, "does not end with its properties"),
}


@pytest.mark.parametrize("case", INNER_FAULTS)
def test_a_malformed_inner_batch_is_named_with_its_place(core, case):
    inner, position, what = INNER_FAULTS[case]
    with pytest.raises(ProtocolError, match=what) as caught:
        core.MessageIndex(v4() + holding(inner))
    assert f"record 1, byte {198 + position}:" in str(caught.value)


def test_an_inner_batch_that_no_producer_sends_is_refused(core):
    compressed = record(offset=1, sys_flag=INNER_BATCH | 1, body=zlib.compress(INNER))
    with pytest.raises(ProtocolError, match="byte 36: its inner batch is compressed as a whole"):
        core.MessageIndex(compressed)
    too_far = record(offset=2**63 - 3, sys_flag=INNER_BATCH, body=INNER)
    with pytest.raises(ProtocolError, match="byte 20: its queue offset"):
        core.MessageIndex(too_far)


@pytest.mark.parametrize("messages", [3, 40, 200])
def test_a_process_queue_takes_an_index_of_any_kind(core, messages):
    plain = b"".join(record(offset=o, body=b"b" * o) for o in range(messages))
    gaps = b"".join(record(offset=3 * o, body=b"b" * o) for o in range(messages))
    inner = record(sys_flag=INNER_BATCH, body=b"".join(entry(b"b" * o) for o in range(messages)))
    for body, step in ((plain, 1), (gaps, 3), (inner, 1)):
        index = core.MessageIndex(body)
        queue = core.ProcessQueue()
        assert queue.put_batch(index)
        assert queue.size_bytes == sum(range(messages))
        assert queue.max_offset == step * (messages - 1)
        assert queue.take_segments(messages) == [(index, 0, messages)]
        queue._check()


# -- compared with the reference ------------------------------------------------------------------

texts = st.lists(
    st.sampled_from(
        [
            *(b"TAGS\x01A", b"TAGS\x01B", b"TAGS\x01", b"KEYS\x01TAGS k", b"\x01x", b"TAGS"),
            *(b"TATAGS\x01A", b"X\x01" + b"TAGS" * 9, b"UNIQ_KEY\x01" + b"7F" * 16),
            *("KEYS\x01订 单".encode(), b"X\x01\xc3", b"__SHARDINGKEY\x01o-17", b"X\x01y\x01z"),
            b"\xf0\x9f\x98\x80\x01\xf0\x9f\x98\x80",
        ]
    )
).map(b"\x02".join)
entries = st.lists(
    st.builds(entry, body=st.binary(max_size=20), properties=texts, flag=st.integers(-9, 9)),
    max_size=4,
).map(b"".join)
hosts = st.sampled_from([0, BORN_V6, STORE_V6, BORN_V6 | STORE_V6])
records = st.one_of(
    st.builds(
        record,
        offset=st.integers(0, 2**63 - 2),
        body=st.binary(max_size=60),
        topic=st.binary(max_size=127),
        properties=texts,
        magic=st.sampled_from([V1, V2]),
        sys_flag=hosts,
        queue_id=st.integers(0, 9),
        reconsume_times=st.integers(0, 20),
    ),
    st.builds(
        record,
        offset=st.integers(0, 2**62),
        body=entries,
        properties=texts,
        sys_flag=hosts.map(lambda flags: flags | INNER_BATCH),
    ),
    st.builds(record, body=st.binary(max_size=40).map(zlib.compress), sys_flag=st.just(0x301)),
)
bodies = st.lists(records, max_size=5).map(b"".join)
damages = st.lists(
    st.tuples(st.integers(0, 500), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)


def result(core, body, tags, check_crc):
    try:
        index = core.MessageIndex(body, tags, check_crc)
    except ProtocolError as error:
        return str(error)
    return everything(core, index)


@given(bodies, damages, st.sampled_from([(), (b"A",), (b"B", b"A")]), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_read_of_a_body_is_what_the_reference_reads(
    native_core, body, damages, tags, check_crc
):
    whole = result(native_core, body, tags, True)
    assert not isinstance(whole, str)
    assert whole == result(reference, body, tags, True)
    damaged = bytearray(body)
    for at, value in damages:
        if at < len(damaged):
            damaged[at] = value
    found = result(native_core, bytes(damaged), tags, check_crc)
    assert found == result(reference, bytes(damaged), tags, check_crc)


@st.composite
def alike(draw):
    """Draw property texts of one size that differ in a few bytes, as those of one producer do."""
    text = draw(texts)
    changes = st.lists(
        st.tuples(
            st.integers(0, max(len(text) - 1, 0)),
            st.sampled_from([0, 1, 2, *b"AXTagz7", 0x80, 0xC3, 0xF0, 0xFF]),
        ),
        max_size=3,
    )
    found = [text]
    for changed in draw(st.lists(changes, min_size=1, max_size=8)):
        other = bytearray(text)
        for at, value in changed:
            if other:
                other[at] = value
        found.append(bytes(other))
    return found


@given(st.lists(alike(), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_texts_that_are_nearly_the_same_are_each_read_as_their_own(native_core, groups, chance):
    many = [text for group in groups for text in group]
    chance.shuffle(many)
    body = b"".join(record(offset=n, properties=text) for n, text in enumerate(many))
    index, expected = native_core.MessageIndex(body), reference.MessageIndex(body)
    for view, like in zip(
        index.views(native_core.MessageView, 0, len(many)),
        expected.views(reference.MessageView, 0, len(many)),
        strict=True,
    ):
        assert said_by(view) == said_by(like)


def test_a_dict_of_properties_is_the_readers_to_change(native_core):
    text = b"TAGS\x01A\x02KEYS\x01key-%d\x02__SHARDINGKEY\x01s\x02"
    index = native_core.MessageIndex(b"".join(record(properties=text % n) for n in range(9)))
    for number, view in enumerate(index.views(native_core.MessageView, 0, 9)):
        expected = {"TAGS": "A", "KEYS": f"key-{number}", "__SHARDINGKEY": "s"}
        assert view.properties == expected
        view.properties["TAGS"] = view.properties["mine"] = "changed"
        del view.properties["KEYS"]
        found = view.tags, view.keys, view.sharding_key, view.get_property("mine")
        assert found == ("A", [f"key-{number}"], "s", None)
        assert view.properties == {"TAGS": "changed", "__SHARDINGKEY": "s", "mine": "changed"}


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_text_is_what_python_decodes(native_core, text):
    (view,) = native_core.MessageIndex(record(properties=text)).views(native_core.MessageView, 0, 1)
    try:
        text.decode()
        wrong = None
    except UnicodeDecodeError as error:
        wrong = str(error)
    if wrong is None:
        assert view.properties == reference_properties(text)
    else:
        with pytest.raises(ProtocolError, match=re.escape(wrong)):
            _ = view.tags


def reference_properties(text):
    index = reference.MessageIndex(record(properties=text))
    return reference.MessageView(index, 0).properties
