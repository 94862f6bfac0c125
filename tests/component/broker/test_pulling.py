"""Pulls: ranges, the offset rules, tags, waiting (docs/internals/protocol.md#pulling)."""

from __future__ import annotations

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import PullFlag, RequestCode, ResponseCode
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, records


def fill(client: WireClient, count: int, topic: str = "orders") -> None:
    for start in range(0, count, 500):
        bodies = [str(n).encode() for n in range(start, min(start + 500, count))]
        assert client.send_batch(topic, bodies).code == 0


def test_successive_pulls_return_the_whole_queue(client: WireClient) -> None:
    fill(client, 100)
    offset, seen = 0, []
    while (answer := client.pull("orders", offset)).code == 0:
        seen += [m.body for m in records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])
    assert seen == [str(n).encode() for n in range(100)]
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_a_pull_may_ask_for_many_more_than_32(client: WireClient) -> None:
    fill(client, 1_000)
    assert len(records(client.pull("orders", 3, count=700).body)) == 700


@pytest.mark.parametrize("broker_config", [BrokerConfig(max_pull_messages=10)])
def test_the_broker_limits_a_pull_in_messages(client: WireClient) -> None:
    fill(client, 50)
    assert len(records(client.pull("orders", 0).body)) == 10


@pytest.mark.parametrize("count", [32, 100])
def test_a_pull_is_limited_in_bytes_but_returns_at_least_one_message(
    client: WireClient, count: int
) -> None:
    for _ in range(100):
        client.send("orders", b"x" * 1_000)
    answer = client.pull("orders", 0, count=count, max_bytes=10_000)
    assert len(records(answer.body)) == 9
    assert answer.ext["nextBeginOffset"] == "9"
    assert len(records(client.pull("orders", 0, count=count, max_bytes=1).body)) == 1


@pytest.mark.parametrize(
    ("stored", "offset", "code", "next_offset", "remark"),
    [
        (0, 0, ResponseCode.PULL_NOT_FOUND, 0, "NO_MESSAGE_IN_QUEUE"),
        (0, 5, ResponseCode.PULL_OFFSET_MOVED, 0, "NO_MESSAGE_IN_QUEUE"),
        (3, 3, ResponseCode.PULL_NOT_FOUND, 3, "OFFSET_OVERFLOW_ONE"),
        (3, 9, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_OVERFLOW_BADLY"),
        (3, -1, ResponseCode.PULL_OFFSET_MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    client: WireClient, stored: int, offset: int, code: int, next_offset: int, remark: str
) -> None:
    client.send("orders", b"x", 1)  # the topic
    for _ in range(stored):
        client.send("orders")
    answer = client.pull("orders", offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert answer.ext == {
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(stored),
        "suggestWhichBrokerId": "0",
    }


def test_the_tag_filter_returns_matching_messages_and_skips_the_others(client: WireClient) -> None:
    for tag in ("a", "b", "a", "c", "b"):
        client.send("orders", tag.encode(), properties={"KEYS": "k", "TAGS": tag})
    client.send("orders", b"none")
    answer = client.pull("orders", 0, tags="a || c")
    assert [m.body for m in records(answer.body)] == [b"a", b"a", b"c"]
    assert answer.ext["nextBeginOffset"] == "6"


def test_a_pull_without_a_match_returns_the_offset_to_continue_from(client: WireClient) -> None:
    for _ in range(5):
        client.send("orders", properties={"TAGS": "a"})
    answer = client.pull("orders", 1, tags="b")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "5"


def test_a_filtered_pull_scans_a_bounded_number_of_messages(client: WireClient) -> None:
    fill(client, 16_500)
    answer = client.pull("orders", 0, tags="b")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "16000"


def test_a_filtered_pull_stops_after_the_last_message_it_returns(client: WireClient) -> None:
    for _ in range(10):
        client.send("orders", properties={"TAGS": "a"})
    answer = client.pull("orders", 0, tags="a", count=4)
    assert len(records(answer.body)) == 4
    assert answer.ext["nextBeginOffset"] == "4"


def test_a_pull_without_an_expression_uses_the_subscription_of_the_heartbeat(
    client: WireClient,
) -> None:
    client.send("orders", b"a", properties={"TAGS": "a"})
    client.send("orders", b"b", properties={"TAGS": "b"})
    assert client.pull("orders", 0, tags=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    client.heartbeat("group", {"orders": "b"}, version=5)
    answer = client.pull("orders", 0, tags=None, subscription_version=5)
    assert [m.body for m in records(answer.body)] == [b"b"]
    newer = client.pull("orders", 0, tags=None, subscription_version=6)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_sql_filters_are_refused_with_the_reason(client: WireClient) -> None:
    client.send("orders")
    answer = client.pull("orders", 0, tags="a > 1", expression_type="SQL92")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "SQL92" in (answer.remark or "")


def test_a_pull_of_an_unknown_topic_or_queue_is_refused(client: WireClient) -> None:
    client.send("orders")
    assert client.pull("missing", 0).code == ResponseCode.TOPIC_NOT_EXIST
    assert client.pull("orders", 0, 99).code == ResponseCode.INVALID_PARAMETER
    assert client.pull("orders", 0, tags="||").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_message_releases_a_held_pull_after_the_reply_to_its_sender(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.send("orders")
    waiting = client.start_pull("orders", 1, suspend_ms=15_000)
    assert not client.has_answer(waiting)
    assert broker.statistics.held_pulls == 1
    client.send("orders", b"late")
    answer = client.wait(waiting)
    assert [m.body for m in records(answer.body)] == [b"late"]
    assert broker.statistics.held_pulls == 0


def test_a_held_pull_blocks_no_other_request_of_its_connection(client: WireClient) -> None:
    client.send("orders")
    waiting = [client.start_pull("orders", 1, suspend_ms=15_000) for _ in range(3)]
    assert client.heartbeat("group", {"orders": "*"}).code == 0
    assert client.lock("group", "orders", 0).code == 0
    client.send("orders")
    assert {client.wait(one).code for one in waiting} == {0}


def test_a_message_of_another_tag_or_queue_releases_no_pull(client: WireClient) -> None:
    client.send("orders")
    waiting = client.start_pull("orders", 1, suspend_ms=15_000, tags="b")
    client.send("orders", properties={"TAGS": "a"})
    client.send("orders", b"x", 1, properties={"TAGS": "b"})
    assert not client.has_answer(waiting)
    client.send("orders", b"b", properties={"TAGS": "b"})
    answer = client.wait(waiting)
    assert [m.body for m in records(answer.body)] == [b"b"]
    assert answer.ext["nextBeginOffset"] == "3"


def test_a_held_pull_is_answered_at_its_deadline(client: WireClient, clock: ManualClock) -> None:
    client.send("orders")
    long = client.start_pull("orders", 1, suspend_ms=15_000)
    short = client.start_pull("orders", 1, suspend_ms=300)
    client.round_trip()
    clock.advance(300)
    answer = client.wait(short, clock)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext["nextBeginOffset"] == "1"
    assert not client.has_answer(long)


def test_a_held_filtered_pull_returns_the_offset_the_broker_scanned_to(
    client: WireClient, clock: ManualClock
) -> None:
    client.send("orders")
    waiting = client.start_pull("orders", 1, suspend_ms=300, tags="b")
    client.send("orders", properties={"TAGS": "a"})
    clock.advance(300)
    answer = client.wait(waiting, clock)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "2"


def test_the_pulls_of_a_closed_connection_are_dropped(
    connect: Connect, broker: EmbeddedBroker
) -> None:
    first, second = connect("first"), connect("second")
    first.send("orders")
    first.start_pull("orders", 1, suspend_ms=15_000)
    first.round_trip()
    assert broker.statistics.held_pulls == 1
    first.close()
    while broker.statistics.connections > 1:
        second.round_trip()
    assert broker.statistics.held_pulls == 0
    assert second.send("orders").code == 0


def test_a_pull_commits_the_offset_it_carries(client: WireClient) -> None:
    client.send("orders")
    flag = int(PullFlag.COMMIT_OFFSET)
    client.pull("orders", 1, flag=flag, commit_offset=1, suspend_ms=0)
    assert client.committed("group", "orders") == 1


def test_a_lite_pull_is_a_pull(client: WireClient) -> None:
    client.send("orders", b"x")
    ext = {
        "consumerGroup": "group", "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "10", "sysFlag": "22", "commitOffset": "0", "suspendTimeoutMillis": "20000",
        "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    assert len(records(client.call(RequestCode.LITE_PULL_MESSAGE, ext).body)) == 1
