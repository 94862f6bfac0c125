"""Background writers: what blocks in one blocks nobody else."""

from __future__ import annotations

import contextlib
import ctypes
import threading

import pytest

from ordermq.background_writer import BackgroundWriter
from tests.component.forked import in_child
from tests.waiting import eventually


class Gate:
    """A `write` that hangs until `open`."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.entered = threading.Event()
        self._opened = threading.Event()

    def write(self, item: str) -> None:
        self.entered.set()
        assert self._opened.wait(30)
        self.written.append(item)

    def open(self) -> None:
        self._opened.set()


def test_items_are_written_in_order_and_the_thread_ends() -> None:
    written: list[int] = []
    writer = BackgroundWriter("writer", written.append, 1_000)
    assert all(writer.put(number) for number in range(100))
    assert writer.flush(30)
    assert written == list(range(100))
    for thread in threading.enumerate():
        if thread.name == "writer":
            thread.join(30)
    assert "writer" not in [thread.name for thread in threading.enumerate()]


# One of the threads that start the writer's may be ended so, too, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exceptions_that_come_to_those_who_write_leave_nothing_locked() -> None:
    """As by PyThreadState_SetAsyncExc, for a time limit: at any moment, and again and again."""
    written: list[int] = []
    writer = BackgroundWriter("writer", written.append, 1_000)
    put, is_over = [0], threading.Event()

    def write() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                writer.put(put[0])
                put[0] += 1
                writer.flush(0.01)

    def write_until_over() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                write()

    thread = threading.Thread(target=write_until_over, daemon=True)
    thread.start()
    for _ in range(300):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeoutError)
        )
        before = put[0]
        eventually(lambda before=before: put[0] > before, "it goes on")  # type: ignore[misc]
    is_over.set()
    thread.join(30)
    assert not thread.is_alive()
    eventually(lambda: writer.put(-1) and writer.flush(1.0), "a later item is written")
    assert written[-1] == -1
    assert writer.waiting() == 0


def test_what_finds_no_room_is_dropped_and_counted() -> None:
    gate = Gate()
    writer = BackgroundWriter("writer", gate.write, 10)
    assert writer.put("larger than the limit", 1_000), "an empty queue takes it"
    assert gate.entered.wait(30)
    assert not writer.put("no room", 1)
    assert not writer.flush(0.0)
    assert (writer.dropped, writer.waiting()) == (1, 1_000)
    gate.open()
    assert writer.flush(30)
    assert writer.put("room again", 10)
    assert writer.flush(30)
    assert gate.written == ["larger than the limit", "room again"]


def test_a_forked_child_writes_on_its_own_and_nothing_of_its_parent() -> None:
    gate = Gate()
    writer = BackgroundWriter("writer", gate.write, 10)
    assert writer.put("of the parent", 10)
    assert gate.entered.wait(30)

    def child() -> None:
        # Neither the parent's thread nor its full queue is here.
        gate.open()
        assert writer.put("of the child", 10)
        assert writer.flush(30)
        assert gate.written == ["of the child"]

    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            holding.set()
            assert release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(30)
    try:
        in_child(child)
    finally:
        release.set()
        holder.join()
        gate.open()
    assert writer.flush(30)
    assert gate.written == ["of the parent"]


def test_the_end_of_its_owner_ends_an_idle_thread() -> None:
    written: list[int] = []
    writer = BackgroundWriter("idle", written.append, 10, idle_s=3_600)
    for number in range(2):  # an item that comes behind the end is written all the same
        assert writer.put(number)
        assert writer.flush(30)
        writer.end_idling()
        for thread in threading.enumerate():
            if thread.name == "idle":
                thread.join(30)
                assert not thread.is_alive()
    assert written == [0, 1]
