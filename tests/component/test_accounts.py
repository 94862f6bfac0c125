"""A broker that serves its accounts only (docs/internals/protocol.md#signed-requests)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen

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
