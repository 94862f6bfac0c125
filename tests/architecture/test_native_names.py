"""Native code names no private thing of the consumer: what it needs is in the core's contract."""

from __future__ import annotations

import re
from pathlib import Path

PARTS = sorted((Path(__file__).resolve().parents[2] / "ext" / "cython").glob("*.pyx"))


def code_of(path: Path) -> str:
    text = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text(encoding="utf-8"))
    return re.sub(r"#.*", "", text)


def test_every_private_name_that_native_code_uses_is_its_own() -> None:
    declared: set[str] = set()
    used: dict[str, set[str]] = {}
    for path in PARTS:
        if path.name == "_cython.pyx":
            continue
        code = code_of(path)
        for name in re.findall(r"\.(_[a-z]\w*)", code):
            used.setdefault(name, set()).add(path.name)
        declared.update(re.findall(r"^\s*(?:cdef|def)\b[^\n(=]*?\b(_\w+)\b", code, re.MULTILINE))
        for fields in re.findall(r"^    cdef [^\n(]*$", code, re.MULTILINE):
            declared.update(re.findall(r"\b_\w+", fields))
    assert used, "the pattern finds what it looks for"
    assert {name: files for name, files in used.items() if name not in declared} == {}


def test_a_queue_is_claimed_and_settled_by_one_file() -> None:
    # The state machine of an assigned queue: elsewhere a claim would be a second way to claim.
    calls = re.compile(r"omq_assigned_queue_(claim|claim_lanes|settle|finish|roll_back|abandon)\(")
    named = {path.name for path in PARTS if calls.search(code_of(path))}
    assert named == {"assigned_queue.pyx"}
    taking = re.compile(r"omq_process_queue_(take_segments|commit)\(")
    assert {path.name for path in PARTS if taking.search(code_of(path))} == {"process_queue.pyx"}
