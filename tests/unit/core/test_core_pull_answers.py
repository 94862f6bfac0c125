"""Records checked against the pull that they answer: every core alike."""

import re
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_records import BORN_V6, INNER_BATCH, STORE_V6, V1, V2, entry, record

from ordermq.core import reference
from ordermq.errors import DecodeError, ProtocolError

RECORD = len(record(body=b"body"))
HOSTS_V6 = BORN_V6 | STORE_V6
INNER = entry(b"aa") + entry(b"b") + entry(b"c")


def answer(*offsets, queue_id=3):
    return b"".join(record(offset=each, body=b"body", queue_id=queue_id) for each in offsets)


def test_an_answer_to_the_pull_is_indexed(core):
    index = core.MessageIndex(answer(5, 6, 9), (), True, (3, 5, 12))
    assert index.offsets.tolist() == [5, 6, 9]
    assert len(core.MessageIndex(b"", (), True, (3, 5, 12))) == 0


@pytest.mark.parametrize(
    ("body", "number", "position", "what"),
    [
        (answer(5, 6, queue_id=2), 0, 12, "queue id is not that of the queue"),
        (answer(5) + answer(6, queue_id=-1 & 0xFFFFFFFF), 1, 12, "queue id is not that of"),
        (answer(5, 5), 1, 20, "is not greater than that of the message before"),
        (answer(7, 6), 1, 20, "is not greater than that of the message before"),
        (answer(4, 5), 0, 20, "is outside of what was asked for"),
        (answer(5, 8), 1, 20, "is outside of what was asked for"),
        (answer(5, 1 << 50), 1, 20, "is outside of what was asked for"),
    ],
)
def test_a_record_of_another_pull_is_named_with_its_place(core, body, number, position, what):
    where = f"record {number}, byte {number * RECORD + position}: .*{what}"
    with pytest.raises(ProtocolError, match=where):
        core.MessageIndex(body, (), False, (3, 5, 8))


def test_any_queue_may_be_allowed(core):
    body = answer(5) + answer(6, queue_id=1)
    assert len(core.MessageIndex(body, (), False, (-1, 5, 7))) == 2


def test_records_that_answer_no_pull_may_have_any_offsets(core):
    assert core.MessageIndex(answer(9, 3, 3)).offsets.tolist() == [9, 3, 3]


def test_offsets_are_checked_before_tags_are(core):
    with pytest.raises(ProtocolError, match="outside of what was asked for"):
        core.MessageIndex(answer(9), (b"none",), False, (3, 0, 9))


@pytest.mark.parametrize(
    "pulled", [(2**63, 5, 8), (2**200, 5, 8), (3, 2**63, 8), (3, 2**200, 8), (3, 0, -(2**200))]
)
def test_numbers_over_64_bits_are_those_of_no_answer(core, pulled):
    with pytest.raises(ProtocolError, match="record 0"):
        core.MessageIndex(answer(5), (), False, pulled)


@pytest.mark.parametrize("flag", [0x40, 0x80])
def test_half_of_the_marks_of_an_inner_batch_are_damage(core, flag):
    body = record(offset=5, sys_flag=flag, body=INNER, queue_id=3)
    with pytest.raises(ProtocolError, match="byte 36: it is an inner batch and has one"):
        core.MessageIndex(body, (), True, (3, 5, 9))


@pytest.mark.parametrize("flag", [0x40, 0x80])
@pytest.mark.parametrize("inner", [b"", b"a producer's own", INNER + b"x", INNER[:-1], INNER[4:]])
def test_a_producers_own_mark_on_a_plain_message_makes_no_queue_unreadable(core, flag, inner):
    # RocketMQ 5.5.0 stores 0x40 of a producer, and Java's clients read on.
    body = record(offset=5, sys_flag=flag, body=inner, queue_id=3) + answer(6)
    index = core.MessageIndex(body, (), True, (3, 5, 9))
    assert [bytes(view.body) for view in index.views(core.MessageView, 0, 2)] == [inner, b"body"]


def test_a_pull_from_the_middle_of_an_inner_batch_gets_the_rest_of_it(core):
    body = record(offset=10, sys_flag=INNER_BATCH, body=INNER, queue_id=3) + answer(13)
    index = core.MessageIndex(body, (), True, (3, 11, 14))
    assert index.offsets.tolist() == [11, 12, 13]
    assert [bytes(view.body) for view in index.views(core.MessageView, 0, 3)] == [
        b"b", b"c", b"body",
    ]  # fmt: skip
    assert core.MessageIndex(body, (), True, (3, 12, 14)).offsets.tolist() == [12, 13]
    for first, end in ((13, 14), (10, 12), (8, 10)):
        with pytest.raises(ProtocolError, match="outside of what was asked for"):
            core.MessageIndex(body[: -len(answer(13))], (), True, (3, first, end))


def test_an_empty_inner_batch_counts_as_its_offset(core):
    body = record(offset=10, sys_flag=INNER_BATCH, queue_id=3)
    assert core.MessageIndex(body, (), True, (3, 10, 11)).last_offset == 10
    with pytest.raises(ProtocolError, match="outside of what was asked for"):
        core.MessageIndex(body, (), True, (3, 11, 12))


def delivered(core, body, pulled):
    """A consumer's part of an answer: offsets and bodies; None if it is refused."""
    try:
        index = core.MessageIndex(body, (), True, pulled)
    except ProtocolError:
        return None
    views = list(index.views(core.MessageView, 0, len(index)))
    return [(view.queue_offset, bytes(view.stored_body)) for view in views]


BODY = (
    record(offset=7, body=b"plain", properties=b"TAGS\x01A\x02KEYS\x01k", queue_id=3)
    + record(
        offset=8,
        body=b"x" * 40,
        magic=V2,
        sys_flag=BORN_V6 | STORE_V6,
        queue_id=3,
        topic=b"t" * 130,
    )
    + record(offset=9, body=INNER, sys_flag=INNER_BATCH, queue_id=3)
    + record(offset=12, queue_id=3)
)
PULLED = (3, 7, 13)


def test_no_flipped_bit_loses_moves_or_alters_a_message(core):
    right = delivered(core, BODY, PULLED)
    assert [offset for offset, _ in right] == [7, 8, 9, 10, 11, 12]
    refused = 0
    for bit in range(8 * len(BODY)):
        damaged = bytearray(BODY)
        damaged[bit // 8] ^= 1 << bit % 8
        found = delivered(core, bytes(damaged), PULLED)
        refused += found is None
        assert found is None or found == right, (bit // 8, bit % 8)
    # What passes are flips in fields that no message's place or stored body depends on:
    # properties, topic, hosts, times, the user's flag, the kind of compression.
    assert refused > len(BODY) * 8 // 3


offsets = st.lists(st.integers(0, 60), unique=True, max_size=6).map(sorted)
magics = st.sampled_from([V1, V2])


@given(
    st.lists(st.tuples(st.integers(-2, 9), st.binary(max_size=9), magics), max_size=5),
    st.integers(0, 30),
    st.integers(0, 60),
    st.integers(-1, 3),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 7)), max_size=2),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_core_refuses_what_the_reference_refuses(
    native_core, steps, first, end, queue_id, flips
):
    body, at = b"", first
    for step, text, magic in steps:
        at += step
        inner = INNER_BATCH if len(text) > 7 else 0
        text = entry(text) * 2 if inner else text
        body += record(offset=max(at, 0), body=text, magic=magic, sys_flag=inner, queue_id=1)
    damaged = bytearray(body)
    for position, bit in flips:
        if position < len(damaged):
            damaged[position] ^= 1 << bit
    found = []
    for core in (native_core, reference):
        try:
            index = core.MessageIndex(bytes(damaged), (), True, (queue_id, first, end))
            found.append((index.offsets.tolist(), index.last_offset))
            assert all(first <= each < end for each in found[-1][0])
            assert found[-1][0] == sorted(set(found[-1][0]))
        except ProtocolError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_the_cffi_index_checks_a_row_that_is_asked_for_directly():
    from ordermq.core import cffi_binding

    index = cffi_binding.MessageIndex(answer(5))
    for row in (-1, 1, 2**40, 2**70):
        with pytest.raises(IndexError, match=re.escape(f"message {row} of 1")):
            index._locate(row)


@pytest.mark.parametrize("most", [63, 64])
def test_the_limit_of_a_compressed_body_is_the_index(core, most):
    packed = struct.pack("12B", *bytes.fromhex("785e4b4ca40c0000148d1841"))  # 64 times `a`
    body = record(body=packed, sys_flag=0x301)
    index = core.MessageIndex(body, max_decompressed_bytes=most)
    assert index.max_decompressed_bytes == most
    (view,) = index.views(core.MessageView, 0, 1)
    if most == 64:
        assert view.body == b"a" * 64
    else:
        with pytest.raises(DecodeError, match="12 bytes of zlib data becomes more than 63 bytes"):
            _ = view.body
    assert view.stored_body == packed


@pytest.mark.parametrize("number", [2**63, 2**64, 2**200, -1, -(2**200)])
def test_rows_over_64_bits_are_rows_that_are_not_there(core, number):
    index = core.MessageIndex(answer(5))
    for look in (
        lambda: index.offset_at(number),
        lambda: core.MessageView(index, number),
        lambda: index.views(core.MessageView, 0, number),
        lambda: core.MessageRun([(index, number, 1)]),
        lambda: core.MessageRun([(index, 0, number)]),
    ):
        with pytest.raises(IndexError):
            look()
