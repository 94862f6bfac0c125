"""Members: registered before the answer, gone with their connection
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

from ordermq import json_text
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient

TOPICS = {"orders": "*"}


def groups(notices: list[Command]) -> list[str]:
    return [one.ext["consumerGroup"] for one in notices]


def test_a_member_is_listed_right_after_its_heartbeat(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.heartbeat("group", TOPICS)
    second.heartbeat("group", TOPICS)
    assert first.members("group") == ["first", "second"]


def test_a_group_without_members_is_an_error(client: WireClient) -> None:
    ext = {"consumerGroup": "group"}
    answer = client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_every_member_is_notified_of_a_new_one_including_itself(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.heartbeat("group", TOPICS)
    assert groups(first.notices()) == ["group"]
    second.heartbeat("group", TOPICS)
    assert groups(first.notices()) == ["group"]
    assert groups(second.notices()) == ["group"]


def test_a_repeated_heartbeat_notifies_no_member(connect: Connect) -> None:
    first = connect("first")
    for version in (1, 2, 3):
        first.heartbeat("group", TOPICS, version)
    assert groups(first.notices()) == ["group"]


def test_a_changed_set_of_topics_notifies_the_members(client: WireClient) -> None:
    client.heartbeat("group", TOPICS)
    client.heartbeat("group", TOPICS | {"more": "*"}, version=2)
    client.heartbeat("group", TOPICS, version=3)
    assert groups(client.notices()) == ["group"] * 3


def test_broadcasting_groups_get_no_notices(client: WireClient) -> None:
    client.heartbeat("group", TOPICS, message_model="BROADCASTING")
    assert client.notices() == []


def test_the_retry_topic_is_there_before_the_heartbeat_is_answered(client: WireClient) -> None:
    client.heartbeat("group", TOPICS)
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%group"})
    assert json_text.loads(answer.body)["queueDatas"][0]["readQueueNums"] == 1


def test_a_member_that_unregisters_is_removed_and_the_others_notified(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.heartbeat("group", TOPICS)
    second.heartbeat("group", TOPICS)
    first.notices()
    ext = {"clientID": "second", "consumerGroup": "group"}
    assert second.call(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    assert groups(first.notices()) == ["group"]
    assert first.members("group") == ["first"]


def test_a_closed_connection_removes_its_members_at_once(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.heartbeat("group", TOPICS)
    second.heartbeat("group", TOPICS)
    first.notices()
    second.close()
    assert first.notice().ext["consumerGroup"] == "group"
    assert first.members("group") == ["first"]


def test_the_end_of_an_old_connection_does_not_remove_the_new_one(connect: Connect) -> None:
    old, new = connect("same"), connect("same")
    old.heartbeat("group", TOPICS)
    new.heartbeat("group", TOPICS)
    assert new.members("group") == ["same"]
    new.notices()
    old.close()
    new.notice()
    assert new.members("group") == ["same"]


def test_a_silent_member_is_dropped_and_its_connection_closed(
    connect: Connect, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    silent, alive = connect("silent"), connect("alive")
    silent.heartbeat("group", TOPICS)
    clock.advance(100_000)
    alive.heartbeat("group", TOPICS)
    alive.notices()
    clock.advance(20_001)
    assert alive.notice(clock).ext["consumerGroup"] == "group"
    assert alive.members("group") == ["alive"]
    assert silent.is_closed()
    assert broker.statistics.members_expired == 1


def test_a_client_configuration_with_tags_is_accepted_and_with_sql_refused(
    client: WireClient,
) -> None:
    for kind, code in (("TAG", 0), ("SQL92", ResponseCode.SYSTEM_ERROR)):
        body = json_text.dumps({"subscriptionData": {"expressionType": kind}})
        assert client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


def test_the_broker_assigns_queues_for_clients_that_request_it(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.send("orders", default_topic_queue_nums=5)
    shares = []
    for member in (first, second):
        member.heartbeat("group", TOPICS)
    for member in (first, second):
        body = json_text.dumps(
            {"clientId": member.name, "consumerGroup": "group", "messageModel": "CLUSTERING",
             "strategyName": "AVG", "topic": "orders"}
        )  # fmt: skip
        answer = json_text.loads(member.call(RequestCode.QUERY_ASSIGNMENT, body=body).body)
        assert {one["mode"] for one in answer["messageQueueAssignments"]} == {"PULL"}
        shares.append([one["messageQueue"]["queueId"] for one in answer["messageQueueAssignments"]])
    assert shares == [[0, 1, 2], [3, 4]]


def test_admin_tools_see_the_connections_of_a_group(client: WireClient) -> None:
    client.heartbeat("group", {"orders": "a || b"})
    ext = {"consumerGroup": "group"}
    found = json_text.loads(client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext).body)
    (connection,) = found["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("client-1", "PYTHON")
    assert found["subscriptionTable"]["orders"]["subString"] == "a || b"
    ext = {"consumerGroup": "nobody"}
    answer = client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
