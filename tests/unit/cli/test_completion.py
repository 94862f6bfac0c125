"""The shell completion that docs/cli.md tells of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text()
ORDERMQ = Path(sys.executable).with_name("ordermq")
SHELLS = re.findall(r"`_ORDERMQ_COMPLETE=(\w+)_source ordermq > [^`]+`", PAGE)


def script_for(shell: str) -> str:
    done = subprocess.run(
        [ORDERMQ],
        env={**os.environ, "_ORDERMQ_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_page_tells_of_three_shells() -> None:
    assert SHELLS == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_of_the_page_prints_a_script_for_the_shell(shell: str) -> None:
    script = script_for(shell)
    assert f"_ORDERMQ_COMPLETE={shell}_complete" in script
    assert re.search(r"^\W*(complete|compdef) .*\bordermq\b", script, re.MULTILINE)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (("ordermq", "to"), {"topics", "top"}),
        (("ordermq", "topics", "d"), {"describe", "delete"}),
        (("ordermq", "lag", "billing", "--name-s"), {"--name-servers"}),
    ],
)
def test_bash_completes_commands_and_options(
    tmp_path: Path, typed: tuple[str, ...], completed: set[str]
) -> None:
    script = tmp_path / "complete.bash"
    script.write_text(script_for("bash"))
    # What bash does at a press of the Tab key behind the words.
    program = (
        f'. "$1"; COMP_WORDS=({" ".join(typed)}); COMP_CWORD={len(typed) - 1}; '
        '_ordermq_completion "$2"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", script, ORDERMQ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == completed
