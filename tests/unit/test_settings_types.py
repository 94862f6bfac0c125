"""A misspelt setting is an error to mypy and to pyright, and ordermq/config/settings.py is true."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = Path(__file__).with_name("typed_settings.py")
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "ci" / "settings_types.py"))


def test_the_module_is_up_to_date() -> None:
    assert SCRIPT["MODULE"].read_text() == SCRIPT["text"](), "run ci/settings_types.py"


def marked() -> list[int]:
    lines = SAMPLE.read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# error")]


def output_of(*command: str) -> str:
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command, str(SAMPLE)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,  # it ends with 1, for there are errors
    ).stdout


def test_mypy_finds_each_wrong_setting_and_nothing_else() -> None:
    lines = output_of("mypy", "--strict", "--no-error-summary", "--hide-error-context").splitlines()
    errors = [line.split(":") for line in lines if ": error:" in line]
    assert [int(number) for _, number, *_ in errors] == marked(), lines


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright would download Node.js")
def test_pyright_finds_each_wrong_setting_and_nothing_else() -> None:
    found = json.loads(output_of("pyright", "--pythonpath", sys.executable, "--outputjson"))
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    assert [one["range"]["start"]["line"] + 1 for one in errors] == marked(), errors
