"""Ordered stages in a local session: every plan, on rows made in memory."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from memory_source import MemorySource
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ordermq.errors import ConfigError
from ordermq.spark import DeadLetter, drop_repeats
from ordermq.spark.stages.apply_in_order import apply_in_order, check_speculation
from ordermq.spark.versions import BATCHES_OF_AVAILABLE_NOW, is_before

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests

OUT = "queue_id int, offset bigint, key string, call string, place bigint"


def frame(spark: SparkSession, **options: Any) -> DataFrame:
    spark.dataSource.register(MemorySource)
    return spark.read.format("omq_memory").options(**options).load()


def stream(spark: SparkSession, **options: Any) -> DataFrame:
    spark.dataSource.register(MemorySource)
    return spark.readStream.format("omq_memory").options(**options).load()


def noted(rows: Any, context: Any) -> Any:
    """Each row with the call it was in and its place there."""
    import uuid

    import pyarrow as pa

    count = rows.num_rows
    return pa.RecordBatch.from_pydict({
        "call": [uuid.uuid4().hex] * count,  # another order than the schema's, on purpose
        "offset": rows.column("offset"),
        "queue_id": rows.column("queue_id"),
        "key": [str(context.key)] * count,
        "place": pa.array(range(count), pa.int64()),
    })  # fmt: skip


def calls_of(rows: list[Any]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row.call].append(row)
    for call in found.values():
        assert [row.place for row in call] == list(range(len(call)))
    return found


def assert_each_queue_once(rows: list[Any], queues: int, count: int) -> None:
    for queue in range(queues):
        offsets = [row.offset for row in rows if row.queue_id == queue]
        assert offsets == list(range(count)), f"queue {queue}"


def assert_keys_in_order(rows: list[Any], count: int) -> None:
    """By call: one key each, its rows of a queue ascending; in all each row once."""
    seen = set()
    for call in calls_of(rows).values():
        assert len({row.key for row in call}) == 1
        places = [(row.queue_id, row.offset) for row in call]
        assert places == sorted(places)
        seen |= set(places)
    assert len(rows) == len(seen) == count


def run_stream(result: DataFrame, path: Path, name: str) -> list[Any]:
    query = (
        result.writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .trigger(processingTime="0 seconds")
        .option("checkpointLocation", str(path))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return result.sparkSession.table(name).collect()


def test_a_stage_without_a_key_gets_each_queue_in_offset_order(spark: SparkSession) -> None:
    rows = apply_in_order(frame(spark), noted, OUT, engine="arrow").collect()
    assert_each_queue_once(rows, 4, 100)
    for call in calls_of(rows).values():
        assert len({row.queue_id for row in call}) == 1


def test_the_sharding_key_needs_no_shuffle(spark: SparkSession) -> None:
    plan = apply_in_order(frame(spark), noted, OUT, key="sharding_key", engine="arrow")
    assert "Exchange" not in plan._jdf.queryExecution().executedPlan().toString()
    other = apply_in_order(frame(spark), noted, OUT, key="plane", engine="arrow")
    assert "Exchange" in other._jdf.queryExecution().executedPlan().toString()


def test_a_stage_by_sharding_key_can_be_called_once_per_key(spark: SparkSession) -> None:
    stage = apply_in_order(
        frame(spark), noted, OUT, key="sharding_key", per_key=True, engine="arrow"
    )
    rows = stage.collect()
    assert_keys_in_order(rows, 400)
    assert {row.key for row in rows} == {f"k{key}" for key in range(20)}


@pytest.mark.parametrize("parts", [1, 3])
def test_a_stage_by_another_key_gets_all_its_rows_in_one_call_in_order(
    spark: SparkSession, parts: int
) -> None:
    source = frame(spark, parts=parts)
    rows = apply_in_order(source, noted, OUT, key="plane", engine="arrow").collect()
    assert_keys_in_order(rows, 400)
    assert len(calls_of(rows)) == 7


@pytest.fixture
def spilling(spark: SparkSession) -> Iterator[None]:
    """Sorts spill every hundred rows; what a session reads of it, it reads at each task."""
    conf = spark._jsc.sc().conf()
    given = {
        "spark.shuffle.spill.numElementsForceSpillThreshold": "100",
        "spark.shuffle.sort.bypassMergeThreshold": "1",
    }
    for name, value in given.items():
        conf.set(name, value)
    yield
    for name in given:
        conf.remove(name)


@pytest.mark.usefixtures("spilling")
def test_a_spilled_sort_breaks_sparks_groups_but_not_the_ordered_stage(spark: SparkSession) -> None:
    def whole(table: Any) -> Any:
        return table.append_column("place", [list(range(table.num_rows))]).select(
            ["queue_id", "offset", "plane", "place"]
        )

    source = frame(spark, rows=1_200, batch_rows=100)
    schema = "queue_id int, offset bigint, plane bigint, place bigint"
    spoiled = source.groupBy("plane").applyInArrow(whole, schema).collect()
    in_groups = sorted(spoiled, key=lambda row: (row.plane, row.queue_id, row.place))
    falls = sum(
        (one.plane, one.queue_id) == (other.plane, other.queue_id) and one.offset > other.offset
        for one, other in itertools.pairwise(in_groups)
    )
    assert falls > 0, "nothing spilled: the test shows nothing"
    ours = apply_in_order(source, noted, OUT, key="plane", engine="arrow")
    assert_keys_in_order(ours.collect(), 4 * 1_200)


def test_rows_of_several_keys_can_share_a_call(spark: SparkSession) -> None:
    stage = apply_in_order(
        frame(spark), noted, OUT, key=["plane"], per_key=False, engine="arrow", n_partitions=1
    )
    rows = stage.collect()
    assert len(calls_of(rows)) == 1
    assert len(rows) == 400


@pytest.mark.usefixtures("zone_of_new_york")
def test_pandas_functions_get_timestamps_with_a_zone_and_may_return_naive_ones(
    spark: SparkSession,
) -> None:
    def shift(rows: pd.DataFrame) -> pd.DataFrame:
        assert str(rows["born"].dt.tz) == "America/New_York"
        return pd.DataFrame({
            "naive": rows["born"].dt.tz_localize(None),
            "zoned": rows["born"].dt.tz_convert("Asia/Tokyo"),
            "offset": rows["offset"],
        })  # fmt: skip

    schema = "offset bigint, naive timestamp, zoned timestamp"
    source = frame(spark)
    moved = apply_in_order(source, shift, schema).join(
        source.where("queue_id = 0").select("offset", "born"), "offset"
    )
    wrong = moved.where("naive <> born or zoned <> born").count()
    assert (wrong, moved.count()) == (0, 400)


@pytest.mark.parametrize("validate", ["true", "false"])
def test_output_columns_are_found_by_name_and_cast_with_and_without_validate_schema(
    spark: SparkSession, validate: str
) -> None:
    key = "spark.sql.execution.arrow.pyspark.validateSchema.enabled"
    spark.conf.set(key, validate)
    try:

        def swapped(rows: Any) -> Any:
            import pyarrow as pa

            return pa.table({
                "y": pa.array(["b"] * rows.num_rows, pa.large_string()),
                "x": rows.column("offset").cast(pa.int32()),
            })  # fmt: skip

        stage = apply_in_order(frame(spark), swapped, "x bigint, y string", engine="arrow")
        rows = stage.collect()
        assert {row.y for row in rows} == {"b"}
        assert sum(row.x for row in rows) == 4 * sum(range(100))
    finally:
        spark.conf.set(key, "false")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": 1}, "missing: ['y']"),
        ({"x": 1, "y": "a", "z": 1}, "not in the schema: ['z']"),
        ({"x": "text", "y": "a"}, "column 'x'"),
    ],
)
def test_wrong_output_columns_are_named(
    spark: SparkSession, columns: dict[str, Any], said: str
) -> None:
    def wrong(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({name: [value] * len(rows) for name, value in columns.items()})

    with pytest.raises(Exception, match="ConfigError") as caught:
        apply_in_order(frame(spark), wrong, "x bigint, y string").collect()
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_shuffle_before_a_stage_is_detected(spark: SparkSession) -> None:
    moved = frame(spark, rows=2_000).repartition(3)
    with pytest.raises(Exception, match="OrderingError") as caught:
        apply_in_order(moved, noted, OUT, engine="arrow").collect()
    for word in ("rows are out of order", "broker='b'", "queue_id=", "offset=", "key=..."):
        assert word in str(caught.value)
    assert "Traceback" not in str(caught.value), "Spark's files are not before what to do"


def test_a_source_united_with_itself_is_detected_after_a_shuffle(spark: SparkSession) -> None:
    twice = frame(spark).union(frame(spark))
    with pytest.raises(Exception, match="arrives twice") as caught:
        apply_in_order(twice, noted, OUT, key="plane", engine="arrow").collect()
    assert "Traceback" not in str(caught.value)


def test_filters_and_projections_before_a_stage_keep_the_order(spark: SparkSession) -> None:
    some = frame(spark).where("offset % 3 = 0").withColumn("twice", F.col("offset") * 2)
    assert len(apply_in_order(some, noted, OUT, engine="arrow").collect()) == 4 * 34


def test_a_function_may_return_nothing(spark: SparkSession) -> None:
    assert apply_in_order(frame(spark), lambda rows: None, "x bigint").collect() == []


def test_rows_per_call_limits_a_call_and_keeps_the_order(spark: SparkSession) -> None:
    rows = apply_in_order(frame(spark), noted, OUT, engine="arrow", rows_per_call=7).collect()
    assert_each_queue_once(rows, 4, 100)
    assert max(len(call) for call in calls_of(rows).values()) == 7


def test_the_context_has_the_origin_of_the_rows(spark: SparkSession) -> None:
    def told(rows: Any, context: Any) -> Any:
        import pyarrow as pa

        text = f"{context.queue} {context.partition} {context.attempt} {context.query_id}"
        return pa.table({"text": [text] * rows.num_rows})

    rows = apply_in_order(frame(spark), told, "text string", engine="arrow").collect()
    assert {row.text for row in rows} == {f"orders@b/{n} {n} 0 None" for n in range(4)}


def test_max_in_flight_runs_keys_concurrently_and_each_key_in_order(spark: SparkSession) -> None:
    def slow(rows: Any) -> Any:
        import threading
        import time

        import pyarrow as pa

        began = time.monotonic_ns()
        threading.Event().wait(0.002)  # as a request would
        count = rows.num_rows
        return pa.RecordBatch.from_pydict({
            "key": rows.column("sharding_key"),
            "offset": rows.column("offset"),
            "began": [began] * count,
            "ended": [time.monotonic_ns()] * count,
        })  # fmt: skip

    stage = apply_in_order(
        frame(spark, queues=1, keys=4),
        slow,
        "key string, offset bigint, began bigint, ended bigint",
        engine="arrow",
        max_in_flight=4,
    )
    rows = stage.collect()
    assert [row.offset for row in rows] == list(range(100))
    for key in {row.key for row in rows}:
        own = [row for row in rows if row.key == key]
        assert all(a.ended <= b.began for a, b in itertools.pairwise(own))
    overlaps = sum(
        one.key != other.key and one.began < other.ended and other.began < one.ended
        for one, other in itertools.pairwise(rows)
    )
    assert overlaps > 10


def test_a_stream_without_a_shuffle_keeps_each_queue_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = run_stream(apply_in_order(stream(spark), noted, OUT, engine="arrow"), tmp_path, "plain")
    assert_each_queue_once(rows, 4, 100)


def test_a_stream_by_another_key_is_sorted_inside_each_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = apply_in_order(stream(spark, parts=2), noted, OUT, key="plane", engine="arrow")
    rows = run_stream(stage, tmp_path, "by_plane")
    assert_keys_in_order(rows, 400)
    # Three micro-batches, where Spark makes more than one with availableNow.
    assert len(calls_of(rows)) == 7 * (1 if is_before(BATCHES_OF_AVAILABLE_NOW.since) else 3)


@pytest.mark.usefixtures("large_types")
@pytest.mark.parametrize("key", [None, "plane"])
def test_stages_return_rows_where_texts_have_large_types(
    spark: SparkSession, tmp_path: Path, key: str | None
) -> None:
    stage = apply_in_order(stream(spark, parts=2), noted, OUT, key=key, engine="arrow")
    assert len(run_stream(stage, tmp_path, "large")) == 400


@pytest.mark.parametrize("name", ["TOPIC", "Sharding_Key"])
def test_a_column_of_the_source_in_another_case_is_refused(spark: SparkSession, name: str) -> None:
    written = frame(spark).withColumnRenamed(name.lower(), name)
    with pytest.raises(ConfigError, match=f"column {name.lower()} as {name}: rename it"):
        apply_in_order(written, noted, OUT)
    with pytest.raises(ConfigError, match=f"column {name.lower()} as {name}: rename it"):
        drop_repeats(written)
    other = frame(spark).withColumnRenamed("body", "BODY")
    apply_in_order(other, noted, OUT)
    with pytest.raises(ConfigError, match="column body as BODY: rename it"):
        apply_in_order(other, noted, OUT, on_failure=DeadLetter("dead"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "nothing"}, "no column nothing"),
        ({"engine": "polars"}, "expected 'pandas' or 'arrow'"),
        ({"max_in_flight": 0}, "expected 1..1000"),
        ({"max_in_flight": 2, "key": "plane"}, "without shuffle"),
        ({"rows_per_call": 0}, "at least 1"),
    ],
)
def test_invalid_arguments_are_refused(
    spark: SparkSession, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        apply_in_order(frame(spark), noted, OUT, **options)


def test_an_asynchronous_function_is_refused(spark: SparkSession) -> None:
    async def asynchronous(rows: Any) -> Any:
        return rows

    with pytest.raises(ConfigError, match="is asynchronous: expected a plain function"):
        apply_in_order(frame(spark), asynchronous, OUT)


def test_a_dataframe_without_the_sources_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="no column broker, offset"):
        apply_in_order(frame(spark).drop("broker", "offset"), noted, OUT)


def test_a_barrier_stage_has_a_slot_for_each_of_its_tasks(spark: SparkSession) -> None:
    # With fewer slots than tasks Spark looks forty times, 15 s apart, before it gives up.
    stage = apply_in_order(frame(spark, queues=2), noted, OUT, engine="arrow", barrier=True)
    assert_each_queue_once(stage.collect(), 2, 100)
    assert "true" in str(stage._jdf.queryExecution().analyzed().isBarrier()).lower()


@pytest.mark.parametrize("written", ["true", " TRUE "])
def test_speculation_is_refused_unless_allowed(spark: SparkSession, written: str) -> None:
    class Conf:
        def get(self, name: str, default: str = "") -> str:
            return written if name == "spark.speculation" else spark.conf.get(name, default)

    class Session:
        conf = Conf()

    with pytest.raises(ConfigError, match="allow_speculation=True"):
        check_speculation(Session(), allowed=False)
    check_speculation(Session(), allowed=True)
    check_speculation(spark, allowed=False)
    # What a session was started with is seen through its conf, speculation too.
    assert spark.conf.get("spark.python.task.killTimeout") == "500ms"


def test_a_call_has_at_least_one_row(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="rows_per_call=0: expected at least 1"):
        apply_in_order(frame(spark), noted, OUT, rows_per_call=0)
