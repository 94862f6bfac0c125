"""Stages without shuffle, compared with the same work in Spark's own ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ordermq.spark import apply_in_order, ordered_udf

Work = Callable[[DataFrame], DataFrame]


def walked(rows: Any) -> int:
    """Look at offset, key and body of each message in plain Python."""
    found = 0
    columns = (rows.column(name).to_pylist() for name in ("offset", "sharding_key", "body"))
    for offset, key, body in zip(*columns, strict=True):
        if offset >= 0 and key and body:
            found += 1
    return found


def baseline_identity(frame: DataFrame) -> DataFrame:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    return frame.mapInArrow(stage, frame.schema)


def ordered_identity(frame: DataFrame) -> DataFrame:
    return apply_in_order(frame, lambda rows: rows, frame.schema, engine="arrow")


def baseline_loop(frame: DataFrame) -> DataFrame:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            assert walked(batch) == batch.num_rows
            yield batch

    return frame.mapInArrow(stage, frame.schema)


def ordered_loop(frame: DataFrame) -> DataFrame:
    def function(rows: Any) -> Any:
        assert walked(rows) == rows.num_rows
        return rows

    return apply_in_order(frame, function, frame.schema, engine="arrow")


def baseline_pandas(frame: DataFrame) -> DataFrame:
    def stage(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return frames

    return frame.mapInPandas(stage, frame.schema)


def ordered_pandas(frame: DataFrame) -> DataFrame:
    return apply_in_order(frame, lambda rows: rows, frame.schema, engine="pandas")


def baseline_arrow_udf(frame: DataFrame) -> DataFrame:
    def size(bodies: pa.Array) -> pa.Array:
        return pc.binary_length(bodies)

    size.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    return frame.select(F.arrow_udf(size, "int")("body"))


def ordered_arrow_udf(frame: DataFrame) -> DataFrame:
    @ordered_udf("int", engine="arrow")
    def size(bodies: Any) -> Any:
        return pc.binary_length(bodies)

    return frame.select(size("body"))


# Name: the baseline, then ordermq.
CASES: dict[str, tuple[Work, Work]] = {
    "batch function": (baseline_identity, ordered_identity),
    "Python loop over each message": (baseline_loop, ordered_loop),
    "pandas function": (baseline_pandas, ordered_pandas),
    "column function": (baseline_arrow_udf, ordered_arrow_udf),
}
BASELINES = {
    "batch function": "mapInArrow, identity",
    "Python loop over each message": "mapInArrow, same loop",
    "pandas function": "mapInPandas, identity",
    "column function": "arrow_udf, no order check",
}
