"""The programs of the folder examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PRINTED = {
    "dead_letters.py": "given up: ['malformed']\nsent again: 1\n"
    "billed: placed paid shipped malformed\n",
    "replay_by_time.py": "today 0\ntoday 1\ntoday 2\n",
    "key_lanes.py": "20 keys of one queue, each in order: True\n",
    "outbox.py": "o-17 COMMIT\no-18 COMMIT\no-17 ROLLBACK\nconsumers see: o-17 o-18\n",
}
ELSEWHERE = {
    "flights_on_spark.py": "tests/spark",
    "orders_service.py": "tests/component/test_orders_service.py",
    "pandas_udf_on_spark.py": "tests/spark",
    "test_billing.py": "below",
    "write_once.py": "tests/component/test_fence_tokens.py",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False
    )


def test_every_example_is_run_by_some_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == PRINTED.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(name: str) -> None:
    done = run(str(EXAMPLES / name))
    assert (done.returncode, done.stdout) == (0, PRINTED[name]), done.stderr


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    file = str(EXAMPLES / "test_billing.py")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", file)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
