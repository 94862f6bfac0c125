"""Old programs with their imports changed and nothing else, run as processes of their own."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

PORT = 9876  # the old programs have it in them
_IMPORT = re.compile(r"(?m)^([ \t]*(?:from|import)[ \t]+)rocketmq\b")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def with_our_import(text: str) -> str:
    """The program with `rocketmq` imported from ours."""
    return _IMPORT.sub(r"\1ordermq.rocketmq", text)


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder of programs, with our import."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for program in target.rglob("*.py"):
        program.write_text(with_our_import(program.read_text()))
    return target


def examples(readme: Path) -> list[str]:
    """The Python examples of a README, with our import."""
    return [with_our_import(block) for block in _BLOCK.findall(readme.read_text())]


def run_suite(folder: Path, deadline_s: float) -> dict[str, str]:
    """Run a copied suite; its tests and how each ended: "passed", or what was printed."""
    report, settings = folder / "report.xml", folder / "empty.ini"
    settings.write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", settings.name]
    done = subprocess.run(
        [*command, f"--junitxml={report.name}", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    ended = {}
    for case in ElementTree.parse(report).iter("testcase"):
        trouble = [part.text or "" for part in case if part.tag in ("failure", "error", "skipped")]
        ended[case.get("name", "")] = "\n".join(trouble) or "passed"
    return ended


class Program:
    """A running program, and the lines it prints."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )
        self.lines: list[str] = []
        self._printed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            for line in printed:
                self._printed.put(line.rstrip("\n"))
        self._printed.put(None)

    def wait_for(self, is_enough: Callable[[list[str]], bool], deadline_s: float = 60.0) -> None:
        """Read lines until they are enough; fails at the deadline or the program's end."""
        end = time.monotonic() + deadline_s
        while not is_enough(self.lines):
            try:
                line = self._printed.get(timeout=max(end - time.monotonic(), 0.001))
            except queue.Empty:
                line = None
            if line is None:
                pytest.fail("not enough was printed:\n" + "\n".join(self.lines))
            self.lines.append(line)

    def read(self) -> None:
        """Take what it has printed by now."""
        while not self._printed.empty() and (line := self._printed.get()) is not None:
            self.lines.append(line)

    def press_enter(self) -> None:
        """Answer its `input`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self, deadline_s: float = 60.0) -> list[str]:
        """Wait for its end, which must be a good one; its lines."""
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise
        self._close_input()
        self._reader.join()
        while (line := self._printed.get()) is not None:
            self.lines.append(line)
        assert code == 0, "\n".join(self.lines)
        return self.lines

    def end(self) -> None:
        """End it: samples that consume never do by themselves."""
        self._process.kill()
        self._process.wait()
        self._close_input()
        self._reader.join()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
