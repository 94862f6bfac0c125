"""The I/O thread, and waiting on it with a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from ordermq.client.runtime import Runtime, cancelled, repeat
from ordermq.clock import ManualClock
from ordermq.errors import StateError


@pytest.fixture(autouse=True)
def no_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients live as long as their process, as those of Spark's workers."""
    monkeypatch.setattr(Runtime, "_shared", None)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    taken = Runtime.acquire()
    yield taken
    taken.release()


def test_all_users_share_one_loop_and_the_last_one_ends_it() -> None:
    first, second = Runtime.acquire(), Runtime.acquire()
    assert first is second
    first.release()
    assert first.call(asyncio.sleep(0, "alive")) == "alive"
    second.release()
    assert first.loop.is_closed()
    third = Runtime.acquire()
    assert third is not first
    third.release()


def test_work_runs_on_the_io_thread_and_its_result_or_error_comes_back(runtime: Runtime) -> None:
    async def where() -> bool:
        return runtime.is_io_thread

    async def fail() -> None:
        raise KeyError("x")

    assert runtime.call(where())
    assert not runtime.is_io_thread
    with pytest.raises(KeyError):
        runtime.call(fail())


def test_a_blocking_call_on_the_io_thread_is_refused_instead_of_hanging(runtime: Runtime) -> None:
    async def block() -> None:
        runtime.call(asyncio.sleep(0))

    with pytest.raises(StateError, match="async form"):
        runtime.call(block())


def test_work_that_takes_too_long_is_cancelled(runtime: Runtime) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        runtime.call(endless(), timeout_s=0.01)
    assert ended.wait(10)


def test_a_task_that_fails_is_logged_once(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("lost otherwise")

    async def start() -> None:
        task = runtime.spawn(fail(), "the failing one")
        await asyncio.wait([task])

    runtime.call(start())
    runtime.call(asyncio.sleep(0))
    assert [record.getMessage() for record in caplog.records] == [
        "task the failing one: internal error (please report)"
    ]


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    runtime, ended = Runtime.acquire(), threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def start() -> None:
        runtime.spawn(endless(), "endless")
        await asyncio.sleep(0)

    runtime.call(start())
    runtime.release()
    assert ended.is_set()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_repeated_action_first_waits_its_interval_which_is_read_each_time() -> None:
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


def test_cancelling_skips_finished_tasks_and_none() -> None:
    async def fail() -> None:
        raise ValueError

    async def work() -> None:
        failed: asyncio.Task[object] = asyncio.create_task(fail())
        running: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
        await turns()
        await cancelled(failed, None, running)
        assert running.cancelled()

    run(work())
