"""A topic that is deleted and made anew: what belongs to which life
(docs/internals/semantics.md#writes-of-the-embedded-broker)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.database_check import check_database
from ordermq.broker.store.group_commit import _GroupChanges
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader, UpdateOffsetHeader
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, records


def deletion(topic: str) -> Command:
    return Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


def a_send(topic: str, body: bytes, queue_id: int = 0) -> Command:
    header = SendHeader("producers", topic, queue_id)
    return Command.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


def at_once(client: WireClient, requests: Sequence[Command]) -> list[int]:
    """Send requests in one piece, which the broker handles in one group commit; their codes."""
    client.socket.sendall(b"".join(map(encode, requests)))
    return [client.wait(request).code for request in requests]


def stored(client: WireClient, topic: str, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in records(client.pull(topic, 0, queue_id).body)]


def test_sends_behind_a_deletion_are_in_the_new_topic_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        client.send("orders", b"old")
        lives = [
            deletion("orders"), a_send("orders", b"1"),
            deletion("orders"), a_send("orders", b"2-a"), a_send("orders", b"2-b"),
        ]  # fmt: skip
        assert at_once(client, lives) == [0] * 5
        assert stored(client, "orders") == [b"2-a", b"2-b"]
    with EmbeddedBroker(path) as again, WireClient(again.port) as client:
        assert stored(client, "orders") == [b"2-a", b"2-b"]
        assert client.max_offset("orders") == 2


def fill(client: WireClient, count: int) -> None:
    for number in range(count):
        assert client.send("orders", b"%d" % number).code == 0


def test_a_held_pull_is_answered_when_its_topic_is_deleted(
    client: WireClient, connect: Connect
) -> None:
    fill(client, 3)
    other = connect("client-2")
    held = other.start_pull("orders", 3, suspend_ms=100_000)
    assert not other.has_answer(held)
    assert at_once(client, [deletion("orders"), a_send("orders", b"new")]) == [0, 0]
    assert other.wait(held).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_position_of_the_old_life_is_answered_with_the_begin_of_the_new_one(
    client: WireClient, connect: Connect
) -> None:
    fill(client, 3)
    assert [m.body for m in records(client.pull("orders", 2).body)] == [b"2"]
    late = connect("client-2")
    assert at_once(client, [deletion("orders")]) == [0]
    fill(late, 9)  # longer than the old one: by its number alone the offset is in it
    moved = client.pull("orders", 3)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    # Told once; where the client goes on is its own matter, and others are not concerned.
    assert [m.body for m in records(client.pull("orders", 8).body)] == [b"8"]
    assert [m.body for m in records(late.pull("orders", 7).body)] == [b"7", b"8"]
    beyond = client.pull("orders", 99)
    assert (beyond.code, beyond.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "9")


def test_a_commit_of_the_old_life_is_not_stored_for_the_new_one(
    client: WireClient, connect: Connect
) -> None:
    fill(client, 3)
    client.pull("orders", 2, group="group")
    assert client.commit("group", "orders", 3).code == 0
    admin = connect("client-2")
    header = UpdateOffsetHeader("group", "orders", 0, 2)
    commit = encode(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext()))
    # In one piece with the deletion, before and behind it; then when the new topic is longer.
    admin.socket.sendall(commit + encode(deletion("orders")) + commit)
    admin.round_trip()
    fill(admin, 9)
    assert admin.committed("group", "orders") is None
    assert client.commit("group", "orders", 3).code == ResponseCode.INVALID_PARAMETER
    pulled = client.pull("orders", 3, group="group", flag=1, commit_offset=3)
    assert pulled.code == ResponseCode.PULL_OFFSET_MOVED
    assert admin.committed("group", "orders") is None
    client.pull("orders", 0, group="group")
    assert client.commit("group", "orders", 2).code == 0
    assert admin.committed("group", "orders") == 2


class Life:
    """Topics as the answers say they are."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {}

    def note(self, request: Command, answer: Command) -> None:
        topic = request.ext.get("topic") or request.ext["b"]
        if request.code == RequestCode.GET_MAX_OFFSET:
            assert answer.code in (0, ResponseCode.TOPIC_NOT_EXIST), answer.remark
        elif answer.code:
            assert answer.code == ResponseCode.SYSTEM_ERROR
        elif request.code == RequestCode.DELETE_TOPIC_IN_BROKER:
            self.topics.pop(topic, None)
        else:
            found = self.topics.setdefault(topic, [])
            if request.code == RequestCode.SEND_MESSAGE_V2:
                assert int(answer.ext["queueOffset"]) == len(found)
                found.append(request.body)

    def check(self, client: WireClient) -> None:
        for topic in "AB":
            ext = {"topic": topic, "queueId": "0"}
            code = client.call(RequestCode.GET_MAX_OFFSET, ext).code
            assert (code == 0) == (topic in self.topics)
            assert [
                message.body for message in records(client.pull(topic, 0, count=1_000).body)
            ] == self.topics.get(topic, [])


def any_request(chance: Random, number: int) -> Command:
    topic, kind = chance.choice("AB"), chance.random()
    if kind < 0.6:
        return a_send(topic, b"%d" % number)
    if kind < 0.8:
        return deletion(topic)
    if kind < 0.9:
        ext = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        return Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    return Command.request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})


@pytest.mark.parametrize("seed", range(16))
def test_topics_are_what_the_answers_say_while_group_commits_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, life, path = Random(seed), Life(), tmp_path / "broker.db"
    flush, share = _GroupChanges.flush, 0.0

    def flaky(self: _GroupChanges) -> None:
        flush(self)
        if chance.random() < share:
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(_GroupChanges, "flush", flaky)
    config = BrokerConfig(
        durability="os", group_commit_max=chance.choice([1, 3, 4_096]), default_queue_count=1
    )
    with EmbeddedBroker(path, config=config) as broker, WireClient(broker.port) as client:
        for burst in range(12):
            share = chance.choice([0, 0.3, 0.7])
            requests = [any_request(chance, burst * 100 + each) for each in range(25)]
            data = b"".join(map(encode, requests))
            while data:  # in pieces, which the broker stores in groups of their own
                size = chance.randrange(1, 4_000)
                client.socket.sendall(data[:size])
                data = data[size:]
            for request in requests:
                life.note(request, client.wait(request))
            share = 0.0
            life.check(client)
    with EmbeddedBroker(path, config=config) as broker, WireClient(broker.port) as client:
        life.check(client)
    assert check_database(path).problems == []
