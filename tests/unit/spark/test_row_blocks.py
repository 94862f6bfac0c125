"""Columns made natively from pull answers, compared with those of the message codec."""

import os
import random
import subprocess
import sys
import threading
import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq import core
from ordermq.errors import ProtocolError, StateError
from ordermq.model.arrow import COLUMNS, record_batch
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.properties import PROTOCOL_NAMES, of_the_user
from ordermq.spark.options import SourceOptions
from ordermq.spark.source import row_blocks
from ordermq.spark.source.row_blocks import RowBlocks
from tests.unit.core.stored_records import INNER_BATCH, record

QUEUE = MessageQueue("orders", "b", 3)
COMPRESSED = 0x301  # with zlib
IPV6 = 0x30
EVERY = {"all_properties": "true"}

names = st.sampled_from([
    "TAGS", "KEYS", "__SHARDINGKEY", "UNIQ_KEY", "CLUSTER", "A", "AB", "färbung", "W" * 70, "",
    "__RMQ.TRANSIENT.", "__RMQ.TRANSIENT.A", "__RMQ.TRANSIENT", "TAGS2", "tags",
])  # fmt: skip
values = st.sampled_from(["", "a", "bé b", "k" * 40, "\U0001f600"])
texts = st.lists(st.tuples(names, values), max_size=20).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
)
messages = st.lists(
    st.tuples(texts, st.binary(max_size=40), st.booleans(), st.booleans(), st.integers(0, 2**62)),
    max_size=40,
)


def records(drawn, first=0):
    """Stored records, one per offset from `first` on."""
    made = []
    for number, (text, body, is_small, is_ipv6, born) in enumerate(drawn):
        flags = (COMPRESSED if is_small else 0) | (IPV6 if is_ipv6 else 0)
        host = (bytes(16) if is_ipv6 else b"\x0a\0\0\1", 50_000)
        made.append(
            record(
                offset=first + number,
                body=zlib.compress(body) if is_small else body,
                sys_flag=flags,
                properties=text,
                queue_id=3,
                born=(born, *host),
                stored=(number, *host),
            )
        )
    return made


def options(columns=COLUMNS, **more):
    given = {"name_servers": "127.0.0.1:9876", "topic": "orders", "columns": ",".join(columns)}
    return SourceOptions.of(given | {"ordered": "false"} | more)


def block_of(answers, most=1 << 20):
    """A block with all messages of these lists of records, each list an answer."""
    count = sum(map(len, answers))
    queue = core.AnswerQueue(0, count, most, True)
    at = 0
    for answer in answers:
        if answer:
            queue.put(b"".join(answer), (), True, 3, at, at + len(answer))
            at += len(answer)
    block = core.AnswerBlock()
    assert block.take(queue, 1 << 20, 1 << 30)
    assert queue.lost() == (0, -1)
    return block


def batch_of(rows, block):
    (found,) = rows.record_batches(block)
    return found


@settings(max_examples=150, deadline=None)
@given(messages, st.integers(1, 9), st.sets(st.sampled_from(COLUMNS), min_size=1))
def test_columns_of_answers_equal_those_of_the_codec(drawn, step, chosen):
    columns = tuple(name for name in COLUMNS if name in chosen)
    made = records(drawn)
    block = block_of([made[at : at + step] for at in range(0, len(made), step)])
    batch = MessageBatch(QUEUE, b"".join(made))
    found = batch_of(RowBlocks(options(columns, **EVERY), QUEUE, None), block)
    found.validate(full=True)
    wanted = record_batch(batch, columns)
    assert found.schema == wanted.schema
    assert found.equals(wanted)
    assert len(block) == len(made)


@settings(max_examples=150, deadline=None)
@given(messages)
def test_the_map_has_the_properties_of_the_user(drawn):
    made = records(drawn)
    found = batch_of(RowBlocks(options(("properties",)), QUEUE, None), block_of([made]))
    found.validate(full=True)
    batch = MessageBatch(QUEUE, b"".join(made))
    assert list(map(dict, found.column("properties").to_pylist())) == [
        of_the_user(view.properties) for view in batch
    ]


@pytest.mark.parametrize("name", sorted(PROTOCOL_NAMES))
def test_no_name_of_rocketmq_is_in_the_map(name):
    text = f"{name}\x01a\x02{name}s\x01b\x02{name[:-1]}\x01c\x02{name}\x01d".encode()
    made = [record(offset=0, properties=text, queue_id=3)]
    found = batch_of(RowBlocks(options(("properties",)), QUEUE, None), block_of([made]))
    [kept] = map(dict, found.column("properties").to_pylist())
    assert kept == of_the_user({f"{name}s": "b", name[:-1]: "c"})


def test_what_the_map_goes_without_need_not_be_text():
    made = [record(offset=0, properties=b"CLUSTER\x01\xff\x02a\x01b", queue_id=3)]
    found = batch_of(RowBlocks(options(("properties",)), QUEUE, None), block_of([made]))
    assert found.to_pylist() == [{"properties": [("a", "b")]}]
    with pytest.raises(ProtocolError, match="not UTF-8"):
        batch_of(RowBlocks(options(("properties",), **EVERY), QUEUE, None), block_of([made]))


@settings(max_examples=50, deadline=None)
@given(messages.filter(bool), st.data())
def test_parts_of_answers_are_taken_in_order_and_none_twice(drawn, data):
    made = records(drawn, first=5)
    start = 5
    end = data.draw(st.integers(start + 1, start + len(made)))
    queue = core.AnswerQueue(start, end, 1 << 20, True)
    queue.put(b"".join(made), (), False, 3, 5, 5 + len(made))  # also behind the end
    rows = RowBlocks(options(("offset", "body")), QUEUE, None)
    block, offsets, is_over = core.AnswerBlock(), [], False
    while not is_over:
        is_over = block.take(queue, data.draw(st.integers(1, 7)), 1 << 30)
        offsets += batch_of(rows, block).column("offset").to_pylist()
        block.clear()
    assert offsets == list(range(start, end))


def test_messages_of_an_inner_batch_are_rows_of_their_own():
    inner = core.encode_batch([b"a", b"bb"], ["TAGS\x01x", "UNIQ_KEY\x01u"], [0, 0])
    block = block_of([[record(offset=0, body=inner, sys_flag=INNER_BATCH, queue_id=3), b""]])
    columns = ("offset", "body", "tags", "properties")
    table = batch_of(RowBlocks(options(columns, **EVERY), QUEUE, None), block)
    assert table.to_pydict() == {
        "offset": [0, 1],
        "body": [b"a", b"bb"],
        "tags": ["x", None],
        "properties": [[("TAGS", "x")], [("UNIQ_KEY", "u")]],
    }


def test_of_many_properties_of_one_name_the_last_counts():
    draw = random.Random(7)
    pairs = [(f"n{draw.randrange(30)}", str(number)) for number in range(200)]
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    made = [record(offset=0, properties=text, queue_id=3)]
    columns = ("properties",)
    found = batch_of(RowBlocks(options(columns), QUEUE, None), block_of([made]))
    assert found.to_pylist() == record_batch(MessageBatch(QUEUE, made[0]), columns).to_pylist()
    assert dict(found.to_pylist()[0]["properties"]) == dict(pairs)


@pytest.mark.parametrize("column", ["tags", "properties", "message_id"])
def test_a_text_that_is_not_utf_8_is_refused_with_its_queue_and_offset(column):
    made = [
        record(offset=0, properties=b"TAGS\x01a\x02UNIQ_KEY\x01b", queue_id=3),
        record(offset=1, properties=b"TAGS\x01\xff\x02UNIQ_KEY\x01\xfe", queue_id=3),
    ]
    with pytest.raises(ProtocolError, match="message properties are not UTF-8") as caught:
        batch_of(RowBlocks(options((column,), **EVERY), QUEUE, None), block_of([made]))
    assert (caught.value.topic, caught.value.queue_id, caught.value.offset) == ("orders", 3, 1)
    found = RowBlocks(options(("offset", "body", "keys")), QUEUE, None)
    assert batch_of(found, block_of([made])).num_rows == 2


def test_bodies_that_become_long_are_in_several_record_batches(monkeypatch):
    monkeypatch.setattr(row_blocks, "_BODY_BYTES", 1_000)
    sizes = [400, 400, 400, 2_000, 0, 999, 2]
    made = records([(b"KEYS\x01%d" % n, b"x" * n, True, False, n) for n in sizes])
    block = block_of([made])
    found = list(RowBlocks(options(**EVERY), QUEUE, None).record_batches(block))
    assert [batch.num_rows for batch in found] == [2, 1, 1, 2, 1]
    wanted = record_batch(MessageBatch(QUEUE, b"".join(made)))
    assert pa.Table.from_batches(found).combine_chunks().equals(pa.Table.from_batches([wanted]))


def test_a_body_that_cannot_be_decompressed_is_refused_with_its_offset():
    made = [record(offset=0, body=b"no zlib", sys_flag=COMPRESSED, queue_id=3)]
    with pytest.raises(ProtocolError, match="leave the column out") as caught:
        batch_of(RowBlocks(options(("body",)), QUEUE, None), block_of([made]))
    assert caught.value.offset == 0


def test_offsets_without_a_message_are_counted_where_each_has_one():
    made = records([(b"", b"x", False, False, 0)] * 6)
    for is_whole, lost in ((True, (4, 2)), (False, (0, -1))):
        queue = core.AnswerQueue(0, 8, 1 << 20, is_whole)
        queue.put(b"".join(made[:2] + made[4:6]), (), False, 3, 0, 9)  # 2, 3, 6, 7 are missing
        assert queue.lost() == lost
        assert queue.next == 9


def test_what_is_not_the_answer_to_the_next_pull_is_not_added():
    made = records([(b"", b"x", False, False, 0)] * 4)
    queue = core.AnswerQueue(0, 4, 1 << 20, True)
    with pytest.raises(StateError, match="another offset"):
        queue.put(b"".join(made[2:]), (), False, 3, 2, 4)
    with pytest.raises(ProtocolError):
        queue.put(b"".join(made[2:]), (), False, 3, 0, 2)  # not of these offsets
    with pytest.raises(ProtocolError):
        queue.put(b"".join(made), (), False, 7, 0, 4)  # of another queue
    queue.end()
    with pytest.raises(StateError, match="has ended"):
        queue.put(b"".join(made), (), False, 3, 0, 4)
    assert queue.next == 0
    assert core.AnswerBlock().take(queue, 1, 1)


def test_a_reader_waits_for_messages_and_sees_the_end():
    made = records([(b"", b"x", False, False, 0)] * 4)
    queue, block = core.AnswerQueue(0, 8, 1 << 20, True), core.AnswerBlock()
    found = []
    reader = threading.Thread(target=lambda: found.append(block.take(queue, 100, 1 << 30)))
    reader.start()
    queue.put(b"".join(made[:2]), (), False, 3, 0, 2)
    queue.put(b"".join(made[2:]), (), False, 3, 2, 4)
    queue.skip(6)
    queue.end()
    reader.join(30)
    assert found == [True]
    assert len(block) == 4


def columns_of_every_kind():
    drawn = [(b"a\x01b", b"x", True, False, 0), (b"UNIQ_KEY\x01u", b"y", False, True, 0)]
    made = records(drawn)
    rows = RowBlocks(options(ordered="true", group="g"), QUEUE, 7)
    return batch_of(rows, block_of([made])), record_batch(MessageBatch(QUEUE, b"".join(made)))


def test_columns_are_made_without_pandas_which_costs_a_worker_a_third_of_a_second():
    program = (
        "import sys\nfrom tests.unit.spark.test_row_blocks import columns_of_every_kind\n"
        "columns_of_every_kind()\nassert 'pandas' not in sys.modules"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
    found, by_codec = (batch.to_pydict() for batch in columns_of_every_kind())
    assert found["topic"] == ["orders"] * 2
    assert found["broker"] == ["b"] * 2
    assert found["queue_id"] == [3, 3]
    assert found["body"] == [b"x", b"y"]
    assert found["lease"] == [7, 7]
    assert found["message_id"] == by_codec["message_id"]
    assert found["message_id"][1] == "u"


def test_columns_keep_their_memory_when_the_block_is_used_again():
    made = records([(b"TAGS\x01a", b"kept", False, False, 0)] * 50)
    rows, block = RowBlocks(options(("tags", "body")), QUEUE, None), block_of([made])
    first = batch_of(rows, block)
    block.clear()
    others = records([(b"TAGS\x01zz", b"other", False, False, 0)] * 50)
    later = [batch_of(rows, block_of([others])) for _ in range(10)]
    assert first.to_pylist() == [{"tags": "a", "body": b"kept"}] * 50
    assert pa.Table.from_batches(later).num_rows == 500
