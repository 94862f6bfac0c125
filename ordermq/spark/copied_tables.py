"""Copies of a database's tables as Parquet or Delta: the newest row of each key (docs/cdc.md).

The changes come from a topic, by the codecs of `ordermq.cdc`. Spark runs the last micro-batch again
after a crash, with the same messages and the same number: each copy counts it once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as of

from ordermq.cdc import values as to
from ordermq.cdc.change import Change, Operation, Order, Row, require_changes, require_order
from ordermq.errors import ChangeRefused, ConfigError, StateError
from ordermq.lazy_imports import needed_from
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import queue_text
from ordermq.spark.stages.output import OutputShape, struct_of

IS_DELETED = "is_deleted"
_QUEUE, _OFFSET, _NUMBER = "change_queue", "change_offset", "change_number"
_COMMITTED, _POSITION = "change_committed", "change_position"
_OF_CHANGES: Final[dict[str, of.DataType]] = {
    _QUEUE: of.StringType(),
    _OFFSET: of.LongType(),
    _NUMBER: of.IntegerType(),
    _COMMITTED: of.LongType(),
    _POSITION: of.ArrayType(of.LongType()),
}
_BETWEEN_QUEUES = (_COMMITTED, _POSITION, _QUEUE)
_READ = ("topic", "queue_id", "offset", "body")
_IGNORABLE = frozenset({"truncate", "ddl"})
_MARK = "_SUCCESS"  # Spark writes it when all files of a folder are there
# Sessions may have these otherwise: for object stores, and for folders of logs. Here a version that
# is not seen, or not read wholly, is rows that are lost from every later one.
_WITH_MARK = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "true"}
_WHOLLY = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


class ChangeCodec(Protocol):
    """A codec of changes: `CanalCodec`, `DebeziumCodec`."""

    def decode(self, body: bytes, /) -> tuple[Change, ...]: ...


@dataclass(frozen=True, kw_only=True)
class TableChanges:
    """Table of a database, and the columns of its copy.

    Args:
        table: of the source, `orders` or `shop.orders`; changes of others are left out.
        schema: of the copy, whose columns have the source's names; a StructType or DDL text.
        key: columns of the primary key.
        codec: of the messages.
        order: the order that the topic keeps: "key", "table" or "source".
        ignored: of "truncate" and "ddl", which are refused otherwise.
    Raises: ConfigError: settings that cannot be right.
    """

    table: str
    schema: of.StructType | str
    key: Sequence[str]
    codec: ChangeCodec
    order: str = "key"
    ignored: Collection[str] = ()
    columns: of.StructType = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_order(self.order)
        columns = struct_of(self.schema)
        names = columns.fieldNames()
        if not self.key or isinstance(self.key, str) or not set(self.key) <= set(names):
            raise ConfigError(f"key={self.key!r}: expected some of the columns {names}")
        taken = {IS_DELETED, *_OF_CHANGES} & set(names)
        if taken:
            raise ConfigError(f"schema: {sorted(taken)} are columns of the copy's own")
        if not set(self.ignored) <= _IGNORABLE:
            raise ConfigError(f"ignored={self.ignored!r}: expected some of {sorted(_IGNORABLE)}")
        for each in columns:
            _adapter(each)
        object.__setattr__(self, "columns", columns)

    def newest(self, frame: DataFrame) -> DataFrame:
        """Return the newest row of each key that the messages change, one row per key.

        Of one queue, its last change of the key; of several, where the number of the topic's queues
        was changed, the one of these that the source committed last.

        Args:
            frame: of the source, with topic, queue_id, offset and body, and with broker where the
                topic has several; streams by foreachBatch.
        Returns: the schema's columns, and `is_deleted`. A deleted row has what the message has.
        Raises: ChangeRefused, when it runs: a change that has no place in the copy.
        """
        shape = [
            *(of.StructField(each.name, each.dataType) for each in self.columns),
            of.StructField(IS_DELETED, of.BooleanType()),
            *(of.StructField(name, kind) for name, kind in _OF_CHANGES.items()),
        ]
        has_broker = "broker" in map(str.lower, frame.columns)
        broker = frame["broker"] if has_broker else sf.lit("")
        read = frame.select(*_READ, broker.alias("broker"))
        changes = read.mapInArrow(_NewestOfTask(self), of.StructType(shape))
        row = sf.struct(*(sf.col(_quoted(each.name)) for each in shape[: -len(_OF_CHANGES)]))
        last = sf.struct(row.alias("row"), *_BETWEEN_QUEUES)
        key = [sf.col(_quoted(name)) for name in self.key]
        # By key first, which both groupings take as it is: one shuffle. Offsets of different queues
        # do not compare.
        by_queue = changes.repartition(*key).groupBy(*key, _QUEUE)
        lasts = by_queue.agg(sf.max_by(last, sf.struct(_OFFSET, _NUMBER)).alias("last"))
        newest = sf.max_by("last.row", sf.struct(*(f"last.{name}" for name in _BETWEEN_QUEUES)))
        return lasts.groupBy(*key).agg(newest.alias("newest")).select("newest.*")


class ParquetCopy:
    """A copy as Parquet, for `foreachBatch`: each micro-batch writes a version of the whole table.

    A batch that runs again writes its version again, from the one before. Two versions are kept.
    For tables that are rewritten in a moment; others want Delta.

    Args:
        path: a folder of this copy alone, on any file system of Spark's.
        changes: of the table.
    """

    def __init__(self, path: str, changes: TableChanges) -> None:
        self._path = str(path)
        self._changes = changes

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write the version of a micro-batch.

        Raises: StateError: there is a newer one, so the checkpoint is another, or an older one; or
            the session's commit protocol does not mark what is whole.
        """
        spark = batch.sparkSession
        folder = _Folder(spark, self._path)
        versions = folder.versions()
        newer = [each for each in versions if each > number]
        if newer:
            raise StateError(
                f"{self._path} has version {newer[-1]}, and the query runs batch {number}: its "
                "checkpoint is not the one that wrote the copy. Give a new checkpoint a new path"
            )
        before = [each for each in versions if each < number]
        newest = self._changes.newest(batch)
        rows = newest.where(~sf.col(IS_DELETED)).drop(IS_DELETED)
        if before:
            old = self._read(spark, folder.of(before[-1]))
            same = list(self._changes.key)
            changed = newest.select(*(sf.col(_quoted(name)) for name in same))
            rows = old.join(changed, same, "left_anti").select(*rows.columns).unionByName(rows)
        rows.write.mode("overwrite").options(**_WITH_MARK).parquet(folder.of(number))
        if number not in folder.versions():
            raise StateError(
                f"Spark wrote {folder.of(number)} without the mark {_MARK}, by which the next "
                "batch finds it: set spark.sql.sources.commitProtocolClass and "
                "spark.sql.parquet.output.committer.class to committers that write it, as those "
                "of Spark do"
            )
        for each in before[:-1]:
            folder.delete(each)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the newest version.

        Raises: StateError: there is none yet.
        """
        folder = _Folder(spark, self._path)
        versions = folder.versions()
        if not versions:
            raise StateError(f"{self._path} has no version yet: no micro-batch has ended")
        return self._read(spark, folder.of(versions[-1]))

    def _read(self, spark: SparkSession, path: str) -> DataFrame:
        return spark.read.schema(self._changes.columns).options(**_WHOLLY).parquet(path)


class DeltaCopy:
    """A copy as a Delta table, for `foreachBatch`: each micro-batch is merged into it, once.

    The merge runs on the driver, by the package deltalake; `max_rows` limits what it holds.

    Args:
        path: of the table, as deltalake takes it; it is created.
        changes: of the table.
        storage_options: of deltalake, such as keys of S3.
    """

    def __init__(
        self, path: str, changes: TableChanges, storage_options: dict[str, str] | None = None
    ) -> None:
        self._path = str(path)
        self._changes = changes
        self._options = storage_options

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Merge the newest rows of a micro-batch, unless the table has that batch."""
        with needed_from("spark-delta"):
            from deltalake import CommitProperties, DeltaTable, Transaction

        spark = batch.sparkSession
        # Numbers of batches are those of a checkpoint.
        query = f"ordermq/{spark.sparkContext.getLocalProperty('sql.streaming.queryId')}"
        shape = OutputShape(self._changes.columns, "UTC").schema
        table = DeltaTable.create(
            self._path, schema=shape, mode="ignore", storage_options=self._options
        )
        done = table.transaction_version(query)
        if done is not None and done >= number:
            return
        newest = self._changes.newest(batch).toArrow()
        newest = newest.cast(shape.append(pa.field(IS_DELETED, pa.bool_())))
        same = " AND ".join(f"copy.`{name}` = changed.`{name}`" for name in self._changes.key)
        values = {f"`{name}`": f"changed.`{name}`" for name in self._changes.columns.fieldNames()}
        (
            table.merge(
                newest,
                predicate=same,
                source_alias="changed",
                target_alias="copy",
                commit_properties=CommitProperties(app_transactions=[Transaction(query, number)]),
            )
            .when_matched_delete(predicate=f"changed.{IS_DELETED}")
            .when_matched_update(values)
            .when_not_matched_insert(values, predicate=f"NOT changed.{IS_DELETED}")
            .execute()
        )


class _Folder:
    """Versions of a copy, each in a folder of its own."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        assert spark._jvm is not None
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self._root = path
        self._files = self._path(path).getFileSystem(spark._jsc.hadoopConfiguration())

    def of(self, version: int) -> str:
        return f"{self._root}/version={version}"

    def versions(self) -> list[int]:
        """Return those that are whole, ascending."""
        root = self._path(self._root)
        if not self._files.exists(root):
            return []
        names = [str(each.getPath().getName()) for each in self._files.listStatus(root)]
        numbers = sorted(int(name[8:]) for name in names if name.startswith("version="))
        return [each for each in numbers if self._files.exists(self._path(self.of(each), _MARK))]

    def delete(self, version: int) -> None:
        self._files.delete(self._path(self.of(version)), True)


class _Newest(NamedTuple):
    """The newest change of a key, and where its message is."""

    offset: int
    number: int  # among the changes of the message
    change: Change
    topic: str
    queue_id: int
    broker: str

    @property
    def queue(self) -> str:
        return queue_text(MessageQueue(self.topic, self.broker, self.queue_id))


class _NewestOfTask:
    """The newest change of each key in each queue of a task; runs on executors."""

    def __init__(self, changes: TableChanges) -> None:
        self._changes = changes
        self._order = Order(changes.order)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: dict[tuple[Any, ...], _Newest] = {}
        for batch in batches:
            columns = (column.to_pylist() for column in batch.columns)
            for topic, queue_id, offset, body, broker in zip(*columns, strict=True):
                with _place_in_errors(topic, queue_id, offset):
                    for number, change in enumerate(self._changes_of(bytes(body))):
                        key = (queue_id, broker, topic, change.key(self._changes.key))
                        if key not in rows or rows[key][:2] < (offset, number):
                            rows[key] = _Newest(offset, number, change, topic, queue_id, broker)
        if rows:
            yield _record_batch(self._changes.columns, list(rows.values()))

    def _changes_of(self, body: bytes) -> Iterator[Change]:
        changes = self._changes
        for change in require_changes(changes.codec.decode(body)):
            if change.table and changes.table not in (change.name, change.table):
                continue
            if not change.is_of_row:
                self._check_ignored(change)
                continue
            if self._order is Order.KEY and change.changes_key(changes.key):
                raise ChangeRefused(
                    f"{change.name}: the key changed from {change.old_key(changes.key)} to "
                    f"{change.key(changes.key)} in one message. Ordered by key, changes of the "
                    "old key may be in another queue: send a delete and an insert, as Debezium "
                    "does, or order the topic by table"
                )
            if change.unavailable:
                raise ChangeRefused(
                    f"{change.name}: the message lacks {sorted(change.unavailable)}: set REPLICA "
                    "IDENTITY FULL on the source's table"
                )
            yield from change.split(changes.key)

    def _check_ignored(self, change: Change) -> None:
        if change.operation in (Operation.BEGIN, Operation.COMMIT):
            return
        if str(change.operation) not in self._changes.ignored:
            raise ChangeRefused(
                f"{change.operation} of {change.name or 'the database'}"
                f"{f': {change.ddl}' if change.ddl else ''}: change the copy by hand, and pass "
                f"ignored=[{str(change.operation)!r}]"
            )


@contextmanager
def _place_in_errors(topic: str, queue_id: int, offset: int) -> Iterator[None]:
    """Add the place of a message to errors of its changes."""
    try:
        yield
    except ChangeRefused as error:
        raise ChangeRefused(str(error), topic=topic, queue_id=queue_id, offset=offset) from error


def _record_batch(columns: of.StructType, rows: Sequence[_Newest]) -> pa.RecordBatch:
    shape = OutputShape(columns, "UTC").schema
    adapters = {each.name: _adapter(each) for each in columns}
    found = []
    for newest in rows:
        with _place_in_errors(newest.topic, newest.queue_id, newest.offset):
            found.append(_row_of(newest.change, adapters))
    try:
        # By column: one value alone takes Arrow several microseconds.
        arrays = [
            pa.array([_adapted(adapt, row.get(name)) for row in found], shape.field(name).type)
            for name, adapt in adapters.items()
        ]
    except _MISFITS:
        for newest, row in zip(rows, found, strict=True):
            with _place_in_errors(newest.topic, newest.queue_id, newest.offset):
                _check_fits(newest.change, row, adapters, shape)
        raise
    arrays.append(pa.array([each.change.operation is Operation.DELETE for each in rows]))
    arrays.append(pa.array([each.queue for each in rows], pa.string()))
    arrays.append(pa.array([each.offset for each in rows], pa.int64()))
    arrays.append(pa.array([each.number for each in rows], pa.int32()))
    arrays.append(pa.array([each.change.committed_ms for each in rows], pa.int64()))
    arrays.append(pa.array([each.change.position for each in rows], pa.list_(pa.int64())))
    return pa.RecordBatch.from_arrays(arrays, [*adapters, IS_DELETED, *_OF_CHANGES])


def _row_of(change: Change, known: Mapping[str, Any]) -> Row:
    is_deleted = change.operation is Operation.DELETE
    row = (change.before if is_deleted else change.after) or {}
    if not is_deleted and row.keys() - known.keys():
        raise ChangeRefused(
            f"{change.name}: the copy lacks {sorted(row.keys() - known.keys())}: add the "
            "columns to its schema, and start the query again"
        )
    return row


def _adapted(adapt: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else adapt(value)


_MISFITS = (TypeError, ValueError, ArithmeticError, pa.ArrowException)


def _check_fits(
    change: Change, row: Row, adapters: Mapping[str, Callable[[Any], Any]], shape: pa.Schema
) -> None:
    for name, adapt in adapters.items():
        value, kind = row.get(name), shape.field(name).type
        try:
            pa.scalar(_adapted(adapt, value), kind)
        except _MISFITS as error:
            raise ChangeRefused(
                f"{change.name}.{name}: {value!r:.80} does not fit {kind}: {error}"
            ) from error


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _adapter(column: of.StructField) -> Callable[[Any], Any]:
    for kind, adapt in _ADAPTERS:
        if isinstance(column.dataType, kind):
            return adapt
    raise ConfigError(
        f"column {column.name}: no value of a change is a {column.dataType.simpleString()}; use "
        "STRING, which takes documents and arrays as JSON"
    )


_ADAPTERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (of.BooleanType, to.as_bool),
    ((of.ByteType, of.ShortType, of.IntegerType, of.LongType), to.as_int),
    ((of.FloatType, of.DoubleType), to.as_float),
    (of.DecimalType, to.as_decimal),
    (of.StringType, to.as_text),
    (of.BinaryType, to.as_binary),
    (of.DateType, to.as_day),
    (of.TimestampType, to.as_zoned),
    (of.TimestampNTZType, to.as_unzoned),
    (of.DayTimeIntervalType, to.as_interval),
)
