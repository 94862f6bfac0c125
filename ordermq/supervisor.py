"""Supervisor: keeps the loops of one client or broker going; one that breaks is begun again.

A loop is given as its round, and the supervisor does the repeating. So it knows of each round
whether it ended well, and no loop can end by an error that nobody expected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ordermq.clock import Clock, growing_pause_ms
from ordermq.errors import error_text
from ordermq.value import Value

# The first pause is shorter than any lease: one error must not cost the locks of a member.
FIRST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 10_000
_REPORT_INTERVAL_MS = 30_000

# What a loop does again and again, its waits included; it ends the loop by returning False.
Round = Callable[[], Awaitable[object]]


class LoopHealth(Value):
    """A loop that has failed at least once.

    Args:
        name: its kind, and what it works for.
        errors: rounds that failed, since the start.
        failing_ms: how long it has been failing; None if its last round went well.
        last_error: of the last round that failed.
    """

    name: str
    errors: int
    failing_ms: int | None
    last_error: str


class _Loop:
    def __init__(self, name: str, longest_pause_ms: int) -> None:
        self.name = name
        self.longest_pause_ms = longest_pause_ms
        self.errors = 0
        self.errors_in_a_row = 0
        self.failing_since_ms = 0
        self.last_error = ""

    @property
    def pause_ms(self) -> int:
        first_ms = min(FIRST_PAUSE_MS, self.longest_pause_ms)
        return growing_pause_ms(first_ms, self.errors_in_a_row - 1, self.longest_pause_ms)


def every(clock: Clock, interval_ms: int, action: Round) -> Round:
    """Return the round of a loop that runs `action` after each interval."""
    is_due = False

    async def round() -> object:
        nonlocal is_due
        # After an error the action is still due: it is tried again soon, not an interval later.
        if not is_due:
            await clock.sleep_ms(interval_ms)
        is_due = True
        outcome = await action()
        is_due = False
        return outcome

    return round


class Supervisor:
    """Runs loops as tasks of the event loop whose thread calls `start`.

    An error of a round is logged once per outage and counted, and the next round begins after a
    pause that grows from 0.1 s to 10 s. Only cancelling its task, or a round that returns False,
    ends a loop.

    Args:
        on_error: called with each error, to count it.
    """

    def __init__(
        self, clock: Clock, log: logging.Logger, on_error: Callable[[], object] = lambda: None
    ) -> None:
        self._clock = clock
        self._log = log
        self._on_error = on_error
        # The event loop keeps only weak references to its tasks.
        self._running: dict[asyncio.Task[None], _Loop] = {}
        # By kind, so that loops of queues that come and go leave no trail.
        self._ended: dict[str, _Loop] = {}
        self._reported_ms: dict[str, int] = {}  # by kind

    def start(
        self, kind: str, round: Round, of: str = "", *, longest_pause_ms: int = LONGEST_PAUSE_MS
    ) -> asyncio.Task[None]:
        """Repeat `round` until its task is cancelled; return the task.

        Args:
            kind: what the loop does, in one or two words.
            of: what it works for, as a queue.
            longest_pause_ms: of the pauses after errors.
        """
        loop = _Loop(f"{kind} {of}".rstrip(), longest_pause_ms)
        task = asyncio.get_running_loop().create_task(self._run(loop, kind, round), name=loop.name)
        self._running[task] = loop
        task.add_done_callback(lambda ended: self._end(ended, kind))
        return task

    def troubled(self) -> tuple[LoopHealth, ...]:
        """Return the loops that have failed at least once, those that fail now first."""
        now_ms = self._clock.now_ms()
        found = [
            LoopHealth(
                loop.name,
                loop.errors,
                now_ms - loop.failing_since_ms if loop.errors_in_a_row else None,
                loop.last_error,
            )
            for loop in [*self._running.values(), *self._ended.values()]
            if loop.errors
        ]
        return tuple(sorted(found, key=lambda each: (each.failing_ms is None, each.name)))

    async def stop(self) -> None:
        """Cancel every loop, and return when they have ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, loop: _Loop, kind: str, round: Round) -> None:
        task = asyncio.current_task()
        assert task is not None
        goes_on = True
        while goes_on:
            try:
                goes_on = await round() is not False
            # Also sys.exit() of user code, and a wait that others have cancelled: both would end
            # this loop, the first one the whole thread. Its own cancellation goes through.
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and task.cancelling():
                    raise
                self._failed(loop, kind, error)
                await self._clock.sleep_ms(loop.pause_ms)
            else:
                if loop.errors_in_a_row:
                    self._recovered(loop)

    def _failed(self, loop: _Loop, kind: str, error: BaseException) -> None:
        now_ms = self._clock.now_ms()
        if not loop.errors_in_a_row:
            loop.failing_since_ms = now_ms
        loop.errors += 1
        loop.errors_in_a_row += 1
        loop.last_error = error_text(error)
        self._on_error()
        # Once per outage; and loops of one kind mostly break together, or again and again.
        reported_ms = self._reported_ms.get(kind, now_ms - _REPORT_INTERVAL_MS)
        if loop.errors_in_a_row == 1 and now_ms - reported_ms >= _REPORT_INTERVAL_MS:
            self._reported_ms[kind] = now_ms
            self._log.error(
                "%s: internal error (please report); beginning again, further errors are "
                "counted in health()",
                loop.name,
                exc_info=error,
            )

    def _recovered(self, loop: _Loop) -> None:
        lasted_ms = self._clock.now_ms() - loop.failing_since_ms
        self._log.info(
            "%s: works again after %d errors, %d ms", loop.name, loop.errors_in_a_row, lasted_ms
        )
        loop.errors_in_a_row = 0

    def _end(self, task: asyncio.Task[None], kind: str) -> None:
        loop = self._running.pop(task)
        if loop.errors:
            ended = self._ended.setdefault(kind, _Loop(f"{kind} (ended)", 0))
            ended.errors += loop.errors
            ended.last_error = loop.last_error
