"""Work that several callers wait for together (ordermq/remoting/shared_tasks.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ordermq.remoting.shared_tasks import SharedTasks
from remoting.wire_server import run


def is_waiting(work: Coroutine[Any, Any, object]) -> bool:
    """Return True if a step of the work does not end it."""
    try:
        work.send(None)
    except StopIteration:
        return False
    return True


def test_work_under_way_is_joined_and_outlives_a_caller() -> None:
    async def work() -> None:
        shared, done = SharedTasks[str, int](), asyncio.get_running_loop().create_future()
        callers = [asyncio.create_task(shared.result("k", lambda: done)) for _ in range(3)]
        await asyncio.sleep(0)
        assert "k" in shared
        assert list(shared.running) == [done]
        callers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        done.set_result(7)
        assert await asyncio.gather(*callers[1:]) == [7, 7]
        assert "k" not in shared
        assert not shared.running

    run(work())


def test_work_that_is_done_is_begun_anew_also_before_its_callbacks_have_run() -> None:
    """Else whoever asks until the result holds asks for ever, and the loop stands still."""

    async def work() -> None:
        loop, shared = asyncio.get_running_loop(), SharedTasks[str, int]()
        first, second = loop.create_future(), loop.create_future()
        joining = asyncio.create_task(shared.result("k", lambda: first))
        await asyncio.sleep(0)
        first.set_result(1)
        assert "k" not in shared
        again = shared.result("k", lambda: second)
        assert is_waiting(again)
        assert await joining == 1
        assert "k" in shared, "the end of the first is not the end of the second"
        again.close()
        second.set_result(2)
        await asyncio.sleep(0)
        assert not shared.running

    run(work())


def test_an_error_comes_to_all_who_wait() -> None:
    async def work() -> None:
        shared, done = SharedTasks[str, int](), asyncio.get_running_loop().create_future()
        callers = [asyncio.create_task(shared.result("k", lambda: done)) for _ in range(2)]
        await asyncio.sleep(0)
        done.set_exception(OSError("no"))
        for each in callers:
            with pytest.raises(OSError, match="no"):
                await each

    run(work())
