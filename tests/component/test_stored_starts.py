"""Starts are stored before anything is delivered: a group that never committed loses nothing
(docs/internals/semantics.md#where-a-queue-starts)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from ordermq import (
    AsyncConsumer,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.errors import StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import eventually
from tests.component.forked import Child, in_child
from tests.component.name_server import NameServer

OLD = 40  # messages that a group which starts at the end skips
QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]
NEVER_MS = 86_400_000
BRIEF_MS = 1_500


class DictStore:
    """A user's own offset store."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=20)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def open(self) -> None:
        self._run("CREATE TABLE IF NOT EXISTS offsets (place TEXT PRIMARY KEY, next INTEGER)")

    def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
        return self.read(group, queue)

    def read(self, group: str, queue: MessageQueue) -> int | None:
        rows = self._run("SELECT next FROM offsets WHERE place = ?", f"{group} {queue}")
        return rows[0][0] if rows else None

    def write(
        self,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        epoch: int,
        *,
        is_reset: bool = False,
    ) -> None:
        self._run("INSERT OR REPLACE INTO offsets VALUES (?, ?)", f"{group} {queue}", next_offset)


class Member:
    """A started member of group "g" that commits nothing by itself, and what it was given."""

    def __init__(self, kind: str, servers: str, folder: Path, **settings: Any) -> None:
        self.got: list[int] = []
        common: dict[str, Any] = {"name_servers": servers, "lock_retry_ms": 50} | settings
        is_polled = kind in ("lite", "assigned", "ordered polling")
        self.consumer = (
            self._polled(kind, common) if is_polled else self._pushed(kind, folder, common)
        )
        self.consumer.start()
        if is_polled:
            self._poller = threading.Thread(target=self._poll, daemon=True)
            self._poller.start()

    def _polled(self, kind: str, common: dict[str, Any]) -> Any:
        consumer = LitePullConsumer(
            "g", auto_commit=False, ordered=kind == "ordered polling", **common
        )
        if kind == "assigned":
            consumer.assign(QUEUES)
        else:
            consumer.subscribe("orders")
        return consumer

    def _pushed(self, kind: str, folder: Path, common: dict[str, Any]) -> Any:
        common["commit_interval_ms"] = NEVER_MS
        if kind == "by key":
            common["order_by_key"] = True
        elif kind == "broadcasting":
            common |= {"message_model": "broadcasting", "local_offset_store_dir": str(folder)}
        elif kind == "own store":
            common["offset_store"] = DictStore(folder / "own.db")
        elif kind == "database":
            engine = create_engine(f"sqlite:///{folder}/sql.db")
            common["offset_store"] = SqlOffsetStore(engine)
        consumer = PushConsumer("g", **common)
        consumer.subscribe("orders")
        (consumer.concurrently if kind == "concurrent" else consumer.orderly)(self._take)
        return consumer

    def _take(self, messages: Any, context: Any) -> None:
        self.got += [int(bytes(message.body)) for message in messages]

    def _poll(self) -> None:
        while True:
            try:
                batch = self.consumer.poll(100)
            except Exception:  # noqa: BLE001 - closed
                return
            self.got += [int(bytes(message.body)) for message in batch]

    def close(self) -> None:
        self.consumer.close(10.0)


KINDS = [
    "orderly", "by key", "concurrent", "lite", "assigned", "ordered polling", "broadcasting",
    "own store", "database",
]  # fmt: skip


@pytest.fixture
def broker_config(broker_config: BrokerConfig) -> BrokerConfig:
    # As a topic whose first messages have expired: no broker lets a new group start at 0.
    return replace(
        broker_config,
        new_groups_start_at_zero=False,
        client_expiry_ms=1_000,
        client_scan_interval_ms=100,
        lock_max_live_ms=BRIEF_MS,
    )


@pytest.fixture
def old(broker: EmbeddedBroker) -> Iterator[Producer]:
    """A producer of a topic that has messages nobody wants."""
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=4) as producer:
        send(producer, range(OLD))
        yield producer


def send(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.send(Message("orders", b"%d" % number), queue=QUEUES[number % 4])


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_was_given_nothing_and_closed_has_begun_its_group(
    kind: str, old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    Member(kind, broker.name_servers, tmp_path).close()
    send(old, range(OLD, OLD + 8))
    member = Member(kind, broker.name_servers, tmp_path)
    eventually(lambda: sorted(member.got) == list(range(OLD, OLD + 8)), "what was sent in between")
    member.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_was_killed_has_begun_its_group(
    kind: str, old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    held, write_end = os.pipe()

    def live() -> None:
        Member(kind, broker.name_servers, tmp_path)
        os.write(write_end, b"1")
        threading.Event().wait()

    child = Child(live)
    assert os.read(held, 1) == b"1"
    child.kill()
    send(old, range(OLD, OLD + 8))
    member = Member(kind, broker.name_servers, tmp_path)
    eventually(lambda: sorted(member.got) == list(range(OLD, OLD + 8)), "what was sent in between")
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent", "lite", "ordered polling"])
def test_a_rolling_restart_of_members_that_never_committed_loses_nothing(
    kind: str, old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    members = [Member(kind, broker.name_servers, tmp_path) for _ in range(2)]
    left: list[Member] = []
    sent = OLD
    for _ in range(3):
        for _ in range(2):
            send(old, range(sent, sent + 4))
            sent += 4
            left.append(members.pop(0))
            left[-1].close()
            send(old, range(sent, sent + 4))
            sent += 4
            members.append(Member(kind, broker.name_servers, tmp_path))
    want = set(range(OLD, sent))

    def got() -> set[int]:
        return {number for member in members + left for number in member.got}

    eventually(lambda: got() == want, "everything that was sent since the first member started")
    for member in members:
        member.close()


def test_the_start_is_stored_before_a_queues_first_pull_and_the_audit_checks_it(
    old: Producer, broker: EmbeddedBroker, broker_history: Path, tmp_path: Path
) -> None:
    stored: dict[MessageQueue, int | None] = {}

    def note(queue: MessageQueue) -> None:
        if queue.topic == "orders":
            stored[queue] = offset_of(broker, queue)

    history = tmp_path / "member.jsonl"
    member = Member("orderly", broker.name_servers, tmp_path, on_assigned=note, history=history)
    eventually(lambda: stored == dict.fromkeys(QUEUES, OLD // 4), "each queue's end")
    send(old, range(OLD, OLD + 8))
    eventually(lambda: len(member.got) == 8, "the messages")
    member.close()
    report = audit([history, broker_history])
    assert report.ok, report.violations
    assert report.events["POSITION"] >= 4


def offset_of(broker: EmbeddedBroker, queue: MessageQueue) -> int | None:
    with PullConsumer("g", name_servers=broker.name_servers) as probe:
        return probe.fetch_consume_offset(queue, from_store=True)


def test_a_stored_offset_wins_whatever_the_next_members_setting_is(
    old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    Member("orderly", broker.name_servers, tmp_path).close()
    member = Member("orderly", broker.name_servers, tmp_path, consume_from_where="first_offset")
    send(old, range(OLD, OLD + 4))
    eventually(lambda: len(member.got) == 4, "the new ones")
    member.close()
    assert sorted(member.got) == list(range(OLD, OLD + 4))


def test_a_queue_that_comes_to_a_topic_later_starts_at_its_first_message(
    old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    member = Member("orderly", broker.name_servers, tmp_path, route_interval_ms=100)
    with WireClient(broker.port) as tool:
        tool.create_topic("orders", 5)
    old.send(Message("orders", b"1000"), queue=MessageQueue("orders", "b", 4))
    eventually(lambda: member.got == [1000], "its first message")
    member.close()


def test_a_topic_that_is_subscribed_later_has_its_start_when_subscribe_returns(
    old: Producer, broker: EmbeddedBroker
) -> None:
    got: list[bytes] = []
    consumer = PushConsumer("g", name_servers=broker.name_servers)
    consumer.subscribe("others")  # there is none yet
    consumer.orderly(lambda messages, context: got.extend(bytes(m.body) for m in messages))
    with consumer:
        consumer.subscribe("orders")
        assert [offset_of(broker, queue) for queue in QUEUES] == [OLD // 4] * 4
    send(old, range(OLD, OLD + 1))
    again = PushConsumer("g", name_servers=broker.name_servers)
    again.subscribe("orders")
    again.orderly(lambda messages, context: got.extend(bytes(m.body) for m in messages))
    with again:
        eventually(lambda: got == [b"%d" % OLD], "what was sent in between")


# -- start() waits for no more than there is -------------------------------------------------


def test_start_returns_without_a_topic(broker: EmbeddedBroker, tmp_path: Path) -> None:
    member = Member("orderly", broker.name_servers, tmp_path)
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=4) as producer:
        send(producer, range(4))
        eventually(lambda: sorted(member.got) == [0, 1, 2, 3], "a topic's first messages")
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "concurrent", "lite"])
def test_start_returns_for_a_member_that_no_queue_is_left_for(
    kind: str, old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    members = [Member(kind, broker.name_servers, tmp_path) for _ in range(6)]
    for member in members:
        member.close()


def test_start_returns_while_the_broker_is_away_and_the_group_has_what_comes_after_it(
    old: Producer, broker: EmbeddedBroker, broker_config: BrokerConfig, tmp_path: Path
) -> None:
    names = NameServer()
    names.register("b", broker, "orders", 4)
    port = broker.port
    broker.close()
    # Otherwise the broker drops it after a second, and what it was given comes again.
    often = {"reconnect_delay_ms": 50, "heartbeat_interval_ms": 200}
    member = Member("orderly", names.address, tmp_path, **often)
    assert not member.consumer.assigned_queues()
    with EmbeddedBroker(tmp_path / "broker.db", port=port, config=broker_config) as back:
        with Producer("p2", name_servers=back.name_servers) as producer:
            send(producer, range(OLD, OLD + 8))
            eventually(lambda: sorted(member.got) == list(range(OLD, OLD + 8)), "all since then")
        member.close()
    names.close()


def test_start_returns_in_a_forked_child(
    old: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    parent = Member("orderly", broker.name_servers, tmp_path)
    in_child(lambda: Member("concurrent", broker.name_servers, tmp_path).close())
    parent.close()


def test_an_asynchronous_start_leaves_the_loop_alone(broker: EmbeddedBroker) -> None:
    """Its topic has a queue that is never granted, so it waits as long as it ever does."""

    async def work() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        consumer = AsyncConsumer("g", "orders", name_servers=broker.name_servers)
        async with consumer:
            assert ticks > 1
        ticking.cancel()

    asyncio.run(asyncio.wait_for(work(), 40))


def test_a_start_that_cannot_be_stored_is_tried_again_and_stays_where_it_was(
    old: Producer, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = OffsetFile.write
    full = threading.Event()
    full.set()

    def write(file: OffsetFile, offsets: Any) -> None:
        if full.is_set():
            raise OSError("a test's own full disk")
        written(file, offsets)

    monkeypatch.setattr(OffsetFile, "write", write)
    member = Member("broadcasting", broker.name_servers, tmp_path)
    assert not member.consumer.assigned_queues()
    send(old, range(OLD, OLD + 8))
    full.clear()
    eventually(lambda: sorted(member.got) == list(range(OLD, OLD + 8)), "all since the start")
    member.close()


def test_a_store_that_fails_is_told_with_its_queue(
    old: Producer, broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(DictStore):
        def write(self, *_: Any, **also: Any) -> None:
            raise StoreError("a test's own outage")

    store = Broken(tmp_path / "own.db")
    member = Member("orderly", broker.name_servers, tmp_path, offset_store=store)
    assert not member.consumer.assigned_queues()
    member.close()
    told = [text for text in caplog.messages if "could not be read or stored" in text]
    assert len([text for text in told if str(QUEUES[0]) in text]) == 1
    assert "a test's own outage" in told[0]


@pytest.mark.parametrize("odd", [-1, 1 << 63, "5", True, 1.5])
def test_a_store_that_answers_no_offset_is_told_once_and_named_by_health(
    odd: Any,
    old: Producer,
    broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(DictStore):
        def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
            return odd if queue == QUEUES[0] else super().take_over(group, queue, epoch)

    store = Odd(tmp_path / "own.db")
    member = Member("orderly", broker.name_servers, tmp_path, offset_store=store)
    send(old, range(OLD, OLD + 4))
    eventually(lambda: len(member.got) == 3, "the other queues go on")
    reasons = member.consumer.health().reasons
    member.close()
    expected = f"offset_store: Odd.take_over(): {QUEUES[0]}: offset {odd!r}: expected 0 or more"
    # On a busy machine the broker may drop the member for a while, which is another reason.
    assert sum(expected in reason for reason in reasons) == 1, reasons
    assert len([text for text in caplog.messages if expected in text]) == 1
    assert "internal error" not in caplog.text
