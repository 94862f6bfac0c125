"""The I/O thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ordermq.client.outcome_future import OutcomeFuture
from ordermq.client.runtime import Runtime, Shutdown
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import StateError
from tests.component.interruption import HandledCall, InterruptedCall, quick_collections
from tests.waiting import eventually

WAIT_S = 20.0


class Owner:
    """Stands for a client."""


@pytest.fixture(autouse=True)
def no_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients live as long as their process, as those of Spark's workers."""
    monkeypatch.setattr(Runtime, "_shared", None)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    owner = Owner()
    taken = Runtime.acquire(owner)
    yield taken
    taken.release(owner)


def test_all_users_share_one_loop_and_the_last_one_ends_it() -> None:
    owners = Owner(), Owner()
    first, second = map(Runtime.acquire, owners)
    assert first is second
    for _ in range(2):  # the second call does nothing
        first.release(owners[0])
    assert first.call(asyncio.sleep(0, "alive")) == "alive"
    second.release(owners[1])
    assert first.loop.is_closed()
    third = Runtime.acquire(owners[0])
    assert third is not first
    third.release(owners[0])


def test_the_thread_ends_with_an_owner_that_is_gone_without_a_release() -> None:
    """So does what an exception has stopped between `acquire` and its keeping."""
    owners = [Owner(), Owner()]
    runtime = Runtime.acquire(owners[0])
    assert Runtime.acquire(owners[1]) is runtime
    del owners[0]
    assert runtime.call(asyncio.sleep(0, "alive")) == "alive"
    owners.clear()
    eventually(runtime.loop.is_closed, "its thread has ended")
    assert Runtime._shared is None


def test_the_io_thread_waits_for_no_signal_handler_that_has_come_to_acquire() -> None:
    """A handler runs on top of `acquire` or `release`, and may itself wait for the I/O thread."""
    at, raised_at = 1, "begun"
    while raised_at:
        owners = [Owner(), Owner(), Owner()]
        first = Runtime.acquire(owners[0])

        def handle(first: Runtime = first, owners: list[Owner] = owners) -> None:
            other = Runtime.acquire(owners[1])
            first.post(first.release, owners[0])
            assert other.call(asyncio.sleep(0.02, "alive"), WAIT_S) == "alive"
            other.release(owners[1])

        with HandledCall(at, handle) as handled:
            last = Runtime.acquire(owners[2])
            last.release(owners[2])
        raised_at = handled.raised_at
        first.release(owners[0])
        for runtime in (first, last):
            eventually(runtime.loop.is_closed, f"its thread has ended, handled at {raised_at}")
        at += 1
    assert at > 10


@quick_collections()
def test_a_start_of_the_thread_that_is_interrupted_leaves_no_thread() -> None:
    before, at, is_over = set(threading.enumerate()), 1, False
    while not is_over:
        owner = Owner()
        with contextlib.suppress(KeyboardInterrupt), InterruptedCall(at) as interruption:
            Runtime.acquire(owner)
        is_over = not interruption.raised_at
        del owner
        gc.collect()
        eventually(
            lambda: {it for it in threading.enumerate() if it.is_alive()} <= before,
            interruption.raised_at,
        )
        at += 1
    assert at > 10


def test_work_runs_on_the_io_thread_and_its_result_or_error_comes_back(runtime: Runtime) -> None:
    async def where() -> bool:
        return runtime.is_io_thread

    async def fail() -> None:
        raise KeyError("x")

    assert runtime.call(where())
    assert not runtime.is_io_thread
    with pytest.raises(KeyError):
        runtime.call(fail())


def test_a_blocking_call_on_the_io_thread_is_refused_instead_of_hanging(runtime: Runtime) -> None:
    async def block() -> None:
        runtime.call(asyncio.sleep(0))

    with pytest.raises(StateError, match="make it on another thread"):
        runtime.call(block())


def test_a_later_thread_with_the_number_of_one_that_has_ended_is_not_taken_for_it() -> None:
    ended = Runtime()
    number = ended._thread.ident
    ended.release()
    found: list[bool] = []
    # The system gives a number again as soon as its thread is gone.
    for _ in range(50):
        later = threading.Thread(target=lambda: found.append(ended.is_io_thread))
        later.start()
        later.join()
        if later.ident == number:
            break
    assert not any(found)


def test_a_thread_that_keeps_the_lock_of_a_submitted_future_holds_up_nobody_else(
    runtime: Runtime,
) -> None:
    async def work() -> str:
        return "done"

    # As a signal handler leaves it whose exception comes right behind the lock.
    future = runtime.submit(work())
    with future._condition:
        assert runtime.call(work(), 10.0) == "done"
        assert not concurrent.futures.wait([future], 0).done
        with ThreadPoolExecutor(1) as pool:  # another thread, as a lock lets its own one through
            assert pool.submit(future.result, 10.0).result(10.0) == "done"
    assert concurrent.futures.wait([future], 10.0).not_done == set()


def test_many_threads_may_wait_for_one_outcome_and_each_for_a_time_of_its_own(
    runtime: Runtime,
) -> None:
    outcome: OutcomeFuture[str] = OutcomeFuture(runtime)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(outcome.result, 10.0) for _ in range(4)]
        with pytest.raises(TimeoutError):
            outcome.result(0.001)
        outcome.tell("done", None)
        assert [each.result(10.0) for each in waiting] == ["done"] * 4
    assert outcome.exception() is None
    failed: OutcomeFuture[str] = OutcomeFuture(runtime)
    for _ in range(2):  # as a send does that is interrupted
        failed.tell(None, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        failed.result()
    assert isinstance(failed.exception(), ValueError)
    assert concurrent.futures.wait([outcome, failed], 10.0).not_done == set()


def test_a_callback_of_a_submitted_future_runs_once_and_not_under_its_lock(
    runtime: Runtime,
) -> None:
    seen: list[bool] = []
    called = threading.Event()
    begin = threading.Event()

    async def work() -> None:
        await asyncio.to_thread(begin.wait)

    def look(future: concurrent.futures.Future[None]) -> None:
        other = threading.Thread(target=lambda: seen.append(future.done()))
        other.start()
        other.join(10.0)
        called.set()

    future = runtime.submit(work())
    future.add_done_callback(look)
    begin.set()
    assert called.wait(10.0)
    assert seen == [True]


def test_work_whose_future_is_cancelled_is_cancelled_too(runtime: Runtime) -> None:
    began, ended = threading.Event(), threading.Event()
    told: list[bool] = []

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    future = runtime.submit(work())
    future.add_done_callback(lambda it: told.append(it.cancelled()))
    assert began.wait(10.0)
    assert future.cancel()
    assert ended.wait(10.0)
    runtime.call(asyncio.sleep(0))
    assert told == [True]
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


def test_work_that_takes_too_long_is_cancelled(runtime: Runtime) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        runtime.call(endless(), timeout_s=0.01)
    assert ended.wait(10)


def test_a_task_that_fails_is_logged_once(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("lost otherwise")

    async def start() -> None:
        task = runtime.spawn(fail(), "the failing one")
        await asyncio.wait([task])

    runtime.call(start())
    runtime.call(asyncio.sleep(0))
    assert [record.getMessage() for record in caplog.records] == [
        "task the failing one: internal error (please report)"
    ]


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    owner, ended = Owner(), threading.Event()
    runtime = Runtime.acquire(owner)

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def start() -> None:
        runtime.spawn(endless(), "endless")
        await asyncio.sleep(0)

    runtime.call(start())
    runtime.release(owner)
    assert ended.is_set()


def test_who_waits_for_what_the_end_cancels_is_told_of_the_end() -> None:
    owner, begun = Owner(), threading.Event()
    runtime = Runtime.acquire(owner)

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: runtime.call(endless()))
        assert begun.wait(WAIT_S)
        runtime.release(owner)
        with pytest.raises(StateError, match="the I/O thread has ended"):
            waiting.result(WAIT_S)


def test_who_awaits_what_the_end_cancels_is_told_of_the_end_and_not_cancelled() -> None:
    session = ClientSession("127.0.0.1:1", RemotingConfig())
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def program() -> None:
        waiting = asyncio.create_task(session.acall(endless()))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        await asyncio.to_thread(session.close)
        with pytest.raises(StateError, match="the I/O thread has ended"):
            await waiting

    asyncio.run(program())


def test_what_begins_while_the_thread_ends_is_cancelled_too() -> None:
    owner, ended = Owner(), list[str]()
    runtime = Runtime.acquire(owner)

    async def endless(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "first":
                runtime.spawn(endless("second"), "second")
                await asyncio.sleep(0)

    async def start() -> None:
        runtime.spawn(endless("first"), "first")
        await asyncio.sleep(0)

    runtime.call(start())
    runtime.release(owner)
    assert ended == ["first", "second"]


@pytest.mark.parametrize("is_completed", [False, True])
def test_a_call_that_comes_too_late_leaves_no_coroutine_behind(is_completed: bool) -> None:
    owner = Owner()
    runtime = Runtime.acquire(owner)
    runtime.release(owner)

    async def work() -> None: ...

    with pytest.raises(StateError):
        if is_completed:
            runtime.complete(work)
        else:
            runtime.call(work())
    gc.collect()  # it says so of what nobody has awaited, and a warning fails the test


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
@pytest.mark.parametrize("place", ["callback", "task", "timer"])
def test_an_error_nobody_expected_is_logged_and_counted_and_the_thread_goes_on(
    runtime: Runtime, error: BaseException, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    if place == "callback":
        runtime.post(fail)
    elif place == "timer":
        runtime.post_after(0.0, fail)
    else:
        runtime.post(lambda: runtime.spawn(fail_later(), "the broken one"))
    for _ in range(5):  # an error stops asyncio's loop, and it begins anew
        assert runtime.call(asyncio.sleep(0, "alive"), 10.0) == "alive"
    assert runtime.errors >= 1
    assert str(error) in caplog.text
    assert caplog.records[-1].exc_info


def test_the_thread_goes_on_where_its_loop_fails_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ordermq.client.runtime.new_event_loop", asyncio.SelectorEventLoop)
    owner = Owner()
    runtime = Runtime.acquire(owner)
    selector: Any = runtime.loop._selector  # type: ignore[attr-defined]
    select, errors = selector.select, [RuntimeError("no turn"), MemoryError()]

    def fail_first(timeout: float | None = None) -> Any:
        if errors:
            raise errors.pop()
        return select(timeout)

    monkeypatch.setattr(selector, "select", fail_first)
    try:
        assert runtime.call(asyncio.sleep(0, "alive"), 10.0) == "alive"
        assert runtime.errors == 2
    finally:
        runtime.release(owner)
    assert "no turn" in caplog.text


def test_an_abandoned_request_that_failed_is_no_internal_error(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    def report() -> None:
        error = StateError("closed meanwhile")
        runtime.loop.call_exception_handler({"message": "never retrieved", "exception": error})

    runtime.post(report)
    runtime.call(asyncio.sleep(0))
    assert runtime.errors == 0
    assert caplog.records == []


def test_what_a_hurried_end_waits_for_is_no_internal_error(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    waits = threading.Event()
    ends: list[Shutdown] = []

    async def work(timeout_s: float) -> bool:
        late = asyncio.ensure_future(asyncio.Event().wait())
        both = asyncio.gather(late, return_exceptions=True)
        waits.set()
        return await ends[0].unless_hurried(both)

    ends.append(Shutdown(runtime, work, is_hurried_by_second=True))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ends[0].wait, WAIT_S)
        assert waits.wait(WAIT_S)
        assert ends[0].wait(WAIT_S) is False
        assert first.result(WAIT_S) is False
    for _ in range(3):  # what was cancelled ends
        runtime.call(asyncio.sleep(0))
    runtime.call(asyncio.to_thread(gc.collect))
    assert runtime.errors == 0
    assert caplog.records == []


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_timer_after_the_end_of_the_interpreter_does_not_end_the_process_by_a_signal() -> None:
    # The C library's exit calls usleep with the exit status, of which the system sees 8 bits: the
    # process lives on for half a second when the interpreter has ended, and the timer comes due.
    done = run_program(
        "import ctypes, sys\n"
        "from ordermq.client.runtime import Runtime\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.on_exit(ctypes.cast(libc.usleep, ctypes.c_void_p), None)\n"
        "Runtime.acquire(Runtime).post_after(0.2, print)\n"
        "sys.exit(256 * 2000)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_client_closed_after_the_io_thread_was_halted_says_so_at_once() -> None:
    done = run_program(
        "import atexit\n"
        "clients = []\n"
        "atexit.register(lambda: [each.close() for each in clients])\n"  # before the import
        "from ordermq import Producer, PushConsumer\n"
        "from ordermq.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker()\n"
        "broker.start()\n"
        "producer = Producer('p', name_servers=broker.name_servers)\n"
        "consumer = PushConsumer('c', name_servers=broker.name_servers)\n"
        "consumer.subscribe('orders')\n"
        "consumer.orderly(print)\n"
        "for each in producer, consumer:\n"
        "    each.start()\n"
        "    clients.append(each)\n"
    )
    assert done.returncode == 0
    assert done.stderr.count("closed too late") == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


def test_a_program_that_ends_without_close_is_told_what_that_costs() -> None:
    done = run_program(
        "import os, socket, threading\n"
        "from ordermq import Message, Producer, PushConsumer\n"
        "from ordermq.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker().start()\n"
        "silent = socket.create_server(('127.0.0.1', 0))\n"
        "producers = {}\n"
        "for name, address in (\n"
        "    ('idle', broker.name_servers),\n"
        "    ('left', f'127.0.0.1:{silent.getsockname()[1]}'),\n"
        "    ('closed', f'127.0.0.1:{silent.getsockname()[1]}'),\n"
        "):\n"
        # Otherwise the silent server's answer is given up while a busy machine gets to the end.
        "    producers[name] = Producer(\n"
        "        name, name_servers=address, request_timeout_ms=600_000\n"
        "    )\n"
        "    producers[name].start()\n"
        "producers['idle'].send(Message('orders', b'x'))\n"
        "for name in ('left', 'closed'):\n"
        "    producers[name].send_nowait(Message('orders', b'x'))\n"
        "producers['closed'].close(0.0)\n"
        "held = threading.Event()\n"
        "def start(group):\n"  # nobody keeps the consumer itself
        "    consumer = PushConsumer(\n"
        "        group, name_servers=broker.name_servers, on_assigned=lambda queue: held.set()\n"
        "    )\n"
        "    consumer.subscribe('orders')\n"
        "    consumer.orderly(print)\n"
        "    consumer.start()\n"
        "start('g')\n"
        "assert held.wait(20)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"  # the child says nothing: they are not its own
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the program ended without close(): ") == 2, done.stderr
    assert "producer left had messages that no broker had confirmed" in done.stderr
    assert "the consumer of group g held queues; another member gets them when their" in done.stderr
