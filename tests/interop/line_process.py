"""A child process that exchanges JSON lines; its owner always ends it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cluster import DEADLINE_S


class LineProcess:
    """Its first line says that it is ready; it ends in order when its standard input ends.

    Args:
        folder: where its errors go.
        working_directory: where it runs; `folder` if None.
        environment: variables besides those of this process.
        on_line: called with each line after the first, on a thread of its own; without it,
            `read` returns them.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        working_directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._name = " ".join(command)
        self._error_file = folder / f"{time.monotonic_ns()}.err"
        with self._error_file.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=working_directory or folder,
                env=os.environ | (environment or {}),
            )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._on_line = on_line
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()
        try:
            self.ready: Any = self.read()["ready"]
        except BaseException:
            self.kill()  # nobody else knows of it yet
            raise

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and return the answer."""
        self.tell(line)
        return self.read()

    def tell(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Return the next line."""
        try:
            line = self._lines.get(timeout=DEADLINE_S)
        except queue.Empty:
            pytest.fail(f"silent for {DEADLINE_S} s: {self._name}\n{self.errors()}")
        if line is None:
            pytest.fail(f"ended: {self._name}\n{self.errors()}")
        return line

    def poll(self) -> dict[str, Any] | None:
        """Return the next line if it has arrived already."""
        try:
            return self._lines.get_nowait()
        except queue.Empty:
            return None

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def leave(self) -> None:
        """Close its input and wait for a clean end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, self.errors()
        self._thread.join(DEADLINE_S)

    def kill(self) -> None:
        """Kill it; nothing happens if it has ended."""
        assert self.process.stdin is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for text in lines:
                if not text.startswith(b"{") or not text.endswith(b"\n"):
                    continue  # a logger's, or cut by a kill
                line = json.loads(text)
                if self._on_line is None or "ready" in line:
                    self._lines.put(line)
                else:
                    self._on_line(line)
        self._lines.put(None)

    def errors(self) -> str:
        """Return the end of its standard error."""
        return self._error_file.read_text(errors="replace")[-3_000:]
