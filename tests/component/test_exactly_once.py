"""Effects in the user's own database, exactly once; the brokers' offsets follow
(docs/exactly-once.md)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from ordermq import (
    Admin,
    ConsumeResult,
    DeadLetter,
    LitePullConsumer,
    MessageView,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, StateError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore
from tests.component.conftest import Seen, eventually, numbered
from tests.component.docs_examples import DOCS, examples, run_example
from tests.postgresql import PostgreSql

EXAMPLES = DOCS.parent / "examples"
MakeConsumer = Callable[..., PushConsumer]


class Ledger:
    """A table of the user's, written by listeners: each message must stand in it once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = SqlOffsetStore(engine)
        self.fails = False  # after its writes, each call raises
        self.calls = 0
        with engine.begin() as connection:
            # A message that had its effect twice is an error of the database.
            connection.execute(
                text(
                    "CREATE TABLE ledger (queue INTEGER, at INTEGER, k TEXT, body TEXT, "
                    "PRIMARY KEY (queue, at))"
                )
            )

    def __call__(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        self.calls += 1
        self.write(messages, context)
        if self.fails:
            raise RuntimeError("a listener's own error")

    def write(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        rows = [
            {"q": context.message_queue.queue_id, "a": m.queue_offset, "k": m.sharding_key,
             "b": bytes(m.body).decode()}
            for m in messages
        ]  # fmt: skip
        context.transaction().execute(text("INSERT INTO ledger VALUES (:q, :a, :k, :b)"), rows)

    def count(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM ledger")) or 0)

    def bodies(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(map(int, connection.scalars(text("SELECT body FROM ledger"))))

    def offsets(self) -> dict[int, int]:
        with self.engine.connect() as connection:
            rows = connection.execute(
                text("SELECT queue_id, next_offset FROM ordermq_offsets WHERE topic = 'orders'")
            )
            return {row.queue_id: row.next_offset for row in rows}

    def wait_for(self, count: int) -> None:
        eventually(lambda: self.count() == count, f"{count} messages in the ledger")


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    return Ledger(engine)


def send(producer: Producer, count: int, start: int = 0) -> None:
    for _ in producer.send_many(numbered(count, start=start)):
        pass


def broker_offsets(consumer: PushConsumer) -> dict[int, int]:
    """Offsets at the broker, as lag tools see them."""
    member = consumer._member
    assert member is not None
    found = {}
    for queue in consumer.assigned_queues():
        if queue.topic == "orders":
            offset = member.client.call(
                member.client.api.query_offset(
                    member.client.routes.master_of(queue.broker_name), "g", queue
                )
            )
            found[queue.queue_id] = offset or 0
    return found


def test_each_message_has_its_effect_and_the_offsets_stand_beside_it(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    send(producer, 200)
    consumer = make_consumer(ledger, offset_store=ledger.store, consume_message_batch_max_size=8)
    consumer.start()
    ledger.wait_for(200)
    assert ledger.bodies() == list(range(200))
    assert sum(ledger.offsets().values()) == 200
    eventually(lambda: sum(broker_offsets(consumer).values()) == 200, "the broker's offsets follow")


def test_the_next_owner_starts_where_the_database_says_and_not_the_broker(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    send(producer, 40)
    # Never within this test: the broker hears of nothing until the queue is taken over.
    first = make_consumer(ledger, offset_store=ledger.store, commit_interval_ms=3_600_000)
    first.start()
    ledger.wait_for(40)
    assert sum(broker_offsets(first).values()) == 0
    for assigned in first._member._rebalancer.assigned():  # type: ignore[union-attr]
        assigned.lose_lease("a test's own doing")
    send(producer, 10, start=40)
    ledger.wait_for(50)
    assert ledger.bodies() == list(range(50))
    assert sum(broker_offsets(first).values()) >= 40


def consume_20_with_offsets_at_the_broker(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send(producer, 20)
    consumer = make_consumer(seen.take)
    consumer.start()
    seen.wait_for_count(20)
    assert consumer.close()


def test_the_brokers_offset_is_moved_back_to_the_databases_at_a_take_over(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger, seen: Seen
) -> None:
    consume_20_with_offsets_at_the_broker(producer, make_consumer, seen)
    # As a database restored from yesterday's copy: it knows the queues, at an earlier offset.
    ledger.store.open()
    for number in range(8):
        queue = MessageQueue("orders", "b", number)
        ledger.store.take_over("g", queue, 1)
        ledger.store.write("g", queue, 0, 1)
    consumer = make_consumer(ledger, offset_store=ledger.store)
    consumer.start()
    ledger.wait_for(20)


def test_a_group_with_offsets_at_the_brokers_continues_from_them(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger, seen: Seen
) -> None:
    consume_20_with_offsets_at_the_broker(producer, make_consumer, seen)
    send(producer, 10, start=20)
    make_consumer(ledger, offset_store=ledger.store).start()
    ledger.wait_for(10)
    assert ledger.bodies() == list(range(20, 30))


def test_a_call_that_raises_leaves_nothing_and_is_repeated(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    ledger.fails = True
    consumer = make_consumer(ledger, offset_store=ledger.store, suspend_current_queue_time_ms=10)
    consumer.start()
    send(producer, 5)
    eventually(lambda: ledger.calls > 10, "calls that fail")
    assert ledger.count() == 0
    ledger.fails = False
    ledger.wait_for(5)


def test_a_partial_result_commits_its_part_only(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    send(producer, 64)

    def listener(messages: Sequence[MessageView], context: ConsumeContext) -> int | ConsumeResult:
        half = (len(messages) + 1) // 2
        ledger.write(messages[:half], context)
        return half

    make_consumer(
        listener,
        offset_store=ledger.store,
        consume_message_batch_max_size=16,
        suspend_current_queue_time_ms=10,
    ).start()
    ledger.wait_for(64)
    assert ledger.bodies() == list(range(64))


def test_queues_that_move_under_load_lose_and_repeat_nothing(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    def make() -> PushConsumer:
        # A store each, as each process has: what one knows, another reads.
        consumer = make_consumer(ledger, offset_store=SqlOffsetStore(ledger.engine))
        consumer.start()
        return consumer

    first = make()
    send(producer, 200)
    second = make()
    send(producer, 200, start=200)
    eventually(lambda: len(second.assigned_queues()) >= 4, "the second has its share")
    assert first.close()
    send(producer, 200, start=400)
    ledger.wait_for(600)
    assert ledger.bodies() == list(range(600))


# In SQLite the newer owner waits for the transaction, and starts behind it.
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_stale_owner_writes_nothing_and_gives_the_queue_up(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    """A newer owner claims the queue between the listener's writes and its commit."""
    written, claimed = threading.Event(), threading.Event()

    def listener(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        ledger.write(messages, context)
        written.set()
        assert claimed.wait(20)

    consumer = make_consumer(listener, offset_store=ledger.store)
    send(producer, 1)
    consumer.start()
    assert written.wait(20)
    [queue] = [queue for queue in range(8) if queue in ledger.offsets() and _has(producer, queue)]
    heir = SqlOffsetStore(ledger.engine)
    place = MessageQueue("orders", "b", queue)
    assert not heir.take_over("g", place, 1_000_000)
    claimed.set()
    eventually(lambda: consumer.statistics["leases_lost"] >= 1, "the lease is given up")
    # It asks for the lock again, and the database refuses its epoch for good.
    assert ledger.count() == 0
    assert ledger.offsets()[queue] in (0, None)


def _has(producer: Producer, queue_id: int) -> bool:
    client = producer._client
    queue = MessageQueue("orders", "b", queue_id)
    address = client.routes.master_of("b")
    return bool(client.call(client.api.max_offset(address, queue)))


def test_an_outage_moves_no_message_to_the_dead_letters(
    producer: Producer, make_consumer: MakeConsumer, tmp_path: Any
) -> None:
    """The database is locked for longer than the policy's attempts; then all goes on."""
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 0.01})
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")  # readers wait for nobody
    ledger = Ledger(engine)
    consumer = make_consumer(
        ledger,
        offset_store=ledger.store,
        on_failure=DeadLetter(max_attempts=2),
        suspend_current_queue_time_ms=10,
    )
    consumer.start()
    eventually(lambda: _leased(consumer) == 1, "the retry queue is taken over")
    send(producer, 1)
    ledger.wait_for(1)
    eventually(lambda: _leased(consumer) == 9, "all queues are taken over")
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        send(producer, 1, start=1)
        eventually(lambda: ledger.calls > 6, "calls while the database is locked")
        [blocked] = consumer.statistics.blocked()
        assert blocked.attempts >= 4
        other.exec_driver_sql("ROLLBACK")
    ledger.wait_for(2)
    eventually(lambda: consumer.statistics.blocked() == [], "nothing is blocked")
    assert consumer.statistics["diverted"] == 0
    assert consumer.close()
    engine.dispose()


def test_the_databases_restart_loses_and_repeats_nothing(
    producer: Producer, make_consumer: MakeConsumer, postgresql: PostgreSql
) -> None:
    engine = create_engine(postgresql.url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS ledger, ordermq_offsets"))
    ledger = Ledger(engine)
    consumer = make_consumer(ledger, offset_store=ledger.store, suspend_current_queue_time_ms=20)
    consumer.start()
    send(producer, 100)
    ledger.wait_for(100)
    stop = threading.Event()

    def flow() -> None:
        for start in range(100, 600, 10):
            send(producer, 10, start=start)
            stop.wait(0.02)

    thread = threading.Thread(target=flow)
    thread.start()
    for crash in (True, False):
        postgresql.stop(crash=crash)
        postgresql.start()
    thread.join()
    eventually(lambda: _counted(ledger) == 600, "all messages after the restarts")
    assert ledger.bodies() == list(range(600))
    assert consumer.close()  # before its engine
    engine.dispose()


class SharedTotal(Ledger):
    """A ledger with one row that the calls of all queues change, under SERIALIZABLE."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.conflicts = 0
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE total (n INTEGER)"))
            connection.execute(text("INSERT INTO total VALUES (0)"))

    def write(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        super().write(messages, context)
        try:
            self.add(context.transaction(), len(messages))
        except DBAPIError as error:
            self.conflicts += getattr(error.orig, "sqlstate", "") == "40001"
            raise

    def add(self, connection: Connection, count: int) -> None:
        before = connection.scalar(text("SELECT n FROM total")) or 0
        connection.execute(text("UPDATE total SET n = :n"), {"n": before + count})


def test_serialization_failures_and_a_crash_of_the_database_lose_and_repeat_nothing(
    producer: Producer, make_consumer: MakeConsumer, postgresql: PostgreSql
) -> None:
    engine = create_engine(postgresql.url, isolation_level="SERIALIZABLE")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS ledger, total, ordermq_offsets"))
    ledger = SharedTotal(engine)
    consumer = make_consumer(
        ledger,
        offset_store=ledger.store,
        on_failure=DeadLetter(max_attempts=2),  # a conflict is no failure of the message
        suspend_current_queue_time_ms=10,
    )
    consumer.start()
    stop, others = threading.Event(), 0

    def write_beside() -> None:
        nonlocal others
        while not stop.wait(0.005):
            with contextlib.suppress(DBAPIError):  # a conflict, or the crash
                with engine.begin() as connection:
                    ledger.add(connection, 1)
                others += 1

    thread = threading.Thread(target=write_beside)
    thread.start()
    try:
        send(producer, 100)
        eventually(lambda: ledger.conflicts > 20, "conflicts")
        postgresql.stop(crash=True)
        postgresql.start()
        send(producer, 100, start=100)
        eventually(lambda: _counted(ledger) == 200, "all messages after the crash")
    finally:
        stop.set()
        thread.join()
    assert ledger.bodies() == list(range(200))
    with engine.connect() as connection:
        total = connection.scalar(text("SELECT n FROM total"))
    # The crash may hide the outcome of one commit of the other writer, of no call.
    assert total in (200 + others, 200 + others + 1)
    assert consumer.statistics["diverted"] == 0
    assert consumer.close()
    engine.dispose()


def _leased(consumer: PushConsumer) -> int:
    return sum(bool(each.lease_left_ms) for each in consumer.held_queues())


def _counted(ledger: Ledger) -> int:
    try:
        return ledger.count()
    except DBAPIError:  # its pooled connection may be one of the old server's
        return -1


def test_a_message_is_not_consumed_directly_where_its_effect_would_count_twice(
    producer: Producer, make_consumer: MakeConsumer, ledger: Ledger
) -> None:
    send(producer, 1)
    consumer = make_consumer(ledger, offset_store=ledger.store)
    consumer.start()
    ledger.wait_for(1)
    member = consumer._member
    assert member is not None

    def consumed() -> list[AssignedQueue]:
        return [item for item in member._rebalancer.assigned() if item.done_offset]

    eventually(lambda: len(consumed()) == 1, "the call is counted as done")
    [assigned] = consumed()
    with pytest.raises(StateError, match="would be there twice"):
        member.client.call(member.parts.receiver.consume_directly(assigned, assigned))  # type: ignore[arg-type]


def test_a_poller_in_order_starts_from_the_store_and_commits_to_it(
    producer: Producer, broker: EmbeddedBroker, engine: Engine
) -> None:
    send(producer, 20)
    store = SqlOffsetStore(engine)
    got: list[int] = []
    for wanted in (12, 20):
        with LitePullConsumer(
            "g",
            name_servers=broker.name_servers,
            ordered=True,
            offset_store=store,
            consume_from_where="first_offset",
            poll_batch_size=1,
        ) as consumer:
            consumer.subscribe("orders")
            consumer.start() if consumer._member is None else None
            while len(got) < wanted:
                got += [int(bytes(message.body)) for message in consumer.poll(1_000)]
            consumer.commit()
    assert sorted(got) == list(range(20))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auto_commit": False}, "auto_commit=False with an offset store"),
        ({"order_by_key": True}, "order_by_key=True with an offset store"),
        ({"message_model": "broadcasting"}, "offset_store is not for broadcasting"),
    ],
)
def test_settings_that_would_break_the_promise_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Any
) -> None:
    store = SqlOffsetStore(create_engine(f"sqlite:///{tmp_path}/app.db"))
    with pytest.raises(ConfigError, match=said):
        PushConsumer("g", name_servers="h:9876", offset_store=store, **settings)


def test_concurrent_groups_async_listeners_and_pollers_without_locks_are_refused(
    tmp_path: Any,
) -> None:
    store = SqlOffsetStore(create_engine(f"sqlite:///{tmp_path}/app.db"))
    consumer = PushConsumer("g", name_servers="h:9876", offset_store=store)
    with pytest.raises(ConfigError, match="a concurrent group holds no locks"):
        consumer.concurrently(lambda messages, context: None)

    async def listener(messages: Any, context: Any) -> None: ...

    with pytest.raises(ConfigError, match="plain functions only"):
        consumer.orderly(listener)
    with pytest.raises(ConfigError, match="ordered=True"):
        LitePullConsumer("g", name_servers="h:9876", offset_store=store)


def test_a_database_that_is_away_at_the_start_is_told_at_once(broker: EmbeddedBroker) -> None:
    store = SqlOffsetStore(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    consumer = PushConsumer("g", name_servers=broker.name_servers, offset_store=store)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with pytest.raises(StoreError, match="offsets in ordermq_offsets"):
        consumer.start()


EXAMPLES_OF_PAGE = examples((DOCS / "exactly-once.md").read_text())


def test_the_lines_of_the_page_move_a_stopped_group(
    broker: EmbeddedBroker, producer: Producer, ledger: Ledger, make_consumer: MakeConsumer
) -> None:
    (code,) = [code for code in EXAMPLES_OF_PAGE if "def move(" in code]
    names: dict[str, Any] = {}
    exec(code, names)
    move, place = names["move"], (ledger.engine, ledger.store.table, "g", "orders")
    send(producer, 40)
    with make_consumer(ledger, offset_store=ledger.store):
        ledger.wait_for(40)
    with Admin(broker.name_servers) as admin:
        assert {each.after for each in move(admin, *place, "first")} == {0}
        with ledger.engine.begin() as connection:
            connection.execute(text("DELETE FROM ledger"))
        with make_consumer(ledger, offset_store=SqlOffsetStore(ledger.engine)):
            ledger.wait_for(40)
            # A live group moves its rows itself.
            assert all(each.by_members for each in move(admin, *place, "last"))
        assert sum(ledger.offsets().values()) == 40
        send(producer, 10, start=40)
        move(admin, *place, "last")
        send(producer, 4, start=50)
        with make_consumer(ledger, offset_store=SqlOffsetStore(ledger.engine)):
            ledger.wait_for(44)
    assert ledger.bodies() == [*range(40), *range(50, 54)]


def test_the_examples_of_the_page_book_every_payment_once(tmp_path: Path) -> None:
    """In one folder, where a reader tries both, and each again."""
    programs = [code for code in EXAMPLES_OF_PAGE if "EmbeddedBroker" in code]
    assert len(programs) == 2
    for code in programs:
        done = run_example(code, tmp_path)
        assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["5050"])


ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql+psycopg": "postgresql+asyncpg"}


def test_the_examples_book_in_one_database_as_often_as_they_are_run(engine: Engine) -> None:
    """One after the other, and again: what an earlier run has left changes nothing."""
    engine.dispose()
    asyncio_url = engine.url.set(drivername=ASYNC_DRIVERS[engine.url.drivername])
    programs = {
        "exactly_once.py": (
            engine.url,
            "2 calls failed after their writes; booked 5050 cents of 5050\n",
        ),
        "from_kafka.py": (
            engine.url,
            "queues of each member: 2 2\naudited: 1000\nbooked: 499500\n",
        ),
        "asyncio_exactly_once.py": (
            asyncio_url,
            "booked 1275 cents of 1275, 1 call failed, 1 message was no order\n",
        ),
    }
    for name, (url, told) in [*programs.items()] * 2:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), url.render_as_string(hide_password=False)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, told), done.stderr
