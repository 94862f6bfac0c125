"""Encoding of rows as batches: targets, order and stamps, without Spark."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ConfigError, OrderingError
from ordermq.model import properties as props
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.queue_selector import java_index
from ordermq.spark.options import SinkOptions
from ordermq.spark.sink.block_sender import MOST_ROWS, Block
from ordermq.spark.sink.row_encoder import RowEncoder

QUEUES = tuple(MessageQueue("scored", "b", number) for number in range(4))


def encoder_of(
    batch: Any, partition: int = 0, sequence: int | None = 7, **options: str
) -> RowEncoder:
    given = {"name_servers": "127.0.0.1:9876", "topic": "scored"} | options
    given = {name: text for name, text in given.items() if text}
    names = batch.schema.names
    read = SinkOptions.of(given, dict.fromkeys(names))
    return RowEncoder(read, names, lambda topic: QUEUES, ("query/3", sequence), partition)


def placed(rows: list[tuple[int, int, str | None]], **more: Any) -> Any:
    """Rows of (queue id, offset, key); the body says which they are."""
    return pa.RecordBatch.from_pydict({
        "topic": ["orders"] * len(rows),
        "broker": ["b"] * len(rows),
        "queue_id": pa.array([queue for queue, _, _ in rows], pa.int32()),
        "offset": pa.array([offset for _, offset, _ in rows], pa.int64()),
        "sharding_key": pa.array([key for _, _, key in rows], pa.string()),
        "body": [f"{queue}-{offset}-{key}".encode() for queue, offset, key in rows],
        **more,
    })  # fmt: skip


def messages_of(blocks: Sequence[Block]) -> list[tuple[bytes, dict[str, str]]]:
    found: list[tuple[bytes, dict[str, str]]] = []
    for batch, rows in blocks:
        at, before = 0, len(found)
        while at < len(batch):
            size, _, _, _, body_size = struct.unpack_from(">iiiii", batch, at)
            text = batch[at + 22 + body_size : at + size].decode()
            found.append((batch[at + 20 : at + 20 + body_size], props.decode(text)))
            at += size
        assert len(found) - before == rows
    return found


def stamps_of(found: dict[MessageQueue, list[Block]]) -> list[tuple[str, int, int]]:
    return [
        (p["omq_source"], int(p["omq_offset"]), int(p.get("omq_row", "0")))
        for bodies in found.values()
        for _, p in messages_of(bodies)
    ]


def test_a_key_goes_to_the_queue_javas_selector_chooses() -> None:
    batch = placed([(0, offset, f"k{offset % 9}") for offset in range(50)])
    found = encoder_of(batch).encode(batch)
    for queue, bodies in found.items():
        for _, fields in messages_of(bodies):
            assert java_index(fields["__SHARDINGKEY"], 4) == queue.queue_id
    assert sum(len(messages_of(bodies)) for bodies in found.values()) == 50


def test_rows_keep_their_order_within_a_target_queue() -> None:
    batch = placed([(0, offset, f"k{offset % 9}") for offset in range(50)])
    for bodies in encoder_of(batch).encode(batch).values():
        offsets = [int(body.split(b"-")[1]) for body, _ in messages_of(bodies)]
        assert offsets == sorted(offsets)


def test_rows_without_a_key_go_to_the_queue_of_their_source_queue() -> None:
    batch = placed([(5, 1, None), (5, 2, "k"), (5, 3, None)])
    found = encoder_of(batch).encode(batch)
    assert next(b for b, _ in messages_of(found[QUEUES[1]])) == b"5-1-None"
    assert len(messages_of(found[QUEUES[1]])) >= 2


def test_a_column_can_give_the_target_queue() -> None:
    batch = placed([(0, n, "k") for n in range(6)], target=[3, 0, 3, 0, 1, 3])
    found = encoder_of(batch, queue_column="target").encode(batch)
    rows = {queue.queue_id: [b for b, _ in messages_of(x)] for queue, x in found.items()}
    assert rows[3] == [b"0-0-k", b"0-2-k", b"0-5-k"]
    wrong = placed([(0, 9, "k")], target=[4])
    with pytest.raises(ConfigError, match=r"has 4: the topic has queues 0\.\.3"):
        encoder_of(wrong, queue_column="target").encode(wrong)


def test_every_message_is_stamped_with_its_source_queue_and_offset() -> None:
    batch = placed([(2, 5, "a"), (2, 6, "b"), (2, 9, "a")])
    found = encoder_of(batch).encode(batch)
    assert sorted(stamps_of(found)) == [("orders@b/2", offset, 0) for offset in (5, 6, 9)]


def test_rows_made_of_one_message_are_numbered_also_across_batches() -> None:
    first = placed([(2, 5, "a"), (2, 5, "a"), (2, 6, "a")])
    second = placed([(2, 6, "a"), (2, 6, "a"), (2, 7, "a")])
    encoder = encoder_of(first)
    stamps = stamps_of(encoder.encode(first)) + stamps_of(encoder.encode(second))
    assert [stamp[1:] for stamp in stamps] == [(5, 0), (5, 1), (6, 0), (6, 1), (6, 2), (7, 0)]


def test_rows_without_origin_are_stamped_with_query_and_batch() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"]})
    encoder = encoder_of(batch, partition=6)
    found = encoder.encode(batch)
    assert stamps_of(found) == [("query/3", 7, 0), ("query/3", 7, 1)]
    assert stamps_of(encoder.encode(batch)) == [("query/3", 7, 2), ("query/3", 7, 3)]
    assert list(found) == [QUEUES[2]]


def test_rows_of_a_batch_write_are_stamped_with_their_number() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"]})
    encoder = encoder_of(batch, sequence=None)
    found = [
        fields for _ in range(2) for _, fields in messages_of(encoder.encode(batch)[QUEUES[0]])
    ]
    assert [(each["omq_source"], each["omq_offset"]) for each in found] == [
        ("query/3", str(row)) for row in range(4)
    ]
    # Brokers parse the properties of each message: there are no others.
    assert {tuple(each) for each in found} == {("omq_source", "omq_offset", "UNIQ_KEY")}


@pytest.mark.parametrize("names", [["a", None, "b"], [f"k{n}" for n in range(40)]])
def test_keys_find_the_same_queue_in_every_batch_whether_few_or_many(
    names: list[str | None],
) -> None:
    encoder, places = None, set()
    for _ in range(3):
        batch = placed([(5, offset, key) for offset, key in enumerate(names)])
        encoder = encoder or encoder_of(batch, order="none")
        for queue, bodies in encoder.encode(batch).items():
            places |= {(queue, fields.get("__SHARDINGKEY")) for _, fields in messages_of(bodies)}
    assert places == {(QUEUES[1 if key is None else java_index(key, 4)], key) for key in names}
    assert encoder is not None
    assert encoder.keys == {key for key in names if key is not None}


@pytest.mark.parametrize("column", ["tags", "keys", "properties"])
def test_rows_that_a_broker_may_have_to_find_are_not_in_bulk(column: str) -> None:
    assert encoder_of(placed([(0, 1, "k")])).is_bulk
    assert not encoder_of(placed([(0, 1, "k")], **{column: ["a"]})).is_bulk


def test_a_block_has_no_more_rows_than_a_record_may_have() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * (2 * MOST_ROWS + 1)})
    (blocks,) = encoder_of(batch, max_batch_bytes="16000000").encode(batch).values()
    assert [block.rows for block in blocks] == [MOST_ROWS, MOST_ROWS, 1]
    assert stamps_of({QUEUES[0]: blocks}) == [("query/3", 7, row) for row in range(len(batch))]


def test_tags_keys_and_properties_are_sent_without_those_of_the_protocol() -> None:
    batch = placed(
        [(0, 1, "k"), (0, 2, "k")],
        tags=["a", None],
        keys=pa.array([["x", "y"], None], pa.list_(pa.string())),
        properties=pa.array(
            [[("mine", "1"), ("UNIQ_KEY", "old"), ("omq_offset", "99")], None],
            pa.map_(pa.string(), pa.string()),
        ),
    )
    (bodies,) = encoder_of(batch).encode(batch).values()
    (_, first), (_, second) = messages_of(bodies)
    assert (first["TAGS"], first["KEYS"], first["mine"]) == ("a", "x y", "1")
    assert first["omq_offset"] == "1"
    assert first["UNIQ_KEY"] != second["UNIQ_KEY"]
    assert "TAGS" not in second


def test_batches_are_cut_at_max_batch_bytes() -> None:
    batch = placed([(0, offset, "k") for offset in range(100)])
    (bodies,) = encoder_of(batch, max_batch_bytes="1000").encode(batch).values()
    assert len(bodies) > 10
    assert all(len(body) <= 1000 for body in bodies)
    offsets = [int(body.split(b"-")[1]) for body, _ in messages_of(bodies)]
    assert offsets == list(range(100))
    keys = [fields["UNIQ_KEY"] for _, fields in messages_of(bodies)]
    assert len(set(keys)) == 100


def test_rows_of_a_key_out_of_order_are_refused_and_named() -> None:
    batch = placed([(0, 5, "a"), (0, 9, "b"), (0, 7, "a"), (0, 6, "a")])
    with pytest.raises(OrderingError, match="key 'a', arrives after offset 7"):
        encoder_of(batch).encode(batch)
    encoder = encoder_of(batch)
    encoder.encode(placed([(0, 5, "a"), (0, 9, "b"), (0, 7, "a")]))
    with pytest.raises(OrderingError, match="arrives after offset 7"):
        encoder.encode(placed([(0, 6, "a")]))
    assert encoder_of(batch, order="none").encode(batch)


def test_rows_sorted_by_key_are_in_order() -> None:
    batch = placed([(0, 5, "a"), (0, 7, "a"), (1, 1, "a"), (0, 1, "b"), (0, 2, "b")])
    assert encoder_of(batch).encode(batch)


def test_an_empty_body_and_a_separator_are_refused_with_the_row() -> None:
    empty = pa.RecordBatch.from_pydict({"body": [b"x", b""], "sharding_key": ["a", "b"]})
    with pytest.raises(ConfigError, match=r"its body is empty.*the row has .'sharding_key': 'b'"):
        encoder_of(empty).encode(empty)
    torn = pa.RecordBatch.from_pydict({"body": [b"x"], "sharding_key": ["a\x01"]})
    with pytest.raises(ConfigError, match=r"U\+0001"):
        encoder_of(torn).encode(torn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": ""}, "one of the two"),
        ({"topic_column": "t"}, "one of the two"),
        ({"body_column": "text"}, "no such column"),
        ({"key_column": "nothing"}, "no such column"),
        ({"order": "total"}, "key, queue or none"),
        ({"writer": "~a"}, "up to 32 letters, digits, _ and -"),
        ({"selector": "rust"}, "java, go, grpc, sip or sha256"),
        ({"topics": "x"}, "did you mean topic"),
    ],
)
def test_invalid_sink_options_are_refused(options: dict[str, str], said: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(ConfigError, match=said):
        encoder_of(batch, **options)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("sharding_key", pa.array([{"a": 1}]), "expected STRING, BINARY"),
        ("sharding_key", pa.array([["a"]]), "expected STRING, BINARY"),
        ("sharding_key", pa.array([1.0]), "expected STRING, BINARY"),
        ("sharding_key", pa.array([0], pa.timestamp("us", "UTC")), "expected STRING, BINARY"),
        ("sharding_key", pa.array([0], pa.timestamp("us")), "expected STRING, BINARY"),
        ("tags", pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())), "or an ARRAY of wor"),
        ("keys", pa.array([[["a"]]]), "expected STRING or an ARRAY of words"),
        ("properties", pa.array(["a=b"]), "expected MAP<STRING, STRING>"),
        ("properties", pa.array([{"a": "b"}]), "expected MAP<STRING, STRING>"),
        ("body", pa.array([1]), "expected BINARY or STRING: make one"),
        ("target", pa.array([0.0]), "expected an integer type"),
        ("name", pa.array([1]), "expected STRING"),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_what_to_do(
    column: str, values: Any, said: str
) -> None:
    columns = {"body": pa.array([b"x"]), column: values}
    more = {"target": {"queue_column": "target"}, "name": {"topic_column": "name", "topic": ""}}
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(ConfigError, match=f"column '{column}' is .*{said}.*Cast them, rename"):
        encoder_of(batch, **more.get(column, {})).encode(batch)


def torn_text() -> Any:
    """A text that is no UTF-8, as Spark makes one of bytes by CAST(... AS STRING)."""
    return pa.array([b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        *((name, torn_text()) for name in ("sharding_key", "tags", "keys", "name")),
        *((name, pa.array([b"\xff"])) for name in ("sharding_key", "tags", "keys")),
        ("keys", pa.ListArray.from_arrays([0, 1], torn_text())),
        ("properties", pa.MapArray.from_arrays([0, 1], pa.array(["a"]), torn_text())),
    ],
)
def test_what_is_no_text_is_refused_before_it_is_stored(column: str, values: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x"]), column: values})
    more = {"topic_column": "name", "topic": ""} if column == "name" else {}
    with pytest.raises(ConfigError, match=f"column '{column}' has what is no text in UTF-8: leave"):
        encoder_of(batch, **more).encode(batch)


@pytest.mark.parametrize("column", ["sharding_key", "tags", "properties"])
def test_an_error_of_a_row_has_no_body_and_no_long_value(column: str) -> None:
    values = pa.array(["a\x01"]) if column != "properties" else pa.array(
        [[("a", "b" * 40_000)]], pa.map_(pa.string(), pa.string())
    )  # fmt: skip
    batch = pa.RecordBatch.from_pydict({
        "payload": ["secret"], "body": ["secret"], "note": ["n" * 40_000], column: values,
    })  # fmt: skip
    with pytest.raises(ConfigError, match="no broker accepts row 0") as raised:
        encoder_of(batch, body_column="payload").encode(batch)
    assert "secret" not in str(raised.value)
    assert len(str(raised.value)) < 1_500


def test_a_row_that_no_request_can_have_is_named() -> None:
    batch = pa.RecordBatch.from_pydict({
        "sharding_key": ["small", "huge"], "body": [b"x", b"x" * (16 << 20)],
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"row 1 of the task is a message of 167.* 'huge'"):
        encoder_of(batch).encode(batch)


@pytest.mark.parametrize("topic", ["", "a b", "x" * 200, "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_topic_of_a_row_is_checked_as_that_of_the_option(topic: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "name": [topic]})
    with pytest.raises(ConfigError, match="column 'name': topic "):
        encoder_of(batch, topic="", topic_column="name").encode(batch)


def test_columns_are_found_in_whatever_case_they_are_written() -> None:
    batch = placed([(0, 7, "a"), (0, 8, "b")], tags=["x", "y"])
    capitals = batch.rename_columns([name.upper() for name in batch.schema.names])
    assert encoder_of(capitals).encode(capitals).keys() == encoder_of(batch).encode(batch).keys()
    found = [m for blocks in encoder_of(capitals).encode(capitals).values()
             for m in messages_of(blocks)]  # fmt: skip
    assert sorted((p["__SHARDINGKEY"], p["TAGS"], p["omq_source"]) for _, p in found) == [
        ("a", "x", "orders@b/0"), ("b", "y", "orders@b/0"),
    ]  # fmt: skip


def test_of_columns_that_differ_by_their_case_the_exact_one_is_meant() -> None:
    batch = pa.RecordBatch.from_pydict({"BODY": [b"no"], "body": [b"yes"], "Tags": ["t"]})
    ((body, fields),) = [m for blocks in encoder_of(batch).encode(batch).values()
                         for m in messages_of(blocks)]  # fmt: skip
    assert (body, fields["TAGS"]) == (b"yes", "t")
    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "TAGS": ["t"], "Tags": ["t"]})
    with pytest.raises(ConfigError, match="no column 'tags', but 'TAGS' and 'Tags': rename"):
        encoder_of(batch)


def test_a_missing_word_is_left_out_and_numbers_are_words() -> None:
    batch = pa.RecordBatch.from_pydict({
        "body": [b"x"], "keys": [["a", None, "b"]], "tags": [[1, 2]],
    })  # fmt: skip
    ((_, fields),) = [m for blocks in encoder_of(batch).encode(batch).values()
                      for m in messages_of(blocks)]  # fmt: skip
    assert (fields["KEYS"], fields["TAGS"]) == ("a b", "1 2")


def test_the_stamps_of_an_unordered_write_and_of_a_named_writer_tell_so() -> None:
    batch = placed([(0, 7, "a"), (0, 5, "a"), (1, 5, "b")])

    def sources(rows: Any, **options: str) -> set[str]:
        return {source for source, _, _ in stamps_of(encoder_of(rows, **options).encode(rows))}

    assert sources(batch, order="none") == {"~orders@b/0", "~orders@b/1"}
    assert sources(batch, order="none", writer="two") == {"~two:orders@b/0", "~two:orders@b/1"}
    assert sources(batch.slice(1), writer="two") == {"two:orders@b/0", "two:orders@b/1"}
    assert sources(batch.slice(1, 1), writer="two") == {"two:orders@b/0"}
    plain = batch.select(["body", "sharding_key"])  # whose rows are counted, and rise
    assert sources(plain, order="none") == {"query/3"}
    assert sources(plain, writer="two") == {"two:query/3"}


ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.sampled_from(["a", "b", None])),
    max_size=12,
)


@given(ROWS, st.lists(st.integers(0, 12), max_size=3))
def test_stamps_rise_within_a_key_and_are_the_same_however_rows_are_cut_into_batches(
    rows: list[tuple[int, int, str | None]], cuts: list[int]
) -> None:
    # As a stage by key gives them: sorted by key, source queue and offset.
    rows = sorted(rows, key=lambda row: (row[2] or "", row[0], row[1]))
    bounds = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    seen = stamps_by_key(rows, bounds)
    for stamps in seen.values():
        assert all(one < other for one, other in pairwise(stamps))
    assert sum(len(stamps) for stamps in seen.values()) == len(rows)
    assert seen == stamps_by_key(rows, [0, len(rows)])


def stamps_by_key(
    rows: list[tuple[int, int, str | None]], bounds: list[int]
) -> dict[tuple[str, str | None], list[tuple[int, int]]]:
    """The stamps of each source and key, of rows in batches that end there."""
    encoder = encoder_of(placed([]))
    seen: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for low, high in pairwise(bounds):
        for bodies in encoder.encode(placed(rows[low:high])).values():
            for _, p in messages_of(bodies):
                stamp = (int(p["omq_offset"]), int(p.get("omq_row", "0")))
                seen.setdefault((p["omq_source"], p.get("__SHARDINGKEY")), []).append(stamp)
    return seen


def test_a_key_of_the_row_before_a_batch_is_refused_out_of_order() -> None:
    encoder = encoder_of(placed([]))
    encoder.encode(placed([(0, 5, "b"), (0, 9, "a")]))
    encoder.encode(placed([(0, 6, "b")]))
    with pytest.raises(OrderingError, match="key 'a', arrives after offset 9"):
        encoder.encode(placed([(0, 7, "a")]))


def test_keys_are_reported_also_where_a_column_gives_the_target_queue() -> None:
    rows = [(0, 5, "a"), (0, 6, "b"), (0, 7, None), (0, 8, "a")]
    batch = placed(rows, target=pa.array([3, 0, 0, 3]))
    encoder = encoder_of(batch, queue_column="target")
    encoder.encode(batch)
    assert encoder.keys == {"a", "b"}


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_packed_queues_are_stamped_as_one_queue_per_batch_is(rows):
    whole = [(queue, at, f"k{queue}") for queue in (2, 0, 5) for at in range(10, 31)]
    expected = []
    for queue in (2, 0, 5):
        batch = placed([each for each in whole if each[0] == queue])
        expected += stamps_of(encoder_of(batch).encode(batch))
    encoder, found = encoder_of(placed(whole)), []
    for first in range(0, len(whole), rows):
        found += stamps_of(encoder.encode(placed(whole[first : first + rows])))
    assert sorted(found) == sorted(expected)
    assert encoder.source_order is not None
    assert encoder.source_order.queues == {"orders@b/2", "orders@b/0", "orders@b/5"}


def test_a_queue_that_goes_back_behind_packed_queues_is_refused():
    encoder = encoder_of(placed([]))
    encoder.encode(placed([(0, 1, None), (0, 2, None), (1, 5, None)]))
    with pytest.raises(OrderingError, match=r"offset 1 of orders@b/0"):
        encoder.encode(placed([(1, 6, None), (0, 1, None)]))


def test_a_row_has_to_fit_its_own_topic_only() -> None:
    widths = {"wide": 8, "narrow": 2}
    batch = pa.RecordBatch.from_pydict({
        "to": ["wide", "narrow", "wide"],
        "at": pa.array([7, 1, 7], pa.int32()),
        "sharding_key": ["a", "b", "c"],
        "body": ["1", "2", "3"],
    })  # fmt: skip
    given = {"name_servers": "127.0.0.1:9876", "topic_column": "to", "queue_column": "at"}
    names = batch.schema.names
    encoder = RowEncoder(
        SinkOptions.of(given, dict.fromkeys(names)),
        names,
        lambda topic: [MessageQueue(topic, "b", number) for number in range(widths[topic])],
        ("query/3", 7),
        0,
    )
    found = {queue: len(messages_of(blocks)) for queue, blocks in encoder.encode(batch).items()}
    assert found == {MessageQueue("wide", "b", 7): 2, MessageQueue("narrow", "b", 1): 1}


def test_a_key_is_reported_with_the_topic_that_its_row_names() -> None:
    batch = pa.RecordBatch.from_pydict({
        "to": ["one", "two", "one"], "sharding_key": ["a", "a", "b"], "body": ["1", "2", "3"]
    })  # fmt: skip
    encoder = encoder_of(batch, topic="", topic_column="to")
    encoder.encode(batch)
    assert encoder.keys == {"a of one", "a of two", "b of one"}
