"""Messages that are done wake the event loop of their callers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ordermq import core
from ordermq.producer.pending_message import PendingMessage, log_unawaited


class Loop:
    """A loop whose callbacks run when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.error: BaseException | None = None

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
    return core.Arrivals(loop, log_unawaited)


def test_messages_that_are_done_together_wake_the_loop_once() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    for number in range(3):
        arrivals.add(arrived(number, Future(told)))
    assert len(loop.callbacks) == 1
    loop.run()
    assert told == [0, 1, 2]
    error = ValueError("no")
    arrivals.add(arrived(3, Future(told), error))
    loop.run()
    assert told == [0, 1, 2, error]


def test_a_loop_that_could_not_be_woken_is_woken_by_the_next_message() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    loop.error = KeyboardInterrupt()  # of a signal handler
    with pytest.raises(KeyboardInterrupt):
        arrivals.add(arrived(0, Future(told)))
    loop.error = None
    arrivals.add(arrived(1, Future(told)))
    loop.run()
    assert told == [0, 1]


def test_a_turn_of_the_loop_that_is_interrupted_goes_on_in_the_next() -> None:
    loop, told = Loop(), list[Any]()
    arrivals = arrivals_of(loop)
    arrivals.add(arrived(0, Future(told, KeyboardInterrupt())))
    arrivals.add(arrived(1, Future(told)))
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert told == [0, 1]


def test_a_failure_is_logged_if_nobody_awaits_it(caplog: pytest.LogCaptureFixture) -> None:
    loop, cancelled = Loop(), Future([])
    cancelled.is_done = True
    with caplog.at_level(logging.WARNING):
        arrivals = arrivals_of(loop)
        arrivals.add(arrived(6, cancelled, ValueError("no")))
        arrivals.add(arrived(5, cancelled))  # stored: nothing to log
        loop.run()
        closed = asyncio.new_event_loop()
        closed.close()
        core.Arrivals(closed, log_unawaited).add(arrived(7, None, ValueError("no")))
    for number in (6, 7):
        assert f"message A{number} failed after its caller was cancelled: no" in caplog.text
    assert "A5" not in caplog.text
