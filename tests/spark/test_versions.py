"""Tests of what differs by the version of Spark; `ci/spark.sh --all` runs them on each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import ordermq.spark
from ordermq import Producer
from ordermq.spark import apply_in_order, ordered_udf
from ordermq.spark.versions import ARROW_UDF, BATCHES_OF_AVAILABLE_NOW, PUSHDOWN, Feature, is_before
from tests.spark.conftest import DEADLINE_S, Broker, Stream, assert_in_order, numbers, send

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests


@pytest.fixture
def options(broker: Broker) -> dict[str, str]:
    return {"name_servers": broker.name_servers, "topic": "orders"}


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    bodies = pa.array([b"%d" % (2 * int(body)) for body in rows.column("body").to_pylist()])
    return rows.set_column(rows.schema.get_field_index("body"), "body", bodies)


def refused(feature: Feature) -> Any:
    """Expect the error of an older version in the first line that Spark shows."""
    since = r"\.".join(map(str, feature.since))
    return pytest.raises(Exception, match=rf"\A[^\n]*needs Spark {since} or later, and this is 4")


def test_a_batch_goes_through_a_stage_and_a_column_function_into_another_topic(
    spark: Any, options: dict[str, str], producer: Producer
) -> None:
    @ordered_udf("bigint")
    def place(offset: pd.Series) -> pd.Series:
        assert offset.is_monotonic_increasing
        return offset

    send(producer, 200)
    orders = spark.read.format("ordermq").options(**options).load()
    rows = apply_in_order(orders, doubled, orders.schema, engine="arrow")
    moved = orders.where(place("offset") != F.col("offset"))
    assert moved.count() == 0
    target = options | {"topic": "doubled"}
    rows.write.format("ordermq").options(**target).mode("append").save()
    found = spark.read.format("ordermq").options(**target).load().collect()
    assert numbers(found) == [2 * n for n in range(200)]
    assert_in_order(sorted(found, key=lambda row: (row.queue_id, row.offset)))


def test_a_session_that_has_found_the_format_by_itself_lets_it_be_registered(
    spark: Any, options: dict[str, str], producer: Producer
) -> None:
    send(producer, 10)
    source = spark.read.format("ordermq").options(**options)
    for _ in range(2):
        assert source.load().count() == 10
        ordermq.spark.register(spark)


def test_max_rows_limits_each_batch_of_a_running_query_also_after_a_failed_one(
    stream: Stream, producer: Producer
) -> None:
    send(producer, 200)
    # Otherwise the second run waits until the broker lets the locks of the first expire.
    given = {"group": "etl", "max_rows": "60", "release_in_flight": "afterPause"}
    given |= {"release_pause_ms": "200"}
    broken: list[Any] = []

    def fails(number: int, rows: list[Any]) -> None:
        if number == 1:
            broken.extend(rows)
            raise RuntimeError("the sink is full")

    query = stream.start(each=fails, **given)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.processAllAvailable()
    send(producer, 100, first=200)
    query = stream.start(**given)
    query.processAllAvailable()
    query.stop()
    sizes = [len(rows) for _, rows in stream.batches if rows]
    assert sizes == [60] * 5
    again = dict(stream.batches)[1]
    assert [(r.queue_id, r.offset) for r in again] == [(r.queue_id, r.offset) for r in broken]
    assert numbers(stream.rows()) == list(range(300))
    assert_in_order(stream.rows())


def test_a_stream_is_written_to_a_topic(
    spark: Any, options: dict[str, str], stream: Stream, producer: Producer, tmp_path: Path
) -> None:
    send(producer, 100)
    target = options | {"topic": "copied"}
    query = (
        stream.frame()
        .writeStream.format("ordermq")
        .options(**target, checkpointLocation=str(tmp_path / "sink"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    found = spark.read.format("ordermq").options(**target).load().collect()
    assert numbers(found) == list(range(100))


def test_runs_with_available_now_read_all_there_is_or_max_rows(
    stream: Stream, producer: Producer
) -> None:
    send(producer, 100)
    assert numbers(stream.run()) == list(range(100))
    send(producer, 100, first=100)
    stream.run(max_rows="60")
    if is_before(BATCHES_OF_AVAILABLE_NOW.since):
        stream.run(max_rows="60")
    assert [len(rows) for _, rows in stream.batches if rows] == [100, 60, 40]
    assert numbers(stream.rows()) == list(range(200))


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushdown")
def test_pushdown_runs_or_says_which_version_it_needs(
    spark: Any, options: dict[str, str], producer: Producer
) -> None:
    send(producer, 100)
    orders = spark.read.format("ordermq").options(**options, pushdown="true").load()
    if is_before(PUSHDOWN.since):
        with refused(PUSHDOWN):
            orders.where("queue_id = 1").count()
    else:
        assert {row.queue_id for row in orders.where("queue_id = 1").collect()} == {1}


def test_arrow_functions_are_accepted_or_the_error_says_which_version_they_need() -> None:
    if is_before(ARROW_UDF.since):
        with refused(ARROW_UDF):
            ordered_udf("bigint", engine="arrow")
    else:
        ordered_udf("bigint", engine="arrow")
