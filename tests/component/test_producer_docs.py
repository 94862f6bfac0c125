"""The examples of docs/producer.md run as they stand, one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    blocks = examples((DOCS / "producer.md").read_text())
    done = run_example("\n".join(blocks), tmp_path, "-W", "error")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines() == [
        "2 100 67 69", "0 one-way messages failed",
        "30 COMMIT", "50 UNKNOWN", "300 ROLLBACK", "2 committed",
        "12.50 EUR", "ReplyTimeout",
        "True",
        "6 bytes: stored", "refused: not into a message",
        "0 dropped",
    ]  # fmt: skip
