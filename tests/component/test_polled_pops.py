"""Polling of leased batches: `LitePullConsumer(ordered=True, consume_mode="pop")` and `async for`
(docs/pop.md#polling)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    DeadLetter,
    LitePullConsumer,
    MessageQueue,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, StateError
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_ordered_polling import Poller, take, until_some
from tests.component.test_orderly_consumer import committed, send_all

Make = Callable[..., LitePullConsumer]
QUEUE = MessageQueue("orders", "b", 0)
POP: dict[str, Any] = {
    "consume_mode": "pop", "consume_from_where": "first_offset", "pop_poll_ms": 200,
}  # fmt: skip
SHORT: dict[str, Any] = {"pop_invisible_ms": 1_500, "lease_margin_ms": 200}


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    """Polled consumers of group "g" on topic "orders" that pop; closed after the test."""
    made: list[LitePullConsumer] = []

    def start(**settings: Any) -> LitePullConsumer:
        consumer = LitePullConsumer(
            "g", name_servers=broker.name_servers, ordered=True, **POP | settings
        )
        consumer.subscribe("orders")
        made.append(consumer.start())
        return consumer

    yield start
    for consumer in made:
        consumer.close(0.1)


def test_pollers_share_a_group_and_each_key_keeps_its_order(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker
) -> None:
    pollers = [Poller(make(), seen) for _ in range(3)]
    send_all(producer, numbered(2_000))
    seen.wait_for_count(2_000)
    eventually(lambda: committed(broker) == 2_000, "all is acknowledged")
    for poller in pollers:
        assert poller.close()
    assert_in_order(seen, 2_000)
    assert seen.duplicates() == 0


def test_members_with_listeners_and_pollers_share_a_group(
    producer: Producer, make: Make, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    poller = Poller(make(), seen)
    make_consumer(seen.take, **POP).start()
    send_all(producer, numbered(1_000))
    seen.wait_for_count(1_000)
    assert poller.close()
    assert_in_order(seen, 1_000)
    assert seen.duplicates() == 0


def test_tasks_iterate_over_leased_batches(
    producer: Producer, broker: EmbeddedBroker, seen: Seen
) -> None:
    send_all(producer, numbered(500))

    async def work(consumer: AsyncConsumer) -> None:
        async for batch in consumer:
            with batch:
                take(seen, batch)

    async def main() -> None:
        async with AsyncConsumer(
            "g", "orders", name_servers=broker.name_servers, **POP
        ) as consumer:
            workers = [asyncio.create_task(work(consumer)) for _ in range(3)]
            await asyncio.to_thread(seen.wait_for_count, 500)
            consumer.stop()
            await asyncio.gather(*workers)

    asyncio.run(main())
    eventually(lambda: committed(broker) == 500, "all is acknowledged")
    assert_in_order(seen, 500)
    assert seen.duplicates() == 0


def test_a_batch_that_takes_longer_than_its_lease_is_kept_by_renewals(
    producer: Producer, make: Make, seen: Seen
) -> None:
    members = [make(**SHORT), make(**SHORT)]
    send_all(producer, numbered(40, keys=1))
    first = next(batch for member in 20 * members if (batch := member.poll(500)))
    with first:
        time.sleep(3.0)  # two leases: the work of the poller
        assert first.counts
        take(seen, first)
    pollers = [Poller(member, seen) for member in members]
    seen.wait_for_count(40)
    for poller in pollers:
        poller.close()
    assert_in_order(seen, 40, keys=1)
    assert seen.duplicates() == 0


def test_a_batch_that_failed_comes_again_before_later_ones(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(100, keys=1))
    consumer, failures = make(), [ValueError("of a test")]
    for batch in consumer.batches(3_000):
        with batch:
            if failures:
                raise failures.pop()
            take(seen, batch)
    assert_in_order(seen, 100, keys=1)
    assert seen.duplicates() == 0
    assert committed(broker) == 100


def test_a_failed_message_goes_to_the_dead_letters(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(10, keys=1))
    consumer = make(on_failure=DeadLetter(1), poll_batch_size=1)
    for batch in consumer.batches(3_000):
        with batch:
            if batch[0].body == b"3":
                raise ValueError("of a test")
            take(seen, batch)
    assert [int(body) for *_, body in seen.deliveries] == [0, 1, 2, *range(4, 10)]
    with Admin(broker.name_servers) as admin:
        assert [each.waiting for each in admin.dead_letters()] == [1]


def test_who_leaves_gives_back_what_is_not_done(producer: Producer, make: Make, seen: Seen) -> None:
    send_all(producer, numbered(60, keys=1))
    leaving = make(pop_invisible_ms=60_000)
    assert until_some(leaving)
    assert leaving.close()
    # Long before the lease of a minute ends.
    poller = Poller(make(pop_invisible_ms=60_000), seen)
    seen.wait_for_count(60)
    poller.close()
    assert_in_order(seen, 60, keys=1)


def test_a_commit_acknowledges_the_front_of_a_batch(
    producer: Producer, make: Make, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(30, keys=1))
    consumer = make(pop_invisible_ms=60_000)
    batch = until_some(consumer)
    consumer.commit({batch.message_queue: 7})
    with pytest.raises(StateError, match="another member may have the next batch"):
        consumer.commit({batch.message_queue: 3})
    consumer.close()
    poller = Poller(make(), seen)
    seen.wait_for_count(23)
    poller.close()
    assert min(offset for _, offset, _, _ in seen.deliveries) == 7


def test_a_commit_ends_each_batch_with_its_own_acknowledgement(
    producer: Producer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is acknowledged and still out was ended again and again, by an I/O thread that did
    nothing else, as when the broker of another queue does not answer, or the call is cancelled."""
    released, whole = threading.Event(), OffsetCommitter.commit_at

    async def commit_at(self: OffsetCommitter, assigned: AssignedQueue, offset: int) -> bool:
        while offset == 0 and not released.is_set():  # of the queue whose broker is slow
            await asyncio.sleep(0.01)
        return await whole(self, assigned, offset)

    monkeypatch.setattr(OffsetCommitter, "commit_at", commit_at)
    send_all(producer, numbered(10, keys=1))
    consumer = make()
    batch = until_some(consumer)
    other = next(queue for queue in consumer.assignment() if queue != batch.message_queue)

    async def commit() -> None:
        asked = asyncio.ensure_future(
            consumer.acommit({batch.message_queue: batch.next_offset, other: 0})
        )
        send_all(producer, numbered(1))  # the queue's next batch is popped when this one has ended
        assert await asyncio.to_thread(until_some, consumer)
        assert not asked.done()
        released.set()
        await asked

    asyncio.run(commit())


def test_nothing_moves_a_group_that_pops(producer: Producer, make: Make) -> None:
    send_all(producer, numbered(1))
    consumer = make()
    eventually(consumer.assignment, "it has queues")
    for move in (
        lambda: consumer.seek(QUEUE, 0),
        lambda: consumer.seek_to_begin(QUEUE),
        lambda: consumer.assign([QUEUE]),
    ):
        with pytest.raises(StateError, match="another member may have the next batch"):
            move()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"ordered": False}, "ordered=True"),
        ({"auto_commit": False}, "auto_commit"),
        ({"deduplicate": 10}, "deduplicate"),
        ({"ordered": False, "message_model": "broadcasting"}, "broadcasting"),
    ],
)
def test_a_setting_that_leases_cannot_have_is_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=rf"consume_mode='pop' is not for .*{what}"):
        LitePullConsumer("g", name_servers="a:1", **{"ordered": True} | POP | settings)


def test_a_thread_that_ended_with_a_batch_leaves_it_to_others(
    producer: Producer, make: Make, seen: Seen
) -> None:
    send_all(producer, numbered(40, keys=1))
    consumer = make()
    thread = threading.Thread(target=until_some, args=(consumer,))
    thread.start()
    thread.join()
    poller = Poller(consumer, seen)
    seen.wait_for_count(40)
    poller.close()
    assert_in_order(seen, 40, keys=1)
