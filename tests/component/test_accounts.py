"""A broker that serves its accounts only (docs/internals/protocol.md#signed-requests)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.broker.access import NEEDS
from ordermq.broker.server import HANDLERS
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.errors import BrokerError, ConfigError
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, Seen, eventually
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

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ACCOUNT = {"access_key": "shop", "secret_key": "the secret"}


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(
        broker_name="b", durability="os", accounts={"shop": "the secret", "other": "another"}
    )


def test_signed_messages_are_stored_and_consumed(
    broker: EmbeddedBroker, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    with Producer("p", name_servers=broker.name_servers, **ACCOUNT) as producer:
        producer.send(Message("orders", b"0", tags="tag-订单"), sharding_key="k")
        producer.send_batch([Message("orders", b"1"), Message("orders", b"2")], sharding_key="k")
        producer.send_oneway(Message("orders", b"3"), sharding_key="k")
        producer.send(Message("orders", b"4" * 10_000), sharding_key="k")
    with make_consumer(seen.take, access_key="other", secret_key="another"):
        seen.wait_for_count(5)
    assert seen.bodies_of("k") == [b"0", b"1", b"2", b"3", b"4" * 10_000]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "not signed.*give access_key and secret_key"),
        (ACCOUNT | {"secret_key": "wrong"}, "access_key='shop': check that key, its secret_key"),
        (ACCOUNT | {"access_key": "nobody"}, "no account has the access key 'nobody'"),
    ],
    ids=["no account", "wrong secret", "unknown account"],
)
def test_a_producer_and_a_consumer_with_other_keys_are_told_what_to_check(
    given: dict[str, Any],
    told: str,
    broker: EmbeddedBroker,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
) -> None:
    with (
        Producer("p", name_servers=broker.name_servers, **given) as producer,
        pytest.raises(BrokerError, match=told) as sending,
    ):
        producer.send(Message("orders", b"x"))
    with pytest.raises(BrokerError, match=told) as starting:
        make_consumer(seen.take, **given).start()
    for caught in (sending, starting):
        assert caught.value.response_code == ResponseCode.NO_PERMISSION
        assert broker.address in str(caught.value)
        assert "wrong'" not in str(caught.value)


def test_a_request_of_nobody_does_nothing_also_if_it_asks_for_no_answer(
    broker: EmbeddedBroker,
) -> None:
    with WireClient(broker.port) as stranger:
        header = SendHeader("p", "t", 0)
        stranger.start(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"x", ONEWAY_FLAG)
        refused = stranger.call(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
        assert refused.code == ResponseCode.NO_PERMISSION
        asked = Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
        Credentials("shop", "the secret").sign(asked)
        answer = stranger.call(asked.code, asked.ext)
    assert answer.code != ResponseCode.NO_PERMISSION
    assert broker.statistics.messages_stored == 0


def test_the_health_of_a_producer_says_that_its_account_is_gone(
    broker: EmbeddedBroker, broker_config: BrokerConfig
) -> None:
    others = replace(broker_config, accounts={"other": "another"})
    quick = ACCOUNT | {"heartbeat_interval_ms": 50, "name_servers": broker.name_servers}
    with Producer("p", **quick) as producer:
        producer.send(Message("orders", b"0"), sharding_key="k")
        eventually(lambda: producer.health().is_ready, "ready")
        broker.close()
        with EmbeddedBroker(port=broker.port, config=others):
            told = "heartbeats are refused: .*no account has the access key 'shop'"
            eventually(
                lambda: any(re.match(told, each) for each in producer.health().reasons),
                "it says that the account is gone",
            )
            assert producer.health().is_alive
        with EmbeddedBroker(port=broker.port, config=broker_config):
            eventually(lambda: producer.health().is_ready, "ready again")


def test_a_question_passed_on_to_a_member_carries_no_signature(broker: EmbeddedBroker) -> None:
    account = Credentials("shop", "the secret")
    group = ConsumerData("g", (Subscription.parse("orders", "*", 1),))

    def signed(code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        command = Command.request(code, ext, body)
        account.sign(command)
        return command

    with WireClient(broker.port) as member, WireClient(broker.port) as tool:
        told = signed(RequestCode.HEART_BEAT, {}, Heartbeat("m", (group,), ()).to_body())
        assert member.call(told.code, told.ext, told.body).code == 0
        ext = {"consumerGroup": "g", "clientId": "m"}
        asked = signed(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        question = tool.start(asked.code, asked.ext)
        passed_on = member.notice()
        while passed_on.code != asked.code:  # that the group has a member now comes first
            passed_on = member.notice()
        assert dict(passed_on.ext) == ext
        member.socket.sendall(encode(passed_on.reply(0, body=b"{}")))
        assert tool.wait(question).code == 0


# -- policies ------------------------------------------------------------------------------


@pytest.fixture
def policed() -> Iterator[EmbeddedBroker]:
    """Has a topic with a message of the account without policies."""
    config = BrokerConfig(broker_name="b", accounts=SECRETS, policies=POLICIES)
    with EmbeddedBroker(config=config) as broker:
        for topic in ("orders", "orders-internal", "other"):
            assert signed(broker, "ops", send(topic)).code == 0
        yield broker


def signed(broker: EmbeddedBroker, account: str, request: Command) -> Command:
    return answer_to(broker.port, account, request)


DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
ALLOWED = [
    ("shop", send("orders")),
    ("shop", send("orders-new")),
    ("shop", of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, "orders")),
    ("shop", of_topic(RequestCode.GET_MAX_OFFSET, "orders")),
    ("billing", beat("orders")),
    ("billing", pull("orders")),
    ("billing", lock("orders")),
    ("billing", commit("orders")),
    ("billing", of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, "orders")),
    ("deputy", of_topic(DELETE, "other")),
    ("deputy", a_topic("another")),
    ("deputy", Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)),
    ("reader", pull("orders")),
    ("reader", commit("orders")),
    ("maker", a_topic("orders")),
    ("maker", a_topic("orders-new")),
    ("viewer", of_topic(RequestCode.GET_MAX_OFFSET, "orders")),
    ("viewer", of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, "other")),
    ("ops", of_topic(DELETE, "orders")),
    ("nobody", Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)),
]
DENIED = [
    ("shop", send("other"), "PUB of topic 'other'"),
    ("shop", pull("orders"), "SUB of topic 'orders'"),
    ("shop", of_topic(DELETE, "orders"), "DELETE of topic 'orders'"),
    ("shop", a_topic("orders-new"), "CREATE of topic 'orders-new'"),
    ("shop", a_topic("orders"), "CREATE of topic 'orders'"),
    ("shop", Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), "LIST of cluster"),
    ("billing", send("orders"), "PUB of topic 'orders'"),
    ("billing", pull("orders-internal"), "SUB of topic 'orders-internal'"),
    ("billing", pull("orders", "other"), "SUB of group 'other'"),
    ("billing", beat("other"), "SUB of topic 'other'"),
    ("billing", beat("orders", "other"), "SUB of group 'other'"),
    ("billing", lock("orders", "other"), "SUB of group 'other'"),
    ("billing", lock("orders-internal"), "SUB of topic 'orders-internal'"),
    ("billing", commit("orders", "other"), "SUB or UPDATE of group 'other'"),
    ("billing", commit("orders", code=222), "UPDATE of topic 'orders'"),
    ("billing", send("%RETRY%other"), "SUB of group 'other'"),
    ("deputy", of_topic(DELETE, "orders"), "DELETE of topic 'orders'"),
    ("reader", of_topic(RequestCode.GET_MAX_OFFSET, "orders"), "GET of topic 'orders'"),
    ("reader", of_topic(RequestCode.GET_TOPIC_STATS_INFO, "orders"), "GET of topic 'orders'"),
    ("maker", a_topic("other"), "CREATE of topic 'other'"),
    # The denial is of the topic itself, the permission of all topics.
    (
        "viewer",
        of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, "orders"),
        "PUB or SUB or GET of topic",
    ),
    (
        "nobody",
        of_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC, "%RETRY%other"),
        "SUB or GET of group 'other'",
    ),
    ("viewer", commit("orders"), "SUB or UPDATE of topic 'orders'"),
    ("nobody", of_topic(RequestCode.GET_MAX_OFFSET, "orders"), "GET of topic 'orders'"),
]


@pytest.mark.parametrize(("account", "request_"), ALLOWED)
def test_an_account_may_do_what_its_policies_allow(
    policed: EmbeddedBroker, account: str, request_: Command
) -> None:
    answer = signed(policed, account, request_)
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize(("account", "request_", "wanted"), DENIED)
def test_an_account_may_do_nothing_else(
    policed: EmbeddedBroker, account: str, request_: Command, wanted: str
) -> None:
    answer = signed(policed, account, request_)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert f"account {account!r} has no permission for {wanted}" in (answer.remark or "")


def test_a_refused_request_that_asks_for_no_answer_is_told_by_the_broker(
    policed: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    request = send("orders")
    Credentials("reader", SECRETS["reader"]).sign(request)
    with WireClient(policed.port) as client:
        for _ in range(2):
            client.start(request.code, request.ext, request.body, ONEWAY_FLAG)
        assert client.call(request.code, request.ext, request.body).code != 0
    told = [each.message for each in caplog.records if "one-way" in each.message]
    assert len(told) == 1
    assert "account 'reader' has no permission for PUB of topic 'orders'" in told[0]


def test_a_message_of_another_topic_is_not_read_by_its_place(policed: EmbeddedBroker) -> None:
    sent = {topic: signed(policed, "ops", send(topic)) for topic in ("orders", "other")}
    offsets = {topic: str(int(one.ext["msgId"][-16:], 16)) for topic, one in sent.items()}
    signed(policed, "billing", beat("orders"))
    for topic, code in ("orders", 0), ("other", ResponseCode.NO_PERMISSION):
        viewed = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offsets[topic]})
        ext = {"group": "billing", "offset": offsets[topic], "delayLevel": "0"}
        back = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        for request in (viewed, back):
            assert signed(policed, "billing", request).code == code


def test_every_request_of_the_broker_needs_a_permission_or_is_meant_to_need_none() -> None:
    free = {
        RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.CHECK_CLIENT_CONFIG, RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }  # fmt: skip
    assert HANDLERS.keys() - NEEDS.keys() == free


def test_a_producer_and_a_consumer_work_with_the_permissions_of_the_page(
    policed: EmbeddedBroker, seen: Seen
) -> None:
    where = {"name_servers": policed.name_servers}
    shop = {"access_key": "shop", "secret_key": SECRETS["shop"]}
    billing = {"access_key": "billing", "secret_key": SECRETS["billing"]}
    with Producer("p", **where, **shop) as producer:
        producer.send(Message("orders", b"1"), sharding_key="k")
        with pytest.raises(BrokerError, match="has no permission for PUB"):
            producer.send(Message("other", b"1"), sharding_key="k")
    consumer = PushConsumer("billing", consume_from_where="first_offset", **where, **billing)
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with consumer:
        seen.wait_for_count(2)


def test_accounts_request_and_reply_with_the_permissions_of_a_producer_and_a_consumer(
    policed: EmbeddedBroker,
) -> None:
    """Both ask for the route of the reply topic, which no policy of theirs names."""
    where = {"name_servers": policed.name_servers}
    shop = {"access_key": "shop", "secret_key": SECRETS["shop"]}
    billing = {"access_key": "billing", "secret_key": SECRETS["billing"]}
    answers = Producer("answers", **where, **billing)

    def reply(messages: Sequence[Any], context: object) -> None:
        for message in messages:
            if message.wants_reply:
                answers.reply(message, bytes(message.body).upper())

    consumer = PushConsumer("billing", consume_from_where="first_offset", **where, **billing)
    consumer.subscribe("orders")
    consumer.orderly(reply)
    with answers, consumer, Producer("asks", **where, **shop) as asker:
        assert bytes(asker.request(Message("orders", b"a"), 20_000).body) == b"A"
    for account in ("shop", "billing"):
        answer = signed(policed, account, send("DefaultCluster_REPLY_TOPIC"))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "given",
    [
        {"resource": "orders", "actions": "PUB"},
        {"resource": "Topic:", "actions": "PUB"},
        {"resource": "Queue:orders", "actions": "PUB"},
        {"resource": "Topic:orders", "actions": "WRITE"},
        {"resource": "Topic:orders", "actions": []},
        {"resource": "Topic:orders", "actions": "PUB", "decision": "MAYBE"},
    ],
)
def test_a_policy_with_unknown_words_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="AccessPolicy"):
        AccessPolicy(**given)
    for policies in ({"other": []}, {"shop": ["PUB"]}):
        with pytest.raises(ConfigError, match="policies"):
            BrokerConfig(accounts={"shop": "x"}, policies=policies)  # type: ignore[arg-type]


def test_the_policies_of_the_page_are_right() -> None:
    (example,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "AccessPolicy" in each
    ]
    names: dict[str, Any] = {"secret": "a", "another": "b", "a_third": "c"}
    exec(compile(example, str(PAGE), "exec"), names)
    assert names["config"].policies["billing"] == POLICIES["billing"]


def test_an_account_moves_its_group_to_a_time_without_rights_of_the_tools_group() -> None:
    config = BrokerConfig(
        durability="os",
        accounts={"ops": "1", "billing": "2"},
        policies={
            "billing": [
                AccessPolicy("Topic:orders", ["SUB", "GET", "UPDATE"]),
                AccessPolicy("Group:billing", ["SUB", "GET", "UPDATE"]),
            ]
        },
    )
    account = {"access_key": "billing", "secret_key": "2"}
    with EmbeddedBroker(config=config) as broker:
        servers = broker.name_servers
        with Producer("p", name_servers=servers, access_key="ops", secret_key="1") as producer:
            producer.send(Message("orders", b"x"), sharding_key="k")
        consumer = LitePullConsumer(
            "billing", name_servers=servers, consume_from_where="first_offset", **account
        )
        consumer.subscribe("orders")
        with consumer:
            assert len(consumer.poll(int(DEADLINE_S * 1_000))) == 1
        with Admin(servers, **account) as admin:
            moved = admin.reset("billing", "orders", to=datetime(2020, 1, 1, tzinfo=UTC))
    assert {each.after for each in moved} == {0}


def test_an_account_deletes_the_groups_that_it_may_delete() -> None:
    rights = [AccessPolicy("Group:billing", ["GET", "DELETE"]), AccessPolicy("Cluster:*", "LIST")]
    config = BrokerConfig(accounts={"ops": "1", "deputy": "2"}, policies={"deputy": rights})
    account = {"access_key": "deputy", "secret_key": "2"}
    with EmbeddedBroker(config=config) as broker:
        servers = broker.name_servers
        with Admin(servers, access_key="ops", secret_key="1") as admin:
            for group in ("billing", "other"):
                admin.create_group(group)
        with Admin(servers, **account) as admin:
            admin.delete_group("billing")
            with pytest.raises(BrokerError, match="no permission for"):
                admin.delete_group("other", force=True)
        with Admin(servers, access_key="ops", secret_key="1") as admin:
            assert [each.group for each in admin.groups()] == ["other"]


def test_a_request_that_names_two_groups_moves_none_without_a_right_to_it() -> None:
    rights = [AccessPolicy("Topic:orders", "UPDATE"), AccessPolicy("Group:own", "UPDATE")]
    config = BrokerConfig(accounts={"deputy": "2"}, policies={"deputy": rights})
    reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    groups = {"consumerGroup": "own", "group": "other"}
    request = of_topic(reset, "orders", timestamp="0", isForce="true", **groups)
    Credentials("deputy", "2").sign(request)
    with EmbeddedBroker(config=config) as broker, WireClient(broker.port) as client:
        answer = client.call(reset, request.ext)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "UPDATE of group 'other'" in (answer.remark or "")
