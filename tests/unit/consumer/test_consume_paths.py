"""Both loops, call by call: the native one does what the one in Python does
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
from ordermq.config import ConsumeConfig
from ordermq.config.consumer import CONSUME_PATH_VARIABLE
from ordermq.consumer.dispatch.consume_loop import call_plan
from ordermq.consumer.dispatch.orderly import RunEnd, native_runs
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import Pause
from ordermq.errors import ConfigError
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

from .batches import batch
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

    def __init__(self, path: str, size: int, is_strict: bool, settings: dict[str, Any]) -> None:
        self.consumption = Consumption(
            consume_path=path,
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
    for path in ("python", "native"):
        script = Script(path, size, is_strict, settings)
        for script_calls, deeds in rounds:
            # As a pool would: whoever is not dispatched is not run.
            if script.assigned.process_queue.is_dispatched:
                script.run(script_calls)
            for deed in deeds:
                script.do(deed, None)
            script.look()
        told.append(script.seen)
    assert told[0] == told[1]


@pytest.mark.parametrize("path", ["python", "native"])
def test_an_async_listener_is_awaited_call_by_call(path: str) -> None:
    consumption = Consumption(consume_path=path, consume_message_batch_max_size=3)
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


@pytest.mark.parametrize("path", ["python", "native"])
def test_a_call_that_ends_behind_a_close_is_not_settled(path: str) -> None:
    consumption = Consumption(consume_path=path)

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


def test_the_environment_chooses_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONSUME_PATH_VARIABLE, raising=False)
    assert ConsumeConfig().consume_path == "native"
    monkeypatch.setenv(CONSUME_PATH_VARIABLE, "python")
    assert ConsumeConfig().consume_path == "python"
    monkeypatch.setenv(CONSUME_PATH_VARIABLE, "native")
    assert ConsumeConfig().consume_path == "native"
    monkeypatch.setenv(CONSUME_PATH_VARIABLE, "fast")
    with pytest.raises(ConfigError, match=r"ORDERMQ_CONSUME_PATH='fast' in the environment"):
        ConsumeConfig()


@pytest.mark.parametrize(
    ("settings", "is_native"),
    [
        ({}, True),
        ({"auto_commit": False}, False),
        ({"commit_interval_ms": 0}, False),
        ({"consume_path": "python"}, False),
    ],
)
def test_what_the_native_loop_does_not_do_takes_the_one_in_python(
    settings: dict[str, Any], is_native: bool
) -> None:
    config = ConsumeConfig(**{"consume_path": "native"} | settings)
    make_run = native_runs(config, call_plan(SystemClock(), 1, False, None, None), 256)
    assert (make_run is not None) == (is_native and core.OrderlyRun is not None)


def test_a_run_that_has_ended_claims_no_more() -> None:
    consumption = Consumption(consume_path="native")
    assigned, make_run = consumption.assigned, consumption.service._make_run
    if make_run is None:
        return  # another core
    run = make_run(assigned, lambda calls: True)
    assigned.pause()
    assert not run.advance()
    assert run.end is RunEnd.OVER
    assert assigned.resume()
    assert not run.advance(), "the next run does"
    assert assigned.process_queue.pending_count == 200
