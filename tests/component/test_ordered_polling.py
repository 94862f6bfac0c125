"""Polling in order, under queue locks: `LitePullConsumer(ordered=True)`."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, MessageQueue, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.errors import ConfigError, StateError
from tests.component.conftest import DEADLINE_S, Seen, assert_in_order, eventually, numbered
from tests.component.test_hand_off import Flow
from tests.component.test_orderly_consumer import committed, send_all

Make = Callable[..., LitePullConsumer]
QUEUES = [MessageQueue("orders", "b", number) for number in range(8)]


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    """Ordered consumers of group "g" on topic "orders"; closed after the test."""
    made: list[LitePullConsumer] = []

    def start(**settings: Any) -> LitePullConsumer:
        settings = {
            "ordered": True,
            "consume_from_where": "first_offset",
            "auto_commit_interval_ms": 20,
        } | settings
        consumer = LitePullConsumer("g", name_servers=broker.name_servers, **settings)
        consumer.subscribe("orders")
        consumer.start()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close(0.1)


class Poller:
    """A thread that polls a consumer until it is closed."""

    def __init__(self, consumer: LitePullConsumer, seen: Seen, *, commits: bool = False) -> None:
        self.consumer = consumer
        self._seen = seen
        self._commits = commits
        self._thread = threading.Thread(target=self._run, name="poller")
        self._thread.start()

    def _run(self) -> None:
        for batch in self.consumer.batches():
            take(self._seen, batch)
            if self._commits:
                self.consumer.commit()

    def close(self) -> bool:
        closed = self.consumer.close(DEADLINE_S)
        self._thread.join(DEADLINE_S)
        return closed


def take(seen: Seen, batch: PolledBatch) -> None:
    queue_id = batch.message_queue.queue_id
    seen.add([(queue_id, m.queue_offset, m.sharding_key, bytes(m.body)) for m in batch])


def until_some(consumer: LitePullConsumer) -> PolledBatch:
    batch = consumer.poll(int(DEADLINE_S * 1_000))
    assert batch
    return batch


@pytest.mark.parametrize("auto_commit", [True, False])
def test_members_that_join_and_leave_under_load_lose_and_repeat_nothing(
    producer: Producer,
    broker: EmbeddedBroker,
    broker_history: Path,
    make: Make,
    seen: Seen,
    auto_commit: bool,
) -> None:
    settings = {"auto_commit": auto_commit, "poll_batch_size": 4}
    send_all(producer, numbered(16, keys=16))
    with Flow(producer, sent=16) as flow:
        first = Poller(make(**settings), seen, commits=not auto_commit)
        seen.wait_for_count(50)
        for _ in range(3):
            second = Poller(make(**settings), seen, commits=not auto_commit)
            consumer = second.consumer
            eventually(lambda consumer=consumer: len(consumer.assignment()) == 4, "a share")
            seen.wait_for_count(len(seen.deliveries) + 100)
            assert second.close()
            eventually(lambda: len(first.consumer.assignment()) == 8, "all queues back")
            seen.wait_for_count(len(seen.deliveries) + 50)
    seen.wait_for_count(flow.sent)
    assert first.close()
    assert seen.duplicates() == 0
    assert_in_order(seen, flow.sent, keys=16)
    assert committed(broker) == flow.sent
    report = audit(broker_history)
    assert report.ok, report.violations


def test_pollers_and_an_orderly_listener_share_one_group(
    producer: Producer,
    broker: EmbeddedBroker,
    make: Make,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    send_all(producer, numbered(16, keys=16))
    with Flow(producer, sent=16) as flow:
        poller = Poller(make(poll_batch_size=4), seen)
        for _ in range(2):
            push = make_consumer(seen.take, consume_message_batch_max_size=4)
            push.start()
            eventually(lambda: len(poller.consumer.assignment()) == 4, "half of the queues")
            seen.wait_for_count(len(seen.deliveries) + 100)
            assert push.close(10)
            eventually(lambda: len(poller.consumer.assignment()) == 8, "all queues back")
        last = make_consumer(seen.take)
        last.start()
        eventually(lambda: len(poller.consumer.assignment()) == 4, "half of the queues")
        assert poller.close()
    seen.wait_for_count(flow.sent)
    assert last.close(10)
    assert seen.duplicates() == 0
    assert_in_order(seen, flow.sent, keys=16)
    assert "listening is" not in caplog.text


def test_a_queue_moves_only_when_its_batch_is_done(
    producer: Producer, broker: EmbeddedBroker, make: Make, seen: Seen
) -> None:
    send_all(producer, numbered(80, keys=16))
    revoked: list[MessageQueue] = []
    first = make(on_revoked=revoked.append)
    batches = {}
    pollers = {}
    while len(batches) < 8:  # one poller for each queue
        with_batch: list[PolledBatch] = []
        go_on = threading.Event()
        thread = threading.Thread(target=poll_and_wait, args=(first, with_batch, go_on))
        thread.start()
        eventually(lambda found=with_batch: bool(found), "a batch")
        queue = with_batch[0].message_queue
        batches[queue], pollers[queue] = with_batch[0], (thread, go_on)
    second = make()
    eventually(lambda: len(first.assignment()) == 4, "half of the queues are revoked")
    moving = [queue for queue in QUEUES if queue not in first.assignment()]
    assert all(batches[queue].is_revoked() == (queue in moving) for queue in QUEUES)
    assert second.assignment() == []
    assert not second.poll(100)
    assert revoked == []
    for place, queue in enumerate(moving):
        thread, go_on = pollers[queue]
        go_on.set()
        thread.join(DEADLINE_S)
        eventually(lambda at=place: len(second.assignment()) == at + 1, "it moved alone")
    assert sorted(second.assignment()) == moving
    eventually(lambda: sorted(revoked) == moving, "and this is reported")
    assert second.committed(moving[0]) == batches[moving[0]].next_offset
    for queue in first.assignment():
        pollers[queue][1].set()
    assert second.poll(0).next_offset == 0, "nothing is redelivered"


def poll_and_wait(
    consumer: LitePullConsumer, found: list[PolledBatch], go_on: threading.Event
) -> None:
    found.append(until_some(consumer))
    go_on.wait(DEADLINE_S)
    consumer.commit()


def test_a_batch_whose_lease_was_lost_counts_for_nothing(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send_all(producer, numbered(5, keys=1))
    consumer = make(auto_commit=False, poll_batch_size=2)
    batch = until_some(consumer)
    queue, before = batch.message_queue, batch.fence_token
    assert batch.offsets() == [0, 1]
    member = consumer._live()
    assigned = member.control.find(queue)
    member.client.runtime.post(assigned.lose_lease, "a test's own")
    eventually(batch.is_revoked, "the poller is told")
    with pytest.raises(StateError, match="redelivered"):
        consumer.commit({queue: batch.next_offset})
    consumer.commit()
    assert consumer.committed(queue) == 0
    again = until_some(consumer)
    assert (again.message_queue, again.offsets()) == (queue, [0, 1])
    assert again.fence_token >= before
    consumer.commit()
    assert consumer.committed(queue) == 2


KILLED = """
import sys
from ordermq import LitePullConsumer

consumer = LitePullConsumer(
    "g", name_servers=sys.argv[1], ordered=True, auto_commit=False, poll_batch_size=3
)
consumer.subscribe("orders")
consumer.start()
batch = consumer.poll(20_000)
consumer.commit()
batch = consumer.poll(20_000)
print(len(consumer.assignment()), *batch.fence_token, flush=True)
sys.stdin.read()
"""


def test_after_a_crash_what_was_not_committed_is_redelivered_in_order(
    producer: Producer, broker: EmbeddedBroker, make: Make, seen: Seen
) -> None:
    send_all(producer, numbered(20, keys=1))
    make().close()  # the group begins at the first offset
    command = [sys.executable, "-c", KILLED, broker.name_servers]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            held, epoch, first = map(int, process.stdout.readline().split())
        finally:
            process.kill()
    assert (held, first) == (8, 3)
    consumer = make()
    batch = until_some(consumer)
    assert batch.first_offset == 3
    assert batch.fence_token > (epoch, first), "a store refuses the crashed owner's late writes"
    take(seen, batch)
    while len(seen.deliveries) < 17:
        take(seen, until_some(consumer))
    assert [int(body) for body in seen.bodies_of("k0")] == list(range(3, 20))


def test_each_task_is_a_poller(producer: Producer, broker: EmbeddedBroker, make: Make) -> None:
    send_all(producer, numbered(400, keys=16))
    consumer = make(poll_batch_size=3)
    seen, in_hands = Seen(), set[MessageQueue]()

    async def work() -> None:
        async for batch in consumer.batches(timeout_ms=2_000):
            assert batch.message_queue not in in_hands, "a queue is in one task's hands"
            in_hands.add(batch.message_queue)
            await asyncio.sleep(0.001)
            take(seen, batch)
            in_hands.remove(batch.message_queue)

    async def run() -> None:
        await asyncio.gather(*(work() for _ in range(5)))

    asyncio.run(run())
    assert seen.duplicates() == 0
    assert_in_order(seen, 400, keys=16)
    eventually(lambda: committed(broker) == 400, "all is committed")


def test_a_poll_in_a_wrapper_task_is_its_callers(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send_all(producer, numbered(9, keys=1))
    consumer = make(poll_batch_size=3, auto_commit=False)

    async def run() -> list[list[int]]:
        found = []
        for _ in range(3):
            # wait_for makes a task of it (before Python 3.12), which ends with the poll.
            batch = await asyncio.wait_for(consumer.apoll(), DEADLINE_S)
            found.append(batch.offsets())
        await consumer.acommit()
        return found

    assert asyncio.run(run()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert committed(broker) == 9


def test_a_commit_and_a_seek_in_a_wrapper_task_are_their_callers(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send_all(producer, numbered(9, keys=1))
    consumer = make(poll_batch_size=3, auto_commit=False)

    async def run() -> list[list[int]]:
        first = await consumer.apoll("20s")
        # gather makes a task of each coroutine, as wait_for does before Python 3.12.
        await asyncio.gather(consumer.acommit())
        assert committed(broker) == 3, "what the caller has is committed"
        second = await consumer.apoll("20s")
        # It would wait for the batch of another poller, so for the one of its caller for ever.
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(consumer.aseek(second.message_queue, 1))
        third = await consumer.apoll("20s")
        return [first.offsets(), second.offsets(), third.offsets()]

    assert asyncio.run(run()) == [[0, 1, 2], [3, 4, 5], [1, 2, 3]]


def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_to_warn_of(
    producer: Producer, make: Make
) -> None:
    send_all(producer, numbered(3, keys=1))
    consumer = make(poll_batch_size=3, auto_commit=False)

    async def run() -> None:
        batch = await consumer.apoll("20s")
        queue = batch.message_queue
        for call in (consumer.acommit(), consumer.acommit({queue: 3}), consumer.aseek(queue, 0)):
            task = asyncio.create_task(call)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(consumer.committed, queue) in (None, 0)
        assert not await consumer.apoll(0), "it was not moved"

    asyncio.run(run())
    gc.collect()  # pytest makes an error of a coroutine that nobody awaited


def test_a_batch_of_a_thread_that_ended_is_redelivered(
    producer: Producer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = make(poll_batch_size=2)
    worker = threading.Thread(target=until_some, args=(consumer,), name="worker-7")
    worker.start()
    worker.join(DEADLINE_S)
    assert until_some(consumer).offsets() == [0, 1]
    assert "thread worker-7 ended without polling again" in caplog.text
    assert "redelivered" in caplog.text


def test_what_the_closing_thread_has_is_left_to_the_next_owner(
    producer: Producer, make: Make
) -> None:
    send_all(producer, numbered(4, keys=1))
    with closing(make(poll_batch_size=2, auto_commit_interval_ms=60_000)) as consumer:
        for batch in consumer.batches():
            if batch.offsets() == [2, 3]:
                break  # its first batch is done, this one is not
    assert consumer.assignment() == []
    assert until_some(make()).offsets() == [2, 3]


def test_a_close_waits_for_other_pollers_and_at_most_for_its_time(
    producer: Producer, broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = make(auto_commit=False)
    polled, go_on = threading.Event(), threading.Event()
    answers: list[str] = []

    def work() -> None:
        batch = until_some(consumer)
        polled.set()
        go_on.wait(DEADLINE_S)
        consumer.commit({batch.message_queue: batch.next_offset})
        answers.append("committed")
        with pytest.raises(StateError, match="not running"):
            consumer.poll()

    worker = threading.Thread(target=work)
    worker.start()
    assert polled.wait(DEADLINE_S)
    closed: list[bool] = []
    closer = threading.Thread(target=lambda: closed.append(consumer.close(DEADLINE_S)))
    closer.start()
    eventually(lambda: consumer.assignment() == [], "it is closing")
    assert closer.is_alive()
    go_on.set()
    closer.join(DEADLINE_S)
    worker.join(DEADLINE_S)
    assert closed == [True]
    assert answers == ["committed"]
    assert committed(broker) == 4
    # A poller that never comes back.
    send_all(producer, numbered(4, keys=1, start=4))
    late = make()
    polled.clear()
    go_on.clear()
    stuck = threading.Thread(target=lambda: (until_some(late), polled.set(), go_on.wait(20)))
    stuck.start()
    assert polled.wait(DEADLINE_S)
    assert late.close(0.05) is False
    assert "closing with batches in progress: orders@b/" in caplog.text
    assert committed(broker) == 4
    go_on.set()
    stuck.join(DEADLINE_S)


def test_a_seek_waits_for_the_batch_of_another_poller_and_forgets_ones_own(
    producer: Producer, make: Make
) -> None:
    send_all(producer, numbered(6, keys=1))
    consumer = make(poll_batch_size=2)
    queue = until_some(consumer).message_queue
    consumer.seek(queue, 4)
    assert until_some(consumer).offsets() == [4, 5]
    consumer.poll(0)
    eventually(lambda: consumer.committed(queue) == 6, "done")
    consumer.seek(queue, 0)
    polled, go_on = threading.Event(), threading.Event()
    other = threading.Thread(
        target=lambda: (until_some(consumer), polled.set(), go_on.wait(20), consumer.poll(0))
    )
    other.start()
    assert polled.wait(DEADLINE_S)
    seeking = threading.Thread(target=consumer.seek, args=(queue, 5))
    seeking.start()
    seeking.join(0.05)
    assert seeking.is_alive()
    assert not consumer.poll(0), "nothing is handed out meanwhile"
    go_on.set()
    seeking.join(DEADLINE_S)
    other.join(DEADLINE_S)
    assert until_some(consumer).offsets() == [5]


def test_queues_assigned_by_hand_are_held_under_their_locks(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send_all(producer, numbered(80, keys=16))
    one, two = (
        LitePullConsumer(
            "g", name_servers=broker.name_servers, ordered=True, consume_from_where="first_offset"
        )
        for _ in range(2)
    )
    with one, two:
        one.assign(QUEUES[:3])
        two.assign(QUEUES[2:])
        assert one.assignment() == QUEUES[:3]
        assert two.assignment() == QUEUES[3:], "the other one has the lock"
        one.assign(QUEUES[:2])
        eventually(lambda: two.assignment() == QUEUES[2:], "it is free now")


def test_a_pause_keeps_the_lock(producer: Producer, make: Make) -> None:
    send_all(producer, numbered(4, keys=1))
    consumer = make(poll_batch_size=2)
    queue = until_some(consumer).message_queue
    consumer.pause([queue])
    assert not consumer.poll(50)
    assert queue in consumer.assignment()
    consumer.resume([queue])
    assert until_some(consumer).offsets() == [2, 3]


def test_broadcasting_has_no_order_to_keep(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="not for broadcasting"):
        LitePullConsumer(
            "g", name_servers=broker.name_servers, ordered=True, message_model="broadcasting"
        )
