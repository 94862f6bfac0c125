"""A shuffle that a sink can follow: each target queue's rows in one task, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from ordermq.errors import ConfigError
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.queue_selector import selector_of
from ordermq.spark.options import SinkOptions
from ordermq.spark.row_order import PLACE_COLUMNS, check_columns
from ordermq.spark.sink.block_sender import sender_of

TARGET_COLUMN = "target_queue"


def by_target_queue(
    frame: DataFrame,
    options: Mapping[str, str],
    *,
    order_by: Sequence[str] = PLACE_COLUMNS,
    n_partitions: int | None = None,
) -> DataFrame:
    """Bring each target queue's rows into one task, in order, for a write with that order.

        ready = by_target_queue(scored, options)
        ready.write.format("ordermq").options(**options, queue_column="target_queue",
                                              order="queue").mode("append").save()

    In streaming a target queue's rows of a micro-batch are in memory together.

    Args:
        frame: what is to be written, with its key column and those of `order_by`.
        options: of the sink: name servers, topic, key_column, selector.
        order_by: the order within a target queue.
        n_partitions: of the shuffle; None leaves it to Spark.
    Returns: the frame with the INT column `target_queue` behind the others.
    Raises: ConfigError: no topic, no key column. RouteError: the topic is not known.
    """
    check_columns(frame, *(name for name in order_by if name not in PLACE_COLUMNS))
    columns: Mapping[str, Any] = dict.fromkeys(frame.columns)
    read = SinkOptions.of(options, columns)
    if not read.topic or not read.key_column:
        raise ConfigError("by_target_queue needs option topic, and a key column in the frame")
    sender = sender_of(read.name_servers, read.config, read.group, read.selector)
    queues = sender.queues(read.topic)
    number = F.arrow_udf(_number_of(queues, read.selector), IntegerType())
    key = F.col(read.key_column).cast("string")
    numbered = frame.withColumn(TARGET_COLUMN, number(key))
    if frame.isStreaming:
        target = StructType(numbered.schema.fields)
        return numbered.groupBy(TARGET_COLUMN).applyInArrow(_sorted(list(order_by)), target)
    moved = numbered.repartition(*([n_partitions] if n_partitions else []), TARGET_COLUMN)
    return moved.sortWithinPartitions(TARGET_COLUMN, *order_by)


def _number_of(queues: Sequence[MessageQueue], selector: str) -> Callable[[Any], Any]:
    numbers: dict[str, int] = {}

    def number(keys: Any) -> Any:
        select, probe = selector_of(selector), Message("probe", b"-")
        coded = keys.dictionary_encode()
        if coded.null_count:
            raise ConfigError("by_target_queue: a row has no key, so no target queue")
        names = coded.dictionary.to_pylist()
        for name in names:
            if name not in numbers:
                numbers[name] = list(queues).index(select(queues, probe, name))
        found = np.array([numbers[name] for name in names], dtype=np.int32)
        return pa.array(found[coded.indices.to_numpy()])

    number.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return number


def _sorted(order_by: list[str]) -> Callable[[Any], Any]:
    def ordered(table: Any) -> Any:
        return table.sort_by([(name, "ascending") for name in order_by])

    return ordered
