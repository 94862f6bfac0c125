"""Java's hash codes, on which the choice of queues and tag filters depend
(docs/internals/protocol.md#tags).
"""

from __future__ import annotations

from ordermq import core
from ordermq.errors import ConfigError
from ordermq.model.names import exact_text

_WRAP = 1 << 32


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31 * h + unit over UTF-16 units, signed 32 bits. O(n).

    Raises: ConfigError: the text cannot be encoded as UTF-8, so that no message can hold it.
    """
    try:
        return core.java_hash(text if type(text) is str else exact_text(text))
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r} cannot be encoded as UTF-8: {error}") from None


def long_hash(number: int) -> int:
    """Return Java's `Long.hashCode`: the exclusive or of both halves of the 64 bits.

    Raises: ConfigError: the number does not fit into 64 bits.
    """
    if not -(1 << 63) <= number < 1 << 63:
        raise ConfigError(
            f"sharding key {number} does not fit into the 64 bits of Java's long: use a str"
        )
    unsigned = number & 0xFFFFFFFFFFFFFFFF
    value = (unsigned ^ (unsigned >> 32)) & 0xFFFFFFFF
    return value - _WRAP if value >= 1 << 31 else value


def key_text(key: object) -> str:
    """Return the text of a sharding key: what consumers read, and other selectors than Java's hash.

    Of a member of an `Enum` of texts or numbers, too, that is its value, which it is equal to.
    """
    if type(key) is str:
        return key
    if isinstance(key, str):
        return exact_text(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int.__repr__(key)
    return str(key)


def key_hash(key: str | int | bool) -> int:
    """Return the hash code that Java's selector uses for a sharding key
    (docs/internals/semantics.md#ordered-sends).

    A number within 32 bits is taken as an `Integer`, which is its own hash code, a larger one as a
    `Long`. For small `Long` keys of a Java producer pass `long_hash(key)` as the key.

    Raises: ConfigError: neither a str nor an int, or more than 64 bits.
    """
    if isinstance(key, str):
        return string_hash(key)
    # Before int, of which bool is a subclass. The numbers are those of Java's Boolean.hashCode.
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        return int(key) if -(1 << 31) <= key < 1 << 31 else long_hash(key)
    raise ConfigError(f"sharding key {key!r}: expected a str or an int")
