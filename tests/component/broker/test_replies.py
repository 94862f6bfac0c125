"""Replies: pushed to the client that asked, over its last heartbeat's connection."""

from __future__ import annotations

from ordermq.clock import ManualClock
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.rare_headers import LongSendHeader, PushReplyHeader
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, records

TOPIC = "DefaultCluster_REPLY_TOPIC"
MARKS = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}


def introduced(connect: Connect) -> WireClient:
    asker = connect("asker")
    asker.call(
        RequestCode.HEART_BEAT,
        body=b'{"clientID":"asker","producerDataSet":[{"groupName":"asks"}],"consumerDataSet":[]}',
    )
    return asker


def answered(asker: WireClient, push: Command, code: int = 0, remark: str | None = None) -> None:
    asker.socket.sendall(encode(push.reply(code, remark=remark)))


def header(**others: int) -> SendHeader:
    return SendHeader("answers", TOPIC, 0, properties=props.encode(MARKS), **others)


def test_a_reply_is_acknowledged_once_the_requester_has_it(
    connect: Connect, client: WireClient, clock: ManualClock
) -> None:
    asker = introduced(connect)
    sent = client.start(
        RequestCode.SEND_REPLY_MESSAGE_V2, header(sys_flag=1, flag=7).to_ext(), b"42"
    )
    push = asker.notice()
    assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"42")
    pushed = PushReplyHeader.from_ext(push.ext)
    assert (pushed.producer_group, pushed.topic, pushed.sys_flag) == ("answers", TOPIC, 1)
    assert (pushed.flag, pushed.store_timestamp_ms) == (7, clock.wall_ms())
    noted = MARKS | {"PUSH_REPLY_TIME": str(clock.wall_ms())}
    assert props.decode(pushed.properties or "") == noted
    answered(asker, push)
    answer = client.wait(sent)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueId"]) == (0, "0", "0")


def test_a_reply_with_the_long_header_is_pushed_too(connect: Connect, client: WireClient) -> None:
    asker = introduced(connect)
    long = LongSendHeader("answers", TOPIC, 0, properties=props.encode(MARKS))
    sent = client.start(RequestCode.SEND_REPLY_MESSAGE, long.to_ext(), b"42")
    answered(asker, asker.notice())
    assert client.wait(sent).code == 0


def test_a_reply_that_the_requester_refuses_or_ignores_is_an_error_for_its_sender(
    connect: Connect, client: WireClient, clock: ManualClock
) -> None:
    asker = introduced(connect)
    sent = client.start(RequestCode.SEND_REPLY_MESSAGE_V2, header().to_ext(), b"42")
    answered(asker, asker.notice(), ResponseCode.SYSTEM_ERROR, "not now")
    refused = client.wait(sent)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "to asker fail: not now" in (refused.remark or "")
    sent = client.start(RequestCode.SEND_REPLY_MESSAGE_V2, header().to_ext(), b"42")
    asker.notice()
    assert "it did not answer" in (client.wait(sent, clock).remark or "")


def test_a_reply_to_an_unknown_requester_is_refused(connect: Connect, client: WireClient) -> None:
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    answer = client.call(code, header().to_ext(), b"42")
    assert "channel of <asker> not found" in (answer.remark or "")
    answer = client.call(code, SendHeader("answers", TOPIC, 0).to_ext(), b"42")
    assert "no property REPLY_TO_CLIENT" in (answer.remark or "")
    introduced(connect).close()
    for _ in range(100):  # until the broker has seen the end of the connection
        answer = client.call(code, header().to_ext(), b"42")
        if "not found" in (answer.remark or ""):
            break
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_requests_get_the_property_cluster_and_other_messages_do_not(client: WireClient) -> None:
    asked = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "c-1"}
    client.send("orders", b"?", 0, properties=asked)
    client.send("orders", b"plain", 0, properties={"a": "b"})
    request, plain = records(client.pull("orders", 0, 0).body)
    assert props.decode_bytes(request.properties) == asked | {"CLUSTER": "DefaultCluster"}
    assert props.decode_bytes(plain.properties) == {"a": "b"}


def test_the_topic_of_replies_has_a_route_and_is_the_brokers_own(client: WireClient) -> None:
    assert client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).code == 0
    refused = client.send(TOPIC, b"stored?")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "belongs to the broker" in (refused.remark or "")
