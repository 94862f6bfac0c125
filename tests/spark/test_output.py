"""The output of a stage: what a function returned, as columns of its schema."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ordermq.errors import ConfigError
from ordermq.spark.stages.apply_with_state import _integers
from ordermq.spark.stages.output import OutputShape, RowShape
from ordermq.spark.stages.stage_invocation import frame_of

NOON = datetime(2026, 1, 1, 12)


def column(kind: DataType, values: Any) -> list[Any]:
    shape = OutputShape(StructType([StructField("made", kind)]), "Asia/Shanghai")
    (batch,) = shape.batches({"made": values})
    assert batch.schema == shape.schema
    found: list[Any] = batch.column(0).to_pylist()
    return found


WAYS = {
    "list": list,
    "objects": lambda values: pd.Series(values, dtype=object),
    "array": lambda values: np.array(values, dtype=object),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_value_is_changed_to_fit_a_whole_number(way: str) -> None:
    made = WAYS[way]
    assert column(LongType(), made([1, None, 2.0, Decimal(3)][:2])) == [1, None]
    assert column(LongType(), made([2.0, float("nan")])) == [2, None]
    assert column(LongType(), made([Decimal(3)])) == [3]
    for value in (1.5, np.float64(1.5), Decimal("1.5"), "5", True, 2**63, 2**64):
        with pytest.raises(ConfigError, match="column 'made' of the function's result does not"):
            column(LongType(), made([value]))
    with pytest.raises(ConfigError, match="does not fit the schema's int32"):
        column(IntegerType(), made([2**31]))


def test_no_value_in_a_list_is_changed_either() -> None:
    numbers = ArrayType(LongType())
    assert column(numbers, [[1, 2], [], None]) == [[1, 2], [], None]
    assert column(numbers, [[]]) == [[]]
    assert column(ArrayType(numbers), [[[1], []]]) == [[[1], []]]
    for kind, value in ((numbers, [1.5]), (numbers, ["5"]), (ArrayType(numbers), [[1.5]])):
        with pytest.raises(ConfigError, match="does not fit the schema's list"):
            column(kind, [value])


@pytest.mark.parametrize(
    "times",
    [
        [NOON],
        [pd.Timestamp(NOON)],
        pd.Series([NOON]),
        pd.Series([NOON], dtype=object),
        np.array([NOON], "M8[us]"),
        np.array([NOON], object),
        pa.array([NOON]),
    ],
)
def test_a_time_without_a_zone_is_in_the_sessions(times: Any) -> None:
    assert column(TimestampType(), times) == [datetime(2026, 1, 1, 4, tzinfo=UTC)]


def test_a_time_with_a_zone_stays_and_the_two_are_not_mixed() -> None:
    zoned = NOON.replace(tzinfo=UTC)
    assert column(TimestampType(), [zoned, None]) == [zoned, None]
    assert column(TimestampType(), pd.Series([zoned])) == [zoned]
    for mixed in ([NOON, zoned], [zoned, NOON]):
        with pytest.raises(ConfigError, match="some of its times have a zone, and others have no"):
            column(TimestampType(), mixed)


@pytest.mark.parametrize("told", [datetime(2026, 11, 1, 1, 30), datetime(2026, 3, 8, 2, 30)])
def test_a_local_time_that_is_no_moment_or_two_says_what_to_do(told: datetime) -> None:
    shape = OutputShape(StructType([StructField("made", TimestampType())]), "America/New_York")
    with pytest.raises(ConfigError, match="return times with a zone, or set spark"):
        shape.batches({"made": [told]})


def fitted(kind: DataType, value: Any) -> Any:
    shape = OutputShape(StructType([StructField("made", kind)]), "Asia/Shanghai")
    (found,) = RowShape(shape).fitted([value])
    return found


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (LongType(), 1, 1),
        (LongType(), np.int64(1), 1),
        (LongType(), 2.0, 2),
        (LongType(), None, None),
        (DoubleType(), 3, 3.0),
        (DoubleType(), np.float64(1.5), 1.5),
        (BooleanType(), True, True),
        (StringType(), "x", "x"),
        (StringType(), b"x", "x"),
        (BinaryType(), "x", b"x"),
        (DecimalType(5, 2), 1, Decimal("1.00")),
        (DateType(), date(2026, 1, 1), date(2026, 1, 1)),
        (TimestampType(), NOON, NOON),  # which Spark takes for a time of the session's zone, too
        (ArrayType(LongType()), [1], [1]),
    ],
)
def test_a_value_of_a_row_is_fitted_to_its_column(kind: DataType, value: Any, wanted: Any) -> None:
    found = fitted(kind, value)
    assert found == wanted
    assert isinstance(found, type(wanted)) or isinstance(value, np.generic)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), 1.5),
        (LongType(), "x"),
        (LongType(), True),
        (LongType(), 2**63),
        (IntegerType(), 2**31),
        (DoubleType(), "x"),
        (BooleanType(), 1),
        (StringType(), 1),
        (DecimalType(5, 2), Decimal("1.555")),
        (DateType(), "2026-01-01"),
        (TimestampType(), "2026-01-01"),
    ],
)
def test_a_value_of_a_row_that_does_not_fit_is_refused(kind: DataType, value: Any) -> None:
    with pytest.raises(ConfigError, match="column 'made' of the function's result does not fit"):
        fitted(kind, value)


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_an_integer_beside_a_missing_one_stays_as_it_is(large: int) -> None:
    def batch(*numbers: int | None) -> Any:
        kept = pa.array(numbers, pa.int64())
        return pa.RecordBatch.from_arrays([kept, kept], names=["made", "made"])  # by place

    found = frame_of(batch(large, None))
    assert found.iloc[0].tolist() == [large, large]
    assert found.isna().iloc[1].all()
    assert column(LongType(), found.iloc[:, 0]) == [large, None]
    assert frame_of(batch(2**53, None)).dtypes.tolist() == ["float64", "float64"]
    assert frame_of(batch(None)).dtypes.tolist() == ["float64", "float64"]
    assert frame_of(batch(large)).dtypes.tolist() == ["int64", "int64"]
    assert frame_of(batch()).dtypes.tolist() == ["int64", "int64"]
    made = _integers([large, None])
    assert (made[0], str(made.dtype)) == (large, "Int64")
    assert [str(_integers(each).dtype) for each in ([1, None], [1])] == ["float64", "int64"]
