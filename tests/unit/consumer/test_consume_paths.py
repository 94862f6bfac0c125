"""Both loops, call by call: that of the core does what that of the reference does
(docs/internals/architecture.md#calls)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq import core
from ordermq.clock import CLOCK_ID, ManualClock, SystemClock, system_clock_id
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import Pause
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

from .batches import batch
from .consume_loops import LOOPS, consuming_by
from .test_orderly import LEASE_END_MS, Consumption

RESULTS = {
    "none": None,
    "success": ConsumeResult.SUCCESS,
    "suspend": ConsumeResult.SUSPEND,
    "commit": ConsumeResult.COMMIT,
    "rollback": ConsumeResult.ROLLBACK,
    "one": 1,
    "nonsense": "nonsense",
}
# What a listener may raise; of some, what runs it could take them for its own end.
RAISED = {
    "raise": ValueError,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "stop_iteration": StopIteration,
    "cancelled": asyncio.CancelledError,
}
# What one call of the listener does besides returning.
DEEDS = ["pause", "seek", "revoke", "lose", "discard", "hold", "more", "slow", "second", "late"]
calls = st.tuples(
    st.sampled_from([None] * 16 + [*RAISED, *DEEDS, "others"]),
    st.sampled_from([*["none"] * 6, *RESULTS]),
)
between = st.sampled_from(["resume", "seek_back", "regain", "more", "room", "later", "direct"])
SETTINGS: list[dict[str, Any]] = [{}, {}, {"auto_commit": False}, {"commit_interval_ms": 0}]


class Script:
    """One consumption that follows a script, and what could be seen of it."""

    def __init__(self, size: int, is_strict: bool, settings: dict[str, Any]) -> None:
        self.consumption = Consumption(
            consume_message_batch_max_size=size,
            strict_results=is_strict,
            **settings,
        )
        self.assigned = self.consumption.assigned
        self.seen: list[Any] = []
        self.end = 200
        for name in ("_on_lease_lost", "_on_room", "_on_idle"):
            setattr(self.assigned, name, self._told(name))

    def _told(self, name: str) -> Any:
        return lambda *about: self.seen.append((name, *map(str, about[1:])))

    def run(self, script: Sequence[tuple[str | None, str]]) -> None:
        left = iter(script)

        def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            assigned = self.assigned
            offsets = [message.queue_offset for message in messages]
            reconsumed = [message.reconsume_times for message in messages]
            (running,) = assigned.running_calls()
            self.seen.append((
                offsets, reconsumed, context.attempt, context.auto_commit, context.suspend_ms,
                context.is_revoked(), context.claim.lease.epoch, context.fence_token,
                assigned.done_offset, assigned.is_running, running.messages.offsets(),
                running.since_ms,
            ))  # fmt: skip
            deed, result = next(left, (None, "none"))
            if deed is not None:
                self.do(deed, context)
            return RESULTS[result]

        self.consumption.run(listen)
        self.look()

    def do(self, deed: str, context: ConsumeContext | None) -> None:
        assigned, clock = self.assigned, self.consumption.clock
        if deed in RAISED:
            raise RAISED[deed]("a test's own failure")
        if deed == "pause":
            assigned.pause()
        elif deed == "seek":
            assigned.pause(Pause.SEEK)
        elif deed == "seek_back":
            offset = assigned.done_offset // 2
            if assigned.reposition(assigned.generation, offset):
                self.end = offset
            self.seen.append(assigned.resume(Pause.SEEK))
        elif deed == "revoke":
            self.seen.append(assigned.revoke())
        elif deed == "lose":
            assigned.lose_lease("a test says so")
        elif deed == "discard":
            assigned.discard()
        elif deed == "hold" and context is not None:
            context.auto_commit = False
        elif deed == "more":
            if assigned.accept(
                assigned.generation, batch(range(self.end, self.end + 3)), self.end + 3
            ):
                self.seen.append("dispatched")
            self.end = max(self.end, assigned.next_pull_offset)
        elif deed == "slow":
            clock.advance(2)
        elif deed == "second":
            clock.advance(1_100)
        elif deed == "late":
            clock.advance(LEASE_END_MS)
        elif deed == "others":
            self.consumption.others_wait = not self.consumption.others_wait
        elif deed == "resume":
            self.seen.append(assigned.resume())
        elif deed == "regain":
            self.end = assigned.committed_offset
            lease = Lease(8, clock.now_ms() + LEASE_END_MS, True)
            self.seen.append(assigned.regain(lease, self.end))
        elif deed == "room":
            self.seen.append(assigned.wait_for_room(190))
        elif deed == "later":
            clock.advance(1_500)
        elif deed == "direct" and assigned.lease is not None:
            lease = Lease(assigned.lease.epoch, clock.now_ms() + 2 * LEASE_END_MS, True)
            self.seen.append(assigned.renew(assigned.generation, lease))

    def look(self) -> None:
        assigned, queue = self.assigned, self.assigned.process_queue
        self.seen.append((
            assigned.state, assigned.lease and assigned.lease.epoch, assigned.generation,
            assigned.done_offset, assigned.batches_per_claim, assigned.isolate_until,
            assigned.should_end_claim, assigned.is_running, assigned.is_paused,
            dict(assigned.attempts), assigned.last_claim_ms, queue.pending_count,
            queue.consuming_count, queue.is_dispatched, len(self.consumption.submitted),
            len(self.consumption.drained), self.consumption.commits,
            self.consumption.statistics.as_dict(),
        ))  # fmt: skip


@given(
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(SETTINGS),
    st.lists(st.tuples(st.lists(calls, max_size=24), st.lists(between, max_size=4)), max_size=4),
)
def test_both_loops_do_the_same(
    size: int,
    is_strict: bool,
    settings: dict[str, Any],
    rounds: list[tuple[list[tuple[str | None, str]], list[str]]],
) -> None:
    told = []
    for loop in LOOPS:
        with consuming_by(loop):
            script = Script(size, is_strict, settings)
            for script_calls, deeds in rounds:
                # As a pool would: whoever is not dispatched is not run.
                if script.assigned.process_queue.is_dispatched:
                    script.run(script_calls)
                for deed in deeds:
                    script.do(deed, None)
                script.look()
            told.append(script.seen)
    assert told[0] == told[1]


@pytest.mark.usefixtures("loop")
def test_an_async_listener_is_awaited_call_by_call() -> None:
    consumption = Consumption(consume_message_batch_max_size=3)
    assigned, seen, done = consumption.assigned, consumption.seen, list[int]()

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        offsets = [message.queue_offset for message in messages]
        seen.extend(offsets)
        done.append(assigned.done_offset)
        await asyncio.sleep(0)
        if 50 in offsets and context.attempt == 0:
            raise ValueError("a test's own failure")
        return ConsumeResult.SUSPEND if 90 in offsets and context.attempt < 2 else None

    consumption.service._listener = listen
    for expected in (48, 90, 90, 200):
        asyncio.run(consumption.service._run_async(assigned, asyncio.Event()))
        assert assigned.done_offset == expected
    assert list(dict.fromkeys(seen)) == list(range(200))
    assert done == sorted(done)
    assert consumption.statistics["messages_done"] == 200
    assert consumption.statistics["listener_errors"] == 1


@pytest.mark.usefixtures("loop")
def test_a_call_that_ends_behind_a_close_is_not_settled() -> None:
    consumption = Consumption()

    async def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        consumption.service._is_closed |= messages[0].queue_offset == 7

    consumption.service._listener = listen
    asyncio.run(consumption.service._run_async(consumption.assigned, asyncio.Event()))
    assert consumption.assigned.is_running
    assert consumption.assigned.done_offset == 7


def test_the_time_of_the_system_is_read_natively_and_any_other_is_asked_for() -> None:
    class Ahead(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 1_000

    assert system_clock_id(SystemClock()) == CLOCK_ID
    assert system_clock_id(Ahead()) is None
    assert system_clock_id(ManualClock()) is None


@pytest.mark.usefixtures("loop")
def test_a_run_that_has_ended_claims_no_more() -> None:
    consumption = Consumption()
    assigned, service = consumption.assigned, consumption.service
    called: list[object] = []
    run = core.ConsumeRun(service._plan, assigned, lambda calls: True, consumption.submitted.append)
    run.begin()
    assigned.pause()
    assert run.perform(lambda messages, context: called.append(messages), None, None) is None
    assert run.has_ended
    assert not run.submits
    assert assigned.resume()
    assert run.perform(lambda messages, context: called.append(messages), None, None) is None
    assert called == [], "the next run does"
    assert assigned.process_queue.pending_count == 200


@pytest.mark.usefixtures("loop")
def test_a_plan_has_calls_of_at_least_one_message() -> None:
    service = Consumption().service
    with pytest.raises(ValueError, match="ConsumePlan: calls of 0"):
        service._make_plan(0, is_shared=False, is_judged=False)
