"""Column functions whose calls get rows in offset order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import eventually
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.util import PythonEvalType
from test_apply_in_order import frame
from test_failure_policy import Locks

from ordermq import Message
from ordermq.broker import EmbeddedBroker
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark import apply_in_order, ordered_udf
from ordermq.spark.session import lease_client_id
from ordermq.spark.stages.stage_invocation import takes_context
from ordermq.spark.versions import ARROW_UDF
from tests.spark.conftest import needs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests


def test_an_ordered_udf_gets_each_queues_rows_in_order(spark: SparkSession) -> None:
    @ordered_udf("bigint")
    def step(offset: pd.Series) -> pd.Series:
        assert offset.is_monotonic_increasing
        return offset.diff().fillna(0)

    rows = frame(spark, batch_rows=1_000).select("queue_id", "offset", step("offset")).collect()
    assert len(rows) == 400
    assert {row.step for row in rows if row.offset > 0} == {1}


@needs(ARROW_UDF)
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
    assert "Traceback" not in str(caught.value)


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
    told = "offsets 0 to 99, on one of them at least: ValueError: no forty-fives"
    assert told in str(caught.value)


def plan_of(made: DataFrame) -> str:
    return str(made._jdf.queryExecution().executedPlan().toString())


def interleaved(spark: SparkSession, **options: Any) -> DataFrame:
    """All queues in one task, so that calls must be cut at each change of the queue."""
    return frame(spark, batch_rows=40, **options).coalesce(1)


@needs(ARROW_UDF)
def test_pandas_functions_run_in_sparks_pandas_udf_and_arrow_functions_in_its_arrow_udf(
    spark: SparkSession,
) -> None:
    for engine, kind in (
        ("pandas", PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF),
        ("arrow", PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF),
    ):
        same = ordered_udf("bigint", engine=engine)(lambda offset: offset)
        plan = plan_of(frame(spark).select(same("offset")))
        assert "ArrowEvalPython [<lambda>" in plan
        assert f"], {kind}" in plan, plan


def test_an_iterator_function_is_called_once_per_task_and_gets_queue_by_queue_in_order(
    spark: SparkSession,
) -> None:
    @ordered_udf("string")
    def seen(offsets: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import uuid

        call = uuid.uuid4().hex
        for part, offset in enumerate(offsets):
            assert list(offset.diff().dropna().unique()) == [1]
            assert list(offset.index) == list(range(len(offset)))
            yield pd.Series([f"{call} {part}"] * len(offset))

    rows = interleaved(spark).select("queue_id", "offset", seen("offset")).collect()
    assert [(row.queue_id, row.offset) for row in rows] == [
        (queue, offset) for queue in range(4) for offset in range(100)
    ]
    assert len({row.seen.split()[0] for row in rows}) == 1
    queues_of_part: dict[str, set[int]] = {}
    for row in rows:
        queues_of_part.setdefault(row.seen, set()).add(row.queue_id)
    assert len(queues_of_part) >= 4
    assert all(len(queues) == 1 for queues in queues_of_part.values())


def test_an_iterator_function_gets_tuples_of_several_columns(spark: SparkSession) -> None:
    @ordered_udf("string")
    def joined(columns: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for key, offset in columns:
            yield key + "-" + offset.astype(str)

    rows = interleaved(spark).select("sharding_key", "offset", joined("sharding_key", "offset"))
    assert all(row.joined == f"{row.sharding_key}-{row.offset}" for row in rows.collect())


@needs(ARROW_UDF)
def test_decorated_functions_keep_their_type_and_form(spark: SparkSession) -> None:
    @ordered_udf
    @F.pandas_udf("double")
    def half(offset: pd.Series) -> pd.Series:
        return offset / 2

    @F.pandas_udf("int")
    def sizes(bodies: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for body in bodies:
            yield body.str.len()

    # Without annotations, PySpark would not take these of a file that postpones them.
    def plus_one(offset: Any) -> Any:
        import pyarrow.compute as pc

        return pc.add(offset, 1)

    plus_one.__annotations__ = {}
    added = ordered_udf()(F.arrow_udf(plus_one, "bigint"))
    made = frame(spark).select(
        "offset", "body", half("offset"), ordered_udf("int")(sizes)("body"), added("offset")
    )
    assert dict(made.dtypes) == {
        "offset": "bigint", "body": "binary", "half": "double", "sizes": "int", "plus_one": "bigint"
    }  # fmt: skip
    rows = made.collect()
    assert len(rows) == 400
    for row in rows:
        assert (row.half, row.sizes) == (row.offset / 2, len(row.body))
        assert row.plus_one == row.offset + 1


@needs(ARROW_UDF)
def test_decorated_functions_that_do_not_fit_are_refused_before_spark_runs(
    spark: SparkSession,
) -> None:
    @F.pandas_udf("double")
    def mean(offset: pd.Series) -> float:
        return float(offset.mean())

    @F.pandas_udf("bigint")
    def same(offset: pd.Series) -> pd.Series:
        return offset

    def size(body: bytes) -> int:
        return len(body)

    with pytest.raises(ConfigError, match=r"mean returns no column: .*apply_in_order\(key=...\)"):
        ordered_udf(mean)
    with pytest.raises(ConfigError, match="size returns no column"):
        ordered_udf(F.udf(size, "int", useArrow=False))
    with pytest.raises(ConfigError, match="remove engine='arrow'"):
        ordered_udf(same, engine="arrow")
    with pytest.raises(ConfigError, match="remove the return type string"):
        ordered_udf("string")(same)
    with pytest.raises(ConfigError, match=r"use ordered_udf\(same\)"):
        apply_in_order(frame(spark), same, "offset bigint")
    with pytest.raises(ConfigError, match=r"use ordered_udf\(same\)"):
        takes_context(same, rows=2)  # as apply_with_state asks


def test_plain_functions_without_a_column_or_a_type_are_refused_at_once() -> None:
    def mean(offset: pd.Series) -> float:
        return float(offset.mean())

    with pytest.raises(ConfigError, match="mean returns no column"):
        ordered_udf("double")(mean)
    with pytest.raises(ConfigError, match="mean has no return type"):
        ordered_udf(mean)
    with pytest.raises(ConfigError, match="'group'"):
        ordered_udf("double", client_options={"name_servers": "127.0.0.1:1"})


@pytest.mark.parametrize("swallows", [False, True])
def test_rows_out_of_order_reach_no_iterator_function(
    spark: SparkSession, tmp_path: Path, swallows: bool
) -> None:
    got = tmp_path / "got"

    @F.pandas_udf("bigint")
    def same(offsets: Iterator[pd.Series]) -> Iterator[pd.Series]:
        try:
            for offset in offsets:
                with got.open("a") as log:
                    log.writelines(f"{number}\n" for number in offset)
                yield offset
        except Exception:
            if not swallows:
                raise

    backwards = frame(spark, queues=1, rows=200, parts=2)
    backwards = backwards.where("offset >= 100").union(backwards.where("offset < 100")).coalesce(1)
    assert backwards.select(same("offset")).count() == 200  # Spark alone lets it pass
    got.unlink(missing_ok=True)
    with pytest.raises(Exception, match="rows are out of order: offset 0 arrives after offset"):
        backwards.select(ordered_udf(same)("offset")).collect()
    assert min(map(int, got.read_text().split())) == 100


def test_a_lost_lease_stops_the_calls_inside_a_pandas_udf(
    spark: SparkSession, broker: EmbeddedBroker, producer: Any, tmp_path: Path
) -> None:
    producer.send(Message("orders", b"-"))  # the topic exists, and has a route
    calls, go = tmp_path / "calls", tmp_path / "go"

    @ordered_udf(
        "bigint",
        client_options={"name_servers": broker.name_servers, "group": "etl"},
        fence_interval_ms=0,
    )
    def slow(offset: pd.Series) -> pd.Series:
        with calls.open("a") as log:
            log.write(f"{offset[0]}\n")
        if offset[0] == 50:
            waiting = threading.Event()
            while not go.exists():
                waiting.wait(0.01)
        return offset

    queue = MessageQueue("orders", "b", 0)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    made = frame(spark, queues=1, batch_rows=10, lease=(1 << 62) + 1).select(slow("offset"))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            made.collect()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    locks = Locks(broker.name_servers, "etl")
    try:
        eventually(lambda: calls.exists() and "50" in calls.read_text(), "the call of offset 50")
        assert not locks.lock("other", queue)
        locks.unlock(lease_client_id("etl", (1 << 62) + 1), queue)  # as a driver that leaves
        assert locks.lock("other", queue)
    finally:
        go.touch()
        runner.join(60)
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert calls.read_text().split() == ["0", "10", "20", "30", "40", "50"]
    assert "another member holds" in str(failures[0])


def test_rows_read_without_a_lease_need_no_lock(spark: SparkSession) -> None:
    same = ordered_udf("bigint", client_options={"name_servers": "127.0.0.1:1", "group": "etl"})(
        lambda offset: offset
    )
    unlocked = frame(spark).withColumn("lease", F.lit(None).cast("bigint"))
    assert unlocked.select(same("offset")).count() == 400


def test_the_example_totals_amounts_per_queue(
    spark: SparkSession, broker: EmbeddedBroker, producer: Any
) -> None:
    import ordermq.spark
    from examples.pandas_udf_on_spark import with_totals

    events = ((Message("amounts", b"%d" % number), f"k{number % 10}") for number in range(300))
    assert len(producer.send_many(events, max_in_flight=64)) == 300
    ordermq.spark.register(spark)
    options = {"name_servers": broker.name_servers, "topic": "amounts", "pull_batch_size": "10"}
    rows = with_totals(spark.read.format("ordermq").options(**options).load()).collect()
    assert len(rows) == 300
    totals: dict[int, float] = {}
    last: dict[int, float] = {}
    for row in rows:
        totals[row.queue_id] = totals.get(row.queue_id, 0.0) + row.amount
        assert row.total == totals[row.queue_id]
        # None begins a call: a plain function keeps nothing from one to the next.
        assert row.change in (None, row.amount - last.get(row.queue_id, row.amount))
        last[row.queue_id] = row.amount
    assert len({row.change for row in rows}) > 1
