"""Copies of a table in Parquet and Delta: equal to the source, whatever runs again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ordermq import Message, Producer
from ordermq.cdc import CanalCodec, Change, DebeziumCodec, Operation
from ordermq.errors import ConfigError, StateError
from ordermq.spark import DeltaCopy, ParquetCopy, TableChanges, copied_tables
from ordermq.spark.versions import BATCHES_OF_AVAILABLE_NOW
from tests.spark.conftest import Stream, needs

CODECS: dict[str, Any] = {
    "debezium": DebeziumCodec(),
    "canal": CanalCodec(time_zone=ZoneInfo("Asia/Shanghai")),
}
SCHEMA = "id BIGINT, name STRING, `größe` INT, price DECIMAL(12,2), at TIMESTAMP, day DATE"
SOURCE = "topic STRING, queue_id INT, offset BIGINT, body BINARY"
WITH_BROKER = "topic STRING, broker STRING, queue_id INT, offset BIGINT, body BINARY"
AT = datetime(2026, 7, 1, 23, 30, 0, 123456, tzinfo=UTC)
Row = dict[str, Any]


def goods(codec: str = "debezium", **settings: Any) -> TableChanges:
    given = {"table": "shop.goods", "schema": SCHEMA, "key": ["id"], "codec": CODECS[codec]}
    return TableChanges(**(given | settings))


def row_of(number: int, name: str | None) -> Row:
    price = None if name is None else Decimal(number) / 4
    return {
        "id": number,
        "name": name,
        "größe": number,
        "price": price,
        "at": AT,
        "day": date(2026, 7, 1),
    }


def change(operation: Operation, row: Row, **told: Any) -> Change:
    rows = {"before" if operation is Operation.DELETE else "after": row}
    given = {"table": "goods", "database": "shop", "key_columns": ("id",)} | rows | told
    return Change(operation=operation, **given)


@pytest.fixture
def send(producer: Producer) -> Callable[..., None]:
    def one(told: Change, codec: str = "debezium") -> None:
        body = CODECS[codec].encode(told)
        producer.send(Message("orders", body), sharding_key=f"{told.name}:{told.key(['id'])}")

    return one


class History:
    """Random changes of few keys, and of another table, and the rows that they leave."""

    def __init__(self, send: Callable[..., None], codec: str) -> None:
        self._send, self._codec = send, codec
        self._pick = random.Random(1)
        self._step = 0
        self.rows: dict[int, Row] = {}

    def go_on(self, count: int) -> None:
        for _ in range(count):
            self._step += 1
            number = self._pick.randrange(12)
            if number in self.rows and self._pick.random() < 0.3:
                self._send(change(Operation.DELETE, self.rows.pop(number)), self._codec)
                continue
            operation = Operation.UPDATE if number in self.rows else Operation.INSERT
            self.rows[number] = row_of(number, None if self._step % 7 == 0 else f"{self._step}")
            self._send(change(operation, self.rows[number]), self._codec)
            if self._step % 10 == 0:
                other = change(Operation.INSERT, {"id": number}, table="carts")
                self._send(other, self._codec)


def run(stream: Stream, copy: Any, **options: Any) -> None:
    query = (
        stream.frame(**options)
        .writeStream.foreachBatch(copy)
        .option("checkpointLocation", str(stream.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    stream.queries.append(query)
    assert query.awaitTermination(120)


class Crashing:
    """A copy whose driver dies: at its first batch before the copy, at a new one behind it."""

    def __init__(self, copy: Any) -> None:
        self._copy = copy
        self.numbers: list[int] = []

    def __call__(self, batch: Any, number: int) -> None:
        self.numbers.append(number)
        if len(self.numbers) == 1:
            raise RuntimeError("crash before the copy")
        self._copy(batch, number)
        if self.numbers.count(number) == 1:
            raise RuntimeError("crash behind the copy")


def copied(rows: list[Any]) -> dict[int, Row]:
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def collected(frame: Any) -> dict[int, Row]:
    # PySpark gives moments in the zone of the driver's machine, without naming it.
    rows = (row.asDict() for row in frame.collect())
    return copied([row | {"at": row["at"].astimezone(UTC)} for row in rows])


@pytest.fixture
def object_store(spark: Any) -> Iterator[None]:
    """Settings of sessions that write to object stores, and of lenient readers."""
    hadoop = spark._jsc.hadoopConfiguration()
    hadoop.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    lenient = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for setting in lenient:
        spark.conf.set(setting, "true")
    yield
    hadoop.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")
    for setting in lenient:
        spark.conf.unset(setting)


@needs(BATCHES_OF_AVAILABLE_NOW)  # before, a run ends behind a repeated batch
@pytest.mark.usefixtures("object_store")
def test_parquet_has_the_newest_rows_though_batches_run_again(
    spark: Any, stream: Stream, send: Any, tmp_path: Path
) -> None:
    copy = ParquetCopy(str(tmp_path / "goods"), goods())
    with pytest.raises(StateError, match="no version yet"):
        copy.read(spark)
    rows = assert_exact(stream, send, copy, lambda: collected(copy.read(spark)))
    versions = sorted(path.name for path in (tmp_path / "goods").glob("version=*"))
    assert versions == ["version=1", "version=2"]
    # Another checkpoint counts its batches from 0 again.
    stream.checkpoint = tmp_path / "another"
    with pytest.raises(Exception, match="has version 2, and the query runs batch 0"):
        run(stream, copy)
    assert collected(copy.read(spark)) == rows
    for part in (tmp_path / "goods/version=2").glob("part-*"):
        part.write_bytes(b"no Parquet")
    with pytest.raises(Exception, match=r"(?i)parquet"):
        copy.read(spark).collect()


def test_what_has_no_mark_of_being_whole_is_not_taken_for_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_tables, "_MARK", "_OF_ANOTHER_COMMITTER")
    empty = spark.createDataFrame([], SOURCE)
    with pytest.raises(StateError, match=r"without the mark .*commitProtocolClass"):
        ParquetCopy(str(tmp_path / "goods"), goods())(empty, 0)


def test_a_delta_table_has_the_newest_rows_though_batches_run_again(
    stream: Stream, send: Any, tmp_path: Path
) -> None:
    import deltalake  # only the long leg has it

    def read() -> dict[int, Row]:
        return copied(deltalake.DeltaTable(str(tmp_path / "goods")).to_pyarrow_table().to_pylist())

    copy = DeltaCopy(str(tmp_path / "goods"), goods("canal"))
    rows = assert_exact(stream, send, copy, read, codec="canal")
    # A new checkpoint reads all messages again, and ends with the same rows.
    stream.checkpoint = tmp_path / "another"
    run(stream, copy)
    assert read() == rows


def assert_exact(
    stream: Stream,
    send: Any,
    copy: Any,
    read: Callable[[], dict[int, Row]],
    codec: str = "debezium",
) -> dict[int, Row]:
    """Copy in three batches, of which the second and the third crash; return the rows."""
    told = History(send, codec)
    told.go_on(120)
    run(stream, copy)
    assert read() == told.rows
    told.go_on(60)
    crashing = Crashing(copy)
    with pytest.raises(Exception, match="crash before the copy"):
        run(stream, crashing)
    told.go_on(60)
    with pytest.raises(Exception, match="crash behind the copy"):
        run(stream, crashing)
    run(stream, copy)
    assert crashing.numbers == [1, 1, 2]
    assert read() == told.rows
    return told.rows


@pytest.mark.parametrize(
    ("told", "settings", "text"),
    [
        (change(Operation.TRUNCATE, {}), {}, "truncate of shop.goods"),
        (change(Operation.UPDATE, row_of(1, "a"), before={"id": 2}), {}, "the key changed from"),
        (change(Operation.INSERT, {"id": 1, "new": 2}), {}, "the copy lacks \\['new'\\]"),
        (change(Operation.INSERT, {"id": 1, "name": b"x"}), {}, "goods.name: b'x' does not fit"),
        (
            change(Operation.INSERT, {"id": 1, "größe": 1 << 40}),
            {},
            "größe: 1099511627776 does not fit int32",
        ),
        (change(Operation.UPDATE, row_of(1, "a"), unavailable=frozenset({"day"})), {}, "lacks"),
    ],
)
def test_what_has_no_place_in_the_copy_is_refused(
    spark: Any, told: Change, settings: dict[str, Any], text: str
) -> None:
    body = bytearray(CODECS["debezium"].encode(told))
    frame = spark.createDataFrame([("orders", 3, 7, body)], SOURCE)
    with pytest.raises(Exception, match=text) as failed:
        goods(**settings).newest(frame).collect()
    assert "queue_id=3, offset=7" in str(failed.value)


def test_changes_that_move_a_key_and_ignored_ones_are_read_where_the_topic_is_ordered_by_table(
    spark: Any,
) -> None:
    bodies = [
        change(Operation.INSERT, row_of(1, "a")),
        change(Operation.UPDATE, row_of(2, "b"), before={"id": 1}),
        change(Operation.TRUNCATE, {}),
    ]
    frame = spark.createDataFrame(
        [
            ("orders", 0, n, bytearray(CODECS["debezium"].encode(one)))
            for n, one in enumerate(bodies)
        ],
        SOURCE,
    )
    changes = goods(order="table", ignored=["truncate"])
    found = {row.id: (row.name, row.is_deleted) for row in changes.newest(frame).collect()}
    assert found == {1: (None, True), 2: ("b", False)}


@pytest.mark.parametrize(
    ("old", "new"),
    [(("b", 0, 100), ("b", 5, 3)), (("a", 0, 100), ("b", 0, 3)), (("b", 0, 3), ("b", 5, 100))],
    ids=["queue", "broker", "offsets that agree"],
)
def test_the_newest_change_of_a_key_that_moved_to_another_queue_is_the_last_of_the_source(
    spark: Any, old: tuple[str, int, int], new: tuple[str, int, int]
) -> None:
    told = (("old", 1_000, old), ("new", 1_000, new), ("of 2", 2_000, ("b", 1, 7)))
    frame = spark.createDataFrame(
        [
            ("orders", broker, queue, offset, moment(n, name, at))
            for n, (name, at, (broker, queue, offset)) in enumerate(told)
        ],
        WITH_BROKER,
    )
    found = {row.id: row.name for row in goods().newest(frame.repartition(2)).collect()}
    assert found == {1: "new", 2: "of 2"}


def test_within_a_queue_the_offset_tells_the_newest_change_though_the_sources_clock_went_back(
    spark: Any,
) -> None:
    told = [("orders", "b", 0, at, moment(0, f"{at}", 9_000 - at)) for at in range(20)]
    frame = spark.createDataFrame(told, WITH_BROKER).repartition(4)
    assert [row.name for row in goods().newest(frame).collect()] == ["19"]


def moment(place: int, name: str, committed_ms: int) -> bytearray:
    """Return the message of a change that the source committed at this time."""
    number = 2 if name == "of 2" else 1
    told = change(
        Operation.INSERT,
        row_of(number, name),
        committed_ms=committed_ms,
        position=(place, place),
        source="shop",
    )
    return bytearray(CODECS["debezium"].encode(told))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"key": ["number"]}, "key=\\['number'\\]: expected some of the columns"),
        ({"key": []}, "key=\\[\\]"),
        ({"key": "id"}, "key='id'"),
        ({"order": "none"}, "order='none'"),
        ({"ignored": ["delete"]}, "ignored=\\['delete'\\]"),
        ({"schema": "id INT, is_deleted BOOLEAN"}, "columns of the copy's own"),
        (
            {"schema": "id INT, tags ARRAY<INT>"},
            "tags: no value of a change is a array<int>",
        ),
    ],
)
def test_settings_that_cannot_be_right_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        goods(**settings)
