"""Effects of popped batches in the user's own database, exactly once
(docs/exactly-once.md#members-that-pop)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from ordermq import (
    Admin,
    AsyncConsumer,
    ConsumeResult,
    DeadLetter,
    LitePullConsumer,
    MessageView,
    Producer,
    PushConsumer,
)
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker, pop_leases, server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.pop.transport import RemotingPop
from ordermq.errors import ConfigError, ConnectionLost, Fenced
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.sql import AsyncSqlOffsetStore, SqlOffsetStore
from tests.component import test_async_exactly_once as of_asyncio
from tests.component.conftest import Seen, eventually, numbered
from tests.component.test_exactly_once import Ledger, send
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]
SHORT: dict[str, Any] = {"pop_invisible_ms": 1_500, "pop_poll_ms": 200, "lease_margin_ms": 200}


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    return Ledger(engine)


@pytest.fixture
def make(make_consumer: MakeConsumer, ledger: Ledger) -> MakeConsumer:
    """Members that pop and write to the table, each with a store of its own, as in a process."""

    def make(listener: Any = ledger, **settings: Any) -> PushConsumer:
        defaults = {"pop_poll_ms": 200, "suspend_current_queue_time_ms": 10}
        return make_consumer(
            listener,
            consume_mode="pop",
            offset_store=SqlOffsetStore(ledger.engine),
            **defaults | settings,
        )

    return make


@pytest.fixture
def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker take what comes late, as RocketMQ's does."""
    handler = server.HANDLERS[RequestCode.POP_MESSAGE]

    def pop(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        request.ext.pop("omqFenced", None)
        handler(context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.POP_MESSAGE, pop)


@pytest.mark.parametrize("size", [1, 8])
def test_members_that_share_a_group_count_each_message_once(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker, size: int
) -> None:
    members = [make(consume_message_batch_max_size=size) for _ in range(3)]
    for member in members:
        member.start()
    send(producer, 300)
    ledger.wait_for(300)
    assert ledger.bodies() == list(range(300))
    assert sum(ledger.offsets().values()) == 300
    eventually(lambda: committed(broker) == 300, "all is acknowledged")
    assert sum(member.statistics["leases_lost"] for member in members) == 0


VICTIM = """
import pathlib, sys, time
from sqlalchemy import create_engine, text
from ordermq import PushConsumer
from ordermq.sql import SqlOffsetStore

address, url, ready = sys.argv[1:]
consumer = PushConsumer("g", name_servers=address, consume_mode="pop", pop_poll_ms=200,
    consume_from_where="first_offset", pop_invisible_ms=1_500, commit_interval_ms=3_600_000,
    offset_store=SqlOffsetStore(create_engine(url)))
consumer.subscribe("orders")
done = 0

@consumer.orderly
def book(messages, context):
    global done
    if done == 5:
        # Committed, and not acknowledged: the batch is of more messages.
        pathlib.Path(ready).touch()
        time.sleep(60)
    done += 1
    for m in messages:
        context.transaction().execute(text("INSERT INTO ledger VALUES (:q, :a, :k, :b)"), {
            "q": context.message_queue.queue_id, "a": m.queue_offset, "k": m.sharding_key,
            "b": bytes(m.body).decode()})

consumer.start()
time.sleep(60)
"""


def send_to_one_queue(producer: Producer, count: int, start: int = 0) -> None:
    send_all(producer, numbered(count, keys=1, start=start))


def test_a_member_killed_between_commit_and_acknowledgement_repeats_nothing(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    send_to_one_queue(producer, 20)
    ready = tmp_path / "ready"
    url = ledger.engine.url.render_as_string(hide_password=False)
    line = [sys.executable, "-c", VICTIM, broker.name_servers, url, str(ready)]
    process = subprocess.Popen(line)
    try:
        eventually(ready.exists, "five messages are counted")
        assert ledger.count() == 5
        assert committed(broker) == 0
    finally:
        process.kill()
        process.wait()
    calls: list[int] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        calls.extend(int(bytes(each.body)) for each in messages)
        ledger(messages, context)

    make(listen, **SHORT).start()
    ledger.wait_for(20)
    assert ledger.bodies() == list(range(20))
    assert calls == list(range(5, 20)), "what had its effects is not delivered"
    eventually(lambda: committed(broker) == 20, "all is acknowledged")


def test_a_batch_that_had_all_its_effects_is_acknowledged_only(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def acknowledge(self: RemotingPop, batch: Any, end: int) -> None:
        raise ConnectionLost("cut by the test")

    send_to_one_queue(producer, 20)
    with monkeypatch.context() as patch:
        patch.setattr(RemotingPop, "acknowledge", acknowledge)
        first = make(**SHORT)
        first.start()
        ledger.wait_for(20)
        first.close(0.0)
    assert committed(broker) == 0
    make(**SHORT).start()
    eventually(lambda: committed(broker) == 20, "all is acknowledged")
    assert ledger.calls == 20
    assert ledger.bodies() == list(range(20))


def newest_epoch(ledger: Ledger) -> int:
    with ledger.engine.connect() as connection:
        return int(connection.scalar(text("SELECT max(epoch) FROM ordermq_offsets")) or 0)


def test_a_member_that_wakes_after_its_lease_writes_nothing_that_another_wrote(
    producer: Producer, make: MakeConsumer, ledger: Ledger, unfenced: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def extend(self: RemotingPop, batch: Any) -> None:
        raise ConnectionLost("cut by the test")

    late, over = threading.Event(), threading.Event()
    gate = threading.Event()

    def freezes(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        ledger.write(messages, context)
        late.set()
        eventually(context.is_revoked, "the lease is over")
        over.set()
        gate.wait(30)

    send_to_one_queue(producer, 20)
    with monkeypatch.context() as patch:
        patch.setattr(RemotingPop, "extend", extend)
        one = make(freezes, **SHORT)
        one.start()
        assert late.wait(20)
        two = make(**SHORT)
        two.start()
        assert over.wait(20)
        if ledger.engine.dialect.name == "postgresql":
            eventually(lambda: newest_epoch(ledger) >= 2, "the other one is the owner")
        # In SQLite its transaction keeps the other one waiting, and counts.
        gate.set()
        ledger.wait_for(20)
        one.close(10)
    assert ledger.bodies() == list(range(20))


def test_members_with_the_same_batch_at_once_count_each_message_once(
    producer: Producer, make: MakeConsumer, ledger: Ledger, unfenced: None, broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A broker that has forgotten its leases, as RocketMQ's in a crash, all the time."""
    monkeypatch.setattr(pop_leases.PopLease, "is_blocked", lambda *_: False)
    for _ in range(3):
        make(pop_batch_size=7).start()
    send(producer, 200)
    ledger.wait_for(200)
    assert ledger.bodies() == list(range(200))
    monkeypatch.undo()
    eventually(lambda: committed(broker) == 200, "all is acknowledged")


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("count", [3, 40])
def test_a_topic_made_anew_has_all_its_effects(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker, count: int
) -> None:
    numbers: list[int] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        context.transaction()
        numbers.extend(int(bytes(each.body)) for each in messages)

    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", queues=1)
        send_to_one_queue(producer, 20)
        member = make(listen)
        member.start()
        eventually(lambda: len(numbers) == 20, "the old messages")
        eventually(lambda: committed(broker) == 20, "all is acknowledged")
        admin.delete_topic("orders")
        admin.create_topic("orders", queues=1)
        with Producer("p2", name_servers=broker.name_servers) as other:
            send_to_one_queue(other, count)
        eventually(lambda: len(numbers) == 20 + count, "the new ones")
        # The listener notes a message before its transaction ends.
        eventually(lambda: ledger.offsets() == {0: count}, "the last one's effects are committed")
    assert numbers == [*range(20), *range(count)]


def forget(ledger: Ledger, since: int) -> None:
    """Make the database one that was restored from an earlier copy."""
    with ledger.engine.begin() as connection:
        connection.execute(text("DELETE FROM ledger WHERE at >= :since"), {"since": since})
        connection.execute(
            text(
                "UPDATE ordermq_offsets SET epoch = 1, next_offset = :since WHERE next_offset > 0"
            ),
            {"since": since},
        )


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("runs", [True, False])
def test_what_a_restored_database_has_lost_has_its_effects_again(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker, runs: bool
) -> None:
    send_to_one_queue(producer, 20)
    member = make()
    member.start()
    ledger.wait_for(20)
    eventually(lambda: committed(broker) == 20, "all is acknowledged")
    if not runs:
        assert member.close()
    forget(ledger, 12)
    if not runs:
        make().start()
    # A member learns of it at the next batch.
    send_to_one_queue(producer, 1, start=20)
    ledger.wait_for(21)
    assert ledger.bodies() == list(range(21))


def test_a_message_that_keeps_failing_goes_to_the_dead_letters_and_the_rest_has_its_effects(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker
) -> None:
    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        ledger.write(messages, context)
        if messages[0].body == b"7":
            raise ValueError("poison")

    send_to_one_queue(producer, 20)
    make(listen, on_failure=DeadLetter(3)).start()
    ledger.wait_for(19)
    assert ledger.bodies() == [number for number in range(20) if number != 7]
    with Admin(broker.name_servers) as admin:
        assert [(each.group, each.waiting) for each in admin.dead_letters()] == [("g", 1)]
    eventually(lambda: committed(broker) == 20, "all is acknowledged")


def test_a_partial_result_commits_its_part_only(
    producer: Producer, make: MakeConsumer, ledger: Ledger
) -> None:
    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> int | ConsumeResult:
        half = (len(messages) + 1) // 2
        ledger.write(messages[:half], context)
        return half

    send_to_one_queue(producer, 64)
    make(listen, consume_message_batch_max_size=16).start()
    ledger.wait_for(64)
    assert ledger.bodies() == list(range(64))


def test_calls_without_a_transaction_move_the_offset_too(
    producer: Producer, make: MakeConsumer, ledger: Ledger, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_to_one_queue(producer, 20)
    make(seen.take).start()
    seen.wait_for_count(20)
    eventually(lambda: committed(broker) == 20, "all is acknowledged")
    assert 20 in ledger.offsets().values()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_database_that_is_away_keeps_a_batch_waiting_and_counts_no_attempt(
    producer: Producer, make_consumer: MakeConsumer, engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    renewals = 0
    extend = RemotingPop.extend

    async def count(self: RemotingPop, batch: Any) -> None:
        nonlocal renewals
        await extend(self, batch)
        renewals += 1

    monkeypatch.setattr(RemotingPop, "extend", count)
    impatient = create_engine(engine.url, connect_args={"timeout": 0.01})
    ledger = Ledger(impatient)
    consumer = make_consumer(
        ledger,
        consume_mode="pop",
        offset_store=ledger.store,
        on_failure=DeadLetter(max_attempts=2),
        suspend_current_queue_time_ms=10,
        pull_delay_on_error_ms=10,
        **SHORT,
    )
    consumer.start()
    with impatient.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        send_to_one_queue(producer, 5)
        eventually(lambda: not consumer.health().is_ready, "it says so")
        assert "locked" in str(consumer.health().reasons)
        # For longer than a lease lives: it is renewed, and nothing is handed out again.
        eventually(lambda: renewals >= 4, "renewals of the waiting batch")
        other.exec_driver_sql("ROLLBACK")
    ledger.wait_for(5)
    eventually(lambda: consumer.health().is_ready, "it is ready again")
    assert consumer.statistics["diverted"] == 0
    assert consumer.close()
    impatient.dispose()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_batch_that_went_to_another_member_while_the_database_was_away_is_not_begun(
    producer: Producer, make: MakeConsumer, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    async def extend(self: RemotingPop, batch: Any) -> None:
        refused.set()
        raise Fenced("taken by another member")

    ledger.store.open()
    consumer = make(pull_delay_on_error_ms=10, **SHORT)
    consumer.start()
    with ledger.engine.connect() as other, monkeypatch.context() as patch:
        patch.setattr(RemotingPop, "extend", extend)
        other.exec_driver_sql("BEGIN IMMEDIATE")
        send_to_one_queue(producer, 5)
        assert refused.wait(20)
        other.exec_driver_sql("ROLLBACK")
    ledger.wait_for(5)
    assert ledger.bodies() == list(range(5))
    assert consumer.statistics["internal_errors"] == 0


def test_tokens_grow_also_where_the_broker_fences_nobody(
    producer: Producer, make: MakeConsumer, ledger: Ledger, unfenced: None
) -> None:
    tokens: dict[int, list[tuple[int, int]]] = {}

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        tokens.setdefault(context.message_queue.queue_id, []).append(context.fence_token)
        ledger(messages, context)

    for _ in range(2):
        make(listen, pop_batch_size=4).start()
    send(producer, 100)
    ledger.wait_for(100)
    for each in tokens.values():
        assert each == sorted(set(each))


def test_a_reset_of_the_group_alone_repeats_no_effect(
    producer: Producer, make: MakeConsumer, ledger: Ledger, broker: EmbeddedBroker
) -> None:
    make().start()
    send(producer, 30)
    ledger.wait_for(30)
    eventually(lambda: committed(broker) == 30, "all is acknowledged")
    with Admin(broker.name_servers) as admin:
        admin.reset("g", "orders", "first")
    send(producer, 30, start=30)
    ledger.wait_for(60)
    eventually(lambda: committed(broker) == 60, "all is acknowledged")
    assert ledger.calls == 60


def test_the_history_passes_the_audit(
    producer: Producer, make: MakeConsumer, ledger: Ledger, tmp_path: Path, broker_history: Path
) -> None:
    histories = [tmp_path / f"{number}.jsonl" for number in range(2)]
    members = [make(history=path) for path in histories]
    for member in members:
        member.start()
    send(producer, 100)
    ledger.wait_for(100)
    for member in members:
        assert member.close(10)
    report = audit([*histories, broker_history])
    assert report.ok, report.violations


def test_coroutines_have_their_effects_in_a_store_of_asyncio(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    async def work() -> None:
        async with of_asyncio.opened(engine) as ledger:
            send_all(producer, numbered(60))
            options = {"consume_mode": "pop", "pop_poll_ms": 200}
            one, two = (of_asyncio.consumer_of(broker, ledger, **options) for _ in range(2))
            async with one, two:
                await ledger.wait_for(60)

    asyncio.run(work())


class WithoutClaims:
    """A store with transactions, of before `claim`."""

    def __init__(self, store: SqlOffsetStore) -> None:
        for name in ("open", "take_over", "read", "write", "begin", "is_outage"):
            setattr(self, name, getattr(store, name))


def test_what_would_not_be_exactly_once_is_refused(engine: Engine) -> None:
    popping: dict[str, Any] = {"name_servers": "127.0.0.1:1", "consume_mode": "pop"}
    store = SqlOffsetStore(engine)
    with pytest.raises(ConfigError, match="order_by_key=True with an offset store"):
        PushConsumer("g", order_by_key=True, offset_store=store, **popping)
    with pytest.raises(ConfigError, match=r"an offset_store without claim\(\)"):
        PushConsumer("g", offset_store=WithoutClaims(store), **popping)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the transactions of a listener"):
        LitePullConsumer("g", ordered=True, offset_store=store, **popping)
    consumer = PushConsumer("g", offset_store=store, **popping)
    with pytest.raises(ConfigError, match=r"for @consumer\.orderly only"):
        consumer.concurrently(lambda messages, context: None)
    with pytest.raises(ConfigError, match="auto_commit=False:"):
        PushConsumer("g", auto_commit=False, offset_store=store, **popping)


def test_a_proxy_needs_nothing_else_of_a_store(engine: Engine) -> None:
    PushConsumer("g", name_servers="grpc://127.0.0.1:1", offset_store=SqlOffsetStore(engine))


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_store_of_asyncio_is_taken_too(engine: Engine) -> None:
    async def make() -> None:
        async with of_asyncio.opened(engine) as ledger:
            AsyncConsumer(
                "g",
                "orders",
                name_servers="grpc://127.0.0.1:1",
                offset_store=AsyncSqlOffsetStore(ledger.engine),
            )

    asyncio.run(make())
