"""The standard streams of a command, whatever its starter made of them."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Final, TextIO, cast

from ordermq.standard_descriptors import fill_standard_descriptors

_ESCAPES: Final = "ordermq_json_escapes"


def prepare_streams() -> None:
    """Have a closed output refuse what is written, and no text be refused for its letters."""
    fill_standard_descriptors()
    # Python has None in the place of a closed stream.
    if sys.stdin is None:
        sys.stdin = _stream(0, "r")
    if sys.stderr is None:
        sys.stderr = _stream(2, "w")
    if sys.stdout is None:
        # What is written to None is dropped in silence, and `consume` would commit what nobody has.
        # The null device for reading alone refuses it.
        closed = os.open(os.devnull, os.O_RDONLY)
        os.dup2(closed, 1)
        os.close(closed)
        sys.stdout = _stream(1, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error(_ESCAPES, _json_escapes)
        sys.stdout.reconfigure(errors=_ESCAPES)


def _stream(descriptor: int, mode: str) -> TextIO:
    return cast(TextIO, open(descriptor, mode, closefd=False))


def _json_escapes(error: UnicodeError) -> tuple[str, int]:
    # Those of JSON, so that a document stays one.
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escapes = (f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return "".join(escapes), error.end
