"""Options of the source: all checked at once, errors name the allowed values."""

import pickle

import pyarrow as pa
import pytest

from ordermq.clock import SystemClock
from ordermq.config import TlsVerify
from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import (
    _KAFKAS,
    _MEANT,
    SINK,
    SOURCE,
    Boundary,
    Edge,
    ReleaseInFlight,
    SinkOptions,
    SourceOptions,
    client_options,
    parse_queue,
    queue_text,
)
from ordermq.spark.schema import source_schema, spark_ddl
from ordermq.spark.session import lease_client_id, new_run_id
from ordermq.spark.stages.executor_lease import ExecutorLease

NEEDED = {"name_servers": "127.0.0.1:9876", "topic": "orders"}


def options(**more):
    return SourceOptions.of(NEEDED | more)


def test_defaults_match_the_table():
    found = options()
    assert (found.topics, found.tags, found.columns) == (("orders",), "*", COLUMNS)
    assert found.end == Boundary(Edge.LATEST)
    assert found.batch_start() == found.stream_start() == Boundary(Edge.EARLIEST)
    assert not found.is_ordered
    assert found.fail_on_data_loss
    assert found.release_in_flight is ReleaseInFlight.STRICT


def test_a_group_makes_a_stream_ordered_and_start_at_the_groups_offsets():
    found = options(group="etl")
    assert found.is_ordered
    assert found.stream_start() == Boundary(Edge.GROUP)
    assert found.batch_start() == Boundary(Edge.EARLIEST)
    assert not options(group="etl", ordered="false").is_ordered


@pytest.mark.parametrize("key", ["starting_offsets", "startingoffsets", "startingOffsets"])
def test_option_names_may_be_spelled_in_any_case(key):
    assert options(**{key: "LATEST"}).batch_start() == Boundary(Edge.LATEST)


def test_offsets_are_given_by_queue():
    told = '{"orders@b:10": 7, "orders@b:2": "latest"}'
    wanted = ((MessageQueue("orders", "b", 2), Edge.LATEST), (MessageQueue("orders", "b", 10), 7))
    assert options(starting_offsets=told).batch_start() == Boundary(Edge.EARLIEST, wanted)
    assert options(ending_offsets=told).end == Boundary(Edge.LATEST, wanted)


@pytest.mark.parametrize(
    "moment", ["1700000000000", "2023-11-14T22:13:20+00:00", "2023-11-14T22:13:20Z"]
)
def test_timestamps_are_milliseconds_or_iso(moment):
    assert options(starting_timestamp=moment).batch_start().timestamp_ms == 1_700_000_000_000
    assert options(ending_timestamp=moment).end.timestamp_ms == 1_700_000_000_000


def test_an_age_counts_back_from_now():
    before_ms = SystemClock().wall_ms()
    start = options(starting_timestamp="5m").batch_start().timestamp_ms
    assert before_ms <= start + 300_000 <= SystemClock().wall_ms()


def test_timestamps_of_single_queues_leave_the_others_at_their_ends():
    told = '{"orders@b:10": "2023-11-14T22:13:20Z", "orders@b:2": 1700000000000}'
    wanted = tuple((MessageQueue("orders", "b", n), 1_700_000_000_000) for n in (2, 10))
    start = options(starting_timestamp=told).batch_start()
    assert start == Boundary(Edge.EARLIEST, timestamps=wanted)
    assert options(ending_timestamp=told).end == Boundary(Edge.LATEST, timestamps=wanted)
    assert start.named == tuple(queue for queue, _ in wanted)


def test_a_query_reads_topics_or_a_pattern_or_single_queues():
    def selected(**more):
        return SourceOptions.of({"name_servers": "127.0.0.1:9876"} | more).selection

    orders, bills = MessageQueue("orders", "b", 1), MessageQueue("bills", "b", 1)
    named = selected(topic="orders, refunds")
    assert (named.reads(orders), named.reads(bills), str(named)) == (True, False, "orders, refunds")
    pattern = selected(topic_pattern="ord|bill.*")
    assert (pattern.reads(orders), pattern.reads(bills)) == (False, True), "whole names"
    single = selected(queues="orders@b:1, bills@b:0")
    assert (single.reads(orders), single.reads(bills)) == (True, False)
    assert single.topics == ("bills", "orders")
    with pytest.raises(ConfigError, match="offsets are given for orders@b:2, which is not read"):
        selected(queues="orders@b:1", starting_offsets='{"orders@b:2": 5}')


def test_client_settings_reach_the_client():
    found = options(namespace="shop", namespace_v2="n", unit_name="u", max_frame_bytes="2048")
    remoting = found.remoting
    assert (remoting.namespace, remoting.namespace_v2, remoting.unit_name) == ("shop", "n", "u")
    assert remoting.max_frame_bytes == 2048


def test_account_and_tls_options_reach_the_client():
    found = options(
        access_key="me", secret_key="hidden-1", tls="true", tls_verify="CA", lock_timeout_ms="77"
    )
    assert (found.remoting.access_key, found.remoting.tls_verify) == ("me", TlsVerify.CA)
    assert found.remoting.lock_timeout_ms == 77
    assert "hidden-1" not in repr(found)


WRONG = [
    ({"max_rows": "0"}, "option max_rows='0': expected int >= 1"),
    ({"maxRows": "many"}, "option max_rows='many': expected"),
    ({"columns": "body,colour"}, "option columns='body,colour': expected some of topic, broker,"),
    ({"topic": " , "}, "option topic=' , ': expected topic names"),
    ({"topic": "a b"}, "option topic='a b': expected"),
    ({"group": "a b"}, "option group='a b': expected consumer group name"),
    ({"name_servers": "nowhere"}, "option name_servers='nowhere': expected host:port"),
    (
        {"name_servers": "mq://me:hidden@h:1"},
        r"name_servers=\(not shown\): expected",
    ),
    ({"tags": "a,b"}, "option tags='a,b': expected"),
    ({"tags": "||"}, r"option tags='\|\|': expected"),
    ({"ordered": "yes"}, "option ordered='yes': expected true or false"),
    ({"ordered": "true"}, "option ordered='true' needs option group"),
    ({"starting_offsets": "group"}, "option starting_offsets='group' needs option group"),
    ({"starting_offsets": "first"}, "option starting_offsets='first': expected earliest, latest"),
    ({"starting_offsets": '{"orders": 1}'}, "expected earliest, latest, group, or JSON"),
    ({"starting_offsets": '{"orders@b:1": -1}'}, "expected earliest, latest, group, or JSON"),
    ({"starting_offsets": '{"orders@b:1": true}'}, "expected earliest, latest, group, or JSON"),
    ({"starting_offsets": '{"other@b:1": 1}'}, "given for other@b:1, whose topic is not read"),
    ({"ending_offsets": "earliest"}, "option ending_offsets='earliest': expected latest, or JSON"),
    ({"ending_offsets": "[1]"}, "option ending_offsets="),
    ({"starting_timestamp": "soon"}, "option starting_timestamp='soon': expected ms since 1970"),
    ({"release_in_flight": "now"}, "option release_in_flight='now': expected strict or afterPause"),
    ({"path": "x"}, "a path, as in load.*, is not supported: use option topic"),
    ({"max_row": "1"}, "no option 'max_row'; did you mean max_rows?"),
    ({"zzzzz": "1"}, "no option 'zzzzz': the format has topic, topic_pattern, queues, group, tags"),
    ({"partitions": "4"}, "no option 'partitions'; did you mean tasks"),
    ({"partition": "4"}, "no option 'partition'; did you mean queues"),
    ({"consumerGroup": "g"}, "did you mean group"),
    ({"body_column": "x"}, "option 'body_column' belongs to the sink: remove it here"),
    ({"group.id": "g"}, "of Kafka's connector: here group"),
    ({"auto.offset.reset": "earliest"}, "of Kafka's connector: here starting_offsets"),
    (
        {"starting_timestamp": "2026-11-20", "ending_timestamp": "2026-11-19"},
        "ending_timestamp is before starting_timestamp",
    ),
    (
        {"starting_offsets": '{"orders@b:1": 9}', "ending_offsets": '{"orders@b:1": 8}'},
        "ending_offsets has orders@b:1 at 8, before 9 in starting_offsets",
    ),
    ({"tls_ca_file": "x"}, "tls_ca_file is given without tls=True"),
    ({"access_key": "x"}, "option access_key is given, secret_key is missing: give both"),
    ({"starting_timestamp": "1700000000"}, r"'1700000000': expected ms since 1970 \(not seconds"),
    ({"starting_timestamp": "1700000000000000"}, r"expected ms since 1970 \(not seconds"),
    ({"ending_timestamp": "1700000000000000000"}, r"expected ms since 1970 \(not seconds"),
    ({"ending_timestamp": '{"orders@b:1": 1700000000000000}'}, "expected ms since 1970"),
    ({"starting_offsets": '{"orders@b:1": 1, "orders@b:01": 2}'}, "expected earliest, latest, gro"),
    ({"maxOffsetsPerTrigger": "5"}, "of Kafka's connector: here max_rows"),
    ({"subscribe": "orders"}, "of Kafka's connector: here topic"),
    ({"kafka.bootstrap.servers": "h:1"}, "of Kafka's connector: here name_servers"),
    ({"kafka.security.protocol": "SSL"}, "settings have names of their own here"),
    ({"minOffsetsPerTrigger": "5"}, "of Kafka's connector: here min_rows"),
    ({"maxTriggerDelay": "5m"}, "here max_trigger_delay_ms, in milliseconds"),
    ({"subscribePattern": "x.*"}, "here topic_pattern"),
    ({"assign": "{}"}, "here queues, like topic@broker:0"),
    ({"startingOffsetsByTimestamp": "{}"}, "here starting_timestamp, one for all queues or JSON"),
    ({"topic_pattern": "x.*"}, "options topic and topic_pattern: give only one of them"),
    ({"queues": "orders@b:0"}, "options topic and queues: give only one of them"),
    ({"topic": "", "topic_pattern": "x("}, r"topic_pattern='x\(': expected regular expression"),
    ({"queues": "orders:0"}, "option queues='orders:0': expected queues joined by"),
    ({"min_rows": "0"}, "option min_rows='0': expected int >= 1"),
    ({"min_row": "1"}, "no option 'min_row'; did you mean min_rows?"),
    ({"tags": "a", "sql": "x > 1"}, "options tags and sql: give only one"),
    ({"sql": " "}, "option sql=' ': expected SQL92 condition"),
    ({"serialize_type": "xml"}, "option serialize_type='xml': expected one of json, rocketmq"),
    ({"starting_timestamp": '{"orders@b:1": 1700000000}'}, r"expected ms since 1970 \(not seconds"),
    ({"starting_timestamp": '{"other@b:1": "2026-11-20"}'}, "given for other@b:1, whose topic"),
    ({"minPartitions": "5", "tasks": "2"}, "tasks and min_partitions: give only one"),
    ({"key": "k"}, "keys are a column, sharding_key"),
    ({"connect_timeout_ms": "0"}, "option connect_timeout_ms='0': expected int 1..86400000"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_a_wrong_option_is_refused_with_what_is_allowed(wrong, said):
    with pytest.raises(ConfigError, match=said):
        options(**wrong)


def test_the_sink_refuses_options_of_the_source_and_says_whose_they_are():
    with pytest.raises(ConfigError, match="option 'max_rows' belongs to the source: remove it"):
        SinkOptions.of(NEEDED | {"max_rows": "5"}, {"body": None})
    with pytest.raises(ConfigError, match="option 'partition'; did you mean queue_column"):
        SinkOptions.of(NEEDED | {"partition": "5"}, {"body": None})


def test_a_sink_without_a_body_says_how_to_name_it():
    with pytest.raises(ConfigError, match="name one of key, value by this option, or rename"):
        SinkOptions.of(NEEDED, {"key": None, "value": None})


def test_all_wrong_options_are_in_one_error():
    with pytest.raises(ConfigError) as caught:
        options(max_rows="0", pushdown="maybe", max_row="1")
    for part in ("max_rows='0'", "pushdown='maybe'", "no option 'max_row'"):
        assert part in str(caught.value)


def test_offsets_and_a_time_are_not_given_together():
    with pytest.raises(ConfigError, match="starting_offsets and starting_timestamp: give only one"):
        options(starting_offsets="latest", starting_timestamp="0")


def test_an_end_at_the_start_reads_nothing_and_is_no_mistake():
    options(starting_timestamp="2026-11-20", ending_timestamp="2026-11-20")
    same = '{"orders@b:1": 9}'
    options(starting_offsets=same, ending_offsets=same)


def test_no_name_of_kafkas_is_an_option_here():
    ours = {setting.name.replace("_", "") for setting in (*SOURCE, *SINK)}
    assert not ours & set(_KAFKAS)


def test_what_other_names_may_mean_is_an_option_here():
    ours = {setting.name.replace("_", "") for setting in (*SOURCE, *SINK)}
    assert {name for meant in _MEANT.values() for name in meant} <= ours


def test_a_missing_option_error_names_create_table_and_what_a_view_keeps():
    with pytest.raises(
        ConfigError, match=r"name_servers and topic is missing.*VIEW keeps .* the messages of its"
    ):
        SourceOptions.of({})


def test_a_secret_is_not_shown_in_an_error():
    with pytest.raises(ConfigError) as caught:
        options(access_key="me", secret_key="hidden-1", max_rows="0")
    assert "hidden-1" not in str(caught.value)


def test_sparks_own_options_are_ignored():
    assert options(checkpointLocation="/tmp/c") == options()
    table = {"option.name_servers": "127.0.0.1:9876", "option.topic": "orders"}
    assert SourceOptions.of(table | {"owner": "me", "provider": "ordermq"}) == options()


def test_options_can_be_pickled():
    found = options(group="etl", starting_offsets='{"orders@b:1": 5}', tls="true")
    assert pickle.loads(pickle.dumps(found)) == found
    found = SourceOptions.of({"name_servers": "a:1", "topic_pattern": "x.*"})
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    "queue",
    [
        MessageQueue("t", "b", 0),
        MessageQueue("%RETRY%g", "broker-a", 11),
        MessageQueue("t", "b:c", 1),
    ],
)
def test_a_queue_name_is_parsed_back(queue):
    assert parse_queue(queue_text(queue)) == queue


@pytest.mark.parametrize("name", ["", "t", "t@b", "t@b:", "t:1", "@b:1", "t@:1", "t@b:x"])
def test_an_invalid_queue_name_is_refused(name):
    with pytest.raises(ValueError):
        parse_queue(name)


def test_every_option_has_a_description_and_a_type():
    names = [setting.name for setting in SOURCE]
    assert len(set(names)) == len(names) > 25
    assert all(setting.description and setting.allowed for setting in SOURCE)


def test_spark_and_arrow_get_the_same_schema():
    arrow = source_schema(is_ordered=True)
    assert arrow.names == [*COLUMNS, "lease"]
    assert arrow is source_schema(is_ordered=True)
    ddl = [part.split("` ")[0].strip(" `") for part in spark_ddl(is_ordered=True).split(", `")]
    assert ddl == arrow.names
    assert spark_ddl(("body", "offset")) == "`body` BINARY, `offset` BIGINT"
    assert source_schema(("body",)) == pa.schema([("body", pa.binary())])


def test_what_serves_as_options_of_the_source_serves_as_client_options():
    given = {"nameServers": "127.0.0.1:9876", "tls": True, "route_interval_ms": 50, "GROUP": "etl"}
    name_servers, remoting = client_options(given)
    assert (name_servers, remoting.route_interval_ms) == ("127.0.0.1:9876", 50)
    assert remoting.tls is not None
    assert ExecutorLease.of(given, 1_000).group == "etl"
    with pytest.raises(ConfigError, match="client_options needs 'group'"):
        ExecutorLease.of(given | {"GROUP": " "}, 1_000)


def test_each_run_has_its_own_lease_id_and_client_id():
    leases = {new_run_id() for _ in range(100)}
    assert len(leases) == 100
    assert all(0 < lease < 1 << 63 for lease in leases)
    assert lease_client_id("etl", 255) == "etl@spark@00000000000000ff"
