"""Routes, topics and what admin tools ask (docs/internals/protocol.md#name-server,
docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq import json_text
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.remoting.bodies import TopicRoute
from ordermq.remoting.codes import RequestCode, ResponseCode
from tests.component.broker.wire_client import WireClient, queue_table


def create(client: WireClient, name: str, queues: int = 4, perm: int = 6) -> Any:
    ext = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues),
        "writeQueueNums": str(queues), "perm": str(perm), "topicFilterType": "SINGLE_TAG",
        "order": "true",
    }  # fmt: skip
    return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def test_a_route_names_the_address_that_was_dialled(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.send("orders", default_topic_queue_nums=3)
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    route = TopicRoute.from_body(answer.body)
    assert route.brokers[0].master == broker.address == broker.name_servers
    (queues,) = route.queues
    assert (queues.broker_name, queues.read_queue_nums, queues.perm) == ("embedded", 3, 6)


def test_an_unknown_topic_has_no_route(client: WireClient) -> None:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_template_has_a_route_with_auto_create_topics(client: WireClient) -> None:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    (queues,) = TopicRoute.from_body(answer.body).queues
    assert (queues.write_queue_nums, queues.perm) == (8, 7)


@pytest.mark.parametrize("broker_config", [BrokerConfig(auto_create_topics=False)])
def test_the_template_has_no_route_without_auto_create_topics(client: WireClient) -> None:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_cluster_is_this_broker(client: WireClient, broker: EmbeddedBroker) -> None:
    found = json_text.loads(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert found["brokerAddrTable"]["embedded"]["brokerAddrs"] == {"0": broker.address}
    assert found["clusterAddrTable"] == {"DefaultCluster": ["embedded"]}


def test_a_created_topic_has_the_requested_settings(client: WireClient) -> None:
    assert create(client, "orders", 12).code == 0
    found = json_text.loads(client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"}).body)
    assert (found["readQueueNums"], found["order"], found["perm"]) == (12, True, 6)
    assert client.send("orders", b"x", 11).code == 0
    listed = client.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert json_text.loads(listed.body) == {"topicList": ["orders"]}
    table = json_text.loads(client.call(RequestCode.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
    assert table["orders"] == found


def test_permissions_are_kept(client: WireClient) -> None:
    create(client, "read-only", perm=4)
    create(client, "write-only", perm=2)
    assert client.send("read-only").code == ResponseCode.NO_PERMISSION
    assert client.send("write-only").code == 0
    assert client.pull("write-only", 0).code == ResponseCode.NO_PERMISSION


def test_a_topic_without_queues_or_with_an_illegal_name_is_refused(client: WireClient) -> None:
    for name, queues in (("orders", 0), ("orders", 70_000), ("or ders", 4), ("", 4)):
        assert create(client, name, queues).code == ResponseCode.INVALID_PARAMETER
    assert create(client, "TBW102").code == ResponseCode.INVALID_PARAMETER


def test_a_deleted_topic_is_gone_with_its_messages_and_offsets(client: WireClient) -> None:
    client.send("orders", b"old")
    client.commit("group", "orders", 1)
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
        assert client.call(code, {"topic": "orders"}).code == 0
    assert client.pull("orders", 0).code == ResponseCode.TOPIC_NOT_EXIST
    assert client.send("orders", b"new").ext["queueOffset"] == "0"
    assert client.committed("group", "orders") is None


def test_group_settings_are_kept(client: WireClient) -> None:
    body = json_text.dumps({"groupName": "group", "retryMaxTimes": 3})
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    found = json_text.loads(client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    settings = found["subscriptionGroupTable"]["group"]
    assert (settings["retryMaxTimes"], settings["consumeEnable"]) == (3, True)


def test_a_disabled_group_may_not_pull(client: WireClient) -> None:
    client.send("orders")
    body = json_text.dumps({"groupName": "group", "consumeEnable": False})
    client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert client.pull("orders", 0).code == ResponseCode.NO_PERMISSION


def test_statistics_of_a_topic_and_of_a_group(client: WireClient) -> None:
    for _ in range(3):
        client.send("orders")
    client.commit("group", "orders", 2)
    key = '{"brokerName":"embedded","queueId":0,"topic":"orders"}'
    found = queue_table(client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body)
    assert found["offsetTable"][key]["maxOffset"] == 3
    ext = {"consumerGroup": "group", "topic": "orders"}
    found = queue_table(client.call(RequestCode.GET_CONSUME_STATS, ext).body)
    queue = found["offsetTable"][key]
    assert (queue["brokerOffset"], queue["consumerOffset"]) == (3, 2)
    info = json_text.loads(client.call(RequestCode.GET_BROKER_RUNTIME_INFO).body)
    assert info["table"]["msgPutTotalTodayNow"] == "3"
