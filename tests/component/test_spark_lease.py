"""The driver half of a streaming query without Spark: locks, commits, ends."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PullConsumer, PushConsumer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.clock import SystemClock
from ordermq.config import BrokerConfig
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.errors import BrokerError, DataLoss, LockLost, LockRefused, RouteError, StateError
from ordermq.leases.lease import Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.spark import session
from ordermq.spark.options import SourceOptions
from ordermq.spark.session import lease_client_id
from ordermq.spark.source import driver_locks
from ordermq.spark.source.driver_locks import DriverLocks
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from ordermq.spark.stages.executor_lease import ExecutorLease
from tests.component.conftest import Seen, eventually, numbered

ACCOUNT = {"access_key": "shop", "secret_key": "hidden"}
QUEUES = [MessageQueue("orders", "b", number) for number in range(8)]


class JumpingClock(SystemClock):
    """The machine's time, and what a test adds to it: as after a pause of the process."""

    def __init__(self) -> None:
        self.added_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.added_ms


class HaltingClock(SystemClock):
    """The machine's time, until a test lets it stand still."""

    def __init__(self) -> None:
        self.halted_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() if self.halted_ms is None else self.halted_ms


@pytest.fixture
def options(broker: EmbeddedBroker) -> Callable[..., SourceOptions]:
    def make(**more: str) -> SourceOptions:
        given = {"name_servers": broker.name_servers, "group": "g"}
        given |= {} if "queues" in more else {"topic": "orders"}
        return SourceOptions.of(given | {"starting_offsets": "earliest"} | more)

    return make


@pytest.fixture
def run(options: Callable[..., SourceOptions]) -> Iterator[Callable[..., StreamDriver]]:
    """Runs of a query of group "g" on topic "orders"; closed after the test."""
    made: list[StreamDriver] = []

    def make(clock: SystemClock | None = None, **more: str) -> StreamDriver:
        made.append(StreamDriver(options(**more), clock))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def owners(broker: EmbeddedBroker) -> set[str]:
    """Holders of the queues of "orders" for group "g", as the broker says."""
    with Admin(name_servers=broker.name_servers) as admin:
        held = admin.group("g", ("orders",), ask_members=False).locks
    return {lock.owner for lock in (held or {}).values()}


def holder(driver: StreamDriver) -> str:
    assert driver.run_id is not None
    return lease_client_id("g", driver.run_id)


def committed(broker: EmbeddedBroker) -> list[int | None]:
    with PullConsumer("g", name_servers=broker.name_servers) as consumer:
        return [consumer.fetch_consume_offset(queue, from_store=True) for queue in QUEUES]


def whole(driver: StreamDriver, start: StreamOffset) -> StreamOffset:
    """The next batch, all there is."""
    end = driver.next_end(start, None)
    assert end is not None
    return end


def one_batch(driver: StreamDriver) -> StreamOffset:
    """Begin a run, and finish its first batch: all there is."""
    start = driver.initial()
    end = whole(driver, start)
    driver.begin_batch(start, end)
    driver.next_end(end, None)
    return end


def test_a_run_holds_every_queue_as_a_member_of_its_group(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    start = driver.initial()
    assert owners(broker) == {holder(driver)}
    assert driver.initial() == start
    with Admin(name_servers=broker.name_servers) as admin:
        members = admin.group("g", ("orders",), ask_members=False).members
    assert [member.client_id for member in members] == [holder(driver)]
    end = whole(driver, start)
    assert sum(end.queues.values()) == 100
    ranges = driver.begin_batch(start, end)
    assert ranges == [(queue, 0, at) for queue, at in sorted(end.queues.items()) if at]
    assert driver.next_end(end, None) is None


def test_the_first_driver_call_takes_the_locks_whichever_it_is(broker, producer, run):
    producer.send_many(numbered(100))
    first = run()
    start = first.initial()
    end = whole(first, start)
    first.close()
    assert owners(broker) == set()
    for call in (
        lambda driver: driver.begin_batch(start, end),
        lambda driver: driver.next_end(start, None),
        lambda driver: driver.initial(),
    ):
        driver = run()
        call(driver)
        assert owners(broker) == {holder(driver)}
        driver.next_end(end, None)  # nothing in flight
        driver.close()
        assert owners(broker) == set()


def test_a_second_query_waits_until_the_first_releases_its_locks(broker, producer, run):
    producer.send_many(numbered(100))
    first, second = run(), run(lock_wait_ms="20000")
    end = whole(first, first.initial())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.initial)
        first.next_end(end, None)
        assert owners(broker) == {holder(first)}
        assert not waiting.done()
        first.close()
        waiting.result(10)
    assert owners(broker) == {holder(second)}


def test_a_query_that_waits_long_for_its_locks_says_so_once(
    broker, producer, run, caplog, monkeypatch
):
    monkeypatch.setattr(driver_locks, "LONG_WAIT_MS", 0)
    producer.send_many(numbered(100))
    first, second = run(), run(lock_wait_ms="300")
    first.initial()
    with pytest.raises(LockRefused):
        second.initial()
    told = [text for text in caplog.messages if "the query waits for the locks of 8" in text]
    assert len(told) == 1
    assert "`ordermq locks " in told[0]


def test_the_error_of_a_query_that_waited_too_long_names_the_reason(broker, producer, run):
    producer.send_many(numbered(100))
    first, second = run(), run(lock_wait_ms="300")
    first.initial()
    with pytest.raises(LockRefused, match=r"8 of 8 queues cannot be locked.*another member"):
        second.initial()
    assert owners(broker) == {holder(first)}


def test_a_query_stopped_while_it_waits_leaves_no_lock(broker, producer, run):
    producer.send_many(numbered(100))
    first, second = run(), run(lock_wait_ms="20000")
    first.initial()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.initial)
        locks = second._locks
        assert locks is not None
        eventually(lambda: locks._acquisition is not None, "the second asks for locks")
        second.close()  # as the SIGTERM handler does in the thread that waits
        assert isinstance(waiting.exception(10), CancelledError)
        first.close()
    assert owners(broker) == set()
    assert run().initial()


def test_all_queues_are_locked_or_none(broker, producer, run, make_consumer, seen):
    producer.send_many(numbered(100))
    first = run()
    first.initial()
    wide = run(topic="orders,bills", lock_wait_ms="500")
    producer.send_many([(m.__class__("bills", m.body), k) for m, k in numbered(10)])
    with pytest.raises(LockRefused, match=r"of 1[26] queues"):
        wide.initial()
    with Admin(name_servers=broker.name_servers) as admin:
        locks = admin.group("g", ("bills",), ask_members=False).locks or {}
    assert not any(queue.topic == "bills" for queue in locks)


def test_a_push_consumer_gets_nothing_while_a_query_runs_and_continues_after_it(
    broker, producer, run, make_consumer, seen: Seen
):
    producer.send_many(numbered(100))
    driver = run()
    start = driver.initial()
    make_consumer(seen.take).start()
    end = whole(driver, start)
    driver.begin_batch(start, end)
    driver.next_end(end, None)
    producer.send_many(numbered(50, start=100))
    assert seen.deliveries == []
    assert owners(broker) == {holder(driver)}
    driver.close()
    seen.wait_for_count(50)
    assert sorted(int(body) for *_, body in seen.deliveries) == list(range(100, 150))


def test_a_query_waits_for_a_push_consumers_running_batch(
    broker, producer, run, make_consumer, seen: Seen
):
    producer.send_many(numbered(8))
    running, may_end = threading.Event(), threading.Event()

    def listener(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        running.set()
        assert may_end.wait(20)

    consumer: PushConsumer = make_consumer(listener)
    consumer.start()
    assert running.wait(20)
    driver = run(starting_offsets="group", lock_wait_ms="20000")
    with ThreadPoolExecutor(2) as pool:
        closing = pool.submit(consumer.close, 20.0)
        starting = pool.submit(driver.initial)
        assert not starting.done()
        may_end.set()
        closing.result(20)
        start = starting.result(20)
    done = {(q, o) for q, o, _, _ in seen.deliveries}
    for queue, first in start.queues.items():
        assert all((queue.queue_id, offset) in done for offset in range(first))


def test_a_run_stopped_between_batches_commits_then_unlocks(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    end = one_batch(driver)
    driver.close()
    assert owners(broker) == set()
    assert committed(broker) == [end.queues[queue] for queue in QUEUES]
    driver.close()


def test_the_end_of_a_run_commits_again_what_its_broker_has_moved_back(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    end = one_batch(driver)
    expected = [end.queues[queue] for queue in QUEUES]
    eventually(lambda: committed(broker) == expected, "the commit")
    # As a killed RocketMQ does, which saves offsets every five seconds.
    with PullConsumer("g", name_servers=broker.name_servers) as consumer:
        for queue in QUEUES:
            consumer.update_consume_offset(queue, 0)
    assert committed(broker) == [0] * 8
    driver.close()
    assert committed(broker) == expected


def test_a_run_stopped_in_a_batch_leaves_its_locks_to_expire(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    start = driver.initial()
    end = whole(driver, start)
    driver.begin_batch(start, end)
    driver.close()
    assert owners(broker) == {holder(driver)}
    assert committed(broker) == [0] * 8
    after = run(lock_wait_ms="20000")
    ranges = after.begin_batch(start, end)  # waits for the six seconds of this broker's locks
    assert owners(broker) == {holder(after)}
    assert sum(last - first for _, first, last in ranges) == 100


def test_after_pause_a_run_stopped_in_a_batch_unlocks(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run(release_in_flight="afterPause", release_pause_ms="300")
    start = driver.initial()
    driver.begin_batch(start, whole(driver, start))
    driver.close()
    assert owners(broker) == set()


def test_after_pause_a_new_run_takes_over_from_a_dead_one_by_its_checkpoint(
    broker, producer, options, run
):
    producer.send_many(numbered(100))
    dead = StreamDriver(options())
    start = dead.initial()
    end = whole(dead, start)
    dead.begin_batch(start, end)
    abandon(dead)
    stranger = run(release_in_flight="afterPause", release_pause_ms="200", lock_wait_ms="300")
    with pytest.raises(LockRefused):  # another query's checkpoint has another lease
        stranger.begin_batch(StreamOffset(start.queues, 5), StreamOffset(end.queues, 5))
    assert owners(broker) == {holder(dead)}
    after = run(release_in_flight="afterPause", release_pause_ms="200", lock_wait_ms="0")
    after.begin_batch(start, end)
    assert owners(broker) == {holder(after)}


@pytest.mark.parametrize("at_once", [True, False])
def test_after_pause_a_new_run_begins_as_soon_as_the_ending_one_has_unlocked(
    broker, producer, run, monkeypatch, caplog, at_once
):
    """As after SIGTERM, where the supervisor starts the program again at once."""
    caplog.set_level(logging.INFO, logger="ordermq.spark")
    monkeypatch.setattr(driver_locks, "_LOOK_MS", 20)
    producer.send_many(numbered(100))
    ending = run(release_in_flight="afterPause", release_pause_ms="300")
    start = ending.initial()
    end = whole(ending, start)
    ending.begin_batch(start, end)
    looks = looks_at_locks(monkeypatch)
    clock = HaltingClock()  # by its own pause it would never begin
    clock.halted_ms = clock.now_ms()
    after = run(clock, release_in_flight="afterPause", release_pause_ms="1000")
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(after.begin_batch, start, end)
        try:
            eventually(lambda: "for the executors of run" in caplog.text, "it waits")
            assert not begun.done()
            if not at_once:
                release_one(ending, QUEUES[0], looks)
            ending.close()
            assert begun.result(30)
        finally:
            clock.halted_ms = None
    assert owners(broker) == {holder(after)}
    assert caplog.text.count("for the executors of run") == 1


def test_a_run_that_can_take_over_a_part_only_waits_no_longer_than_it_may(broker, run):
    """The other queue is a stranger's, as one whose broker is away is nobody's."""
    most = ",".join(f"orders@b:{queue.queue_id}" for queue in QUEUES[1:])
    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", len(QUEUES))
    stranger = run(queues="orders@b:0")
    stranger.initial()
    killed = run(queues=most, release_in_flight="afterPause", release_pause_ms="10")
    killed.initial()
    abandon(killed)
    after = run(release_in_flight="afterPause", release_pause_ms="10", lock_wait_ms="300")
    assert after._locks is not None
    with pytest.raises(LockRefused, match="1 of 8 queues cannot be locked"):
        after._locks.hold(QUEUES, killed.run_id)
    assert owners(broker) == {holder(stranger)}, "a query that waits holds nothing"


def looks_at_locks(monkeypatch: pytest.MonkeyPatch) -> list[dict[MessageQueue, Lease]]:
    """Return what each look of a run at the locks of the run before finds."""
    lock_each, looks = DriverLocks._lock_each, list[dict[MessageQueue, Lease]]()

    async def noted(locks: DriverLocks, *asked: Any) -> dict[MessageQueue, Lease]:
        looks.append(await lock_each(locks, *asked))
        return looks[-1]

    monkeypatch.setattr(DriverLocks, "_lock_each", noted)
    return looks


def release_one(
    driver: StreamDriver, queue: MessageQueue, looks: list[dict[MessageQueue, Lease]]
) -> None:
    """Unlock one of a run's queues, and wait until another run has seen it."""
    locks = driver._locks
    assert locks is not None
    lease = locks._held[queue]
    locks.session.call(locks._unlock(locks._requests, {queue: lease}))
    eventually(
        lambda: any(queue in look and look[queue].epoch != lease.epoch for look in looks[:-1]),
        "it is seen, and acted on",
    )


def abandon(driver: StreamDriver) -> None:
    """End a run as kill -9 does: no commit, no unlock, no farewell."""
    locks = driver._locks
    assert locks is not None
    renewing = locks._renewal
    assert renewing is not None

    async def die() -> None:
        renewing.cancel()
        await locks.session.disconnect()

    locks.session.call(die())
    driver._is_closed = True


def test_a_worker_asks_for_the_locks_of_many_runs_over_one_session(broker, run, monkeypatch):
    """A worker may live for days, and a query that is started each minute has a run each time."""
    made: list[ClientSession] = []

    def note(*arguments: Any) -> ClientSession:
        made.append(ClientSession(*arguments))
        return made[-1]

    monkeypatch.setattr(session, "_SESSIONS", session.ProcessCache(note))
    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", len(QUEUES))
    lease = ExecutorLease.of({"name_servers": broker.name_servers, "group": "g"}, 0)
    before = None
    for _ in range(3):
        driver = run()
        driver.initial()
        lease.check(QUEUES[0], driver.run_id)
        if before is not None:
            with pytest.raises(LockLost):
                lease.check(QUEUES[0], before)
        assert owners(broker) == {holder(driver)}
        before = driver.run_id
        driver.close()
    assert len(made) == 1
    made[0].close()


@pytest.mark.parametrize("ordered", ["true", "false"])
def test_a_commit_that_takes_long_brings_no_older_offset_later(
    broker, producer, run, monkeypatch, ordered
):
    """Batches that end meanwhile wait for it, all but the newest for nothing."""
    write, written, go_on = BrokerOffsets.write, list[tuple[int, int]](), threading.Event()

    async def slow(stored: BrokerOffsets, queue: MessageQueue, offset: int, *more: Any) -> None:
        written.append((queue.queue_id, offset))
        while queue == QUEUES[0] and offset and not go_on.is_set():
            await asyncio.sleep(0.001)
        await write(stored, queue, offset, *more)

    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", len(QUEUES))
    driver = run(ordered=ordered)
    end = driver.initial()
    monkeypatch.setattr(BrokerOffsets, "write", slow)
    for number in range(5):
        for queue in QUEUES[:2]:
            producer.send(Message("orders", b"x"), queue=queue)
        # What it sends is seen as soon as somebody asks.
        driver._latest.get_now()
        start, end = end, whole(driver, end)
        driver.begin_batch(start, end)
        assert end.queues[QUEUES[0]] == number + 1
    driver.next_end(end, None)
    go_on.set()
    eventually(lambda: committed(broker)[:2] == [5, 5], "the newest is committed")
    driver.close()
    assert committed(broker)[:2] == [5, 5]
    first = {offset for queue_id, offset in written if queue_id == 0 and offset}
    assert len(first) <= 2, "those between are left out"


def test_a_pause_longer_than_the_lease_fails_the_run(broker, producer, run):
    producer.send_many(numbered(100))
    clock = JumpingClock()
    driver = run(clock)
    start = driver.initial()
    end = whole(driver, start)
    driver.begin_batch(start, end)
    clock.added_ms += 10_000
    for call in (lambda: driver.next_end(end, None), lambda: driver.begin_batch(start, end)):
        with pytest.raises(LockLost, match=r"could not be renewed.*Start the query again"):
            call()
    driver.close()
    assert committed(broker) == [0] * 8


def test_a_run_that_lost_a_lock_fails_and_commits_no_more(broker, producer, run, options):
    producer.send_many(numbered(100))
    driver = run()
    start = driver.initial()
    end = whole(driver, start)
    driver.begin_batch(start, end)
    locks = driver._locks
    assert locks is not None

    async def give_away() -> None:
        await locks._unlock(locks._requests, dict(locks._held))

    locks.session.call(give_away())
    thief = run()
    thief.initial()
    locks.session.call(locks.renew())
    with pytest.raises(LockLost, match=r"the broker gave it to another member|was fenced"):
        driver.next_end(end, None)
    driver.close()
    assert owners(broker) == {holder(thief)}
    assert not any(committed(broker))


def test_locks_outlive_a_restart_of_the_broker(tmp_path: Path, broker_config, options, run):
    path = tmp_path / "restarted.db"
    broker = EmbeddedBroker(path, config=broker_config).start()
    try:
        with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=8) as sender:
            sender.send_many(numbered(100))
        driver = run(name_servers=broker.name_servers)
        start = driver.initial()
        end = whole(driver, start)
        driver.begin_batch(start, end)
        port = broker.port
        broker.close()
        broker = EmbeddedBroker(path, port=port, config=broker_config).start()
        assert driver.next_end(end, None) is None
        assert owners(broker) == {holder(driver)}
        driver.close()
    finally:
        broker.close()


def test_an_unordered_stream_takes_no_locks_but_commits(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run(ordered="false")
    start = driver.initial()
    assert start.run_id is None
    end = whole(driver, start)
    driver.begin_batch(start, end)
    driver.next_end(end, None)
    driver.close()
    assert owners(broker) == set()
    assert committed(broker) == [end.queues[queue] for queue in QUEUES]


def test_idle_calls_are_answered_from_memory(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    end = whole(driver, driver.initial())
    asked = broker.statistics.requests
    for _ in range(2_000):
        assert driver.next_end(end, None) is None
    # Eight queues are asked for every 25 ms, not at each call.
    assert broker.statistics.requests - asked < 2_000
    producer.send_many(numbered(8, start=100))
    eventually(lambda: driver.next_end(end, None) is not None, "the new messages are seen")


def test_an_idle_stream_waits_for_messages_without_asking_and_is_woken_by_them(
    broker, producer, run
):
    producer.send_many(numbered(100))
    clock = HaltingClock()
    driver = run(clock, ordered="false")
    end = whole(driver, driver.initial())
    assert driver.next_end(end, None) is None

    def is_watched() -> bool:
        assert driver.wait_for_messages()
        return driver._latest._is_watched

    eventually(is_watched, "every queue has a held pull")
    eventually(lambda: broker.statistics.held_pulls == 8, "the broker holds them")
    ends = [end.queues[queue] for queue in QUEUES]
    eventually(lambda: committed(broker) == ends, "nothing else is asked of the broker")
    clock.halted_ms = clock.now_ms()  # else each second there is a question
    version, asked = driver.ends_version, broker.statistics.requests
    for _ in range(5):
        driver.wait_for_messages()
        assert driver.next_end(end, None) is None
    assert broker.statistics.requests == asked
    assert driver.ends_version == version
    producer.send(*numbered(1, start=100)[0][:1], queue=QUEUES[5])
    eventually(lambda: driver._latest._arrived.is_set(), "the held pull is answered")
    more = whole(driver, end)
    assert more.queues == end.queues | {QUEUES[5]: end.queues[QUEUES[5]] + 1}
    driver.close()
    eventually(lambda: broker.statistics.held_pulls == 0, "no pull is held any more")


def test_an_idle_stream_tries_to_lock_a_new_queue_until_it_is_free(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    end = whole(driver, driver.initial())
    all_but_one = StreamOffset({q: at for q, at in end.queues.items() if q != QUEUES[3]})
    locks, holder_of_it = driver._locks, run(group="g")
    assert locks is not None

    async def give_one_away() -> None:
        await locks._unlock(locks._requests, {QUEUES[3]: locks._held.pop(QUEUES[3])})

    driver.next_end(end, None)
    locks.session.call(give_one_away())
    assert holder_of_it._locks is not None
    assert holder_of_it._locks.try_hold([QUEUES[3]])
    for _ in range(3):
        assert driver.next_end(all_but_one, None) is None
    holder_of_it._locks.session.call(holder_of_it._locks.release(is_in_flight=False))
    assert whole(driver, all_but_one).queues == all_but_one.queues | {QUEUES[3]: 0}


def test_the_ends_of_all_queues_are_asked_for_by_one_request(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run(ordered="false")
    first = driver._latest.get_now()
    asked = broker.statistics.requests
    producer.send_many(numbered(16, start=100))
    sent = broker.statistics.requests
    assert sum(driver._latest.get_now().values()) == sum(first.values()) + 16 == 116
    assert broker.statistics.requests - sent == 1
    assert sent > asked


def test_a_broker_that_refuses_statistics_is_asked_for_each_queue(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run(ordered="false")

    async def refused(address: str, topic: str) -> bytes:
        raise BrokerError("request code not supported", response_code=3, address=address)

    driver._session.api.topic_statistics = refused  # type: ignore[method-assign]
    assert sum(whole(driver, driver.initial()).queues.values()) == 100
    producer.send_many(numbered(5, start=100))
    assert sum(driver._latest.get_now().values()) == 105


def test_ends_that_statistics_tell_too_low_are_not_believed(broker, producer, run):
    producer.send_many(numbered(100))  # as of a static topic: offsets of the broker's own log
    driver = run(ordered="false")
    honest = driver._session.api.topic_statistics

    async def shifted(address: str, topic: str) -> bytes:
        body = await honest(address, topic)
        return re.sub(rb'"maxOffset":\d+', b'"maxOffset":1', body)

    driver._session.api.topic_statistics = shifted  # type: ignore[method-assign]
    start = driver.initial()
    assert sum(whole(driver, start).queues.values()) == 100


def test_the_checkpoint_of_another_topic_is_refused(broker, producer, run):
    producer.send_many(numbered(100))
    producer.send_many([(m.__class__("bills", m.body), k) for m, k in numbered(10)])
    start = run(ordered="false").initial()
    end = StreamOffset(dict.fromkeys(start.queues, 1))
    for more in ({}, {"fail_on_data_loss": "false"}):
        other = run(ordered="false", topic="bills", **more)
        with pytest.raises(StateError, match=r"is of topic orders, and the query reads bills.*own"):
            other.next_end(start, None)
    other = run(ordered="false", topic="bills")
    with pytest.raises(StateError, match="is of topic orders"):
        other.begin_batch(start, end)
    assert whole(run(ordered="false", topic="orders,bills"), start)


def test_a_topic_that_is_left_out_is_an_error_or_read_no_more(broker, producer, run):
    producer.send_many(numbered(100))
    producer.send_many([(m.__class__("bills", m.body), k) for m, k in numbered(10)])
    both = run(topic="orders,bills")
    start = both.initial()
    both.close()
    with pytest.raises(StateError, match="add bills to option topic"):
        run().next_end(start, None)
    loose = run(fail_on_data_loss="false")
    end = whole(loose, start)
    assert {queue.topic for queue in end.queues} == {"orders"}
    assert sum(last - first for _, first, last in loose.begin_batch(start, end)) == 100


def test_queues_that_are_gone_are_an_error_or_a_warning(broker, producer, run, caplog):
    producer.send_many(numbered(100))
    fewer = MessageQueue("orders", "b", 11)  # the topic was made anew with fewer queues
    elsewhere = MessageQueue("orders", "away", 0)
    driver = run(ordered="false")
    start = driver.initial()
    with pytest.raises(DataLoss, match=r"1 queues of the stream are gone.*queue_id=11"):
        driver.next_end(StreamOffset(start.queues | {fewer: 3}), None)
    clock = JumpingClock()
    patient = run(clock, ordered="false")
    ends = whole(patient, start).queues
    away = StreamOffset(ends | {elsewhere: 3})
    for _ in range(3):
        assert patient.next_end(away, None) is None  # it may only be restarting
    clock.added_ms += 61_000
    with pytest.raises(DataLoss, match=r"gone.*broker='away'"):
        patient.next_end(away, None)
    ends_now = run(ordered="false")
    ends_now.freeze_end()
    with pytest.raises(DataLoss, match=r"gone.*broker='away'"):
        ends_now.next_end(away, None)
    loose = run(ordered="false", fail_on_data_loss="false")
    end = loose.next_end(StreamOffset(start.queues | {fewer: 3}), None)
    assert end is not None
    assert end.queues[fewer] == 3
    assert "1 queues of the stream are gone" in caplog.text


def test_a_queue_that_ends_before_the_checkpoint_is_data_loss(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    ahead = StreamOffset(dict.fromkeys(driver.initial().queues, 1_000))
    with pytest.raises(DataLoss, match=r"it ends at offset \d+, and was read up to"):
        driver.next_end(ahead, None)
    loose = run(fail_on_data_loss="false", ordered="false")
    anew = whole(loose, ahead)
    assert set(anew.queues.values()) == {0}
    assert sum(whole(loose, anew).queues.values()) == 100


def test_a_checkpoint_that_goes_back_is_refused(broker, producer, run):
    producer.send_many(numbered(100))
    driver = run()
    start = driver.initial()
    end = whole(driver, start)
    with pytest.raises(StateError, match="changed by hand"):
        driver.begin_batch(end, start)


def test_an_unknown_topic_is_named(broker, run):
    with pytest.raises(RouteError, match=r"topic not found on any broker.*topic='orders'"):
        run().initial()
    with pytest.raises(RouteError, match=r"brokers know it as 'shop%orders'"):
        run(namespace="shop").initial()


class TestAnAccountIsAskedFor:
    """A broker that serves its accounts only; the options of Spark carry them."""

    @pytest.fixture
    def broker_config(self) -> BrokerConfig:
        return BrokerConfig(broker_name="b", durability="os", accounts={"shop": "hidden"})

    def test_a_query_signs_with_its_options(self, broker, run):
        with Producer("p", name_servers=broker.name_servers, **ACCOUNT) as producer:
            producer.send_many(numbered(20))
        driver = run(**ACCOUNT)
        assert sum(whole(driver, driver.initial()).queues.values()) == 20

    def test_the_error_for_a_wrong_secret_names_what_to_check(self, broker, run):
        with pytest.raises(BrokerError, match=r"check that key, its secret_key"):
            run(access_key="shop", secret_key="wrong").initial()
