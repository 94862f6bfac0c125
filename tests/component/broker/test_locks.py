"""Queue locks: one holder, growing epochs, prompt take-over
(docs/internals/semantics.md#broker-lock-table, docs/internals/semantics.md#fencing)."""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Callable

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import LockBatch, locked_queues_from_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, epochs, locked
from tests.component.conftest import eventually


def wake_ups(notices: list[Command]) -> list[str]:
    assert all(one.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for one in notices)
    return [one.ext["consumerGroup"] for one in notices]


def test_each_queue_is_granted_separately_with_its_own_epoch(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    assert locked(first.lock("group", "orders", 0, 1)) == [0, 1]
    answer = second.lock("group", "orders", 1, 2)
    assert locked(answer) == [2]
    assert epochs(answer) == [3]


def test_a_live_renewal_keeps_its_epoch_and_a_new_holder_gets_a_greater_one(
    connect: Connect, clock: ManualClock
) -> None:
    first, second = connect("first"), connect("second")
    before = epochs(first.lock("group", "orders", 0))
    clock.advance(59_000)
    assert epochs(first.lock("group", "orders", 0)) == before
    clock.advance(59_000)
    assert locked(second.lock("group", "orders", 0)) == []
    clock.advance(1_001)
    assert epochs(second.lock("group", "orders", 0)) > before


def test_groups_do_not_share_locks(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    assert locked(first.lock("one", "orders", 0)) == [0]
    assert locked(second.lock("two", "orders", 0)) == [0]


def test_a_client_that_does_not_ask_for_epochs_gets_a_plain_reply(client: WireClient) -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"group","mqSet":'
        b'[{"brokerName":"embedded","queueId":0,"topic":"orders"}],"onlyThisBroker":false}'
    )
    answer = client.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert answer.ext == {}
    assert locked(answer) == [0]


def test_the_reply_has_the_lease_and_the_broker_id(client: WireClient) -> None:
    answer = client.lock("group", "orders", 0)
    assert answer.ext["omqLeaseMs"] == "60000"
    assert len(answer.ext["omqBrokerId"]) == 32


def test_only_the_holder_unlocks(connect: Connect) -> None:
    first, second = connect("first"), connect("second")
    first.lock("group", "orders", 0)
    assert second.unlock("group", "orders", 0).code == 0
    assert locked(second.lock("group", "orders", 0)) == []
    first.unlock("group", "orders", 0)
    assert locked(second.lock("group", "orders", 0)) == [0]


def test_an_unlock_of_an_older_epoch_releases_nothing(client: WireClient, connect: Connect) -> None:
    (old,) = epochs(client.lock("group", "orders", 0))
    client.unlock("group", "orders", 0)
    (new,) = epochs(client.lock("group", "orders", 0))
    client.unlock("group", "orders", 0, epochs=str(old))
    other = connect("other")
    assert locked(other.lock("group", "orders", 0)) == []
    client.unlock("group", "orders", 0, epochs=str(new))
    assert locked(other.lock("group", "orders", 0)) == [0]


def test_an_unlock_with_too_few_epochs_is_refused(client: WireClient) -> None:
    client.lock("group", "orders", 0, 1)
    answer = client.unlock("group", "orders", 0, 1, epochs="1")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert client.unlock("group", "orders", 0, epochs="x").code == ResponseCode.SYSTEM_ERROR


def test_locks_outlive_the_connection(connect: Connect, broker: EmbeddedBroker) -> None:
    first, second = connect("first"), connect("second")
    first.lock("group", "orders", 0)
    first.close()
    while broker.statistics.connections > 1:
        second.round_trip()
    assert locked(second.lock("group", "orders", 0)) == []


def test_an_unlock_notifies_the_refused_client_and_no_other(connect: Connect) -> None:
    holder, waiting, idle = connect("holder"), connect("waiting"), connect("idle")
    holder.lock("group", "orders", 0, 1)
    waiting.lock("group", "orders", 0)
    assert wake_ups(waiting.notices()) == []
    holder.unlock("group", "orders", 1)
    assert wake_ups(waiting.notices()) == []
    holder.unlock("group", "orders", 0)
    assert wake_ups(waiting.notices()) == ["group"]
    assert locked(waiting.lock("group", "orders", 0)) == [0]
    assert wake_ups(idle.notices()) == wake_ups(holder.notices()) == []


def test_a_refused_client_is_notified_once(connect: Connect) -> None:
    holder, waiting = connect("holder"), connect("waiting")
    holder.lock("group", "orders", 0)
    waiting.lock("group", "orders", 0)
    waiting.lock("group", "orders", 0)
    holder.unlock("group", "orders", 0)
    holder.lock("group", "orders", 0)
    holder.unlock("group", "orders", 0)
    assert wake_ups(waiting.notices()) == ["group"]


def test_an_expired_lock_is_deleted_and_the_refused_client_notified(
    connect: Connect, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    holder, waiting = connect("holder"), connect("waiting")
    holder.lock("group", "orders", 0)
    waiting.lock("group", "orders", 0)
    clock.advance(60_001)
    assert waiting.notice(clock).ext["consumerGroup"] == "group"
    assert broker.statistics.locks_expired == 1
    assert locked(waiting.lock("group", "orders", 0)) == [0]


def test_a_closed_connection_no_longer_waits(connect: Connect, broker: EmbeddedBroker) -> None:
    holder, waiting = connect("holder"), connect("waiting")
    holder.lock("group", "orders", 0)
    waiting.lock("group", "orders", 0)
    waiting.close()
    while broker.statistics.connections > 1:
        holder.round_trip()
    assert holder.unlock("group", "orders", 0).code == 0
    assert broker.statistics.requests_failed == 0


@pytest.mark.parametrize(
    "queue",
    [
        MessageQueue("orders", "b@1", 0),
        MessageQueue("a@b", "c", 1),
        MessageQueue("a", "b@c@", 1),
        MessageQueue("\\a", "\\@\\", 2),
        MessageQueue("%RETRY%g", "embedded", 3),
    ],
)
def test_a_restart_keeps_the_lock_of_a_queue_with_any_name(
    tmp_path: pathlib.Path, queue: MessageQueue
) -> None:
    def ask(name: str, broker: EmbeddedBroker) -> list[MessageQueue]:
        with WireClient(broker.port, name) as client:
            body = LockBatch("g", name, (queue,)).to_body()
            answer = client.call(RequestCode.LOCK_BATCH_MQ, {"omqEpochs": "1"}, body)
        return list(locked_queues_from_body(answer.body))

    with EmbeddedBroker(tmp_path) as broker:
        assert ask("one", broker) == [queue]
    with EmbeddedBroker(tmp_path) as broker:
        assert ask("two", broker) == []
        assert ask("one", broker) == [queue]


def test_a_lock_that_an_earlier_version_stored_with_a_bare_sign_is_found(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path):
        pass
    database = sqlite3.connect(path)
    database.execute("INSERT INTO locks VALUES ('g', 'orders@b@1@0', 'one', 7)")
    database.execute("UPDATE meta SET value = 8 WHERE name = 'next_epoch'")
    database.commit()
    database.close()
    queue = MessageQueue("orders", "b@1", 0)
    with EmbeddedBroker(path) as broker, WireClient(broker.port, "two") as client:
        body = LockBatch("g", "two", (queue,)).to_body()
        answer = client.call(RequestCode.LOCK_BATCH_MQ, {"omqEpochs": "1"}, body)
    assert list(locked_queues_from_body(answer.body)) == []


def test_a_second_live_client_under_one_id_gets_no_locks(
    connect: Connect, clock: ManualClock
) -> None:
    first, second = connect("same"), connect("same")
    first.heartbeat("group", {"orders": "*"})
    assert locked(first.lock("group", "orders", 0)) == [0]
    second.heartbeat("group", {"orders": "*"})
    batch = LockBatch("group", "same", (MessageQueue("orders", "embedded", 0),)).to_body()
    asked = second.start(RequestCode.LOCK_BATCH_MQ, {"omqEpochs": "1"}, batch)
    second.round_trip()
    first.round_trip()
    (question,) = [one for one in first.notices() if one.code == 307]
    first.socket.sendall(encode(question.reply(1, {}, b"", "no such group")))
    answer = second.wait(asked)
    assert answer.code != 0
    assert "is in use by another live client, at 127.0.0.1:" in (answer.remark or "")
    # The first one is not asked, and goes on.
    before = epochs(first.lock("group", "orders", 0))
    assert locked(first.lock("group", "orders", 0)) == [0]
    # When it is gone, the lock goes on under its id and epoch.
    first.close()
    eventually(lambda: second.lock("group", "orders", 0).code == 0, "the first one is gone")
    assert epochs(second.lock("group", "orders", 0)) == before


def test_a_lock_that_waits_for_a_twins_answer_may_be_asked_again_if_the_broker_closes_meanwhile(
    broker: EmbeddedBroker,
    connect: Connect,
    stop_writing: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = connect("same"), connect("same")
    first.heartbeat("group", {"orders": "*"})
    second.heartbeat("group", {"orders": "*"})
    batch = LockBatch("group", "same", (MessageQueue("orders", "embedded", 0),)).to_body()
    asked = second.start(RequestCode.LOCK_BATCH_MQ, {"omqEpochs": "1"}, batch)
    second.round_trip()
    stop_writing()
    first.close()  # as the broker does next; so it has no answer
    assert second.wait(asked).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.statistics.internal_errors == 0
    assert "please report" not in caplog.text


def test_a_client_that_reconnects_goes_on_although_its_old_connection_looks_open(
    connect: Connect, clock: ManualClock
) -> None:
    old = connect("same")
    old.heartbeat("group", {"orders": "*"})
    before = epochs(old.lock("group", "orders", 0))
    again = connect("same")
    # Without a heartbeat of its own it is none: tasks of a Spark query ask for its driver.
    assert epochs(again.lock("group", "orders", 0)) == before
    again.heartbeat("group", {"orders": "*"})
    batch = LockBatch("group", "same", (MessageQueue("orders", "embedded", 0),)).to_body()
    asked = again.start(RequestCode.LOCK_BATCH_MQ, {"omqEpochs": "1"}, batch)
    assert epochs(again.wait(asked, clock)) == before
    assert old.is_closed()
