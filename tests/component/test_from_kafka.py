"""The page for readers of Kafka's clients: its program runs, and the methods it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import ordermq
from tests.component.docs_examples import DOCS, examples, run_example


def test_the_program_of_the_page_prints_the_steps_in_order(tmp_path: Path) -> None:
    (code,) = examples((DOCS / "from-kafka.md").read_text())
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "['placed', 'paid', 'sent']"), done.stderr


def test_every_method_and_field_that_the_page_names_is_there() -> None:
    text = (DOCS / "from-kafka.md").read_text()
    table = text.partition("## Names of methods")[2].partition("##")[0]
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", table)
    assert len(named) > 20
    missing = [each for each in named if not hasattr(getattr(ordermq, each[0]), each[1])]
    assert missing == []
