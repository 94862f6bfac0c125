"""What admin requests bring back, as RocketMQ's brokers and Java's clients write it."""

from __future__ import annotations

import pytest

from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import (
    HeldLock,
    QueueProgress,
    connections_from_body,
    held_locks_from_body,
    held_locks_to_body,
    holdings_from_body,
    masters_from_body,
    progress_from_body,
)

QUEUE = MessageQueue("orders", "broker-a", 3)
NAME = b'{"brokerName":"broker-a","queueId":3,"topic":"orders"}'


def test_progress_is_read_where_objects_are_names_of_members() -> None:
    row = b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":77,"pullOffset":6}'
    found = progress_from_body(b'{"consumeTps":0.5,"offsetTable":{' + NAME + b":" + row + b"}}")
    assert found == {QUEUE: QueueProgress(9, 4, 77)}
    assert found[QUEUE].lag == 5


def test_a_committed_offset_beyond_the_end_is_no_negative_lag() -> None:
    assert QueueProgress(3, 9, 0).lag == 0


def test_what_a_member_holds_is_read_from_its_running_info() -> None:
    row = (
        b'{"cachedMsgCount":7,"commitOffset":4,"droped":false,"locked":true,'
        b'"transactionMsgCount":2}'
    )
    body = b'{"jstack":"","mqTable":{' + NAME + b":" + row + b'},"properties":{"a":"b"}}'
    held = holdings_from_body(body)[QUEUE]
    assert (held.is_locked, held.done, held.buffered, held.in_listener) == (True, 4, 7, 2)


def test_masters_are_found_whether_broker_ids_are_quoted_or_not() -> None:
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
def test_another_shape_is_refused(read: object, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(body)  # type: ignore[operator]
