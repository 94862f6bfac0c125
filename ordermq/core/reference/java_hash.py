"""Java's hash of a text, unit by unit."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """See interface.JavaHash."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
