"""Changes of a database through messages (docs/cdc.md)."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example


def test_the_examples_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    done = run_example("\n".join(examples((DOCS / "cdc.md").read_text())), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "shop.orders update (18446744073709551615,) 9.00 9.90",
    ]
