"""Starts of threads, and what an exception in them leaves."""

from __future__ import annotations

import threading

import pytest

from ordermq.threads import start_thread
from tests.component.interruption import InterruptedCall


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_interrupts_the_start_of_a_thread_is_raised_and_a_started_one_runs(
    error: type[BaseException],
) -> None:
    at, raised_at = 1, "begun"
    while raised_at:
        has_run = threading.Event()
        thread = threading.Thread(target=has_run.set)
        interruption = InterruptedCall(at, error)
        try:
            with interruption:
                start_thread(thread)
        except error:
            at += 1
        raised_at = interruption.raised_at
        if "wait" in raised_at:  # before, it may not have been started
            assert has_run.wait(10.0), raised_at
    assert has_run.wait(10.0)
    assert at > 5


def test_the_want_of_a_thread_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    starts = ("_start_joinable_thread", "_start_new_thread")  # from 3.13 on, and before
    monkeypatch.setattr(
        threading, next(each for each in starts if hasattr(threading, each)), refuse
    )
    with pytest.raises(RuntimeError, match="new thread"):
        start_thread(threading.Thread(target=lambda: None))
