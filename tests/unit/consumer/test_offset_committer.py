"""A queue's first offset, and commits under way (docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq.clock import ManualClock
from ordermq.config import ConsumeFromWhere, RebalanceConfig
from ordermq.consumer.offsets.offset_committer import BrokerOffsets, OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
)
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder, MemberContext
from ordermq.errors import BrokerError, Fenced, LockLost, RequestTimeout, RouteError
from ordermq.events import NoHistory
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import runtime_of
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader

from .batches import QUEUE, batch
from .claims import begin_batch

NOON_MS = 1_700_000_000_077
LEASE = Lease(7, 2_000_000, True)
PLAIN = Lease(7, 2_000_000, False)  # of a broker without lock epochs


class FakeApi:
    """A broker's offsets; `gate` holds commits back."""

    def __init__(self) -> None:
        self.stored: int | None = None
        self.is_young = False  # nothing is stored, and 0 is answered all the same
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.denied: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.master = "127.0.0.1:1"
        self.elected = ""  # the master, which the client hears of with the next answer
        self.late: Callable[[], None] | None = None  # it hears of it only if it asks
        self.tells_ms: Callable[[], int] | None = None  # the broker's clock

    def _answer(self) -> None:
        if self.late is None:
            self._elect()
        else:
            self.late()

    def _elect(self) -> None:
        self.master, self.elected = self.elected or self.master, ""

    async def refresh_soon(self, topic: str) -> None:
        self._elect()

    async def query_offset(
        self, address: str, group: str, queue: MessageQueue, *, stored_only: bool = True
    ) -> int | None:
        self.calls.append(("query",))
        self._answer()
        return 0 if self.stored is None and self.is_young and not stored_only else self.stored

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
        self._answer()
        if self.error is not None:
            raise self.error
        self.stored = offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        if self.denied is not None:
            raise BrokerError("a test's own refusal", response_code=self.denied)
        return 3

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        return 9

    async def runtime_info(self, address: str) -> dict[str, str]:
        if self.tells_ms is None:
            raise BrokerError("a test's own refusal", response_code=ResponseCode.NO_PERMISSION)
        return {"bootTimestamp": str(self.tells_ms() - 7_000), "runtime": runtime_of(7_000)}

    # A message's store time is its offset.

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        return timestamp_ms

    async def pull(
        self, address: str, header: PullHeader, timeout_ms: int
    ) -> tuple[int, PullReplyHeader, bytes]:
        following = header.queue_offset + 1
        return ResponseCode.SUCCESS, PullReplyHeader(following, 3, 1 << 62), b""

    def batch(self, queue: Any, body: bytes, tags: Any, offset: int, following: int) -> Any:
        return [SimpleNamespace(store_timestamp_ms=offset)]


def start_at(where: ConsumeFromWhere) -> dict[str, object]:
    """Settings of a start, noon where it is a time."""
    of_time = {"consume_timestamp_ms": NOON_MS} if where is ConsumeFromWhere.TIMESTAMP else {}
    return {"consume_from_where": where} | of_time


def offsets_of(api: FakeApi, clock: ManualClock | None = None, **settings: Any) -> OffsetCommitter:
    client = SimpleNamespace(
        client_id="me",
        api=api,
        clock=clock or ManualClock(),
        config=SimpleNamespace(offset_timeout_ms=5_000),
        routes=SimpleNamespace(master_of=lambda name: api.master, refresh_soon=api.refresh_soon),
        report_failure=lambda broker_name, action, error: None,
    )
    member = MemberContext(
        client,  # type: ignore[arg-type]
        "G",
        EventRecorder(NoHistory(), "G"),
        ConsumerStatistics(),
    )
    return OffsetCommitter(
        member,
        RebalanceConfig(**settings),
        BrokerOffsets(member.client, "G"),
    )


def assigned_at(offset: int) -> AssignedQueue:
    def ignore(*_: object) -> None:
        return None

    return AssignedQueue(
        QUEUE,
        "G",
        LEASE,
        offset,
        QueueCallbacks(on_lease_lost=ignore, on_drained=ignore, on_room=ignore, on_idle=ignore),
    )


def assigned_with_done(*done: int) -> AssignedQueue:
    assigned = assigned_at(0)
    finish(assigned, *done)
    return assigned


def finish(assigned: AssignedQueue, *done: int) -> None:
    assigned.accept(assigned.generation, batch(done), done[-1] + 1)
    claim = begin_batch(assigned, 32, 1_000_000)
    assert isinstance(claim, BatchClaim)
    assert assigned.end_batch(claim, len(done), 1_000_000)


class RacyApi(FakeApi):
    """A broker as RocketMQ is: a table made for the first offset takes the place of another."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[tuple[str, str], dict[int, int]] = {}

    async def query_offset(
        self, address: str, group: str, queue: MessageQueue, *, stored_only: bool = True
    ) -> int | None:
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


def test_what_a_former_master_acknowledges_is_committed_again_at_the_new_one() -> None:
    async def work() -> None:
        api = FakeApi()
        offsets = offsets_of(api)
        assigned = assigned_with_done(0, 1)
        api.elected = "127.0.0.1:2"
        assert not await offsets.commit(assigned)
        assert assigned.committed_offset == 0
        assert await offsets.commit(assigned)
        assert assigned.committed_offset == 2
        assert [call for call in api.calls if call[0] == "commit"] == [("commit", 2, 7)] * 2

    asyncio.run(work())


@pytest.mark.parametrize("late_ms", [1_000, 1_001])
def test_the_master_of_a_late_acknowledgement_is_asked_for(late_ms: int) -> None:
    async def work() -> None:
        api, clock = FakeApi(), ManualClock()
        offsets = offsets_of(api, clock)
        assigned = assigned_with_done(0, 1)
        api.elected, api.late = "127.0.0.1:2", lambda: clock.advance(late_ms)
        assert await offsets.commit(assigned) == (late_ms == 1_000)

    asyncio.run(work())


def test_a_start_that_a_former_master_tells_is_asked_for_again() -> None:
    async def work() -> None:
        api = FakeApi()
        api.stored, api.elected = 5, "127.0.0.1:2"
        offsets = offsets_of(api)
        with pytest.raises(RouteError, match="not the master any more"):
            await offsets.start_offset(QUEUE, LEASE)
        assert await offsets.start_offset(QUEUE, LEASE) == 5

    asyncio.run(work())


def test_starts_of_a_topic_that_are_stored_at_once_do_not_lose_each_other() -> None:
    queues = [MessageQueue("orders", name, n) for name in ("a", "b") for n in range(4)]

    async def work() -> None:
        api = RacyApi()
        offsets = offsets_of(api)
        starts = await asyncio.gather(*(offsets.start_offset(queue, LEASE) for queue in queues))
        assert starts == [9] * 8
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


@pytest.mark.parametrize("lease", [LEASE, PLAIN, UNLOCKED])
def test_a_stored_offset_is_where_the_group_goes_on_and_is_not_stored_again(lease: Lease) -> None:
    api = FakeApi()
    api.stored = 5
    assert asyncio.run(offsets_of(api).start_offset(QUEUE, lease)) == 5
    assert api.calls == [("query",)]


def test_zero_may_be_a_brokers_answer_to_a_new_group_and_is_stored() -> None:
    api = FakeApi()
    api.stored = 0
    assert asyncio.run(offsets_of(api).start_offset(QUEUE, LEASE)) == 0
    assert api.calls == [("query",), ("commit", 0, 7)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (ConsumeFromWhere.LAST_OFFSET, 9),
        (ConsumeFromWhere.FIRST_OFFSET, 3),
        (ConsumeFromWhere.TIMESTAMP, NOON_MS),
    ],
)
def test_without_one_the_setting_decides_and_its_start_is_stored_under_the_lease(
    where: ConsumeFromWhere, expected: int
) -> None:
    api = FakeApi()
    offsets = offsets_of(api, **start_at(where))
    assert asyncio.run(offsets.start_offset(QUEUE, LEASE)) == expected
    assert api.calls == [("query",), ("commit", expected, 7)]


def test_without_a_lock_a_start_that_another_member_has_just_stored_wins() -> None:
    class Other(FakeApi):
        async def max_offset(self, address: str, queue: MessageQueue) -> int:
            self.stored = 6  # while this member asks for the end
            return 9

    api = Other()
    assert asyncio.run(offsets_of(api).start_offset(QUEUE, UNLOCKED)) == 6
    assert api.calls == [("query",), ("query",)]


def test_a_start_is_not_stored_after_the_lease() -> None:
    api, clock = FakeApi(), ManualClock()
    late = LEASE._replace(deadline_ms=clock.now_ms())
    with pytest.raises(LockLost, match="start offset 9"):
        asyncio.run(offsets_of(api, clock).start_offset(QUEUE, late))
    assert api.calls == [("query",)]


def test_a_start_that_cannot_be_stored_now_is_tried_again_and_stays_the_same() -> None:
    class Growing(FakeApi):
        end = 9

        async def max_offset(self, address: str, queue: MessageQueue) -> int:
            self.end += 1
            return self.end - 1

    async def work() -> None:
        api = Growing()
        offsets = offsets_of(api)
        busy = BrokerError("busy", response_code=ResponseCode.SYSTEM_BUSY)
        for error in (RequestTimeout("late"), busy, Fenced("a newer owner")):
            api.error = error
            with pytest.raises(type(error)):
                await offsets.start_offset(QUEUE, LEASE)
        api.error = None
        assert await offsets.start_offset(QUEUE, LEASE) == 9
        assert api.stored == 9

    asyncio.run(work())


def test_where_an_account_may_not_commit_the_queue_is_consumed_and_a_warning_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        api = FakeApi()
        api.error = BrokerError("denied", response_code=ResponseCode.NO_PERMISSION)
        offsets = offsets_of(api)
        assert await offsets.start_offset(QUEUE, LEASE) == 9
        assert await offsets.start_offset(QUEUE, LEASE) == 9

    asyncio.run(work())
    (told,) = [text for text in caplog.messages if "start offset 9 is not stored" in text]
    assert "let this account commit" in told


def test_a_start_at_the_end_tells_how_many_messages_it_skips_once() -> None:
    async def work() -> None:
        api = FakeApi()
        offsets = offsets_of(api, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
        await offsets.start_offset(QUEUE, LEASE)
        api.stored = None  # of another queue
        await offsets.start_offset(MessageQueue(QUEUE.topic, "broker-b", 0), LEASE)
        assert offsets.rule.take_skipped() == {QUEUE.topic: 2 * (9 - 3)}
        assert not offsets.rule.take_skipped()

    asyncio.run(work())


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, -3_600_000])
def test_a_queue_taken_later_starts_with_what_came_since_the_member_joined(ahead_ms: int) -> None:
    """Its broker was away, or nobody has stored a start: the end would skip what came since. It is
    the broker's clock that has stamped that."""
    clock = ManualClock()
    api = FakeApi()
    api.tells_ms = lambda: clock.wall_ms() - ahead_ms
    joined_ms = api.tells_ms()
    rule = offsets_of(api, clock).rule
    clock.advance(60_000)
    rule.settle([QUEUE.topic])
    assert asyncio.run(rule.start_of(QUEUE, is_at_zero=False)) == joined_ms
    assert not rule.take_skipped()
    rule.forget(QUEUE)
    rule.subscribed(QUEUE.topic)  # only now
    assert asyncio.run(rule.start_of(QUEUE, is_at_zero=False)) == 9


def test_a_broker_that_tells_no_clock_may_be_behind_by_a_minute() -> None:
    clock = ManualClock()
    joined_ms = clock.wall_ms()
    rule = offsets_of(FakeApi(), clock).rule
    clock.advance(3_600_000)
    rule.settle([QUEUE.topic])
    assert asyncio.run(rule.start_of(QUEUE, is_at_zero=False)) == joined_ms - 60_000


@pytest.mark.parametrize(
    ("where", "topic", "stored", "expected"),
    [
        (ConsumeFromWhere.TIMESTAMP, QUEUE.topic, None, NOON_MS),
        (ConsumeFromWhere.TIMESTAMP, QUEUE.topic, 0, 0),
        (ConsumeFromWhere.TIMESTAMP, QUEUE.topic, 4, 4),
        # What failed before the member came is in it: a time would leave that out.
        (ConsumeFromWhere.TIMESTAMP, "%RETRY%G", None, 0),
        (ConsumeFromWhere.LAST_OFFSET, QUEUE.topic, None, 0),
    ],
)
def test_a_time_stands_where_a_broker_lets_new_groups_start_at_0(
    where: ConsumeFromWhere, topic: str, stored: int | None, expected: int
) -> None:
    api = FakeApi()
    api.is_young, api.stored = True, stored
    offsets = offsets_of(api, **start_at(where))
    queue = MessageQueue(topic, "broker-a", 0)
    assert asyncio.run(offsets.start_offset(queue, LEASE)) == expected
    assert api.stored == expected


@pytest.mark.parametrize(
    ("setting", "age_ms"), [(0, 1_800_000), ("2h", 7_200_000), ("90 s", 90_000)]
)
def test_an_age_counts_back_from_when_the_member_came(setting: int | str, age_ms: int) -> None:
    """From the time when a queue is found, what was sent between would be left out."""
    clock = ManualClock()
    joined_ms = clock.wall_ms()
    api = FakeApi()
    api.tells_ms = clock.wall_ms
    rule = offsets_of(api, clock, consume_from_where="timestamp", consume_timestamp_ms=setting).rule
    clock.advance(3_600_000)  # its broker was away
    assert asyncio.run(rule.start_of(QUEUE, is_at_zero=False)) == joined_ms - age_ms
    rule.forget(QUEUE)
    rule.subscribed(QUEUE.topic)
    assert asyncio.run(rule.start_of(QUEUE, is_at_zero=False)) == clock.wall_ms() - age_ms


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
    offsets = offsets_of(FakeApi(), **start_at(where))
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


@pytest.mark.parametrize("is_idle", [True, False])
def test_commits_that_are_refused_come_at_longer_and_longer_pauses(is_idle: bool) -> None:
    async def work() -> None:
        run = Running(interval_ms=100)
        if is_idle:
            run.offsets.note_idle()
        else:
            run.assigned.max_offset = 100
        run.api.error = BrokerError("no", response_code=ResponseCode.NO_PERMISSION)
        await run.pass_ms(61_000)
        # At 0, 1, 3, 7, 15, and each 10 s from then on.
        assert 8 <= len(run.commits) <= 10
        assert run.offsets.refused_commits == [str(run.api.error)]
        # A busy broker is another matter, and a commit before the queue is given up waits for none.
        run.api.error = BrokerError("busy", response_code=ResponseCode.SYSTEM_BUSY)
        assert not await run.offsets.commit_last(run.assigned)
        run.api.error = None
        await run.pass_ms(10_100)
        assert run.api.stored == 1
        assert run.offsets.refused_commits == []
        run.task.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))


def test_an_account_that_may_not_ask_for_the_oldest_offset_begins_at_0() -> None:
    api = FakeApi()
    api.denied = ResponseCode.NO_PERMISSION
    offsets = offsets_of(api, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    assert asyncio.run(offsets.start_offset(QUEUE, LEASE)) == 0
    api.stored, api.denied = None, ResponseCode.SYSTEM_BUSY
    with pytest.raises(BrokerError):
        asyncio.run(offsets.start_offset(QUEUE, LEASE))


class Running:
    """An `OffsetCommitter` at work for one queue, with a clock that tests move."""

    def __init__(self, interval_ms: int = 5_000) -> None:
        self.clock = ManualClock()
        self.api = FakeApi()
        self.offsets = offsets_of(self.api, self.clock)
        self.assigned = assigned_with_done(0)
        self.assigned.last_claim_ms = self.clock.now_ms()
        loop = asyncio.get_running_loop()
        runtime: Any = SimpleNamespace(
            post=loop.call_soon, spawn=lambda work, name: loop.create_task(work)
        )
        self.offsets._client.runtime = runtime
        self.offsets.follow(lambda: [self.assigned])
        self.task = asyncio.create_task(self._commit_each(interval_ms))

    async def _commit_each(self, interval_ms: int) -> None:
        while True:
            await self.clock.sleep_ms(interval_ms)
            await self.offsets.commit_periodically(lambda: [self.assigned])

    async def pass_ms(self, delta_ms: int) -> None:
        for _ in range(delta_ms // 50):
            self.clock.advance(50)
            for _ in range(8):  # the loop has a few steps to go after each wake-up
                await asyncio.sleep(0)

    @property
    def commits(self) -> list[int]:
        return [offset for _, offset, _ in self.api.calls]


def test_an_idle_queue_is_committed_soon_and_a_busy_one_each_interval() -> None:
    async def work() -> None:
        run = Running()
        await run.pass_ms(100)
        run.offsets.note_idle()
        await run.pass_ms(500)
        assert run.commits == [1]
        # A message every 100 ms: empty in between each time, and not idle.
        for offset in range(1, 41):
            finish(run.assigned, offset)
            run.assigned.last_claim_ms = run.clock.now_ms()
            run.offsets.note_idle()
            await run.pass_ms(100)
        assert run.commits == [1]
        await run.pass_ms(2_000)
        assert run.commits[-1] == 41
        assert len(run.commits) <= 3  # the interval's, and the idle one
        run.task.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))


def test_messages_that_come_one_by_one_bring_a_commit_a_second_at_most() -> None:
    async def work() -> None:
        run = Running()
        for offset in range(1, 21):
            finish(run.assigned, offset)
            run.assigned.last_claim_ms = run.clock.now_ms()
            run.offsets.note_idle()
            await run.pass_ms(500)
        assert 2 <= len(run.commits) <= 12  # in ten seconds
        run.task.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))


def test_a_queue_with_more_to_come_is_not_idle() -> None:
    async def work() -> None:
        run = Running()
        run.assigned.max_offset = 100  # the broker said so
        run.offsets.note_idle()
        await run.pass_ms(4_000)
        assert run.commits == []
        await run.pass_ms(2_000)
        assert run.commits == [1]
        run.task.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))
