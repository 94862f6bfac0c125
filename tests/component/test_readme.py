"""The README's example runs as it stands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.component.docs_examples import examples

README = Path(__file__).resolve().parents[2] / "README.md"


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
