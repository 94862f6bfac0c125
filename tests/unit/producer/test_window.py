"""Callers wait for their own messages, and are woken by nobody else's."""

from __future__ import annotations

import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import SendReceipt
from ordermq.producer.bell import Bell
from ordermq.producer.pending_message import Entry
from ordermq.producer.waiters import SendWindow, Together

RECEIPT = SendReceipt(MessageQueue("T", "b", 0), 0, "id", "place")


def entry(window: SendWindow | Together) -> Entry:
    return Entry([b"x"], [""], ["id"], [0], 1, None, False, window.on_done)


def is_rung(bell: Bell) -> bool:
    return bool(select.select([bell._listens], [], [], 0)[0])


def in_a_thread(work: threading.Thread) -> None:
    work.start()
    work.join(5)
    assert not work.is_alive(), "still waiting"


def test_a_ring_before_the_wait_is_not_lost() -> None:
    def work() -> None:
        together = Together(1)
        entry(together).finish([RECEIPT], None)
        together.wait()

    in_a_thread(threading.Thread(target=work, daemon=True))


def test_a_caller_waits_for_all_of_its_messages() -> None:
    together, rung = Together(3), Bell.of_thread()
    entries = [entry(together) for _ in range(3)]
    for one in entries[:2]:
        one.finish([RECEIPT], None)
        assert not is_rung(rung)
    entries[2].finish([RECEIPT], None)
    together.wait()
    assert not is_rung(rung)


def test_the_ring_an_interrupted_caller_left_ends_no_later_wait() -> None:
    bell = Bell.of_thread()
    entry(Together(1)).finish([RECEIPT], None)  # its caller never waited
    together = Together(1)
    later = entry(together)
    is_finished = threading.Event()

    def finish() -> None:
        while is_rung(bell):  # until the left ring is taken
            os.sched_yield()
        is_finished.set()
        later.finish([RECEIPT], None)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(finish)
        together.wait()
        assert is_finished.is_set()
        done.result(5)


def test_a_window_waits_for_the_oldest_message_whatever_else_is_done() -> None:
    window = SendWindow()
    first, second = entry(window), entry(window)
    second.finish([RECEIPT], None)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first.finish, [RECEIPT], None)
        assert window.receipt(first) is RECEIPT
        done.result(5)
    assert window.receipt(second) is RECEIPT


def test_each_thread_has_one_bell_and_it_ends_with_the_thread() -> None:
    bells: list[tuple[Bell, Bell]] = []
    in_a_thread(threading.Thread(target=lambda: bells.append((Bell.of_thread(), Bell.of_thread()))))
    (one, again) = bells[0]
    assert one is again
    assert one is not Bell.of_thread()
    end = one._listens
    os.fstat(end)
    bells.clear()
    del one, again
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(end)


def test_a_fork_leaves_the_child_a_bell_of_its_own() -> None:
    parents = Bell.of_thread()
    child = os.fork()
    if child == 0:
        os._exit(int(Bell.of_thread() is parents))
    assert os.waitpid(child, 0)[1] == 0
