"""Source, lease check, stage and sink together: from one topic to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_in_order, numbers, send
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import ordermq.spark
from ordermq import Producer
from ordermq.broker import EmbeddedBroker

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests


@pytest.fixture
def options(broker: EmbeddedBroker, spark: SparkSession) -> dict[str, str]:
    ordermq.spark.register(spark)
    return {"name_servers": broker.name_servers, "topic": "orders"}


def doubled(rows: Any, context: Any) -> Any:
    """The number twice, as a body; checks that the queue is held."""
    import pyarrow as pa

    assert context.lease is not None
    bodies = [b"%d" % (2 * int(body)) for body in rows.column("body").to_pylist()]
    at = rows.schema.get_field_index("body")
    return rows.set_column(at, "body", pa.array(bodies, pa.binary()))


@pytest.mark.timeout(600)
def test_an_ordered_stream_reaches_another_topic_in_order_through_a_stage_with_lease_check(
    spark: SparkSession, options: dict[str, str], producer: Producer, tmp_path: Path
) -> None:
    send(producer, 300)
    batches = {"group": "etl", "max_rows": "120"}
    source = spark.readStream.format("ordermq").options(**options, **batches).load()
    # The fence finds name servers and group in the plan of the source.
    stage = ordermq.spark.apply_in_order(source, doubled, source.schema, engine="arrow")
    query = (
        stage.writeStream.format("ordermq")
        .options(**options | {"topic": "doubled"})
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.format("ordermq").options(**options | {"topic": "doubled"}).load()
    rows = found.orderBy("queue_id", "offset").collect()
    assert numbers(rows) == [2 * n for n in range(300)]
    assert_in_order(rows)
    assert {row.properties["omq_source"].split("@")[0] for row in rows} == {"orders"}


def test_a_batch_read_needs_no_lease(
    spark: SparkSession, options: dict[str, str], producer: Producer
) -> None:
    send(producer, 50)
    source = spark.read.format("ordermq").options(**options, group="etl").load()
    stage = ordermq.spark.apply_in_order(
        source, lambda rows: rows.select(["offset"]), "offset bigint", engine="arrow"
    )
    assert stage.count() == 50
