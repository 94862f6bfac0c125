"""Java's hashes, because queue choice and tag filters depend on them (protocol 2.4)."""

from __future__ import annotations

_WRAP = 1 << 32


def string_hash(text: str) -> int:
    """Java's `String.hashCode`: 31 * h + unit over UTF-16 code units, signed 32 bits. O(n)."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - _WRAP if value >= 1 << 31 else value


def long_hash(number: int) -> int:
    """Java's hash of an integer: an `Integer` is its own, a wider one is a `Long`'s.

    Raises: OverflowError: the number does not fit into 64 bits.
    """
    if -(1 << 31) <= number < 1 << 31:
        return number
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} does not fit into Java's long")
    unsigned = number & 0xFFFFFFFFFFFFFFFF
    value = (unsigned ^ (unsigned >> 32)) & 0xFFFFFFFF
    return value - _WRAP if value >= 1 << 31 else value


def key_hash(key: str | int | bool) -> int:
    """The hash Java's selector takes of a sharding key (semantics 8)."""
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        return long_hash(key)
    return string_hash(key)
