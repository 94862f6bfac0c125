"""Stored records (docs/internals/protocol.md#stored-message), encoded by the tests' own hand."""

import struct
from pathlib import Path
from zlib import crc32

VECTORS = Path(__file__).parents[2] / "vectors" / "core"
V1, V2 = 0xDAA320A7, 0xDAA320AB
BORN_V6, STORE_V6 = 0x10, 0x20
INNER_BATCH = 0x40 | 0x80


def record(
    *,
    offset=0,
    body=b"",
    topic=b"TopicTest",
    properties=b"",
    magic=V1,
    sys_flag=0,
    queue_id=0,
    reconsume_times=0,
    born=(1_700_000_000_000, b"\x0a\0\0\1", 50_000),
    stored=(1_700_000_000_005, b"\xc0\xa8\1\x0a", 10_911),
):
    parts = struct.pack(
        ">IIIIqqI", magic, crc32(body) & 0x7FFFFFFF, queue_id, 0, offset, 0, sys_flag
    )
    for (time_ms, host, port), v6 in ((born, BORN_V6), (stored, STORE_V6)):
        address = host.rjust(16, b"\0") if sys_flag & v6 else host[-4:]
        parts += struct.pack(">q", time_ms) + address + struct.pack(">i", port)
    parts += struct.pack(">iqi", reconsume_times, 0, len(body)) + body
    parts += struct.pack(">B" if magic == V1 else ">H", len(topic)) + topic
    parts += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", len(parts) + 4) + parts


def v4():
    """Vector V4 of docs/internals/protocol.md#test-vectors."""
    text = (VECTORS / "stored_message_v1_ipv4.hex").read_text()
    return bytes.fromhex(text)


def v12():
    """Vector V12 of docs/internals/protocol.md#test-vectors: v2, both hosts IPv6."""
    return record(
        magic=V2,
        sys_flag=BORN_V6 | STORE_V6,
        born=(1_700_000_000_000, bytes.fromhex("20010db8" + "00" * 11 + "01"), 50_000),
        stored=(1_700_000_000_005, b"\1", 10_911),
        topic=b"%RETRY%" + b"g" * 125,
        reconsume_times=3,
        body=b"x",
    )


NAMES = ("offsets", "positions", "body_positions", "body_sizes")
NAMES += ("property_positions", "property_sizes")


def columns(index):
    found = list(index.columns(*NAMES).values())
    assert [column.format for column in found] == list("qIIIII")
    assert all(column.readonly and len(column) == len(index) for column in found)
    return [column.tolist() for column in found]


def entry(body=b"", properties=b"", *, flag=0, magic=0):
    """A message of an inner batch (docs/internals/protocol.md#batch-body)."""
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iIIii", size, magic, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
