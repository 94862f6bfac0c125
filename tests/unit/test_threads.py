"""Starts of threads and locks, and what an exception in them leaves."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable

import pytest

from ordermq import threads
from ordermq.errors import NoThread, StateError
from ordermq.threads import Lock, NativeEvent, RLock, start_thread, wait_for_thread
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
    with pytest.raises(NoThread, match="new thread: end threads of this process"):
        start_thread(threading.Thread(target=lambda: None))


class HandlerError(Exception):
    pass


@pytest.mark.parametrize("make", [Lock, RLock])
def test_no_exception_of_a_signal_handler_leaves_a_lock_held(make: Callable[[], Lock]) -> None:
    """By real signals, at 50 moments: a profiler is called where Python looks for none, too."""

    def handle(*_: object) -> None:
        raise HandlerError

    before = signal.signal(signal.SIGVTALRM, handle)
    lock = make()
    try:
        for turn in range(50):
            with pytest.raises(HandlerError):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                while True:
                    with lock:
                        pass
            taken = list[bool]()
            other = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))  # noqa: B023
            other.start()
            other.join()
            assert taken == [True], f"held after signal {turn}"
            lock = make()  # the other thread has taken this one
    finally:
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("make", [Lock, RLock])
def test_a_lock_keeps_others_out_of_its_block(make: Callable[[], Lock]) -> None:
    lock, inside, most = make(), 0, 0

    def count() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock:
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    running = [threading.Thread(target=count) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert most == 1
    with pytest.raises(RuntimeError):
        lock.release()


def test_an_owner_takes_its_lock_again_and_a_plain_lock_refuses() -> None:
    reentrant, plain = RLock(), Lock()
    with reentrant, reentrant, plain:
        assert reentrant.acquire(timeout=0.0)
        reentrant.release()
        assert plain.locked()
        assert not plain.acquire(blocking=False)
    assert not plain.locked()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_before_its_work_is_an_error_and_no_wait_for_ever() -> None:
    def refuse(*_: object) -> None:
        raise ValueError("of a trace function")

    has_begun = NativeEvent()
    thread = threading.Thread(target=has_begun.set, name="work", daemon=True)
    before = threading.gettrace()
    threading.settrace(refuse)
    try:
        start_thread(thread)
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="thread work ended at once"):
        wait_for_thread(has_begun, thread)
    done = threading.Thread(target=has_begun.set, daemon=True)
    start_thread(done)
    done.join()
    wait_for_thread(has_begun, done)  # it has ended, and has set it


@pytest.mark.parametrize("in_between", [True, False])
def test_a_thread_that_does_not_begin_is_given_up_and_runs_no_more(
    in_between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory a thread ends before its first line, and nobody is told."""
    monkeypatch.setattr(threads, "SIGNAL_CHECK_S", 0.01)
    ran = threading.Event()
    thread = threading.Thread(target=ran.set, name="work", daemon=True)
    late: list[Callable[[], object]] = []
    if in_between:
        monkeypatch.setattr(threads, "_start_plainly", late.append)
    else:
        begin = thread._bootstrap  # type: ignore[attr-defined]
        monkeypatch.setattr(thread, "_bootstrap", lambda: late.append(begin))
    with pytest.raises(NoThread, match="the thread work did not begin"):
        start_thread(thread)
    _thread.start_new_thread(late.pop(), ())
    while thread.ident is None or thread.is_alive():
        os.sched_yield()
    assert not ran.is_set(), "nobody knows of it any more"


def test_a_thread_has_begun_though_the_one_that_started_it_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "SIGNAL_CHECK_S", 0.01)
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait, daemon=True)
    monkeypatch.setattr(threads, "_start_plainly", lambda start: thread.start())
    start_thread(thread)
    assert thread.is_alive()
    goes_on.set()
    thread.join()
