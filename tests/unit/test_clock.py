"""The clocks that everything is handed."""

from __future__ import annotations

import asyncio

import pytest

from ordermq.clock import ManualClock, SystemClock, wait_until_set


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(now_ms=5, wall_ms=100)
    assert (clock.now_ms(), clock.wall_ms()) == (5, 100)
    clock.advance(7)
    assert (clock.now_ms(), clock.wall_ms()) == (12, 107)


def test_a_wall_clock_jump_wakes_nobody_and_moves_no_monotonic_reading() -> None:
    clock = ManualClock(now_ms=5, wall_ms=100)
    clock.jump_wall(-3_600_000)
    assert (clock.now_ms(), clock.wall_ms()) == (5, 100 - 3_600_000)


def test_a_monotonic_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="jump_wall"):
        ManualClock().advance(-1)


def test_sleepers_wake_when_they_are_due_and_in_that_order() -> None:
    async def work() -> None:
        clock, woken = ManualClock(), list[int]()

        async def sleeper(delay_ms: int) -> None:
            await clock.sleep_ms(delay_ms)
            woken.append(delay_ms)

        tasks = [asyncio.create_task(sleeper(delay_ms)) for delay_ms in (30, 10, 20)]
        await turns()
        clock.advance(9)
        await turns()
        assert woken == []
        clock.advance(11)
        await turns()
        assert woken == [10, 20]
        clock.advance(10)
        await asyncio.gather(*tasks)
        assert woken == [10, 20, 30]

    asyncio.run(asyncio.wait_for(work(), 10))


@pytest.mark.parametrize("delay_ms", [0, -5])
def test_no_delay_only_lets_others_run(delay_ms: int) -> None:
    asyncio.run(asyncio.wait_for(ManualClock().sleep_ms(delay_ms), 10))


def test_a_cancelled_sleeper_and_a_closed_loop_do_not_disturb_the_clock() -> None:
    clock = ManualClock()

    async def work() -> None:
        task = asyncio.create_task(clock.sleep_ms(10))
        left_behind = asyncio.create_task(clock.sleep_ms(20))
        await turns()
        task.cancel()
        clock.advance(10)
        await turns()
        assert task.cancelled()
        left_behind.cancel()

    asyncio.run(work())
    clock.advance(10)


def test_a_thread_may_move_the_clock_of_a_loop() -> None:
    async def work() -> None:
        clock = ManualClock()
        task = asyncio.create_task(clock.sleep_ms(10))
        await turns()
        await asyncio.to_thread(clock.advance, 10)
        await task

    asyncio.run(asyncio.wait_for(work(), 10))


def test_the_system_clock_goes_forward_and_sleeps_at_least_as_long_as_asked() -> None:
    clock = SystemClock()
    before = clock.now_ms()
    asyncio.run(clock.sleep_ms(5))
    asyncio.run(clock.sleep_ms(-5))
    assert clock.now_ms() - before >= 4
    assert clock.wall_ms() > 1_700_000_000_000


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

    asyncio.run(work())


def test_a_finished_wait_leaves_no_task() -> None:
    async def work() -> None:
        clock, event, before = ManualClock(), asyncio.Event(), asyncio.all_tasks()
        waiting = asyncio.create_task(wait_until_set(event, clock, 100))
        await turns()
        event.set()
        await waiting
        assert asyncio.all_tasks() == before

    asyncio.run(work())
