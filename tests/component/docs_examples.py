"""Python examples of pages, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page: str) -> list[str]:
    """Return the code of each Python block, in the page's order."""
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run_example(code: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code as a program of its own in `folder`, to its end; return what the first run did.

    If it leaves files there, it is run a second time, as a reader does, and must end well, too.

    Args:
        options: the interpreter's.
    """
    (folder / "example.py").write_text(code)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *options, "example.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    before = set(folder.iterdir())
    done = run()
    if done.returncode == 0 and set(folder.iterdir()) != before:
        again = run()
        assert again.returncode == 0, f"a second run fails: {again.stderr}"
    return done
