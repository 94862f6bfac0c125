"""Messages that are done wake the event loop of their callers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from typing import Any

import pytest

from ordermq import core
from ordermq.producer.pending_message import PendingMessage, log_unawaited, say_sent


class Loop:
    """A loop whose callbacks run when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.error: BaseException | None = None

    def create_future(self) -> asyncio.Future[Any]:
        raise AssertionError("no receipt is awaited")

    def call_soon_threadsafe(self, callback: Any) -> None:
        if self.error is not None:
            raise self.error
        self.callbacks.append(callback)

    def run(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Future:
    """A future that notes what it is told in a list, or is interrupted first."""

    def __init__(self, told: list[Any], error: BaseException | None = None) -> None:
        self._told = told
        self._error = error
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._told.append(result)

    set_exception = set_result


def arrived(number: int, future: Any = None, error: BaseException | None = None) -> PendingMessage:
    """Return a message that is done; its receipt is the number."""
    made = PendingMessage([b"x"], [""], [f"A{number}"], [0], 1, None, False, lambda _: None)
    made.awaited = future
    made.finish(None if error is not None else [number], error)  # type: ignore[list-item]
    return made


def arrivals_of(loop: Loop) -> core.contract.Arrivals:
    return core.Arrivals(loop, log_unawaited, say_sent)


def test_messages_that_are_done_together_wake_the_loop_once() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    for number in range(3):
        arrivals(arrived(number, Future(told)))
    assert len(loop.callbacks) == 1
    loop.run()
    assert told == [0, 1, 2]
    error = ValueError("no")
    arrivals(arrived(3, Future(told), error))
    loop.run()
    assert told == [0, 1, 2, error]


def test_a_loop_that_could_not_be_woken_is_woken_by_the_next_message() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    loop.error = KeyboardInterrupt()  # of a signal handler
    with pytest.raises(KeyboardInterrupt):
        arrivals(arrived(0, Future(told)))
    loop.error = None
    arrivals(arrived(1, Future(told)))
    loop.run()
    assert told == [0, 1]


def test_a_turn_of_the_loop_that_is_interrupted_goes_on_in_the_next() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    arrivals(arrived(0, Future(told, KeyboardInterrupt())))
    arrivals(arrived(1, Future(told)))
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert told == [0, 1]


def test_a_failure_is_logged_if_nobody_awaits_it(caplog: pytest.LogCaptureFixture) -> None:
    loop, cancelled = Loop(), Future([])
    cancelled.is_done = True
    with caplog.at_level(logging.WARNING):
        arrivals = arrivals_of(loop)
        arrivals(arrived(6, cancelled, ValueError("no")))
        arrivals(arrived(5, cancelled))  # stored: nothing to log
        loop.run()
        closed = asyncio.new_event_loop()
        closed.close()
        core.Arrivals(closed, log_unawaited, say_sent)(arrived(7, None, ValueError("no")))
    for number in (6, 7):
        assert f"message A{number} failed after its caller was cancelled: no" in caplog.text
    assert "A5" not in caplog.text


# ---- receipts that coroutines await ----


def waiting(arrivals: core.contract.Arrivals, number: int) -> PendingMessage:
    return PendingMessage([b"x"], [""], [f"A{number}"], [0], 1, None, False, arrivals)


async def awaited(arrivals: core.contract.Arrivals, message: PendingMessage) -> Any:
    return await arrivals.receipt_of(message)


async def begun(
    arrivals: core.contract.Arrivals, count: int
) -> tuple[list[PendingMessage], list[asyncio.Task[Any]]]:
    """Return messages, and tasks that await them."""
    messages = [waiting(arrivals, number) for number in range(count)]
    tasks = [asyncio.create_task(awaited(arrivals, message)) for message in messages]
    await asyncio.sleep(0)
    return messages, tasks


def test_tasks_get_their_receipts_and_errors() -> None:
    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        messages, tasks = await begun(arrivals, 3)
        core.finish_stored(messages[:2], [[1], [2]])
        error = ValueError("no")
        messages[2].finish(None, error)
        assert await asyncio.gather(*tasks, return_exceptions=True) == [1, 2, error]

    asyncio.run(work())


def test_a_receipt_that_came_before_it_was_awaited_is_not_waited_for() -> None:
    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        message = waiting(arrivals, 0)
        receipt = arrivals.receipt_of(message)
        core.finish_stored([message], [[5]])
        await asyncio.sleep(0)
        with pytest.raises(StopIteration) as ended:
            next(iter(receipt.__await__()))
        assert ended.value.value == 5

    asyncio.run(work())


def test_a_task_that_is_cancelled_waits_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        (message,), (task,) = await begun(arrivals, 1)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough") as ended:
            await task
        assert ended.value.__notes__ == ["what was handed over before is sent all the same"]
        message.finish(None, ValueError("no"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert "message A0 failed after its caller was cancelled: no" in caplog.text


def test_a_task_that_is_cancelled_in_the_moment_of_its_failure_leaves_it_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        messages = [waiting(arrivals, 0), waiting(arrivals, 1)]
        others: list[asyncio.Task[Any]] = []

        async def first() -> None:
            await arrivals.receipt_of(messages[0])
            others[0].cancel()  # its receipt is given in this turn of the loop, too

        tasks = [asyncio.create_task(first())]
        others.append(asyncio.create_task(awaited(arrivals, messages[1])))
        await asyncio.sleep(0)
        core.finish_stored(messages[:1], [[1]])
        messages[1].finish(None, ValueError("no"))
        await asyncio.wait([*tasks, *others])
        assert others[0].cancelled()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert caplog.text.count("message A1 failed after its caller was cancelled: no") == 1


def test_tasks_keep_their_context_and_are_the_current_ones() -> None:
    told: list[Any] = []
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")

    async def named(arrivals: core.contract.Arrivals, message: PendingMessage, of: int) -> None:
        name.set(of)
        receipt = await arrivals.receipt_of(message)
        told.append((name.get(), receipt, asyncio.current_task()))

    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        messages = [waiting(arrivals, number) for number in range(3)]
        tasks = [
            asyncio.create_task(named(arrivals, message, number))
            for number, message in enumerate(messages)
        ]
        await asyncio.sleep(0)
        core.finish_stored(messages, [[number] for number in range(3)])
        await asyncio.gather(*tasks)
        assert told == [(number, number, tasks[number]) for number in range(3)]

    asyncio.run(work())


def test_messages_that_follow_each_other_leave_the_loop_its_turns() -> None:
    """A task whose next message is done at once must not keep timers and others waiting."""

    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        is_over = False
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while not is_over:
                message = waiting(arrivals, sent)
                receipt = arrivals.receipt_of(message)
                asyncio.get_running_loop().call_soon(core.finish_stored, [message], [[sent]])
                assert await receipt == sent
                sent += 1

        async def finish_at_once() -> None:
            while not is_over:
                message = waiting(arrivals, 0)
                receipt = arrivals.receipt_of(message)
                core.finish_stored([message], [[0]])
                await receipt

        tasks = [asyncio.create_task(send_on()), asyncio.create_task(finish_at_once())]
        for _ in range(20):
            await asyncio.sleep(0)
        is_over = True
        await asyncio.gather(*tasks)
        assert sent > 1

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_task_that_raises_an_interrupt_leaves_the_others_their_receipts() -> None:
    async def interrupted(arrivals: core.contract.Arrivals, message: PendingMessage) -> None:
        await arrivals.receipt_of(message)
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    with contextlib.closing(loop):
        arrivals = core.Arrivals(loop, log_unawaited, say_sent)
        messages = [waiting(arrivals, number) for number in range(3)]
        first = loop.create_task(interrupted(arrivals, messages[0]))
        others = [loop.create_task(awaited(arrivals, message)) for message in messages[1:]]
        loop.run_until_complete(asyncio.sleep(0))
        core.finish_stored(messages, [[0], [1], [2]])
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.gather(*others))
        assert loop.run_until_complete(asyncio.gather(*others)) == [1, 2]
        assert isinstance(first.exception(), KeyboardInterrupt)


def test_messages_of_one_request_wake_their_loops_once_each() -> None:
    loops = [Loop(), Loop()]
    told: list[Any] = []
    messages = []
    for number, loop in enumerate([loops[0], loops[1], loops[1], loops[0]]):
        message = waiting(arrivals_of(loop), number)
        message.awaited = Future(told)  # type: ignore[assignment]
        messages.append(message)
    with pytest.raises(ValueError, match="zip"):
        core.finish_stored(messages, [[0], [1], [2]])
    core.finish_stored(messages, [[0], [1], [2], [3]])
    for loop in loops:
        loop.run()
    assert sorted(told) == [0, 1, 2, 3]


class Driver:
    """Runs a coroutine by asyncio's protocol, and is no task of asyncio."""

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine
        self.woken_with: list[Any] = []
        self.outcome: Any = None
        self.waits_for = self._step()

    def _step(self) -> Any:
        try:
            return self._coroutine.send(None)
        except StopIteration as ended:
            self.outcome = ended.value
            return None

    def wait(self) -> None:
        self.waits_for.add_done_callback(self._wake, context=contextvars.copy_context())

    def _wake(self, future: Any) -> None:
        self.woken_with.append(future)
        self._step()


def test_a_driver_that_is_no_task_is_woken_with_what_it_waits_for() -> None:
    async def work() -> None:
        arrivals = core.Arrivals(asyncio.get_running_loop(), log_unawaited, say_sent)
        message = waiting(arrivals, 0)
        driver = Driver(awaited(arrivals, message))
        driver.wait()
        core.finish_stored([message], [("stored",)])  # type: ignore[list-item]
        while driver.outcome is None:
            await asyncio.sleep(0)
        assert driver.outcome == "stored"
        assert driver.woken_with == [driver.waits_for]

    asyncio.run(work())


class OwnTask(asyncio.Task[Any]):
    """A task of a program that has a kind of its own."""


@pytest.mark.parametrize("kind", [asyncio.Task, asyncio.tasks._PyTask, OwnTask])  # type: ignore[attr-defined]
def test_tasks_of_every_kind_get_their_receipts_and_errors(kind: Any) -> None:
    # A receipt of several fields, and one that is the value of an exception.
    given = ["stored", ("queue", 7), StopIteration(3)]

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coroutine, **more: kind(coroutine, loop=loop, **more))
        arrivals = core.Arrivals(loop, log_unawaited, say_sent)
        messages, tasks = await begun(arrivals, len(given) + 1)
        core.finish_stored(messages[:-1], [(one,) for one in given])  # type: ignore[misc]
        messages[-1].finish(None, ValueError("no"))
        await asyncio.wait(tasks)
        assert [task.result() for task in tasks[:-1]] == given
        with pytest.raises(ValueError, match="no"):
            tasks[-1].result()

    asyncio.run(work())
