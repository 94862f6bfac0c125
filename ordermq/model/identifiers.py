"""Ids of messages and clients (docs/internals/protocol.md#identifiers)."""

from __future__ import annotations

import functools
import os
import struct
import time
from datetime import datetime
from typing import Any

from ordermq import core

_PROCESS_PART = struct.Struct(">4sHi")
_HOUR_MS = 3_600_000
_LOOPBACK = bytes((127, 0, 0, 1))
_IDS_PER_CLOCK = 4_096  # the clock is read again well before 65,536, when the counter repeats


def _draw_salt() -> int:
    # Java uses the hash of its class loader; any number that differs between processes will do.
    return int.from_bytes(os.urandom(4), "big", signed=True)


_process_salt = _draw_salt()


def offset_message_id(address: bytes, port: int, physical_offset: int) -> str:
    """Return the broker's id of a message: address and position of the record, in upper-case hex.

    Args:
        address: 4 or 16 bytes of the storing broker's IP address.
    """
    return (address + struct.pack(">iq", port, physical_offset)).hex().upper()


def broker_of(message_id: str) -> str:
    """Return `address:port` of the broker in its id of a message; empty for an id of other form."""
    try:
        return host_of(bytes.fromhex(message_id)[:-8])  # without the position
    except ValueError:
        return ""


def host_of(stored: bytes) -> str:
    """Return `address:port` of a host as messages have it: 4 or 16 bytes, and 4 of the port.

    Raises: ValueError: it is of another length.
    """
    import ipaddress  # here, as few ask where a message comes from

    address = ipaddress.ip_address(stored[:-4])
    port = int.from_bytes(stored[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


class _Month:
    """Start of the current month, and the time until which it is valid, both ms since 1970."""

    def __init__(self, began_ms: int, valid_to_ms: int) -> None:
        self.began_ms = began_ms
        self.valid_to_ms = valid_to_ms

    @classmethod
    def of(cls, now_ms: int) -> _Month:
        moment = datetime.fromtimestamp(now_ms / 1000)
        began = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # Valid for an hour only, so that changes of the system clock within a month are noticed.
        return cls(int(began.timestamp() * 1000), (now_ms // _HOUR_MS + 1) * _HOUR_MS)


_month = _Month(0, 0)


def unique_message_id(now: float | None = None) -> str:
    """Return a new producer's id of a message (property UNIQ_KEY): 32 hex digits.

    Args:
        now: seconds since 1970; the id contains the time since the first of the month.
    """
    return _ids.one(time.time_ns() // 1_000_000 if now is None else int(now * 1000))


def unique_message_ids(count: int) -> list[str]:
    """Return `count` new ids; faster than one by one, for they share their prefix. O(count)."""
    ids: list[str] = []
    for done in range(0, count, _IDS_PER_CLOCK):
        now_ms = time.time_ns() // 1_000_000
        ids += _ids.several(min(count - done, _IDS_PER_CLOCK), now_ms)
    return ids


def plain_sends(after: str, kind: type[core.PendingFields[Any]]) -> core.contract.PlainSends:
    """Return a maker of pending messages with ids of this process; see core/contract/."""
    return core.PlainSends(_ids, after, kind)


def _prefix(now_ms: int) -> str:
    """Return the first 28 digits of this process's ids at that moment."""
    global _month
    if not _month.began_ms <= now_ms < _month.valid_to_ms:
        _month = _Month.of(now_ms)
    return f"{_process_digits()}{(now_ms - _month.began_ms) & 0xFFFFFFFF:08X}"


@functools.lru_cache(1)  # until a fork
def _process_digits() -> str:
    return _PROCESS_PART.pack(_LOOPBACK, os.getpid() & 0xFFFF, _process_salt).hex().upper()


def _forget() -> None:
    global _process_salt
    # A child in a pid namespace of its own may have its parent's process id, as 1 in a container.
    _process_salt = _draw_salt()
    _process_digits.cache_clear()
    _ids.forget()


# One for all ids of the process: they share a counter.
_ids = core.UniqueIds(_prefix)
os.register_at_fork(after_in_child=_forget)


def unique_instance(name: str = "") -> str:
    """Return an instance name that no other client has: process id, time and random digits.

    Args:
        name: what people know the client by; the unique part follows it.
    """
    # In containers every process id may be 1, and clones of a machine may have one clock.
    unique = f"{os.getpid()}#{time.time_ns():x}{os.urandom(6).hex()}"
    return f"{name}#{unique}" if name else unique
