"""Stages with state, on transformWithState and RocksDB."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from test_apply_in_order import frame, run_stream, stream

from ordermq.errors import ConfigError
from ordermq.spark.stages.apply_with_state import apply_with_state
from ordermq.spark.versions import STATE_BY_ROW
from tests.spark.conftest import needs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUT = "key string, offset bigint, number bigint, before bigint"
STATE = "seen bigint, last bigint"


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(STORE)
    spark.conf.set(STORE, ROCKSDB)
    yield
    spark.conf.set(STORE, before)


def numbered(rows: pd.DataFrame, state: Any, context: Any) -> Any:
    """Each row's number within its key over all batches, and the offset before it."""
    state = state or {"seen": 0, "last": -1}
    found = pd.DataFrame({
        "key": rows["sharding_key"],
        "number": range(state["seen"], state["seen"] + len(rows)),
        "offset": rows["offset"],
        "before": [state["last"], *rows["offset"].iloc[:-1]],
    })  # fmt: skip
    assert context.key == rows["sharding_key"].iloc[0]
    return found, {"seen": state["seen"] + len(rows), "last": int(rows["offset"].iloc[-1])}


def numbered_rows(rows: list[Row], state: Any, context: Any) -> Any:
    """Do the same without pandas."""
    seen, last = (state["seen"], state["last"]) if state else (0, -1)
    found = []
    for row in rows:
        assert context.key == row.sharding_key
        found.append(
            {"number": seen, "key": row.sharding_key, "offset": row.offset, "before": last}
        )
        seen, last = seen + 1, row.offset
    return found, {"seen": seen, "last": last}


FUNCTIONS = {"pandas": numbered, "rows": numbered_rows}
ENGINES = ["pandas", pytest.param("rows", marks=needs(STATE_BY_ROW))]


def assert_numbered(rows: list[Any], count: int) -> None:
    keys = {row.key for row in rows}
    for key in keys:
        own = sorted((row for row in rows if row.key == key), key=lambda row: row.number)
        assert [row.number for row in own] == list(range(len(own)))
        assert [row.before for row in own] == [-1, *(row.offset for row in own[:-1])]
        assert all(row.before < row.offset for row in own)
    assert len(rows) == count


@pytest.mark.parametrize("engine", ENGINES)
def test_state_is_kept_from_one_micro_batch_to_the_next(
    spark: SparkSession, tmp_path: Path, engine: Any
) -> None:
    source = stream(spark, step=60)
    stage = apply_with_state(source, FUNCTIONS[engine], OUT, STATE, engine=engine)
    assert_numbered(run_stream(stage, tmp_path, "with_state"), 400)


@pytest.mark.parametrize("form", [None, "pandas"])
def test_a_restarted_query_continues_with_its_state(
    spark: SparkSession, tmp_path: Path, form: Any
) -> None:
    for rows in (40, 80):
        source = stream(spark, rows=rows, queues=2)
        stage = apply_with_state(source, numbered, OUT, STATE, form=form)
        query = (
            stage.writeStream.format("json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "rows"))
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert_numbered(spark.read.schema(OUT).json(str(tmp_path / "rows")).collect(), 160)


@pytest.mark.parametrize("engine", ENGINES)
def test_repeated_rows_are_dropped_by_the_cursor(
    spark: SparkSession, tmp_path: Path, engine: Any
) -> None:
    twice = stream(spark, step=60).union(stream(spark, step=60))
    stage = apply_with_state(twice, FUNCTIONS[engine], OUT, STATE, drop_repeats=True, engine=engine)
    assert_numbered(run_stream(stage, tmp_path, "twice"), 400)


def test_repeated_rows_are_refused_without_the_cursor(spark: SparkSession) -> None:
    twice = frame(spark).union(frame(spark))
    with pytest.raises(Exception, match="arrives twice: pass drop_repeats=True") as caught:
        apply_with_state(twice, numbered, OUT, STATE).collect()
    assert "Traceback" not in str(caught.value)


@needs(STATE_BY_ROW)
def test_rows_have_the_types_of_spark_s_form_for_pandas(spark: SparkSession) -> None:
    forms: tuple[Any, ...] = ("pandas", "rows")

    def shown(rows: pd.DataFrame, state: Any) -> Any:
        first = rows.sort_values("offset").iloc[0]
        texts = [f"{name} {kind} {first[name]!r}" for name, kind in rows.dtypes.items()]
        return {"key": [first["sharding_key"]], "text": ["; ".join(texts)]}, None

    source = frame(spark, queues=1, rows=20).selectExpr(
        "*",
        "map('a', 1) AS counts",
        "array(1, 2) AS numbers",
        "named_struct('a', 1, 'b', 'x') AS pair",
        "offset / 2 AS half",
        "timestamp_micros(1700000000123456) AS at",
        "'x' AS text",
    )
    found = []
    for form in forms:
        stage = apply_with_state(source, shown, "key string, text string", "seen bigint", form=form)
        found.append(sorted((row.key, row.text) for row in stage.collect()))
    assert found[0] == found[1]


def test_a_batch_query_has_state_too(spark: SparkSession) -> None:
    assert_numbered(apply_with_state(frame(spark), numbered, OUT, STATE).collect(), 400)


def test_computed_columns_reach_the_function_by_their_names(spark: SparkSession) -> None:
    def seen(rows: pd.DataFrame, state: Any) -> Any:
        return rows[["offset", "twice"]], {"seen": len(rows)}

    source = frame(spark, queues=1).selectExpr("*", "offset * 2 AS twice", "plane AS flight")
    stage = apply_with_state(
        source, seen, "offset bigint, twice bigint", "seen bigint", key="flight"
    )
    assert sorted((row.offset, row.twice) for row in stage.collect()) == [
        (offset, 2 * offset) for offset in range(100)
    ]


def test_a_forgotten_state_begins_again_with_none(spark: SparkSession, tmp_path: Path) -> None:
    def forgetful(rows: pd.DataFrame, state: Any) -> Any:
        known = 0 if state is None else state["seen"]
        return pd.DataFrame({"known": [known]}), None if known else {"seen": 1}

    source = stream(spark, queues=1, keys=1, rows=120)
    stage = apply_with_state(source, forgetful, "known bigint", "seen bigint")
    assert [row.known for row in run_stream(stage, tmp_path, "forgetful")] == [0, 1, 0]


def test_a_state_with_other_columns_is_refused(spark: SparkSession) -> None:
    def wrong(rows: pd.DataFrame, state: Any) -> Any:
        return None, {"other": 1}

    with pytest.raises(Exception, match=r"returned a state of \['other'\]"):
        apply_with_state(frame(spark), wrong, "x bigint", "seen bigint").collect()


@pytest.mark.parametrize("value", [1.5, "one"])
def test_a_state_that_does_not_fit_is_refused_and_not_stored_as_missing(
    spark: SparkSession, value: Any
) -> None:
    def wrong(rows: pd.DataFrame, state: Any) -> Any:
        return None, {"seen": value}

    with pytest.raises(Exception, match="does not fit state_schema: column 'seen'"):
        apply_with_state(frame(spark), wrong, "x bigint", "seen bigint").collect()


RESULTS: dict[str, tuple[Any, str]] = {
    "an iterator": (None, "returned a list_iterator: return a list of rows, or None"),
    "one row": (Row(x=1), "returned a Row: return a list of rows, or None"),
    "a value": ([1], r"returned the row 1: return dicts, Rows, or tuples of \['x'\]"),
    "too many values": ([(1, 2)], r"returned the row \(1, 2\): return dicts, Rows, or tuples"),
    "another name": ([{"y": 1}], r"returned a row of \['y'\]: return \['x'\]"),
    "a row of another name": ([Row(y=1)], r"returned a row of \['y'\]: return \['x'\]"),
    "another type": ([("one",)], "column 'x' of the function's result does not fit the schema's"),
    "a fraction": ([(1.5,)], "column 'x' of the function's result does not fit the schema's int64"),
}


@needs(STATE_BY_ROW)
@pytest.mark.parametrize("result", RESULTS)
def test_a_result_that_is_no_list_of_the_schema_s_rows_is_refused(
    spark: SparkSession, result: str
) -> None:
    wanted, text = RESULTS[result]

    def function(rows: list[Row], state: Any) -> Any:
        return iter(rows) if wanted is None else wanted, state

    stage = apply_with_state(frame(spark), function, "x bigint", "n bigint", engine="rows")
    with pytest.raises(Exception, match=text):
        stage.collect()


@needs(STATE_BY_ROW)
def test_rows_of_every_kind_and_order_reach_the_result(spark: SparkSession) -> None:
    def reversed_rows(rows: list[Row], state: Any) -> Any:
        # The user's order: the newest row first, and rows without a number at the end.
        kinds = (lambda row: row, lambda row: row.asDict(), tuple, list)
        rows = [Row(offset=row.offset, twice=row.twice) for row in rows]
        return [kinds[at % 4](row) for at, row in enumerate(rows)], {"n": len(rows)}

    source = frame(spark, queues=1, keys=1).selectExpr(
        "*", "IF(offset < 3, NULL, -offset) AS back", "offset * 2 AS twice"
    )
    stage = apply_with_state(
        source,
        reversed_rows,
        "offset bigint, twice bigint",
        "n bigint",
        order_by=["back", "offset"],
        engine="rows",
    )
    found = [tuple(row) for row in stage.collect()]
    assert found == [(n, 2 * n) for n in (*range(99, 2, -1), 0, 1, 2)]


@needs(STATE_BY_ROW)
def test_rows_within_a_result_row_reach_the_result(spark: SparkSession) -> None:
    def nested(rows: list[Row], state: Any) -> Any:
        last = Row(a=rows[-1].offset, b="x")
        return [Row(pair=last, pairs=[last, last])], {"n": len(rows)}

    pair = "struct<a: bigint, b: string>"
    source = frame(spark, queues=1, keys=1)
    stage = apply_with_state(
        source, nested, f"pair {pair}, pairs array<{pair}>", "n bigint", engine="rows"
    )
    (found,) = stage.collect()
    assert found == Row(pair=Row(a=99, b="x"), pairs=[Row(a=99, b="x")] * 2)


def test_another_engine_is_refused(spark: SparkSession) -> None:
    source = frame(spark)
    with pytest.raises(ConfigError, match="engine='arrow': expected 'rows' or 'pandas'"):
        apply_with_state(source, numbered, OUT, STATE, engine="arrow")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leave out form"):
        apply_with_state(source, numbered, OUT, STATE, engine="rows", form="pandas")


def test_another_form_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="form='arrow': expected 'rows' or 'pandas'"):
        apply_with_state(frame(spark), numbered, OUT, STATE, form="arrow")  # type: ignore[arg-type]


def test_without_protobuf_state_is_refused_with_what_to_install(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.29.1")
    with pytest.raises(ConfigError, match=r"ordermq\[spark-state\]"):
        apply_with_state(frame(spark), numbered, OUT, STATE)


def test_another_state_store_is_refused_with_what_to_set(spark: SparkSession) -> None:
    spark.conf.unset(STORE)
    with pytest.raises(ConfigError, match="set it to"):
        apply_with_state(frame(spark), numbered, OUT, STATE)
