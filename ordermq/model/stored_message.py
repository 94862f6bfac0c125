"""The stored record, written and read whole (protocol 2.1).

A record is wire-ready: a pull answer is records joined. The two offsets are known only when
the store's writer gives the record its place, so they are stamped in afterwards.

Written in Python, not natively: one struct and one join are 0.4 us without the checksum, which
is native anyway, beside the 7 us that a row of the store costs.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from dataclasses import dataclass

from ordermq.errors import ProtocolError

MAGIC = -626_843_481  # v1: one byte of topic length
MAGIC_LONG_TOPIC = -626_843_477  # v2: two bytes, for topics over 127 bytes
MAX_SHORT_TOPIC_BYTES = 127
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born timestamp
_HEAD = struct.Struct(">iiiiiqqiq")
_PLACE = struct.Struct(">qq")
_PLACE_AT = 20
_STORED = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body length
_SHORT = struct.Struct(">h")
# The whole fixed part when both hosts are IPv4.
_HEAD_V4 = struct.Struct(">iiiiiqqiq8sq8siqi")


def host_bytes(address: str, port: int) -> bytes:
    """The 8 (IPv4) or 20 (IPv6) bytes of a host.

    Raises: ValueError: not an IP address.
    """
    return ipaddress.ip_address(address.partition("%")[0]).packed + struct.pack(">i", port)


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The sysFlag bits that say how wide the hosts are."""
    wide_born = BORN_HOST_IPV6 if len(born_host) == 20 else 0
    return wide_born | (STORE_HOST_IPV6 if len(store_host) == 20 else 0)


class RecordWriter:
    """Writes the records of one queue and one producer's host.

    Args:
        topic, queue_id: where the messages will lie.
        born_host, store_host: of `host_bytes`.
    """

    __slots__ = ("_flags", "_is_v4", "_magic", "_queue_id", "_topic", "born_host", "store_host")

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        name = topic.encode()
        short = len(name) <= MAX_SHORT_TOPIC_BYTES
        self._magic = MAGIC if short else MAGIC_LONG_TOPIC
        self._topic = (bytes((len(name),)) if short else _SHORT.pack(len(name))) + name
        self._queue_id = queue_id
        self._flags = host_flags(born_host, store_host)
        self._is_v4 = self._flags == 0
        self.born_host = born_host
        self.store_host = store_host

    def write(
        self,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        stored_ms: int,
        reconsume_times: int = 0,
    ) -> bytearray:
        """One record without its place; `stamp` gives it one. O(body).

        Raises: struct.error: a number out of its field, properties over 32767 bytes.
        """
        size = 91 + len(body) + len(self._topic) - 1 + len(properties)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        hosts = self.born_host, self.store_host
        if self._is_v4:
            fixed = _HEAD_V4.pack(
                size, self._magic, crc, self._queue_id, flag, 0, 0, sys_flag & ~0x30, born_ms,
                hosts[0], stored_ms, hosts[1], reconsume_times, 0, len(body),
            )  # fmt: skip
        else:
            size += len(hosts[0]) + len(hosts[1]) - 16
            sys_flag = sys_flag & ~0x30 | self._flags
            fixed = b"".join((
                _HEAD.pack(
                    size, self._magic, crc, self._queue_id, flag, 0, 0, sys_flag, born_ms
                ),
                hosts[0], _STORED.pack(stored_ms), hosts[1],
                _TAIL.pack(reconsume_times, 0, len(body)),
            ))  # fmt: skip
        return bytearray().join(
            (fixed, body, self._topic, _SHORT.pack(len(properties)), properties)
        )


def stamp(record: bytearray, queue_offset: int, physical_offset: int) -> None:
    """Give a record its place."""
    _PLACE.pack_into(record, _PLACE_AT, queue_offset, physical_offset)


def stored_at(record: bytes) -> int:
    """When the record was stored, ms since 1970.  O(1)."""
    born_size = 20 if record[39] & BORN_HOST_IPV6 else 8
    return int(_STORED.unpack_from(record, _HEAD.size + born_size)[0])


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored record, read whole; for the broker's own re-storing."""

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    stored_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    properties: bytes

    @classmethod
    def read(cls, record: bytes) -> StoredMessage:
        """Read one record.

        Raises: ProtocolError: it is torn.
        """
        try:
            _, magic, _, queue_id, flag, offset, physical, sys_flag, born = _HEAD.unpack_from(
                record
            )
            at = _HEAD.size
            born_size = 20 if sys_flag & BORN_HOST_IPV6 else 8
            store_size = 20 if sys_flag & STORE_HOST_IPV6 else 8
            born_host = record[at : at + born_size]
            (stored,) = _STORED.unpack_from(record, at + born_size)
            at += born_size + 8
            store_host = record[at : at + store_size]
            times, _, body_size = _TAIL.unpack_from(record, at + store_size)
            at += store_size + _TAIL.size
            body, at = record[at : at + body_size], at + body_size
            wide = magic == MAGIC_LONG_TOPIC
            topic_size = _SHORT.unpack_from(record, at)[0] if wide else record[at]
            at += 2 if wide else 1
            topic, at = record[at : at + topic_size].decode(), at + topic_size
            (size,) = _SHORT.unpack_from(record, at)
            properties = record[at + 2 : at + 2 + size]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"stored record of {len(record)} bytes is torn: {error}") from None
        return cls(
            topic, queue_id, flag, offset, physical, sys_flag, born, bytes(born_host), stored,
            bytes(store_host), times, bytes(body), bytes(properties),
        )  # fmt: skip
