"""The page for readers of Kafka's clients: its program runs."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example


def test_the_program_of_the_page_prints_the_steps_in_order(tmp_path: Path) -> None:
    (code,) = examples((DOCS / "from-kafka.md").read_text())
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "['placed', 'paid', 'sent']"), done.stderr
