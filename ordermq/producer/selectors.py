"""Which queue a sharding key goes to (docs/internals/semantics.md#ordered-sends); pure functions.

Clients of other languages choose differently for the same key, so the choice has a name:
all producers of one ordered topic must use the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from ordermq.errors import ConfigError
from ordermq.model.hashing import key_hash
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue

ShardingKey = str | int
QueueSelector = Callable[[Sequence[MessageQueue], Message, ShardingKey], MessageQueue]

_MASK = 0xFFFFFFFFFFFFFFFF


def java_index(key: ShardingKey, count: int) -> int:
    """`SelectMessageQueueByHash`: |hashCode % n|, where Java's % cuts towards zero."""
    return abs(key_hash(key)) % count


def go_index(key: ShardingKey, count: int) -> int:
    """The Go client's: FNV-1a, 32 bits, over UTF-8."""
    value = 0x811C9DC5
    for byte in str(key).encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % count


def sha256_index(key: ShardingKey, count: int) -> int:
    """The 5.x Python client's: SHA-256 as one big number."""
    return int.from_bytes(hashlib.sha256(str(key).encode()).digest(), "big") % count


def sip_index(key: ShardingKey, count: int) -> int:
    """The 5.x Java and Go clients': SipHash-2-4 under its customary key, a signed long."""
    value = _sip_hash_24(str(key).encode())
    return (value - (1 << 64) if value >> 63 else value) % count


def _sip_hash_24(data: bytes) -> int:
    k0, k1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotate(v1, 13) ^ v0
            v0 = _rotate(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotate(v3, 16) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotate(v3, 21) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotate(v1, 17) ^ v2
            v2 = _rotate(v2, 32)

    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v3 ^= word
        rounds(2)
        v0 ^= word
    v2 ^= 0xFF
    rounds(4)
    return v0 ^ v1 ^ v2 ^ v3


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


_INDEXES: dict[str, Callable[[ShardingKey, int], int]] = {
    "java": java_index,
    "go": go_index,
    "sip": sip_index,
    "sha256": sha256_index,
}


def selector_of(choice: str | QueueSelector) -> QueueSelector:
    """A selector by name, or the caller's own.

    Raises: ConfigError: an unknown name.
    """
    if callable(choice):
        return choice
    index = _INDEXES.get(choice)
    if index is None:
        raise ConfigError(
            f"selector {choice!r}: expected one of {sorted(_INDEXES)}, or a function "
            "(queues, message, key) -> queue"
        )

    def select(queues: Sequence[MessageQueue], message: Message, key: ShardingKey) -> MessageQueue:
        return queues[index(key, len(queues))]

    return select
