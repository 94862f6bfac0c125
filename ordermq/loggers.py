"""The loggers of ordermq: neither an error nor a hang of a log handler reaches the code that logs.

`logging` protects its own handlers only. A handler, filter or formatter of the user's that raises
would else end whatever wrote the line: a lock renewal, an answer, a close. And one that blocks, as
on a pipe that nobody reads, would stop the I/O thread, and with it every lease of the process.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import threading
from collections.abc import Callable

from ordermq.background_writer import BackgroundWriter

LOGGERS = (
    "ordermq",
    "ordermq.broker",
    "ordermq.cdc",
    "ordermq.client",
    "ordermq.consumer",
    "ordermq.events",
    "ordermq.faststream",
    "ordermq.kombu",
    "ordermq.metrics",
    "ordermq.producer",
    "ordermq.remoting",
    "ordermq.rocketmq",
    "ordermq.run",
    "ordermq.spark",
)
# How long a thread of ours waits for the handlers of a line. Those that work take microseconds,
# and then a line is out before the call that wrote it returns, as everywhere in `logging`.
_PATIENCE_S = 0.1
_MOST_WAITING = 1_000  # lines
_OWN_THREADS = "ordermq-"

_Handle = Callable[[logging.LogRecord], None]
_Line = tuple[contextvars.Context, _Handle, logging.LogRecord]


class LogErrors:
    """The errors that log handlers have raised in this process."""

    count = 0


class _HandlerThread:
    """Runs the handlers of lines that threads of ours log; these wait for it, but not for long."""

    def __init__(self) -> None:
        self._is_late = False  # a line hangs in a handler: the next ones do not wait
        self._reported = 0  # of the dropped lines
        self._writer: BackgroundWriter[_Line] = BackgroundWriter(
            "ordermq-log", self._write, _MOST_WAITING
        )

    @property
    def dropped(self) -> int:
        """Number of lines that have found no room."""
        return self._writer.dropped

    def is_current(self) -> bool:
        """Return whether the caller is a handler, which must not wait for its own end."""
        return self._writer.is_own_thread()

    def handle(self, handle: _Handle, record: logging.LogRecord) -> None:
        """Have a line handled; return when it is, or when its handlers take too long.

        Raises: RuntimeError: a thread cannot be started.
        """
        is_queued = self._writer.put((contextvars.copy_context(), handle, record))
        if is_queued and not self._is_late:
            self._is_late = not self._writer.flush(_PATIENCE_S)

    def _write(self, line: _Line) -> None:
        context, handle, record = line
        context.run(_handle, handle, record)
        self._is_late = False
        if dropped := self.dropped - self._reported:
            self._reported += dropped
            logging.getLogger("ordermq").warning(
                "a log handler blocked, %d lines of ordermq were dropped meanwhile: a handler must "
                "not wait; put a logging.handlers.QueueHandler before it",
                dropped,
            )


def dropped_lines() -> int:
    """Return how many log lines this process has dropped because a handler blocked."""
    return _handler_thread.dropped


def _handle(handle: _Handle, record: logging.LogRecord) -> None:
    try:
        handle(record)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's; counted, and told once
        LogErrors.count += 1
        # Not by logging: that is what is broken. Nor may a closed stderr raise here.
        if LogErrors.count == 1:
            with contextlib.suppress(Exception):
                sys.stderr.write(
                    f"ordermq: a log handler raised {error!r}; further errors of handlers are "
                    "counted in health().log_errors\n"
                )


def guard(name: str) -> None:
    """Keep the errors and hangs of a logger's handlers and filters from those who log to it."""
    logger = logging.getLogger(name)
    handle = logger.handle

    def guarded(record: logging.LogRecord) -> None:
        is_own = threading.current_thread().name.startswith(_OWN_THREADS)
        # A thread of the user's waits for the user's handlers as it does elsewhere.
        if is_own and not _handler_thread.is_current():
            try:
                _handler_thread.handle(handle, record)
            except RuntimeError:  # no thread can be started, as at the end of the interpreter
                _handle(handle, record)
        else:
            _handle(handle, record)

    # On the instance: the application may have loggers of a class of its own.
    logger.handle = guarded  # type: ignore[method-assign]


_handler_thread = _HandlerThread()
for _name in LOGGERS:
    guard(_name)
