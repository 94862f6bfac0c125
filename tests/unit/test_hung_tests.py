"""A run ends although a test hangs behind its time-out, and shows where (tests/hung_tests.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import killed_on_error

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import tests.hung_tests
from tests.hung_tests import pytest_runtest_protocol, pytest_sessionstart

tests.hung_tests.GRACE = 1
"""
HANGS = """
import os
import pathlib
import threading
import time

import pytest


@pytest.mark.timeout(1)
def test_hangs():
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    pathlib.Path("child").write_text(str(child))
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass


def test_other():
    pass
"""


def test_a_test_that_swallows_its_time_out_ends_its_worker_beside_a_forked_child(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hangs.py").write_text(HANGS)
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", "."]
    log = tmp_path / "log"  # not a pipe, whose other end the child would hold open
    try:
        with log.open("wb") as file:
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", *options],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=file,
                timeout=90,
            )
    finally:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    printed = log.read_text()
    assert ended.returncode == 1, printed
    assert "1 failed, 1 passed" in printed
    assert "crashed while running 'test_hangs.py::test_hangs'" in printed
    assert "in test_hangs\n" in printed


def test_a_process_is_not_waited_for_where_its_block_fails() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], text=True)
    with pytest.raises(ValueError, match="of the test"), killed_on_error(process):
        raise ValueError("of the test")
    assert process.returncode == -signal.SIGKILL
