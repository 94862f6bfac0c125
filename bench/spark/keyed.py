"""Stages by key, compared with an explicit shuffle and sort, and with Spark's groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from ordermq.spark import apply_in_order

KEY = "sharding_key"
OUT = "offset bigint"
ORDER = ("topic", "broker", "queue_id", "offset")


def _shuffled(frame: DataFrame) -> DataFrame:
    # Renamed, because the stage does not shuffle by a column named sharding_key.
    return frame.withColumnRenamed(KEY, "customer")


def explicit_sort(frame: DataFrame) -> DataFrame:
    """Shuffle and sort explicitly, and call once per run of a key in a batch."""

    def called(rows: Any) -> Any:
        return rows.select(["offset"])

    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            ends = pc.run_end_encode(batch.column("customer")).run_ends.to_pylist()
            found, first = [], 0
            for end in ends:
                found.append(called(batch.slice(first, end - first)))
                first = end
            yield from pa.Table.from_batches(found).combine_chunks().to_batches()

    moved = _shuffled(frame).repartition("customer").sortWithinPartitions("customer", *ORDER)
    return moved.mapInArrow(stage, OUT)


def ordered_stage(frame: DataFrame) -> DataFrame:
    def called(rows: Any) -> Any:
        return rows.select(["offset"])

    return apply_in_order(_shuffled(frame), called, OUT, key="customer", engine="arrow")


def grouped_arrow(frame: DataFrame) -> DataFrame:
    """Shuffle and sort likewise, then use Spark's own groups."""

    def called(table: Any) -> Any:
        return table.select(["offset"])

    moved = _shuffled(frame).repartition("customer").sortWithinPartitions("customer", *ORDER)
    return moved.groupBy("customer").applyInArrow(called, OUT)


def grouped_pandas(frame: DataFrame) -> DataFrame:
    """Group as usual in Spark, without order."""

    def called(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[["offset"]]

    return _shuffled(frame).groupBy("customer").applyInPandas(called, OUT)


WAYS = {
    "ordermq": ordered_stage,
    "explicit sort, mapInArrow": explicit_sort,
    "sort, groupBy.applyInArrow": grouped_arrow,
    "groupBy.applyInPandas, no order": grouped_pandas,
}
