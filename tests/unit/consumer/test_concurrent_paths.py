"""Both loops of concurrent groups, call by call: that of the core does what that of the reference
does (docs/internals/architecture.md#calls)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq import core
from ordermq.client.user_code import OwnThreads
from ordermq.clock import ManualClock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch import concurrent
from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher, SendBack
from ordermq.consumer.dispatch.failure_policy import DeadLetter
from ordermq.consumer.dispatch.worker_pool import Runs, Serving, WorkerPool
from ordermq.consumer.listener import ConcurrentContext
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    Pause,
    QueueCallbacks,
    RunningCall,
)
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.events import NoHistory, Recorder
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch
from .consume_loops import LOOPS, consuming_by, dispatcher_parts
from .test_consume_paths import RAISED, RESULTS
from .test_lane_paths import Remembered

DEADLINE_S = 20
START_MS = 1_000
LEASE_END_MS = 50_000
COUNT = 60
# What one call of the listener does besides returning.
MILD = ["more", "slow", "finish", "room", "watch", "direct"]
HARSH = ["pause", "seek", "revoke", "lose", "discard", "late", *RAISED]
LIMITS = ["all", "ack none", "ack one", "ack text", "dead letter"]
calls = st.tuples(
    st.one_of(st.none(), st.sampled_from(MILD), st.sampled_from(HARSH + LIMITS)),
    st.sampled_from([*["none"] * 12, *RESULTS]),
)
nested_calls = st.one_of(calls, calls, st.tuples(st.just("beside"), st.just("none")))
between = st.sampled_from([
    "resume", "seek_back", "regain", "more", "room", "later", "finish", "direct",
])  # fmt: skip
NOTHING: Iterator[tuple[str | None, str]] = iter(())


class Instant(ManualClock):
    """A clock on which a sleep takes no time of the test."""

    async def sleep_ms(self, delay_ms: int) -> None:
        self.advance(max(delay_ms, 0))


class Batches:
    """A queue and a dispatcher; what workers would do beside a call is done inside of it.

    Args:
        per_run: calls after which a run claims no more.
    """

    def __init__(
        self,
        per_run: int = 1,
        *,
        is_recorded: bool = False,
        queue: MessageQueue = QUEUE,
        count: int = COUNT,
        **config: Any,
    ) -> None:
        self.clock = Instant(START_MS)
        self.seen: list[Any] = []
        history: Recorder = Remembered(self.seen) if is_recorded else NoHistory()
        self.submitted: list[AssignedQueue] = []
        self.failed: list[tuple[RunningCall, ConcurrentContext, int, int]] = []
        self.depth = 0
        self.end = count
        self.is_idle_told = False
        self.reported = 0
        self.statistics = ConsumerStatistics(self.clock)
        self.assigned = AssignedQueue(
            queue,
            "G",
            Lease(7, LEASE_END_MS, True),
            0,
            QueueCallbacks(
                self._told("lost"), self._told("drained"), self._told("room"), self._tell_idle
            ),
        )
        self.statistics.follow(lambda: [self.assigned])
        settings = ConsumeConfig(send_back_retry_ms=10, **config)
        with mock.patch.object(concurrent, "MOST_UNREPORTED", per_run):
            self.service = ConcurrentDispatcher(
                dispatcher_parts(self.clock, settings, self.statistics, history),
                DeadLetter(),
                None,
                is_broadcasting=False,
            )
        service: Any = self.service
        service._pool = SimpleNamespace(
            submit=self.submitted.append, report_calls=self._report_calls, awaited=None
        )
        service._finish_soon = self._finish_soon
        service._send_back = self._send_back
        if self.assigned.accept(0, batch(range(count)), count):
            self.submitted.append(self.assigned)

    def _told(self, name: str) -> Callable[..., None]:
        return lambda *about: self.seen.append((name, *map(str, about[1:])))

    def _tell_idle(self) -> None:
        self.is_idle_told = True

    def _report_calls(self, reported: int) -> bool:
        self.reported += reported
        return False

    def _finish_soon(
        self, call: RunningCall, context: ConcurrentContext, done: int, treatment: SendBack
    ) -> None:
        about = treatment.delay_level, repr(treatment.error)
        self.seen.append(("failed", call.messages.offsets(), done, *about, call.since_ms))
        self.failed.append((call, context, done, treatment))

    async def _send_back(
        self, assigned: AssignedQueue, messages: Sequence[MessageView], treatment: SendBack
    ) -> list[int]:
        # Every third message is not stored again.
        return [each.queue_offset for each in messages if each.queue_offset % 3 == 0]

    def follow(self, script: Iterator[tuple[str | None, str]]) -> None:
        """Serve the queue once, if it was submitted, with a listener that follows a script."""

        def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> object:
            assigned = self.assigned
            self.seen.append((
                [message.queue_offset for message in messages], context.attempt,
                context.suspend_ms, context.ack_index, context.delay_level, context.is_revoked(),
                context.claim.lease.epoch, assigned.done_offset, assigned.is_running,
                self.running(), assigned.last_claim_ms, self.statistics["messages_done"],
                self.statistics["batches"],
            ))  # fmt: skip
            deed, result = next(script, (None, "none"))
            if deed is not None:
                self.do(deed, context, script)
            return RESULTS[result]

        if not self.submitted:
            return
        self.serving = Serving()
        steps = self.service._consume(self.submitted.pop(0), self.serving)
        try:
            step = next(steps)
            while True:
                step = steps.send(step.perform(listen, cast(Any, None), cast(Any, None)))
        except StopIteration:
            pass
        self.submitted += [self.assigned] * bool(self.serving.submits)
        self.look()

    def run(self) -> None:
        """Serve the queue once with the dispatcher's listener."""
        self.serving = Serving()
        cast(Any, self.service)._run(self.submitted.pop(), self.serving)
        self.submitted += [self.assigned] * bool(self.serving.submits)

    def recover(self, error: BaseException) -> None:
        cast(Any, self.service)._recover(self.assigned, self.serving, error)

    def pool(self, size: int) -> WorkerPool[AssignedQueue]:
        service: Any = self.service
        runs: Runs[AssignedQueue] = Runs(service._run, service._run_async, service._recover)
        service._pool = WorkerPool(
            size, runs, "test", lambda check: threading.Thread(target=check).start(), OwnThreads
        )
        return cast("WorkerPool[AssignedQueue]", service._pool)

    def drain(self, script: Iterator[tuple[str | None, str]]) -> None:
        """Serve the queue as long as it is submitted."""
        while self.submitted:
            self.follow(script)

    def do(
        self,
        deed: str,
        context: ConcurrentContext | None,
        script: Iterator[tuple[str | None, str]] = NOTHING,
    ) -> None:
        assigned, clock = self.assigned, self.clock
        if deed in RAISED:
            raise RAISED[deed]("a test's own failure")
        if deed == "beside" and self.depth < 4:
            self.depth += 1  # another worker, while this call runs
            self.follow(script)
            self.depth -= 1
        elif deed in LIMITS and context is not None:
            ends: dict[str, Any] = {"all": 99, "ack none": -1, "ack one": 0, "ack text": "1"}
            context.ack_index = ends.get(deed, -1)
            context.delay_level = -1 if deed == "dead letter" else 4
        elif deed == "watch":
            found = self.service._running_calls([])
            for call in sorted(found, key=lambda each: each.messages.first_offset):
                self.service._on_slow(call)
        elif deed == "finish":
            while self.failed:
                with pytest.raises(StopIteration):
                    self.service._finish(*self.failed.pop(0)).send(None)
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
        elif deed == "more":
            offsets = range(self.end, self.end + 5)
            self._submit_if(assigned.accept(assigned.generation, batch(offsets), self.end + 5))
            self.end = max(self.end, assigned.next_pull_offset)
        elif deed == "slow":
            clock.advance(2)
        elif deed == "late":
            clock.advance(LEASE_END_MS)
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

    def _submit_if(self, is_asked: bool) -> None:
        if is_asked:
            self.submitted.append(self.assigned)

    def look(self) -> None:
        self.seen.append((*self.state(), len(self.submitted), self.is_idle_told, self.reported))
        self.is_idle_told = False

    def running(self) -> list[tuple[list[int], int, int]]:
        found = self.service._running_calls([])
        return sorted((call.messages.offsets(), call.since_ms, call.thread) for call in found)

    def state(self) -> tuple[Any, ...]:
        assigned, queue = self.assigned, self.assigned.process_queue
        queue._check()
        return (
            assigned.state, assigned.lease and assigned.lease.epoch, assigned.generation,
            assigned.done_offset, assigned.is_running, assigned.is_paused,
            assigned.should_end_claim, dict(assigned.attempts), assigned.last_claim_ms,
            assigned.internal_errors, queue.pending_count, queue.consuming_count,
            queue.is_dispatched, self.running(), len(self.failed),
            self.statistics.as_dict(), self.statistics.of_queues(), self.statistics.rates("T"),
        )  # fmt: skip


def rounds_of(calls: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw scripts of calls, and what is done between one and the next."""
    script = st.lists(calls, min_size=2, max_size=16)
    return st.lists(st.tuples(script, st.lists(between, max_size=3)), min_size=2, max_size=6)


@given(
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    rounds_of(nested_calls),
)
def test_both_loops_do_the_same_batch_by_batch(
    size: int,
    is_strict: bool,
    is_recorded: bool,
    rounds: list[tuple[list[tuple[str | None, str]], list[str]]],
) -> None:
    told = []
    for loop in LOOPS:
        with consuming_by(loop):
            batches = Batches(
                is_recorded=is_recorded,
                consume_message_batch_max_size=size,
                strict_results=is_strict,
            )
            for script, deeds in rounds:
                left = iter(script)
                for _ in range(len(script) + 1):
                    batches.follow(left)
                for deed in deeds:
                    batches.do(deed, None)
                batches.look()
            batches.do("finish", None)
            told.append(batches.seen)
    assert told[0] == told[1]


@pytest.mark.parametrize("per_run", [1, 256])
@pytest.mark.parametrize("deed", [*MILD, *HARSH, *LIMITS, None])
def test_both_loops_do_the_same_after_each_deed(deed: str | None, per_run: int) -> None:
    """Of each kind one, in a call between two others, with every result."""
    for result in RESULTS:
        told = []
        for loop in LOOPS:
            with consuming_by(loop):
                batches = Batches(per_run, consume_message_batch_max_size=2)
                batches.do("room", None)
                batches.drain(iter([(None, "none"), (deed, result), (None, "none")]))
                batches.seen.append(batches.state())
                for behind in ("resume", "seek_back", "regain", "more", "finish"):
                    batches.do(behind, None)
                    batches.drain(iter(()))
                    batches.seen += [behind, batches.state()]
                told.append(batches.seen)
        assert told[0] == told[1], result


# Not "late": of a run of many a request is left over, which finds the lease expired and says so.
@given(
    st.integers(1, 70),
    st.booleans(),
    rounds_of(calls.filter(lambda call: call[0] != "late")),
)
def test_a_run_of_many_batches_makes_the_calls_of_as_many_runs(
    size: int,
    is_strict: bool,
    rounds: list[tuple[list[tuple[str | None, str]], list[str]]],
) -> None:
    told = []
    for loop, per_run in zip(LOOPS, (1, 256), strict=True):
        with consuming_by(loop):
            batches = Batches(
                per_run, consume_message_batch_max_size=size, strict_results=is_strict
            )
            batches.look = lambda: None  # type: ignore[method-assign]  # of which there are fewer
            for script, deeds in rounds:
                batches.drain(iter(script))
                batches.seen.append(batches.state())
                for deed in deeds:
                    batches.do(deed, None)
            batches.do("finish", None)
            batches.drain(iter(()))
            batches.seen += [batches.state(), batches.reported]
            told.append(batches.seen)
    assert told[0] == told[1]


@pytest.mark.usefixtures("loop")
def test_a_call_that_the_watch_has_sent_back_is_not_settled_again() -> None:
    batches = Batches(256, consume_message_batch_max_size=20)
    batches.drain(iter([(None, "none"), ("watch", "none"), (None, "none")]))
    assert batches.assigned.done_offset == 20
    assert batches.statistics["messages_done"] == 40
    assert batches.statistics["timed_out"] == 20
    assert len(batches.failed) == 1
    batches.do("finish", None)
    batches.drain(iter(()))
    assert batches.assigned.done_offset == COUNT


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("result", ["none", "nonsense"])
def test_the_watch_finds_the_calls_of_every_thread(result: str) -> None:
    batches = Batches(256)
    service: Any = batches.service
    threads: set[int] = set()
    entered, let_go = threading.Barrier(4), threading.Event()

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> object:
        if len(threads) < 3 and threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            entered.wait(DEADLINE_S)
            assert let_go.wait(DEADLINE_S)
            return RESULTS[result]
        return None

    service._listener = listen
    pool = batches.pool(3)
    pool.submit(batches.submitted.pop())
    entered.wait(DEADLINE_S)
    found = batches.service._running_calls([])
    assert {call.thread for call in found} == threads
    assert sorted(call.messages.offsets() for call in found) == [[0], [1], [2]]
    for call in found:
        batches.service._on_slow(call)
    assert batches.service._running_calls([]) == []
    let_go.set()
    assert pool.close(DEADLINE_S)
    assert batches.statistics["timed_out"] == 3
    assert batches.statistics["listener_errors"] == 0
    assert len(batches.failed) == 3
    batches.do("finish", None)


@pytest.mark.usefixtures("loop")
def test_a_broken_run_has_no_call_in_progress() -> None:
    batches = Batches(256)
    service: Any = batches.service

    def refuse(assigned: AssignedQueue) -> None:
        raise TypeError("a defect")

    def perform() -> None:
        batches.follow(iter([(None, "none"), ("more", "none")]))

    service._pool.submit = refuse
    with pytest.raises(TypeError, match="a defect") as raised:
        perform()
    batches.recover(raised.value)
    assert batches.service._running_calls([]) == []
    assert batches.statistics["messages_done"] == 0
    assert not batches.service._runs


@pytest.mark.usefixtures("loop")
def test_what_a_broken_run_has_done_before_is_counted() -> None:
    batches = Batches(256)

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        if messages[0].queue_offset == 5:
            cast(Any, batches.assigned)._on_room = None  # a defect, found by who settles
            batches.assigned.wait_for_room(batches.assigned.process_queue.message_count)

    service: Any = batches.service
    service._listener = listen
    with pytest.raises(TypeError) as raised:
        while batches.submitted:
            batches.run()
    cast(Any, batches.assigned)._on_room = lambda _: None
    batches.recover(raised.value)
    assert batches.assigned.lease is None
    assert batches.service._running_calls([]) == []
    assert batches.statistics["internal_errors"] == 1
    assert batches.statistics["messages_done"] == 6


@pytest.mark.usefixtures("loop")
def test_counts_are_read_while_a_run_goes_on() -> None:
    batches = Batches(256)
    counted: list[tuple[int, int]] = []

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        of_queue = batches.statistics.of_queues().get(QUEUE)
        counted.append((
            batches.statistics["messages_done"], of_queue.messages_done if of_queue else 0,
        ))  # fmt: skip

    service: Any = batches.service
    service._listener = listen
    while batches.submitted:
        batches.run()
    assert counted == [(done, done) for done in range(COUNT)]
    assert batches.statistics["batches"] == COUNT


@pytest.mark.usefixtures("loop")
def test_a_run_has_the_batches_of_a_millisecond() -> None:
    batches = Batches(256)
    batches.follow(iter([(None, "none")] * 3 + [("slow", "none")]))
    served = [row[0][0] for row in batches.seen if isinstance(row[0], list)]
    assert served == [0, 1, 2, 3]
    assert batches.submitted == [batches.assigned], "for the next worker"


@pytest.mark.usefixtures("loop")
def test_a_retry_topic_counts_the_attempts_of_other_members() -> None:
    queue = MessageQueue(f"{RETRY_PREFIX}G", QUEUE.broker_name, QUEUE.queue_id)
    batches = Batches(256, queue=queue)
    attempts: list[int] = []
    with mock.patch.object(MessageView, "reconsume_times", 4):
        batches.assigned.attempts[1] = 2
        service: Any = batches.service
        service._listener = lambda messages, context: attempts.append(context.attempt)
        while batches.submitted:
            batches.run()
    assert attempts == [4, 6] + [4] * (COUNT - 2)


@pytest.mark.usefixtures("loop")
def test_the_failures_of_a_message_are_forgotten_once_it_is_done() -> None:
    batches = Batches(256, consume_message_batch_max_size=2)
    assigned = batches.assigned
    assigned.outages.update({5: 1, 9: 2})
    batches.drain(iter([(None, "suspend"), (None, "one"), (None, "none")]))
    batches.do("finish", None)
    assert assigned.attempts == {0: 1, 3: 1}, "not stored again, and not done yet"
    batches.submitted = [assigned]
    batches.drain(iter(()))
    assert assigned.done_offset == COUNT
    assert assigned.attempts == assigned.outages == {}


class Tasks(Batches):
    """The same with an `async def` listener: each request is served by a task."""

    def serve(self, listener: Callable[..., Any]) -> None:
        async def serve() -> None:
            service: Any = self.service
            service._listener = listener
            tasks: list[asyncio.Task[None]] = []

            def submit(assigned: AssignedQueue) -> None:
                run = service._run_async(assigned, asyncio.Event())
                tasks.append(asyncio.get_running_loop().create_task(run))

            service._pool.submit = submit
            for assigned in self.submitted:
                submit(assigned)
            self.submitted.clear()
            async with asyncio.timeout(DEADLINE_S):
                while tasks:
                    await tasks.pop(0)
            service._pool.submit = self.submitted.append

        asyncio.run(serve())


@pytest.mark.usefixtures("loop")
def test_an_async_listener_is_awaited_and_what_fails_is_sent_back() -> None:
    tasks, done = Tasks(256, consume_message_batch_max_size=3), list[int]()

    async def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> object:
        first = messages[0].queue_offset
        if first % 2:
            await asyncio.sleep(0)
        if first == 9 and context.attempt == 0:
            raise ValueError("a test's own failure")
        if first == 30:
            context.ack_index = 0
        done.extend(message.queue_offset for message in messages)
        return ConsumeResult.SUSPEND if first == 12 and not context.attempt else None

    tasks.serve(listen)
    failed = sorted(row[1:3] for row in tasks.seen if row[0] == "failed")
    assert failed == [([9, 10, 11], 0), ([12, 13, 14], 0), ([30, 31, 32], 1)]
    tasks.do("finish", None)
    tasks.serve(listen)
    assert set(done) == set(range(COUNT)) - {10, 11}, "these are stored again"
    assert tasks.assigned.done_offset == COUNT
    assert tasks.statistics["listener_errors"] == 1
    assert not tasks.failed


@pytest.mark.usefixtures("loop")
def test_an_async_call_that_ends_behind_a_close_is_not_settled() -> None:
    tasks = Tasks(256)

    async def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        tasks.service._is_closed |= messages[0].queue_offset == 7

    tasks.serve(listen)
    assert tasks.assigned.is_running
    assert tasks.assigned.done_offset == 7


@pytest.mark.usefixtures("loop")
def test_many_threads_and_failures_lose_nothing() -> None:
    """Listeners fail at random while another thread fills, and a third is the watch."""
    count, chance = 4_000, random.Random(5)
    batches = Batches(256, consume_message_batch_max_size=3)
    service: Any = batches.service
    service._send_back = _all_stored
    done: set[int] = set()
    finished = threading.Lock()
    ended = threading.Event()

    def listen(messages: Sequence[MessageView], context: ConcurrentContext) -> object:
        offsets = [message.queue_offset for message in messages]
        with finished:
            luck = chance.random()
            done.update(offsets)
        if luck < 0.05:
            raise ValueError("a test's own failure")
        if luck < 0.1:
            context.ack_index = 0
        return ConsumeResult.SUSPEND if 0.1 < luck < 0.15 else None

    def finish_soon(call: RunningCall, context: ConcurrentContext, *about: Any) -> None:
        with pytest.raises(StopIteration):
            service._finish(call, context, *about).send(None)

    service._finish_soon = finish_soon
    service._listener = listen
    pool = batches.pool(4)
    batches.assigned._on_idle = lambda: (
        ended.set() if batches.assigned.done_offset == count else None
    )

    def watch() -> None:
        while not ended.is_set():
            for call in service._running_calls([]):
                service._on_slow(call)

    watching = threading.Thread(target=watch)
    watching.start()
    pool.submit(batches.submitted.pop())
    for first in range(COUNT, count, 20):
        if batches.assigned.accept(0, batch(range(first, first + 20)), first + 20):
            pool.submit(batches.assigned)
    assert ended.wait(DEADLINE_S), batches.assigned.done_offset
    watching.join(DEADLINE_S)
    assert pool.close(DEADLINE_S)
    assert done == set(range(count))
    assert not batches.assigned.is_running
    assert batches.assigned.process_queue.message_count == 0
    assert batches.service._running_calls([]) == []


async def _all_stored(
    assigned: AssignedQueue, messages: Sequence[MessageView], treatment: SendBack
) -> list[int]:
    return []


@pytest.mark.usefixtures("loop")
def test_a_run_without_a_call_has_none_to_take() -> None:
    batches = Batches(256)
    run = core.ConsumeRun(batches.service._plan, batches.assigned, bool, batches.submitted.append)
    assert run.call is None
    assert run.take(MessageRun([(batch([0]), 0, 1)])) is None


@pytest.mark.usefixtures("loop")
def test_each_call_is_settled_by_its_worker_or_by_the_watch_and_never_by_both() -> None:
    count = 2_000
    batches = Batches(256, count=count, consume_message_batch_max_size=1)
    service, assigned = batches.service, batches.assigned
    called: list[int] = []
    taken: list[int] = []
    failures: list[BaseException] = []

    def listen(messages: MessageRun, context: ConcurrentContext) -> None:
        called.append(messages.first_offset)

    def work() -> None:
        while assigned.done_offset < count:
            serving = Serving()
            try:
                steps = service._consume(batches.submitted.pop(), serving)
            except IndexError:  # others have it
                time.sleep(0)
                continue
            with contextlib.suppress(StopIteration):
                step = next(steps)
                while True:
                    step = steps.send(step.perform(listen, cast(Any, None), cast(Any, None)))
            if serving.submits:
                batches.submitted.append(assigned)

    def watch() -> None:
        while assigned.done_offset < count:
            for call in service._running_calls([]):
                context = service._take(call.messages)
                if context is not None:
                    assert context.messages is call.messages
                    taken.append(call.messages.first_offset)
                    assigned.finish(context.claim, call.messages.offsets())

    def guarded(role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as failure:  # noqa: BLE001 - told by the test's own thread
            failures.append(failure)

    threads = [
        threading.Thread(target=guarded, args=(role,)) for role in (work, work, watch, watch)
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    finally:
        sys.setswitchinterval(before)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads), assigned.done_offset
    assert sorted(called) == list(range(count))
    assert len(taken) == len(set(taken))
    assert batches.statistics["messages_done"] + len(taken) == count
