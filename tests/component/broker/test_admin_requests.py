"""Requests of admin tools: resets, searches, questions to a group's members."""

from __future__ import annotations

from ordermq import json_text
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, queue_table

FOREVER = str((1 << 63) - 1)


def reset(client: WireClient, timestamp: int = 0, **ext: str) -> Command:
    asked = {"topic": "orders", "group": "group", "timestamp": str(timestamp), "isForce": "true"}
    return client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked | ext)


def find(client: WireClient, key: str, most: int = 32, **ext: str) -> Command:
    asked = {
        "topic": "orders",
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": "0",
        "endTimestamp": FOREVER,
    }
    return client.call(RequestCode.QUERY_MESSAGE, asked | ext)


def bodies(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(StoredMessage.read(data[:size]).body)
        data = data[size:]
    return found


def send_with_keys(client: WireClient, *keys: str) -> None:
    for number, key in enumerate(keys):
        answer = client.send(
            "orders", str(number).encode(), number % 4, properties={props.KEYS: key}
        )
        assert answer.code == 0


def test_a_reset_moves_a_group_without_members(client: WireClient) -> None:
    for _ in range(3):
        client.send("orders")
    client.commit("group", "orders", 3)
    answer = reset(client)
    assert answer.code == 0
    key = '{"brokerName":"embedded","queueId":0,"topic":"orders"}'
    assert queue_table(answer.body)["offsetTable"][key] == 0
    assert client.committed("group", "orders") == 0
    client.commit("group", "orders", 2)
    assert client.committed("group", "orders") == 2


def test_a_reset_reaches_a_live_member_at_its_next_pull_and_ignores_its_commits_until_then(
    client: WireClient,
) -> None:
    for _ in range(3):
        client.send("orders")
    client.heartbeat("group", {"orders": "*"})
    client.commit("group", "orders", 3)
    assert reset(client).code == 0
    client.commit("group", "orders", 3)
    assert client.committed("group", "orders") == 0
    moved = client.pull("orders", 3)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert client.pull("orders", 0).code == 0
    client.commit("group", "orders", 1)
    assert client.committed("group", "orders") == 1


def test_a_reset_ends_a_held_pull(client: WireClient) -> None:
    client.send("orders")
    client.heartbeat("group", {"orders": "*"})
    client.commit("group", "orders", 1)
    held = client.start_pull("orders", 1, suspend_ms=60_000)
    client.round_trip()
    assert reset(client).code == 0
    assert client.wait(held).code == ResponseCode.PULL_OFFSET_MOVED


def test_a_reset_goes_forward_only_if_forced(client: WireClient) -> None:
    for _ in range(3):
        client.send("orders")
    client.commit("group", "orders", 1)
    reset(client, -1, isForce="false")
    assert client.committed("group", "orders") == 1
    reset(client, -1)
    assert client.committed("group", "orders") == 3


def test_a_reset_may_name_a_queue_and_an_offset(client: WireClient) -> None:
    for queue_id in (0, 1):
        for _ in range(3):
            client.send("orders", queue_id=queue_id)
        client.commit("group", "orders", 3, queue_id)
    reset(client, queueId="1", offset="2")
    assert client.committed("group", "orders", 0) == 3
    assert client.committed("group", "orders", 1) == 2
    assert reset(client, queueId="9").code == ResponseCode.INVALID_PARAMETER
    for name in ("queueId", "offset"):
        remark = reset(client, **{name: "x"}).remark or ""
        assert remark == f"request 222: field {name!r} is 'x', not a number"


def test_a_reset_of_an_unknown_group_is_refused(client: WireClient) -> None:
    client.send("orders")
    assert reset(client, group="nobody").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_message_is_found_by_each_of_its_keys_and_by_its_id(client: WireClient) -> None:
    send_with_keys(client, "a b", "b", "ab", "c")
    client.send("orders", b"id", properties={props.UNIQ_KEY: "0A0B"})
    assert sorted(bodies(find(client, "b").body)) == [b"0", b"1"]
    assert bodies(find(client, "ab").body) == [b"2"]
    assert bodies(find(client, "0A0B", _UNIQUE_KEY_QUERY="true").body) == [b"id"]
    assert find(client, "x").code == ResponseCode.QUERY_NOT_FOUND


def test_the_newest_messages_of_a_key_are_found_first(
    client: WireClient, clock: ManualClock
) -> None:
    for number in range(100):
        clock.advance(10)
        client.send("orders", str(number).encode(), number % 2, properties={props.KEYS: "k"})
    assert bodies(find(client, "k", most=3).body) == [b"99", b"98", b"97"]


def test_a_search_is_bounded_by_time(client: WireClient, clock: ManualClock) -> None:
    client.send("orders", b"early", properties={props.KEYS: "k"})
    clock.advance(1_000)
    client.send("orders", b"late", properties={props.KEYS: "k"})
    late = StoredMessage.read(find(client, "k", most=1).body).stored_ms
    assert bodies(find(client, "k", beginTimestamp=str(late)).body) == [b"late"]
    assert bodies(find(client, "k", endTimestamp=str(late - 1)).body) == [b"early"]


def test_a_request_to_a_member_is_passed_on_and_answered(
    client: WireClient, connect: Connect
) -> None:
    member = connect("member")
    member.heartbeat("group", {"orders": "*"})
    member.notices()
    ext = {"consumerGroup": "group", "clientId": "member"}
    asked = client.start(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    request = member.notice()
    assert (request.code, dict(request.ext)) == (RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    member.socket.sendall(encode(request.reply(0, body=b'{"mqTable":{}}')))
    answer = client.wait(asked)
    assert (answer.code, answer.body) == (0, b'{"mqTable":{}}')


def test_a_request_to_a_member_that_leaves_or_does_not_respond_is_answered_with_an_error(
    client: WireClient, connect: Connect, clock: ManualClock
) -> None:
    ext = {"consumerGroup": "group", "clientId": "member"}
    member = connect("member")
    member.heartbeat("group", {"orders": "*"})
    silent = client.start(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert client.wait(silent, clock).code == ResponseCode.CONSUME_MSG_TIMEOUT
    left = client.start(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    client.round_trip()
    member.close()
    assert client.wait(left).code == ResponseCode.CONSUME_MSG_TIMEOUT
    gone = client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    assert gone.code == ResponseCode.SYSTEM_ERROR


def test_a_member_is_handed_a_stored_message_to_consume_directly(
    client: WireClient, connect: Connect
) -> None:
    stored = client.send("orders", b"one")
    member = connect("member")
    member.heartbeat("group", {"orders": "*"})
    member.notices()
    ext = {"consumerGroup": "group", "clientId": "member", "msgId": stored.ext["msgId"]}
    asked = client.start(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    request = member.notice()
    assert bodies(request.body) == [b"one"]
    member.socket.sendall(encode(request.reply(0, body=b"{}")))
    assert client.wait(asked).code == 0
    wrong = client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext | {"msgId": "not an id"})
    assert wrong.code == ResponseCode.SYSTEM_ERROR


def test_a_group_is_listed_and_deleted_with_its_offsets(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.send("orders")
    client.commit("group", "orders", 1)
    told = client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "group"})
    assert json_text.loads(told.body)["groupName"] == "group"
    ext = {"groupName": "group", "cleanOffset": "true"}
    assert client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == 0
    gone = client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "group"})
    assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert client.committed("group", "orders") is None
