"""The examples of docs/migrating.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.component.docs_examples import examples, run_example

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migrating.md").read_text()
SECTIONS = dict(re.findall(r"\n## (.*?)\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL))
PRINTS = {
    "rocketmq-client-python 2.0.0": ["b'o-17' b'placed'", "b'o-17' b'paid'", "b'o-17' b'shipped'"],
    "rocketmq 0.4.4": [str([f"order {number}".encode() for number in range(6)])],
    "rocketmq-python-client 5.x (gRPC)": ["[b'placed', b'paid']"],
    "pyrocketmq": ["girl b'placed'"],
    "Java": ["0 [b'paid']", "1 [b'paid']"],
}
WARNS = {
    "Java": "listener suspended the queue; offsets 0-0 will be retried in 50 ms (attempt 1, no "
    "limit)\n",
}


def test_every_section_is_tried() -> None:
    assert set(SECTIONS) == set(PRINTS)


@pytest.mark.parametrize("section", PRINTS)
def test_the_example_of_a_section_prints_what_it_should(section: str, tmp_path: Path) -> None:
    (code,) = examples(SECTIONS[section])
    done = run_example(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.sub(r"orders@\w+/\d+: ", "", done.stderr) == WARNS.get(section, "")
    assert done.stdout.splitlines() == PRINTS[section]


def test_links_within_the_page_lead_somewhere() -> None:
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in SECTIONS}
    assert set(re.findall(r"\]\(#(.*?)\)", PAGE)) <= anchors
