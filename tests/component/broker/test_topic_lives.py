"""A topic that is deleted and made anew: what belongs to which life
(docs/internals/semantics.md#writes-of-the-embedded-broker)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ordermq.broker import EmbeddedBroker
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
