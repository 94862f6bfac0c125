"""Rows with the source's columns, made in memory, and minimal sinks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SinkOptions
from ordermq.spark.sink.writer import SinkWriter

SCHEMA = (
    "topic string, broker string, queue_id int, offset bigint, sharding_key string, "
    "body binary, born_timestamp timestamp"
)
BODY_BYTES = 100
QUEUES = 2
BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Part(InputPartition):
    queue: int
    rows: int
    keys: int
    queues: int = QUEUES
    batch_rows: int = BATCH_ROWS
    first: int = 0


def batches(part: Part) -> Iterator[Any]:
    """Return the rows of a queue; each key is in one queue, as with a selector."""
    body = pa.scalar(b"x" * BODY_BYTES, pa.binary())
    end = part.first + part.rows
    for start in range(part.first, end, part.batch_rows):
        offsets = np.arange(start, min(start + part.batch_rows, end), dtype=np.int64)
        count = len(offsets)
        # A multiplier that no count of keys divides, so that neighbours differ.
        keys = offsets * 7_919 % (part.keys // part.queues) * part.queues + part.queue
        yield pa.RecordBatch.from_pydict({
            "topic": pa.repeat("orders", count),
            "broker": pa.repeat("b", count),
            "queue_id": pa.repeat(pa.scalar(part.queue, pa.int32()), count),
            "offset": pa.array(offsets),
            "sharding_key": pa.array(np.char.mod("order-%08d", keys)),
            "body": pa.repeat(body, count),
            "born_timestamp": pa.array(offsets + 1_700_000_000_000_000, pa.timestamp("us", "UTC")),
        })  # fmt: skip


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._queues = int(options.get("queues", QUEUES))
        self._rows = int(options["rows"]) // self._queues
        self._keys = int(options["keys"])

    def partitions(self) -> Sequence[InputPartition]:
        numbers = range(self._queues)
        return [Part(queue, self._rows, self._keys, self._queues) for queue in numbers]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Part)
        return batches(partition)


class _StreamReader(_Reader, DataSourceStreamReader):
    """The rows in a number of micro-batches of the same size."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._micro_batches = int(options.get("micro_batches", "1"))

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._micro_batches)}

    def partitions(  # type: ignore[override]
        self, start: dict[str, int], end: dict[str, int]
    ) -> Sequence[InputPartition]:
        rows = self._rows // self._micro_batches
        first, count = start["batch"] * rows, (end["batch"] - start["batch"]) * rows
        numbers = range(self._queues) if count else ()
        return [Part(queue, count, self._keys, self._queues, first=first) for queue in numbers]

    def commit(self, end: dict[str, int]) -> None:
        return None


class Rows(DataSource):
    """Options: rows, in all; keys, at least as many as queues; queues; micro_batches."""

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(dict(self.options))


@dataclass
class Counted(WriterCommitMessage):
    rows: int
    size: int = 0


class _Counting:
    def write(self, iterator: Iterator[Any]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[Any], batchId: int = 0) -> None:
        return None

    def abort(self, messages: list[Any], batchId: int = 0) -> None:
        return None


class _CountingWriter(_Counting, DataSourceArrowWriter):
    """Of batches."""


class _CountingStreamWriter(_Counting, DataSourceStreamArrowWriter):
    """Of streams."""


class CountingSink(DataSource):
    """The baseline: an Arrow writer that counts rows."""

    @classmethod
    def name(cls) -> str:
        return "bench_count"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _CountingStreamWriter()


class _Discarding:
    """A sender that discards; it has eight queues."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic, "b", number) for number in range(8))

    def stream(self) -> Any:
        return contextlib.nullcontext(self)

    def send(self, blocks: Any) -> None:
        return None


class _DiscardingWriter(SinkWriter, DataSourceStreamArrowWriter):
    def _sender(self) -> Any:
        return _Discarding()

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.check(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        return None


class DiscardingSink(DataSource):
    """The sink of ordermq up to the socket: encoded batches are discarded."""

    @classmethod
    def name(cls) -> str:
        return "bench_discard"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        given = {"name_servers": "127.0.0.1:9876", "topic": "scored"}
        options = SinkOptions.of(given, {field.name: field for field in schema.fields})
        return _DiscardingWriter(options, schema.names)
