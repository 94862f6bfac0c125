"""Sends: stored once, in order, with an answer the clients understand
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, Serialization, encode
from ordermq.remoting.headers import QueueHeader, SendHeader
from ordermq.remoting.rare_headers import LongSendHeader
from tests.component.broker.wire_client import WireClient, batch_body, records


def test_a_sent_message_is_pulled_unchanged(client: WireClient, clock: ManualClock) -> None:
    properties = {"TAGS": "paid", "KEYS": "o-17", "__SHARDINGKEY": "o-17", "own": "ä"}
    answer = client.send(
        "orders", b"body", 2, properties=properties, flag=7, born_timestamp_ms=5, reconsume_times=1
    )
    assert answer.code == 0
    (message,) = records(client.pull("orders", 0, 2).body)
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 2, 0)
    assert (message.body, message.flag, message.born_ms) == (b"body", 7, 5)
    assert (message.reconsume_times, message.stored_ms) == (1, clock.wall_ms())
    assert message.properties.decode() == "".join(f"{k}\1{v}\2" for k, v in properties.items())
    assert message.born_host[:4] == message.store_host[:4] == bytes((127, 0, 0, 1))


def test_a_record_carries_the_checksum_of_its_body(client: WireClient) -> None:
    client.send("orders", b"hello")
    record = client.pull("orders", 0).body
    assert int.from_bytes(record[8:12], "big") == zlib.crc32(b"hello") & 0x7FFFFFFF


def test_a_broker_that_is_closing_says_that_it_stored_nothing_and_may_be_asked_again(
    client: WireClient, stop_writing: Callable[[], None]
) -> None:
    assert client.send("orders", b"x").code == 0
    stop_writing()
    answer = client.send("orders", b"y")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == "the broker is closing and accepts no more writes"


def test_offsets_of_a_queue_count_from_zero_without_a_gap(client: WireClient) -> None:
    offsets = [int(client.send("orders", b"x", 1).ext["queueOffset"]) for _ in range(5)]
    assert offsets == [0, 1, 2, 3, 4]
    assert int(client.send("orders", b"x", 2).ext["queueOffset"]) == 0


def test_pipelined_sends_are_stored_in_the_order_they_were_sent(client: WireClient) -> None:
    started = [client.start_send("orders", str(n).encode()) for n in range(200)]
    assert [int(client.wait(one).ext["queueOffset"]) for one in started] == list(range(200))
    bodies = [m.body for m in records(client.pull("orders", 0, count=300).body)]
    assert bodies == [str(n).encode() for n in range(200)]


def test_a_batch_takes_consecutive_offsets_and_one_id_each(client: WireClient) -> None:
    client.send("orders")
    answer = client.send_batch("orders", [b"a", b"b", b"c"], properties={"TAGS": "t"})
    assert answer.ext["queueOffset"] == "1"
    ids = answer.ext["msgId"].split(",")
    found = records(client.pull("orders", 1).body)
    assert [m.body for m in found] == [b"a", b"b", b"c"]
    assert [int(one[16:], 16) for one in ids] == [m.physical_offset for m in found]


def test_the_message_id_finds_the_message(client: WireClient) -> None:
    client.send("orders", b"first")
    message_id = client.send("orders", b"second").ext["msgId"]
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(int(message_id[16:], 16))})
    assert StoredMessage.read(answer.body).body == b"second"


def test_an_unknown_message_id_is_answered_with_the_reason(client: WireClient) -> None:
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(77 << 40)})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no message is stored" in (answer.remark or "")


def test_the_long_header_names_of_old_clients_work(client: WireClient) -> None:
    header = LongSendHeader("producers", "orders", 0, properties="TAGS\1t\2")
    answer = client.call(RequestCode.SEND_MESSAGE, header.to_ext(), b"old")
    assert answer.code == 0
    assert records(client.pull("orders", 0).body)[0].body == b"old"


def test_the_binary_header_works(client: WireClient) -> None:
    ext = SendHeader("producers", "orders", 0).to_ext()
    request = Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"binary")
    request.serialization = Serialization.ROCKETMQ
    client.socket.sendall(encode(request))
    assert client.wait(request).ext["queueOffset"] == "0"


def test_a_oneway_send_is_stored_and_not_answered(client: WireClient) -> None:
    ext = SendHeader("producers", "orders", 0).to_ext()
    request = client.start(RequestCode.SEND_MESSAGE_V2, ext, b"fire", ONEWAY_FLAG)
    client.send("orders", b"second")
    assert not client.has_answer(request)
    assert [m.body for m in records(client.pull("orders", 0).body)] == [b"fire", b"second"]


def test_a_send_without_a_queue_is_assigned_one(client: WireClient) -> None:
    answer = client.send("orders", b"x", -1)
    assert 0 <= int(answer.ext["queueId"]) < 4


def test_a_topic_created_by_a_send_has_the_requested_queues_up_to_the_default(
    client: WireClient,
) -> None:
    client.send("few", default_topic_queue_nums=2)
    client.send("many", default_topic_queue_nums=100)
    assert client.send("few", b"x", 2).code == ResponseCode.INVALID_PARAMETER
    assert client.send("many", b"x", 7).code == 0
    assert client.send("many", b"x", 8).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("broker_config", [BrokerConfig(auto_create_topics=False)])
def test_without_auto_create_topics_a_send_to_an_unknown_topic_is_refused(
    client: WireClient,
) -> None:
    answer = client.send("orders")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "create it" in (answer.remark or "")


@pytest.mark.parametrize("broker_config", [BrokerConfig(max_message_bytes=1_000)])
def test_a_body_over_the_limit_is_refused_and_the_limit_named(client: WireClient) -> None:
    assert client.send("orders", b"x" * 1_000).code == 0
    answer = client.send("orders", b"x" * 1_001)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "1001" in (answer.remark or "")
    assert "1000" in (answer.remark or "")


def test_properties_over_the_limit_are_refused(client: WireClient) -> None:
    answer = client.send("orders", properties={"own": "x" * 32_767})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert client.send("orders", properties={"own": "x" * 32_000}).code == 0


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TRAN_MSG": "true", "DELAY": "1"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "259201"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_unsupported_sends_are_refused_not_ignored(
    client: WireClient, properties: dict[str, str], code: int
) -> None:
    assert client.send("orders", properties=properties).code == code
    missing = client.call(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0).to_ext())
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST, "a refused send creates no topic"


@pytest.mark.parametrize("sys_flag", [0x40, 0x80, 0xC0, 0x41])
@pytest.mark.parametrize("batch", [None, True])
def test_a_producer_that_marks_an_inner_batch_is_refused(
    client: WireClient, sys_flag: int, batch: bool | None
) -> None:
    header = SendHeader("producers", "orders", 0, sys_flag=sys_flag, batch=batch)
    body = batch_body([b"x"]) if batch else b"x"
    answer = client.call(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"sysFlag {sys_flag:#x}" in (answer.remark or "")
    missing = client.call(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0).to_ext())
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST, "a refused send creates no topic"


@pytest.mark.parametrize("sys_flag", [0x30, 0xC, 0x700, -(1 << 31), 0x7FFFFF00 & ~0xC0])
def test_other_bits_of_a_producers_flag_hide_no_message(client: WireClient, sys_flag: int) -> None:
    client.send("orders", sys_flag=sys_flag)
    client.send("orders", b"next")
    assert [m.body for m in records(client.pull("orders", 0).body)] == [b"x", b"next"]


def test_a_truncated_batch_is_refused_as_a_whole(client: WireClient) -> None:
    body = batch_body([b"a", b"b"])
    ext = SendHeader("producers", "orders", 0).to_ext()
    for torn in (body[:-1], body[:10], body + b"\0", b"\0" * 40, b""):
        answer = client.call(RequestCode.SEND_BATCH_MESSAGE, ext, torn)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    missing = client.call(RequestCode.GET_MAX_OFFSET, QueueHeader("orders", 0).to_ext())
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST, "a refused send creates no topic"


def test_a_batch_cannot_be_delayed(client: WireClient) -> None:
    answer = client.send_batch("orders", [b"a"], properties={"DELAY": "3"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_sent_messages_are_counted(client: WireClient, broker: EmbeddedBroker) -> None:
    client.send("orders")
    client.send_batch("orders", [b"a", b"b"])
    assert broker.statistics.messages_stored == 3
    assert broker.statistics.store_groups >= 2


def test_store_times_never_go_back_when_the_wall_clock_does(
    client: WireClient, clock: ManualClock
) -> None:
    client.send("orders")
    clock.jump_wall(-3_600_000)
    client.send("orders")
    first, second = records(client.pull("orders", 0).body)
    assert first.stored_ms == second.stored_ms
