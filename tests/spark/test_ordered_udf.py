"""Column functions whose calls get rows in offset order."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from test_apply_in_order import frame

from ordermq.spark.stages.ordered_udf import ordered_udf

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests


def test_an_ordered_udf_gets_each_queues_rows_in_order(spark: SparkSession) -> None:
    @ordered_udf("bigint")
    def step(offset: pd.Series) -> pd.Series:
        assert offset.is_monotonic_increasing
        return offset.diff().fillna(0)

    rows = frame(spark, batch_rows=1_000).select("queue_id", "offset", step("offset")).collect()
    assert len(rows) == 400
    assert {row.step for row in rows if row.offset > 0} == {1}


def test_arrow_and_pandas_functions_of_several_columns_can_be_combined(
    spark: SparkSession,
) -> None:
    @ordered_udf("string", engine="arrow")
    def joined(key: Any, offset: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.binary_join_element_wise(key, pc.cast(offset, pa.string()), "-")

    @ordered_udf("int")
    def size(body: pd.Series) -> pd.Series:
        return body.str.len()

    rows = (
        frame(spark)
        .select(
            "sharding_key", "offset", "body", joined("sharding_key", F.col("offset")), size("body")
        )
        .collect()
    )
    assert len(rows) == 400
    assert all(row.joined == f"{row.sharding_key}-{row.offset}" for row in rows)
    assert all(row.size == len(row.body) for row in rows)


def test_an_ordered_udf_detects_a_shuffle(spark: SparkSession) -> None:
    @ordered_udf("bigint")
    def same(offset: pd.Series) -> pd.Series:
        return offset

    moved = frame(spark, rows=2_000).repartition(3)
    with pytest.raises(Exception, match="rows are out of order") as caught:
        moved.select(same("offset")).collect()
    assert "apply_in_order(key=...)" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(pd.Series([1]), "returned 1 for 100 rows"), (7, "returned int for 100 rows")],
)
def test_a_result_of_another_length_is_refused(spark: SparkSession, answer: Any, said: str) -> None:
    wrong = ordered_udf("bigint")(lambda offset: answer)
    with pytest.raises(Exception, match=said):
        frame(spark).select(wrong("offset")).collect()


def test_a_failing_function_names_queue_and_offsets(spark: SparkSession) -> None:
    @ordered_udf("bigint")
    def failing(offset: pd.Series) -> pd.Series:
        if 45 in set(offset):
            raise ValueError("no forty-fives")
        return offset

    with pytest.raises(Exception, match="FunctionFailed") as caught:
        frame(spark).select(failing("offset")).collect()
    assert "offsets 0 to 99: ValueError: no forty-fives" in str(caught.value)
