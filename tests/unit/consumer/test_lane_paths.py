"""Both loops of key lanes, call by call: that of the core does what that of the reference does
(docs/internals/architecture.md#calls)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.clock import ManualClock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.consume_loop import (
    ListenerCancelled,
    OnIoThread,
)
from ordermq.consumer.dispatch.failure_policy import FailurePolicy, ParkKey, Stop, policy_for
from ordermq.consumer.dispatch.key_ordered import KeyOrderedDispatcher
from ordermq.consumer.dispatch.worker_pool import Serving, stacks_of_tasks
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import BatchClaim, Pause, QueueCallbacks
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.events import EventType, Member, NoHistory, Recorder
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch
from .consume_loops import LOOPS, consuming_by, dispatcher_parts
from .test_consume_paths import RAISED, RESULTS

START_MS = 1_000
LEASE_END_MS = 50_000
COUNT = 60
# Keys of the messages: some come often, and some messages have none.
KEYS = random.Random(7).choices(
    ["a", "b", "c", "d", "e", "f", None], [9, 5, 3, 1, 1, 1, 2], k=COUNT
)
# What a call does besides returning: most often what lets further calls follow.
MILD = ["slow", "slow", "more", "room", "release", "unpark", "direct"]
HARSH = ["pause", "seek", "revoke", "lose", "discard", "hold", "late", "others", *RAISED]
calls = st.tuples(
    st.one_of(st.none(), st.just("beside"), st.sampled_from(MILD), st.sampled_from(MILD + HARSH)),
    st.sampled_from([*["none"] * 12, *RESULTS]),
)
between = st.sampled_from([
    "resume", "seek_back", "regain", "more", "room", "later", "direct", "release", "unpark",
])  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {}, {"max_time_consume_continuously_ms": 1}, {"max_in_flight_per_queue": 1},
    {"max_in_flight_per_queue": 3}, {"keyless": "barrier"}, {"max_ahead_per_queue": 8},
    {"commit_interval_ms": 0},
]  # fmt: skip
NOTHING: Iterator[tuple[str | None, str]] = iter(())
POLICIES: list[FailurePolicy | None] = [None, Stop(2), ParkKey(max_attempts=2)]


class Remembered:
    """A history in memory."""

    enabled = True
    lines = None

    def __init__(self, into: list[Any]) -> None:
        self._into = into

    def record(self, event: EventType, **members: Member) -> None:
        self._into.append((event, members))

    def close(self) -> None:
        pass


class Lanes:
    """A queue of messages with keys and a dispatcher; calls run one inside the other."""

    def __init__(
        self,
        policy: FailurePolicy | None = None,
        is_recorded: bool = False,
        **config: Any,
    ) -> None:
        self.clock = ManualClock(START_MS)
        self.seen: list[Any] = []
        history: Recorder = Remembered(self.seen) if is_recorded else NoHistory()
        self.submitted: list[KeyOrderedQueue] = []
        self.held_back: list[tuple[BatchClaim, int, int]] = []
        self.others_wait = False
        self.commits = 0
        self.depth = 0
        self.end = COUNT
        settings = ConsumeConfig(order_by_key=True, **config)
        self.assigned = KeyOrderedQueue(
            QUEUE,
            "G",
            Lease(7, LEASE_END_MS, True),
            0,
            settings,
            QueueCallbacks(
                self._told("lost"), self._told("drained"), self._told("room"), self._told("idle")
            ),
        )
        self.statistics = ConsumerStatistics(self.clock)
        self.statistics.follow(lambda: [self.assigned])
        self.service = KeyOrderedDispatcher(
            dispatcher_parts(self.clock, settings, self.statistics, history),
            policy_for(policy, settings, "G"),
            cast(OffsetCommitter, SimpleNamespace(commit=self._commit, is_transactional=False)),
        )
        service: Any = self.service
        service._pool = SimpleNamespace(
            submit=self.submitted.append,
            report_calls=lambda calls: not self.others_wait,
            awaited=None,
        )
        service._release_later = lambda assigned, context, first, end: self.held_back.append((
            context.claim, first, end,
        ))  # fmt: skip
        if self.assigned.accept(0, batch(range(COUNT), KEYS), COUNT):
            self.submitted.append(self.assigned)

    def _told(self, name: str) -> Callable[..., None]:
        return lambda *about: self.seen.append((name, *map(str, about[1:])))

    async def _commit(self, assigned: KeyOrderedQueue) -> None:
        raise AssertionError("work of the I/O thread is not done here")

    def run(self, listener: Callable[..., Any]) -> None:
        """Serve the queue once, if it was submitted."""
        if not self.submitted:
            return
        self.serving = Serving()
        steps = self.service._consume(self.submitted.pop(), self.serving)
        try:
            step = next(steps)
            while True:
                if isinstance(step, OnIoThread):
                    step.work.close()
                    self.commits += 1
                    step = steps.send((None, None))
                    continue
                step = steps.send(step.perform(listener, cast(Any, None), cast(Any, None)))
        except StopIteration:
            self.submitted += [self.assigned] * bool(self.serving.submits)

    def follow(self, script: Iterator[tuple[str | None, str]]) -> None:
        """Run once, with a listener that follows a script."""

        def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            assigned = self.assigned
            running = sorted(
                (call.messages.offsets(), call.since_ms) for call in assigned.running_calls()
            )
            self.seen.append((
                [message.queue_offset for message in messages],
                [message.sharding_key for message in messages],
                [message.reconsume_times for message in messages],
                context.attempt, context.suspend_ms, context.is_revoked(),
                context.claim.lease.epoch, context.fence_token, assigned.done_offset, running,
            ))  # fmt: skip
            deed, result = next(script, ("last", "none"))
            if deed is not None:
                self.do(deed, context, script)
            return RESULTS[result]

        self.run(listen)
        self.look()

    def do(
        self,
        deed: str,
        context: ConsumeContext | None,
        script: Iterator[tuple[str | None, str]] = NOTHING,
    ) -> None:
        assigned, clock = self.assigned, self.clock
        if deed in RAISED:
            raise RAISED[deed]("a test's own failure")
        if deed == "last":  # of a script: its run ends behind this call
            self.others_wait = True
        elif deed == "beside" and self.depth < 4:
            self.depth += 1  # another worker, while this call runs
            self.follow(script)
            self.depth -= 1
        elif deed == "release":
            self.submit_again()
        elif deed == "pause":
            assigned.pause()
        elif deed == "seek":
            assigned.pause(Pause.SEEK)
        elif deed == "seek_back":
            if assigned.reposition(assigned.generation, assigned.done_offset // 2):
                self.end = assigned.done_offset
            self._submit_if(assigned.resume(Pause.SEEK))
        elif deed == "revoke":
            self.seen.append(assigned.revoke())
        elif deed == "lose":
            assigned.lose_lease("a test says so")
        elif deed == "discard":
            assigned.discard()
        elif deed == "hold" and context is not None:
            context.auto_commit = False  # refused, so the call fails
        elif deed == "more":
            offsets = range(self.end, self.end + 5)
            keys = [KEYS[offset % COUNT] for offset in offsets]
            self._submit_if(
                assigned.accept(assigned.generation, batch(offsets, keys), self.end + 5)
            )
            self.end = max(self.end, assigned.next_pull_offset)
        elif deed == "slow":
            clock.advance(2)
        elif deed == "late":
            clock.advance(LEASE_END_MS)
        elif deed == "others":
            self.others_wait = not self.others_wait
        elif deed == "resume":
            self._submit_if(assigned.resume())
        elif deed == "regain":
            self.end = assigned.committed_offset
            lease = Lease(8, clock.now_ms() + LEASE_END_MS, True)
            self.seen.append(assigned.regain(lease, self.end))
        elif deed == "room":
            self.seen.append(assigned.wait_for_room(COUNT - 4))
        elif deed == "later":
            clock.advance(61_000)
        elif deed == "direct" and assigned.lease is not None:
            lease = Lease(assigned.lease.epoch, clock.now_ms() + 2 * LEASE_END_MS, True)
            self.seen.append(assigned.renew(assigned.generation, lease))
        elif deed == "unpark":
            for key in assigned.parked_keys():
                self._submit_if(bool(assigned.unpark(key)))

    def submit_again(self) -> None:
        """End the pause of the first call that failed."""
        if self.held_back:
            claim, first, end = self.held_back.pop(0)
            self._submit_if(self.assigned.release(claim, first, end))

    def _submit_if(self, is_asked: bool) -> None:
        self.seen.append(is_asked)
        if is_asked:
            self.submitted.append(self.assigned)

    def look(self) -> None:
        assigned, lanes = self.assigned, self.assigned.lanes
        queue = assigned.process_queue
        lanes._check()
        self.seen.append((
            assigned.state, assigned.lease and assigned.lease.epoch, assigned.generation,
            assigned.done_offset, assigned.is_running, assigned.is_paused, assigned.parked_keys(),
            dict(assigned.attempts), dict(assigned.failed_ms), assigned.last_claim_ms,
            assigned.internal_errors, queue.message_count,
            queue.is_dispatched, lanes.watermark, lanes.ready_count, lanes.in_flight_count,
            lanes.old_flight_count, lanes.parked_count, len(self.submitted), len(self.held_back),
            self.commits, self.statistics.as_dict(), self.statistics.of_queues(),
        ))  # fmt: skip


@given(
    st.integers(1, 4),
    st.sampled_from([False, False, False, True]),
    st.booleans(),
    st.sampled_from(SETTINGS),
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(st.lists(calls, min_size=2, max_size=16), st.lists(between, max_size=3)),
        min_size=2,
        max_size=6,
    ),
)
def test_both_loops_of_key_lanes_do_the_same(
    size: int,
    is_strict: bool,
    is_recorded: bool,
    settings: dict[str, Any],
    policy: FailurePolicy | None,
    rounds: list[tuple[list[tuple[str | None, str]], list[str]]],
) -> None:
    told = []
    for loop in LOOPS:
        with consuming_by(loop):
            lanes = Lanes(
                policy,
                is_recorded,
                consume_message_batch_max_size=size,
                strict_results=is_strict,
                **settings,
            )
            for script, deeds in rounds:
                lanes.others_wait = False
                lanes.follow(iter(script))
                for deed in deeds:
                    lanes.do(deed, None)
                lanes.look()
            lanes.others_wait = False
            lanes.follow(itertools.repeat((None, "none")))
            told.append(lanes.seen)
    assert told[0] == told[1]


class AsyncLanes(Lanes):
    """The same on an event loop: each request is served by a task."""

    def serve(self, listener: Callable[..., Any]) -> list[asyncio.Task[None]]:
        """Serve what was submitted, and what will be; return the tasks, to which others come."""
        self.service._listener = listener
        tasks: list[asyncio.Task[None]] = []

        def submit(assigned: KeyOrderedQueue) -> None:
            run = self.service._run_async(assigned, asyncio.Event())
            tasks.append(asyncio.get_running_loop().create_task(run, name=str(assigned.queue)))

        cast(Any, self.service._pool).submit = submit
        submit(self.submitted.pop())
        return tasks

    async def consume(self, listener: Callable[..., Any]) -> None:
        """Serve until no task is left."""
        tasks = self.serve(listener)
        while tasks:
            await tasks.pop(0)


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("seed", range(5))
def test_async_calls_of_a_key_come_one_after_the_other_beside_those_of_others(seed: int) -> None:
    source = random.Random(seed)
    lanes = AsyncLanes(max_in_flight_per_queue=4, consume_message_batch_max_size=2)
    running: list[str | None] = []
    seen: dict[str | None, list[int]] = {}
    most = 0

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        nonlocal most
        keys = [message.sharding_key for message in messages]
        assert not set(keys) & set(running)
        running.extend(keys)
        most = max(most, len(running))
        for _ in range(source.randrange(4)):
            await asyncio.sleep(0)
        for message in messages:
            running.remove(message.sharding_key)
            seen.setdefault(message.sharding_key, []).append(message.queue_offset)

    asyncio.run(lanes.consume(listen))
    for key, offsets in seen.items():
        assert offsets == [offset for offset in range(COUNT) if KEYS[offset] == key]
    assert 1 < most <= 4
    assert lanes.assigned.done_offset == lanes.statistics["messages_done"] == COUNT
    assert lanes.assigned.running_calls() == []
    assert not lanes.assigned.is_running


@pytest.mark.usefixtures("loop")
def test_an_async_call_has_its_task_its_timeouts_and_what_it_raises() -> None:
    lanes = AsyncLanes()
    tasks = []

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        tasks.append(asyncio.current_task())
        offset = messages[0].queue_offset
        if context.attempt == 0 and offset == 3:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        if context.attempt == 0 and offset == 4:
            await asyncio.sleep(0)
            raise StopAsyncIteration
        if context.attempt == 0 and offset == 5:
            waited = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited
        return "nonsense" if context.attempt == 0 and offset == 6 else ConsumeResult.SUCCESS

    async def work() -> None:
        while lanes.submitted:
            await lanes.consume(listen)
            lanes.submit_again()

    asyncio.run(work())
    assert lanes.assigned.done_offset == COUNT
    assert None not in tasks
    assert lanes.statistics["listener_errors"] == 3


@pytest.mark.usefixtures("loop")
def test_what_an_async_listener_returns_is_awaited_whatever_it_is() -> None:
    lanes = AsyncLanes()

    class Promise:
        def __await__(self) -> Iterator[Any]:
            yield from asyncio.sleep(0).__await__()
            return ConsumeResult.SUCCESS

    async def plain() -> None: ...

    async def listening() -> None:
        made = [asyncio.get_running_loop().create_future(), Promise(), plain(), None, 1]
        cast(Any, made[0]).set_result(ConsumeResult.SUCCESS)
        await lanes.consume(lambda messages, context: made.pop() if made else None)

    asyncio.run(listening())
    assert lanes.assigned.done_offset == COUNT
    assert lanes.statistics["listener_errors"] == 0


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_cancelled_call_fails_nothing_and_its_key_goes_on(is_closed: bool) -> None:
    lanes = AsyncLanes(max_in_flight_per_queue=2)
    judged: list[Any] = []
    service: Any = lanes.service
    judge = service._judge
    service._judge = lambda context, outcome: judged.append(outcome[1]) or judge(context, outcome)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        stuck, let_go = loop.create_future(), asyncio.Event()

        async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
            if messages[0].queue_offset == 1 and not let_go.is_set():
                stuck.set_result(asyncio.current_task())
                await let_go.wait()

        tasks = lanes.serve(listen)
        task = await stuck
        assert "await let_go.wait()" in stacks_of_tasks(loop, task.get_name())
        let_go.set()
        service._is_closed = is_closed
        task.cancel()
        await asyncio.gather(*tasks)
        lanes.submit_again()
        if not is_closed:
            await lanes.consume(listen)
            assert lanes.assigned.done_offset == COUNT

    async def consume() -> None:
        await asyncio.wait_for(work(), 20)

    asyncio.run(consume())
    assert lanes.assigned.running_calls() == []
    assert not lanes.assigned.is_running
    if not is_closed:
        assert [type(each) for each in judged] == [ListenerCancelled]


@pytest.mark.usefixtures("loop")
def test_a_listener_that_never_waits_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordermq.consumer.dispatch.consume_loop.HOLD_S", -1.0)
    lanes = AsyncLanes(max_in_flight_per_queue=1)
    calls = 0
    seen = []

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        nonlocal calls
        calls += 1

    async def watch() -> None:
        while calls < COUNT:
            seen.append(calls)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(lanes.consume(listen), watch())

    asyncio.run(both())
    assert len(set(seen)) > COUNT // 2


@pytest.mark.usefixtures("loop")
def test_an_interrupt_of_the_program_ends_its_loop() -> None:
    lanes = AsyncLanes()

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(lanes.consume(listen))
    assert lanes.assigned.lease is None, "given up: nobody comes back to the queue"
    assert lanes.assigned.running_calls() == []


@pytest.mark.usefixtures("loop")
def test_an_internal_error_gives_back_what_was_claimed() -> None:
    lanes = Lanes()
    service: Any = lanes.service

    def broken(*about: object) -> None:
        raise RuntimeError("a test's own failure")

    # What fails is what a dispatcher does between a claim and its call.
    service._plan = service._make_plan(1, on_start=broken, is_shared=True, is_judged=False)
    service._client.runtime = None
    serving = Serving()
    with pytest.raises(RuntimeError) as raised:
        service._run(lanes.submitted.pop(), serving)
    service._recover(lanes.assigned, serving, raised.value)
    assert lanes.assigned.lease is None
    assert lanes.assigned.internal_errors == 1
    assert lanes.assigned.running_calls() == []
    assert not lanes.assigned.is_running
