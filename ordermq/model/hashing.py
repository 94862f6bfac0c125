"""Java's hashes, because queue choice and tag filters depend on them
(docs/internals/protocol.md#tags)."""

from __future__ import annotations

from ordermq import core
from ordermq.errors import ConfigError

_WRAP = 1 << 32


def string_hash(text: str) -> int:
    """Java's `String.hashCode`: 31 * h + unit over UTF-16 code units, signed 32 bits. O(n).

    Raises: ConfigError: a text no message can carry.
    """
    try:
        return core.java_hash(text)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r} cannot be written as UTF-8: {error}") from None


def long_hash(number: int) -> int:
    """Java's `Long.hashCode`: both halves of the 64 bits, folded by exclusive or.

    Raises: OverflowError: the number does not fit into 64 bits.
    """
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} does not fit into Java's long")
    unsigned = number & 0xFFFFFFFFFFFFFFFF
    value = (unsigned ^ (unsigned >> 32)) & 0xFFFFFFFF
    return value - _WRAP if value >= 1 << 31 else value


def key_hash(key: str | int | bool) -> int:
    """The hash Java's selector takes of a sharding key (docs/internals/semantics.md#ordered-sends).

    A number within 32 bits counts as an `Integer`, which is its own hash; a wider one can
    only be a `Long`. For small `Long` keys of a Java producer give `long_hash(key)` instead.

    Raises: ConfigError: neither a text nor a number. OverflowError: as `long_hash`.
    """
    if isinstance(key, str):
        return string_hash(key)
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        return key if -(1 << 31) <= key < 1 << 31 else long_hash(key)
    raise ConfigError(f"sharding key {key!r}: expected a str or an int")
