"""The examples of docs/pop.md run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.docs_examples import DOCS, examples, run_example

PRINTED = [[f"customer-7 {number}" for number in range(3)], ["welcome"], ["['placed']"]]


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_an_example_prints_what_its_listener_got(tmp_path: Path, number: int) -> None:
    programs = examples((DOCS / "pop.md").read_text())
    assert len(programs) == len(PRINTED)
    done = run_example(programs[number], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == PRINTED[number]
