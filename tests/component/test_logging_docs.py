"""The example of docs/logging.md runs as it stands, and its lines have the fields of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ordermq.loggers import LOGGERS
from tests.component.docs_examples import DOCS, examples, run_example

PAGE = (DOCS / "logging.md").read_text()


def test_a_failing_message_is_found_by_the_fields_of_its_lines(tmp_path: Path) -> None:
    (block,) = examples(PAGE)
    done = run_example(block, tmp_path, "-W", "error")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    about = [line for line in lines if line.get("topic") == "orders" and "offset" in line]
    assert [(line["level"], line["offset"], line["group"]) for line in about] == [
        ("ERROR", 0, "billing"),
        ("WARNING", 0, "billing"),
    ], lines
    failed, moved = about
    assert failed["text"].startswith(failed["queue"] + ": listener raised ValueError")
    assert "ValueError: not an order" in failed["exception"]
    assert moved["member"] == failed["member"]


def test_the_page_names_every_logger() -> None:
    assert set(re.findall(r"`(ordermq\.\w+)`", PAGE)) == {*LOGGERS} - {"ordermq"}
