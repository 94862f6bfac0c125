"""Our small Java programs on RocketMQ's own client: compiled once, run as child processes."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq.clock import CLOCK_ID
from tests.interop.cluster import DEADLINE_S, ROOT

SOURCES = Path(__file__).parent / "java"


def class_path(version: str) -> str:
    """The jars of a version and our classes, compiled against them."""
    script = ["ci/rocketmq.sh", "jars", version]
    jars = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    jars = jars.strip()
    files = sorted(SOURCES.glob("*.java"))
    mark = zlib.crc32(b"".join(file.read_bytes() for file in files))
    classes = Path(jars).parent.parent / f"interop-{version}-{mark:08x}"
    if not (classes / "done").exists():
        command = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (classes / "done").touch()
    return f"{SOURCES}:{classes}:{jars}"  # our logging settings first


class JavaProcess:
    """One of the programs in java/, with its output line by line; always ended.

    Args:
        folder: its home, for logs and offset files.
        on_line: called with each line after the first, on a thread of its own; without it,
            `read` returns them.
        options: for java itself.
        arguments: as the program's own comment says.
    """

    def __init__(
        self,
        version: str,
        program: str,
        folder: Path,
        on_line: Callable[[dict[str, Any]], None] | None = None,
        options: Sequence[str] = (),
        **arguments: object,
    ) -> None:
        command = [
            "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}/logs",
            "-Drocketmq.client.unlockDelayTimeMills=1000",  # of 4.9, which waits 20 s
            *options, "-cp", class_path(version), program,
            *(f"{name}={value}" for name, value in arguments.items()),
        ]  # fmt: skip
        self.program = program
        self._error_file = folder / f"{program}-{time.monotonic_ns()}.err"
        with self._error_file.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=folder
            )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._on_line = on_line
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()
        self.ready: Any = self._next()["ready"]

    def ask(self, line: str) -> dict[str, Any]:
        """Give it a line, return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return self._next()

    def read(self) -> dict[str, Any]:
        return self._next()

    def poll(self) -> dict[str, Any] | None:
        """The next line if there is one already."""
        try:
            return self._lines.get_nowait()
        except queue.Empty:
            return None

    def leave(self) -> None:
        """Let it end in order, and wait for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, self._errors()
        self._thread.join(DEADLINE_S)

    def kill(self) -> None:
        assert self.process.stdin is not None
        self.process.kill()
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=DEADLINE_S)
        except queue.Empty:
            pytest.fail(f"{self.program} said nothing for {DEADLINE_S} s: {self._errors()}")
        if line is None:
            pytest.fail(f"{self.program} ended: {self._errors()}")
        return line

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for text in lines:
                if not text.startswith(b"{"):
                    continue  # a logger's
                line = json.loads(text)
                if self._on_line is None or "ready" in line:
                    self._lines.put(line)
                else:
                    self._on_line(line)
        self._lines.put(None)

    def _errors(self) -> str:
        return self._error_file.read_text(errors="replace")[-3_000:]


def to_boot_time_ns() -> int:
    """What Java has to add to its System.nanoTime() for the audit's clock."""
    return time.clock_gettime_ns(CLOCK_ID) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
