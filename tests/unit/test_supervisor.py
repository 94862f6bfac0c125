"""A loop goes on after any error: logged once per outage, counted, visible, with growing pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ordermq.clock import ManualClock
from ordermq.supervisor import LONGEST_PAUSE_MS, Supervisor, every

LOG = logging.getLogger("ordermq.client")


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Scene:
    """A supervisor under a manual clock; `plan` says what each round does, from the first on."""

    def __init__(self, *plan: object) -> None:
        self.clock = ManualClock()
        self.counted = 0
        self.rounds_ms: list[int] = []
        self.supervisor = Supervisor(self.clock, LOG, self._count)
        self._plan = list(plan)
        self._start_ms = self.clock.now_ms()

    def _count(self) -> None:
        self.counted += 1

    async def round(self) -> object:
        self.rounds_ms.append(self.clock.now_ms() - self._start_ms)
        step = self._plan.pop(0) if self._plan else "wait"
        if isinstance(step, BaseException):
            raise step
        if step == "wait":
            await self.clock.sleep_ms(1_000_000)
        return step

    async def pass_ms(self, delta_ms: int) -> None:
        await turns()
        for _ in range(delta_ms // 50):
            self.clock.advance(50)
            await turns()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))


def foreign_cancel() -> BaseException:
    return asyncio.CancelledError("of something that the round waited for")


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), SystemExit(3), foreign_cancel(), OSError(28, "no space")]
)
def test_a_loop_goes_on_after_any_error(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        scene = Scene(None, error, None, None)
        task = scene.supervisor.start("fetch", scene.round, "orders/3")
        await scene.pass_ms(0)
        assert scene.rounds_ms == [0, 0], "it pauses after the error"
        (found,) = scene.supervisor.troubled()
        assert (found.name, found.errors, found.failing_ms) == ("fetch orders/3", 1, 0)
        assert type(error).__name__ in found.last_error
        await scene.pass_ms(100)
        assert scene.rounds_ms == [0, 0, 100, 100, 100]
        (found,) = scene.supervisor.troubled()
        assert (found.errors, found.failing_ms) == (1, None), "it works again, and is remembered"
        assert scene.counted == 1
        assert not task.done()
        await scene.supervisor.stop()
        assert task.cancelled(), "a cancelled loop ends"

    with caplog.at_level(logging.INFO):
        run(work)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.messages[0].startswith("fetch orders/3: internal error (please report)")
    assert caplog.records[0].exc_info
    assert caplog.messages[1] == "fetch orders/3: works again after 1 errors, 100 ms"


def test_a_loop_that_breaks_again_and_again_pauses_longer_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        scene = Scene(*[RuntimeError(str(n)) for n in range(12)])
        scene.supervisor.start("locks", scene.round)
        await scene.pass_ms(60_000)
        pauses = [b - a for a, b in zip(scene.rounds_ms, scene.rounds_ms[1:], strict=False)]
        assert pauses[:8] == [100, 200, 400, 800, 1_600, 3_200, 6_400, LONGEST_PAUSE_MS]
        assert set(pauses[8:]) == {LONGEST_PAUSE_MS}
        (found,) = scene.supervisor.troubled()
        assert found.errors == len(scene.rounds_ms) == scene.counted
        assert found.failing_ms == 60_000
        assert found.last_error == f"RuntimeError: {found.errors - 1}"
        await scene.supervisor.stop()
        (found,) = scene.supervisor.troubled()
        assert (found.name, found.failing_ms) == ("locks (ended)", None)

    run(work)
    assert len(caplog.records) == 1


def test_a_loop_that_flaps_is_logged_at_most_every_30_s(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        plan: list[object] = []
        for _ in range(1_000):
            plan += [RuntimeError("now and then"), None]
        scene = Scene(*plan)
        scene.supervisor.start("traces", scene.round, longest_pause_ms=50)
        await scene.pass_ms(40_000)
        assert scene.counted > 700
        await scene.supervisor.stop()

    run(work)
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 2


def test_a_round_that_returns_false_ends_its_loop() -> None:
    async def work() -> None:
        scene = Scene(None, True, False)
        await scene.supervisor.start("reconnect", scene.round)
        assert len(scene.rounds_ms) == 3
        assert scene.supervisor.troubled() == ()

    run(work)


def test_loops_of_queues_that_come_and_go_leave_no_trail() -> None:
    async def work() -> None:
        scene = Scene(*[RuntimeError("x")] * 1_000)
        for number in range(100):
            task = scene.supervisor.start("pull", scene.round, f"orders/{number}")
            await turns(3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (found,) = scene.supervisor.troubled()
        assert (found.name, found.errors) == ("pull (ended)", 100)

    run(work)


def test_a_periodic_action_first_waits_its_interval() -> None:
    async def work() -> None:
        scene = Scene(None, None)
        supervisor = scene.supervisor
        supervisor.start("beat", every(scene.clock, 250, scene.round))
        await scene.pass_ms(600)
        assert scene.rounds_ms == [250, 500]
        await supervisor.stop()

    run(work)


def test_a_periodic_action_that_failed_is_tried_again_soon() -> None:
    async def work() -> None:
        scene = Scene(RuntimeError("x"), RuntimeError("y"), None)
        scene.supervisor.start("beat", every(scene.clock, 30_000, scene.round))
        await scene.pass_ms(60_400)
        assert scene.rounds_ms == [30_000, 30_100, 30_300, 60_300]
        await scene.supervisor.stop()

    run(work)
