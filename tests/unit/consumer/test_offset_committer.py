"""Where a queue begins, and commits under way (docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq.clock import ManualClock
from ordermq.config import ConsumeFromWhere, RebalanceConfig
from ordermq.consumer.offsets.offset_committer import BrokerOffsets, OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim, Lease, QueueCallbacks
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.errors import BrokerError, Fenced, RequestTimeout
from ordermq.events import NoHistory
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode

from .batches import QUEUE, batch

NOON_MS = 1_700_000_000_077
LEASE = Lease(7, 2_000_000, True)
PLAIN = Lease(7, 2_000_000, False)  # of a broker without lock epochs


class FakeApi:
    """A broker's offsets; `gate` holds commits back."""

    def __init__(self) -> None:
        self.stored: int | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.denied: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def query_offset(self, address: str, group: str, queue: MessageQueue) -> int | None:
        self.calls.append(("query",))
        return self.stored

    async def update_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        epoch: int = 0,
        reset: bool = False,
    ) -> None:
        self.calls.append(("commit", offset, epoch))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.stored = offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        if self.denied is not None:
            raise BrokerError("a test's own refusal", response_code=self.denied)
        return 3

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        return 9

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        return timestamp_ms


def offsets_of(api: FakeApi, **settings: Any) -> OffsetCommitter:
    client = SimpleNamespace(
        api=api,
        clock=ManualClock(),
        routes=SimpleNamespace(master_of=lambda name: "127.0.0.1:1"),
        report_failure=lambda broker_name, action, error: None,
    )
    return OffsetCommitter(
        client,  # type: ignore[arg-type]
        RebalanceConfig(**settings),
        BrokerOffsets(client, "G"),  # type: ignore[arg-type]
        EventRecorder(NoHistory(), "G"),
        ConsumerStatistics(),
    )


def assigned_with_done(*done: int) -> AssignedQueue:
    def ignore(*_: object) -> None:
        return None

    assigned = AssignedQueue(
        QUEUE,
        "G",
        LEASE,
        0,
        QueueCallbacks(on_lease_lost=ignore, on_drained=ignore, on_room=ignore),
    )
    finish(assigned, *done)
    return assigned


def finish(assigned: AssignedQueue, *done: int) -> None:
    assigned.accept(assigned.generation, batch(done), done[-1] + 1)
    claim = assigned.begin_batch(32, 1_000_000)
    assert isinstance(claim, BatchClaim)
    assert assigned.end_batch(claim, len(done), 1_000_000)


class RacyApi(FakeApi):
    """A broker as RocketMQ is: a table made for the first offset takes the place of another."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[tuple[str, str], dict[int, int]] = {}

    async def query_offset(self, address: str, group: str, queue: MessageQueue) -> int | None:
        return self.tables.get((queue.broker_name, queue.topic), {}).get(queue.queue_id)

    async def update_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        epoch: int = 0,
        reset: bool = False,
    ) -> None:
        place = (queue.broker_name, queue.topic)
        table = self.tables.get(place, {})
        await asyncio.sleep(0)  # the other threads of the broker
        table[queue.queue_id] = offset
        self.tables[place] = table


def test_first_offsets_of_a_topic_do_not_lose_each_other() -> None:
    queues = [MessageQueue("orders", name, n) for name in ("a", "b") for n in range(4)]

    async def work() -> None:
        api = RacyApi()
        offsets = offsets_of(api, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
        await asyncio.gather(*(offsets.start_offset(queue, PLAIN) for queue in queues))
        stored = dict.fromkeys(range(4), 9)
        assert api.tables == {("a", "orders"): stored, ("b", "orders"): stored}

    asyncio.run(work())


def test_first_commits_of_a_topic_do_not_lose_each_other() -> None:
    """RocketMQ says 0 for a queue of a new group, so that nothing is stored when it begins."""
    both = [assigned_with_done(0, 1), assigned_with_done(0, 1, 2)]
    both[1].queue = MessageQueue(QUEUE.topic, QUEUE.broker_name, QUEUE.queue_id + 1)

    async def work() -> None:
        api = RacyApi()
        offsets = offsets_of(api)
        assert all(await asyncio.gather(*map(offsets.commit, both)))
        stored = {QUEUE.queue_id: 2, QUEUE.queue_id + 1: 3}
        assert api.tables == {(QUEUE.broker_name, QUEUE.topic): stored}

    asyncio.run(work())


def test_a_stored_offset_is_where_the_group_goes_on_even_at_zero() -> None:
    async def work() -> None:
        for stored in (0, 5):
            api = FakeApi()
            api.stored = stored
            assert await offsets_of(api).start_offset(QUEUE, LEASE) == stored
            assert api.calls == [("query",)]

    asyncio.run(work())


def test_without_one_the_setting_decides_and_its_answer_is_committed_at_once() -> None:
    async def work() -> None:
        for where, expected in (
            (ConsumeFromWhere.LAST_OFFSET, 9),
            (ConsumeFromWhere.FIRST_OFFSET, 3),
            (ConsumeFromWhere.TIMESTAMP, NOON_MS),
        ):
            api = FakeApi()
            offsets = offsets_of(api, consume_from_where=where, consume_timestamp_ms=NOON_MS)
            assert await offsets.start_offset(QUEUE, LEASE) == expected
            assert api.calls == [("query",), ("commit", expected, 7)]

    asyncio.run(work())


def test_a_time_that_is_not_given_is_half_an_hour_ago() -> None:
    offsets = offsets_of(FakeApi(), consume_from_where=ConsumeFromWhere.TIMESTAMP)
    half_an_hour_ago = ManualClock().wall_ms() - 1_800_000
    assert asyncio.run(offsets.start_offset(QUEUE, LEASE)) == half_an_hour_ago


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (ConsumeFromWhere.LAST_OFFSET, 0),
        (ConsumeFromWhere.FIRST_OFFSET, 0),
        (ConsumeFromWhere.TIMESTAMP, 9),
    ],
)
def test_a_retry_topic_begins_at_its_beginning_but_for_a_time_at_its_end(
    where: ConsumeFromWhere, expected: int
) -> None:
    retry = MessageQueue("%RETRY%G", "broker-a", 0)
    offsets = offsets_of(FakeApi(), consume_from_where=where, consume_timestamp_ms=NOON_MS)
    assert asyncio.run(offsets.start_offset(retry, PLAIN)) == expected


def test_commits_of_one_queue_never_overlap() -> None:
    async def work() -> None:
        api, assigned = FakeApi(), assigned_with_done(0)
        offsets = offsets_of(api)
        api.gate.clear()
        first = asyncio.create_task(offsets.commit(assigned))
        await asyncio.sleep(0)
        finish(assigned, 1)
        second = asyncio.create_task(offsets.commit(assigned))
        for _ in range(5):
            await asyncio.sleep(0)
        assert api.calls == [("commit", 1, 7)]
        api.gate.set()
        assert await first
        assert await second
        assert api.calls == [("commit", 1, 7), ("commit", 2, 7)]
        assert assigned.committed_offset == 2
        assert await offsets.commit(assigned)
        assert len(api.calls) == 2, "nothing new"

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_queue_that_begins_anew_reads_its_offset_behind_a_commit_under_way() -> None:
    async def work() -> None:
        api, assigned = FakeApi(), assigned_with_done(0, 1, 2)
        api.stored = 0
        offsets = offsets_of(api)
        api.gate.clear()
        commit = asyncio.create_task(offsets.commit(assigned))
        await asyncio.sleep(0)
        assigned.lose_lease("the broker did not answer")
        start = asyncio.create_task(offsets.start_offset(QUEUE, LEASE))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not start.done()
        api.gate.set()
        await commit
        assert await start == 3

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_failed_commit_is_left_for_the_next_and_a_fenced_one_ends_the_lease() -> None:
    async def work() -> None:
        api, assigned = FakeApi(), assigned_with_done(0)
        offsets = offsets_of(api)
        api.error = RequestTimeout("late")
        assert not await offsets.commit(assigned)
        assert assigned.uncommitted(1_000_000) == (1, LEASE)
        api.error = Fenced("a newer owner")
        assert not await offsets.commit(assigned)
        assert assigned.lease is None

    asyncio.run(asyncio.wait_for(work(), 10))


def test_an_account_that_may_not_ask_for_the_oldest_offset_begins_at_0() -> None:
    api = FakeApi()
    api.denied = ResponseCode.NO_PERMISSION
    offsets = offsets_of(api, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    assert asyncio.run(offsets.start_offset(QUEUE, LEASE)) == 0
    api.stored, api.denied = None, ResponseCode.SYSTEM_BUSY
    with pytest.raises(BrokerError):
        asyncio.run(offsets.start_offset(QUEUE, LEASE))
