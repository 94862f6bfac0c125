"""The example of docs/faststream.md runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (code,) = examples((DOCS / "faststream.md").read_text())
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "orders 0\n{'number': 18, 'cents': 240}\n"), (
        done.stderr
    )
