"""Ids of messages and clients (protocol 2.3)."""

from __future__ import annotations

import itertools
import os
import struct
import time
from datetime import datetime

_MESSAGE_ID = struct.Struct(">4siq")
_UNIQUE_ID = struct.Struct(">4sHiiH")
_LOOPBACK = bytes((127, 0, 0, 1))
_counter = itertools.count()
# Java puts its class loader's hash here; any number that differs between processes does.
_PROCESS_SALT = int.from_bytes(os.urandom(4), "big", signed=True)


def offset_message_id(address: bytes, port: int, physical_offset: int) -> str:
    """The id a broker gives: where the record is stored, upper-case hex.

    Args:
        address: 4 or 16 bytes of the storing broker's IP address.
    """
    return (address + struct.pack(">iq", port, physical_offset)).hex().upper()


def unique_message_id(now: float | None = None) -> str:
    """The id a producer gives (property UNIQ_KEY): 32 hex digits, new at each call.

    Args:
        now: seconds since 1970; only the time since the first of the month goes in.
    """
    moment = datetime.fromtimestamp(time.time() if now is None else now)
    month = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since_ms = int((moment - month).total_seconds() * 1000)
    return (
        _UNIQUE_ID.pack(
            _LOOPBACK,
            os.getpid() & 0xFFFF,
            _PROCESS_SALT,
            since_ms,
            next(_counter) & 0xFFFF,
        )
        .hex()
        .upper()
    )


def client_id(instance: str | None = None) -> str:
    """The name of one client incarnation; unique by default, so that no two share a lock.

    The same id in two processes makes both "own" a queue (semantics 9 #11); hence process,
    time and chance, where RocketMQ's classic clients use only the address.
    """
    if instance is None:
        instance = f"{os.getpid()}#{time.time_ns():x}{os.urandom(3).hex()}"
    return f"127.0.0.1@{instance}"
