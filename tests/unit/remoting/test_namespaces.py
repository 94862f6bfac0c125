"""Names with a namespace on the wire and without it above
(docs/internals/protocol.md#names-and-permissions, NamespaceUtil)."""

from __future__ import annotations

import json

import pytest

from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import unwrapped, wrapped
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat, LockBatch, locked_queues_to_body
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import GroupHeader, PullHeader, SendHeader
from ordermq.remoting.namespaces import Namespaces

NAMES = {
    "orders": "shop%orders",
    "%RETRY%billing": "%RETRY%shop%billing",
    "%DLQ%billing": "%DLQ%shop%billing",
    "other%orders": "shop%other%orders",
}


def namespaces(namespace: str = "", namespace_v2: str = "") -> Namespaces:
    return Namespaces(namespace, namespace_v2)


SHOP = namespaces(namespace="shop")


@pytest.mark.parametrize(("plain", "whole"), NAMES.items())
def test_names_are_wrapped_once_and_unwrapped(plain: str, whole: str) -> None:
    assert wrapped("shop", plain) == wrapped("shop", whole) == whole
    assert unwrapped("shop", whole) == unwrapped("shop", plain) == plain
    assert wrapped("", plain) == unwrapped("", plain) == plain


@pytest.mark.parametrize(
    "name",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_x",
        "CID_RMQ_SYS_x",
        "CLIENT_INNER_PRODUCER",
        "TOOLS_CONSUMER",
        "",
    ],
)
def test_system_names_are_in_no_namespace(name: str) -> None:
    assert wrapped("shop", name) == name


def test_headers_are_wrapped_and_the_brokers_requests_unwrapped() -> None:
    pull = PullHeader("billing", "orders", 0, 0, 32, 6, subscription="orders")
    command = Command.request(RequestCode.PULL_MESSAGE, pull.to_ext())
    SHOP.wrap_request(command)
    assert command.ext["consumerGroup"] == "shop%billing"
    assert command.ext["topic"] == "shop%orders"
    assert command.ext["subscription"] == "orders"
    told = Command.request(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader("shop%billing").to_ext()
    )
    SHOP.unwrap_request(told)
    assert told.ext == {"consumerGroup": "billing"}


def test_a_send_carries_its_namespace_and_the_producer_group_of_a_transaction() -> None:
    text = props.encode({"topic": "t", props.PRODUCER_GROUP: "makers"})
    header = SendHeader("makers", "orders", 0, properties=text)
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header.to_ext())
    SHOP.wrap_request(command)
    sent = props.decode(command.ext["i"])
    assert (command.ext["a"], command.ext["b"]) == ("shop%makers", "shop%orders")
    assert command.ext["c"] == "TBW102"
    assert sent["INSTANCE_ID"] == "shop"
    assert sent[props.PRODUCER_GROUP] == "shop%makers"
    assert sent["topic"] == "t"


def test_a_heartbeat_has_groups_and_topics_with_namespace_and_nothing_else_changed() -> None:
    tricky = Subscription("orders", 'x" || "topic":"a', ("x",), 1)
    data = ConsumerData("billing", (tricky, Subscription("%RETRY%billing", "*", (), 1)))
    heartbeat = Heartbeat("group@topic", (data,), ("CLIENT_INNER_PRODUCER", "makers"))
    command = Command.request(RequestCode.HEART_BEAT, body=heartbeat.to_body())
    SHOP.wrap_request(command)
    told = json.loads(command.body)
    (consumer,) = told["consumerDataSet"]
    assert told["clientID"] == "group@topic"
    assert consumer["groupName"] == "shop%billing"
    assert [s["topic"] for s in consumer["subscriptionDataSet"]] == [
        "shop%orders",
        "%RETRY%shop%billing",
    ]
    assert consumer["subscriptionDataSet"][0]["subString"] == tricky.expression
    groups = [item["groupName"] for item in told["producerDataSet"]]
    assert groups == ["CLIENT_INNER_PRODUCER", "shop%makers"]


def test_lock_requests_have_the_namespace_and_grants_do_not() -> None:
    queue = MessageQueue("orders", "b", 3)
    body = LockBatch("billing", "c", (queue,)).to_body()
    command = Command.request(RequestCode.LOCK_BATCH_MQ, body=body)
    SHOP.wrap_request(command)
    asked = LockBatch.from_body(command.body)
    assert asked.group == "shop%billing"
    assert asked.queues == (MessageQueue("shop%orders", "b", 3),)
    answer = command.reply(0, body=locked_queues_to_body(asked.queues))
    SHOP.unwrap_answer(RequestCode.LOCK_BATCH_MQ, answer)
    assert answer.body == locked_queues_to_body([queue])


def test_an_admin_tools_request_to_a_member_uses_names_with_namespace() -> None:
    body = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"shop%orders"}:5}}'
    ext = {"topic": "shop%orders", "group": "shop%billing"}
    reset = Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
    SHOP.unwrap_request(reset)
    assert reset.ext == {"topic": "orders", "group": "billing"}
    assert reset.body == body.replace(b"shop%", b"")
    answer = Command(0, body=b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:{}}}')
    SHOP.wrap_answer(RequestCode.GET_CONSUMER_RUNNING_INFO, answer)
    assert b'"topic":"shop%orders"' in answer.body


def test_message_bodies_are_never_touched() -> None:
    body = b'{"topic":"orders","group":"g"}'
    command = Command.request(RequestCode.SEND_MESSAGE_V2, SendHeader("g", "t", 0).to_ext(), body)
    SHOP.wrap_request(command)
    assert command.body == body


def test_a_name_that_is_too_long_with_its_namespace_is_refused_before_it_is_sent() -> None:
    header = SendHeader("makers", "t" * 125, 0)
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header.to_ext())
    with pytest.raises(ConfigError, match="130 characters including its namespace"):
        SHOP.wrap_request(command)


def test_the_namespace_of_rocketmq_5_is_sent_next_to_plain_names() -> None:
    command = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    namespaces(namespace_v2="tenant").wrap_request(command)
    assert command.ext == {"topic": "orders", "nsd": "true", "ns": "tenant"}


@pytest.mark.parametrize("name", ["a%b", "a b", "ä", 7])
def test_an_invalid_namespace_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match=r"^namespace="):
        RemotingConfig(namespace=name)  # type: ignore[arg-type]
