"""The first examples a user meets run as they stand: README, README.zh-CN, getting started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example

README = DOCS.parent / "README.md"


def test_the_example_prints_its_three_messages_in_order_and_ends_on_sigint(
    tmp_path: Path,
) -> None:
    (code,) = examples(README.read_text())
    script = tmp_path / "example.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, "-u", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert errors == ""
    assert [line.split("b'")[1].split("'")[0] for line in lines] == ["placed", "paid", "shipped"]
    assert all(line.startswith("o-17 ") for line in lines)


def test_the_readme_in_chinese_has_the_same_example() -> None:
    chinese = README.with_name("README.zh-CN.md").read_text()
    assert examples(chinese) == examples(README.read_text())


def test_the_example_of_getting_started_prints_its_steps(tmp_path: Path) -> None:
    (code,) = examples((DOCS / "getting-started.md").read_text())
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "placed paid shipped\n")
