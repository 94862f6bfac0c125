"""The threads that run listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ordermq.consumer.worker_pool import WorkerPool

WAIT_S = 10.0


class Work:
    """Stands for an assigned queue: its turn lasts until it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.may_end = threading.Event()


def run(work: Any) -> None:
    work.started.set()
    assert work.may_end.wait(WAIT_S)


def pool_of(size: int, serve: Callable[[Any], None] = run) -> WorkerPool:
    return WorkerPool(size, serve, "test")


def submit(pool: WorkerPool, work: Work) -> Work:
    pool.submit(work)  # type: ignore[arg-type]
    return work


def test_every_queue_gets_a_thread_while_there_are_any() -> None:
    pool = pool_of(3)
    works = [submit(pool, Work()) for _ in range(3)]
    assert all(work.started.wait(WAIT_S) for work in works)
    for work in works:
        work.may_end.set()
    assert pool.close(WAIT_S)


def test_a_queue_above_the_size_waits_for_the_next_free_thread() -> None:
    pool = pool_of(1)
    first, second = submit(pool, Work()), submit(pool, Work())
    assert first.started.wait(WAIT_S)
    assert not second.started.is_set()
    first.may_end.set()
    assert second.started.wait(WAIT_S)
    second.may_end.set()
    assert pool.close(WAIT_S)


def test_two_queues_that_come_while_one_thread_is_idle_do_not_wait_for_each_other() -> None:
    # The idle thread can take one of them only; if both were left to it, the second would
    # stand behind the first one's listener for as long as that runs.
    for _ in range(50):
        pool = pool_of(2)
        first = submit(pool, Work())
        first.may_end.set()
        assert first.started.wait(WAIT_S)
        while pool._spare < 1:  # the thread is on its way back
            threading.Event().wait(0.0001)
        slow, quick = submit(pool, Work()), submit(pool, Work())
        assert quick.started.wait(WAIT_S)
        assert slow.started.wait(WAIT_S)
        slow.may_end.set()
        quick.may_end.set()
        assert pool.close(WAIT_S)


def test_threads_start_only_as_work_needs_them() -> None:
    pool = pool_of(20)
    for _ in range(5):
        work = submit(pool, Work())
        work.may_end.set()
        assert work.started.wait(WAIT_S)
        while pool._spare < 1:
            threading.Event().wait(0.0001)
    assert len(pool._threads) == 1
    assert pool.close(WAIT_S)


def test_closing_waits_for_a_running_listener_but_not_for_ever() -> None:
    pool = pool_of(1)
    work = submit(pool, Work())
    assert work.started.wait(WAIT_S)
    assert not pool.close(0.01)
    work.may_end.set()
    assert pool.close(WAIT_S)
