"""Messages that are done wake the event loop of their callers."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq.producer.pending_message import Arrivals, AsyncWaiter


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


class Waiter:
    """A waiter that is told of its message, or interrupted first."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.settled: list[Any] = []

    def settle(self, message: Any) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.settled.append(message)


def arrivals_of(loop: Loop) -> Any:
    return Arrivals(loop)  # type: ignore[arg-type]


def test_messages_that_are_done_together_wake_the_loop_once() -> None:
    loop, waiter = Loop(), Waiter()
    arrivals = arrivals_of(loop)
    for number in range(3):
        arrivals.add(waiter, number)
    assert len(loop.callbacks) == 1
    loop.run()
    assert waiter.settled == [0, 1, 2]
    arrivals.add(waiter, 3)
    loop.run()
    assert waiter.settled == [0, 1, 2, 3]


def test_a_loop_that_could_not_be_woken_is_woken_by_the_next_message() -> None:
    loop, waiter = Loop(), Waiter()
    arrivals = arrivals_of(loop)
    loop.error = KeyboardInterrupt()  # of a signal handler
    with pytest.raises(KeyboardInterrupt):
        arrivals.add(waiter, 0)
    loop.error = None
    arrivals.add(waiter, 1)
    loop.run()
    assert waiter.settled == [0, 1]


def test_a_turn_of_the_loop_that_is_interrupted_goes_on_in_the_next() -> None:
    loop, interrupted, waiter = Loop(), Waiter(KeyboardInterrupt()), Waiter()
    arrivals = arrivals_of(loop)
    arrivals.add(interrupted, 0)
    arrivals.add(waiter, 1)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert (interrupted.settled, waiter.settled) == ([0], [1])


def test_a_failure_is_logged_if_the_loop_of_its_caller_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop: Any = asyncio.new_event_loop()
    arrivals = Arrivals(loop)
    loop.close()
    failed: Any = SimpleNamespace(error=ValueError("no"), unique_ids=["A7"])
    with caplog.at_level(logging.WARNING):
        AsyncWaiter(arrivals).on_done(failed)
    assert "message A7 failed after its caller was cancelled: no" in caplog.text
