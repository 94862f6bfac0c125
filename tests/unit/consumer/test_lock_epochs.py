"""Epochs at brokers that have none: stored by each owner, above the one before
(docs/internals/semantics.md#stored-epochs)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.clock import ManualClock
from ordermq.errors import BrokerError, RequestTimeout, StateError
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.leases.lock_epochs import LocalEpochs, StoredEpochs, queue_of_epoch
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode

QUEUE = MessageQueue("orders", "b", 3)
PLACE = MessageQueue("orders", "b", 1_000_003)
WALL_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Host:
    """A host with clocks of its own, and the offsets of a broker that all hosts share.

    Args:
        stored: the broker's offsets.
        before: awaited before each request, with its name; may raise.
        after: awaited between a request at the broker and its answer.
    """

    def __init__(
        self,
        stored: dict[MessageQueue, int],
        uptime_ms: int = 1_000_000,
        wall_ms: int = WALL_MS,
        before: Callable[[str], Awaitable[None]] | None = None,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.clock = ManualClock(uptime_ms, wall_ms)
        self.stored = stored
        self.requests: list[str] = []
        self.failures: list[str] = []
        self.before = before
        self.after = after
        client = SimpleNamespace(
            client_id="me",
            clock=self.clock,
            report_failure=lambda broker, action, error: self.failures.append(f"{action}: {error}"),
        )
        self.epochs = StoredEpochs(cast(Any, client), cast(Any, self))

    async def read(self, queue: MessageQueue) -> int | None:
        self.requests.append("read")
        if self.before is not None:
            await self.before("read")
        found = self.stored.get(queue)
        if self.after is not None:
            await self.after()
        return found

    async def write(self, queue: MessageQueue, offset: int) -> None:
        self.requests.append("write")
        if self.before is not None:
            await self.before("write")
        self.stored[queue] = offset
        if self.after is not None:
            await self.after()

    def lease(self, duration_ms: int = 28_000) -> Lease:
        """A grant of a broker without epochs."""
        return Lease(0, self.clock.now_ms() + duration_ms, False)

    async def begin(self) -> Lease | None:
        return (await self.epochs.begin({QUEUE: self.lease()})).get(QUEUE)


def begun(host: Host) -> Lease:
    lease = asyncio.run(host.begin())
    assert lease is not None
    return lease


def test_an_owner_stores_its_epoch_and_reads_it_back_before_it_begins() -> None:
    host = Host({})
    lease = begun(host)
    assert host.requests == ["read", "write", "read"]
    assert host.stored == {PLACE: lease.epoch}
    assert (lease.epoch, lease.is_fenced, lease.wire_epoch) == (WALL_MS, False, 0)
    assert lease.fence_epoch(QUEUE) == WALL_MS
    assert queue_of_epoch(QUEUE) == PLACE


@pytest.mark.parametrize("unknown", [None, 0])  # RocketMQ 4.9 answers 0 for what it does not know
def test_without_a_stored_epoch_the_wall_clock_is_the_first(unknown: int | None) -> None:
    stored = {} if unknown is None else {PLACE: unknown}
    assert begun(Host(stored)).epoch == WALL_MS


def test_epochs_grow_from_host_to_host_whatever_their_clocks_say() -> None:
    stored: dict[MessageQueue, int] = {}
    young = Host(stored, uptime_ms=60_000, wall_ms=WALL_MS - 5_000)
    old = Host(stored, uptime_ms=10 * DAY_MS, wall_ms=WALL_MS)
    epochs = [begun(host).epoch for host in (old, young, old, young, young, old)]
    assert epochs == [WALL_MS + count for count in range(6)]


def test_the_same_member_takes_a_new_epoch_each_time_it_gets_the_lock() -> None:
    host = Host({})
    first = begun(host)
    host.stored.clear()  # a broker that crashed before it saved its offsets
    host.clock.jump_wall(-5_000)
    assert begun(host).epoch == first.epoch + 1


def test_a_broker_that_lost_the_epoch_is_covered_by_the_wall_clock() -> None:
    stored: dict[MessageQueue, int] = {}
    first = begun(Host(stored))
    stored.clear()
    assert begun(Host(stored, wall_ms=WALL_MS + 1)).epoch == first.epoch + 1


def test_a_member_that_met_a_faster_clock_covers_for_it_on_every_queue() -> None:
    stored: dict[MessageQueue, int] = {}
    ahead, behind = Host(stored, wall_ms=WALL_MS + 5_000), Host(stored)
    begun(ahead)
    begun(behind)  # and now it knows
    for host in (ahead, behind):
        host.clock.advance(1_000)
    other = MessageQueue("orders", "b", 4)
    first = asyncio.run(ahead.epochs.begin({other: ahead.lease()}))[other]
    stored.clear()  # the broker crashed before it saved anything
    behind.clock.advance(10)
    second = asyncio.run(behind.epochs.begin({other: behind.lease()}))[other]
    assert second.epoch > first.epoch == WALL_MS + 6_000


def test_epochs_of_a_broker_that_has_its_own_are_left_alone() -> None:
    host = Host({})
    lease = Lease(7, 2_000_000, True)
    assert asyncio.run(host.epochs.begin({QUEUE: lease})) == {QUEUE: lease}
    assert asyncio.run(host.epochs.keep({QUEUE: lease}))
    assert asyncio.run(host.epochs.is_newest(QUEUE, lease))
    assert not host.requests
    local = LocalEpochs(host.clock)
    assert asyncio.run(local.begin({QUEUE: lease})) == {QUEUE: lease}


def test_all_queues_store_at_once() -> None:
    host = Host({})
    queues = [MessageQueue("orders", "b", number) for number in range(100)]
    waiting = asyncio.Event()

    async def before(request: str) -> None:
        if len(host.requests) == 100:
            waiting.set()
        await waiting.wait()

    host.before = before
    lease = host.lease()
    leases = asyncio.run(host.epochs.begin(dict.fromkeys(queues, lease)))
    assert list(leases) == queues
    assert host.requests[:100] == ["read"] * 100, "nobody waits for another's answer"


@pytest.mark.parametrize("request_number", [1, 2, 3])
@pytest.mark.parametrize(
    "error",
    [
        RequestTimeout("no answer"),
        BrokerError("busy", response_code=ResponseCode.SYSTEM_BUSY),
        BrokerError("away", response_code=ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_a_request_that_fails_leaves_no_lease(request_number: int, error: Exception) -> None:
    host = Host({})

    async def before(request: str) -> None:
        if len(host.requests) == request_number:
            raise error

    host.before = before
    assert asyncio.run(host.begin()) is None
    assert len(host.requests) == request_number
    assert host.failures == [f"lock epoch: {error}"]
    host.before = None
    again = begun(host)
    assert again.epoch == host.stored[PLACE]


@pytest.mark.parametrize("request_number", [1, 2, 3])
def test_a_broker_that_refuses_epochs_is_consumed_from_without_a_token(
    request_number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    host = Host({})

    async def before(request: str) -> None:
        if len(host.requests) % 3 == request_number % 3:
            host.requests += [""] * ((3 - request_number) % 3)
            raise BrokerError("no permission", response_code=ResponseCode.NO_PERMISSION)

    host.before = before
    first, second = begun(host), begun(host)
    assert second.epoch > first.epoch > 0, "the member still tells its grants apart"
    assert first.is_lock
    with pytest.raises(StateError, match=r"no fence token: .*no permission.*Let the group commit"):
        first.fence_epoch(QUEUE)
    (warning,) = caplog.messages  # once, not per grant
    assert "context.fence_token raises" in warning
    host.before, host.requests = None, []
    assert asyncio.run(host.epochs.keep({QUEUE: second}))
    assert asyncio.run(host.epochs.is_newest(QUEUE, second))
    assert not host.requests, "it has nothing stored to keep or compare"


def test_a_broker_that_forgets_what_it_acknowledged_gives_no_token() -> None:
    host = Host({})

    async def before(request: str) -> None:
        host.stored.clear()

    host.before = before
    lease = begun(host)
    with pytest.raises(StateError, match="returned another number"):
        lease.fence_epoch(QUEUE)


def test_a_stored_number_that_leaves_no_room_gives_no_token() -> None:
    lease = begun(Host({PLACE: (1 << 63) - 1}))
    with pytest.raises(StateError, match="returned another number"):
        lease.fence_epoch(QUEUE)


def test_a_late_write_of_a_former_owner_is_noticed_by_reading_back() -> None:
    host = Host({PLACE: WALL_MS + 40})

    async def before(request: str) -> None:
        if host.requests == ["read", "write", "read"]:
            host.stored[PLACE] = WALL_MS + 41 - 7

    host.before = before
    lease = begun(host)
    assert host.requests == ["read", "write", "read"] * 2
    assert lease.epoch == host.stored[PLACE] == WALL_MS + 42, "above its own first try"


def test_the_epoch_is_stored_again_before_a_queue_is_given_up() -> None:
    stored: dict[MessageQueue, int] = {}
    ahead, behind = Host(stored, wall_ms=WALL_MS + 5_000), Host(stored)
    lease = begun(ahead)
    stored[PLACE] = 3  # a late write of an owner long ago, or an admin's
    assert asyncio.run(ahead.epochs.keep({QUEUE: lease}))
    assert begun(behind).epoch == lease.epoch + 1


def test_a_lost_lease_keeps_nothing() -> None:
    host = Host({})
    lease = begun(host)
    host.clock.advance(28_000)
    host.stored[PLACE] = lease.epoch + 9  # the next owner's
    assert asyncio.run(host.epochs.keep({QUEUE: lease}))
    assert host.stored[PLACE] == lease.epoch + 9


def test_whoever_cannot_store_it_again_does_not_unlock() -> None:
    host = Host({})
    lease = begun(host)

    async def before(request: str) -> None:
        raise RequestTimeout("no answer: it may still arrive")

    host.before = before
    assert not asyncio.run(host.epochs.keep({QUEUE: lease}))


def test_an_epoch_taken_since_tells_of_another_owner() -> None:
    stored: dict[MessageQueue, int] = {}
    mine, other = Host(stored), Host(stored)
    lease = begun(mine)
    assert asyncio.run(mine.epochs.is_newest(QUEUE, lease))
    stored.clear()
    assert asyncio.run(mine.epochs.is_newest(QUEUE, lease)), "lost with the broker"
    begun(other)
    begun(other)
    assert not asyncio.run(mine.epochs.is_newest(QUEUE, lease))


def test_epochs_that_are_not_stored_give_no_token() -> None:
    clock = ManualClock(wall_ms=WALL_MS)
    local = LocalEpochs(clock)

    async def twice() -> list[Lease]:
        lease = Lease(0, 2_000_000, False)
        return [(await local.begin({QUEUE: lease}))[QUEUE] for _ in range(2)]

    first, second = asyncio.run(twice())
    assert (first.epoch, second.epoch) == (WALL_MS, WALL_MS + 1)
    with pytest.raises(StateError, match="store_epochs=False"):
        first.fence_epoch(QUEUE)
    assert asyncio.run(local.keep({QUEUE: first}))
    assert asyncio.run(local.is_newest(QUEUE, first))


def test_a_queue_without_a_lock_has_no_token() -> None:
    with pytest.raises(StateError, match="holds no queue locks"):
        UNLOCKED.fence_epoch(QUEUE)


# Whatever stands still for however long between two of its requests.

LOCK_MS = 60_000
LEASE_MS = 28_000
HOSTS = 3


class Group:
    """Three hosts that want one queue, and a broker whose locks expire; time is the test's.

    A request reaches the broker when it is sent, and its answer waits for `step`, so that a host
    may stand still between any two of them for as long as the test likes.
    """

    def __init__(self, walls_ms: list[int], uptimes_ms: list[int]) -> None:
        self.stored: dict[MessageQueue, int] = {}
        self.now_ms = 0
        self.holder: int | None = None
        self.granted_ms = 0
        self.begun: list[tuple[int, int]] = []  # (epoch, host), in the order of their beginnings
        self.hosts = [
            Host(self.stored, uptime, WALL_MS + wall, after=self._gate(number))
            for number, (wall, uptime) in enumerate(zip(walls_ms, uptimes_ms, strict=True))
        ]
        self._gates: dict[int, asyncio.Future[None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, Lease] = {}

    def _gate(self, number: int) -> Callable[[], Awaitable[None]]:
        async def after() -> None:
            gate = self._gates[number] = asyncio.get_running_loop().create_future()
            await gate

        return after

    async def take(self, number: int) -> None:
        """Ask for the lock, and begin if it is granted; an owner renews it, or gives it up."""
        if number in self._tasks:
            return
        is_expired = self.now_ms - self.granted_ms > LOCK_MS
        if self.holder not in (None, number) and not is_expired:
            return
        self.holder, self.granted_ms = number, self.now_ms
        lease = self._leases.pop(number, None)
        host = self.hosts[number]
        is_owner = lease is not None and lease.is_valid(host.clock.now_ms())
        work = self._end(number, lease) if is_owner and lease else self._begin(number)
        self._tasks[number] = asyncio.create_task(work)
        await self._settle()

    async def _end(self, number: int, lease: Lease) -> None:
        if await self.hosts[number].epochs.keep({QUEUE: lease}) and self.holder == number:
            self.holder = None
        del self._tasks[number]

    async def _begin(self, number: int) -> None:
        host = self.hosts[number]
        lease = (await host.epochs.begin({QUEUE: host.lease(LEASE_MS)})).get(QUEUE)
        del self._tasks[number]
        if lease is not None:
            self._leases[number] = lease
            self.begun.append((lease.epoch, number))

    async def step(self, number: int) -> None:
        """Let a host have its answer, and run it to its next request."""
        gate = self._gates.pop(number, None)
        if gate is not None:
            gate.set_result(None)
            await self._settle()

    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        for host in self.hosts:
            host.clock.advance(delta_ms)

    async def _settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


# Asks for the lock and gets so many answers, three for a whole beginning; or only more answers.
STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, HOSTS - 1), st.sampled_from([3, 3, 3, 0, 1, 2])),
    st.tuples(st.just("step"), st.integers(0, HOSTS - 1), st.integers(1, 3)),
    st.tuples(
        st.just("advance"), st.just(0), st.sampled_from([0, 1, 3, 1_000, LEASE_MS, LOCK_MS + 1])
    ),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(STEPS, min_size=10, max_size=40),
    st.lists(st.integers(-5_000, 5_000), min_size=HOSTS, max_size=HOSTS),
    st.permutations([60_000, 5 * DAY_MS, 10 * DAY_MS]),
    st.sampled_from([0, WALL_MS + DAY_MS]),  # the second: by a host whose clock was wrong once
)
def test_no_two_owners_have_the_same_epoch_and_later_ones_have_greater(
    steps: list[tuple[str, int, int]], walls_ms: list[int], uptimes_ms: list[int], stored: int
) -> None:
    async def play() -> list[tuple[int, int]]:
        group = Group(walls_ms, uptimes_ms)
        group.stored[PLACE] = stored
        for step, host, count in steps:
            if step == "advance":
                group.advance(count)
                continue
            if step == "take":
                await group.take(host)
            for _ in range(count):
                await group.step(host)
        await group.end()
        return group.begun

    epochs = [epoch for epoch, _ in asyncio.run(play())]
    assert epochs == sorted(set(epochs))


def test_an_owner_that_stood_still_between_its_read_and_its_write_stores_nothing() -> None:
    async def play() -> None:
        group = Group([0, -5_000, 0], [60_000, 10 * DAY_MS, 60_000])
        await group.take(0)  # has read, and stands still
        group.advance(LOCK_MS + 1)
        await group.take(1)
        for _ in range(3):
            await group.step(1)
        assert [number for _, number in group.begun] == [1]
        before = dict(group.stored)
        await group.step(0)
        assert group.stored == before
        assert "lease ended before its epoch was stored" in group.hosts[0].failures[0]
        await group.end()

    asyncio.run(play())


def test_an_owner_that_stood_still_behind_its_write_does_not_begin() -> None:
    async def play() -> None:
        group = Group([0, -5_000, 0], [60_000, 10 * DAY_MS, 60_000])
        await group.take(0)
        await group.step(0)
        await group.step(0)  # has written and read back, and stands still before it begins
        group.advance(LOCK_MS + 1)
        await group.step(0)
        assert not group.begun
        await group.take(1)
        for _ in range(3):
            await group.step(1)
        (epoch, _), = group.begun  # fmt: skip
        assert epoch > WALL_MS
        await group.end()

    asyncio.run(play())


def test_a_renewed_lease_keeps_its_epoch() -> None:
    lease = begun(Host({}))
    assert lease._replace(deadline_ms=lease.deadline_ms + 1).fence_epoch(QUEUE) == lease.epoch
