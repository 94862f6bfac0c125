"""Fence tokens at a broker without lock epochs (docs/internals/semantics.md#stored-epochs)."""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples import write_once
from ordermq import LitePullConsumer, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.clock import SystemClock
from ordermq.config import BrokerConfig
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.plain_broker import PlainBroker
from tests.component.test_orderly_consumer import send_all

MakeConsumer = Callable[..., PushConsumer]
QUEUES = 8
TEN_DAYS_MS = 864_000_000
# Half of the broker's 6 s; it does not tell its own, so the members' setting must be half of them.
LEASE = {"lock_max_live_ms": 3_000, "lock_interval_ms": 1_000, "lock_retry_ms": 20}


class HostClock(SystemClock):
    """The clocks of another host: up for longer, and set differently."""

    def __init__(self, uptime_ms: int = 0, wall_ms: int = 0) -> None:
        self.uptime_ms = uptime_ms
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.uptime_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wall_ms


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> PlainBroker:
    return PlainBroker(monkeypatch)


class Tokens(Seen):
    """Deliveries, and each fence token with its queue in the order in which they were seen."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, list[int]] = defaultdict(list)

    def take(self, messages: Any, context: Any) -> None:
        epoch, first = context.fence_token
        assert first == messages[0].queue_offset
        known = self.epochs[context.message_queue.queue_id]
        if known[-1:] != [epoch]:
            known.append(epoch)
        super().take(messages, context)


class Tokenless(Seen):
    """Deliveries without a fence token, and the reason each was told."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def take(self, messages: Any, context: Any) -> None:
        with pytest.raises(StateError) as problem:
            _ = context.fence_token
        self.reasons.append(str(problem.value))
        super().take(messages, context)


def test_epochs_grow_from_host_to_host_whatever_their_uptimes_and_clocks(
    producer: Producer, plain: PlainBroker, make_consumer: MakeConsumer
) -> None:
    tokens = Tokens()
    old, young = HostClock(TEN_DAYS_MS), HostClock(0, -5_000)
    send_all(producer, numbered(16, keys=16))
    sent = 16
    members = []
    for clock in (old, young):
        # The other one has left, so every queue changes its owner.
        members.append(make_consumer(tokens.take, clock=clock, **LEASE))
        members[-1].start()
    resting, working = members
    for _ in range(6):
        resting.pause(release=True)
        eventually(lambda m=working: len(m.assigned_queues()) >= QUEUES, "all queues moved")
        send_all(producer, numbered(16, keys=16, start=sent))
        sent += 16
        tokens.wait_for_count(sent)
        resting.resume()
        eventually(lambda m=resting: len(m.assigned_queues()) >= 4, "a share")
        resting, working = working, resting
    for member in members:
        assert member.close(10)
    assert tokens.duplicates() == 0
    assert_in_order(tokens, sent, keys=16)
    for queue_id, seen in tokens.epochs.items():
        stored = plain.epochs_of("orders", queue_id)
        assert stored == sorted(set(stored)), "each owner's is greater than the one before"
        assert seen == sorted(set(seen))
        assert set(seen) <= set(stored)
        assert len(seen) >= 6


@pytest.mark.parametrize(
    "broker_config", [BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=1_500)]
)
def test_the_recipe_refuses_an_owner_that_was_paused_and_writes_everything_once(
    producer: Producer,
    plain: PlainBroker,
    make_consumer: MakeConsumer,
    tmp_path: Path,
) -> None:
    file = tmp_path / "orders.sqlite"

    def connect() -> sqlite3.Connection:
        found = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
        found.executescript(write_once.TABLES)
        return found

    def written() -> int:
        return int(reader.execute("SELECT count(*) FROM orders").fetchone()[0])

    reader = connect()
    paused, go_on, refused = threading.Event(), threading.Event(), threading.Event()
    clock = HostClock(TEN_DAYS_MS)
    lease = LEASE | {"lock_max_live_ms": 700, "lock_interval_ms": 200}
    database = connect()

    def paused_listener(messages: Any, context: Any) -> None:
        epoch, _ = context.fence_token
        if context.message_queue.topic != "orders" or paused.is_set():
            return
        paused.set()
        go_on.wait(20)
        try:
            write_once.write(database, str(context.message_queue), epoch, messages)
        except write_once.StaleOwner:
            refused.set()
            raise

    first = make_consumer(
        paused_listener, clock=clock, consume_thread_count=1, consume_message_batch_max_size=4,
        **lease,
    )  # fmt: skip
    send_all(producer, numbered(40, keys=1))
    first.start()
    assert paused.wait(10)
    # Its process stands still for longer than the broker's lock lives. The other one's host is
    # younger, and its wall clock is behind.
    clock.uptime_ms += 60_000
    own = connect()

    def listen(messages: Any, context: Any) -> None:
        epoch, _ = context.fence_token
        write_once.write(own, str(context.message_queue), epoch, messages)

    second = make_consumer(
        listen, clock=HostClock(0, -5_000), consume_thread_count=1,
        consume_message_batch_max_size=4, **lease,
    )  # fmt: skip
    first.pause(release=True)
    second.start()
    eventually(lambda: written() == 40, "the next owner wrote everything")
    go_on.set()
    assert refused.wait(10), "the paused owner's write was accepted"
    assert second.close(10)
    assert first.close(10)
    bodies = [int(body) for (body,) in reader.execute("SELECT body FROM orders ORDER BY rowid")]
    assert bodies == list(range(40))
    for each in (reader, database, own):
        each.close()


def test_a_broker_that_refuses_epochs_is_consumed_from_and_the_token_says_why(
    producer: Producer, plain: PlainBroker, make_consumer: MakeConsumer
) -> None:
    plain.refusal = ResponseCode.NO_PERMISSION
    listener = Tokenless()
    send_all(producer, numbered(20))
    consumer = make_consumer(listener.take, **LEASE)
    with consumer:
        listener.wait_for_count(20)
    assert_in_order(listener, 20)
    assert all("a test's own refusal" in problem for problem in listener.reasons)


def test_without_stored_epochs_nothing_is_written_and_the_token_names_the_setting(
    producer: Producer, plain: PlainBroker, make_consumer: MakeConsumer
) -> None:
    listener = Tokenless()
    send_all(producer, numbered(20))
    with make_consumer(listener.take, store_epochs=False, **LEASE):
        listener.wait_for_count(20)
    assert all("store_epochs=False" in problem for problem in listener.reasons)
    assert not plain.history


def test_a_broadcasting_listener_has_no_token(
    producer: Producer, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    listener = Tokenless()
    send_all(producer, numbered(3))
    consumer = make_consumer(
        listener.take,
        message_model="broadcasting",
        local_offset_store_dir=str(tmp_path / "offsets"),
    )
    with consumer:
        listener.wait_for_count(3)
    assert all("holds no queue locks" in problem for problem in listener.reasons)


def test_pollers_in_order_have_true_tokens_too(
    producer: Producer, broker: EmbeddedBroker, plain: PlainBroker
) -> None:
    send_all(producer, numbered(10, keys=1))
    epochs = []
    for clock in (HostClock(TEN_DAYS_MS), HostClock(0, -5_000)):
        consumer = LitePullConsumer(
            "g", name_servers=broker.name_servers, clock=clock, ordered=True, poll_batch_size=5,
            consume_from_where="first_offset", **LEASE,
        )  # fmt: skip
        consumer.subscribe("orders")
        with consumer:
            batch = consumer.poll(10_000)
            epoch, first = batch.fence_token
            assert (len(batch), first) == (5, 5 * len(epochs))
            epochs.append(epoch)
            consumer.commit()
            queue_id = batch.message_queue.queue_id
    assert epochs == sorted(set(epochs))
    assert plain.epochs_of("orders", queue_id) == epochs


def test_a_query_takes_an_epoch_and_notices_who_took_one_since(
    producer: Producer, broker: EmbeddedBroker, plain: PlainBroker
) -> None:
    send_all(producer, numbered(100))
    options = SourceOptions.of(
        {"name_servers": broker.name_servers, "topic": "orders", "group": "g",
         "starting_offsets": "earliest"}
    )  # fmt: skip
    driver = StreamDriver(options, HostClock(TEN_DAYS_MS))
    try:
        driver.initial()
        locks = driver._locks
        assert locks is not None
        for queue, lease in locks._held.items():
            assert plain.epochs["g", "orders", queue.queue_id] == lease.epoch
        queue = MessageQueue("orders", "b", 0)
        lease = locks._held[queue]
        assert locks.session.call(locks._is_untouched(queue, lease))
        plain.epochs["g", "orders", 0] += 1
        assert not locks.session.call(locks._is_untouched(queue, lease))
    finally:
        driver.close()
