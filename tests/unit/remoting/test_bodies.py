"""The JSON bodies: what is written is read back, and anything else is a protocol error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.admin_bodies import (
    HeldLock,
    QueueProgress,
    connections_from_body,
    held_locks_from_body,
    held_locks_to_body,
    holdings_from_body,
    progress_from_body,
    runtime_of,
    wall_ms_of_state,
)
from ordermq.remoting.bodies import (
    BrokerData,
    ConsumerData,
    Heartbeat,
    LockBatch,
    QueueData,
    TopicRoute,
    client_ids_from_body,
    client_ids_to_body,
    locked_queues_from_body,
    locked_queues_to_body,
    masters_from_body,
    queue_table_from_body,
    queue_table_to_json,
)

QUEUES = (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))
ROUTE = TopicRoute(
    (BrokerData("b", {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}, "C"),),
    (QueueData("b", 4, 8, 6),),
    "b:4",
)
HEARTBEAT = Heartbeat(
    "127.0.0.1@1",
    (ConsumerData("G", (Subscription("T", "a || b", ("a", "b"), 7),)),),
    ("P",),
)
READERS: list[Callable[[bytes], object]] = [
    TopicRoute.from_body,
    LockBatch.from_body,
    Heartbeat.from_body,
    locked_queues_from_body,
    client_ids_from_body,
]


def test_a_route_comes_back_as_it_was_written() -> None:
    assert TopicRoute.from_body(ROUTE.to_body()) == ROUTE
    assert ROUTE.brokers[0].master == "127.0.0.1:10911"
    assert BrokerData("b", {1: "127.0.0.1:10921"}).master is None


def test_a_route_is_strict_json_with_quoted_broker_ids() -> None:
    value = json.loads(ROUTE.to_body())
    assert value["brokerDatas"][0]["brokerAddrs"] == {
        "0": "127.0.0.1:10911",
        "1": "127.0.0.1:10921",
    }
    assert value["queueDatas"] == [
        {"brokerName": "b", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
    ]


def test_a_route_of_java_is_read() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )
    assert TopicRoute.from_body(body) == TopicRoute(
        (BrokerData("broker-a", {0: "127.0.0.1:10911"}, "DefaultCluster"),),
        (QueueData("broker-a", 4, 4),),
    )


def test_a_heartbeat_comes_back_as_it_was_written() -> None:
    assert Heartbeat.from_body(HEARTBEAT.to_body()) == HEARTBEAT


def test_a_heartbeat_carries_the_tag_hashes_the_broker_filters_by() -> None:
    heartbeat = Heartbeat("c", (ConsumerData("G", (Subscription("T", "TagA", ("TagA",), 1),)),))
    subscription = json.loads(heartbeat.to_body())["consumerDataSet"][0]["subscriptionDataSet"][0]
    assert subscription["codeSet"] == [2_598_919]


def test_a_heartbeat_with_an_sql_filter_is_refused() -> None:
    body = HEARTBEAT.to_body().replace(b'"TAG"', b'"SQL92"')
    with pytest.raises(ProtocolError, match="SQL92"):
        Heartbeat.from_body(body)


def test_lists_come_back_as_they_were_written() -> None:
    batch = LockBatch("G", "c", QUEUES)
    assert LockBatch.from_body(batch.to_body()) == batch
    assert locked_queues_from_body(locked_queues_to_body(QUEUES)) == list(QUEUES)


def test_client_ids_come_sorted_and_once_each() -> None:
    assert client_ids_from_body(client_ids_to_body(["b", "a", "b"])) == ["a", "b"]


@pytest.mark.parametrize("body", [b"{}", b'{"lockOKMQSet":null}', b'{"lockOKMQSet":[]}'])
def test_a_lock_answer_without_queues_grants_nothing(body: bytes) -> None:
    assert locked_queues_from_body(body) == []


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__qualname__)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'"x"', b"\xff", b'{0:"x"}'])
def test_a_body_that_is_no_json_object_is_a_protocol_error(
    read: Callable[[bytes], object], body: bytes
) -> None:
    with pytest.raises(ProtocolError):
        read(body)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (TopicRoute.from_body, b"{}"),
        (TopicRoute.from_body, b'{"brokerDatas":[1],"queueDatas":[]}'),
        (TopicRoute.from_body, b'{"brokerDatas":[{"brokerAddrs":{"x":"a"}}],"queueDatas":[]}'),
        (TopicRoute.from_body, b'{"brokerDatas":[],"queueDatas":{}}'),
        (TopicRoute.from_body, b'{"brokerDatas":[],"queueDatas":[],"orderTopicConf":5}'),
        (LockBatch.from_body, b'{"consumerGroup":"G","clientId":"c","mqSet":[1]}'),
        (LockBatch.from_body, b'{"consumerGroup":"G","clientId":1,"mqSet":[]}'),
        (
            LockBatch.from_body,
            b'{"consumerGroup":"G","clientId":"c","mqSet":[{"topic":"T","brokerName":"b",'
            b'"queueId":true}]}',
        ),
        (Heartbeat.from_body, b'{"clientID":"c","consumerDataSet":5}'),
        (Heartbeat.from_body, b'{"clientID":"c","consumerDataSet":[5]}'),
        (Heartbeat.from_body, b'{"clientID":"c","producerDataSet":[5]}'),
        (
            Heartbeat.from_body,
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[7]}]}',
        ),
        (client_ids_from_body, b'{"consumerIdList":"abc"}'),
        (client_ids_from_body, b'{"consumerIdList":[1]}'),
        (locked_queues_from_body, b'{"lockOKMQSet":{}}'),
    ],
)
def test_a_member_of_the_wrong_kind_is_a_protocol_error(
    read: Callable[[bytes], object], body: bytes
) -> None:
    with pytest.raises(ProtocolError):
        read(body)


BODIES = [
    ROUTE.to_body(),
    HEARTBEAT.to_body(),
    LockBatch("G", "c", QUEUES).to_body(),
    locked_queues_to_body(QUEUES),
    client_ids_to_body(["a", "b"]),
]
WRONG = st.sampled_from([None, True, 0, -1, 1.5, "", "x", [], [1], {}, {"x": 1}])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    if not isinstance(value, dict | list):
        return []
    keys: Any = list(value) if isinstance(value, dict) else range(len(value))
    return [place for key in keys for place in ((value, key), *places(value[key]))]


@given(st.data())
def test_a_body_with_one_damaged_member_is_read_or_a_protocol_error(data: st.DataObject) -> None:
    read, body = data.draw(st.sampled_from(list(zip(READERS, BODIES, strict=True))))
    value = json.loads(body)
    container, key = data.draw(st.sampled_from(places(value)))
    container[key] = data.draw(WRONG)
    with contextlib.suppress(ProtocolError):
        read(json.dumps(value).encode())


def test_a_table_by_queue_is_read_as_java_writes_it_and_as_cpp_gets_it() -> None:
    table = {QUEUES[0]: 5, QUEUES[1]: 1 << 40, MessageQueue("%RETRY%G", "b-1", 2): 0}
    java = b'{"other":{"a":{"b":1}},"offsetTable":' + queue_table_to_json(table) + b"}"
    assert queue_table_from_body(java, "offsetTable") == table
    rows = ",".join(
        f'{{"brokerName":"{q.broker_name}","offset":{n},"queueId":{q.queue_id},"topic":"{q.topic}"}}'
        for q, n in table.items()
    )
    assert queue_table_from_body(f'{{"offsetTable":[{rows}]}}'.encode(), "offsetTable") == table
    assert queue_table_from_body(b'{"offsetTable": {}}', "offsetTable") == {}


@given(st.binary(max_size=60) | st.text('{}[]:,"01 offsetTable', max_size=60).map(str.encode))
def test_a_table_by_queue_of_any_bytes_is_read_or_a_protocol_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        queue_table_from_body(body, "offsetTable")


QUEUE = MessageQueue("orders", "broker-a", 3)
NAME = b'{"brokerName":"broker-a","queueId":3,"topic":"orders"}'


def test_progress_is_read_from_java_with_objects_as_member_names() -> None:
    row = b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":77,"pullOffset":6}'
    found = progress_from_body(b'{"consumeTps":0.5,"offsetTable":{' + NAME + b":" + row + b"}}")
    assert found == {QUEUE: QueueProgress(9, 4, 77)}
    assert found[QUEUE].lag == 5


def test_a_committed_offset_beyond_the_end_gives_no_negative_lag() -> None:
    assert QueueProgress(3, 9, 0).lag == 0
    assert QueueProgress(9, None, 0, consumed=7).lag == 2, "done, and not committed yet"
    assert QueueProgress(9, 8, 0, consumed=7).lag == 1, "committed by its next owner since"


def test_a_members_queues_are_read_from_its_running_info() -> None:
    row = (
        b'{"cachedMsgCount":7,"commitOffset":4,"droped":false,"locked":true,'
        b'"transactionMsgCount":2}'
    )
    body = b'{"jstack":"","mqTable":{' + NAME + b":" + row + b'},"properties":{"a":"b"}}'
    held = holdings_from_body(body)[QUEUE]
    assert (held.is_locked, held.done, held.buffered, held.in_listener) == (True, 4, 7, 2)


def test_masters_are_read_with_quoted_and_unquoted_broker_ids() -> None:
    for master, slave in ((b"0", b"1"), (b'"0"', b'"1"')):
        body = (
            b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{' + master + b':"10.0.0.1:10911",'
            + slave + b':"10.0.0.2:10911"},"brokerName":"broker-a"},'
            b'"broker-b":{"brokerAddrs":{' + slave + b':"10.0.0.3:10911"}}}}'
        )  # fmt: skip
        assert masters_from_body(body) == {"broker-a": "10.0.0.1:10911"}


def test_connections_without_members_are_empty() -> None:
    assert connections_from_body(b'{"connectionSet":[]}').members == ()


def test_held_locks_come_back_as_they_were() -> None:
    lock = HeldLock(QUEUE, "member@1", 12, 59_000)
    assert held_locks_from_body(held_locks_to_body([lock, None])) == [lock]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_a_brokers_clock_is_read_at_most_a_second_behind(begun_ms: int, uptime_ms: int) -> None:
    state = {"bootTimestamp": str(begun_ms), "runtime": runtime_of(uptime_ms)}
    told_ms = wall_ms_of_state(state)
    assert told_ms is not None
    assert 0 <= begun_ms + uptime_ms - told_ms < 1_000


@pytest.mark.parametrize(
    ("runtime", "days"),
    [("[ 1,234 days, 0 hours, 0 minutes, 0 seconds ]", 1_234),
     ("[ 1.234 days, 0 hours, 0 minutes, 0 seconds ]", 1_234),
     ("[ 3 Tage ]", None), ("", None)],
)  # fmt: skip
def test_a_brokers_clock_in_other_languages(runtime: str, days: int | None) -> None:
    expected = None if days is None else 5 + days * 86_400_000
    assert wall_ms_of_state({"bootTimestamp": "5", "runtime": runtime}) == expected
    assert wall_ms_of_state({"runtime": runtime}) is None


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (progress_from_body, b'{"offsetTable":[]}'),
        (progress_from_body, b'{"offsetTable":{' + NAME + b":3}}"),
        (progress_from_body, b'{"offsetTable":{' + NAME + b':{"brokerOffset":true}}}'),
        (connections_from_body, b'{"connectionSet":{}}'),
        (connections_from_body, b'{"connectionSet":[{"clientId":1}]}'),
        (holdings_from_body, b'{"mqTable":7}'),
        (masters_from_body, b'{"brokerAddrTable":[]}'),
        (masters_from_body, b'{"brokerAddrTable":{"a":{}}}'),
        (held_locks_from_body, b'{"locks":[{}]}'),
    ],
)  # fmt: skip
def test_malformed_admin_bodies_are_a_protocol_error(read: object, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(body)  # type: ignore[operator]
