"""Messages as Arrow columns, beside what their views say; the columns of every core alike."""

import random
import zlib
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from ordermq import core
from ordermq.errors import ConfigError, ProtocolError
from ordermq.model import arrow
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from tests.unit.core.stored_records import INNER_BATCH, record

QUEUE = MessageQueue("orders", "broker-a", 3)
TEXT = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01o-17\x02UNIQ_KEY\x010A00\x02mine\x01yes"
KEYS = ("TAGS", "KEYS", "__SHARDINGKEY", "UNIQ_KEY", "färbung", "colour", "x")


def drawn(draw, rows):
    """Stored records of many kinds, as a pull brings them."""
    records = []
    for offset in range(rows):
        names = draw.sample(KEYS, draw.randrange(len(KEYS) + 1)) + draw.choices(KEYS, k=2)
        text = "\x02".join(f"{name}\x01{draw.choice(['', 'a', 'bé b', 'c'])}" for name in names)
        body = draw.randbytes(draw.randrange(40))
        is_small = draw.random() < 0.1
        records.append(
            record(
                offset=10 * offset,
                body=zlib.compress(body) if is_small else body,
                sys_flag=0x301 if is_small else 0,
                properties=text.encode(),
                queue_id=3,
                reconsume_times=draw.randrange(3),
                born=(draw.randrange(1 << 41), b"\x0a\0\0\1", 50_000),
            )
        )
    return b"".join(records)


def said_by(view):
    """A view's fields, as the row that Arrow gives back."""
    return {
        "topic": view.stored_topic,
        "broker": view.message_queue.broker_name,
        "queue_id": view.message_queue.queue_id,
        "offset": view.queue_offset,
        "sharding_key": view.sharding_key,
        "keys": view.get_property("KEYS"),
        "tags": view.tags,
        "body": bytes(view.body),
        "properties": sorted(view.properties.items()),
        "born_timestamp": datetime.fromtimestamp(view.born_timestamp_ms / 1000, UTC),
        "store_timestamp": datetime.fromtimestamp(view.store_timestamp_ms / 1000, UTC),
        "message_id": view.message_id,
        "reconsume_times": view.reconsume_times,
    }


def rows_of(table):
    return [row | {"properties": sorted(row["properties"])} for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(20))
def test_arrow_columns_equal_the_views(seed):
    draw = random.Random(seed)
    batch = MessageBatch(QUEUE, drawn(draw, draw.randrange(60)))
    table = arrow.record_batch(batch)
    table.validate(full=True)
    assert table.schema == arrow.arrow_schema()
    assert rows_of(table) == [said_by(view) for view in batch]
    start, end = sorted(draw.choices(range(len(batch) + 1), k=2))
    cut = arrow.record_batch(batch, start=start, end=end)
    cut.validate(full=True)
    assert rows_of(cut) == [said_by(view) for view in batch[start:end]]


def test_columns_are_the_requested_ones_in_order():
    batch = MessageBatch(QUEUE, record(offset=7, body=b"b", properties=TEXT))
    table = arrow.record_batch(batch, ("body", "offset", "tags"))
    assert table.to_pydict() == {"body": [b"b"], "offset": [7], "tags": ["paid"]}
    assert [field.name for field in table.schema] == ["body", "offset", "tags"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("body", "colour"), "no column 'colour'"),
        (("queue_offset",), "no column 'queue_offset'; did you mean 'offset'"),  # as of a view
        (("born_timestamp_ms",), "did you mean 'born_timestamp'"),
        ((), "at least one"),
        (("tags",) * 2, "once"),
    ],
)
def test_an_unknown_column_is_refused_with_the_list_of_columns(columns, said):
    with pytest.raises(ConfigError, match=f"{said}.*; expected of topic, broker, queue_id"):
        arrow.record_batch(MessageBatch(QUEUE, b""), columns)


def test_messages_of_an_inner_batch_are_rows_of_their_own():
    inner = core.encode_batch([b"a", b"bb"], ["TAGS\x01x", "UNIQ_KEY\x01u"], [0, 0])
    batch = MessageBatch(QUEUE, record(offset=5, body=inner, sys_flag=INNER_BATCH))
    table = arrow.record_batch(batch, ("offset", "body", "tags", "properties"))
    assert table.to_pydict() == {
        "offset": [5, 6],
        "body": [b"a", b"bb"],
        "tags": ["x", None],
        "properties": [[("TAGS", "x")], [("UNIQ_KEY", "u")]],
    }


def test_of_a_property_that_comes_twice_the_last_counts_once():
    batch = MessageBatch(QUEUE, record(properties=b"A\x01b\x02B\x01c\x02A\x01d\x02\x01e\x02F\x01"))
    (found,) = arrow.record_batch(batch, ("properties",)).column(0).to_pylist()
    assert found == [("B", "c"), ("A", "d")]


@pytest.mark.parametrize("column", ["tags", "properties"])
def test_a_string_that_is_not_utf_8_is_refused_with_its_queue_and_offset(column):
    body = record(offset=1, properties=TEXT) + record(offset=2, properties=b"TAGS\x01\xff")
    batch = MessageBatch(QUEUE, body)
    with pytest.raises(ProtocolError, match="message properties are not UTF-8") as caught:
        arrow.record_batch(batch, ("offset", column))
    assert (caught.value.topic, caught.value.queue_id, caught.value.offset) == ("orders", 3, 2)
    assert arrow.record_batch(batch, ("offset", column), end=1).num_rows == 1
    assert arrow.record_batch(batch, ("offset", "body")).num_rows == 2


def test_a_record_batch_keeps_its_memory():
    batch = MessageBatch(QUEUE, record(offset=9, body=b"kept", properties=TEXT) * 100)
    table = arrow.record_batch(batch, start=50)
    del batch
    junk = [bytearray(10_000) for _ in range(100)]
    assert table.column(7).to_pylist() == [b"kept"] * 50
    assert table.column(3).to_pylist() == [9] * 50
    assert len(junk) == 100
    assert isinstance(table, pa.RecordBatch)


def test_a_text_for_columns_is_refused_as_one() -> None:
    with pytest.raises(ConfigError, match=r"^columns='offset': expected a list of names, as \['o"):
        arrow.checked_columns("offset")
