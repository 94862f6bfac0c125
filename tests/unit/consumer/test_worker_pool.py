"""The threads that run listeners: one for a quick listener, as many as it takes for a slow one."""

from __future__ import annotations

import ctypes
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import pytest

from ordermq.client.runtime import Runtime
from ordermq.consumer.dispatch.worker_pool import Runs, Serving, WorkerPool, stacks_of_tasks
from tests.thread_limit import ThreadLimit

WAIT_S = 10.0
QUICK_NS = 1_000
COMPUTING_NS = 50_000
SLOW_NS = 10_000_000


class Work:
    """Stands for an assigned queue: its run lasts until `end`.

    Args:
        calls_ns: duration of its first calls; `call` adds more.
    """

    def __init__(self, *calls_ns: int) -> None:
        self.started = threading.Event()
        self.is_served_again = False
        self.thread = 0
        self.went_on: list[bool] = []
        self._calls: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for call_ns in calls_ns:
            self._calls.put(call_ns)

    def call(self, call_ns: int) -> bool:
        """Call the listener once more; return whether the run may continue."""
        before = len(self.went_on)
        self._calls.put(call_ns)
        wait_until(lambda: len(self.went_on) > before)
        return self.went_on[before]

    def end(self) -> None:
        self._calls.put(None)

    def calls(self) -> Iterator[int]:
        while (call_ns := self._calls.get(timeout=WAIT_S)) is not None:
            yield call_ns


def no_loop() -> Any:
    raise AssertionError("no listener here is asynchronous")


async def no_coroutine(*_: Any) -> None:
    raise AssertionError("no listener here is asynchronous")


class Pool(WorkerPool):
    """A pool whose checks run on request, and whose calls take a given time."""

    def __init__(self, size: int) -> None:
        self.checks: list[Callable[[], None]] = []
        self.now_ns = threading.local()
        self.recovered: list[tuple[Any, BaseException]] = []
        runs: Any = Runs(self.serve, no_coroutine, self.recover)
        super().__init__(size, runs, "test", self.checks.append, no_loop, self.read_clock)

    def read_clock(self) -> int:
        return getattr(self.now_ns, "value", 0)

    def recover(self, work: Any, serving: Serving, error: BaseException) -> None:
        self.recovered.append((work, error))
        serving.submits = work.is_served_again

    def serve(self, work: Any, serving: Serving) -> None:
        work.thread = threading.get_ident()
        work.started.set()
        for call_ns in work.calls():
            self.now_ns.value = self.read_clock() + call_ns
            work.went_on.append(self.report_calls(1))

    def give(self, work: Work) -> Work:
        self.submit(work)  # type: ignore[arg-type]
        return work

    def give_quick(self, work: Work) -> Work:
        work.end()
        return self.give(work)

    def run_checks(self) -> None:
        """Do what the I/O thread does a millisecond after a queue began to wait."""
        checks, self.checks[:] = list(self.checks), []
        for check in checks:
            check()

    def end(self, *works: Work) -> None:
        for work in works:
            work.end()
        assert self.close(WAIT_S)


class Ready:
    """Queues that an engine has filled, for a pool to take."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_awaited = False
        self._works: list[Work] = []
        self._is_interrupted = False
        self._changed = threading.Condition()

    def give(self, work: Work) -> Work:
        with self._changed:
            self._works.append(work)
            self._changed.notify_all()
        return work

    def take(self, taken: list[Any]) -> Any:
        with self._changed:
            if not self._works:
                return None
            taken.append(self._works.pop(0))
            return taken[-1]

    def queue_of(self, taken: Any) -> Any:
        return taken

    def wait(self) -> bool:
        with self._changed:
            self.is_awaited = True
            while self.is_open and not self._works and not self._is_interrupted:
                assert self._changed.wait(WAIT_S)
            self.is_awaited = self._is_interrupted = False
            return self.is_open

    def interrupt(self) -> None:
        with self._changed:
            self._is_interrupted = True
            self._changed.notify_all()


def pool_with_ready(size: int) -> tuple[Pool, Ready]:
    pool, ready = Pool(size), Ready()
    pool.take_from(ready)
    return pool, ready


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(100_000):
        if holds():
            return
        pause.wait(0.0001)
    raise AssertionError("not within 10 s")


def test_one_thread_serves_all_queues_of_a_quick_listener() -> None:
    pool = Pool(20)
    works = [pool.give_quick(Work(QUICK_NS)) for _ in range(50)]
    assert all(work.started.wait(WAIT_S) for work in works)
    assert len({work.thread for work in works}) == 1
    pool.end()


def test_a_listener_that_does_not_return_delays_other_queues_by_two_checks_at_most() -> None:
    pool = Pool(3)
    stuck = pool.give(Work())
    assert stuck.started.wait(WAIT_S)
    others = [pool.give(Work()), pool.give(Work())]
    pool.run_checks()  # it had just been given its queue
    pool.run_checks()
    assert all(work.started.wait(WAIT_S) for work in others)
    assert len({work.thread for work in (stuck, *others)}) == 3
    pool.end(stuck, *others)


def test_after_a_slow_call_each_waiting_queue_gets_a_thread_at_once() -> None:
    pool = Pool(3)
    first = Work(SLOW_NS)
    pool.give(first)
    others = [pool.give(Work(SLOW_NS)) for _ in range(2)]
    assert all(work.started.wait(WAIT_S) for work in (first, *others)), "and nobody looked"
    wait_until(lambda: first.went_on == [True])  # it keeps its thread and its queue
    pool.end(first, *others)


@pytest.mark.parametrize("has_lock", [True, False])
def test_threads_compute_beside_each_other_where_no_interpreter_lock_forbids_it(
    has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_lock, raising=False)
    pool = Pool(3)
    first = pool.give(Work(COMPUTING_NS))
    wait_until(lambda: len(first.went_on) == 1)
    others = [pool.give(Work(COMPUTING_NS)) for _ in range(2)]
    if has_lock:
        assert first.call(COMPUTING_NS) is False, "the others wait for its thread"
    else:
        assert all(work.started.wait(WAIT_S) for work in others), "and nobody looked"
        assert first.call(COMPUTING_NS) is True
    pool.end(first, *others)


def test_without_another_thread_a_queue_waits_for_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ThreadLimit(monkeypatch, 1)
    pool = Pool(3)
    stuck = pool.give(Work())
    assert stuck.started.wait(WAIT_S)
    others = [pool.give_quick(Work()) for _ in range(2)]
    pool.run_checks()
    pool.run_checks()
    pool.give_quick(Work())
    assert not any(work.started.is_set() for work in others)
    stuck.end()
    assert all(work.started.wait(WAIT_S) for work in others)
    assert {work.thread for work in others} == {stuck.thread}
    pool.end()
    assert [record.getMessage() for record in caplog.records] == [
        "test: 1 threads run, queues wait for these: can't start new thread: end threads of this "
        "process, or raise the limit of memory or of processes (`ulimit -u`, `pids.max` of a "
        "container)"
    ]


def test_without_any_thread_a_queue_waits_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = ThreadLimit(monkeypatch, 0)
    pool = Pool(3)
    works = [pool.give_quick(Work()) for _ in range(2)]
    pool.run_checks()
    assert not any(work.started.is_set() for work in works)
    system.limit = 1
    pool.run_checks()
    assert all(work.started.wait(WAIT_S) for work in works)
    pool.end()


def test_a_queue_submitted_while_all_listeners_are_slow_gets_a_thread_at_once() -> None:
    pool = Pool(3)
    slow = pool.give(Work())
    assert slow.call(SLOW_NS)
    late = pool.give(Work())
    assert late.started.wait(WAIT_S)
    pool.end(slow, late)


def test_a_worker_detached_returns_its_queue_when_its_listener_is_quick_again() -> None:
    pool = Pool(2)
    slow = pool.give(Work())
    assert slow.call(SLOW_NS)
    primary = pool.give(Work())
    assert primary.started.wait(WAIT_S)
    assert slow.thread != primary.thread
    assert slow.call(SLOW_NS), "it keeps its thread while it is slow"
    assert not slow.call(QUICK_NS)
    pool.end(slow, primary)


def test_a_quick_worker_returns_its_queue_when_others_wait() -> None:
    pool = Pool(1)
    first, second = pool.give(Work()), Work()
    assert first.call(QUICK_NS), "there is nobody else"
    pool.give(second)
    assert not first.call(QUICK_NS)
    pool.end(first, second)


def test_a_queue_above_the_size_waits_for_the_next_free_thread() -> None:
    pool = Pool(1)
    first, second = pool.give(Work()), pool.give(Work())
    assert first.started.wait(WAIT_S)
    pool.run_checks()
    pool.run_checks()
    assert not second.started.is_set()
    first.end()
    assert second.started.wait(WAIT_S)
    pool.end(second)


def test_threads_start_only_as_work_needs_them() -> None:
    pool = Pool(20)
    for _ in range(5):
        assert pool.give_quick(Work(QUICK_NS)).started.wait(WAIT_S)
        wait_until(lambda: len(pool._idle) == 1)
    assert len(pool._threads) == 1
    pool.end()


def test_no_check_runs_while_nothing_waits() -> None:
    pool = Pool(2)
    assert pool.give_quick(Work()).started.wait(WAIT_S)
    wait_until(lambda: len(pool._idle) == 1)
    assert pool.checks == []
    alone = pool.give(Work())
    assert alone.started.wait(WAIT_S)
    assert pool.checks == []
    behind = pool.give(Work())
    pool.run_checks()
    assert behind.started.wait(WAIT_S)
    pool.end(alone, behind)


@pytest.mark.parametrize("seed", range(5))
def test_every_queue_is_served_whatever_is_slow_and_whenever_a_check_runs(seed: int) -> None:
    draw = random.Random(seed)
    pool = Pool(4)
    works = []
    for _ in range(300):
        work = Work(*draw.choices((QUICK_NS, QUICK_NS, SLOW_NS), k=draw.randrange(3)))
        works.append(pool.give_quick(work))
        if draw.random() < 0.2:
            pool.run_checks()
    wait_until(lambda: all(work.started.is_set() for work in works))
    assert len(pool._threads) <= 4
    pool.end()
    assert not pool._work


def test_closing_waits_for_a_running_listener_but_not_for_ever() -> None:
    pool = Pool(1)
    work = pool.give(Work())
    assert work.started.wait(WAIT_S)
    assert not pool.close(0.01)
    pool.end(work)


def test_closing_serves_what_was_submitted_before() -> None:
    pool = Pool(1)
    works = [pool.give(Work()) for _ in range(3)]
    pool.end(*works)
    assert all(work.started.is_set() for work in works)


def test_a_close_after_one_that_was_interrupted_wakes_the_rest() -> None:
    class Interrupting:
        """A lock whose release is interrupted once it is done."""

        def __init__(self, wake: threading.Lock) -> None:
            self.locked, self._wake = wake.locked, wake

        def acquire(self) -> bool:
            return self._wake.acquire()

        def release(self) -> None:
            self._wake.release()
            raise KeyboardInterrupt

    pool = Pool(2)
    works = [pool.give(Work(SLOW_NS)) for _ in range(2)]
    pool.run_checks()
    assert all(work.started.wait(WAIT_S) for work in works)
    for work in works:
        work.end()
    wait_until(lambda: len(pool._idle) == 2)
    threads = list(pool._threads)
    first = pool._idle[0]
    # Nobody waits for it: after its release it stays as an interrupted call left it.
    waited_for, first.wake = first.wake, Interrupting(locked())  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        pool.close(0.0)
    pool.close(0.0)
    waited_for.release()
    assert pool.close(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)


def locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def test_the_stack_of_a_task_that_blocks_its_loop_leads_to_the_call_that_blocks() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def where_it_blocks() -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    async def listen() -> None:
        where_it_blocks()

    async def run() -> None:
        await listen()

    runtime = Runtime(name="test-listeners")
    try:
        runtime.post(runtime.spawn, run(), "orders@b/0")
        assert begun.wait(WAIT_S)
        lines = [line for line in stacks_of_tasks(runtime.loop, "orders@b/0").split("\n") if line]
        names = [line.rpartition(", in ")[2] for line in lines if ", in " in line]
        assert names[:3] == ["run", "listen", "where_it_blocks"]
        assert stacks_of_tasks(runtime.loop, "orders@b/1") == ""
    finally:
        may_end.set()
        runtime.release()


# ---- queues that are ready, without a submit ----


def quick() -> Work:
    work = Work(QUICK_NS)
    work.end()
    return work


def test_the_thread_of_a_quick_listener_takes_ready_queues_itself() -> None:
    pool, ready = pool_with_ready(20)
    first = pool.give(Work())
    assert first.started.wait(WAIT_S)
    waiting = [ready.give(quick()) for _ in range(5)]
    first.end()
    assert all(work.started.wait(WAIT_S) for work in waiting)
    wait_until(lambda: ready.is_awaited)
    asleep = ready.give(quick())  # it is woken by this, not by a submit
    assert asleep.started.wait(WAIT_S)
    assert {work.thread for work in (*waiting, asleep)} == {first.thread}
    pool.end()


def test_a_thread_that_waits_for_ready_queues_is_woken_by_a_submit() -> None:
    pool, ready = pool_with_ready(20)
    threads = set()
    for _ in range(20):
        work = pool.give_quick(Work(QUICK_NS))
        assert work.started.wait(WAIT_S)
        threads.add(work.thread)
        wait_until(lambda: ready.is_awaited)
    assert len(threads) == 1
    pool.end()


def test_another_thread_takes_what_waits_while_a_listener_is_slow() -> None:
    pool, ready = pool_with_ready(20)
    slow = pool.give(Work(SLOW_NS))
    wait_until(lambda: slow.went_on == [True])  # detached with its queue
    helper = pool.give_quick(Work(QUICK_NS))
    assert helper.started.wait(WAIT_S)
    wait_until(lambda: ready.is_awaited)
    taken = ready.give(Work())
    assert taken.started.wait(WAIT_S)
    assert taken.thread == helper.thread != slow.thread
    pool.end(slow, taken)


def test_a_pool_that_shrinks_or_ends_wakes_the_thread_that_waits() -> None:
    pool, ready = pool_with_ready(2)
    works = [pool.give(Work(SLOW_NS)) for _ in range(2)]
    wait_until(lambda: all(work.went_on for work in works))
    for work in works:
        work.end()
    wait_until(lambda: ready.is_awaited)
    pool.resize(1)
    wait_until(lambda: len(pool._threads) == 1)
    after = pool.give_quick(Work(QUICK_NS))
    assert after.started.wait(WAIT_S)
    pool.end()


def test_without_an_engine_the_thread_sleeps_until_a_submit() -> None:
    pool, ready = pool_with_ready(20)
    ready.is_open = False
    for _ in range(3):
        assert pool.give_quick(Work(QUICK_NS)).started.wait(WAIT_S)
    pool.end()


def broken_once(pool: Pool, error: BaseException) -> None:
    """Break the first run of a pool, which has begun."""

    def breaks(work: Any, serving: Serving) -> None:
        serving.run = cast(Any, object())
        pool._run = pool.serve  # type: ignore[assignment, method-assign]
        raise error

    pool._run = breaks  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("is_served_again", [False, True])
def test_a_broken_run_is_recovered_elsewhere_before_its_thread_goes_on(
    is_served_again: bool,
) -> None:
    """Its own thread cannot: an exception that was sent to it may be followed by another one."""
    pool = Pool(1)
    error = KeyboardInterrupt()
    broken_once(pool, error)
    work = Work()
    work.is_served_again = is_served_again
    pool.give_quick(work)
    after = pool.give_quick(Work())
    wait_until(lambda: bool(pool.checks))
    assert not after.started.is_set()
    wait_until(lambda: pool.run_checks() or bool(pool.recovered))
    assert after.started.wait(WAIT_S)
    assert pool.recovered == [(work, error)]
    pool.end()
    assert work.started.is_set() is is_served_again


def test_a_recovery_that_is_interrupted_is_made_once() -> None:
    pool = Pool(1)
    broken_once(pool, KeyboardInterrupt())
    later, asked = pool._later, 0

    def interrupted(action: Callable[[], None]) -> None:
        nonlocal asked
        asked += 1
        later(action)
        if asked < 4:
            raise TimeoutError

    pool._later = interrupted  # type: ignore[assignment, method-assign]
    pool.give_quick(Work())
    wait_until(lambda: asked == 4)
    wait_until(lambda: pool.run_checks() or bool(pool.recovered))
    assert pool.give_quick(Work()).started.wait(WAIT_S)
    pool.run_checks()
    assert len(pool.recovered) == 1
    pool.end()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_thread_that_has_ended_leaves_what_it_had_taken_to_others(has_begun: bool) -> None:
    """Of exceptions that keep coming, one ends it in the end, whatever it catches."""
    pool = Pool(1)
    serve, ends = pool._serve, SystemExit()

    def end(worker: Any) -> None:
        pool._serve = serve  # type: ignore[method-assign]
        worker.ident = threading.get_ident()
        pool._workers[worker.ident] = worker
        pool._next(worker)
        worker.serving = Serving()
        worker.serving.run = cast(Any, object()) if has_begun else None
        worker.shaken_by = ends

    pool._serve = end  # type: ignore[method-assign]
    work = pool.give_quick(Work())
    (thread,) = pool._threads
    thread.join(WAIT_S)
    pool.look()
    assert pool.recovered == [(work, ends)] * has_begun
    assert pool.give_quick(Work()).started.wait(WAIT_S)
    assert work.started.is_set() is not has_begun
    pool.end()


def test_a_thread_that_never_runs_is_replaced() -> None:
    """One that a listener's thread starts may be ended by an exception sent to that one."""
    pool = Pool(1)
    with mock.patch.object(threading.Thread, "start"):
        work = pool.give_quick(Work())
    pool.look()
    assert len(pool._threads) == 1, "it may just begin"
    pool.look()
    assert work.started.wait(WAIT_S)
    pool.end()


@pytest.mark.parametrize("is_roused", [False, True])
def test_a_thread_whose_waking_was_interrupted_is_not_lost(is_roused: bool) -> None:
    pool = Pool(1)
    pool.give_quick(Work())
    wait_until(lambda: len(pool._idle) == 1)
    rouse = pool._rouse

    def interrupted(worker: Any) -> None:
        pool._rouse = rouse  # type: ignore[method-assign]
        if is_roused:
            rouse(worker)
        raise KeyboardInterrupt

    pool._rouse = interrupted  # type: ignore[method-assign]
    works = [Work(), Work()]
    with pytest.raises(KeyboardInterrupt):
        pool.give_quick(works[0])
    pool.give_quick(works[1])
    assert all(work.started.wait(WAIT_S) for work in works)
    pool.end()


def test_a_ready_queue_that_was_taken_when_an_exception_came_is_served() -> None:
    pool, ready = pool_with_ready(1)
    take, stopped = ready.take, threading.Event()

    def interrupted(taken: list[Any]) -> Any:
        found = take(taken)
        if found is not None and not stopped.is_set():
            stopped.set()
            raise KeyboardInterrupt
        return found

    ready.take = interrupted  # type: ignore[method-assign]
    pool.give_quick(Work())
    wait_until(lambda: ready.is_awaited)
    work = ready.give(Work())
    work.end()
    assert work.started.wait(WAIT_S)
    assert stopped.is_set()
    pool.end()


def test_an_exception_that_comes_to_an_idle_thread_loses_no_work() -> None:
    pool = Pool(2)
    first = pool.give_quick(Work())
    for _ in range(20):
        wait_until(lambda: len(pool._idle) == 1)
        sent = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(first.thread), ctypes.py_object(KeyboardInterrupt)
        )
        assert sent == 1
        work = pool.give_quick(Work())
        wait_until(work.started.is_set)
        assert work.thread == first.thread
    assert pool.close(WAIT_S)
