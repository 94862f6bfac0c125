"""The examples of docs/producer.md run as they stand, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "producer.md"


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines() == [
        "2 100 67 69", "0 one-way messages failed",
        "30 COMMIT", "50 UNKNOWN", "300 ROLLBACK", "2 committed",
        "12.50 EUR", "ReplyTimeout",
        "True",
        "6 bytes: stored", "refused: not into a message",
        "0 dropped",
    ]  # fmt: skip
