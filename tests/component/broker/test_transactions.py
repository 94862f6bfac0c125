"""Transactions on the wire: halves kept apart, their ends, and questions
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.backup import back_up, restore
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.bodies import Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command
from ordermq.remoting.rare_headers import EndTransactionHeader
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, records
from tests.component.conftest import eventually

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
UNDECIDED = "TRANS_CHECK_MAX_TIME_TOPIC"
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(transaction_timeout_ms=6_000, transaction_check_interval_ms=1_000)


def send_half(
    client: WireClient, body: bytes = b"half", queue_id: int = 0, **properties: str
) -> Command:
    marks = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"id-{body[:8].decode()}"}
    answer = client.send(
        "orders", body, queue_id, properties=marks | properties, sys_flag=0x4, born_timestamp_ms=5
    )
    assert answer.code == 0
    return answer


def end_header(half: Command, state: int, **more: Any) -> EndTransactionHeader:
    physical = int(half.ext["msgId"][-16:], 16)
    fields = {"producer_group": "pg", "half_offset": int(half.ext["queueOffset"])} | more
    return EndTransactionHeader(
        physical_offset=fields.pop("physical_offset", physical),
        commit_or_rollback=state,
        message_id=half.ext.get("transactionId", ""),
        **fields,
    )


def end(client: WireClient, half: Command, state: int, **more: Any) -> Command:
    """The answer to an end that wants one; producers of ours want it for ordered messages."""
    ext = end_header(half, state, **more).to_ext()
    return client.call(RequestCode.END_TRANSACTION, ext)


def end_oneway(client: WireClient, half: Command, state: int, **more: Any) -> None:
    ext = end_header(half, state, **more).to_ext()
    client.start(RequestCode.END_TRANSACTION, ext, flag=ONEWAY_FLAG)


def introduce(client: WireClient, group: str = "pg") -> None:
    beat = Heartbeat(client.name, (), (group,))
    assert client.call(RequestCode.HEART_BEAT, body=beat.to_body()).code == 0


def stored(client: WireClient, topic: str = "orders", queue_id: int = 0) -> list[StoredMessage]:
    answer = client.pull(topic, 0, queue_id)
    return records(answer.body) if answer.code == 0 else []


def bodies(client: WireClient, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in stored(client, topic, queue_id)]


def first_body(client: WireClient, queue_id: int = 0) -> bytes:
    """Of the queue's first message, once it is there."""
    waiting = client.start_pull("orders", 0, queue_id, suspend_ms=10_000_000)
    return records(client.wait(waiting).body)[0].body


def question(client: WireClient, clock: ManualClock) -> Command:
    """The broker's questions, as its clock goes on."""
    asked = client.notice(clock)
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    return asked


def let_look(client: WireClient, clock: ManualClock, looks: int) -> None:
    """Let the broker look at its waiting halves so many times, and no more."""
    for _ in range(looks):
        clock.advance(1_000)
        client.round_trip()
        client.round_trip()


# -- ends ----------------------------------------------------------------------------------


def test_a_half_message_is_not_visible_until_it_is_committed(client: WireClient) -> None:
    half = send_half(client, queue_id=2, TAGS="t", KEYS="k")
    assert half.ext["queueId"] == "2"
    assert half.ext["transactionId"] == "id-half"
    assert stored(client, queue_id=2) == []
    assert client.pull(HALVES, 0).code == ResponseCode.TOPIC_NOT_EXIST
    assert end(client, half, COMMIT).code == 0
    (message,) = stored(client, queue_id=2)
    assert (message.body, message.queue_id, message.born_ms) == (b"half", 2, 5)
    assert message.sys_flag & 0xC == COMMIT
    assert props.decode_bytes(message.properties) == {
        "PGROUP": "pg", "UNIQ_KEY": "id-half", "__transactionId__": "id-half",
        "TAGS": "t", "KEYS": "k",
    }  # fmt: skip


def test_a_committed_message_is_found_by_its_tag(client: WireClient) -> None:
    end(client, send_half(client, b"a", TAGS="a"), COMMIT)
    end(client, send_half(client, b"b", TAGS="b"), COMMIT)
    (message,) = records(client.pull("orders", 0, tags="b").body)
    assert message.body == b"b"


def test_a_commit_releases_a_held_pull(client: WireClient) -> None:
    half = send_half(client)
    client.round_trip()
    waiting = client.start_pull("orders", 0, suspend_ms=10_000_000)
    assert not client.has_answer(waiting)
    end_oneway(client, half, COMMIT)
    assert records(client.wait(waiting).body)[0].body == b"half"


def test_a_message_rolled_back_is_never_delivered(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    half = send_half(client)
    assert end(client, half, ROLLBACK).code == 0
    assert broker.statistics.half_messages == 0
    assert end(client, half, COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert stored(client) == []


def test_messages_are_stored_in_the_order_in_which_their_transactions_commit(
    client: WireClient,
) -> None:
    halves = [send_half(client, str(n).encode()) for n in range(6)]
    client.send("orders", b"plain")
    for n in (3, 0, 5, 4):
        end_oneway(client, halves[n], COMMIT)
    end_oneway(client, halves[1], ROLLBACK)
    assert end(client, halves[2], COMMIT).code == 0
    assert bodies(client) == [b"plain", b"3", b"0", b"5", b"4", b"2"]


def test_a_transaction_ends_once(client: WireClient) -> None:
    half = send_half(client)
    first = client.start(RequestCode.END_TRANSACTION, end_header(half, COMMIT).to_ext())
    second = client.start(RequestCode.END_TRANSACTION, end_header(half, COMMIT).to_ext())
    assert client.wait(first).code == 0
    refused = client.wait(second)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "already ended" in (refused.remark or "")
    assert bodies(client) == [b"half"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"producer_group": "other"}, "group 'pg'"),
        ({"physical_offset": 1}, "two messages"),
        ({"half_offset": 99}, "already ended"),
    ],
)
def test_an_end_of_an_unknown_half_message_is_refused(
    client: WireClient, more: dict[str, Any], reason: str
) -> None:
    half = send_half(client)
    refused = end(client, half, COMMIT, **more)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert reason in (refused.remark or "")
    assert end(client, half, COMMIT).code == 0


def test_an_undecided_state_changes_nothing(client: WireClient) -> None:
    half = send_half(client)
    end_oneway(client, half, UNKNOWN)
    assert end(client, half, UNKNOWN).code == 0
    assert stored(client) == []
    assert end(client, half, COMMIT).code == 0


def test_a_half_message_without_a_group_belongs_to_its_senders_group(client: WireClient) -> None:
    half = client.send("orders", b"half", properties={"TRAN_MSG": "true"}, sys_flag=0x4)
    assert end(client, half, COMMIT, producer_group="producers").code == 0


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_half_of_a_transaction_cannot_be_delayed(client: WireClient, name: str) -> None:
    marks = {"TRAN_MSG": "true", "PGROUP": "pg", name: "1"}
    refused = client.send("orders", properties=marks)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert name in (refused.remark or "")


@pytest.mark.parametrize("name", [HALVES, "SCHEDULE_TOPIC_XXXX"])
def test_the_brokers_own_topics_cannot_be_deleted(client: WireClient, name: str) -> None:
    half = send_half(client)
    refused = client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert end(client, half, COMMIT).code == 0


def test_a_commit_for_a_topic_that_is_gone_is_refused_and_the_half_message_waits() -> None:
    """Success would be the receipt of a message that is nowhere, as sends create no topics."""
    config = BrokerConfig(auto_create_topics=False)
    with EmbeddedBroker(config=config) as broker, WireClient(broker.port) as client:
        client.create_topic("orders", 1)
        half = send_half(client)
        assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
        refused = end(client, half, COMMIT)
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.statistics.half_messages == 1
        assert broker.statistics.transactions_committed == 0
        client.create_topic("orders", 1)
        assert end(client, half, COMMIT).code == 0
        assert bodies(client) == [b"half"]


def test_a_commit_creates_a_topic_again_that_was_deleted_meanwhile(client: WireClient) -> None:
    half = send_half(client)
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert end(client, half, COMMIT).code == 0
    assert bodies(client) == [b"half"]


def test_a_commit_into_a_queue_that_has_left_its_topic_goes_to_one_that_stays(
    client: WireClient,
) -> None:
    client.create_topic("orders", 8)
    half = send_half(client, queue_id=6)
    client.create_topic("orders", 4)
    assert end(client, half, COMMIT).code == 0
    assert [message.body for message in stored(client, queue_id=2)] == [b"half"]


# -- questions -----------------------------------------------------------------------------


def test_a_producer_of_the_group_is_checked_once_the_half_message_is_old_enough(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    introduce(client)
    half = send_half(client, queue_id=3, KEYS="k")
    let_look(client, clock, 5)
    assert client.notices() == []
    asked = question(client, clock)
    assert asked.is_oneway
    assert asked.ext == {
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)),
        "msgId": "id-half", "transactionId": "id-half", "offsetMsgId": half.ext["msgId"],
        "topic": HALVES, "bname": "embedded",
    }  # fmt: skip
    record = StoredMessage.read(asked.body)
    assert (record.topic, record.queue_id, record.body) == ("orders", 3, b"half")
    assert props.decode_bytes(record.properties)["PGROUP"] == "pg"
    end_oneway(client, half, COMMIT, is_from_check=True)
    assert first_body(client, queue_id=3) == b"half"
    let_look(client, clock, 3)
    assert client.notices() == []
    assert broker.statistics.transactions_asked == 1


def test_an_undecided_transaction_is_checked_again(client: WireClient, clock: ManualClock) -> None:
    introduce(client)
    half = send_half(client)
    for _ in range(3):
        question(client, clock)
        end_oneway(client, half, UNKNOWN, is_from_check=True)
    question(client, clock)
    end_oneway(client, half, ROLLBACK, is_from_check=True)
    client.round_trip()
    let_look(client, clock, 3)
    assert client.notices() == []


def test_the_producers_of_a_group_are_checked_in_rotation_and_no_others(
    connect: Connect, clock: ManualClock
) -> None:
    first, second, other = connect("first"), connect("second"), connect("other")
    introduce(first)
    introduce(second)
    introduce(other, "other-group")
    send_half(first, b"a")
    send_half(first, b"b")
    question(first, clock)
    question(second, clock)
    assert other.notices() == []


@pytest.mark.parametrize("how", ["unregister", "disconnect", "silent"])
def test_a_producer_that_left_is_not_checked(
    connect: Connect, clock: ManualClock, how: str
) -> None:
    leaver, stayer = connect("leaver"), connect("stayer")
    introduce(leaver)
    send_half(stayer)
    if how == "unregister":
        ext = {"clientID": "leaver", "producerGroup": "pg"}
        assert leaver.call(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    elif how == "disconnect":
        leaver.close()
    else:
        clock.advance(120_001)
    introduce(stayer)
    question(stayer, clock)
    question(stayer, clock)
    if how != "disconnect":
        assert leaver.notices() == []


def test_a_half_message_may_set_a_longer_immunity_time(
    client: WireClient, clock: ManualClock
) -> None:
    introduce(client)
    send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    let_look(client, clock, 59)
    assert client.notices() == []
    question(client, clock)


@pytest.mark.parametrize("text", ["soon", "-1"])
def test_a_malformed_immunity_time_means_the_brokers(
    client: WireClient, clock: ManualClock, text: str
) -> None:
    introduce(client)
    send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    let_look(client, clock, 5)
    assert client.notices() == []
    question(client, clock)


def test_after_fifteen_checks_the_half_message_is_given_up_with_a_log(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    introduce(client)
    half = send_half(client, TAGS="t")
    for _ in range(15):
        question(client, clock)
    assert broker.statistics.transactions_discarded == 0
    let_look(client, clock, 2)
    assert client.notices() == []
    eventually(lambda: broker.statistics.transactions_discarded == 1, "it is given up")
    assert "giving up transaction" in caplog.text
    assert end(client, half, COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert stored(client) == []
    (undecided,) = stored(client, UNDECIDED)
    assert undecided.body == b"half"
    assert props.decode_bytes(undecided.properties)["REAL_TOPIC"] == "orders"


def test_without_a_live_producer_the_half_message_waits_for_the_next_one(
    connect: Connect, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    sender = connect("sender")
    half = send_half(sender)
    let_look(sender, clock, 60)
    assert broker.statistics.transactions_asked == 0
    late = connect("late")
    introduce(late)
    question(late, clock)
    end_oneway(late, half, COMMIT, is_from_check=True)
    assert first_body(sender) == b"half"


def test_a_half_message_without_any_producer_is_given_up_by_age(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    send_half(client)
    clock.advance(3 * 86_400_000)
    let_look(client, clock, 2)
    eventually(lambda: broker.statistics.transactions_discarded == 1, "it is given up")
    assert bodies(client, UNDECIDED) == [b"half"]


# -- restarts ------------------------------------------------------------------------------


@pytest.fixture
def restart(
    tmp_path: Path, clock: ManualClock, broker_config: BrokerConfig
) -> Callable[[], EmbeddedBroker]:
    return lambda: EmbeddedBroker(tmp_path / "kept.db", config=broker_config, clock=clock)


def test_a_waiting_half_message_and_its_number_of_checks_survive_a_restart(
    restart: Callable[[], EmbeddedBroker], clock: ManualClock
) -> None:
    with restart() as broker, WireClient(broker.port) as client:
        client.round_trip()
        introduce(client)
        half = send_half(client)
        for _ in range(14):
            question(client, clock)
        client.round_trip()
    with restart() as broker, WireClient(broker.port) as client:
        assert broker.statistics.half_messages == 1
        client.round_trip()
        introduce(client)
        question(client, clock)
        let_look(client, clock, 2)
        assert client.notices() == []
        eventually(lambda: broker.statistics.transactions_discarded == 1, "it is given up")
        assert bodies(client, UNDECIDED) == [b"half"]
        assert end(client, half, COMMIT).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("days", [4, 3_650])
def test_after_days_without_the_broker_the_producer_is_asked_before_anything_is_given_up(
    restart: Callable[[], EmbeddedBroker], clock: ManualClock, days: int
) -> None:
    # Down for so long, or its clock was behind when it stored the half message, or is ahead now.
    with restart() as broker, WireClient(broker.port) as client:
        half = send_half(client)
    clock.jump_wall(days * 86_400_000)
    with restart() as broker, WireClient(broker.port) as client:
        let_look(client, clock, 60)  # no producer is back yet
        assert broker.statistics.transactions_discarded == 0
        introduce(client)
        question(client, clock)
        end_oneway(client, half, COMMIT, is_from_check=True)
        assert first_body(client) == b"half"


def test_a_half_message_of_an_earlier_run_without_any_producer_is_given_up(
    restart: Callable[[], EmbeddedBroker], clock: ManualClock
) -> None:
    with restart() as broker, WireClient(broker.port) as client:
        send_half(client)
    clock.jump_wall(4 * 86_400_000)
    with restart() as broker, WireClient(broker.port) as client:
        clock.advance(3_600_000)
        let_look(client, clock, 2)
        eventually(lambda: broker.statistics.transactions_discarded == 1, "it is given up")
        assert bodies(client, UNDECIDED) == [b"half"]


def test_an_end_from_before_a_restart_never_ends_a_new_half_message(
    restart: Callable[[], EmbeddedBroker],
) -> None:
    with restart() as broker, WireClient(broker.port) as client:
        old = send_half(client, b"old")
        assert end(client, old, ROLLBACK).code == 0
    with restart() as broker, WireClient(broker.port) as client:
        new = send_half(client, b"new")
        assert new.ext["queueOffset"] != old.ext["queueOffset"]
        assert end(client, old, COMMIT).code == ResponseCode.SYSTEM_ERROR
        assert stored(client) == []
        assert end(client, new, COMMIT).code == 0
        assert bodies(client) == [b"new"]


def test_kill_loses_no_half_message_and_commits_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    broker = BrokerProcess(path)
    with WireClient(broker.port) as client:
        halves = [send_half(client, str(n).encode()) for n in range(60)]
        for half in halves[:20]:
            assert end(client, half, COMMIT).code == 0
        for half in halves[20:30]:
            assert end(client, half, ROLLBACK).code == 0
        for half in halves[30:45]:
            end_oneway(client, half, COMMIT)  # under way when the broker dies
        broker.kill()
    with BrokerProcess(path) as again, WireClient(again.port) as client:
        count = client.max_offset("orders")  # a pull reads 32 at most
        kept = [str(n).encode() for n in [*range(20), *range(30, 10 + count)]]
        assert bodies(client) == kept[:32]
        for half in halves[:30]:
            assert end(client, half, COMMIT).code == ResponseCode.SYSTEM_ERROR
        codes = [end(client, half, COMMIT).code for half in halves[30:]]
        assert codes == [1] * (count - 20) + [0] * (50 - count)
        assert bodies(client) == [str(n).encode() for n in [*range(20), *range(30, 60)]][:32]
        assert client.max_offset("orders") == 50


def test_a_commit_on_a_full_disk_is_refused_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.db"
    with BrokerProcess(path) as broker, WireClient(broker.port) as client:
        half = send_half(client, b"x" * 100_000)
        broker.limit_file_size(1)
        refused = end(client, half, COMMIT)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "could not write" in (refused.remark or "")
        broker.lift_limit()
        assert end(client, half, COMMIT).code == 0
        assert [len(body) for body in bodies(client)] == [100_000]


# -- a broker that lost its last messages ----------------------------------------------------


def test_an_end_of_a_lost_transaction_ends_no_other_one(tmp_path: Path) -> None:
    """A restored back-up gives the places of what it lost to other half messages."""
    path, copy = tmp_path / "broker.db", tmp_path / "copy.db"
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        send_half(client, b"before")
        back_up(path, copy, lambda done, total: None)
        lost = send_half(client, b"lost")
    restore(copy, path, lambda done, total: None)
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        half = send_half(client, b"new")
        assert half.ext["queueOffset"] == lost.ext["queueOffset"]
        for state in (ROLLBACK, COMMIT):
            refused = end(client, lost, state)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "has already ended" in (refused.remark or "")
        assert broker.statistics.half_messages == 2
        assert end(client, half, COMMIT).code == 0
        # How that one ended is no answer about the lost one, either.
        assert end(client, lost, COMMIT).code == ResponseCode.SYSTEM_ERROR
        assert end(client, half, COMMIT).code == 0
        assert [body for queue in range(4) for body in bodies(client, queue_id=queue)] == [b"new"]
