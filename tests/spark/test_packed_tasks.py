"""Several queues in one task: each whole and in order, for rows, stages, restarts and the sink."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from ordermq.errors import ConfigError
from ordermq.spark import apply_in_order, drop_repeats, ordered_udf
from ordermq.spark.versions import ARROW_UDF
from tests.spark.conftest import DEADLINE_S, assert_in_order, needs, numbers, send


@pytest.fixture
def read(spark, broker):
    """A DataFrame of a topic with these options."""

    def make(topic="orders", **options):
        given = {"name_servers": broker.name_servers, "topic": topic} | options
        return spark.read.format("ordermq").options(**given).load()

    return make


def tasks_of(rows):
    """The queues of each task."""
    found = defaultdict(set)
    for row in rows:
        found[row.task].add(row.queue_id)
    return dict(found)


def test_a_task_has_whole_queues_in_the_order_of_their_offsets(read, producer):
    send(producer, 1_000)
    frame = read(tasks="2", arrow_batch_rows="30").withColumn("task", F.spark_partition_id())
    rows = frame.collect()
    assert numbers(rows) == list(range(1_000))
    assert_in_order(rows)
    first, second = tasks_of(rows).values()
    assert first | second == {0, 1, 2, 3}
    assert not first & second
    assert read(tasks="1").rdd.getNumPartitions() == 1


@needs(ARROW_UDF)
def test_a_call_of_a_stage_never_gets_rows_of_two_queues(read, producer):
    send(producer, 800)
    frame = read(tasks="1", columns="topic,broker,queue_id,offset,body")

    def noted(rows, context):
        assert set(rows.column("queue_id").to_pylist()) == {context.queue.queue_id}
        offsets = rows.column("offset")
        return pa.RecordBatch.from_pydict(
            {"queue_id": rows.column("queue_id"), "offset": offsets, "body": rows.column("body")}
        )

    out = "queue_id int, offset bigint, body binary"
    rows = apply_in_order(frame, noted, out, engine="arrow").collect()
    assert numbers(rows) == list(range(800))

    @ordered_udf("bigint", engine="arrow")
    def first_queue(queue: pa.Array) -> pa.Array:
        assert len(queue.unique()) == 1
        return queue.cast(pa.int64())

    rows = frame.select("queue_id", first_queue("queue_id").alias("own")).collect()
    assert all(row.own == row.queue_id for row in rows)


def test_a_batch_that_runs_again_has_its_tasks_whatever_the_option_is(stream, producer):
    send(producer, 400)
    seen = []

    def run(tasks, fails):
        def take(batch, number):
            rows = batch.collect()
            seen.append(tasks_of(rows))
            if fails:
                raise RuntimeError("the sink is full")

        frame = stream.frame(tasks=tasks).withColumn("task", F.spark_partition_id())
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
        assert query.awaitTermination(DEADLINE_S)

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run("3", fails=True)
    run("1", fails=False)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3


def test_messages_written_from_packed_tasks_are_in_order_and_their_repeats_are_dropped(
    spark, read, producer, broker
):
    send(producer, 600)
    options = {"name_servers": broker.name_servers, "topic": "copies"}
    for tasks in ("1", "4"):  # the second time they are repeats, from other tasks
        frame = read(tasks=tasks, arrow_batch_rows="70")
        frame.write.format("ordermq").options(**options).mode("append").save()
    copies = read("copies", tasks="1")
    assert copies.count() == 1_200
    rows = drop_repeats(copies).collect()
    assert numbers(rows) == list(range(600))
    assert_in_order(rows)


def test_split_queues_are_read_whole_and_refused_by_stages_that_need_order(read, producer):
    send(producer, 1_000)
    frame = read(min_partitions="9")
    assert frame.rdd.getNumPartitions() >= 9
    assert numbers(frame.collect()) == list(range(1_000))
    for stage in (
        lambda: apply_in_order(frame, lambda rows: rows, frame.schema),
        lambda: drop_repeats(frame.where("tags = 'a'")),
    ):
        with pytest.raises(ConfigError, match="read it without min_partitions"):
            stage()
    small = frame.select("topic", "broker", "queue_id", "offset", "sharding_key", "body")
    sorted_by_key = apply_in_order(small, lambda rows: rows, small.schema, key="queue_id")
    assert sorted_by_key.count() == 1_000
