"""The sink on an embedded broker: order, stamps and errors."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_apply_in_order import frame, stream

import ordermq.spark
from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import ConfigError
from ordermq.producer.queue_selector import java_index
from ordermq.spark.stages import apply_in_order
from ordermq.spark.versions import ADMISSION, is_before

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests


@pytest.fixture
def target(broker: EmbeddedBroker, spark: SparkSession) -> dict[str, str]:
    ordermq.spark.register(spark)
    return {"name_servers": broker.name_servers, "topic": "scored"}


def write(rows: DataFrame, options: dict[str, str], **more: str) -> None:
    rows.write.format("ordermq").options(**options, **more).mode("append").save()


def written(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("ordermq").options(**options).load()


def assert_keys_in_order(rows: list[Any]) -> None:
    """Each key in one queue, its numbers rising; bodies are `queue-offset`."""
    places, numbers = defaultdict(set), defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.queue_id, row.offset)):
        places[row.sharding_key].add(row.queue_id)
        numbers[row.sharding_key].append(int(row.body.split(b"-")[1]))
    for key, queues in places.items():
        assert len(queues) == 1, key
        assert numbers[key] == sorted(numbers[key]), key


def test_a_batch_write_keeps_each_key_in_order_in_the_queue_of_javas_selector(
    spark: SparkSession, target: dict[str, str]
) -> None:
    write(frame(spark), target)
    rows = written(spark, target).collect()
    assert len(rows) == 400
    assert_keys_in_order(rows)
    assert all(java_index(row.sharding_key, 4) == row.queue_id for row in rows)
    places = {(row.properties["omq_source"], int(row.properties["omq_offset"])) for row in rows}
    assert places == {(f"orders@b/{queue}", n) for queue in range(4) for n in range(100)}


COLUMNS_IN_CAPITALS = ("TOPIC", "Broker", "QUEUE_ID", "OFFSET", "SHARDING_KEY", "BODY", "TAGS")


def test_columns_are_used_in_whatever_case_a_query_wrote_them(
    spark: SparkSession, target: dict[str, str]
) -> None:
    rows = frame(spark).withColumn("tags", F.lit("a")).select(*COLUMNS_IN_CAPITALS)
    assert tuple(rows.columns) == COLUMNS_IN_CAPITALS
    write(rows, target, key_column="sharding_KEY")
    found = written(spark, target).collect()
    assert_keys_in_order(found)
    assert all(java_index(row.sharding_key, 4) == row.queue_id for row in found)
    assert {row.properties["omq_source"] for row in found} == {f"orders@b/{n}" for n in range(4)}
    assert {row.tags for row in found} == {"a"}
    with pytest.raises(Exception, match=r"out of order|in several tasks"):
        write(rows.repartition(2), target)


def test_rows_are_sent_sorted_by_a_column_of_their_own_where_texts_have_large_types(
    spark: SparkSession, target: dict[str, str], large_types: None
) -> None:
    """Keys go to the same queue as in a write without `by_target_queue`."""
    rows = spark.range(200).selectExpr(
        "id", "CAST((id % 9) / 1000000000 AS DECIMAL(20, 9)) AS sharding_key",
        "concat('0-', id) AS body", "'orders' AS topic", "'b' AS broker", "0 AS queue_id",
        "id AS offset",
    )  # fmt: skip
    ordered = ordermq.spark.by_target_queue(
        rows.select("id", "sharding_key", "body"), target, order_by=["id"]
    )
    write(ordered, target, order="queue", queue_column="target_queue")
    found = written(spark, target).collect()
    assert len(found) == 200
    assert_keys_in_order(found)
    assert all(java_index(row.sharding_key, 4) == row.queue_id for row in found)
    write(rows.repartition(2, "sharding_key").sortWithinPartitions("id"), target)
    assert written(spark, target).select("sharding_key", "queue_id").distinct().count() == 9


def test_by_target_queue_names_the_columns_that_it_sorts_by(
    spark: SparkSession, target: dict[str, str]
) -> None:
    rows = spark.range(1).selectExpr("'k' AS sharding_key", "'x' AS body")
    with pytest.raises(ConfigError, match=r"no column topic, .*give order_by="):
        ordermq.spark.by_target_queue(rows, target)


def test_a_streaming_write_keeps_each_key_in_order(
    spark: SparkSession, target: dict[str, str], tmp_path: Path
) -> None:
    query = (
        stream(spark)
        .writeStream.format("ordermq")
        .options(**target)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = written(spark, target).collect()
    assert len(rows) == 400
    assert_keys_in_order(rows)


def test_a_batch_that_is_killed_is_written_again_and_read_once(
    spark: SparkSession, target: dict[str, str], tmp_path: Path
) -> None:
    mark = tmp_path / "failed"
    failing = 0 if is_before(ADMISSION) else 1  # older ones read all in the first

    def once_failing(rows: Any, context: Any) -> Any:
        # A micro-batch fails in its last partition, after others have sent theirs.
        if context.batch_id == failing and context.queue.queue_id == 3 and not mark.exists():
            mark.touch()
            raise RuntimeError("killed")
        return rows

    source = stream(spark)
    stage = ordermq.spark.apply_in_order(source, once_failing, source.schema, engine="arrow")

    def run() -> None:
        query = (
            stage.writeStream.format("ordermq")
            .options(**target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(Exception, match="killed"):
        run()
    run()
    everything = written(spark, target)
    rows = everything.collect()
    assert len(rows) > 400, "the killed batch sent nothing: the test shows nothing"
    once = ordermq.spark.drop_repeats(everything).collect()
    assert len(once) == 400
    assert len({bytes(row.body) for row in once}) == 400  # a bytearray before Spark 4.1
    assert_keys_in_order(once)


def test_a_shuffle_before_the_write_is_refused(spark: SparkSession, target: dict[str, str]) -> None:
    with pytest.raises(Exception, match="by_target_queue"):
        write(frame(spark, rows=2_000).repartition(3), target)


def test_order_queue_refuses_two_tasks_for_one_target_queue(
    spark: SparkSession, target: dict[str, str]
) -> None:
    with pytest.raises(Exception, match="tasks of one batch sent to the same queue"):
        write(frame(spark), target, order="queue")


def test_by_target_queue_gives_each_target_queue_to_one_task_in_order(
    spark: SparkSession, target: dict[str, str]
) -> None:
    mixed = frame(spark).repartition(3)
    ready = ordermq.spark.by_target_queue(mixed, target)
    write(ready, target, order="queue", queue_column="target_queue")
    rows = written(spark, target).collect()
    assert len(rows) == 400
    assert_keys_in_order(rows)
    for queue in range(4):
        own = [row.body for row in rows if row.queue_id == queue]
        places = [tuple(int(part) for part in body.split(b"-")) for body in own]
        assert places == sorted(places)


def test_rows_of_a_keyed_stage_may_be_written_from_many_tasks(
    spark: SparkSession, target: dict[str, str]
) -> None:
    def named(rows: Any) -> Any:
        import pyarrow as pa

        planes = pa.array([f"p{plane}" for plane in rows.column("plane").to_pylist()])
        at = rows.schema.get_field_index("sharding_key")
        return rows.set_column(at, "sharding_key", planes)

    source = frame(spark)
    stage = ordermq.spark.apply_in_order(
        source, named, source.schema, key="plane", engine="arrow", n_partitions=3
    )
    write(stage, target)
    rows = written(spark, target).collect()
    assert len(rows) == 400
    for plane in range(7):
        own = [row for row in rows if row.sharding_key == f"p{plane}"]
        sources = [(r.properties["omq_source"], int(r.properties["omq_offset"])) for r in own]
        assert sources == sorted(sources)


def test_rows_without_origin_columns_are_written_with_tags_and_keys(
    spark: SparkSession, target: dict[str, str]
) -> None:
    rows = frame(spark).select(
        F.lit("paid").alias("tags"),
        F.array(F.lit("a"), F.lit("b")).alias("keys"),
        F.concat(F.lit("no "), F.col("offset")).alias("text"),
    )
    write(rows, target, body_column="text")
    found = written(spark, target).collect()
    assert {bytes(row.body) for row in found} == {f"no {n}".encode() for n in range(100)}
    assert {(row.tags, row.keys) for row in found} == {("paid", "a b")}
    stamps = {(row.properties["omq_source"], row.properties["omq_offset"]) for row in found}
    assert len(stamps) == 400


def test_a_key_in_several_tasks_is_refused_without_origin_columns_too(
    spark: SparkSession, target: dict[str, str]
) -> None:
    rows = frame(spark).select("sharding_key", "body").repartition(4)
    with pytest.raises(Exception, match="is in several tasks of one batch"):
        write(rows, target)
    write(rows, target, order="none")


def test_drop_repeats_leaves_out_no_message_of_an_unordered_or_of_another_write(
    spark: SparkSession, target: dict[str, str]
) -> None:
    write(frame(spark).repartition(3), target, order="none")
    assert ordermq.spark.drop_repeats(written(spark, target)).count() == 400
    named = target | {"topic": "named"}
    for writer in ("one", "one", "two"):
        write(frame(spark), named, writer=writer)
    found = ordermq.spark.drop_repeats(written(spark, named)).collect()
    sources = [row.properties["omq_source"].split(":")[0] for row in found]
    assert {one: sources.count(one) for one in sources} == {"one": 400, "two": 400}


def test_drop_repeats_compares_stamps_within_a_queue_only(
    spark: SparkSession, target: dict[str, str]
) -> None:
    spread = frame(spark, queues=1).drop("sharding_key").withColumn("to", 3 - F.col("offset") % 4)
    for _ in range(2):
        write(spread, target, queue_column="to")
    source = spark.read.format("ordermq").options(**target, tasks="1").load()
    assert source.count() == 200
    assert ordermq.spark.drop_repeats(source).count() == 100


def test_drop_repeats_passes_what_no_sink_stamped(
    spark: SparkSession, target: dict[str, str]
) -> None:
    stamps = [("orders@b/0", "7"), ("orders@b/0", "7"), ("orders@b/0", "x"), ("orders@b/0", "-5"),
              ("orders@b/0", ""), ("~orders@b/0", "3"), ("", "3")]  # fmt: skip
    with Producer("p", name_servers=target["name_servers"]) as producer:
        for number, (source, offset) in enumerate(stamps):
            properties = {"omq_source": source, "omq_offset": offset}
            kept = {name: text for name, text in properties.items() if text}
            producer.send(Message("scored", b"%d" % number, properties=kept), sharding_key="a")
    found = ordermq.spark.drop_repeats(written(spark, target)).collect()
    assert [bytes(row.body) for row in found] == [b"0", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    ("mode", "said"), [("overwrite", "cannot be overwritten"), ("error", "SAVE_MODE")]
)
def test_only_mode_append_is_accepted(
    spark: SparkSession, target: dict[str, str], mode: str, said: str
) -> None:
    with pytest.raises(Exception, match=said):
        frame(spark).write.format("ordermq").options(**target).mode(mode).save()


def test_the_error_of_a_write_without_a_topic_names_the_options(
    spark: SparkSession, target: dict[str, str]
) -> None:
    with pytest.raises(Exception, match="topic_column, exactly one of the two"):
        write(frame(spark), {"name_servers": target["name_servers"]})


def test_an_unreachable_broker_fails_the_write(
    spark: SparkSession, target: dict[str, str], broker: EmbeddedBroker
) -> None:
    write(frame(spark, rows=1), target)
    broker.close()
    with pytest.raises(Exception, match=r"RouteError|Connect"):
        write(frame(spark), target, retry_times="0")


def test_drop_repeats_after_a_shuffle_is_refused_and_the_reason_comes_first(
    spark: SparkSession,
) -> None:
    none = F.lit(None).cast("map<string, string>")
    moved = frame(spark, rows=2_000).withColumn("properties", none)
    with pytest.raises(Exception, match="call drop_repeats straight on the source") as caught:
        ordermq.spark.drop_repeats(moved.repartition(3)).collect()
    assert "Traceback" not in str(caught.value)


def test_drop_repeats_needs_the_properties(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="properties"):
        ordermq.spark.drop_repeats(frame(spark))


@pytest.mark.timeout(600)
def test_repeats_are_dropped_across_micro_batches_by_a_cursor(
    spark: SparkSession, target: dict[str, str], tmp_path: Path
) -> None:
    for _ in range(2):  # as two attempts that both went through
        write(frame(spark, queues=1, rows=40), target)
    store = "spark.sql.streaming.stateStore.providerClass"
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set(store, rocks)
    try:
        source = spark.readStream.format("ordermq").options(**target, max_rows="30").load()
        once = ordermq.spark.drop_repeats(source, stateful=True)
        query = (
            once.select("body", "queue_id", "offset", "sharding_key")
            .writeStream.format("memory")
            .queryName("read_once")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    finally:
        spark.conf.unset(store)
    rows = spark.table("read_once").collect()
    assert sorted(row.body for row in rows) == sorted(f"0-{n}".encode() for n in range(40))


@pytest.mark.usefixtures("large_types", "zone_of_new_york")
def test_by_target_queue_sorts_a_stream_for_the_sink_whatever_types_spark_gives(
    spark: SparkSession, target: dict[str, str], tmp_path: Path
) -> None:
    ready = ordermq.spark.by_target_queue(stream(spark, parts=2), target)
    query = (
        ready.writeStream.format("ordermq")
        .options(**target, order="queue", queue_column="target_queue")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = written(spark, target).collect()
    assert len(rows) == 400
    assert_keys_in_order(rows)


def test_a_cursor_over_stamps_needs_no_lease_check_and_no_single_attempt(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on Spark Connect, where no plan shows the source, in a session with speculation.
    monkeypatch.setattr(apply_in_order, "is_on", lambda *_: True)
    schema = (
        "topic string, broker string, queue_id int, offset bigint, sharding_key string, "
        "properties map<string, string>, lease bigint"
    )
    stamps = [{"omq_source": "orders@b/0", "omq_offset": n} for n in ("4", "5", "4", "6")]
    rows = [("scored", "b", 0, offset, "k", stamp, 7) for offset, stamp in enumerate(stamps)]
    store = "spark.sql.streaming.stateStore.providerClass"
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set(store, rocks)
    try:
        leased = spark.createDataFrame(rows, schema)
        once = ordermq.spark.drop_repeats(leased, stateful=True)
        assert once.schema == leased.schema
        found = once.collect()
    finally:
        spark.conf.unset(store)
    assert sorted((row.offset, row.lease) for row in found) == [(0, 7), (1, 7), (3, 7)]
