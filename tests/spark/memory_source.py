"""Rows with the source's columns, made in memory, to test stages without a broker.

`queues` partitions, one each, `rows` rows a queue, Arrow batches of `batch_rows`. A sharding key
lives in one queue, as a producer's does; a `plane` comes in all of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from ordermq.spark.versions import ADMISSION, is_before

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

SCHEMA = (
    "topic string, broker string, queue_id int, offset bigint, sharding_key string, "
    "plane bigint, body binary, born timestamp"
)


@dataclass(frozen=True)
class Rows(InputPartition):
    queue: int
    start: int
    end: int


class _Reading:
    def __init__(self, options: dict[str, str]) -> None:
        self.queues = int(options.get("queues", "4"))
        self.rows = int(options.get("rows", "100"))
        self.keys = int(options.get("keys", "5"))
        self.planes = int(options.get("planes", "7"))
        self.batch_rows = int(options.get("batch_rows", "30"))
        self.step = int(options.get("step", "40"))
        self.parts = int(options.get("parts", "1"))  # partitions a queue, as no source should
        lease = options.get("lease")
        self.lease = None if lease is None else int(lease)
        self.topic = options.get("topic", "orders")
        self.broker = options.get("broker", "b")

    def pieces(self, start: int, end: int) -> list[Rows]:
        cuts = [start + (end - start) * part // self.parts for part in range(self.parts + 1)]
        return [
            Rows(queue, low, high)
            for queue in range(self.queues)
            for low, high in itertools.pairwise(cuts)
        ]

    def read(self, partition: Rows) -> Iterator[Any]:
        for start in range(partition.start, partition.end, self.batch_rows):
            end = min(start + self.batch_rows, partition.end)
            yield self.batch(partition.queue, np.arange(start, end, dtype=np.int64))

    def batch(self, queue: int, offsets: Any) -> Any:
        count = len(offsets)
        keys = offsets * 7 % self.keys * self.queues + queue
        columns = {
            "topic": pa.array([self.topic] * count),
            "broker": pa.array([self.broker] * count),
            "queue_id": pa.array([queue] * count, pa.int32()),
            "offset": pa.array(offsets),
            "sharding_key": pa.array([f"k{key}" for key in keys]),
            "plane": pa.array(offsets * 5 % self.planes),
            "body": pa.array([f"{queue}-{offset}".encode() for offset in offsets]),
            "born": pa.array(offsets * 1_000_000, pa.timestamp("us", tz="UTC")),
        }
        if self.lease is not None:
            columns["lease"] = pa.array([self.lease] * count, pa.int64())
        return pa.RecordBatch.from_pydict(columns)


class _Reader(_Reading, DataSourceReader):
    def partitions(self) -> list[Rows]:
        return self.pieces(0, self.rows)


class _StreamReader(_Reading, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"to": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"to": min(start["to"] + self.step, self.rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        return self.pieces(start["to"], end["to"])

    def commit(self, end: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass


class _UntoldStreamReader(_StreamReader):
    """For a Spark that tells no start: everything is one micro-batch."""

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"to": self.rows}


class MemorySource(DataSource):
    """Options: queues, rows (a queue), keys, planes, batch_rows, step (rows a batch), parts."""

    @classmethod
    def name(cls) -> str:
        return "omq_memory"

    def schema(self) -> str:
        return SCHEMA + (", lease bigint" if "lease" in self.options else "")

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        kind = _UntoldStreamReader if is_before(ADMISSION) else _StreamReader
        return kind(dict(self.options))
