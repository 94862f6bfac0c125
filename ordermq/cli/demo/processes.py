"""Starting, watching and killing the processes of the demo."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ordermq import json_text
from ordermq.errors import OrderMQError

# A process that has died is noticed at once; a machine with other work may need long to start one.
_START_TIMEOUT_S = 180.0


class DemoFailed(OrderMQError):
    """The demo cannot continue, or a check failed; the text says why."""

    code = "demo-failed"


class Process:
    """A Python module run as a process: JSON lines on stdout, a log file for stderr.

    Args:
        name: its name in errors.
        module: run as `python -m`.
        log: file to which its stderr is appended.
        is_tree: it starts processes of its own, which are killed with it.
        environment: variables that it gets besides those of this process.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[object],
        log: Path,
        *,
        is_tree: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._is_tree = is_tree
        self.log = log
        self.lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_end_expected = self._killed = False
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", module, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | dict(environment or {}),
                start_new_session=is_tree,  # a process group, which can be killed as a whole
            )
        # A thread reads the pipe all the time: a full pipe would block the process.
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.put(json_text.loads(line))

    def first_line(self) -> dict[str, Any]:
        """Return the first line it prints.

        Raises: DemoFailed: it ended before, or printed nothing for too long.
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        # In short waits, so that an early exit is reported at once and not after the time-out.
        while time.monotonic() < deadline:
            try:
                return self.lines.get(timeout=0.1)
            except queue.Empty:
                self.check_alive()
        raise DemoFailed(
            f"{self.name} did not start within {_START_TIMEOUT_S:.0f} s; see {self.log}"
        )

    def check_alive(self) -> None:
        """Check that it has not ended by itself.

        Raises: DemoFailed: it has.
        """
        code = self._process.poll()
        # Code 0 is no failure: the producer ends by itself.
        if code and not self._is_end_expected:
            raise DemoFailed(f"{self.name} exited unexpectedly with code {code}; see {self.log}")

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it with SIGKILL, so that it cannot hand anything over."""
        self._is_end_expected = self._killed = True
        if self._is_tree:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ask_to_leave(self) -> None:
        """Send SIGTERM; it hands its queues over and exits."""
        self._is_end_expected = True
        if not self.is_over:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its exit.

        Raises: DemoFailed: it still runs after `timeout_s`, or exited with an error.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailed(
                f"{self.name} did not exit within {timeout_s:.0f} s; see {self.log}"
            ) from None
        self._reader.join()
        # A process that was killed exits with -9.
        if code and not self._killed:
            raise DemoFailed(f"{self.name} exited with code {code}; see {self.log}")

    def end(self) -> None:
        """Kill it if it still runs, and release its resources."""
        if not self.is_over:
            self.kill()
        self._reader.join()
