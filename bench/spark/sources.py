"""The source, compared with a minimal one that returns the same ready record batch each time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.end_to_end.bench_rocketmq import rocketmq
from bench.machine import broker_process
from bench.peers.java_classes import missing
from bench.spark.rows import BATCH_ROWS, BODY_BYTES, QUEUES, Part
from bench.spark.turns import in_turns, row, timing
from ordermq import Message, Producer, core
from ordermq.core import RecordWriter, encode_batch
from ordermq.model.arrow import COLUMNS, record_batch
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.schema import spark_ddl
from ordermq.spark.source.row_blocks import RowBlocks

# One of each kind: texts, numbers, a key, a body, a time.
SIX = ("topic", "queue_id", "offset", "sharding_key", "body", "store_timestamp")
ROCKETMQ = "5.3.3"
_QUEUE = MessageQueue("orders", "embedded", 0)


@cache
def stored(count: int) -> bytes:
    """Return the records of a pull of `count` messages, with the properties of a producer."""
    bodies = [b"x" * BODY_BYTES] * count
    texts = [
        f"TAGS\x01paid\x02__SHARDINGKEY\x01order-{n % 1000:08d}\x02"
        f"UNIQ_KEY\x01{n:032X}\x02WAIT\x01true"
        for n in range(count)
    ]
    writer = RecordWriter("orders", 0, bytes(8), bytes(8))
    batch = encode_batch(bodies, texts, [0] * count)
    block = writer.write_batch(batch, sys_flag=0, born_ms=1_700_000_000_000, stored_ms=1)
    return b"".join(record for _, _, record in block.rows(0, 0))


@cache
def made(columns: tuple[str, ...], count: int) -> pa.RecordBatch:
    return record_batch(MessageBatch(_QUEUE, stored(count)), columns)


def decoder(columns: tuple[str, ...]) -> Callable[[int], pa.RecordBatch]:
    """Return what makes a record batch of `count` messages, as the reader of a queue does."""
    given = {"name_servers": "127.0.0.1:9876", "topic": "orders", "columns": ",".join(columns)}
    rows, block = RowBlocks(SourceOptions.of(given), _QUEUE, None), core.AnswerBlock()

    def decoded(count: int) -> pa.RecordBatch:
        records = stored(count)
        answers = core.AnswerQueue(0, count, len(records), True)
        answers.put(records, (), True, _QUEUE.queue_id, 0, count)
        block.take(answers, count, len(records))
        (batch,) = rows.record_batches(block)
        block.clear()
        assert batch.num_rows == count
        return batch

    return decoded


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._queues = int(options.get("queues", QUEUES))
        self._rows = int(options["rows"]) // self._queues
        self._batch_rows = int(options.get("batch_rows", BATCH_ROWS))
        self._columns = tuple(options["columns"].split(","))
        self._decodes = options["way"] == "decode"

    def partitions(self) -> Sequence[InputPartition]:
        return [
            Part(queue, self._rows, 0, self._queues, self._batch_rows)
            for queue in range(self._queues)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        make = decoder(self._columns) if self._decodes else partial(made, self._columns)
        for start in range(0, partition.rows, partition.batch_rows):
            yield make(min(partition.batch_rows, partition.rows - start))


class Stored(DataSource):
    """A source of stored messages. Options: rows (total), columns, queues, batch_rows, way.

    Way `memory` returns one batch again and again, `decode` decodes each.
    """

    @classmethod
    def name(cls) -> str:
        return "bench_stored"

    def schema(self) -> str:
        return spark_ddl(tuple(self.options["columns"].split(",")))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options))


def fill(name_servers: str, rows: int) -> None:
    """Send messages like the stored ones to two queues of a broker."""
    events = (
        (Message("orders", b"x" * BODY_BYTES, tags="paid"), f"order-{n % 1000:08d}")
        for n in range(rows)
    )
    with Producer("bench", name_servers=name_servers, default_topic_queue_nums=QUEUES) as sender:
        for _ in sender.send_stream(events, max_in_flight=4_096):
            pass


def measure(spark: SparkSession, rows: int, rounds: int) -> dict[str, Any]:
    spark.dataSource.register(Stored)
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        embedded = broker_process(Path(folder), durability="os")
        brokers = {"the embedded broker": stack.enter_context(embedded)[1]}
        if not missing():
            brokers[f"RocketMQ {ROCKETMQ}"] = stack.enter_context(rocketmq(ROCKETMQ))
        for name_servers in brokers.values():
            fill(name_servers, rows)
        for title, columns in {"six columns": SIX, "all columns": COLUMNS}.items():
            options = {"rows": str(rows), "columns": ",".join(columns)}
            frames = {
                way: spark.read.format("bench_stored").options(way=way, **options).load()
                for way in ("memory", "decode")
            }
            given = {"topic": "orders", "columns": options["columns"]}
            for name, name_servers in brokers.items():
                reader = spark.read.format("ordermq").options(name_servers=name_servers, **given)
                frames[name] = reader.load()
            for frame in frames.values():
                assert frame.count() == rows
            works = {name: timing(frame) for name, frame in frames.items()}
            times = in_turns(works, rounds, f"source, {title}")
            baseline = {"baseline": "source that returns one ready record batch"}
            for way in frames.keys() - {"memory"}:
                name = "read from memory" if way == "decode" else f"read from {way}"
                found[f"{name}, {title}"] = baseline | row(times[way], times["memory"], rows)
    return found
