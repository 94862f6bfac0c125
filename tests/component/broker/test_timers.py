"""Timed messages and their recall, on the wire."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.model import properties as props
from ordermq.model.recall_handle import RecallHandle
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, records

DAY_S = 86_400


def send(client: WireClient, body: bytes = b"x", queue_id: int = 0, **properties: str) -> Command:
    unique = {"UNIQ_KEY": f"id-{body.decode()}"}
    return client.send("orders", body, queue_id, properties=unique | properties)


def at(clock: ManualClock, delay_ms: int) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(clock.wall_ms() + delay_ms)}


def recall(client: WireClient, handle: str, topic: str = "orders") -> Command:
    ext = {"topic": topic, "recallHandle": handle, "producerGroup": "producers"}
    return client.call(RequestCode.RECALL_MESSAGE, ext)


def wait_for(client: WireClient, clock: ManualClock, offset: int = 0) -> list[StoredMessage]:
    """Messages stored from an offset on, once they are there."""
    waiting = client.start_pull("orders", offset, suspend_ms=10_000_000)
    return records(client.wait(waiting, clock).body)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMER_DELAY_SEC", "10"), ("TIMER_DELAY_MS", "10000"), ("TIMER_DELIVER_MS", None)],
)
def test_a_timed_message_is_delivered_when_it_is_due(
    client: WireClient, clock: ManualClock, name: str, value: str | None
) -> None:
    due_ms = clock.wall_ms() + 10_000
    answer = send(client, b"later", 2, KEYS="k", TAGS="t", **{name: value or str(due_ms)})
    assert (answer.code, answer.ext["queueId"]) == (0, "2")
    clock.advance(9_999)
    client.round_trip()
    assert client.max_offset("orders", 2) == 0
    waiting = client.start_pull("orders", 0, 2, suspend_ms=10_000_000)
    client.round_trip()
    clock.advance(1)
    (message,) = records(client.wait(waiting, clock).body)
    assert (message.body, message.queue_id, message.topic) == (b"later", 2, "orders")
    assert props.decode_bytes(message.properties) == {
        "UNIQ_KEY": "id-later", "KEYS": "k", "TAGS": "t", name: value or str(due_ms),
        "TIMER_OUT_MS": str(due_ms),
    }  # fmt: skip


def test_timed_messages_are_delivered_in_the_order_of_their_times(
    client: WireClient, clock: ManualClock
) -> None:
    delays = list(range(1_000, 61_000, 1_000)) * 2
    random.Random(7).shuffle(delays)
    starts = clock.wall_ms()
    for number, delay_ms in enumerate(delays):
        send(client, f"{delay_ms}-{number}".encode(), TIMER_DELIVER_MS=str(starts + delay_ms))
    clock.advance(60_000)
    found: list[StoredMessage] = []
    while len(found) < len(delays):
        found += wait_for(client, clock, len(found))
    bodies = [tuple(int(part) for part in m.body.split(b"-")) for m in found]
    assert bodies == sorted((delay_ms, number) for number, delay_ms in enumerate(delays))


def test_a_timed_message_whose_time_has_passed_is_delivered_at_once(
    client: WireClient, clock: ManualClock
) -> None:
    answer = send(client, b"now", TIMER_DELIVER_MS="1")
    assert "recallHandle" not in answer.ext
    assert client.max_offset("orders") == 1


def test_a_time_too_far_ahead_is_refused_and_the_error_names_the_limit(
    client: WireClient, clock: ManualClock
) -> None:
    assert send(client, **at(clock, 3 * DAY_S * 1_000)).code == 0
    refused = send(client, **at(clock, 3 * DAY_S * 1_000 + 1))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "259200000 ms" in (refused.remark or "")


def test_a_delay_level_wins_over_a_time(client: WireClient, clock: ManualClock) -> None:
    send(client, b"level", DELAY="1", TIMER_DELAY_SEC="60")
    clock.advance(1_000)
    (message,) = wait_for(client, clock)
    assert "TIMER_DELAY_SEC" not in props.decode_bytes(message.properties)


def test_a_timed_message_that_becomes_a_dead_letter_does_not_wait_again(
    client: WireClient, clock: ManualClock
) -> None:
    client.heartbeat("group", {"orders": "*"})
    send(client, b"again", TIMER_DELAY_SEC="10")
    clock.advance(10_000)
    (message,) = wait_for(client, clock)
    fields = {"offset": str(message.physical_offset), "group": "group", "delayLevel": "-1"}
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
    assert client.max_offset("%DLQ%group") == 1


# -- recall --------------------------------------------------------------------------------


def test_a_recalled_message_is_never_delivered(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    kept = send(client, b"kept", **at(clock, 10_000))
    handle = send(client, b"gone", **at(clock, 10_000)).ext["recallHandle"]
    send(client, b"also kept", **at(clock, 10_000))
    assert RecallHandle.of_text(handle) == (
        "orders", "embedded", clock.wall_ms() + 10_000, "id-gone",
    )  # fmt: skip
    answer = recall(client, handle)
    assert (answer.code, answer.ext["msgId"]) == (0, "id-gone")
    assert (broker.statistics.timed_messages, broker.statistics.messages_recalled) == (2, 1)
    clock.advance(10_000)
    assert [m.body for m in wait_for(client, clock)] == [b"kept", b"also kept"]
    assert recall(client, handle).code == ResponseCode.ILLEGAL_OPERATION
    assert recall(client, kept.ext["recallHandle"]).code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize("handle", ["", "junk", "djEgYQ==", "****"])
def test_an_invalid_handle_is_refused(client: WireClient, handle: str) -> None:
    send(client)
    assert recall(client, handle).code == ResponseCode.ILLEGAL_OPERATION


def test_a_handle_of_another_topic_or_broker_is_refused(
    client: WireClient, clock: ManualClock
) -> None:
    handle = send(client, **at(clock, 10_000)).ext["recallHandle"]
    client.send("other")
    assert recall(client, handle, "other").code == ResponseCode.ILLEGAL_OPERATION
    assert recall(client, handle, "unknown").code == ResponseCode.TOPIC_NOT_EXIST
    elsewhere = RecallHandle.of_text(handle)._replace(broker_name="other").to_text()
    assert recall(client, elsewhere).code == ResponseCode.ILLEGAL_OPERATION
    assert recall(client, handle).code == 0


# -- restarts ------------------------------------------------------------------------------


def test_timed_messages_and_recalls_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "kept.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        handles = [send(client, str(n).encode(), **at(clock, 5_000)) for n in range(5)]
        assert recall(client, handles[4].ext["recallHandle"]).code == 0
        assert recall(client, handles[1].ext["recallHandle"]).code == 0
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.round_trip()
        assert broker.statistics.timed_messages == 3
        assert recall(client, handles[2].ext["recallHandle"]).code == 0
        assert recall(client, handles[1].ext["recallHandle"]).code != 0
        clock.advance(5_000)
        assert [m.body for m in wait_for(client, clock)] == [b"0", b"3"]


@pytest.mark.parametrize("jump_days", [-3_650, -1, 3_650])
@pytest.mark.parametrize(
    ("name", "value"), [("TIMER_DELAY_SEC", "10"), ("TIMER_DELAY_MS", "10000")]
)
def test_after_a_restart_a_delay_ends_at_most_once_more_after_it_whatever_the_clock_said(
    tmp_path: Path, clock: ManualClock, jump_days: int, name: str, value: str
) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        handles = [send(client, body, **{name: value}) for body in (b"0", b"1")]
        send(client, b"2", **at(clock, 20_000))
    clock.jump_wall(jump_days * 24 * 3_600_000)
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        if jump_days > 0:  # all are due
            assert {m.body for m in wait_for(client, clock)} == {b"0", b"1", b"2"}
            return
        client.round_trip()
        assert broker.statistics.timed_messages == 3
        assert recall(client, handles[1].ext["recallHandle"]).code == 0
        assert recall(client, handles[1].ext["recallHandle"]).code != 0
        clock.advance(9_999)
        client.round_trip()
        assert client.max_offset("orders") == 0
        clock.advance(1)
        assert [m.body for m in wait_for(client, clock)] == [b"0"]
        assert recall(client, handles[0].ext["recallHandle"]).code != 0
        # A time that a user gave is one of the wall clock.
        assert broker.statistics.timed_messages == 1


def test_many_delays_are_loaded_at_a_start_each_once(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        for number in range(600):
            send(client, str(number).encode(), TIMER_DELAY_MS=str(1_000 + number))
        send(client, b"TIMER_DELAY_MS", **at(clock, 5_000))  # the word in a body makes no delay
    with EmbeddedBroker(path, clock=clock) as broker, WireClient(broker.port) as client:
        client.round_trip()
        assert broker.statistics.timed_messages == 601
        clock.advance(5_000)
        found: list[bytes] = []
        while len(found) < 601:
            found += [m.body for m in wait_for(client, clock, len(found))]
        assert [int(body) for body in found if body.isdigit()] == list(range(600))


def test_kill_loses_no_timed_message_and_delivers_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    broker = BrokerProcess(path)
    with WireClient(broker.port) as client:
        started = [
            client.start_send("orders", str(n).encode(), properties={"TIMER_DELAY_MS": "150"})
            for n in range(300)
        ]
        for one in started:
            assert client.wait(one).code == 0
        while client.max_offset("orders") == 0:
            pass  # kill it while it delivers
        broker.kill()
    with BrokerProcess(path) as again, WireClient(again.port) as client:
        found: list[StoredMessage] = []
        while len(found) < 300:
            answer = client.pull("orders", len(found), count=1_000, suspend_ms=5_000)
            found += records(answer.body)
        bodies = [int(message.body) for message in found]
        assert sorted(bodies) == list(range(300))
        client.round_trip()
        assert client.max_offset("orders") == 300
