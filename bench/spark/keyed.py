"""Stages by key: ours beside shuffle and sort by hand, and beside Spark's groups."""

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
    # Named otherwise, for the stage takes the sharding key for what needs no shuffle.
    return frame.withColumnRenamed(KEY, "customer")


def sorted_by_hand(frame: DataFrame) -> DataFrame:
    """`repartition`, `sortWithinPartitions`, and a call for each run of a key in a batch."""

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


def ours(frame: DataFrame) -> DataFrame:
    def called(rows: Any) -> Any:
        return rows.select(["offset"])

    return apply_in_order(_shuffled(frame), called, OUT, key="customer", engine="arrow")


def grouped_arrow(frame: DataFrame) -> DataFrame:
    """The same shuffle and sort, then Spark's own groups."""

    def called(table: Any) -> Any:
        return table.select(["offset"])

    moved = _shuffled(frame).repartition("customer").sortWithinPartitions("customer", *ORDER)
    return moved.groupBy("customer").applyInArrow(called, OUT)


def grouped_pandas(frame: DataFrame) -> DataFrame:
    """Spark's usual way; not in order."""

    def called(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[["offset"]]

    return _shuffled(frame).groupBy("customer").applyInPandas(called, OUT)


WAYS = {
    "ours": ours,
    "sort by hand, mapInArrow": sorted_by_hand,
    "sort, groupBy.applyInArrow": grouped_arrow,
    "groupBy.applyInPandas, no order": grouped_pandas,
}
