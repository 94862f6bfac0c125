"""Callers wait for their own messages, and are woken by nobody else's."""

from __future__ import annotations

import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt
from ordermq.producer.pending_message import BatchWaiter, PendingMessage, SendWindow
from ordermq.remoting.thread_event import ThreadEvent

RECEIPT = SendReceipt(MessageQueue("T", "b", 0), 0, "id", "place")


def pending(window: SendWindow | BatchWaiter) -> PendingMessage:
    return PendingMessage([b"x"], [""], ["id"], [0], 1, None, False, window.on_done)


def is_set(event: ThreadEvent) -> bool:
    return bool(select.select([event._reader], [], [], 0)[0])


def in_a_thread(work: threading.Thread) -> None:
    work.start()
    work.join(5)
    assert not work.is_alive(), "still waiting"


def test_an_event_set_before_the_wait_is_not_lost() -> None:
    def work() -> None:
        waiter = BatchWaiter(1)
        finishing = threading.Thread(target=pending(waiter).finish, args=([RECEIPT], None))
        finishing.start()
        finishing.join()
        waiter.wait()

    in_a_thread(threading.Thread(target=work, daemon=True))


def test_a_caller_waits_for_all_of_its_messages() -> None:
    waiter, event = BatchWaiter(3), ThreadEvent.of_thread()
    messages = [pending(waiter) for _ in range(3)]
    for one in messages[:2]:
        one.finish([RECEIPT], None)
        assert not is_set(event)
    messages[2].finish([RECEIPT], None)
    waiter.wait()
    assert not is_set(event)


def test_an_event_that_an_interrupted_caller_left_set_ends_no_later_wait() -> None:
    event = ThreadEvent.of_thread()
    unawaited = pending(BatchWaiter(1))  # its caller never waits
    in_a_thread(threading.Thread(target=unawaited.finish, args=([RECEIPT], None)))
    assert is_set(event)
    waiter = BatchWaiter(1)
    later = pending(waiter)
    is_finished = threading.Event()

    def finish() -> None:
        while is_set(event):  # until the event left set is taken
            os.sched_yield()
        is_finished.set()
        later.finish([RECEIPT], None)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(finish)
        waiter.wait()
        assert is_finished.is_set()
        done.result(5)


def test_a_window_waits_for_the_oldest_message_whatever_else_is_done() -> None:
    window = SendWindow()
    first, second = pending(window), pending(window)
    second.finish([RECEIPT], None)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first.finish, [RECEIPT], None)
        assert window.receipt(first) is RECEIPT
        done.result(5)
    assert window.receipt(second) is RECEIPT


def test_each_thread_has_one_event_and_it_ends_with_the_thread() -> None:
    events: list[tuple[ThreadEvent, ThreadEvent]] = []
    in_a_thread(
        threading.Thread(
            target=lambda: events.append((ThreadEvent.of_thread(), ThreadEvent.of_thread()))
        )
    )
    (one, again) = events[0]
    assert one is again
    assert one is not ThreadEvent.of_thread()
    end = one._reader
    os.fstat(end)
    events.clear()
    del one, again
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(end)


def test_a_fork_leaves_the_child_an_event_of_its_own() -> None:
    parents = ThreadEvent.of_thread()
    child = os.fork()
    if child == 0:
        os._exit(int(ThreadEvent.of_thread() is parents))
    assert os.waitpid(child, 0)[1] == 0
