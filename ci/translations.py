"""Notes in each Chinese page which state of the English one it translates, and tells stale ones.

.venv/bin/python ci/translations.py          write the notes, once the pages say the same again
.venv/bin/python ci/translations.py --check  name the pages whose English changed since
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CHINESE: Final = ROOT / "docs" / "zh-CN"
README: Final = (ROOT / "README.md", ROOT / "README.zh-CN.md")
_NOTE: Final = re.compile(r"\n<!-- translates [0-9a-f]{16} -->\n$")
_CODE: Final = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^(#+) (.+)$", re.MULTILINE)


def pairs() -> list[tuple[Path, Path]]:
    """Return each English page with its Chinese one."""
    return [README, *((ROOT / "docs" / page.name, page) for page in sorted(CHINESE.glob("*.md")))]


def code_of(page: str) -> list[str]:
    """Return the blocks of code, which are the same in both languages."""
    return _CODE.findall(page)


def shape_of(page: str) -> list[tuple[int, int]]:
    """Return per section the level of its heading and the number of rows of its tables."""
    text = _CODE.sub("", page)
    places = [*_HEADING.finditer(text)]
    ends = [*(each.start() for each in places[1:]), len(text)]
    return [
        (len(each[1]), len(re.findall(r"^\|", text[each.end() : end], re.MULTILINE)))
        for each, end in zip(places, ends, strict=True)
    ]


def state_of(page: str) -> str:
    """Return a checksum of what a translator must look at: headings, code and rows of tables.

    Not of sentences: each comma would make six pages stale.
    """
    rows = re.findall(r"^\|.*$", _CODE.sub("", page), re.MULTILINE)
    told = [*_HEADING.findall(_CODE.sub("", page)), *code_of(page), *rows]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def noted(english: str, chinese: str) -> str:
    """Return the Chinese page with a note of the English one's state."""
    return f"{_NOTE.sub('', chinese).rstrip()}\n\n<!-- translates {state_of(english)} -->\n"


def stale() -> list[str]:
    """Return the Chinese pages whose English ones changed since they were noted."""
    return [
        str(chinese.relative_to(ROOT))
        for english, chinese in pairs()
        if noted(english.read_text(), chinese.read_text()) != chinese.read_text()
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(f"{page}: its English page changed" for page in stale()) or 0)
    for english, chinese in pairs():
        chinese.write_text(noted(english.read_text(), chinese.read_text()))
