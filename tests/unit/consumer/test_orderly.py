"""Runs of the orderly dispatcher: the size of claims, and their early ends
(docs/internals/semantics.md#orderly-consumption)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.clock import ManualClock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.consume_loop import OnIoThread
from ordermq.consumer.dispatch.failure_policy import FailurePolicy, Stop, policy_for
from ordermq.consumer.dispatch.orderly import MAX_MESSAGES_PER_CLAIM, OrderlyDispatcher
from ordermq.consumer.dispatch.worker_pool import Serving
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
    QueueState,
)
from ordermq.consumer.queue.receiver import DirectResult
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import StateError
from ordermq.events import Recorder
from ordermq.leases.lease import Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch
from .claims import begin_batch
from .consume_loops import dispatcher_parts

START_MS = 1_000
LEASE_END_MS = 50_000
Listener = Callable[[Sequence[MessageView], ConsumeContext], Any]


pytestmark = pytest.mark.usefixtures("loop")


class Consumption:
    """A queue of messages 0..199 and a dispatcher, driven a step at a time on one thread."""

    def __init__(
        self,
        on_failure: FailurePolicy | None = None,
        recorder: Recorder | None = None,
        **config: Any,
    ) -> None:
        self.clock = ManualClock(START_MS)
        self.drained: list[AssignedQueue] = []
        self.submitted: list[AssignedQueue] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.assigned = AssignedQueue(
            QUEUE,
            "G",
            Lease(7, LEASE_END_MS, True),
            0,
            QueueCallbacks(
                on_lease_lost=lambda *_: None,
                on_drained=self.drained.append,
                on_room=lambda *_: None,
                on_idle=lambda: None,
            ),
        )
        assert self.assigned.accept(0, batch(range(200)), 200)
        self.claim: BatchClaim | None = None
        self.claimed: list[int] = []
        self.seen: list[int] = []
        self.statistics = ConsumerStatistics(self.clock)
        self.statistics.follow(lambda: [self.assigned])
        self.runtime = SimpleNamespace(post=lambda job: None, spawn=self.spawn)
        settings = ConsumeConfig(**config)
        self.service = OrderlyDispatcher(
            dispatcher_parts(self.clock, settings, self.statistics, recorder, self.runtime),
            policy_for(on_failure, settings, "G"),
            cast(OffsetCommitter, SimpleNamespace(commit=self.commit, is_transactional=False)),
        )
        self.others_wait = False
        self.service._pool = cast(
            Any,
            SimpleNamespace(
                submit=self.submitted.append, report_calls=lambda calls: not self.others_wait
            ),
        )
        self.commits = 0

    def spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def commit(self, assigned: AssignedQueue) -> None:
        raise AssertionError("work of the I/O thread is not done here")

    def run(self, listener: Listener) -> None:
        """One run, to its end."""
        serving = Serving()
        steps = self.service._consume(self.assigned, serving)
        try:
            step = next(steps)
            while True:
                if isinstance(step, OnIoThread):
                    step.work.close()
                    self.commits += 1
                    step = steps.send((None, None))
                    continue
                step = steps.send(self.call(step, listener))
        except StopIteration:
            self.submitted += [self.assigned] * bool(serving.submits)

    def call(self, calls: Any, listener: Listener) -> Any:
        def listen(messages: Sequence[MessageView], context: ConsumeContext) -> Any:
            if context.claim is not self.claim:
                self.claim = context.claim
                self.claimed.append(len(context.claim.messages))
            self.seen += [message.queue_offset for message in messages]
            return listener(messages, context)

        return calls.perform(listen, cast(Any, None), cast(Any, None))


def test_a_quick_listener_is_called_batch_by_batch_from_growing_claims() -> None:
    consumption = Consumption()
    consumption.run(lambda messages, context: ConsumeResult.SUCCESS)
    assert consumption.seen == list(range(200))
    assert consumption.claimed == [1, 2, 4, 8, 16, 32, 64, 73]
    assert consumption.assigned.done_offset == 200
    assert consumption.statistics["batches"] == consumption.statistics["messages_done"] == 200


def test_what_a_run_has_counted_is_read_at_any_time_and_once() -> None:
    consumption = Consumption()
    statistics, read = consumption.statistics, list[int]()

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        read.append(statistics["messages_done"])
        return ConsumeResult.SUCCESS

    consumption.run(listen)
    # Claims of 1, 2, 4 .. messages: what is settled is seen from the next claim on.
    assert read[:8] == [0, 1, 1, 3, 3, 3, 3, 7]
    assert (statistics["messages_done"], statistics["batches"]) == (200, 200)
    assigned = consumption.assigned
    assert assigned.accept(assigned.generation, batch(range(200, 203)), 203)
    consumption.run(listen)
    assigned.discard()  # nobody asks this queue any more
    assert statistics["messages_done"] == statistics.of_queues()[QUEUE].messages_done == 203
    assert statistics.rates(QUEUE.topic).consume_ok_tps > 0


def test_a_run_that_is_about_to_end_leaves_the_next_one_alone() -> None:
    consumption = Consumption()
    assigned = consumption.assigned
    first = consumption.service._consume(assigned, Serving())
    assert consumption.call(next(first), lambda messages, context: None) is None
    # Its worker has cleared the dispatch flag, and not ended yet: the next worker may begin.
    assert assigned.accept(assigned.generation, batch(range(200, 210)), 210)
    left = [first]

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        while left:
            left.pop().close()

    consumption.run(listen)
    assert assigned.done_offset == 210
    assert not assigned.is_running
    assert consumption.seen[-10:] == list(range(200, 210))
    assert consumption.statistics["messages_done"] == 210


def test_a_queue_is_submitted_again_behind_the_others_only_while_it_has_messages() -> None:
    consumption = Consumption()
    consumption.assigned.batches_per_claim = MAX_MESSAGES_PER_CLAIM
    consumption.others_wait = True
    consumption.assigned.accept(0, batch(range(200, 300)), 300)
    consumption.run(lambda messages, context: ConsumeResult.SUCCESS)
    assert consumption.seen == list(range(256))
    assert consumption.submitted == [consumption.assigned]
    assert consumption.assigned.process_queue.is_dispatched
    consumption.run(lambda messages, context: ConsumeResult.SUCCESS)
    assert consumption.seen == list(range(300))
    assert consumption.submitted == [consumption.assigned], "once more would find nothing"
    assert not consumption.assigned.process_queue.is_dispatched
    assert consumption.assigned.accept(0, batch(range(300, 301)), 301), "its next has one again"


def test_a_slow_listener_has_each_of_its_messages_done_as_it_returns() -> None:
    consumption = Consumption()
    done = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        done.append(consumption.assigned.done_offset)
        consumption.clock.advance(2)

    consumption.run(listen)
    assert done == list(range(200))
    assert set(consumption.claimed) == {1}


def test_a_listener_that_becomes_slow_has_its_messages_done_soon() -> None:
    consumption = Consumption()
    assigned, done = consumption.assigned, []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        if messages[0].queue_offset == 40:  # the tenth of a claim of 32
            consumption.clock.advance(1_000)
        done.append(assigned.done_offset)

    consumption.run(listen)
    assert done[40] == 31
    assert done[41] == 41, "the claim ended with the slow call; what it had left was not begun"
    assert consumption.seen == list(range(200))
    assert assigned.done_offset == 200


@pytest.mark.parametrize(
    "config",
    [
        {"auto_commit": False},
        {"commit_interval_ms": 0},
        {"consume_message_batch_max_size": 256},
        {"consume_message_batch_max_size": 170},
    ],
)
def test_a_claim_is_one_batch_if_each_batch_is_committed_by_itself(config: dict[str, Any]) -> None:
    consumption = Consumption(**config)
    consumption.clock.advance(1)
    consumption.run(lambda messages, context: ConsumeResult.SUCCESS)
    size = config.get("consume_message_batch_max_size", 1)
    assert set(consumption.claimed) <= {size, 200 % size}
    assert consumption.seen == list(range(200))
    assert consumption.commits == (200 if "commit_interval_ms" in config else 0)


@pytest.mark.parametrize("end", ["revoke", "pause", "lost lease"])
def test_a_claim_is_ended_at_its_running_batch(end: str) -> None:
    consumption = Consumption()
    assigned = consumption.assigned

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        if messages[0].queue_offset == 20:
            assert len(context.claim.messages) > 8, "in the middle of a claim"
            if end == "lost lease":
                consumption.clock.advance(LEASE_END_MS)
            elif end == "revoke":
                assert not assigned.revoke(), "the running claim is waited for"
            else:
                assigned.pause()

    consumption.run(listen)
    assert consumption.seen == list(range(21))
    if end == "lost lease":  # what the claim has done may have been done by another owner too
        assert assigned.lease is None
        assert assigned.done_offset == assigned.committed_offset == 0
    else:
        assert assigned.done_offset == 21
        assert assigned.process_queue.pending_count == 179
        assert not assigned.is_running
        assert not assigned.process_queue.is_dispatched
    assert consumption.drained == ([assigned] if end == "revoke" else [])
    assert (assigned.state is QueueState.ACTIVE) == (end != "revoke")


def test_a_failure_in_a_claim_redelivers_that_batch_and_the_following_ones() -> None:
    consumption = Consumption(consume_message_batch_max_size=3)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        offsets = [message.queue_offset for message in messages]
        return offsets.index(22) if 22 in offsets and context.attempt == 0 else None

    consumption.run(listen)
    assert consumption.seen[-1] == 23
    assert consumption.assigned.done_offset == 22
    assert consumption.assigned.attempts == {22: 1}
    assert consumption.statistics["messages_done"] == 22
    consumption.seen.clear()
    consumption.run(listen)
    assert consumption.seen == list(range(22, 200))
    assert consumption.assigned.done_offset == 200


def test_the_fence_token_of_a_batch_is_its_own_offset() -> None:
    consumption = Consumption()
    tokens = []
    consumption.run(lambda messages, context: tokens.append(context.fence_token))
    assert tokens == [(7, offset) for offset in range(200)]


def test_a_queue_pauses_longer_after_each_internal_error_in_a_row() -> None:
    consumption = Consumption()
    assigned, service = consumption.assigned, consumption.service

    async def submitted_after(rest_ms: int) -> None:
        service.submit(assigned)
        await asyncio.sleep(0)
        consumption.clock.advance(rest_ms - 1)
        await asyncio.sleep(0)
        assert consumption.submitted == []
        consumption.clock.advance(1)
        await asyncio.gather(*consumption.tasks)
        assert consumption.submitted == [assigned]
        consumption.submitted.clear()

    async def work() -> None:
        consumption.runtime.post = lambda job: job()
        for rest_ms in (1_000, 2_000, 4_000):
            assert assigned.regain(Lease(7, 1 << 60, True), 0) or rest_ms == 1_000
            service._recover(assigned, Serving(), ValueError("a defect"))
            assert assigned.lease is None
            await submitted_after(rest_ms)
        for _ in range(20):
            service._recover(assigned, Serving(), ValueError("a defect"))
        await submitted_after(60_000)
        assert assigned.regain(Lease(7, 1 << 60, True), 0)
        assert assigned.accept(assigned.generation, batch(range(3)), 3)
        consumption.run(lambda messages, context: None)
        service.submit(assigned)
        assert consumption.submitted == [assigned], "a run went well: at once"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("max_attempts", "said"),
    [
        (0, "will be retried in 1000 ms (attempt 1, no limit)"),
        (5, "will be retried in 1000 ms (attempt 1, limit 5, then DeadLetter)"),
    ],
)
def test_the_log_says_what_follows_from_a_failed_call(
    caplog: pytest.LogCaptureFixture, max_attempts: int, said: str
) -> None:
    consumption = Consumption(max_attempts=max_attempts)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        raise ValueError("a test's own failure")

    consumption.run(listen)
    (record,) = caplog.records
    assert record.message == f"{QUEUE}: listener raised ValueError; offsets 0-0 {said}"
    assert record.exc_info is not None
    fields = log_fields(QUEUE, offset=0, group="G", member="me")
    assert fields.items() <= vars(record).items()
    assert consumption.statistics["listener_errors"] == 1


def test_the_log_says_which_results_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    consumption = Consumption()
    consumption.run(lambda messages, context: "done")
    (record,) = caplog.records
    assert "listener returned 'done': expected None, a ConsumeResult" in record.message
    assert "will be retried in 1000 ms" in record.message
    assert not record.exc_info


def test_attempts_and_reconsume_times_agree_until_the_queue_is_taken_over() -> None:
    consumption = Consumption(consume_message_batch_max_size=4)
    told: list[tuple[int, list[int]]] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        if messages[0].queue_offset == 4:
            told.append((context.attempt, [message.reconsume_times for message in messages]))
            return ConsumeResult.SUSPEND if context.attempt < 3 else None
        return None

    for _ in range(4):
        consumption.run(listen)
    assert told == [(n, [n] * 4) for n in range(4)]
    assert consumption.assigned.done_offset == 200
    assert consumption.assigned.attempts == {}

    told.clear()
    assigned = consumption.assigned
    for offsets in (range(200, 204), range(200, 204)):
        assigned.accept(assigned.generation, batch(offsets), 204)
        consumption.run(lambda messages, context: ConsumeResult.SUSPEND)
        assert assigned.attempts == dict.fromkeys(range(200, 204), 1)
        assigned.lose_lease("a test says so")
        assert assigned.regain(Lease(8, LEASE_END_MS, True), 200)
        assert assigned.attempts == {}, "another member may have had it: it starts again"


def test_a_view_that_was_kept_tells_how_often_its_message_had_failed() -> None:
    consumption = Consumption()
    kept: list[MessageView] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        if messages[0].queue_offset == 3 and context.attempt < 2:
            return ConsumeResult.SUSPEND
        kept.extend(messages)
        return None

    for _ in range(3):
        consumption.run(listen)
    assert [view.reconsume_times for view in kept] == [0, 0, 0, 2] + [0] * 196


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_a_message_of_a_failed_batch_has_exactly_its_attempts(limit: int) -> None:
    consumption = Consumption(Stop(limit), consume_message_batch_max_size=4)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        if any(message.queue_offset == 6 for message in messages):
            raise ValueError("a test's own failure")

    for _ in range(limit + 2):
        consumption.run(listen)
    assert consumption.seen.count(6) == limit
    assert consumption.assigned.is_paused
    assert consumption.assigned.done_offset == 6


@pytest.mark.parametrize("how", ["raises", "suspends"])
def test_a_queue_that_hangs_on_a_message_says_so_at_doubling_attempts(
    caplog: pytest.LogCaptureFixture, how: str
) -> None:
    consumption = Consumption(Stop(), max_attempts=20)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        if how == "raises":
            raise ValueError("a test's own failure")
        return ConsumeResult.SUSPEND

    for _ in range(20):
        consumption.run(listen)
        consumption.clock.advance(100)
    what = "listener raised ValueError" if how == "raises" else "listener suspended the queue"
    assert [(record.levelname, record.message) for record in caplog.records[:-1]] == [
        *(
            (
                "WARNING",
                f"{QUEUE}: {what}; offsets 0-0 will be retried in 1000 ms "
                f"(attempt {attempt}, limit 20, then Stop)",
            )
            for attempt in (1, 2, 4, 8, 16)
        ),
        (
            "ERROR",
            f"{QUEUE}: {what}; the queue stops at offset 0 (attempt 20, limit 20, then Stop)",
        ),
    ]
    (blocked,) = consumption.statistics.blocked()
    assert blocked == (QUEUE, 0, 20, START_MS)
    assert consumption.statistics["oldest_blocked_ms"] == 2_000


def test_a_blocked_queue_is_forgotten_once_its_message_is_done() -> None:
    consumption = Consumption()
    consumption.run(lambda messages, context: ConsumeResult.SUSPEND)
    assert consumption.statistics["oldest_blocked_ms"] == 0
    consumption.clock.advance(500)
    assert consumption.statistics["oldest_blocked_ms"] == 500
    assert consumption.statistics.as_dict()["oldest_blocked_ms"] == 500
    consumption.run(lambda messages, context: None)
    assert consumption.statistics.blocked() == []


def test_a_part_of_a_batch_that_is_done_is_progress_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumption = Consumption(consume_message_batch_max_size=4)
    consumption.run(lambda messages, context: 2)
    assert caplog.records == []


def test_a_call_can_hold_back_what_it_has_done_while_the_ones_before_it_are_committed() -> None:
    consumption = Consumption()
    assigned = consumption.assigned

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        offset = messages[0].queue_offset
        assert context.auto_commit, "each call begins with the consumer's"
        if 20 <= offset < 23:
            context.auto_commit = False
            done.append(assigned.done_offset)
        if offset == 23:
            done.append(assigned.done_offset)
            context.auto_commit = False
            return ConsumeResult.ROLLBACK if len(done) == 4 else ConsumeResult.COMMIT
        if offset == 24:
            done.append(assigned.done_offset)
        return None

    done: list[int] = []
    consumption.run(listen)
    assert done[1:] == [20, 20, 20], "what came before in the same claim is committed"
    assert assigned.done_offset == 20, "rolled back to there"
    consumption.run(listen)
    assert done[-1] == 24, "COMMIT commits what was held"
    assert consumption.seen == [*range(24), *range(20, 200)]
    assert assigned.done_offset == 200


def test_a_call_of_a_manual_consumer_can_commit_by_its_result() -> None:
    consumption = Consumption(auto_commit=False)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        assert not context.auto_commit
        context.auto_commit = messages[0].queue_offset == 9

    consumption.run(listen)
    assert consumption.assigned.done_offset == 10


@pytest.mark.parametrize("answer", [ConsumeResult.COMMIT, ConsumeResult.ROLLBACK])
def test_a_result_for_manual_commit_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, answer: ConsumeResult
) -> None:
    consumption = Consumption()
    consumption.run(lambda messages, context: answer)
    assert consumption.assigned.done_offset == 200
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"listener returned {answer.name} with auto_commit=True" in record.message


def test_with_strict_results_none_suspends() -> None:
    consumption = Consumption(strict_results=True)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        return ConsumeResult.SUCCESS if messages[0].queue_offset < 5 else None

    consumption.run(listen)
    assert consumption.assigned.done_offset == 5
    assert consumption.assigned.attempts == {5: 1}


def test_a_context_says_how_far_behind_its_messages_are() -> None:
    consumption = Consumption(consume_message_batch_max_size=100)
    consumption.assigned.max_offset = 250
    behind: list[int] = []
    consumption.run(lambda messages, context: behind.append(context.behind))
    assert behind == [250, 150]
    assert consumption.statistics["behind"] == 50
    assert consumption.statistics.behind() == {QUEUE: 50}


def test_attempts_of_held_messages_are_kept_for_a_rollback_and_forgotten_by_a_commit() -> None:
    consumption = Consumption(auto_commit=False)
    told: list[tuple[int, int, int]] = []

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult | None:
        offset = messages[0].queue_offset
        if offset == 2:
            told.append((offset, context.attempt, messages[0].reconsume_times))
            return ConsumeResult.SUSPEND if len(told) == 1 else None
        if offset == 3:
            return ConsumeResult.ROLLBACK if len(told) == 2 else ConsumeResult.COMMIT
        return None

    for _ in range(3):
        consumption.run(listen)
    assert told == [(2, 0, 0), (2, 1, 1), (2, 1, 1)]
    assert consumption.statistics.blocked() == []
    assert consumption.assigned.done_offset == 4
    assert consumption.assigned.attempts == {}


class Direct:
    """Calls with one message each, asked for by an admin tool, and the listener they reach."""

    def __init__(
        self, result: object = None, auto_commit: bool | None = None, **config: Any
    ) -> None:
        self.consumption = Consumption(**config)
        self.result = result
        self.auto_commit = auto_commit  # what the listener sets
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.consumption.service._pool = cast(
            Any,
            SimpleNamespace(
                submit=self.consumption.submitted.append, call_alone=self._call, report_calls=bool
            ),
        )

    async def _call(self, listener: Listener, context: ConsumeContext) -> Any:
        self.begun.set()
        await self.go_on.wait()
        if self.auto_commit is not None:
            context.auto_commit = self.auto_commit
        self.consumption.clock.advance(7)
        return self.result, None

    def ask(self) -> asyncio.Task[DirectResult]:
        consumption = self.consumption
        work = consumption.service.consume_directly(batch([3]), consumption.assigned)
        return asyncio.ensure_future(work)


def test_a_message_is_not_consumed_directly_while_a_batch_does_not_end() -> None:
    async def work() -> None:
        direct = Direct()
        assigned, clock = direct.consumption.assigned, direct.consumption.clock
        claim = begin_batch(assigned, 1, START_MS)
        assert isinstance(claim, BatchClaim)
        asked = direct.ask()
        for _ in range(5_000 // 20 + 2):
            assert not asked.done() or clock.now_ms() >= START_MS + 5_000
            await asyncio.sleep(0)
            clock.advance(20)
            await asyncio.sleep(0)
        with pytest.raises(StateError, match=r"its batch has not ended, waited for 5000 ms"):
            await asked
        assert not direct.begun.is_set()
        assert not assigned.is_paused, "its own batches go on"
        assert assigned.end_batch(claim, 1, clock.now_ms())

    asyncio.run(work())


def test_one_message_of_a_queue_is_consumed_directly_at_a_time() -> None:
    async def work() -> None:
        direct = Direct()
        first = direct.ask()
        await direct.begun.wait()
        with pytest.raises(StateError, match=r"another message of the queue is being consumed"):
            await direct.ask()
        assert direct.consumption.assigned.is_paused, "the first still runs"
        direct.go_on.set()
        assert await first == DirectResult("CR_SUCCESS", None, True, 7)
        assert not direct.consumption.assigned.is_paused
        assert await direct.ask() == DirectResult("CR_SUCCESS", None, True, 7)

    asyncio.run(work())


def test_a_message_of_a_queue_that_moves_is_not_consumed_directly() -> None:
    async def work() -> None:
        direct = Direct()
        assigned = direct.consumption.assigned
        claim = begin_batch(assigned, 1, START_MS)
        asked = direct.ask()
        await asyncio.sleep(0)
        assigned.revoke()
        direct.consumption.clock.advance(20)
        with pytest.raises(StateError, match=r"moves to another member"):
            await asked
        assert isinstance(claim, BatchClaim)
        assigned.end_batch(claim, 1, START_MS)
        assert direct.consumption.drained == [assigned]

    asyncio.run(work())


@pytest.mark.parametrize(
    ("result", "strict", "name"),
    [
        (None, False, "CR_SUCCESS"),
        (None, True, "CR_RETURN_NULL"),
        (ConsumeResult.SUCCESS, True, "CR_SUCCESS"),
        (1, True, "CR_SUCCESS"),
        (0, True, "CR_LATER"),
        (ConsumeResult.COMMIT, True, "CR_COMMIT"),
    ],
)
def test_a_message_consumed_directly_tells_what_the_listener_returned(
    result: object, strict: bool, name: str
) -> None:
    async def work() -> None:
        direct = Direct(result, strict_results=strict)
        direct.go_on.set()
        assert await direct.ask() == DirectResult(name, None, True, 7)

    asyncio.run(work())


def test_auto_commit_set_by_a_message_consumed_directly_holds_for_that_call_alone() -> None:
    async def work() -> None:
        direct = Direct(ConsumeResult.SUCCESS, auto_commit=False)
        direct.go_on.set()
        assert (await direct.ask()).auto_commit is False
        direct.auto_commit = None
        assert (await direct.ask()).auto_commit is True
        assert direct.consumption.assigned.done_offset == 0

    asyncio.run(work())
