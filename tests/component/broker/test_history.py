"""The events the broker records, in its own order (docs/internals/semantics.md#invariants)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.errors import ConfigError
from ordermq.events import History
from tests.component.broker.wire_client import WireClient, epochs

Recorded = Callable[[Callable[[EmbeddedBroker], None]], list[dict[str, Any]]]


@pytest.fixture
def recorded(tmp_path: Path, clock: ManualClock) -> Recorded:
    """Runs a scene on a recording broker; returns its events, file open and close aside."""

    def run(scene: Callable[[EmbeddedBroker], None]) -> list[dict[str, Any]]:
        with (
            History(tmp_path / "history.jsonl", "broker") as history,
            EmbeddedBroker(clock=clock, history=history) as broker,
        ):
            scene(broker)
        lines = (tmp_path / "history.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["type"] not in ("OPEN", "CLOSE")]

    return run


def test_store_events_have_offsets_sharding_keys_and_tags(recorded: Recorded) -> None:
    def scene(broker: EmbeddedBroker) -> None:
        with WireClient(broker.port) as client:
            client.send("orders", properties={"__SHARDINGKEY": "k", "KEYS": "other"})
            client.send_batch("orders", [b"a", b"b"], properties={"KEYS": "word"})
            client.send("orders", b"x", 1, properties={"TAGS": "paid"})

    events = recorded(scene)
    assert [event["type"] for event in events] == ["STORE"] * 3
    # Words to search by (KEYS) say nothing of order: only the sharding key is a key here.
    assert [(e["queue"], e["offs"], e["keys"], e["tags"]) for e in events] == [
        (0, [0], ["k"], [None]), (0, [1, 2], [None, None], [None, None]),
        (1, [0], [None], ["paid"]),
    ]  # fmt: skip
    assert {(e["group"], e["topic"], e["broker"]) for e in events} == {("", "orders", "embedded")}


def test_the_end_of_a_topic_is_recorded_for_every_group(recorded: Recorded) -> None:
    def scene(broker: EmbeddedBroker) -> None:
        with Admin(broker.name_servers) as admin:
            admin.create_topic("orders", 2)
            admin.delete_topic("orders")

    events = recorded(scene)
    assert [(e["type"], e["group"], e["topic"], e["queue"], e["off"]) for e in events] == [
        ("RESET", "", "orders", 0, 0), ("RESET", "", "orders", 1, 0),
    ]  # fmt: skip


def test_a_path_is_no_recorder_of_a_broker(tmp_path: Path) -> None:
    """As members take one."""
    path: Any = tmp_path / "broker.jsonl"
    with pytest.raises(ConfigError, match=r"history=.*: expected a recorder, as History\(path"):
        EmbeddedBroker(history=path)


def test_lock_and_commit_events_are_in_the_order_of_the_broker(
    recorded: Recorded, clock: ManualClock
) -> None:
    began_ms = clock.now_ms()

    def scene(broker: EmbeddedBroker) -> None:
        with WireClient(broker.port, "a") as a, WireClient(broker.port, "b") as b:
            a.send("orders")
            (epoch,) = epochs(a.lock("group", "orders", 0))
            a.lock("group", "orders", 0)
            a.commit("group", "orders", 1, epoch=epoch, client_id="a")
            a.commit("group", "orders", 0, epoch=epoch, client_id="a", reset=True)
            a.unlock("group", "orders", 0)
            b.lock("group", "orders", 0)
            b.lock("group", "orders", 1)
            clock.advance(60_001)
            a.lock("group", "orders", 0, 1)

    events = [e for e in recorded(scene) if e["type"] != "STORE"]
    told = [(e["type"], e["queue"], e["client"], e["epoch"]) for e in events]
    assert told[:6] == [
        ("LOCK_OK", 0, "a", 1),
        ("LOCK_OK", 0, "a", 1),
        ("COMMIT_ACK", 0, "a", 1),
        ("RESET", 0, "a", 1),
        ("UNLOCK", 0, "a", 1),
        ("LOCK_OK", 0, "b", 2),
    ]
    assert told[6] == ("LOCK_OK", 1, "b", 3)
    assert sorted(told[7:9]) == [("LOCK_LOST", 0, "b", 2), ("LOCK_LOST", 1, "b", 3)]
    assert [one[:3] for one in told[9:]] == [("LOCK_OK", 0, "a"), ("LOCK_OK", 1, "a")]
    assert events[0]["lease_ms"] == 60_000
    decided = [e["decided"] // 1_000_000 for e in events if e["type"] == "LOCK_OK"]
    assert decided == [began_ms] * 4 + [began_ms + 60_001] * 2
    assert events[2]["off"] == 1
