"""Ids of messages and clients (docs/internals/protocol.md#identifiers)."""

from __future__ import annotations

import functools
import os
import struct
import threading
import time
from datetime import datetime
from typing import NamedTuple

_PROCESS_PART = struct.Struct(">4sHi")
_HOUR_MS = 3_600_000
_LOOPBACK = bytes((127, 0, 0, 1))
_given = 0  # numbers, by `_numbers`
_giving = threading.Lock()
_HEX = [f"{number:02X}" for number in range(256)]  # formatting took twice the time of a look
_IDS_A_MOMENT = 4_096  # the clock is read again long before 65,536, when the counter repeats
# Java puts its class loader's hash here; any number that differs between processes does.
_PROCESS_SALT = int.from_bytes(os.urandom(4), "big", signed=True)


def offset_message_id(address: bytes, port: int, physical_offset: int) -> str:
    """The id a broker gives: where the record is stored, upper-case hex.

    Args:
        address: 4 or 16 bytes of the storing broker's IP address.
    """
    return (address + struct.pack(">iq", port, physical_offset)).hex().upper()


class _Month(NamedTuple):
    """When the month began, and when this is to be asked again, both ms since 1970."""

    began_ms: int
    valid_to_ms: int

    @classmethod
    def of(cls, now_ms: int) -> _Month:
        moment = datetime.fromtimestamp(now_ms / 1000)
        began = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # By the hour: so the clock's changes within a month are seen.
        return cls(int(began.timestamp() * 1000), (now_ms // _HOUR_MS + 1) * _HOUR_MS)


_month = _Month(0, 0)


def unique_message_id(now: float | None = None) -> str:
    """The id a producer gives (property UNIQ_KEY): 32 hex digits, new at each call.

    Args:
        now: seconds since 1970; only the time since the first of the month goes in.
    """
    now_ms = time.time_ns() // 1_000_000 if now is None else int(now * 1000)
    return f"{_beginning(now_ms)}{_numbers(1) & 0xFFFF:04X}"


def unique_message_ids(count: int) -> list[str]:
    """So many of them, at once: they share what does not count. O(count)."""
    ids: list[str] = []
    for done in range(0, count, _IDS_A_MOMENT):
        beginning = _beginning(time.time_ns() // 1_000_000)
        ids += _numbered(beginning, min(count - done, _IDS_A_MOMENT))
    return ids


def _numbered(beginning: str, count: int) -> list[str]:
    ids: list[str] = []
    first = _numbers(count)
    while (left := count - len(ids)) > 0:
        number = first + len(ids)
        shared, low = beginning + _HEX[number >> 8 & 0xFF], number & 0xFF
        ids += [shared + digits for digits in _HEX[low : low + left]]
    return ids


def _numbers(count: int) -> int:
    """The first of so many numbers in a row, which nobody else gets."""
    global _given
    with _giving:
        first = _given
        _given += count
    return first


@functools.lru_cache(1)  # several are given in a millisecond
def _beginning(now_ms: int) -> str:
    """What an id of this process, given at that moment, begins with."""
    global _month
    if not _month.began_ms <= now_ms < _month.valid_to_ms:
        _month = _Month.of(now_ms)
    process = _PROCESS_PART.pack(_LOOPBACK, os.getpid() & 0xFFFF, _PROCESS_SALT).hex().upper()
    return f"{process}{(now_ms - _month.began_ms) & 0xFFFFFFFF:08X}"


def _forget() -> None:
    global _giving
    _beginning.cache_clear()  # the child has a number of its own
    _giving = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_forget)


def unique_instance() -> str:
    """What no other client of the cluster is called: process, time and chance."""
    return f"{os.getpid()}#{time.time_ns():x}{os.urandom(3).hex()}"
