"""Batch reads by spark.read.format("ordermq"): columns, ranges, snapshots, errors."""

from __future__ import annotations

import time

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F

from ordermq import Message
from ordermq.model.arrow import COLUMNS
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.versions import PUSHDOWN
from tests.spark.conftest import assert_in_order, needs, numbers, send


@pytest.fixture
def read(spark, broker):
    """A DataFrame of the topic `orders` with these options."""

    def make(**options):
        given = {"name_servers": broker.name_servers, "topic": "orders"} | options
        return spark.read.format("ordermq").options(**given).load()

    return make


def test_a_batch_reads_every_message_once_in_queue_order(read, producer):
    send(producer, 2_000)
    frame = read()
    assert frame.columns == list(COLUMNS)
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert numbers(rows) == list(range(2_000))
    assert_in_order(rows)
    one = next(row for row in rows if bytes(row.body) == b"17")
    assert (one.topic, one.broker, one.sharding_key) == ("orders", "b", "k7")
    assert (one.tags, one["keys"], one.reconsume_times) == ("a", "n17", 0)
    assert one.properties == {}
    assert abs(one.born_timestamp.timestamp() - time.time()) < 3_600


def test_two_actions_on_one_dataframe_read_the_same_snapshot(read, producer):
    send(producer, 100)
    frame = read()
    assert frame.count() == 100
    send(producer, 50, first=100)
    assert frame.count() == 100
    assert numbers(frame.where("tags = 'a'").collect()) == list(range(1, 100, 2))
    assert read().count() == 150


def test_option_all_properties_adds_those_of_rocketmq(read, producer):
    producer.send(Message("orders", b"0", tags="a", properties={"country": "AT"}), sharding_key="k")
    assert read(columns="properties").collect()[0].properties == {"country": "AT"}
    [one] = read(all_properties="true").collect()
    assert one.properties.items() >= {"country": "AT", "TAGS": "a", "__SHARDINGKEY": "k"}.items()
    assert one.message_id == one.properties["UNIQ_KEY"]


def test_option_columns_selects_columns_and_schema(read, producer):
    send(producer, 20)
    frame = read(columns="offset,body")
    assert frame.columns == ["offset", "body"]
    assert numbers(frame.collect()) == list(range(20))


def test_a_tag_filter_reads_only_its_tags(read, producer):
    send(producer, 100)
    assert numbers(read(tags="a").collect()) == list(range(1, 100, 2))
    assert read(tags="a || b").count() == 100
    assert read(tags="nobody").count() == 0


def test_offsets_select_a_range_of_each_queue(read, producer, broker):
    send(producer, 400)
    whole = {(r.queue_id, r.offset) for r in read(columns="queue_id,offset").collect()}
    frame = read(
        starting_offsets='{"orders@b:0": 10, "orders@b:1": "latest"}',
        ending_offsets='{"orders@b:0": 20}',
    )
    found = {(r.queue_id, r.offset) for r in frame.collect()}
    assert {o for q, o in found if q == 0} == set(range(10, 20))
    assert {o for q, o in found if q == 1} == set()
    assert {p for p in found if p[0] > 1} == {p for p in whole if p[0] > 1}
    with pytest.raises(AnalysisException, match="'latest' reads nothing in a batch"):
        read(starting_offsets="latest").count()
    with pytest.raises(AnalysisException, match=r"starting_timestamp is 2.*in the future"):
        read(starting_timestamp="2999-01-01T00:00:00").count()


def test_timestamps_select_start_and_end(read, producer):
    send(producer, 50)
    moment = int(time.time() * 1000) + 1
    while time.time() * 1000 <= moment + 1:
        pass  # so that what follows is stored later, by the clock both use
    send(producer, 30, first=50)
    assert numbers(read(starting_timestamp=str(moment)).collect()) == list(range(50, 80))
    assert numbers(read(ending_timestamp=str(moment)).collect()) == list(range(50))


def test_starting_offsets_group_begins_at_the_groups_offsets(read, producer, broker, pull_consumer):
    send(producer, 200)
    queues = [MessageQueue("orders", "b", number) for number in range(4)]
    committed = {queue: 10 + queue.queue_id for queue in queues[:2]}
    for queue, offset in committed.items():
        pull_consumer.update_consume_offset(queue, offset)
    pull_consumer.close()
    rows = read(group="g", starting_offsets="group", ordered="false").collect()
    first = {queue.queue_id: min(r.offset for r in rows if r.queue_id == queue.queue_id)
             for queue in queues}  # fmt: skip
    assert first == {0: 10, 1: 11, 2: 0, 3: 0}


def test_max_rows_takes_a_fair_share_of_every_queue(read, producer):
    send(producer, 400)
    rows = read(max_rows="40").collect()
    assert len(rows) == 40
    assert {r.queue_id for r in rows} == {0, 1, 2, 3}
    assert {r.offset for r in rows} == set(range(10))


def test_several_topics_can_be_read(read, producer):
    send(producer, 30)
    send(producer, 20, topic="bills")
    counts = read(topic="orders, bills").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"orders": 30, "bills": 20}


def test_a_batch_query_in_ordered_mode_has_null_leases(read, producer):
    send(producer, 10)
    frame = read(group="g")
    assert frame.columns == [*COLUMNS, "lease"]
    assert {row.lease for row in frame.collect()} == {None}


@needs(PUSHDOWN)
def test_pushed_filters_skip_only_queues_and_offsets_they_exclude(spark, read, producer):
    send(producer, 400)
    plain = read()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in (
            "queue_id = 1 AND offset >= 5 AND offset < 25",
            "queue_id IN (0, 2) AND offset > 3 AND tags = 'a'",
            "offset = 7",
            "offset BETWEEN 3 AND 4 OR queue_id = 3",
            "topic = 'orders' AND broker = 'b' AND queue_id <> 1",
            "topic = 'none'",
            "offset <= 2 AND queue_id > 1 AND length(body) = 2",
        ):
            # A DataFrame for each: Spark reads one again as its last pushed filters left it.
            rows = read(pushdown="true").where(condition).collect()
            assert numbers(rows) == numbers(plain.where(condition).collect()), condition
        pushed = read(pushdown="true")
        assert pushed.where("queue_id = 1").rdd.getNumPartitions() == 1
        assert plain.where("queue_id = 1").rdd.getNumPartitions() == 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_sql_reads_a_temporary_view(spark, producer, broker):
    send(producer, 60)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING ordermq OPTIONS "
        f"(name_servers '{broker.name_servers}', topic 'orders', tags 'a')"
    )
    rows = spark.sql(
        "SELECT sharding_key, count(*) AS n FROM orders GROUP BY sharding_key"
    ).collect()
    assert {row.sharding_key: row.n for row in rows} == {f"k{odd}": 6 for odd in (1, 3, 5, 7, 9)}


def test_the_error_for_a_table_without_options_names_the_ways_to_give_them(spark, producer, broker):
    send(producer, 10)
    spark.sql("DROP TABLE IF EXISTS lost")
    spark.sql(
        f"CREATE TABLE lost USING ordermq OPTIONS (name_servers '{broker.name_servers}', "
        "topic 'orders')"
    )
    try:
        with pytest.raises(AnalysisException, match="loses its OPTIONS") as caught:
            spark.sql("SELECT * FROM lost").collect()
        assert "WITH (topic" in str(caught.value)
        found = spark.sql(
            f"SELECT * FROM lost WITH (name_servers '{broker.name_servers}', topic 'orders')"
        )
        assert found.count() == 10
    finally:
        spark.sql("DROP TABLE lost")


def test_a_wrong_option_is_named_when_the_dataframe_is_made(read, producer):
    send(producer, 1)
    with pytest.raises(AnalysisException, match="option max_rows='many': expected int >= 1"):
        read(max_rows="many")
    with pytest.raises(AnalysisException, match="did you mean starting_offsets"):
        read(starting_ofsets="latest")
    with pytest.raises(AnalysisException, match=r"load.* is not supported: use option topic"):
        read(path="orders")


def test_an_unknown_topic_is_an_error_that_names_it(read, producer):
    send(producer, 1)
    with pytest.raises(AnalysisException, match=r"topic not found on any broker.*topic='nowhere'"):
        read(topic="nowhere").count()


def test_a_user_schema_of_the_same_columns_is_accepted(spark, producer, broker):
    send(producer, 10)
    frame = (
        spark.read.format("ordermq")
        .schema("offset BIGINT, body BINARY")
        .options(name_servers=broker.name_servers, topic="orders", columns="offset,body")
        .load()
    )
    assert numbers(frame.collect()) == list(range(10))


def test_a_user_schema_of_other_columns_is_refused_with_the_option(spark, producer, broker):
    send(producer, 1)
    other = spark.read.format("ordermq").schema("offset BIGINT, body BINARY")
    other = other.options(name_servers=broker.name_servers, topic="orders")
    with pytest.raises(AnalysisException, match=r"leave .schema\(...\) out, and choose columns by"):
        other.load().count()


def test_limit_ends_a_read_early(read, producer):
    send(producer, 3_000)
    assert len(read(pull_batch_size="100", arrow_batch_rows="100").limit(5).collect()) == 5


def test_messages_that_expire_after_the_snapshot_are_an_error_or_a_warning(read, producer, broker):
    send(producer, 400)
    strict, loose = read(), read(fail_on_data_loss="false")
    broker.expire(MessageQueue("orders", "b", 2), 20)
    with pytest.raises(PythonException, match=r"20 messages expired before.*queue_id=2, offset=0"):
        strict.collect()
    rows = loose.collect()
    assert min(row.offset for row in rows if row.queue_id == 2) == 20
    assert loose.agg(F.min("offset")).collect()[0][0] == 0


def test_a_dataframe_reads_no_messages_of_a_topic_that_was_made_anew(read, producer, broker):
    send(producer, 40)
    strict, loose = read(), read(fail_on_data_loss="false")
    assert strict.count() == loose.count() == 40
    broker.renew("orders")
    send(producer, 200, first=1_000)
    with pytest.raises(PythonException, match=r"not the one that the DataFrame was made for.*anew"):
        strict.count()
    assert loose.count() == 0
    assert read().count() == 200
