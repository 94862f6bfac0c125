"""A shuffle for the sink: the rows of each target queue in one task, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import IntegerType, StructType

from ordermq.errors import ConfigError
from ordermq.producer.queue_selector import index_of
from ordermq.spark.arrow_schemas import group_schema
from ordermq.spark.options import SinkOptions
from ordermq.spark.packages import needed_here
from ordermq.spark.row_order import check_case
from ordermq.spark.schema import ORIGIN_COLUMNS
from ordermq.spark.sink.block_sender import block_sender
from ordermq.spark.sink.row_encoder import key_texts
from ordermq.spark.versions import ARROW_UDF, is_before

TARGET_COLUMN = "target_queue"


def by_target_queue(
    frame: DataFrame,
    options: Mapping[str, str],
    *,
    order_by: Sequence[str] = ORIGIN_COLUMNS,
    n_partitions: int | None = None,
) -> DataFrame:
    """Bring the rows of each target queue into one task, in order, for a write with order='queue'.

        ready = by_target_queue(scored, options)
        ready.write.format("ordermq").options(**options, queue_column="target_queue",
                                              order="queue").mode("append").save()

    In streaming, all rows of a target queue and micro-batch are in memory together.

    Args:
        frame: the rows to write, with the key column and the columns of `order_by`, which are
            the origin of rows unless others are given.
        options: of the sink: name servers, topic, key_column, selector.
        order_by: the order within a target queue.
        n_partitions: number of partitions of the shuffle; None leaves it to Spark.
    Returns: the frame with the additional INT column `target_queue`.
    Raises: ConfigError: topic or key column is missing. RouteError: the topic does not exist.
    """
    check_case(frame, order_by)
    if missing := [name for name in order_by if name not in frame.columns]:
        raise ConfigError(
            f"the DataFrame has no column {', '.join(missing)}: keep it until after "
            "by_target_queue, or give order_by=... the columns that tell the order. The rows of a "
            f"target queue are sorted by them; the DataFrame has {', '.join(frame.columns)}"
        )
    columns: Mapping[str, Any] = dict.fromkeys(frame.columns)
    sink = SinkOptions.of(options, columns)
    if not sink.topic or not sink.key_column:
        raise ConfigError(
            "by_target_queue needs a topic and a key: give option topic, and option key_column "
            "with a column of the DataFrame"
        )
    sender = block_sender(sink.name_servers, sink.config, sink.group, sink.selector)
    # On the driver, once: every task must number the same queues in the same way.
    queues = sender.queues(sink.topic)
    index = _index_function(sink.key_column, len(queues), sink.selector)
    kind = IntegerType()
    if is_before(ARROW_UDF.since):
        key_kind = to_arrow_type(frame.select(sink.key_column).schema[0].dataType)
        queue_index = F.pandas_udf(_on_series(index, key_kind), kind)
    else:
        queue_index = F.arrow_udf(index, kind)
    # Not cast by Spark: the sink makes the text of a key by Arrow, and the two differ.
    indexed = frame.withColumn(TARGET_COLUMN, queue_index(F.col(sink.key_column)))
    if frame.isStreaming:
        # Spark refuses to sort a streaming DataFrame, so the sort is inside the group's function.
        target = StructType(indexed.schema.fields)
        sort = _sort_function(list(order_by), group_schema(frame.sparkSession, target))
        return indexed.groupBy(TARGET_COLUMN).applyInArrow(sort, target)
    # The sort behind the repartition is what gives the order; Spark merges shuffled blocks in the
    # order of their arrival.
    moved = indexed.repartition(*([n_partitions] if n_partitions else []), TARGET_COLUMN)
    return moved.sortWithinPartitions(TARGET_COLUMN, *order_by)


def _index_function(name: str, count: int, selector: str) -> Callable[[Any], Any]:
    chosen = index_of(selector)
    # Kept over the record batches of a task.
    known: dict[str, int] = {}

    def queue_index(keys: Any) -> Any:
        # Each distinct key is hashed once: topics have far fewer keys than rows.
        coded = key_texts(name, keys).dictionary_encode()
        if coded.null_count:
            raise ConfigError(
                "by_target_queue: a row has no key, so no target queue. Fill the key column first"
            )
        texts = coded.dictionary.to_pylist()
        for text in texts:
            if text not in known:
                known[text] = chosen(text, count)
        found = np.array([known[text] for text in texts], dtype=np.int32)
        return pa.array(found[coded.indices.to_numpy()])

    # Spark reads the kind of UDF from the annotations, which are strings in this module.
    queue_index.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return queue_index


def _on_series(index: Callable[[Any], Any], kind: Any) -> Callable[[Any], Any]:
    with needed_here():  # only for a Spark without Arrow UDFs
        import pandas as pd  # type: ignore[import-untyped]

    def queue_index(keys: Any) -> Any:
        return pd.Series(index(pa.Array.from_pandas(keys, type=kind)).to_numpy())

    queue_index.__annotations__ = {"keys": pd.Series, "return": pd.Series}
    return queue_index


def _sort_function(order_by: list[str], schema: Any) -> Callable[[Any], Any]:
    def sorted_rows(table: Any) -> Any:
        return table.sort_by([(name, "ascending") for name in order_by]).cast(schema)

    return sorted_rows
