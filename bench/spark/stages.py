"""Stages that do not shuffle: what ours cost beside the same work in Spark's own ways."""

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
    """A listener a message in plain Python: looks at offset, key and body of each."""
    found = 0
    columns = (rows.column(name).to_pylist() for name in ("offset", "sharding_key", "body"))
    for offset, key, body in zip(*columns, strict=True):
        if offset >= 0 and key and body:
            found += 1
    return found


def floor_identity(frame: DataFrame) -> DataFrame:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    return frame.mapInArrow(stage, frame.schema)


def our_identity(frame: DataFrame) -> DataFrame:
    return apply_in_order(frame, lambda rows: rows, frame.schema, engine="arrow")


def floor_loop(frame: DataFrame) -> DataFrame:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            assert walked(batch) == batch.num_rows
            yield batch

    return frame.mapInArrow(stage, frame.schema)


def our_loop(frame: DataFrame) -> DataFrame:
    def function(rows: Any) -> Any:
        assert walked(rows) == rows.num_rows
        return rows

    return apply_in_order(frame, function, frame.schema, engine="arrow")


def floor_pandas(frame: DataFrame) -> DataFrame:
    def stage(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return frames

    return frame.mapInPandas(stage, frame.schema)


def our_pandas(frame: DataFrame) -> DataFrame:
    return apply_in_order(frame, lambda rows: rows, frame.schema, engine="pandas")


def floor_arrow_udf(frame: DataFrame) -> DataFrame:
    def size(bodies: pa.Array) -> pa.Array:
        return pc.binary_length(bodies)

    size.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    return frame.select(F.arrow_udf(size, "int")("body"))


def our_arrow_udf(frame: DataFrame) -> DataFrame:
    @ordered_udf("int", engine="arrow")
    def size(bodies: Any) -> Any:
        return pc.binary_length(bodies)

    return frame.select(size("body"))


# Name: the floor, and ours.
CASES: dict[str, tuple[Work, Work]] = {
    "batch function": (floor_identity, our_identity),
    "Python loop over each message": (floor_loop, our_loop),
    "pandas function": (floor_pandas, our_pandas),
    "column function": (floor_arrow_udf, our_arrow_udf),
}
FLOORS = {
    "batch function": "mapInArrow, identity",
    "Python loop over each message": "mapInArrow and the same loop",
    "pandas function": "mapInPandas, identity",
    "column function": "arrow_udf, which knows no order",
}
