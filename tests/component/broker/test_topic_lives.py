"""A topic that is deleted and made anew: what belongs to which life
(docs/internals/semantics.md#writes-of-the-embedded-broker)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ordermq.broker import EmbeddedBroker
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader
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
