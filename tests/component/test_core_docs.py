"""The C program, the commands and the Numba function of docs/core.md run as they stand."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "core.md"
STRICT = "-Wall -Wextra -Wpedantic -Werror"


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(code)


def run(*command: str, cwd: Path) -> str:
    here = str(Path(sys.executable).parent)  # where the `python` of the page is ours
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_c_program_compiles_without_a_warning_and_commits_batch_by_batch(
    tmp_path: Path,
) -> None:
    (tmp_path / "drain.c").write_text(block("c"))
    commands = block("sh").replace("-std=c11", f"-std=c11 {STRICT}")
    assert run("sh", "-euc", commands, cwd=tmp_path).splitlines() == [
        "next offset 103, epoch 1, total 40",
        "next offset 105, epoch 1, total 91",
    ]


def test_the_numba_function_drains_a_queue_of_a_million(tmp_path: Path) -> None:
    # Numba is 170 MB, for ci/release.sh alone. Without it the function runs as Python, which calls
    # the same pointers.
    if importlib.util.find_spec("numba") is None:
        (tmp_path / "numba.py").write_text("def njit(**_):\n    return lambda function: function\n")
    (tmp_path / "drain.py").write_text(block("python"))
    said = run(sys.executable, "drain.py", cwd=tmp_path)
    assert said.split() == ["1000000", "49500000", "1000000"]  # count, total, next offset
