"""Durable first, visible second: what was answered with success is there, what was refused is not
(docs/internals/semantics.md#writes-of-the-embedded-broker)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.group_commit import _GroupChanges
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import held_locks_from_body
from ordermq.remoting.bodies import LockBatch
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.rare_headers import LongSendHeader
from tests.component.broker.test_topic_lives import a_send, deletion
from tests.component.broker.test_transactions import COMMIT, ROLLBACK, end_header
from tests.component.broker.wire_client import BROKER, WireClient, epochs, queue_table, records

Act = Callable[[WireClient], Sequence[Command]]  # makes requests and returns their answers
LOOKER = "looker"  # group of the pulls that look at the state
TOPICS = ("T", "U", "%RETRY%g", "%DLQ%g", "%RETRY%new")


class Script(NamedTuple):
    """Requests before the store fails, and the ones whose writes are refused."""

    prepare: Act
    act: Act


@contextmanager
def full_disk() -> Iterator[None]:
    """Have the store's boundary refuse each group of writes, after its rows were inserted."""
    flush = _GroupChanges.flush

    def full(self: _GroupChanges) -> None:
        flush(self)
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_GroupChanges, "flush", full)
        yield


def state(client: WireClient) -> dict[str, Any]:
    """Everything that clients can learn of what is stored."""
    call = client.call
    topics = json.loads(call(RequestCode.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
    groups = json.loads(call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    found: dict[str, Any] = {"topics": topics}
    # A group without settings of its own is known while it is used: that is not stored.
    found["groups"] = {
        name: one for name, one in groups["subscriptionGroupTable"].items()
        if one["retryMaxTimes"] != 16
    }  # fmt: skip
    for topic in TOPICS:
        if topic not in topics:
            continue
        found[topic] = [
            [
                (message.queue_offset, bytes(message.body))
                for message in records(client.pull(topic, 0, queue_id, group=LOOKER).body)
            ]
            for queue_id in range(topics[topic]["readQueueNums"])
        ]
    for group in ("g", "new"):
        answer = call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
        found["offsets", group] = {
            queue: one["consumerOffset"]
            for queue, one in queue_table(answer.body)["offsetTable"].items()
        }
    body = LockBatch("g", "c", tuple(MessageQueue("T", BROKER, n) for n in range(2))).to_body()
    held = held_locks_from_body(call(RequestCode.OMQ_QUERY_LOCKS, body=body).body)
    found["locks"] = [(one.queue.queue_id, one.owner, one.epoch) for one in held]
    return found


def waiting(broker: EmbeddedBroker) -> tuple[int, int]:
    return broker.statistics.half_messages, broker.statistics.timed_messages


def a_request(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Act:
    return lambda client: [client.call(code, ext or {}, body)]


def at_once(*requests: Command) -> Act:
    """Requests in one piece: the broker reads them together."""

    def send(client: WireClient) -> list[Command]:
        client.socket.sendall(b"".join(map(encode, requests)))
        return [client.wait(request) for request in requests]

    return send


def topic(name: str, queues: int, order: str = "false") -> Act:
    ext = {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
           "order": order}  # fmt: skip
    return a_request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def group(retries: int) -> Act:
    body = json.dumps({"groupName": "g", "retryMaxTimes": retries}).encode()
    return a_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def filled(client: WireClient) -> list[Command]:
    """A topic with messages and a group with an offset."""
    answers = [*topic("T", 2)(client), client.send("T", b"1"), client.send("T", b"2")]
    return [*answers, client.commit("g", "T", 1), client.heartbeat("g", {"T": "*"})]


def sends(*names: str) -> Act:
    return at_once(*(a_send(name, b"%d" % number) for number, name in enumerate(names)))


def a_long_send(client: WireClient) -> list[Command]:
    ext = LongSendHeader("producers", "T", 0).to_ext()
    return [client.call(RequestCode.SEND_MESSAGE, ext, b"long")]


def a_dead_letter(client: WireClient) -> list[Command]:
    header = SendHeader("g", "%RETRY%g", 0, reconsume_times=99, max_reconsume_times=1)
    return [client.call(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"dead")]


def sent_back(delay_level: int) -> Act:
    def act(client: WireClient) -> list[Command]:
        (first, *_) = records(client.pull("T", 0, group=LOOKER).body)
        ext = {"group": "g", "offset": str(first.physical_offset), "delayLevel": str(delay_level)}
        return [client.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext)]

    return act


def with_half(client: WireClient) -> list[Command]:
    marks = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "id-half"}
    half = client.send("T", b"half", properties=marks, sys_flag=0x4)
    client.half = half  # type: ignore[attr-defined]
    return [half]


def ended(flag: int) -> Act:
    def act(client: WireClient) -> list[Command]:
        half = client.half  # type: ignore[attr-defined]
        return [client.call(RequestCode.END_TRANSACTION, end_header(half, flag).to_ext())]

    return act


def with_timed(client: WireClient) -> list[Command]:
    sent = client.send("T", b"timed", properties={"TIMER_DELAY_MS": "60000", "UNIQ_KEY": "A" * 32})
    client.handle = sent.ext.get("recallHandle")  # type: ignore[attr-defined]
    return [sent]


def recalled(client: WireClient) -> list[Command]:
    ext = {"topic": "T", "recallHandle": client.handle}  # type: ignore[attr-defined]
    return [client.call(RequestCode.RECALL_MESSAGE, ext)]


def locked(client: WireClient) -> list[Command]:
    answer = client.lock("g", "T", 0, 1)
    client.epochs = epochs(answer)  # type: ignore[attr-defined]
    return [answer]


def unlocked(client: WireClient) -> list[Command]:
    return [client.unlock("g", "T", 0)]


def reset(client: WireClient) -> list[Command]:
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    return [client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)]


def delete_group(clean: str) -> Act:
    return a_request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": clean})


def both(*acts: Act) -> Act:
    return lambda client: [answer for act in acts for answer in act(client)]


SCRIPTS = {
    "send": Script(filled, lambda client: [client.send("T", b"new")]),
    "send of the long form": Script(filled, a_long_send),
    "first send of a topic": Script(filled, lambda client: [client.send("U", b"new")]),
    "run of sends": Script(filled, sends("T", "T", "T")),
    "run of sends to a new topic": Script(filled, sends("U", "U", "U")),
    "batch": Script(filled, lambda client: [client.send_batch("T", [b"a", b"b"])]),
    "first batch of a topic": Script(filled, lambda client: [client.send_batch("U", [b"a"])]),
    "send for a retry topic": Script(filled, lambda client: [client.send("%RETRY%g", b"r")]),
    "dead letter": Script(filled, a_dead_letter),
    "message sent back": Script(filled, sent_back(-1)),
    "half message": Script(filled, with_half),
    "commit of a transaction": Script(both(filled, with_half), ended(COMMIT)),
    "rollback of a transaction": Script(both(filled, with_half), ended(ROLLBACK)),
    "timed message": Script(filled, with_timed),
    "recall": Script(both(filled, with_timed), recalled),
    "commit of an offset": Script(filled, lambda client: [client.commit("g", "T", 2)]),
    "first commit of a group": Script(filled, lambda client: [client.commit("new", "T", 1)]),
    "reset of offsets": Script(filled, reset),
    "lock": Script(filled, locked),
    "unlock": Script(both(filled, locked), unlocked),
    "new topic": Script(filled, topic("U", 3)),
    "change of a topic": Script(filled, topic("T", 5, order="true")),
    "deletion of a topic": Script(filled, at_once(deletion("T"))),
    "deletion of a topic and sends": Script(
        filled, at_once(deletion("T"), a_send("T", b"x"), deletion("T"), a_send("T", b"y"))
    ),
    "new group": Script(filled, group(3)),
    "change of a group": Script(both(filled, group(3)), group(5)),
    "deletion of a group": Script(both(filled, group(3)), delete_group("false")),
    "deletion of a group and its offsets": Script(both(filled, group(3)), delete_group("true")),
}


@pytest.mark.parametrize("is_full", [True, False], ids=["refused", "stored"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_was_answered_with_success_is_there_and_what_was_refused_is_not(
    tmp_path: Path, name: str, *, is_full: bool
) -> None:
    script, path, clock = SCRIPTS[name], tmp_path / "broker.db", ManualClock()
    config = BrokerConfig(durability="os")
    with (
        EmbeddedBroker(path, config=config, clock=clock) as broker,
        WireClient(broker.port) as client,
    ):
        assert {answer.code for answer in script.prepare(client)} == {0}
        before = state(client), waiting(broker)
        if is_full:
            with full_disk():
                answers = script.act(client)
            assert all("disk is full" in (answer.remark or "") for answer in answers)
            assert (state(client), waiting(broker)) == before
            assert client.members("new") == []
            # Nothing of it is in the way of what comes next.
            assert {answer.code for answer in script.act(client)} == {0}
            with full_disk():
                script.act(client)
        else:
            assert {answer.code for answer in script.act(client)} == {0}
        after = state(client), waiting(broker)
        assert after != before
    with (
        EmbeddedBroker(path, config=config, clock=clock) as broker,
        WireClient(broker.port) as client,
    ):
        assert (state(client), waiting(broker)) == after


def test_a_commit_behind_a_reset_waits_for_it_and_a_failed_reset_moves_nobody(
    tmp_path: Path,
) -> None:
    with (
        EmbeddedBroker(tmp_path / "broker.db", clock=ManualClock()) as broker,
        WireClient(broker.port) as client,
    ):
        filled(client)
        with full_disk():
            assert reset(client)[0].code != 0
        assert records(client.pull("T", 1, group="g").body)[0].body == b"2"
        assert client.commit("g", "T", 2).code == 0
        assert client.committed("g", "T") == 2
