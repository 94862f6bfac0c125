"""Time for which a grant is trusted (docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.client.broker_api import LockGrant
from ordermq.clock import ManualClock
from ordermq.config import LeaseConfig
from ordermq.consumer.group.queue_locks import QueueLocks
from ordermq.consumer.group.revocation import Revocation
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder, MemberContext
from ordermq.errors import RemotingError
from ordermq.events import NoHistory
from ordermq.leases.lease import UNLOCKED, Lease, LeaseTimes
from ordermq.leases.lock_epochs import LocalEpochs
from ordermq.model.message_queue import MessageQueue
from ordermq.supervisor import Supervisor


@pytest.mark.parametrize(
    ("broker_lease_ms", "times"),
    [
        (None, LeaseTimes(30_000, 2_000, 10_000)),
        (60_000, LeaseTimes(30_000, 2_000, 10_000)),
        (600_000, LeaseTimes(30_000, 2_000, 10_000)),
        (20_000, LeaseTimes(10_000, 2_000, 3_333)),
        (6_000, LeaseTimes(3_000, 600, 1_000)),
        (3_000, LeaseTimes(1_500, 300, 500)),
        (1_000, LeaseTimes(500, 100, 166)),
    ],
)
def test_a_lease_is_half_of_the_brokers_lock_time_and_renewed_at_a_third_of_itself(
    broker_lease_ms: int | None, times: LeaseTimes
) -> None:
    assert LeaseTimes.of(LeaseConfig(), broker_lease_ms) == times


@given(
    st.integers(100, 100_000),
    st.integers(10, 99),
    st.integers(0, 100_000),
    st.none() | st.integers(100, 200_000),
)
def test_a_client_renews_before_its_lease_ends_and_stops_before_another_may_start(
    duration_ms: int, renew_percent: int, margin_ms: int, broker_lease_ms: int | None
) -> None:
    config = LeaseConfig(
        lock_max_live_ms=duration_ms,
        lock_interval_ms=max(10, duration_ms * renew_percent // 100),
        lease_margin_ms=margin_ms,
    )
    times = LeaseTimes.of(config, broker_lease_ms)
    lease = times.lease(epoch=3, sent_ms=1_000)
    assert lease.epoch == 3
    assert lease.deadline_ms > 1_000
    assert times.renew_ms >= 1
    if broker_lease_ms is not None:
        assert lease.deadline_ms - 1_000 <= broker_lease_ms // 2
        assert times.renew_ms <= max(broker_lease_ms // 6, 1)
    # Where a millisecond does not round it away, a second renewal comes before the end.
    assert 2 * times.renew_ms < lease.deadline_ms - 1_000 or times.duration_ms < 100


def test_a_lease_counts_from_the_send_of_its_request() -> None:
    times = LeaseTimes(30_000, 2_000, 10_000)
    lease = times.lease(7, sent_ms=5_000)
    assert lease == Lease(7, 33_000, True)
    assert times.lease(0, sent_ms=5_000) == Lease(0, 33_000, False), "of a broker without epochs"
    assert lease.is_valid(32_999)
    assert not lease.is_valid(33_000)


QUEUE, OTHER = MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)
WALL_MS = 1_700_000_000_000
LOCK_TIMEOUT_MS = 1_000  # RemotingConfig's
LATE_MS = 20_000


class Broker:
    """The lock requests of a member with one queue, each granted, failed or never answered."""

    def __init__(self, lock_ms: int | None) -> None:
        self.clock = ManualClock()
        self.answers: list[str] = []  # of the next requests; then "granted"
        self.sent_ms: list[int] = []  # when, counted from the first lease
        self.lost: list[str] = []
        self.epoch = 1  # of its grants
        self.unlocked: list[MessageQueue] = []
        self._lock_ms = lock_ms
        self._start_ms = self.clock.now_ms()
        self.times = LeaseTimes.of(LeaseConfig(), lock_ms)
        self.stop_ms = self.times.duration_ms - self.times.margin_ms
        callbacks = self.callbacks = QueueCallbacks(
            lambda _, reason: self.lost.append(reason), lambda _: None, lambda _: None, lambda: None
        )
        lease = self.times.lease(1, self._start_ms)
        self.queue = AssignedQueue(QUEUE, "g", lease, 0, callbacks)
        self.held = [self.queue]
        client = self.client = SimpleNamespace(
            client_id="me",
            clock=self.clock,
            api=SimpleNamespace(lock=self.lock, unlock=self.unlock),
            routes=SimpleNamespace(
                master_of=lambda name: name,
                brokers_at=lambda address: {address},
                is_away=lambda name: False,
                has_master=lambda name: True,
                refresh_soon=lambda topic: asyncio.sleep(0),
            ),
            report_failure=lambda *_: None,
            doubt_route=lambda topic: None,
            runtime=SimpleNamespace(spawn=lambda work, name: asyncio.ensure_future(work)),
        )
        self.member = MemberContext(
            cast(Any, client), "g", EventRecorder(NoHistory(), "g"), ConsumerStatistics(self.clock)
        )
        self.locks = QueueLocks(
            self.member,
            LeaseConfig(),
            cast(Any, SimpleNamespace(start_offset=self.start_offset)),
            LocalEpochs(self.clock),
            held=lambda: self.held,
            on_regained=lambda _: None,
        )
        self.locks._requests.times = self.times

    async def lock(
        self, address: str, group: str, queues: Sequence[MessageQueue], most_ms: int
    ) -> LockGrant:
        self.sent_ms.append(self.clock.now_ms() - self._start_ms)
        answer = self.answers.pop(0) if self.answers else "granted"
        if answer == "late":
            await self.clock.sleep_ms(LATE_MS)
            answer = "granted"
        if answer == "granted":
            return LockGrant(dict.fromkeys(queues, self.epoch), self._lock_ms, "")
        if answer == "silence":
            await self.clock.sleep_ms(min(LOCK_TIMEOUT_MS, most_ms))
        raise RemotingError("away")

    async def unlock(
        self, address: str, group: str, queues: Sequence[MessageQueue], epochs: Sequence[int]
    ) -> None:
        self.unlocked += queues

    async def start_offset(self, queue: MessageQueue, lease: Lease) -> int:
        return 0

    def run_until(self, end_ms: int, step_ms: int) -> None:
        """Let the renewal loop run from the first lease to a later moment."""

        async def work() -> None:
            supervisor = Supervisor(self.clock, logging.getLogger("ordermq.consumer"))
            renewal = supervisor.start("locks", self.locks.round)
            while self.clock.now_ms() - self._start_ms < end_ms:
                for _ in range(20):
                    await asyncio.sleep(0)
                self.clock.advance(step_ms)
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

        asyncio.run(work())


@pytest.mark.parametrize("lock_ms", [None, 60_000, 20_000, 6_000, 3_000, 1_000])
@pytest.mark.parametrize("answer", ["refused", "silence"])
def test_two_renewals_at_least_are_tried_before_the_lease_ends(
    lock_ms: int | None, answer: str
) -> None:
    broker = Broker(lock_ms)
    # The first is the loop's own, at its start; all later ones fail.
    broker.answers = ["granted"] + [answer] * 1_000
    broker.run_until(broker.stop_ms - 1, max(broker.times.renew_ms // 100, 1))
    attempts = broker.sent_ms[1:]
    assert len(attempts) >= 2, attempts
    # The second leaves the broker time for its answer: a tenth of the lease.
    assert broker.stop_ms - attempts[1] >= broker.times.duration_ms // 10
    # And no flood: the pauses are a tenth of the interval, or `lock_retry_ms`.
    pause_ms = min(broker.times.retry_ms, LeaseConfig().lock_retry_ms)
    assert len(attempts) <= (broker.stop_ms - broker.times.renew_ms) // pause_ms + 1


@pytest.mark.parametrize("lock_ms", [None, 60_000, 20_000, 6_000, 3_000, 1_000])
@pytest.mark.parametrize("answer", ["refused", "silence"])
def test_a_failed_renewal_costs_no_lease(lock_ms: int | None, answer: str) -> None:
    broker = Broker(lock_ms)
    broker.answers = ["granted", answer]
    broker.run_until(2 * broker.times.duration_ms, max(broker.times.renew_ms // 100, 1))
    assert not broker.lost
    assert broker.queue.lease is not None


def test_a_healthy_member_sends_three_requests_per_lease() -> None:
    broker = Broker(60_000)
    broker.run_until(60_000, 100)
    assert broker.sent_ms == [0, 10_000, 20_000, 30_000, 40_000, 50_000]


class SlowStore:
    """Reads no offset until it is let go."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()

    async def start_offset(self, queue: MessageQueue, lease: Lease) -> int:
        await self.is_free.wait()
        return 0


def test_a_store_that_does_not_answer_for_one_queue_costs_no_other_its_lease() -> None:
    broker = Broker(60_000)
    lost = AssignedQueue(OTHER, "g", broker.queue.lease, 0, broker.callbacks)
    lost.lose_lease("a test's own")
    broker.lost.clear()
    broker.held.append(lost)
    store = SlowStore()
    broker.locks._offsets = cast(Any, store)
    broker.run_until(3 * broker.times.duration_ms, 100)
    assert broker.lost == []
    assert broker.queue.lease is not None
    assert lost.lease is None
    # Its lock is asked for once, not by each round.
    assert len(broker.sent_ms) == 1 + 3 * broker.times.duration_ms // broker.times.renew_ms


def test_a_lock_that_was_granted_anew_is_not_given_back_for_the_grant_before() -> None:
    broker = Broker(None)
    broker.queue.lose_lease("a test's own")
    store = SlowStore()
    broker.locks._offsets = cast(Any, store)

    async def work() -> None:
        await broker.locks.renew_all()
        await released(broker)  # the store does not answer, and a rebalance takes the queue away
        assert await broker.locks.acquire([QUEUE])  # and brings it back
        store.is_free.set()
        await asyncio.gather(*broker.locks._restarts.values())

    asyncio.run(work())
    assert broker.unlocked == []


@pytest.mark.parametrize("turns", range(8))
def test_a_queue_that_begins_while_a_round_begins_is_not_asked_for_and_given_back(
    turns: int,
) -> None:
    broker = Broker(60_000)
    broker.queue.lose_lease("a test's own")

    async def start_offset(*_: object) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return 0

    broker.locks._offsets = cast(Any, SimpleNamespace(start_offset=start_offset))

    async def work() -> None:
        # As behind a reconnect, where rounds follow one another at once.
        for _ in range(6):
            await broker.locks.renew_all()
        await asyncio.gather(*broker.locks._restarts.values())

    asyncio.run(work())
    assert broker.unlocked == []
    assert broker.queue.lease is not None
    assert broker.queue.generation == 2, "it began once"


def test_a_lease_that_is_due_when_its_queue_starts_is_renewed_at_once() -> None:
    broker = Broker(60_000)
    broker.held = []

    async def work() -> None:
        supervisor = Supervisor(broker.clock, logging.getLogger("ordermq.consumer"))
        renewal = supervisor.start("locks", broker.locks.round)
        await stepped(broker, broker.times.renew_ms)
        # Its offset was read from a database that was locked meanwhile, and two more intervals.
        broker.clock.advance(broker.times.renew_ms // 2)
        broker.held = [broker.queue]
        broker.locks.began(broker.queue)
        before = broker.clock.now_ms()
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.sent_ms == [before - broker._start_ms]
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)

    asyncio.run(work())


def test_the_oldest_lease_decides_when_to_renew() -> None:
    times = LeaseTimes.of(LeaseConfig(), 60_000)
    assert times.pause_ms([], 0, 200) == times.renew_ms
    assert times.pause_ms([28_000], 0, 200) == 10_000
    assert times.pause_ms([28_000], 9_900, 200) == 100
    assert times.pause_ms([28_000], 10_000, 200) == 200, "due, and yet not renewed: it failed"
    assert times.pause_ms([28_000, 38_000], 10_000, 5_000) == 1_000


def test_a_lock_that_is_released_while_it_is_regained_is_given_back() -> None:
    broker = Broker(None)
    broker.queue.lose_lease("a test's own")
    broker.locks._epochs = epochs = LosingEpochs(broker.clock)
    epochs.lose = lambda: broker.queue.discard()  # what a release does, and then forgets its grant

    async def start_offset(*_: object) -> int:
        broker.locks._losses_at_grant.pop(QUEUE)
        return 0

    broker.locks._offsets = cast(Any, SimpleNamespace(start_offset=start_offset))
    asyncio.run(renewed_once(broker))
    assert broker.unlocked == [QUEUE]


@pytest.mark.parametrize("answer", ["late", "silence"])
def test_a_renewal_that_is_answered_late_releases_nothing_before_the_commit(answer: str) -> None:
    # A broker restarts: no commit gets through, the lease ends, and the renewal that was sent
    # before its end is answered after it.
    broker = Broker(None)
    broker.answers = [answer]
    done: list[str] = []

    async def commit_last(assigned: AssignedQueue) -> bool:
        lease = assigned.lease
        is_back = broker.clock.now_ms() - broker._start_ms > broker.stop_ms + 1_000
        if lease is None or not is_back or not lease.is_valid(broker.clock.now_ms()):
            return False
        done.append("commit")
        return True

    async def unlock(*_: object) -> None:
        done.append("unlock")

    broker.client.api.unlock = unlock
    offsets = SimpleNamespace(commit_last=commit_last, forget=lambda queue: None, is_local=False)
    revocation = Revocation(broker.member, broker.locks, cast(Any, offsets), 30_000, lambda: True)

    async def work() -> None:
        release = asyncio.ensure_future(revocation.release(broker.queue))
        await stepped(broker, broker.stop_ms - LATE_MS // 2)
        renewal = asyncio.ensure_future(broker.locks.renew_all())
        await stepped(broker, 2 * LATE_MS)
        await asyncio.gather(renewal, release)

    asyncio.run(work())
    assert done == (["commit", "unlock"] if answer == "late" else [])


def test_the_end_of_a_member_without_locks_waits_for_no_broker_that_has_no_master() -> None:
    # A slave is left in the route. No lease ends here: the commit would be tried for 30 s.
    broker = Broker(None)
    tried: list[AssignedQueue] = []

    async def commit_last(assigned: AssignedQueue) -> bool:
        tried.append(assigned)
        broker.client.routes.has_master = lambda name: False  # killed under the commit
        return False

    broker.client.routes.last_master_of = lambda name: "master:1"
    broker.client.connections = SimpleNamespace(is_open=lambda address: False)
    offsets = SimpleNamespace(commit_last=commit_last, forget=lambda queue: None, is_local=False)
    locks = SimpleNamespace(prepare_release=lambda assigned: asyncio.sleep(0))
    parts = cast(Any, locks), cast(Any, offsets)
    revocation = Revocation(broker.member, *parts, 30_000, lambda: True)
    assigned = AssignedQueue(QUEUE, "g", UNLOCKED, 0, broker.callbacks)

    async def work() -> None:
        release = asyncio.ensure_future(revocation.release(assigned))
        await stepped(broker, 200)
        assert release.done()

    asyncio.run(work())
    assert tried == [assigned]


def test_queues_that_drain_while_an_unlock_is_under_way_leave_with_the_next_one() -> None:
    broker = Broker(None)
    lease = broker.times.lease(1, broker.clock.now_ms())
    queues = [
        AssignedQueue(QUEUE._replace(queue_id=number), "g", lease, 0, broker.callbacks)
        for number in range(100)
    ]
    requests: list[list[int]] = []
    answer = asyncio.Event()

    async def unlock(
        address: str, group: str, wanted: list[MessageQueue], epochs: list[int]
    ) -> None:
        requests.append([queue.queue_id for queue in wanted])
        await answer.wait()

    broker.client.api.unlock = unlock

    async def work() -> None:
        releases = [asyncio.ensure_future(broker.locks.release(queue)) for queue in queues]
        await asyncio.sleep(0)
        queues[7].lose_lease("a test's own")
        assert [queue.lease is None for queue in queues[:2]] == [True, False]
        answer.set()
        await asyncio.gather(*releases)

    asyncio.run(work())
    assert requests == [[0], [number for number in range(1, 100) if number != 7]]
    assert all(queue.lease is None for queue in queues)


async def stepped(broker: Broker, time_ms: int) -> None:
    """Let time pass, and everybody act in between."""
    for _ in range(0, time_ms, 100):
        broker.clock.advance(100)
        for _ in range(20):
            await asyncio.sleep(0)


async def renewed_once(broker: Broker) -> None:
    """Renew once, and wait for the queues that start again."""
    await broker.locks.renew_all()
    await asyncio.gather(*broker.locks._restarts.values())


class LosingEpochs(LocalEpochs):
    """The connection breaks while an epoch is stored."""

    lose: Callable[[], None]

    async def begin(self, leases: Mapping[MessageQueue, Lease]) -> dict[MessageQueue, Lease]:
        self.lose()
        return await super().begin(leases)


def test_a_grant_counts_no_more_once_its_broker_may_have_forgotten_it() -> None:
    broker = Broker(None)
    assert asyncio.run(broker.locks.acquire([QUEUE]))
    assert not broker.locks.is_doubtful(QUEUE)
    broker.locks._epochs = epochs = LosingEpochs(broker.clock)
    epochs.lose = lambda: broker.locks.connection_lost("another queue's")
    assert asyncio.run(broker.locks.acquire([QUEUE]))
    assert broker.locks.is_doubtful(QUEUE), "it would be held for a lease without any lock"


def test_a_regained_lock_of_a_broker_that_went_away_is_given_back() -> None:
    broker = Broker(None)
    broker.queue.lose_lease("a test's own")
    broker.locks._epochs = epochs = LosingEpochs(broker.clock)
    epochs.lose = lambda: broker.locks.connection_lost("b")
    asyncio.run(renewed_once(broker))
    assert broker.queue.lease is None
    assert broker.unlocked == [QUEUE]
    epochs.lose = lambda: None
    asyncio.run(renewed_once(broker))
    assert broker.queue.lease is not None


def test_a_lost_connection_ends_leases_of_brokers_without_epochs_alone() -> None:
    fenced, plain = Broker(None), Broker(None)
    plain.queue.lose_lease("a test's own")
    assert plain.queue.regain(Lease(WALL_MS, 10_000_000, False), 0)
    for broker in (fenced, plain):
        broker.lost.clear()
        broker.locks.connection_lost("another")
        assert not broker.lost
        broker.locks.connection_lost("b")
    assert not fenced.lost, "it tells at the next renewal"
    assert plain.lost == ["the connection to a broker without lock epochs broke"]


def test_a_renewal_keeps_the_epoch_of_a_broker_without_them() -> None:
    broker = Broker(None)
    broker.epoch = 0
    broker.queue.lose_lease("a test's own")
    lease = Lease(WALL_MS, broker.clock.now_ms() + 5_000, False, "a reason")
    assert broker.queue.regain(lease, 0)
    broker.clock.advance(1_000)
    asyncio.run(renewed_once(broker))
    renewed = broker.queue.lease
    assert renewed is not None
    assert renewed.deadline_ms > lease.deadline_ms
    assert (renewed.epoch, renewed.token_problem) == (WALL_MS, "a reason")


async def released(broker: Broker) -> None:
    await broker.locks.prepare_release(broker.queue)
    await broker.locks.release(broker.queue)


def test_a_lock_whose_epoch_may_still_be_on_its_way_is_left_to_expire() -> None:
    broker = Broker(None)

    async def keep(leases: Mapping[MessageQueue, Lease]) -> bool:
        return False

    broker.locks._epochs.keep = keep  # type: ignore[method-assign]
    asyncio.run(released(broker))
    assert not broker.unlocked
    broker = Broker(None)
    asyncio.run(released(broker))
    assert broker.unlocked == [QUEUE]
