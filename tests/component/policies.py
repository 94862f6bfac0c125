"""Accounts with policies, and requests that need access to a topic or a group."""

from __future__ import annotations

from ordermq.config import AccessPolicy
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat, LockBatch
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.wire_client import WireClient

POLICIES = {
    "shop": [AccessPolicy("Topic:orders*", "Pub, Get")],
    "billing": [
        AccessPolicy("Topic:orders*", ["SUB", "GET"]),
        AccessPolicy("Topic:orders-internal", "SUB", decision="DENY"),
        AccessPolicy("Group:billing", ["SUB", "GET"]),
    ],
    "deputy": [AccessPolicy("*", "ALL"), AccessPolicy("Topic:orders", "DELETE", "Deny")],
    "reader": [AccessPolicy("Topic:orders*", "SUB"), AccessPolicy("Group:billing", "SUB")],
    "maker": [AccessPolicy("Topic:orders*", "CREATE"), AccessPolicy("Topic:other", "UPDATE")],
    "viewer": [
        AccessPolicy("Topic:*", "GET"),
        AccessPolicy("Topic:orders", "SUB", decision="DENY"),
        AccessPolicy("Group:*", ["GET", "UPDATE"]),
    ],
    "nobody": [],
}
SECRETS = {name: f"secret of {name}" for name in ("ops", *POLICIES)}


def answer_to(port: int, account: str, request: Command) -> Command:
    """Sign a copy of a request as an account, and return the broker's answer."""
    request = Command.request(request.code, request.ext, request.body)
    Credentials(account, SECRETS[account]).sign(request)
    with WireClient(port) as client:
        return client.call(request.code, request.ext, request.body)


def send(topic: str, group: str = "p") -> Command:
    return Command.request(RequestCode.SEND_MESSAGE_V2, SendHeader(group, topic, 0).to_ext(), b"x")


def pull(topic: str, group: str = "billing") -> Command:
    header = PullHeader(group, topic, 0, 0, 32, 4, subscription="*")
    return Command.request(RequestCode.PULL_MESSAGE, header.to_ext())


def of_topic(code: int, topic: str, **more: str) -> Command:
    return Command.request(code, {"topic": topic, "queueId": "0"} | more)


def lock(topic: str, group: str = "billing") -> Command:
    body = LockBatch(group, "c", (MessageQueue(topic, "b", 0),)).to_body()
    return Command.request(RequestCode.LOCK_BATCH_MQ, {}, body)


def beat(topic: str, group: str = "billing") -> Command:
    data = ConsumerData(group, (Subscription.parse(topic, "*", 1),))
    return Command.request(RequestCode.HEART_BEAT, {}, Heartbeat("c", (data,), ()).to_body())


def commit(topic: str, group: str = "billing", code: int = 15) -> Command:
    ext = {"topic": topic, "consumerGroup": group, "group": group, "queueId": "0",
           "commitOffset": "1", "timestamp": "-1"}  # fmt: skip
    return Command.request(code, ext)


def a_topic(name: str) -> Command:
    more = {
        "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return of_topic(RequestCode.UPDATE_AND_CREATE_TOPIC, name, **more)
