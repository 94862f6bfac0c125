"""The lite pull consumer on a real broker in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from ordermq import (
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.queue.polled_queue import PolledQueue
from ordermq.consumer.queue.receiver import Flow
from ordermq.errors import (
    BrokerError,
    ConfigError,
    RemotingError,
    RouteError,
    StateError,
    StoreError,
)
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient, queue_table
from tests.component.conftest import DEADLINE_S, eventually

QUEUES = [MessageQueue("orders", "b", number) for number in range(8)]
Make = Callable[..., LitePullConsumer]
# Without the rule by which new groups start at 0 while a queue is young.
BY_SETTING = pytest.mark.parametrize(
    "broker_config",
    [BrokerConfig(broker_name="b", durability="os", new_groups_start_at_zero=False)],  # type: ignore[arg-type]
    ids=[""],
)


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    """Running consumers of group "g", from the first offset, closed after the test."""
    made: list[LitePullConsumer] = []

    def start(topic: str | None = "orders", expression: str = "*", **settings: Any):
        settings = {"consume_from_where": "first_offset"} | settings
        consumer = LitePullConsumer("g", name_servers=broker.name_servers, **settings)
        if topic is not None:
            consumer.subscribe(topic, expression)
        consumer.start()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close()


def send(producer: Producer, count: int, start: int = 0, **message: Any) -> None:
    """Numbered messages, to the eight queues in turn."""
    producer.queues("orders")  # the first send creates the topic
    for number in range(start, start + count):
        body = str(number).encode()
        producer.send(Message("orders", body, **message), queue=QUEUES[number % 8])


def polled(consumer: LitePullConsumer, count: int) -> list[int]:
    """The numbers of the next messages; fails unless there are so many."""
    got: list[int] = []
    end = time.monotonic() + DEADLINE_S
    while len(got) < count:
        if time.monotonic() > end:
            pytest.fail(f"not within {DEADLINE_S} s: {count} messages; got {len(got)}")
        got += [int(bytes(message.body)) for message in consumer.poll(100)]
    return got


def stored(consumer: LitePullConsumer) -> list[int | None]:
    return [consumer.committed(queue) for queue in QUEUES]


def test_everything_arrives_once_each_queue_in_order_and_is_committed(
    producer: Producer, make: Make
) -> None:
    send(producer, 400)
    consumer = make()
    offsets: dict[MessageQueue, list[int]] = {queue: [] for queue in QUEUES}
    while sum(map(len, offsets.values())) < 400:
        batch = consumer.poll(1_000)
        assert {message.message_queue for message in batch} == {batch.message_queue}
        offsets[batch.message_queue] += batch.offsets()
        assert batch.next_offset == offsets[batch.message_queue][-1] + 1
    assert offsets == {queue: list(range(50)) for queue in QUEUES}
    assert not consumer.poll(0)
    consumer.commit()
    assert stored(consumer) == [50] * 8
    assert [consumer.position(queue) for queue in QUEUES] == [50] * 8


def test_a_restarted_consumer_goes_on_from_the_commit(producer: Producer, make: Make) -> None:
    send(producer, 80)
    first = make(auto_commit=False)
    got = polled(first, 40)
    first.commit()
    polled(first, 16)
    first.close()
    second = make(auto_commit=False)
    assert sorted(got + polled(second, 80 - len(got))) == list(range(80))


def test_a_commit_may_name_offsets(producer: Producer, make: Make) -> None:
    send(producer, 80)
    consumer = make(auto_commit=False)
    polled(consumer, 80)
    consumer.commit({QUEUES[0]: 3, QUEUES[1]: 7})
    assert stored(consumer) == [3, 7, *[0] * 6], "the others' starts"
    asyncio.run(consumer.acommit({QUEUES[0]: 2}))
    assert stored(consumer) == [2, 7, *[0] * 6]


def test_two_members_share_the_queues_and_one_that_leaves_gives_them_back(
    producer: Producer, make: Make
) -> None:
    send(producer, 160)
    one = make(auto_commit=False)
    assert one.assignment() == QUEUES
    two = make(auto_commit=False)
    eventually(lambda: len(one.assignment()) == 4, "one gave half of its queues up")
    assert sorted(one.assignment() + two.assignment()) == QUEUES
    got = [polled(one, 80), polled(two, 80)]
    assert sorted(got[0] + got[1]) == list(range(160))
    one.commit()
    two.commit()
    one.close()
    eventually(lambda: two.assignment() == QUEUES, "two has all of them")
    send(producer, 80, start=160)
    assert sorted(polled(two, 80)) == list(range(160, 240))


@pytest.mark.parametrize("allocation", ["avg", "avg_by_circle", "consistent_hash"])
def test_every_queue_has_one_owner_whatever_the_strategy(
    producer: Producer, make: Make, allocation: str
) -> None:
    send(producer, 8)
    members = [make(allocation=allocation) for _ in range(3)]

    def owners() -> list[MessageQueue]:
        return sorted(queue for member in members for queue in member.assignment())

    eventually(lambda: owners() == QUEUES, "each queue has one owner")


def test_what_was_polled_and_not_committed_comes_again_to_the_next_owner(
    producer: Producer, make: Make
) -> None:
    send(producer, 80)
    one = make(auto_commit=False)
    polled(one, 80)
    two = make(auto_commit=False)
    eventually(lambda: len(one.assignment()) == 4, "one gave half of its queues up")
    moved = two.assignment()
    assert sorted(polled(two, 40)) == [n for n in range(80) if QUEUES[n % 8] in moved]
    one.commit()  # what is no longer its own is left to the new owner
    assert all(one.committed(queue) == (0 if queue in moved else 10) for queue in QUEUES)
    with pytest.raises(StateError, match="not assigned to this member"):
        one.commit({moved[0]: 10, one.assignment()[0]: 5})
    assert one.committed(moved[0]) == 0
    assert one.committed(one.assignment()[0]) == 5


def test_a_revoked_queue_does_not_take_its_new_owners_commit_back(
    producer: Producer, make: Make
) -> None:
    send(producer, 80)
    one = make(auto_commit_interval_ms=86_400_000)  # only at the release
    assert len(polled(one, 40)) >= 40
    one.poll(0)
    send(producer, 80, start=80)
    ahead = PullConsumer("g", name_servers=one.name_servers[0])
    with ahead:
        end = ahead.max_offset(QUEUES[0])
        ahead.update_consume_offset(QUEUES[0], end)
        one.close()
        assert ahead.fetch_consume_offset(QUEUES[0], from_store=True) == end
        done = [ahead.fetch_consume_offset(queue, from_store=True) for queue in QUEUES[1:]]
        assert sum(offset or 0 for offset in done) > 0


def test_auto_commit_covers_what_pollers_came_back_from(producer: Producer, make: Make) -> None:
    send(producer, 16)
    consumer = make(auto_commit_interval_ms=1)
    first = consumer.poll(1_000)
    second = consumer.poll(1_000)
    eventually(
        lambda: consumer.committed(first.message_queue) == first.next_offset, "the first batch"
    )
    # The second is in our hands: however often the timer runs, it is not committed, nor is it
    # when we leave.
    send(producer, 8, start=16)
    third = consumer.poll(1_000)
    eventually(
        lambda: consumer.committed(second.message_queue) == second.next_offset, "the second batch"
    )
    assert consumer.committed(third.message_queue) == 0
    consumer.close()
    with PullConsumer("g", name_servers=consumer.name_servers[0]) as other:
        assert other.fetch_consume_offset(third.message_queue) == 0


def test_a_thread_that_ended_with_a_batch_holds_its_commit_and_is_told_of(
    producer: Producer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, 8)
    consumer = make(auto_commit_interval_ms=1)
    taken = []
    worker = threading.Thread(target=lambda: taken.append(consumer.poll(1_000)), name="worker-7")
    worker.start()
    worker.join(DEADLINE_S)
    polled(consumer, 7)
    consumer.poll(0)
    eventually(lambda: "thread worker-7 ended without" in caplog.text, "the warning")
    queue = taken[0].message_queue
    eventually(lambda: sum(offset or 0 for offset in stored(consumer)) == 7, "the others")
    assert consumer.committed(queue) == 0
    consumer.commit()
    assert consumer.committed(queue) == 1


def test_many_threads_poll_one_consumer(producer: Producer, make: Make) -> None:
    send(producer, 800)
    consumer = make(poll_batch_size=5, auto_commit_interval_ms=1)
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def work() -> None:
        while sum(seen.values()) < 800:
            numbers = [int(bytes(message.body)) for message in consumer.poll(10)]
            with lock:
                seen.update(numbers)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result(DEADLINE_S)
        for future in [pool.submit(consumer.poll, 0) for _ in range(4)]:
            future.result(DEADLINE_S)
    assert seen == Counter(range(800))


def test_seek_goes_either_way_and_forgets_what_was_buffered(producer: Producer, make: Make) -> None:
    send(producer, 160)
    consumer = make(None, auto_commit=False)
    consumer.assign([QUEUES[3]])
    assert polled(consumer, 20) == list(range(3, 160, 8))
    consumer.seek(QUEUES[3], 18)
    assert polled(consumer, 2) == [147, 155]
    consumer.seek_to_begin(QUEUES[3])
    assert consumer.position(QUEUES[3]) == 0
    assert polled(consumer, 20) == list(range(3, 160, 8))
    consumer.seek_to_begin(QUEUES[3])
    consumer.seek_to_end(QUEUES[3])
    assert consumer.position(QUEUES[3]) == 20
    send(producer, 8, start=160)
    assert polled(consumer, 1) == [163]
    assert consumer.committed(QUEUES[3]) == 0, "its start"
    with pytest.raises(ConfigError, match=r"the broker has 0\.\.21"):
        consumer.seek(QUEUES[3], 22)
    for odd in (-1, True, 1.5, "5"):
        with pytest.raises(ConfigError, match="expected 0 or more"):
            consumer.seek(QUEUES[3], cast("int", odd))
    with pytest.raises(StateError, match="not assigned to this member"):
        consumer.seek(QUEUES[0], 0)


def test_a_seek_is_stored_at_the_close_too_where_commits_are_automatic(
    producer: Producer, make: Make
) -> None:
    send(producer, 80)
    consumer = make(auto_commit_interval_ms=86_400_000)
    polled(consumer, 80)
    consumer.commit()
    consumer.seek(QUEUES[2], 4)
    consumer.close()
    assert sorted(polled(make(), 6)) == list(range(34, 80, 8))


def test_a_paused_queue_gives_nothing_until_it_is_resumed(producer: Producer, make: Make) -> None:
    send(producer, 8)
    consumer = make()
    consumer.pause(QUEUES[:7])
    assert polled(consumer, 1) == [7]
    send(producer, 8, start=8)
    assert polled(consumer, 1) == [15]
    assert not consumer.poll(0)
    consumer.resume(QUEUES[:7])
    assert sorted(polled(consumer, 14)) == [n for n in range(16) if n % 8 != 7]
    with pytest.raises(StateError):
        consumer.pause([MessageQueue("orders", "b", 8)])


def test_offsets_by_time_and_what_a_topic_has(producer: Producer, make: Make) -> None:
    send(producer, 24)
    middle_ms = int(time.time() * 1000) + 2
    eventually(lambda: time.time() * 1000 > middle_ms + 1, "the next millisecond")
    send(producer, 8, start=24)
    consumer = make(None)
    assert consumer.fetch_message_queues("orders") == QUEUES
    assert consumer.offset_for_timestamp(QUEUES[0], middle_ms) == 3
    assert consumer.committed(QUEUES[0]) is None
    consumer.assign(QUEUES)
    for queue in QUEUES:
        consumer.seek(queue, consumer.offset_for_timestamp(queue, middle_ms))
    assert sorted(polled(consumer, 8)) == list(range(24, 32))
    with pytest.raises(RouteError, match="create it first"):
        consumer.fetch_message_queues("nowhere")


@BY_SETTING
def test_where_a_new_group_begins_is_a_setting_and_stored_as_its_first_member_starts(
    producer: Producer, make: Make
) -> None:
    send(producer, 16)
    last = make(consume_from_where="last_offset", auto_commit=False)
    assert stored(last) == [2] * 8
    last.close()
    # From then on the group goes on there, whatever the setting of its next member.
    send(producer, 8, start=16)
    assert sorted(polled(make(), 8)) == list(range(16, 24))


def test_without_a_commit_nothing_but_the_start_is_stored_whatever_happens(
    producer: Producer, make: Make
) -> None:
    send(producer, 80)
    one = make(auto_commit=False)
    polled(one, 40)
    one.seek_to_begin(QUEUES[0])
    two = make(auto_commit=False)  # a hand-off there, and back
    eventually(lambda: len(one.assignment()) == 4, "one gave half of its queues up")
    two.poll(0)
    two.close()
    eventually(lambda: len(one.assignment()) == 8, "one has them all again")
    one.close()
    last = make(auto_commit=False)
    assert stored(last) == [0] * 8
    assert sorted(polled(last, 80)) == list(range(80))


@BY_SETTING
def test_a_new_group_may_begin_at_a_time(producer: Producer, make: Make) -> None:
    send(producer, 8)
    middle_ms = int(time.time() * 1000) + 2
    eventually(lambda: time.time() * 1000 > middle_ms + 1, "the next millisecond")
    send(producer, 8, start=8)
    consumer = make(consume_from_where="timestamp", consume_timestamp_ms=middle_ms)
    assert sorted(polled(consumer, 8)) == list(range(8, 16))


def test_a_condition_in_sql_is_refused_by_a_broker_without_it_and_nothing_changes(
    producer: Producer, make: Make
) -> None:
    send(producer, 8)
    consumer, assigned = make(), make(None)
    with pytest.raises(BrokerError, match="enablePropertyFilter=true"):
        consumer.subscribe("orders", sql="a > 5")
    assert len(polled(consumer, 8)) == 8
    with pytest.raises(BrokerError, match="enablePropertyFilter=true"):
        assigned.assign(QUEUES, sql="a > 5")
    assert assigned.assignment() == []
    with pytest.raises(ConfigError, match="not both"):
        consumer.subscribe("orders", "paid", sql="a > 5")


def test_a_tag_expression_filters_and_may_change(producer: Producer, make: Make) -> None:
    for number in range(40):
        producer.queues("orders")
        tag = ("Aa", "BB", "other")[number % 3]  # Aa and BB have one hash in Java
        producer.send(Message("orders", str(number).encode(), tags=tag), queue=QUEUES[0])
    consumer = make(expression="Aa", auto_commit=False)
    assert polled(consumer, 14) == list(range(0, 40, 3))
    eventually(lambda: consumer.position(QUEUES[0]) == 40, "the filtered tail is behind us")
    consumer.commit()
    assert consumer.committed(QUEUES[0]) == 40
    consumer.subscribe("orders", "other")
    consumer.seek_to_begin(QUEUES[0])
    assert polled(consumer, 13) == list(range(2, 40, 3))


def test_members_that_come_and_go_under_load_lose_nothing(producer: Producer, make: Make) -> None:
    send(producer, 8)
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def work(consumer: LitePullConsumer) -> None:
        for batch in consumer.batches():
            with lock:
                seen.update(int(bytes(message.body)) for message in batch)

    def start() -> tuple[LitePullConsumer, threading.Thread]:
        consumer = make(auto_commit_interval_ms=5, poll_batch_size=3)
        thread = threading.Thread(target=work, args=(consumer,))
        thread.start()
        return consumer, thread

    def leave(member: tuple[LitePullConsumer, threading.Thread]) -> None:
        member[0].close()
        member[1].join(DEADLINE_S)

    sent = 8
    members = [start()]
    for _ in range(8):
        members.append(start())
        send(producer, 160, start=sent)
        sent += 160
        leave(members.pop(0))
    eventually(lambda: len(seen) == sent, "every message was seen")
    last, thread = members[0]
    # What it may repeat is what was polled and not committed when its owner before left.
    eventually(lambda: sum(offset or 0 for offset in stored(last)) == sent, "all is committed")
    leave((last, thread))
    assert sorted(seen) == list(range(sent))


def test_every_broadcasting_member_gets_everything_and_goes_on_from_its_file(
    producer: Producer, make: Make, tmp_path: Path
) -> None:
    send(producer, 80)
    settings = {
        "message_model": "broadcasting",
        "local_offset_store_dir": str(tmp_path),
        "auto_commit": False,
    }
    one = make(instance_name="one", **settings)
    two = make(instance_name="two", **settings)
    assert one.assignment() == two.assignment() == QUEUES
    assert sorted(polled(one, 80)) == sorted(polled(two, 80)) == list(range(80))
    one.commit()
    two.commit({QUEUES[0]: 7})
    assert (one.committed(QUEUES[0]), two.committed(QUEUES[0])) == (10, 7)
    with pytest.raises(StateError, match="another running member"):
        make(instance_name="one", **settings)
    one.close()
    two.close()
    send(producer, 8, start=80)
    assert sorted(polled(make(instance_name="one", **settings), 8)) == list(range(80, 88))
    two = make(instance_name="two", **settings)
    assert sorted(polled(two, 81)) == again()
    with PullConsumer("g", name_servers=two.name_servers[0]) as other:
        assert other.fetch_consume_offset(QUEUES[0]) is None  # nothing is at the broker


def again() -> list[int]:
    """Offsets two has not committed: all of seven queues, and queue 0 from its offset 7 on."""
    return [number for number in range(88) if number % 8 or number >= 56]


def test_offsets_that_cannot_be_written_are_told_and_written_later(
    producer: Producer, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(producer, 80)
    consumer = make(
        message_model="broadcasting", local_offset_store_dir=str(tmp_path), auto_commit=False
    )
    polled(consumer, 80)
    with monkeypatch.context() as broken:

        def fail(file: OffsetFile, offsets: object) -> None:
            raise OSError("a test's own failure")

        broken.setattr(OffsetFile, "write", fail)
        with pytest.raises(StoreError, match="a test's own failure"):
            consumer.commit()
    assert stored(consumer) == [0] * 8
    consumer.commit()
    assert stored(consumer) == [10] * 8


class SlowStore:
    """A user's own offset store, whose first write behind the start waits for `gate`."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.writing, self.gate, self.written = (threading.Event() for _ in range(3))

    def open(self) -> None: ...

    def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
        return self.read(group, queue)

    def read(self, group: str, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def write(
        self, group: str, queue: MessageQueue, offset: int, epoch: int, *, is_reset: bool = False
    ) -> None:
        is_first = bool(offset) and not self.writing.is_set()
        if is_first:
            self.writing.set()
            assert self.gate.wait(DEADLINE_S)
        self.offsets[queue] = offset
        if is_first:
            self.written.set()


def test_a_commit_that_is_given_up_does_not_overtake_the_next_one(
    producer: Producer, make: Make
) -> None:
    """Its thread writes on, and would move the store back behind the later commit."""
    send(producer, 80)
    store = SlowStore()
    consumer = make(ordered=True, auto_commit=False, offset_store=store)

    async def commit() -> None:
        batch = await consumer.apoll(40_000)
        place = batch.message_queue
        given_up = asyncio.ensure_future(consumer.acommit({place: batch.offsets()[0] + 1}))
        await asyncio.to_thread(store.writing.wait)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        later = asyncio.ensure_future(consumer.acommit({place: batch.next_offset}))
        # The I/O thread begins it before this, and a store that is free writes it at once.
        await asyncio.wait((later,), timeout=0.5)
        store.gate.set()
        await later
        await asyncio.to_thread(store.written.wait)
        assert store.offsets[place] == batch.next_offset > batch.offsets()[0] + 1

    asyncio.run(commit())


KILLED = """
import sys
from ordermq import LitePullConsumer

consumer = LitePullConsumer("g", name_servers=sys.argv[1], auto_commit=False)
consumer.subscribe("orders")
consumer.start()
batch = consumer.poll(20_000)
consumer.commit({batch.message_queue: batch.offsets()[0] + 1})
print(batch.message_queue.queue_id, len(consumer.assignment()), flush=True)
sys.stdin.read()
"""


def test_a_member_that_is_killed_leaves_its_queues_and_what_it_did_not_commit(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send(producer, 80)
    make().close()  # the group begins at the first offset
    command = [sys.executable, "-c", KILLED, broker.name_servers]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            committed, held = map(int, process.stdout.readline().split())
            one = make()
            eventually(lambda: len(one.assignment()) == 4, "half of the queues")
        finally:
            process.kill()
    assert held == 8
    assert sorted(polled(one, 79)) == [number for number in range(80) if number != committed]
    assert one.assignment() == QUEUES


def test_who_has_no_topic_takes_no_share(producer: Producer, make: Make) -> None:
    send(producer, 8)
    idle, one = make(None), make()
    assert one.assignment() == QUEUES
    idle.subscribe("orders")
    eventually(lambda: len(one.assignment()) == 4, "one gave half of its queues up")
    idle.unsubscribe("orders")
    assert idle.assignment() == []
    eventually(lambda: one.assignment() == QUEUES, "one has all of them again")


def test_topics_come_and_go_while_it_runs(producer: Producer, make: Make) -> None:
    send(producer, 8)
    producer.send(Message("returns", b"100"))
    consumer = make(None)
    consumer.subscribe("orders")
    assert len(polled(consumer, 8)) == 8
    consumer.subscribe("returns")
    assert polled(consumer, 1) == [100]
    consumer.unsubscribe("orders")
    assert {queue.topic for queue in consumer.assignment()} == {"returns"}
    with pytest.raises(StateError, match="not both"):
        consumer.assign(QUEUES)


def test_assigned_queues_are_exactly_those_and_nobody_shares_them(
    producer: Producer, make: Make
) -> None:
    send(producer, 16)
    one, two = make(None), make(None)
    one.assign(QUEUES[:2])
    two.assign(QUEUES[1:3])
    assert (one.assignment(), two.assignment()) == (QUEUES[:2], QUEUES[1:3])
    assert make().assignment() == QUEUES  # who subscribes shares with those who subscribe
    assert sorted(polled(one, 4)) == [0, 1, 8, 9]
    assert sorted(polled(two, 4)) == [1, 2, 9, 10]
    one.assign(QUEUES[1:2])
    assert one.assignment() == QUEUES[1:2]
    with pytest.raises(ConfigError, match="no such queue"):
        one.assign([MessageQueue("orders", "b", 8)])
    with pytest.raises(ConfigError, match="at least one"):
        one.assign([])
    with pytest.raises(RouteError, match="create it first"):
        one.assign([MessageQueue("nowhere", "b", 0)])
    with pytest.raises(StateError, match="not both"):
        one.subscribe("orders")
    assert one.assignment() == QUEUES[1:2]


def test_for_and_async_for_iterate_over_batches_and_end_when_nothing_comes(
    producer: Producer, make: Make
) -> None:
    send(producer, 80)
    consumer = make(poll_batch_size=7)
    first = [int(bytes(m.body)) for batch in consumer.batches(timeout_ms=1_500) for m in batch]
    assert sorted(first) == list(range(80))
    send(producer, 80, start=80)

    async def iterate() -> list[int]:
        got = []
        async for batch in consumer.batches(timeout_ms=1_500):
            got += [int(bytes(message.body)) for message in batch]
            await consumer.acommit()
        return got

    assert sorted(asyncio.run(iterate())) == list(range(80, 160))
    assert stored(consumer) == [20] * 8


def test_a_waiting_loop_ends_when_the_consumer_is_closed(producer: Producer, make: Make) -> None:
    send(producer, 8)
    consumer = make()

    async def iterate() -> int:
        closing = None
        count = 0
        async for batch in consumer.batches():
            count += len(batch)
            if count == 8:
                closing = asyncio.create_task(asyncio.to_thread(consumer.close))
        assert closing is not None
        await closing
        return count

    assert asyncio.run(asyncio.wait_for(iterate(), DEADLINE_S)) == 8
    assert list(consumer.batches()) == []
    with pytest.raises(StateError, match="not running"):
        consumer.poll(0)


def test_an_abandoned_wait_takes_no_message_along(producer: Producer, make: Make) -> None:
    send(producer, 8)
    consumer = make()
    polled(consumer, 8)

    async def give_up_waiting() -> None:
        waiting = [asyncio.create_task(consumer.apoll(60_000)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not await consumer.apoll(0)

    asyncio.run(give_up_waiting())
    send(producer, 8, start=8)
    assert sorted(polled(consumer, 8)) == list(range(8, 16))


def test_full_buffers_stop_the_pulls_until_polls_make_room(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send(producer, 1_600)
    consumer = make(pull_batch_size=10, pull_threshold_for_queue=20, pull_threshold_for_all=90)
    held = [cast(PolledQueue, consumer._live().control.find(queue)) for queue in QUEUES]
    config = consumer.config.lite.for_fetching()

    def is_full() -> bool:
        buffer = consumer._buffer
        with buffer.lock:
            return not any(buffer.room.flow(queue, config) is Flow.PULL for queue in held)

    eventually(is_full, "no queue may pull")
    counts = [queue.process_queue.pending_count for queue in held]
    assert max(counts) <= 30  # the threshold, and the answer to one pull
    assert 90 < sum(counts) <= 90 + 8 * 10
    assert sorted(polled(consumer, 1_600)) == list(range(1_600))


def test_columns_come_without_an_object_a_message(producer: Producer, make: Make) -> None:
    producer.queues("orders")
    for number in range(100):
        message = Message("orders", b"%03d" % number, tags="paid", keys=[f"k{number}"])
        producer.send(message, queue=QUEUES[0])
    consumer = make(pull_batch_size=32)
    tables = []
    for batch in consumer.batches(timeout_ms=1_500):
        assert batch.to_arrow(["offset"]).column_names == ["offset"]
        tables.append(batch.to_arrow())
    assert sum(table.num_rows for table in tables) == 100
    assert [v for t in tables for v in t["offset"].to_pylist()] == list(range(100))
    assert [v for t in tables for v in t["body"].to_pylist()] == [b"%03d" % n for n in range(100)]
    consumer.seek(QUEUES[0], 90)
    frame = consumer.poll(1_000).to_pandas(["offset", "keys", "tags", "topic"])
    assert list(frame["keys"]) == [f"k{n}" for n in range(90, 100)]
    assert set(frame["tags"]) == {"paid"}
    assert set(frame["topic"]) == {"orders"}
    empty = consumer.poll(0).to_arrow(["offset", "body"])
    assert (empty.num_rows, empty.column_names) == (0, ["offset", "body"])
    with pytest.raises(ConfigError, match="no column 'price'"):
        consumer.poll(0).to_arrow(["price"])


def test_a_batch_cut_within_a_pull_has_its_own_rows_as_columns(
    producer: Producer, make: Make
) -> None:
    send(producer, 8 * 32)
    consumer = make(None, pull_batch_size=32, poll_batch_size=5)
    consumer.assign(QUEUES[:1])
    offsets = [b.to_arrow(["offset"])["offset"].to_pylist() for b in consumer.batches(200)]
    assert [len(part) for part in offsets] == [5] * 6 + [2]
    assert [offset for part in offsets for offset in part] == list(range(32))


def test_callbacks_hear_of_queues_and_may_seek_before_the_first_pull(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send(producer, 80)
    heard: list[tuple[str, MessageQueue]] = []

    def begin_at_eight(queue: MessageQueue) -> None:
        heard.append(("assigned", queue))
        consumer.seek(queue, 8)

    consumer = LitePullConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        on_assigned=begin_at_eight,
        on_revoked=lambda queue: heard.append(("revoked", queue)),
    )
    consumer.subscribe("orders")  # so that queues are assigned before `start` returns
    with consumer:
        assert sorted(polled(consumer, 16)) == list(range(64, 80))
    assert sorted(heard) == [(what, q) for what in ("assigned", "revoked") for q in QUEUES]


def test_a_callback_that_raises_is_told_and_the_queue_goes_on(
    producer: Producer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, 8)

    def fail(queue: MessageQueue) -> None:
        raise ValueError("a test's own failure")

    consumer = make(on_assigned=fail)
    assert sorted(polled(consumer, 8)) == list(range(8))
    assert "a test's own failure" in caplog.text
    assert consumer.statistics["callback_errors"] == 8


def test_a_topic_whose_queues_change_is_told_and_shared_anew(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send(producer, 8)
    consumer = make(route_interval_ms=10)
    heard: list[tuple[str, list[MessageQueue]]] = []
    consumer.on_message_queues_changed(
        "orders", lambda topic, queues: heard.append((topic, queues))
    )
    client = producer._live()
    ext = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "10",
        "writeQueueNums": "10",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    more = [*QUEUES, MessageQueue("orders", "b", 8), MessageQueue("orders", "b", 9)]
    ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    eventually(lambda: heard == [("orders", more)], "the listener heard of ten queues")
    eventually(lambda: consumer.assignment() == more, "ten queues are held")


def ask(client: Any, code: RequestCode, ext: dict[str, str]) -> None:
    from ordermq.remoting.command import Command

    async def work() -> None:
        address = client.routes.master_of("b")
        answer = await client.connections.request(address, Command.request(code, ext), 3_000)
        assert answer.code == 0, answer.remark

    client.runtime.call(work())


def test_a_topic_made_after_the_start_is_found(producer: Producer, make: Make) -> None:
    consumer = make()
    assert consumer.assignment() == []
    send(producer, 8)
    assert sorted(polled(consumer, 8)) == list(range(8))


def test_a_broker_that_dies_and_comes_back_is_met_again(
    tmp_path: Path, broker_config: BrokerConfig
) -> None:
    first = EmbeddedBroker(tmp_path / "orders.db", config=broker_config)
    first.start()
    port = int(first.name_servers.rsplit(":", 1)[1])
    settings = {"consume_from_where": "first_offset", "pull_delay_on_error_ms": 10}
    with (
        Producer("p", name_servers=first.name_servers, default_topic_queue_nums=8) as producer,
        LitePullConsumer("g", name_servers=first.name_servers, **settings) as consumer,
    ):
        send(producer, 80)
        consumer.subscribe("orders")
        got = polled(consumer, 80)
        consumer.commit()
        first.close()
        with pytest.raises(RemotingError):
            consumer.commit({QUEUES[0]: 1})
        assert not consumer.poll(0)
        with EmbeddedBroker(tmp_path / "orders.db", config=broker_config, port=port):
            send(producer, 80, start=80)
            got += polled(consumer, 80)
            consumer.commit()
            assert stored(consumer) == [20] * 8
            consumer.close()
    assert sorted(got) == list(range(160))


def test_an_admin_tool_is_told_what_it_holds_and_may_reset_it(
    producer: Producer, broker: EmbeddedBroker, make: Make
) -> None:
    send(producer, 80)
    consumer = make(auto_commit=False, poll_batch_size=4)
    batch = consumer.poll(1_000)
    ext = {"consumerGroup": "g", "clientId": consumer.client_id, "jstackEnable": "true"}
    with WireClient(broker.port) as tool:

        def told() -> dict[str, Any]:
            answer = tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert answer.code == 0, answer.remark
            return queue_table(answer.body)

        eventually(
            lambda: sum(row["cachedMsgCount"] for row in told()["mqTable"].values()) == 76,
            "all but the batch in our hands is buffered",
        )
        info = told()
        rows = {json.loads(queue)["queueId"]: row for queue, row in info["mqTable"].items()}
        row = rows[batch.message_queue.queue_id]
        assert (row["cachedMsgMinOffset"], row["cachedMsgMaxOffset"]) == (4, 9)
        assert (row["transactionMsgMinOffset"], row["transactionMsgMaxOffset"]) == (0, 3)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert info["userConsumerInfo"]["polled"] == "4"
        assert info["statusTable"]["orders"]["pullTPS"] > 0
        assert "test_an_admin_tool_is_told" in info["jstack"]
        polled(consumer, 76)
        reset = {"group": "g", "topic": "orders", "timestamp": "0", "isForce": "true"}
        assert tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
        assert sorted(polled(consumer, 80)) == list(range(80))
        ext = {"consumerGroup": "another", "clientId": consumer.client_id}
        assert tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext).code != 0


def test_time_runs_on_the_clock_it_is_given(producer: Producer, make: Make) -> None:
    send(producer, 8)
    clock = ManualClock()
    consumer = make(clock=clock, auto_commit_interval_ms=5_000)
    polled(consumer, 8)
    # With its first messages the start of a queue is stored, or by now what is done of them.
    eventually(lambda: None not in stored(consumer), "the group has begun")
    send(producer, 8, start=8)
    polled(consumer, 8)
    consumer.poll(0)
    assert max(offset or 0 for offset in stored(consumer)) < 2

    def committed() -> bool:
        clock.advance(5_000)
        return stored(consumer) == [2] * 8

    eventually(committed, "the interval's commit")


def test_a_consumer_without_a_name_server_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    consumer = LitePullConsumer("g", name_servers=f"127.0.0.1:{port}")
    with pytest.raises(RouteError, match="no name server answers"):
        consumer.start()
    assert consumer.assignment() == []
    consumer.close()


def test_members_that_subscribe_or_consume_otherwise_are_told(
    broker: EmbeddedBroker, producer: Producer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    send(producer, 8)

    def is_told(*words: str) -> bool:
        return any(all(word in text for word in words) for text in caplog.messages)

    one, two = make(), make()
    two.poll(10)
    assert not is_told("subscribe and listen alike")
    two.subscribe("orders", "paid")
    for other in (one, two):
        eventually(
            lambda other=other: is_told(other.client_id, "'paid'", "subscribe and listen alike"),
            f"a warning about {other.client_id}",
        )
        eventually(
            lambda other=other: "'paid'" in str(other.health().reasons), "its health says the same"
        )
    two.close()
    eventually(lambda: one.health().is_ready, "all members subscribe alike")
    push = PushConsumer(one.group, name_servers=broker.name_servers)
    push.subscribe("orders")
    push.orderly(lambda messages, context: None)
    with push:
        for member, words in (
            (push, "listening is concurrently here and orderly"),
            (one, "listening is orderly here and concurrently"),
        ):
            eventually(lambda member=member, words=words: is_told(member.client_id, words), words)


def test_wrong_arguments_and_states_say_what_is_wrong(
    broker: EmbeddedBroker, producer: Producer, make: Make
) -> None:
    send(producer, 8)
    consumer = make()
    with pytest.raises(ConfigError, match="expected 0 or more"):
        consumer.poll(-1)
    with pytest.raises(ConfigError, match="offset -1"):
        consumer.commit({QUEUES[0]: -1})
    idle = LitePullConsumer("g", name_servers=broker.name_servers)
    for call in (consumer.pause, consumer.resume, idle.assign):
        with pytest.raises(ConfigError, match=r"expected a list of queues; give \[queue\]"):
            call(QUEUES[0])
        with pytest.raises(ConfigError, match=r"^queue 'orders': expected a MessageQueue, one of"):
            call(["orders"])
    for take in (
        consumer.committed,
        consumer.position,
        consumer.seek_to_begin,
        consumer.seek_to_end,
        partial(consumer.seek, offset=0),
        partial(consumer.offset_for_timestamp, timestamp_ms=0),
        lambda queue: consumer.commit({queue: 0}),
    ):
        with pytest.raises(ConfigError, match=r"^queue 0: .*one of assignment\(\) or fetch_me"):
            take(0)
    with pytest.raises(StateError, match="may be called only once"):
        consumer.start()
    with pytest.raises(StateError, match="not assigned to this member"):
        consumer.position(MessageQueue("orders", "b", 8))
    with pytest.raises(ConfigError, match="did you mean 'auto_commit'"):
        LitePullConsumer("g", name_servers=broker.name_servers, autocommit=False)
    with pytest.raises(ConfigError, match="every idle pull times out"):
        LitePullConsumer("g", name_servers=broker.name_servers, broker_suspend_ms=30_000)
    assert idle.assignment() == []
    for call in (idle.poll, idle.commit, lambda: idle.committed(QUEUES[0])):
        with pytest.raises(StateError, match="not running"):
            call()
    idle.close()
    consumer.close()
    consumer.close()
    assert consumer.assignment() == []


@pytest.mark.parametrize("receive", ["poll", "batches"])
def test_ctrl_c_in_a_wait_shows_the_callers_lines_only(
    broker: EmbeddedBroker, receive: str
) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    consumer = LitePullConsumer("g", name_servers=broker.name_servers)
    consumer.subscribe("orders")
    try:
        with pytest.raises(KeyboardInterrupt) as caught, consumer:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            if receive == "poll":
                consumer.poll("60s")
            else:
                next(consumer.batches())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lines = traceback.format_exception(caught.value)
    assert sum("/ordermq/consumer/" in line for line in lines) <= 2, lines
