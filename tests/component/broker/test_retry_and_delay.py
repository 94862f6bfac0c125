"""Retry and dead-letter topics, delay levels (docs/internals/protocol.md#sending, 6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, records
from tests.waiting import eventually

RETRY, DEAD = "%RETRY%group", "%DLQ%group"


def stored(client: WireClient, topic: str) -> list[StoredMessage]:
    return records(client.pull(topic, 0).body)


def give_back(client: WireClient, answer: Command, level: int = 0, **ext: str) -> Command:
    offset = str(int(answer.ext["msgId"][16:], 16))
    fields = {"offset": offset, "group": "group", "delayLevel": str(level)} | ext
    return client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def wait_for(client: WireClient, clock: ManualClock, topic: str) -> StoredMessage:
    """The first message of a topic, once it is there."""
    waiting = client.start_pull(topic, 0, suspend_ms=10_000_000)
    return records(client.wait(waiting, clock).body)[0]


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1_000), (3, 10_000), (18, 7_200_000)])
def test_a_delayed_message_is_delivered_when_it_is_due(
    client: WireClient, clock: ManualClock, level: int, delay_ms: int
) -> None:
    client.send("orders", b"x", 2)
    client.send("orders", b"later", 2, properties={"DELAY": str(level), "KEYS": "k"})
    clock.advance(delay_ms - 1)
    client.round_trip()
    assert client.max_offset("orders", 2) == 1
    waiting = client.start_pull("orders", 1, 2, suspend_ms=10_000_000)
    client.round_trip()
    clock.advance(1)
    (message,) = records(client.wait(waiting, clock).body)
    assert (message.body, message.queue_id, message.topic) == (b"later", 2, "orders")
    assert props.decode_bytes(message.properties) == {
        "DELAY": str(level), "KEYS": "k", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip


def test_a_level_beyond_the_last_is_the_last(client: WireClient, clock: ManualClock) -> None:
    client.send("orders", b"later", properties={"DELAY": "99"})
    clock.advance(7_199_000)
    client.round_trip()
    assert client.max_offset("orders") == 0
    clock.advance(1_000)
    assert wait_for(client, clock, "orders").body == b"later"


def test_a_malformed_level_means_no_delay(client: WireClient) -> None:
    client.send("orders", b"now", properties={"DELAY": "soon"})
    assert client.max_offset("orders") == 1


def test_delayed_messages_of_a_level_keep_their_order(
    client: WireClient, clock: ManualClock
) -> None:
    sends = [
        client.start_send("orders", str(number).encode(), properties={"DELAY": "1"})
        for number in range(600)
    ]
    for one in sends:
        client.wait(one)
    clock.advance(1_000)
    wait_for(client, clock, "orders")
    while client.max_offset("orders") < 600:
        clock.advance(100)
    bodies = [m.body for m in records(client.pull("orders", 0, count=1_000).body)]
    assert bodies == [str(number).encode() for number in range(600)]


def test_a_delayed_message_of_a_deleted_topic_is_dropped_and_the_others_are_delivered(
    clock: ManualClock,
) -> None:
    config = BrokerConfig(auto_create_topics=False)
    with EmbeddedBroker(config=config, clock=clock) as broker, WireClient(broker.port) as client:
        for topic in ("gone", "kept"):
            ext = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            client.send(topic, topic.encode(), properties={"DELAY": "1"})
        client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
        clock.advance(1_000)
        assert wait_for(client, clock, "kept").body == b"kept"


@pytest.mark.parametrize("when", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
def test_delayed_messages_of_a_queue_that_has_left_its_topic_go_to_one_that_stays(
    client: WireClient, clock: ManualClock, when: dict[str, str]
) -> None:
    client.create_topic("orders", 8)
    for number in range(3):
        client.send("orders", f"{number}".encode(), 6, properties=when)
    client.send("orders", b"stays", 3, properties=when)
    client.create_topic("orders", 4)
    clock.advance(1_000)
    found: list[StoredMessage] = []
    while len(found) < 3:
        waiting = client.start_pull("orders", len(found), 2, suspend_ms=10_000_000)
        found += records(client.wait(waiting, clock).body)
    assert [(each.body, each.queue_id) for each in found] == [(b"0", 2), (b"1", 2), (b"2", 2)]
    assert records(client.pull("orders", 0, 3).body)[0].body == b"stays"
    assert client.max_offset("orders", 6) == 0


def test_a_delayed_message_makes_no_topic_in_which_nobody_reads_it(
    client: WireClient, clock: ManualClock
) -> None:
    client.create_topic("orders", 16)
    client.send("orders", b"later", 13, properties={"DELAY": "1"})
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    clock.advance(1_000)
    eventually(
        lambda: [each.body for each in records(client.pull("orders", 0, 5).body)] == [b"later"],
        "it is in one of the 8 queues that a first send creates",
    )


def test_a_message_sent_back_waits_in_the_retry_topic(
    client: WireClient, clock: ManualClock
) -> None:
    client.heartbeat("group", {"orders": "*"})
    sent = client.send("orders", b"again", properties={"TAGS": "t"})
    assert give_back(client, sent).code == 0
    clock.advance(10_000)
    message = wait_for(client, clock, RETRY)
    found = props.decode_bytes(message.properties)
    assert (message.body, message.reconsume_times) == (b"again", 1)
    assert (found["RETRY_TOPIC"], found["TAGS"]) == ("orders", "t")
    assert found["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]


def test_the_next_retry_waits_longer_and_keeps_the_first_id(
    client: WireClient, clock: ManualClock
) -> None:
    client.heartbeat("group", {"orders": "*"})
    sent = client.send("orders", b"again", reconsume_times=1)
    give_back(client, sent)
    clock.advance(29_999)
    client.round_trip()
    assert client.max_offset(RETRY) == 0
    clock.advance(1)
    assert wait_for(client, clock, RETRY).reconsume_times == 2


def test_a_message_sent_back_too_often_goes_to_the_dead_letters(client: WireClient) -> None:
    client.heartbeat("group", {"orders": "*"})
    give_back(client, client.send("orders", b"by the group", reconsume_times=16))
    give_back(client, client.send("orders", b"by the client"), maxReconsumeTimes="0")
    give_back(client, client.send("orders", b"at once"), level=-1)
    bodies = [m.body for m in stored(client, DEAD)]
    assert bodies == [b"by the group", b"by the client", b"at once"]


def test_sending_back_needs_a_known_group_and_message(client: WireClient) -> None:
    sent = client.send("orders")
    assert give_back(client, sent).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    client.heartbeat("group", {"orders": "*"})
    assert give_back(client, sent, offset="5").code == ResponseCode.SYSTEM_ERROR


def test_a_message_that_is_lost_is_not_mistaken_for_the_one_at_its_place(
    client: WireClient, clock: ManualClock
) -> None:
    """A broker whose back-up was restored gives the places of the messages it lost to new ones."""
    client.heartbeat("group", {"orders": "*"})
    sent = client.send("orders", b"x", properties={"UNIQ_KEY": "AC10", "ORIGIN_MESSAGE_ID": "F1"})
    for lost in ("AC11", f"{sent.ext['msgId'][:-1]}F"):
        refusal = give_back(client, sent, originMsgId=lost)
        assert (refusal.code, lost in (refusal.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    for own in ("ac10", sent.ext["msgId"], "F1", ""):
        assert give_back(client, sent, originMsgId=own).code == 0
    clock.advance(10_000)
    wait_for(client, clock, RETRY)
    assert len(stored(client, RETRY)) == 4


def test_a_send_to_a_retry_topic_honours_its_delay(client: WireClient, clock: ManualClock) -> None:
    client.send(RETRY, b"x", properties={"DELAY": "1"}, reconsume_times=1)
    assert client.max_offset(RETRY) == 0
    clock.advance(1_000)
    assert wait_for(client, clock, RETRY).body == b"x"


def test_a_send_to_a_retry_topic_of_an_ordered_group_is_a_dead_letter(
    connect: Connect, clock: ManualClock
) -> None:
    consumer, producer = connect("consumer"), connect("producer")
    consumer.lock("group", "orders", 0)
    producer.send(RETRY, b"given up", properties={"DELAY": "4"}, reconsume_times=1)
    (message,) = stored(producer, DEAD)
    assert message.body == b"given up"
    assert "DELAY" not in props.decode_bytes(message.properties)
    clock.advance(60_001)
    producer.send(RETRY, b"no lock is live")
    assert [m.body for m in stored(producer, RETRY)] == [b"no lock is live"]


def test_a_send_to_a_retry_topic_after_the_last_retry_is_a_dead_letter(client: WireClient) -> None:
    client.send(RETRY, b"one too many", reconsume_times=17)
    client.send(RETRY, b"by its own count", reconsume_times=3, max_reconsume_times=2)
    client.send(RETRY, b"the last try", reconsume_times=2, max_reconsume_times=2)
    assert [m.body for m in stored(client, DEAD)] == [b"one too many", b"by its own count"]
    assert [m.body for m in stored(client, RETRY)] == [b"the last try"]


def test_retry_topics_accept_no_batches(client: WireClient) -> None:
    assert client.send_batch(RETRY, [b"a"]).code == ResponseCode.MESSAGE_ILLEGAL


HOUR_MS = 3_600_000


@pytest.mark.parametrize("kind", ["DELAY", "TIMER_DELAY_SEC"])
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_of_the_clock_makes_no_delay_longer_or_shorter(
    client: WireClient, clock: ManualClock, kind: str, jump_ms: int
) -> None:
    def send(name: str) -> None:
        assert client.send("orders", name.encode(), properties={kind: "1"}).code == 0

    send("before")
    clock.jump_wall(jump_ms)
    send("meanwhile")
    clock.advance(999)
    client.round_trip()
    assert client.max_offset("orders") == 0
    clock.jump_wall(-jump_ms)
    send("after")
    clock.advance(1)
    wait_for(client, clock, "orders")
    while client.max_offset("orders") < 3:
        clock.advance(100)
    bodies = [m.body for m in records(client.pull("orders", 0).body)]
    assert bodies == [b"before", b"meanwhile", b"after"]


def test_after_a_restart_a_message_waits_at_most_its_delay_whatever_the_clock_said(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "broker.db"
    clock.jump_wall(24 * HOUR_MS)  # the host boots with a clock that is ahead
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.send("orders", b"ahead", properties={"DELAY": "1"})
    clock.jump_wall(-24 * HOUR_MS)
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.send("orders", b"right", properties={"DELAY": "1"})
        clock.advance(999)
        client.round_trip()
        assert client.max_offset("orders") == 0
        clock.advance(1)
        wait_for(client, clock, "orders")
        while client.max_offset("orders") < 2:
            clock.advance(10)
        bodies = [m.body for m in records(client.pull("orders", 0).body)]
        assert bodies == [b"ahead", b"right"]
