"""Queue selection of the old clients, so that keys stay in their queues during a migration."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ordermq.callables import require_plain_result
from ordermq.model.hashing import key_text
from ordermq.model.message import Message as SentMessage
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.queue_selector import ShardingKey

if TYPE_CHECKING:
    from ordermq.rocketmq.message import ReceivedMessage

OldSelector = Callable[[int, "ReceivedMessage", int], int]

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_MULTIPLIER = 0xC6A4_A793_5BD1_E995  # MurmurHash2, 64 bits
_SEED = 0xC70F_6907  # the one GCC's library gives it
_SHIFT = 47


def string_hash(data: bytes) -> int:
    """Return `std::hash<std::string>` of GCC's library on 64 bits, as used by 2.0.0."""
    state = _SEED ^ len(data) * _MULTIPLIER & _MASK
    whole = len(data) & ~7
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        state = (state ^ word) * _MULTIPLIER & _MASK
    if len(data) > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> _SHIFT) * _MULTIPLIER & _MASK
    return state ^ state >> _SHIFT


def by_sharding_key(
    queues: Sequence[MessageQueue], message: SentMessage, key: ShardingKey
) -> MessageQueue:
    """Select as `send_orderly_with_sharding_key`: hash of the key's UTF-8, modulo."""
    return queues[string_hash(key_text(key).encode()) % len(queues)]


def hashing_queue_selector(mq_size: int, msg: ReceivedMessage, arg: int) -> int:
    """Select as `send_orderly` by default: its number, modulo.

    Args:
        arg: the address of a C int that holds the number, as 0.4.4 passed it to selectors.
    """
    number: int = ctypes.cast(arg, ctypes.POINTER(ctypes.c_int))[0]
    return number % mq_size


def chosen_queue(
    select: OldSelector, queues: Sequence[MessageQueue], message: ReceivedMessage, number: int
) -> MessageQueue:
    """Return the queue that a selector of the older clients chooses.

    Raises: IndexError: it returned a queue that does not exist.
    """
    # Old selectors cast their argument from an address; this int lives as long as the call.
    place = ctypes.c_int(number)
    chosen = select(len(queues), message, ctypes.addressof(place))
    index = require_plain_result("queue_selector", select, chosen)
    if not 0 <= index < len(queues):
        raise IndexError(
            f"the queue selector returned {index}: expected 0..{len(queues) - 1} for the "
            f"{len(queues)} queues of {queues[0].topic!r}"
        )
    return queues[index]
