"""Rows in columns: their order, and batch bodies of them (docs/internals/protocol.md#batch-body),
on each core."""

import struct
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordermq.core import reference
from ordermq.model import properties as props


def texts_of(values):
    positions = array("i", [0])
    for value in values:
        positions.append(positions[-1] + len(value))
    return positions, b"".join(values)


def ordered(core, rows, first=0, end=None):
    """`rows`: (topic, queue id, offset)."""
    return core.ordered_rows(
        array("q", [offset for _, _, offset in rows]),
        array("i", [queue for _, queue, _ in rows]),
        [texts_of([topic for topic, _, _ in rows])],
        first,
        len(rows) if end is None else end,
    )


def encoded(core, bodies, rows=None, **options):
    settings = {"fixed": b"", "columns": [], "unique": b"", "most_bytes": 1 << 20} | options
    chosen = array("I", range(len(bodies)) if rows is None else rows)
    return core.encode_rows(texts_of(bodies), chosen, **settings)


def messages_of(batch):
    """(body, properties) of each message of a batch body."""
    found, at = [], 0
    while at < len(batch):
        size, magic, crc, flag, body_size = struct.unpack_from(">iiiii", batch, at)
        assert (magic, crc, flag) == (0, 0, 0)
        body = batch[at + 20 : at + 20 + body_size]
        (text_size,) = struct.unpack_from(">h", batch, at + 20 + body_size)
        text = batch[at + 22 + body_size : at + 22 + body_size + text_size]
        assert size == 22 + body_size + text_size
        found.append((body, props.decode(text.decode())))
        at += size
    return found


def test_rows_of_one_queue_go_on_while_their_offsets_rise(core):
    rows = [(b"t", 0, 5), (b"t", 0, 6), (b"t", 0, 9)]
    assert ordered(core, rows) == 3
    assert ordered(core, rows, 1, 2) == 2


@pytest.mark.parametrize("third", [(b"t", 0, 6), (b"t", 0, 5), (b"t", 1, 7), (b"tt", 0, 7)])
def test_a_run_ends_where_the_queue_changes_or_the_offset_does_not_rise(core, third):
    assert ordered(core, [(b"t", 0, 5), (b"t", 0, 6), third, (b"t", 0, 8)]) == 2


def test_rows_out_of_range_are_refused(core):
    rows = [(b"t", 0, 5), (b"t", 0, 6)]
    for first, end in ((-1, 2), (0, 3), (2, 2), (1, 0)):
        with pytest.raises(ValueError, match="out of its range"):
            ordered(core, rows, first, end)


@pytest.mark.parametrize("positions", [[0, 1, 9], [0, -1, 2], [0, 2, 1]])
def test_positions_outside_their_bytes_are_refused(core, positions):
    names = (array("i", positions), b"tt")
    with pytest.raises(ValueError, match="out of its range"):
        core.ordered_rows(array("q", [1, 2]), array("i", [0, 0]), [names], 0, 2)
    with pytest.raises(ValueError, match="out of its range"):
        core.encode_rows(
            names, array("I", [0, 1]), fixed=b"", columns=[], unique=b"", most_bytes=99
        )


def test_columns_of_another_length_or_type_are_refused(core):
    with pytest.raises(ValueError, match="1 queue_ids"):
        core.ordered_rows(array("q", [1, 2]), array("i", [0]), [], 0, 2)
    with pytest.raises(ValueError, match="positions of 2 rows"):
        core.ordered_rows(array("q", [1, 2]), array("i", [0, 0]), [texts_of([b"t"])], 0, 2)
    with pytest.raises(TypeError, match="offsets"):
        core.ordered_rows(array("i", [1, 2]), array("i", [0, 0]), [], 0, 2)
    with pytest.raises(ValueError, match="1 numbers of 2 rows"):
        encoded(core, [b"a", b"b"], columns=[(b"n", array("q", [1]))])
    with pytest.raises(ValueError, match="without a name"):
        encoded(core, [b"a"], columns=[(b"", array("q", [1]))])
    with pytest.raises(ValueError, match="unique of 3 bytes"):
        encoded(core, [b"a"], unique=b"abc")


def test_a_batch_of_rows_is_what_encode_batch_writes(core):
    keys = [b"k1", b"", b"k3"]
    batch, count = encoded(
        core,
        [b"one", b"two", b"three"],
        fixed=b"WAIT\x01true\x02",
        columns=[
            (b"__SHARDINGKEY", texts_of(keys)),
            (b"omq_offset", array("q", [7, -(2**63), 2**63 - 1])),
            (b"", texts_of([b"", b"a\x01b\x02", b""])),
        ],
    )
    expected = reference.encode_batch(
        [b"one", b"two", b"three"],
        [
            "WAIT\x01true\x02__SHARDINGKEY\x01k1\x02omq_offset\x017\x02",
            f"WAIT\x01true\x02omq_offset\x01{-(2**63)}\x02a\x01b\x02",
            f"WAIT\x01true\x02__SHARDINGKEY\x01k3\x02omq_offset\x01{2**63 - 1}\x02",
        ],
        [0, 0, 0],
    )
    assert (batch, count) == (expected, 3)


def test_rows_are_written_in_the_order_they_are_chosen(core):
    batch, count = encoded(core, [b"a", b"b", b"c"], rows=[2, 0])
    assert ([body for body, _ in messages_of(batch)], count) == ([b"c", b"a"], 2)


def test_a_batch_stops_at_its_most_bytes_but_has_one_message(core):
    bodies = [b"x" * 10] * 5
    assert encoded(core, bodies, most_bytes=2 * 32)[1] == 2
    assert encoded(core, bodies, most_bytes=3 * 32 - 1)[1] == 2
    assert encoded(core, bodies, most_bytes=1)[1] == 1


def test_every_message_gets_a_unique_key_of_its_own(core):
    batch, _ = encoded(core, [b"a", b"b", b"c"], unique=b"\xab" * 14 + b"\x00\xff")
    keys = [fields["UNIQ_KEY"] for _, fields in messages_of(batch)]
    assert keys == ["AB" * 14 + end for end in ("00FF", "0100", "0101")]


@pytest.mark.parametrize(
    ("bodies", "columns"),
    [
        ([b"a", b""], []),
        ([b"a", b"b"], [(b"n", texts_of([b"v", b"v\x01"]))]),
        ([b"a", b"b"], [(b"n", texts_of([b"v", b"\x02v"]))]),
        ([b"a", b"b"], [(b"n", texts_of([b"v", b"v" * 32_766]))]),
    ],
)
def test_a_row_no_broker_takes_is_named(core, bodies, columns):
    with pytest.raises(ValueError, match="row 1"):
        encoded(core, bodies, columns=columns)


def test_a_row_that_does_not_exist_is_refused(core):
    with pytest.raises(ValueError, match="row 5"):
        encoded(core, [b"a"], rows=[0, 5])
    with pytest.raises(ValueError, match="no rows"):
        encoded(core, [b"a"], rows=[])


NAMES = st.sampled_from([b"t", b"tt", b"", b"other"])
ROWS = st.lists(st.tuples(NAMES, st.integers(0, 2), st.integers(-3, 60)), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.data())
def test_every_core_finds_the_same_runs(native_core, rows, data):
    first = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(first + 1, len(rows)))
    assert ordered(native_core, rows, first, end) == ordered(reference, rows, first, end)


VALUES = st.binary(max_size=5) | st.sampled_from([b"plain", b"\x01", b"z\x02"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_core_writes_or_refuses_the_same_batch(native_core, data):
    count = data.draw(st.integers(1, 6))
    column = st.lists(VALUES, min_size=count, max_size=count).map(texts_of)
    number = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    bodies = data.draw(st.lists(st.binary(max_size=6), min_size=count, max_size=count))
    rows = data.draw(st.lists(st.integers(0, count), max_size=8))
    options = {
        "fixed": data.draw(st.binary(max_size=8)),
        "columns": data.draw(
            st.lists(
                st.tuples(st.sampled_from([b"", b"n"]), column)
                | st.tuples(st.just(b"m"), number.map(lambda values: array("q", values))),
                max_size=3,
            )
        ),
        "unique": data.draw(st.just(b"") | st.binary(min_size=16, max_size=16)),
        "most_bytes": data.draw(st.integers(-1, 200)),
    }

    def outcome(core):
        try:
            return encoded(core, bodies, rows, **options)
        except ValueError as error:
            return str(error)

    assert outcome(native_core) == outcome(reference)


def test_long_columns_without_the_gil_are_the_same(native_core):
    bodies = [b"x" * 50] * 9_000
    batch, count = encoded(native_core, bodies, most_bytes=1 << 24)
    assert (count, batch) == (9_000, encoded(reference, bodies, most_bytes=1 << 24)[0])
    rows = [(b"t", 0, offset) for offset in range(9_000)]
    assert ordered(native_core, rows) == 9_000
