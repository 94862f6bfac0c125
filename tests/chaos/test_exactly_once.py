"""A short run of ci/exactly_once.sh on each database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_each_message_is_counted_once_while_everything_is_killed(
    database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        request.getfixturevalue("postgresql")  # skips where it cannot be had
    options = ["--messages=4000", "--rate=1000", "--keys=60", "--faults=4", "--restarts=1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.exactly_once.run", f"--database={database}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK: each message counted exactly once" in done.stdout
