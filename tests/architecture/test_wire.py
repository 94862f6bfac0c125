"""The framer and the reader of reply headers: both are in `ext/wire` alone."""

from __future__ import annotations

from pathlib import Path

EXT = Path(__file__).resolve().parents[2] / "ext"


def places(part: str) -> set[str]:
    """Return the native sources that have this text."""
    sources = [*EXT.glob("*/*.[ch]"), *EXT.glob("*/*.pyx")]
    return {
        path.relative_to(EXT).as_posix()
        for path in sources
        if path.name != "_cython.c" and part in path.read_text()
    }


def test_frames_are_cut_in_one_place() -> None:
    assert places("& 0xFFFFFF") == {"wire/frame.h"}, "the size of a header, in the mark of a frame"


def test_fields_of_answers_are_named_in_one_place() -> None:
    assert places('"nextBeginOffset"') == {"wire/reply_header.c"}
