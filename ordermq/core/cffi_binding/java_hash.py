"""Java's hash of a text through cffi."""

from __future__ import annotations

from ordermq.core._cffi import ffi, lib


def java_hash(text: str) -> int:
    """See interface.JavaHash."""
    data = text.encode()
    found: int = lib.omq_java_hash(
        ffi.new("omq_text *", (ffi.from_buffer("uint8_t[]", data), len(data)))
    )
    return found
