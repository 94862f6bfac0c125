"""Records as the broker stores and sends them (docs/internals/protocol.md#stored-message).

The body of a pull response is a sequence of records. `core.RecordWriter` writes them.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from ordermq import core
from ordermq.errors import ProtocolError
from ordermq.model.message import INNER_BATCH

MAGIC_LONG_TOPIC = -626_843_477  # version 2: two bytes of topic length, for more than 127 bytes
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born timestamp
_HEAD = struct.Struct(">iiiiiqqiq")
_STORED = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body length
_SHORT = struct.Struct(">h")


def host_bytes(address: str, port: int) -> bytes:
    """Encode a host as 8 (IPv4) or 20 (IPv6) bytes.

    Raises: ValueError: not an IP address.
    """
    return ipaddress.ip_address(address.partition("%")[0]).packed + struct.pack(">i", port)


def stored_at(record: bytes) -> int:
    """Return the store time of a record, ms since 1970. O(1)."""
    # Byte 39 is the lowest of sysFlag.
    born_size = 20 if record[39] & BORN_HOST_IPV6 else 8
    return int(_STORED.unpack_from(record, _HEAD.size + born_size)[0])


def holds_messages(records: bytes) -> bool:
    """Return True if the first record holds several messages
    (docs/internals/protocol.md#batch-topics). O(1)."""
    # Byte 39 is the lowest of sysFlag.
    return len(records) > 39 and records[39] & INNER_BATCH == INNER_BATCH


def queue_offsets(records: bytes) -> list[int]:
    """Return the queue offset of each record in a body. O(records)."""
    found, at = [], 0
    while at < len(records):
        found.append(int.from_bytes(records[at + 20 : at + 28]))
        at += int.from_bytes(records[at : at + 4])
    return found


def split_records(records: bytes) -> list[bytes]:
    """Return the records of a body. O(bytes).

    Raises: ProtocolError: it is truncated.
    """
    found, at = [], 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4])
        if not _HEAD.size < size <= len(records) - at:
            raise ProtocolError(f"a record of {size} bytes, {len(records) - at} are left")
        found.append(records[at : at + size])
        at += size
    return found


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record with all fields decoded, for messages that the broker stores again."""

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
        """Decode one record.

        Raises: ProtocolError: it is truncated or malformed.
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
            if body_size < 0:
                raise ValueError(f"a body of {body_size} bytes")
            body, at = record[at : at + body_size], at + body_size
            wide = magic == MAGIC_LONG_TOPIC
            topic_size = _SHORT.unpack_from(record, at)[0] if wide else record[at]
            at += 2 if wide else 1
            topic, at = record[at : at + topic_size].decode(), at + topic_size
            (size,) = _SHORT.unpack_from(record, at)
            properties = record[at + 2 : at + 2 + size]
            if len(properties) != size:
                raise ValueError(f"{size} bytes of properties, {len(properties)} left")
        except (struct.error, IndexError, ValueError) as error:
            raise ProtocolError(
                f"stored record is truncated ({len(record)} bytes): {error}"
            ) from None
        return cls(
            topic, queue_id, flag, offset, physical, sys_flag, born, bytes(born_host), stored,
            bytes(store_host), times, bytes(body), bytes(properties),
        )  # fmt: skip

    def rewritten(self, topic: str, properties: bytes) -> bytes:
        """Return the record with another topic and other properties, at the same place."""
        writer = core.RecordWriter(topic, self.queue_id, self.born_host, self.store_host)
        block = writer.write(
            self.body,
            properties,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            stored_ms=self.stored_ms,
            reconsume_times=self.reconsume_times,
        )
        ((_, _, record),) = block.rows(self.queue_offset, self.physical_offset)
        return bytes(record)
