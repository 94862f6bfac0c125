"""The example of docs/pop.md runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example


def test_the_example_prints_what_a_key_has_in_its_order(tmp_path: Path) -> None:
    (program,) = examples((DOCS / "pop.md").read_text())
    done = run_example(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"customer-7 {number}" for number in range(3)]
