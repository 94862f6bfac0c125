"""RunOutput: stdout and stderr of `ordermq run`, which may stop to be read at any time.

A pager that stands still, a log collector that hangs or a terminal after Ctrl-S stops no restart,
no signal and no scrape: threads write, and what finds no room is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import TextIO

from ordermq.background_writer import BackgroundWriter

_MOST_WAITING = 8 << 20  # bytes for each of the two
_STUCK_S = 1.0  # without a byte written, at the end: nobody reads any more
_PIECE = 1 << 16  # bytes of one write


class OutputStream:
    """One of the two.

    Args:
        name: `stdout` or `stderr`.
        tell: writes a line of the supervisor's own.
        on_broken_pipe: called, on the writer's thread, when nobody can read it any more.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None,
        tell: Callable[[str], object],
        on_broken_pipe: Callable[[], object],
    ) -> None:
        self.dropped_lines = 0
        self._name = name
        # Not through the stream: the end of the interpreter waits for the lock of a stream in
        # which another thread writes.
        self._file = os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()
        self._tell = tell
        self._on_broken_pipe = on_broken_pipe
        self._dropped_now = 0  # lines, since it was read last
        self._is_failing = False  # the last write was refused, and that is told
        self._writer: BackgroundWriter[bytes] = BackgroundWriter(
            f"ordermq-{name}", self._write_all, _MOST_WAITING, idle_s=1.0
        )

    def write(self, lines: bytes) -> None:
        """Write whole lines some time, in order; drop them if nobody has read for long."""
        # From the first loss until everything that waited is read: a reader gets one gap, not many.
        if self._dropped_now and self._writer.flush(0.0):
            dropped, self._dropped_now = self._dropped_now, 0
            self._tell(f"{self._name} is read again; {dropped} lines were dropped")
        if not self._dropped_now and self._writer.put(lines, len(lines)):
            return
        is_first = not self._dropped_now
        count = lines.count(b"\n")
        self._dropped_now += count
        self.dropped_lines += count
        if is_first:
            self._tell(f"nobody reads {self._name}; lines are dropped until somebody does")

    def drain(self) -> None:
        """Wait for the last lines, as long as somebody reads them."""
        left = self._writer.waiting()
        while not self._writer.flush(_STUCK_S):
            before, left = left, self._writer.waiting()
            if left >= before:
                return

    def _write_all(self, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._file, rest[:_PIECE]) :]
                    self._is_failing = False
                except BlockingIOError:  # whoever shares it has set it to non-blocking
                    select.select([], [self._file], [])
        except BrokenPipeError:
            self._on_broken_pipe()
        except OSError as error:  # a full disk: perhaps it has room again for the next lines
            self.dropped_lines += bytes(rest).count(b"\n")
            if not self._is_failing:
                self._is_failing = True
                self._tell(
                    f"{self._name} cannot be written ({error.strerror}): lines are dropped and "
                    "counted until it can"
                )


class RunOutput:
    """Both of them.

    Args:
        on_broken_pipe: called on `loop` once nobody can read our output any more.
    """

    def __init__(self, loop: AbstractEventLoop, on_broken_pipe: Callable[[], object]) -> None:
        def report() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_broken_pipe)

        stream = partial(OutputStream, tell=self.tell, on_broken_pipe=report)
        self.stdout = stream("stdout", sys.stdout)
        # Whether anybody sees the supervisor's own lines does not matter.
        self.stderr = stream("stderr", sys.stderr)

    def tell(self, text: str) -> None:
        """Write a line of the supervisor's own, to stderr."""
        self.stderr.write(f"[run] {text}\n".encode(errors="backslashreplace"))

    @property
    def dropped_lines(self) -> int:
        """Number of lines that nobody has read in time."""
        return self.stdout.dropped_lines + self.stderr.dropped_lines

    def drain(self) -> None:
        """Wait for the last lines of both, as long as somebody reads them."""
        self.stderr.drain()
        self.stdout.drain()
