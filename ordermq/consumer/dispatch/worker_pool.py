"""WorkerPool and ListenerLoop: the threads, or the event loop, that listeners run on.

A queue is in a pool at most once: its dispatch flag says whether it waits or runs there.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, cast

from ordermq import core
from ordermq.callables import is_async
from ordermq.client.runtime import ANSWER_S, Runtime, result_of
from ordermq.client.user_code import TaskLoop, UserCode, on_thread
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.receiver import Queue, ReadyQueues
from ordermq.errors import NoThread, UsedAfterFork
from ordermq.forking import ProcessBound
from ordermq.model.log_fields import log_fields
from ordermq.threads import Lock, NativeEvent, start_aside, start_thread
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
# A listener that returns sooner than this hardly waits for anything but the interpreter lock, so
# one thread is enough for it. Without that lock threads compute at once, but passing a queue from
# one to another takes some microseconds, too.
_QUICK_CALL_NS = 100_000
_QUICK_CALL_WITHOUT_LOCK_NS = 5_000
_CHECK_AFTER_S = 0.001  # how long a queue may wait behind a listener that does not return
_RECOVERY_S = 0.1  # how long a thread waits for the I/O thread before it asks again


_Served = TypeVar("_Served", bound=AssignedQueue, contravariant=True)


class ListenerPool(Protocol[_Served]):
    """The place where a dispatcher's runs and its listener are executed."""

    def submit(self, assigned: _Served) -> None:
        """Serve a queue soon; any thread."""

    def report_calls(self, calls: int) -> bool:
        """Report listener calls, from the thread or task that serves a queue.

        Args:
            calls: number of calls since the last report, or since the queue was taken.
        Returns: False if the caller must submit its queue again, if it has more, and return.
        """

    async def call_alone(
        self, listener: Callable[..., Any], context: ConsumeContext
    ) -> tuple[object, BaseException | None]:
        """Call a listener outside of any queue, from the I/O thread.

        Returns: (its result, None) or (None, what it raised).
        """

    def take_from(self, ready: ReadyQueues) -> None:
        """Serve these queues, too; before the first `submit`."""

    def awaited(self, returned: Awaitable[object]) -> object:
        """Wait for the result of a plain listener that returned an awaitable; on its thread."""

    def calls_from_here(self) -> bool:
        """Return True on a thread of its listeners, which must not wait for them."""

    def resize(self, size: int) -> None:
        """Set the maximum number of threads, or of limited tasks; any thread."""

    def look(self) -> None:
        """Replace threads that exceptions have ended; now and then, on the I/O thread."""

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        """Return the stack of the listener that runs for a queue on this thread."""

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s` seconds."""


class Serving:
    """The state of a queue that is served: another thread puts right what an error has broken.

    Attributes:
        run: serves it; None: it has not begun.
        context: of the call that is being settled, or was last.
        submits: the run has ended, and rests: True if the queue must be served again. None before.
    """

    # One is made for each run: values of the class cost less than an `__init__`.
    run: core.contract.ConsumeRun | None = None
    context: Any = None
    submits: bool | None = None


class Runs(Value, Generic[Queue]):
    """The functions of a dispatcher that a pool calls.

    Args:
        run: consumes one queue until it is empty, revoked, out of its time slice, or `report_calls`
            returned False; it reports its calls there, and its state to its second argument.
        run_async: the same on an event loop; sets its second argument first.
        recover: ends a run that has begun and that an error has broken; on the I/O thread.
    """

    run: Callable[[Queue, Serving], None]
    run_async: Callable[[Queue, asyncio.Event], Coroutine[Any, Any, None]]
    recover: Callable[[Queue, Serving, BaseException], None]


def pool_for(
    listener: Callable[..., object],
    size: int,
    runs: Runs[Queue],
    name: str,
    runtime: Runtime,
    user_code: UserCode,
    *,
    limits_tasks: bool,
) -> ListenerPool[Queue]:
    """Make the pool a listener needs: `size` threads, or an event loop for an `async def` one.

    Args:
        user_code: has that loop.
        limits_tasks: the event loop, too, runs at most `size` queues at once.
    """

    def make_loop() -> TaskLoop:
        return user_code.listener_loop(f"{name}-listeners")

    if is_async(listener):
        return ListenerLoop(runs.run_async, make_loop(), size if limits_tasks else None)
    return WorkerPool(
        size, runs, name, lambda check: runtime.post_after(_CHECK_AFTER_S, check), make_loop
    )


def _move(source: Callable[[], Queue], to: collections.deque[Queue] | list[Queue]) -> None:
    """Append one of `source`, such as a list's `pop`, which has one.

    Native code from the taking to the end of `to`, in which no exception can come to the thread: a
    queue must be in one place at any time, or nobody would serve it, or two at once.
    """
    to.extend(islice(iter(source, None), 1))


class _Worker(Generic[Queue]):
    """A thread of the pool; guarded by the pool's lock, except where its own thread reads."""

    __slots__ = (
        "ident", "is_ended", "is_late", "is_quick", "is_watching", "is_woken", "ready", "serving",
        "settled", "shaken_by", "since_ns", "taken", "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ident = 0
        self.taken: list[Queue] = []  # the queue that it serves, or is about to
        self.serving: Serving | None = None  # how far it is with that
        self.settled = NativeEvent()  # the I/O thread has put right what an error broke
        self.ready: list[Any] = []  # what it has just taken of the queues that are ready
        self.shaken_by: BaseException | None = None  # came between two runs, or broke one
        self.is_woken = False  # woken for a waiting queue, whichever worker is primary
        self.is_quick = True  # by its last report
        self.is_watching = False  # woken because a queue may be ready
        self.is_late = False  # at the last look it did not run yet
        self.is_ended = False
        self.since_ns = 0  # when it last took a queue or reported
        # A lock as a binary semaphore for its one waiter: an Event would allocate a lock per wait
        # and take another one around it.
        self.wake = Lock()
        self.wake.acquire()


class WorkerPool(ProcessBound, Generic[Queue]):
    """At most `size` daemon threads, started as work needs them.

    One worker, the primary one, serves queue after queue while the listener is quick. As soon as
    it is not, each waiting queue gets a thread: a primary worker that reports a slow call is
    detached with its queue, and one whose listener does not return is detached by a check, a
    millisecond after a queue began to wait for it. A detached worker keeps its queue until the
    listener is quick again.

    Args:
        later: calls its argument in about a millisecond, on the I/O thread.
        make_loop: for listeners that turn out to be asynchronous.
        clock_ns: for the duration of calls.
    """

    # Threads that share one interpreter lock do not run quick listeners any faster than one
    # thread does, and they contend for the lock with the I/O thread. Hence one primary worker;
    # without that lock far fewer listeners count as quick.

    def __init__(
        self,
        size: int,
        runs: Runs[Queue],
        name: str,
        later: Callable[[Callable[[], None]], None],
        make_loop: Callable[[], TaskLoop],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._size = size
        self._run = runs.run
        self._recover = runs.recover
        self._name = name
        self._later = later
        self._clock_ns = clock_ns
        self._lock = Lock()
        self._work: collections.deque[Queue] = collections.deque()
        self._threads: dict[threading.Thread, _Worker[Queue]] = {}
        self._workers: dict[int, _Worker[Queue]] = {}  # by ident
        self._idle: list[_Worker[Queue]] = []
        self._primary: _Worker[Queue] | None = None
        self._steps = 0  # of the primary worker: queues taken and reports
        self._steps_checked = -1  # at the last check
        self._has_check = False  # one check at a time is on its way
        self._is_closing = False
        self._is_short = False  # of threads, and that is logged
        self._ready: ReadyQueues | None = None
        self._watcher: _Worker[Queue] | None = None  # the idle one that waits for ready queues
        self._make_loop = make_loop
        self._loop: TaskLoop | None = None
        has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()  # since Python 3.13
        self._quick_call_ns = _QUICK_CALL_NS if has_lock else _QUICK_CALL_WITHOUT_LOCK_NS

    def submit(self, assigned: Queue) -> None:
        with self._lock:
            self._work.append(assigned)
            self._announce()

    def take_from(self, ready: ReadyQueues) -> None:
        self._ready = ready

    def report_calls(self, calls: int) -> bool:
        # Runs once per claim, so the common case, primary and quick, takes no lock: `_primary`
        # is replaced under it, but only this thread or a check can detach this worker, and a
        # check that came first is seen here or at the next report.
        worker = self._workers[threading.get_ident()]
        now_ns = self._clock_ns()
        worker.is_quick = now_ns - worker.since_ns <= calls * self._quick_call_ns
        worker.since_ns = now_ns
        if worker is self._primary:
            if worker.is_quick:
                self._steps += 1
                return not self._work  # others wait for this thread
            with self._lock:
                self._detach_primary()
            return True
        if not worker.is_quick:
            return len(self._threads) <= self._size
        with self._lock:
            if self._primary is None:
                self._primary = worker
                self._schedule_check()
            return worker is self._primary and not self._work

    async def call_alone(
        self, listener: Callable[..., Any], context: ConsumeContext
    ) -> tuple[object, BaseException | None]:
        return await _outcome_of(on_thread(self._call_alone, listener, context))

    def _call_alone(self, listener: Callable[..., Any], context: ConsumeContext) -> object:
        returned = listener(context.messages, context)
        return self.awaited(returned) if inspect.isawaitable(returned) else returned

    def awaited(self, returned: Awaitable[object]) -> object:
        # One loop for all of them, as for an `async def`: what one call leaves there, such as a
        # connection, the next one can use.
        with self._lock:
            if self._loop is None:
                self._loop = self._make_loop()
        return self._loop.call(result_of(returned))

    def calls_from_here(self) -> bool:
        return threading.get_ident() in self._workers or _runs_here(self._loop)

    def resize(self, size: int) -> None:
        with self._lock:
            self._size = size
            for worker in self._idle[: max(len(self._threads) - size, 0)]:
                self._rouse(worker)  # it finds no work, and ends
                self._idle.remove(worker)
            self._wake_workers(len(self._work))
            self._schedule_check()

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        return stack_of_thread(thread)

    def close(self, timeout_s: float) -> bool:
        with self._lock:
            self._is_closing = True
            self._idle.clear()
            # All of them, and again after a call that Ctrl-C ended: who is woken finds no work.
            for worker in list(self._workers.values()):
                self._rouse(worker)
            threads = [each for each in self._threads if each.ident is not None]
        # A listener may close its consumer: its own thread it cannot wait for.
        threads = [each for each in threads if each is not threading.current_thread()]
        for thread in threads:
            thread.join(timeout_s)
        if self._loop is not None:
            self._loop.release(timeout_s=max(timeout_s, ANSWER_S))
        return not any(thread.is_alive() for thread in threads)

    # Under the lock.

    def _announce(self) -> None:
        """See to it that a queue that begins to wait is served."""
        if self._primary is None:
            self._wake_workers(1)
        else:
            self._schedule_check()

    def _wake_workers(self, most: int) -> None:
        """Wake idle workers, or start new ones; the first becomes primary if none is."""
        for _ in range(most):
            if self._idle:
                # Woken first: who wakes may be stopped in between, and must not lose a thread.
                worker = self._idle[-1]
                self._rouse(worker)
                self._idle.pop()
            elif len(self._threads) < self._size and not self._is_closing:
                started = self._start()
                if started is None:
                    return
                worker = started
            else:
                return  # all are with slow listeners; the first to end takes the next queue
            worker.is_woken = True
            if self._primary is None:
                self._primary = worker

    def _rouse(self, worker: _Worker[Queue]) -> None:
        if worker.wake.locked():
            worker.wake.release()
        if worker is self._watcher and self._ready is not None:
            self._ready.interrupt()

    def _start(self) -> _Worker[Queue] | None:
        """Start a worker; None where the system gives no thread: those that run go on alone."""
        worker: _Worker[Queue] = _Worker()
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
        self._threads[thread] = worker
        try:
            # A thread of listeners may get an exception here; others can wait until it runs.
            if threading.get_ident() in self._workers:
                start_aside(thread)
            else:
                start_thread(thread)
        except NoThread as error:
            del self._threads[thread]  # else it would count, and `close` would wait for it
            if not self._is_short:
                self._is_short = True
                _log.error(
                    "%s: %d threads run, queues wait for these: %s",
                    self._name,
                    len(self._threads),
                    error,
                )
            if not self._threads:
                self._later(self._start_again)
            return None
        self._is_short = False
        return worker

    def _start_again(self) -> None:
        with self._lock:
            if not self._threads:
                self._wake_workers(len(self._work))

    def _schedule_check(self) -> None:
        """Check soon that the primary worker gets to the queues that wait for it, if any."""
        if self._work and self._primary and not self._has_check and not self._is_closing:
            self._has_check = True
            self._steps_checked = self._steps
            self._later(self._check)

    def _detach_primary(self) -> None:
        """Let no queue wait for the primary worker: its listener is slow."""
        self._primary = None
        self._wake_workers(len(self._work))
        self._schedule_check()

    def _end_worker(self, worker: _Worker[Queue]) -> None:
        worker.is_ended = True
        self._threads.pop(threading.current_thread(), None)
        self._workers.pop(worker.ident, None)

    def _check(self) -> None:
        with self._lock:
            self._has_check = False
            if self._primary is None or not self._work:
                return
            # Any step since the last check means it moves; the counter is read without its
            # thread's help, because that thread is inside the listener.
            if self._steps != self._steps_checked:
                self._schedule_check()
            else:
                self._detach_primary()

    def _put_back(self, worker: _Worker[Queue]) -> bool:
        """Have what a worker has taken served by whoever comes next.

        Returns: False if it is in the middle of that.
        """
        for each in worker.ready:
            assert self._ready is not None
            ready = cast(Queue, self._ready.queue_of(each))
            if ready not in worker.taken:
                worker.taken.append(ready)
        worker.ready.clear()
        serving = worker.serving
        if serving is not None and serving.run is not None and serving.submits is None:
            return False
        while worker.taken and (serving is None or serving.submits is not False):
            _move(worker.taken.pop, self._work)
        worker.taken.clear()
        worker.serving = None
        return True

    # On the I/O thread, to which no exception comes from outside.

    def look(self) -> None:
        with self._lock:
            ended = [each for each in self._threads.items() if self._has_died(*each)]
            for thread, worker in ended:
                self._bury(thread, worker)
        for _, worker in ended:
            error = worker.shaken_by or RuntimeError("its thread has ended")
            _log.error("a thread of the listeners of %s was ended by %r", self._name, error)
            with self._lock:
                was_put_back = self._put_back(worker)
            if not was_put_back:
                self._recover_run(worker, error)
        with self._lock:
            if self._primary is None:
                self._wake_workers(len(self._work))
        self._check()  # also where an exception has kept a thread from asking for it

    def _has_died(self, thread: threading.Thread, worker: _Worker[Queue]) -> bool:
        was_late, worker.is_late = worker.is_late, thread.ident is None
        return not thread.is_alive() and (was_late or not worker.is_late)

    def _bury(self, thread: threading.Thread, worker: _Worker[Queue]) -> None:
        worker.is_ended = True  # should it begin after all
        del self._threads[thread]
        self._workers.pop(worker.ident, None)
        if worker in self._idle:
            self._idle.remove(worker)
        if worker is self._primary:
            self._primary = None
        if worker is self._watcher:
            self._watcher = None

    def _recover_run(self, worker: _Worker[Queue], error: BaseException) -> None:
        """End what a worker has begun, and cannot end; may be asked for again."""
        serving = worker.serving
        if serving is not None and worker.taken and serving.submits is None:
            assigned = worker.taken[0]
            try:
                self._recover(assigned, serving, error)
            except Exception:  # noqa: BLE001 - logged; its thread serves the other queues
                _log.exception(
                    "%s: a run could not be recovered (please report)",
                    assigned.queue,
                    extra=log_fields(assigned.queue),
                )
        self._let_go(worker)
        worker.settled.set()

    # A worker's thread.

    def _serve(self, worker: _Worker[Queue]) -> None:
        while not worker.is_ended:
            try:
                worker.ident = threading.get_ident()
                self._workers[worker.ident] = worker
                self._serve_until_end(worker)
                return
            except UsedAfterFork:
                raise  # the thread that a listener has forked, alone in its process
            except BaseException as error:  # noqa: BLE001 - logged
                # An error of a run; or sent to this thread by PyThreadState_SetAsyncExc, as
                # libraries do for a time limit of a listener, and too late: that comes anywhere.
                worker.shaken_by = error

    def _serve_until_end(self, worker: _Worker[Queue]) -> None:
        while True:
            if worker.shaken_by is not None:
                self._settle(worker, worker.shaken_by)
            assigned = self._next(worker)
            if assigned is not None:
                worker.since_ns = self._clock_ns()
                worker.serving = serving = Serving()
                self._run(assigned, serving)
                self._let_go(worker)
            elif self._is_closing or worker.is_ended:
                return
            else:
                self._sleep(worker)

    def _let_go(self, worker: _Worker[Queue]) -> None:
        """Let others have the queue that a worker has served."""
        if worker.serving is not None and worker.serving.submits:
            with self._lock:
                if worker.taken:
                    _move(worker.taken.pop, self._work)
                self._announce()
        worker.taken.clear()
        worker.serving = None

    def _settle(self, worker: _Worker[Queue], error: BaseException) -> None:
        """Put right what an exception may have left half done, within a run or between two."""
        with self._lock:
            if worker in self._idle:
                self._idle.remove(worker)
            if worker is self._watcher:
                self._watcher = None
            worker.wake.acquire(blocking=False)  # it may have been roused, or not
            # Whatever it was woken for, it looks for it now.
            worker.is_woken = worker.is_watching = True
            is_between = self._put_back(worker)
        # A run is ended by the I/O thread: another exception may come here at any moment.
        while worker.serving is not None and not self._is_closing:
            with contextlib.suppress(RuntimeError):  # the program ends
                self._later(partial(self._recover_run, worker, error))
            worker.settled.wait(_RECOVERY_S)
        worker.shaken_by = None
        if is_between:
            _log.warning(
                "a thread of the listeners of %s got %s between two calls; it goes on",
                self._name,
                type(error).__name__,
            )

    def _sleep(self, worker: _Worker[Queue]) -> None:
        """Sleep until `_rouse`; one of the idle workers also until there is a ready queue."""
        ready = self._ready if worker is self._watcher else None
        if ready is None or not ready.wait():
            worker.wake.acquire()
            if ready is not None:
                self._watcher = None
            return
        with self._lock:
            self._watcher = None
            if worker in self._idle:  # not roused
                self._idle.remove(worker)
                worker.is_watching = True
                return
        worker.wake.acquire()  # at once: it was released

    def _next(self, worker: _Worker[Queue]) -> Queue | None:
        """Return the next queue; None after it made the worker idle or ended it, or to close."""
        with self._lock:
            if worker in self._idle:
                self._idle.remove(worker)  # who has woken it was stopped before
            if len(self._threads) > self._size and worker is not self._primary:
                self._end_worker(worker)
                self._wake_workers(len(self._work) if self._primary is None else 0)
                self._schedule_check()
                return None
            if self._primary is None and self._work:
                self._primary = worker
            is_primary = worker is self._primary
            if self._work and (is_primary or worker.is_woken or not worker.is_quick):
                worker.is_woken = False
                self._steps += is_primary
                _move(self._work.popleft, worker.taken)
                self._schedule_check()
                return worker.taken[0]
            ready = self._next_ready(worker) if is_primary or worker.is_watching else None
            worker.is_watching = False
            if ready is not None:
                worker.taken.append(ready)
                worker.ready.clear()
                self._primary = worker
                self._steps += 1
                self._schedule_check()
                return ready
            if is_primary:
                self._primary = None
            worker.is_woken = False
            if len(self._threads) > self._size:
                self._end_worker(worker)
            elif not self._is_closing:
                self._idle.append(worker)
                if self._watcher is None:
                    self._watcher = worker
            return None

    def _next_ready(self, worker: _Worker[Queue]) -> Queue | None:
        """Return the next ready queue, if a consume request may follow at once."""
        if self._ready is None or self._is_closing:
            return None
        return cast(Queue | None, self._ready.take(worker.ready))


class ListenerLoop(ProcessBound, Generic[Queue]):
    """An event loop for `async def` listeners; one task per submitted queue.

    Args:
        run: consumes one queue until it is empty, revoked or out of its time slice; sets its
            second argument first.
        loop: a thread's own, or that of the user.
        limit: maximum number of tasks that run at once; None for any number.
    """

    def __init__(
        self,
        run: Callable[[Queue, asyncio.Event], Coroutine[Any, Any, None]],
        loop: TaskLoop,
        limit: int | None,
    ) -> None:
        self._run = run
        self._loop = loop
        self._slots = None if limit is None else asyncio.Semaphore(limit)
        self._is_closed = False

    def submit(self, assigned: Queue) -> None:
        self._loop.post(self._start, assigned)

    def take_from(self, ready: ReadyQueues) -> None: ...

    def look(self) -> None: ...

    def report_calls(self, calls: int) -> bool:
        return True  # tasks share the loop by awaiting; nobody waits for a thread

    async def call_alone(
        self, listener: Callable[..., Any], context: ConsumeContext
    ) -> tuple[object, BaseException | None]:
        try:
            work = listener(context.messages, context)
        except Exception as error:  # noqa: BLE001 - the user's; handed on as the outcome
            return None, error
        return await _outcome_of(asyncio.wrap_future(self._loop.submit(work)))

    def awaited(self, returned: Awaitable[object]) -> object:
        return self._loop.call(result_of(returned))

    def calls_from_here(self) -> bool:
        return _runs_here(self._loop)

    def resize(self, size: int) -> None:
        # Tasks that run keep the old semaphore; only later ones wait for the new one.
        if self._slots is not None:
            self._slots = asyncio.Semaphore(size)

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        return stacks_of_tasks(self._loop.loop, str(assigned.queue))

    def close(self, timeout_s: float) -> bool:
        """Cancel the tasks, and end the thread of a loop of its own; always True."""
        self._is_closed = True
        # Tasks that were cancelled end at once. A listener that blocks its loop is not waited for.
        self._loop.release(timeout_s=max(timeout_s, ANSWER_S))
        return True

    def _start(self, assigned: Queue) -> None:
        begun = asyncio.Event()
        run = self._run if self._slots is None else self._run_limited
        task = self._loop.spawn(run(assigned, begun), str(assigned.queue))
        task.add_done_callback(partial(self._ended, assigned, begun))

    def _ended(self, assigned: Queue, begun: asyncio.Event, task: asyncio.Task[None]) -> None:
        # Cancelled by user code before its first step, so nothing of the run took place, not even
        # its `except`: the queue would keep its dispatch flag, and nobody would come back to it.
        if task.cancelled() and not begun.is_set() and not self._is_closed:
            self.submit(assigned)

    async def _run_limited(self, assigned: Queue, begun: asyncio.Event) -> None:
        assert self._slots is not None
        async with self._slots:
            await self._run(assigned, begun)


def _runs_here(loop: TaskLoop | None) -> bool:
    try:
        return loop is not None and asyncio.get_running_loop() is loop.loop
    except RuntimeError:  # this thread runs none
        return False


async def _outcome_of(call: Awaitable[object]) -> tuple[object, BaseException | None]:
    try:
        return await call, None
    except asyncio.CancelledError:
        raise
    # Also a listener's sys.exit(), which would end the I/O thread's loop.
    except BaseException as error:  # noqa: BLE001 - the user's; handed on as the outcome
        return None, error


# Stacks, for whoever asks why nothing moves.


def stacks_of_all_threads() -> str:
    """Return the stacks of all threads of this process, as jstack does for Java."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def stack_of_thread(ident: int) -> str:
    """Return one thread's stack, outermost call first; empty if it has ended."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def stacks_of_tasks(loop: asyncio.AbstractEventLoop, name: str) -> str:
    """Return the stacks of a loop's tasks of this name, outermost first; from any thread."""
    # Task.get_stack() shows only where the outermost coroutine waits. The await chain leads to
    # the line the listener itself waits at.
    named = [task for task in asyncio.all_tasks(loop) if task.get_name() == name]
    return "\n".join("".join(_coroutine_lines(task.get_coro())) for task in named)


def _coroutine_lines(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            for each in _frames_of_running(frame) or [frame]:
                yield from traceback.format_stack(each, limit=1)
        coroutine = getattr(coroutine, "cr_await", None)


def _frames_of_running(frame: FrameType) -> list[FrameType]:
    """Return this frame and the calls within it, if a thread is at it; else nothing.

    A coroutine that runs awaits nothing: without them a listener that blocks its loop would be
    shown by the line that called it only.
    """
    for innermost in sys._current_frames().values():
        found: list[FrameType] = []
        each: FrameType | None = innermost
        while each is not None:
            found.append(each)
            if each is frame:
                return found[::-1]
            each = each.f_back
    return []
