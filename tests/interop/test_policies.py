"""Decisions of the embedded broker about accounts with policies, beside those of RocketMQ's ACL 2
(docs/security.md#policies)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.policies import (
    POLICIES,
    SECRETS,
    a_topic,
    answer_to,
    beat,
    commit,
    lock,
    of_topic,
    pull,
    send,
)
from tests.interop.cluster import Cluster
from tests.interop.own_cluster import own_cluster
from tests.interop.test_permissions import settings_of

CREATE_USER, CREATE_ACL = 3001, 3006
TOPICS = ("orders", "orders-internal", "other")
GROUPS = ("billing", "other")


def of_group(code: int, group: str, **more: str) -> Command:
    return Command.request(code, {"consumerGroup": group, "group": group} | more)


def requests() -> dict[str, Command]:
    """Return what each account asks, by name, in an order that leaves the topics until the end."""
    found: dict[str, Command] = {}
    for topic in TOPICS:
        found[f"send to {topic}"] = send(topic)
        found[f"route of {topic}"] = of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic)
        found[f"last offset of {topic}"] = of_topic(RequestCode.GET_MAX_OFFSET, topic)
        found[f"first offset of {topic}"] = of_topic(RequestCode.GET_MIN_OFFSET, topic)
        found[f"configuration of {topic}"] = of_topic(RequestCode.GET_TOPIC_CONFIG, topic)
        found[f"statistics of {topic}"] = of_topic(RequestCode.GET_TOPIC_STATS_INFO, topic)
        for group in GROUPS:
            found[f"heartbeat of {group} for {topic}"] = beat(topic, group)
            found[f"pull of {group} from {topic}"] = pull(topic, group)
            found[f"lock of {group} on {topic}"] = lock(topic, group)
            found[f"commit of {group} on {topic}"] = commit(topic, group)
            found[f"reset of {group} on {topic}"] = commit(topic, group, code=222)
    for group in GROUPS:
        found[f"members of {group}"] = of_group(RequestCode.GET_CONSUMER_LIST_BY_GROUP, group)
        found[f"connections of {group}"] = of_group(RequestCode.GET_CONSUMER_CONNECTION_LIST, group)
        found[f"send to the retry topic of {group}"] = send(f"%RETRY%{group}", group)
    found["names of topics"] = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
    found["cluster"] = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    found["change of orders"] = a_topic("orders")
    found["new topic"] = a_topic("orders-new")
    for topic in ("orders-new", "orders", "other"):
        found[f"end of {topic}"] = of_topic(RequestCode.DELETE_TOPIC_IN_BROKER, topic)
    return found


def create(port: int, code: int, ext: dict[str, str], body: dict[str, object]) -> None:
    answer = answer_to(port, "ops", Command.request(code, ext, json.dumps(body).encode()))
    assert answer.code == 0, answer.remark


def entry(policy: AccessPolicy) -> dict[str, object]:
    """Return a policy as RocketMQ's tools send it."""
    return {
        "resource": policy.resource,
        "actions": list(policy.actions),
        "decision": policy.decision,
    }


@pytest.fixture(scope="module")
def policed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a RocketMQ that has the accounts and their policies."""
    if cluster.version < "5.3":
        pytest.skip("ACL 2 came with 5.3; the permissions of 4.9 are in test_permissions.py")
    folder = tmp_path_factory.mktemp("policies") / "rocketmq"
    secret = SECRETS["ops"]
    settings = settings_of(cluster.version, folder) | {
        "migrateAuthFromV1Enabled": "false",
        "initAuthenticationUser": json.dumps({"username": "ops", "password": secret}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "ops", "secretKey": secret}
        ),
    }
    with own_cluster(cluster.version, folder, **settings) as running:
        port = int(running.addresses["broker-a"].rpartition(":")[2])
        for name in POLICIES:
            user = {"username": name, "password": SECRETS[name], "userType": "Normal"}
            create(port, CREATE_USER, {"username": name}, user)
        for name, policies in POLICIES.items():
            if policies:
                acl = {
                    "subject": f"User:{name}",
                    "policies": [{"entries": list(map(entry, policies))}],
                }
                create(port, CREATE_ACL, {"subject": f"User:{name}"}, acl)
        yield port


def refusals(port: int) -> set[tuple[str, str]]:
    """Return what a broker refuses: accounts, and what they asked."""
    found = set()
    for account in POLICIES:
        for topic in TOPICS:
            answer = answer_to(port, "ops", a_topic(topic))
            assert answer.code == 0, answer.remark
        for name, request in requests().items():
            answer = answer_to(port, account, request)
            # Its code is the same for what RocketMQ could not read.
            assert "parse authorization" not in (answer.remark or ""), name
            if answer.code == ResponseCode.NO_PERMISSION:
                found.add((account, name))
    return found


def test_decisions_are_those_of_rocketmq(policed: int) -> None:
    config = BrokerConfig(
        broker_name="broker-a", durability="os", accounts=SECRETS, policies=POLICIES
    )
    with EmbeddedBroker(config=config) as broker:
        ours = refusals(broker.port)
    theirs = refusals(policed)
    # RocketMQ tells all topics to every account.
    listing = {one for one in ours if one[1] == "names of topics"}
    assert sorted(ours - theirs) == sorted(listing)
    assert sorted(theirs - ours) == []
