import gc
import hashlib
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_records import BORN_V6, STORE_V6, V1, V2, columns, record, v4, v12

from ordermq.core import reference
from ordermq.errors import ProtocolError


def test_the_v1_vector_is_found(core):
    body = v4()
    index = core.MessageIndex(body)
    assert len(body) == 198
    assert columns(index) == [[42], [0], [88], [5], [198 - 93], [93]]
    assert (
        body[index.columns("body_positions")["body_positions"][0] :][: index.body_sizes[0]]
        == b"hello"
    )
    assert body[index.columns("property_positions")["property_positions"][0] :].startswith(
        b"TAGS\x01TagA\x02"
    )
    assert index.last_offset == 42


def test_the_v2_ipv6_vector_is_found(core):
    body = v12()
    assert body.hex().startswith("000000f9daa320ab0cdc1683")
    assert hashlib.sha256(body).hexdigest().startswith("55cddb6c409af6de")
    index = core.MessageIndex(v4() + body)
    assert index.columns("positions")["positions"].tolist() == [0, 198]
    assert body[index.columns("body_positions")["body_positions"][1] - 198 :][:1] == b"x"
    assert index.columns("property_sizes")["property_sizes"][1] == 0


def test_a_pull_of_nothing_is_empty(core):
    index = core.MessageIndex(b"")
    assert (len(index), index.last_offset, columns(index)) == (0, -1, [[]] * 6)


@pytest.mark.parametrize("flags", [0, BORN_V6, STORE_V6, BORN_V6 | STORE_V6])
def test_hosts_are_read_by_the_system_flag(core, flags):
    body = record(sys_flag=flags, body=b"abc", topic=b"T") + record(offset=1, magic=V2)
    index = core.MessageIndex(memoryview(bytearray(body)))
    assert index.offsets.tolist() == [0, 1]
    assert body[index.columns("body_positions")["body_positions"][0] :][:3] == b"abc"


TAGGED = [
    (b"TAGS\x01A\x02", b"A"),
    (b"KEYS\x01k\x02TAGS\x01AB\x02", b"AB"),
    (b"TAGS\x01A", b"A"),
    (b"TAGS\x01\x02", None),
    (b"TAGS\x02", None),
    (b"XTAGS\x01A\x02TAGSX\x01A\x02", None),
    (b"TAGS\x01A\x02TAGS\x01B\x02TAGS\x01\x02", b"B"),
    (b"TAGS\x01A\x01B\x02", b"A\x01B"),
    (b"\x02\x02TAGS\x01A\x02\x02", b"A"),
    ("TAGS\x01订单\x02".encode(), "订单".encode()),
    (b"", None),
]


@pytest.mark.parametrize(("properties", "tag"), TAGGED)
def test_only_the_exact_tag_is_kept(core, properties, tag):
    body = b"".join(
        record(offset=o, properties=p) for o, p in enumerate((properties, b"TAGS\x01zz\x02"))
    )
    for wanted in (b"A", b"AB", b"B", b"", b"A\x01B", b"TAGS", "订单".encode()):
        index = core.MessageIndex(body, [wanted])
        assert index.offsets.tolist() == ([0] if wanted == tag else [])
        assert index.last_offset == 1
    assert core.MessageIndex(body, (b"no", b"zz", tag or b"no")).offsets.tolist() == (
        [0, 1] if tag else [1]
    )


def test_a_tag_that_is_no_bytes_is_refused(core):
    for tags in (["A"], b"AB"):
        with pytest.raises(TypeError, match="tags"):
            core.MessageIndex(v4(), tags)


def with_damage(at, value):
    body = bytearray(v4())
    body[at : at + len(value)] = value
    return v4() + bytes(body)


FAULTS = {
    "trailing": (v4() + b"\0\0\0", 1, 198, "too few bytes for another record"),
    "size below": (with_damage(0, struct.pack(">i", 90)), 1, 198, "below the smallest record"),
    "size negative": (with_damage(0, b"\xff" * 4), 1, 198, "below the smallest record"),
    "cut": ((v4() * 2)[:-1], 1, 198, "past the end of the body"),
    "cut inside the size": (v4() + v4()[:4], 1, 198, "past the end of the body"),
    "magic": (with_damage(4, b"\xcb\xd4\x31\x94"), 1, 202, "neither v1 nor v2"),
    "offset": (with_damage(20, b"\xff" * 8), 1, 218, "queue offset"),
    "offset too great": (with_damage(20, b"\x7f" + b"\xff" * 7), 1, 218, "queue offset"),
    "hosts": (record(sys_flag=0, topic=b"")[:36] + b"\0\0\0\x30" + record(topic=b"")[40:],
              0, 36, "hosts leave no room"),
    "body negative": (with_damage(84, b"\xff" * 4), 1, 282, "body length"),
    "body long": (with_damage(84, struct.pack(">i", 111)), 1, 282, "body length"),
    "no topic": (with_damage(84, struct.pack(">i", 110)), 1, 396, "topic length"),
    "topic long": (with_damage(93, b"\x7f"), 1, 291, "topic length"),
    "topic negative": (with_damage(93, b"\x80"), 1, 291, "topic length"),
    "properties negative": (with_damage(103, b"\x80\x00"), 1, 301, "properties length"),
    "properties long": (with_damage(103, b"\x00\x5e"), 1, 301, "properties length"),
    "properties short": (with_damage(103, b"\x00\x5c"), 1, 395, "fields end before"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_malformed_record_is_named_with_its_place(core, case):
    body, record_number, position, what = FAULTS[case]
    with pytest.raises(ProtocolError, match=what) as caught:
        core.MessageIndex(body)
    assert f"record {record_number}, byte {position}:" in str(caught.value)
    assert not caught.value.retriable


def test_columns_outlive_the_index(core):
    index = core.MessageIndex(v4() * 1000)
    offsets, sizes = index.offsets, index.body_sizes
    del index
    gc.collect()
    junk = [core.MessageIndex(v12() * 500) for _ in range(5)]
    assert set(offsets) == {42}
    assert set(sizes) == {5}
    assert len(junk) == 5
    with pytest.raises(TypeError):
        offsets[0] = 1


def test_an_index_feeds_a_process_queue(core):
    body = b"".join(record(offset=o, body=b"b" * o) for o in range(40))
    index = core.MessageIndex(body)

    class Batch:
        offsets = index.offsets
        body_sizes = index.body_sizes

    queue = core.ProcessQueue()
    batch = Batch()
    assert queue.put_batch(batch)
    assert queue.size_bytes == sum(range(40))
    assert queue.take_segments(40) == [(batch, 0, 40)]


def test_a_body_large_enough_to_leave_the_gil_is_indexed_alike(native_core):
    body = b"".join(record(offset=o, body=b"x" * 90) for o in range(3_000))
    assert len(body) > 4096 * 64
    index = native_core.MessageIndex(body)
    assert index.offsets.tolist() == list(range(3_000))
    with pytest.raises(ProtocolError, match="record 2999"):
        native_core.MessageIndex(body[:-1])


properties = st.lists(
    st.sampled_from([b"TAGS\x01A", b"TAGS\x01B", b"TAGS\x01", b"KEYS\x01TAGS", b"\x01x", b"TAGS"])
).map(b"\x02".join)
records = st.builds(
    record,
    offset=st.integers(0, 2**63 - 2),
    body=st.binary(max_size=60),
    topic=st.binary(max_size=127),
    properties=properties,
    magic=st.sampled_from([V1, V2]),
    sys_flag=st.sampled_from([0, BORN_V6, STORE_V6, BORN_V6 | STORE_V6, 0x3F]),
)
bodies = st.lists(records, max_size=5).map(b"".join)
FIELDS = (0, 1, 2, 3, 4, 7, 20, 27, 36, 39, 84, 85, 87, 88, 89, 97, 99, 101, 111)
damages = st.lists(
    st.tuples(st.sampled_from(FIELDS) | st.integers(0, 400), st.integers(0, 255)), max_size=4
)


def result(core, body, tags):
    """Columns and last offset, or the text of the error."""
    try:
        index = core.MessageIndex(body, tags)
    except ProtocolError as error:
        return str(error)
    return columns(index), index.last_offset


@given(body=bodies, damages=damages, cut=st.integers(0, 200), tags=st.sampled_from([(), (b"A",)]))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_bodies_are_read_as_the_reference_reads_them(native_core, body, damages, cut, tags):
    whole = result(native_core, body, tags)
    assert whole == result(reference, body, tags)
    assert not isinstance(whole, str)
    damaged = bytearray(body)
    for at, value in damages:
        if at < len(damaged):
            damaged[at] = value
    damaged = bytes(damaged[: max(0, len(damaged) - cut // 2 * (cut % 2))])
    assert result(native_core, damaged, tags) == result(reference, damaged, tags)
