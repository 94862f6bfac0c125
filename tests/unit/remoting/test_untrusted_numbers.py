"""Numbers and names of a peer that no peer should send: refused, or left out."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ordermq.client.broker_api import BrokerApi
from ordermq.client.routes import publish_queues
from ordermq.config import RemotingConfig
from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting import admin_bodies, bodies, pop
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command, decode_json
from ordermq.remoting.headers import LockExtHeader
from ordermq.remoting.namespaces import Namespaces

ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"b"}],"queueDatas":'
    b'[{"brokerName":"b","perm":6,"readQueueNums":%d,"writeQueueNums":4}]%b}'
)


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63])
def test_a_number_of_a_header_over_32_bits_is_refused(name: str, number: int) -> None:
    header = b'{"code":1,"%b":%d}' % (name.encode(), number)
    with pytest.raises(ProtocolError, match="does not fit into 32 bits"):
        decode_json(header, b"")
    assert decode_json(b'{"code":-1,"opaque":-2147483648}', b"").code == -1


@pytest.mark.parametrize("text", ["-1", str(2**63), "9" * 30, "1,x", "\u0661"])
def test_an_epoch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="omqEpochs"):
        LockExtHeader(epochs=text).epoch_list()


@pytest.mark.parametrize("count", [-1, bodies.MAX_QUEUES, 2**31])
def test_a_route_with_more_queues_than_there_can_be_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match="readQueueNums"):
        bodies.TopicRoute.from_body(ROUTE % (count, b""))


def test_an_order_configuration_with_more_queues_than_there_can_be_is_skipped() -> None:
    text = b',"orderTopicConf":"b:99999999999;c:2"'
    route = bodies.TopicRoute.from_body(ROUTE % (4, text))
    assert [queue.broker_name for queue in publish_queues("t", route)] == ["c", "c"]


def test_an_acknowledgement_of_more_messages_than_a_batch_has_is_refused() -> None:
    handle = pop.PopHandle(0, 1, 1, pop.ORDERED, pop.NORMAL, "b", 0)
    ack = pop.BatchAck("g", "t", handle, range(pop.MAX_POPPED))
    (read,) = pop.acks_from_body(pop.acks_to_body("b", [ack]))
    assert read.offsets == list(range(pop.MAX_POPPED))
    more = pop.BatchAck("g", "t", handle, range(pop.MAX_POPPED + 1))
    with pytest.raises(ProtocolError, match="33 messages of a batch: expected at most 32"):
        pop.acks_from_body(pop.acks_to_body("b", [more]))


@pytest.mark.parametrize("number", [-1, 2**31, 2**63])
def test_a_queue_id_that_no_queue_has_is_refused(number: int) -> None:
    with pytest.raises(ProtocolError, match="queueId"):
        bodies.queue_from_json({"topic": "t", "brokerName": "b", "queueId": number}, "a lock")


def test_a_body_with_queues_as_names_that_is_no_text_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        admin_bodies.progress_from_body(b'{"offsetTable":{{"topic":"\xe3"}:{}}}')


def test_a_name_of_a_namespace_that_is_no_text_reaches_who_reads_the_body() -> None:
    body = b'{"lockOKMQSet":[{"topic":"ns%\xe3","brokerName":"b","queueId":0}]}'
    answer = Command(0, body=body)
    Namespaces("ns", "").unwrap_answer(RequestCode.LOCK_BATCH_MQ, answer)
    assert answer.body == body.replace(b"ns%", b"")
    with pytest.raises(ProtocolError):
        bodies.locked_queues_from_body(answer.body)


def test_a_lock_that_nobody_asked_for_is_not_taken() -> None:
    asked, other = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)

    class Answering:
        async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
            body = bodies.locked_queues_to_body([other, asked])
            return Command(0, {"omqEpochs": "8,7"}, body)

    api = BrokerApi(cast(Any, Answering()), RemotingConfig(), "me")
    assert asyncio.run(api.lock("h:1", "g", [asked])).granted == {asked: 7}


def test_a_stored_record_with_a_length_below_zero_is_refused() -> None:
    record = bytearray(bytes(88) + b"\x01t\x00\x00")
    StoredMessage.read(bytes(record))
    record[84] |= 0x80
    with pytest.raises(ProtocolError, match="a body of -2147483648 bytes"):
        StoredMessage.read(bytes(record))
