"""The examples of docs/asyncio.md run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.docs_examples import DOCS, examples, run_example

EXAMPLES = examples((DOCS / "asyncio.md").read_text())
PRINTED = [
    "0 99\n100 messages, epoch 1\n",
    "3 messages\n",
    "stored at 0\n",
]


@pytest.mark.parametrize(("code", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)))
def test_the_examples_print_what_the_page_says(tmp_path: Path, code: str, printed: str) -> None:
    done = run_example(code, tmp_path, "-W", "error")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", printed)
