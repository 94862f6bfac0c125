"""Waiting, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ordermq.client.timers import cancelled, repeat, wait_until_set
from ordermq.clock import ManualClock


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_wait_ends_with_its_event_or_its_deadline() -> None:
    async def work() -> None:
        clock, event = ManualClock(), asyncio.Event()
        too_late = asyncio.create_task(wait_until_set(event, clock, 100))
        in_time = asyncio.create_task(wait_until_set(event, clock, 1_000))
        await turns()
        clock.advance(100)
        assert await too_late is False
        event.set()
        assert await in_time is True
        assert await wait_until_set(event, clock, 0) is True

    run(work())


def test_a_wait_that_is_over_leaves_no_task_behind() -> None:
    async def work() -> None:
        clock, event, before = ManualClock(), asyncio.Event(), asyncio.all_tasks()
        waiting = asyncio.create_task(wait_until_set(event, clock, 100))
        await turns()
        event.set()
        await waiting
        assert asyncio.all_tasks() == before

    run(work())


def test_a_repeated_action_waits_its_interval_first_and_asks_for_it_each_time() -> None:
    async def work() -> None:
        clock, calls, intervals = ManualClock(), list[int](), iter([10, 50, 1_000])

        async def action() -> None:
            calls.append(clock.now_ms())

        loop = asyncio.create_task(repeat(action, clock, lambda: next(intervals)))
        start = clock.now_ms()
        for _ in range(6):
            await turns()
            clock.advance(10)
        await turns()
        assert [at - start for at in calls] == [10, 60]
        await cancelled(loop)
        assert loop.cancelled()

    run(work())


def test_cancelling_passes_over_what_ended_before_and_what_never_was() -> None:
    async def fail() -> None:
        raise ValueError

    async def work() -> None:
        failed: asyncio.Task[object] = asyncio.create_task(fail())
        running: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
        await turns()
        await cancelled(failed, None, running)
        assert running.cancelled()

    run(work())
