"""Polling in order in one group with Java's orderly members, on RocketMQ.

What a poller of ordermq has finished is never redelivered; Java may repeat its own last batch
(docs/internals/semantics.md#leases-and-renewal). Nothing may be lost or overtaken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ordermq import LitePullConsumer
from tests.interop.cluster import DEADLINE_S, LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS, eventually
from tests.interop.run import Delivery, Run

SETTINGS: dict[str, Any] = {
    "ordered": True,
    "consume_from_where": "first_offset",
    "poll_batch_size": 4,
    "auto_commit_interval_ms": 200,
    "route_interval_ms": 500,
    "lock_max_live_ms": LOCK_MAX_LIVE_MS,
    "lock_interval_ms": LOCK_INTERVAL_MS,
}


@contextmanager
def polling(run: Run, name: str, *, commits: bool = False) -> Iterator[LitePullConsumer]:
    """Poll on a thread of its own until the end of the block, which leaves the group."""
    settings = SETTINGS | {"auto_commit": not commits}
    consumer = LitePullConsumer(run.group, name_servers=run.cluster.name_servers, **settings)
    consumer.subscribe(run.topic)

    def poll() -> None:
        for batch in consumer.batches():
            queue = batch.message_queue
            assert batch.fence_token[1] == batch.first_offset
            run._add(
                [
                    Delivery(name, queue, m.queue_offset, m.sharding_key, bytes(m.body))
                    for m in batch
                ]
            )
            if commits:
                consumer.commit({queue: batch.next_offset})

    consumer.start()
    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield consumer
    finally:
        closed = consumer.close(DEADLINE_S)
        thread.join(DEADLINE_S)
    assert closed


def wait_for_share(consumer: LitePullConsumer, count: int) -> None:
    eventually(lambda: len(consumer.assignment()) == count, f"a share of {count} queues")


def assert_nothing_finished_was_redelivered(run: Run) -> None:
    """Check the deliveries in the order in which they came."""
    finished: dict[Any, str] = {}
    for delivery in run.deliveries:
        place = (delivery.queue, delivery.offset)
        first = finished.setdefault(place, delivery.member)
        assert first == delivery.member or first == "java", f"{delivery}: {first} had it"
    assert sum(member != "java" for member in finished.values()) > 0
    run.assert_keys_in_order()


@pytest.mark.parametrize("commits", [False, True], ids=["auto-commit", "commit"])
def test_pollers_that_join_and_leave_lose_and_repeat_nothing(run: Run, commits: bool) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.send(16)
    with run.flow(), polling(run, "one", commits=commits) as one:
        run.wait_for_more(50, "one")
        for _ in range(2):
            with polling(run, "two", commits=commits) as two:
                wait_for_share(two, 4)
                run.wait_for_more(100, "two")
            wait_for_share(one, 8)
            run.wait_for_more(50, "one")
    with polling(run, "last"):
        run.wait_for_all()
    assert run.duplicates() == 0
    run.assert_keys_in_order()


def test_a_java_member_joins_a_group_of_pollers_and_leaves_again(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.send(16)
    with run.flow(), polling(run, "poller") as poller:
        run.wait_for_more(50, "poller")
        java = run.java_member("java")
        wait_for_share(poller, 4)
        run.wait_for_more(100, "java")
        java.leave()
        wait_for_share(poller, 8)
        run.wait_for_more(100, "poller")
    with polling(run, "poller"):
        run.wait_for_all()
    assert_nothing_finished_was_redelivered(run)


def test_a_poller_joins_a_group_of_java_and_leaves_again(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.send(16)
    java = run.java_member("java", listener_ms=2)
    with run.flow():
        run.wait_for_more(50, "java")
        with polling(run, "poller", commits=True) as poller:
            wait_for_share(poller, 4)
            run.wait_for_more(100, "poller")
        before = len(run.deliveries)
        run.wait_for(
            lambda seen: len({d.queue for d in seen[before:] if d.member == "java"}) == 8,
            "Java has all queues again",
        )
    run.wait_for_all()
    java.leave()
    assert_nothing_finished_was_redelivered(run)


def test_a_poller_an_orderly_listener_and_a_java_member_share_one_group(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 6, "broker-b": 6})
    run.send(32)
    with run.flow(), polling(run, "poller") as poller:
        run.wait_for_more(50, "poller")
        run.member("listener")
        java = run.java_member("java")
        wait_for_share(poller, 4)
        run.wait_for_shares(listener=4)
        run.wait_for_more(100, "java")
        run.wait_for_more(100, "listener")
        run.wait_for_more(100, "poller")
        java.leave()
        run.leave("listener")
        wait_for_share(poller, 12)
    with polling(run, "poller"):
        run.wait_for_all()
    assert_nothing_finished_was_redelivered(run)
