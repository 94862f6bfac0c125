"""The stored record, byte by byte (docs/internals/protocol.md#stored-message and its vectors V4,
V12)."""

from __future__ import annotations

import hashlib

import pytest

from ordermq.core import RecordWriter
from ordermq.errors import ProtocolError
from ordermq.model.stored_message import StoredMessage, host_bytes, stored_at

V4 = (
    "000000c6daa320a73610a6860000000100000000000000000000002a0000000000001000000000000000018bcfe5"
    "68000a0000010000c3500000018bcfe56805c0a8010a00002a9f0000000000000000000000000000000568656c6c"
    "6f09546f70696354657374005d544147530154616741024b455953016b3102554e49515f4b455901304130303030"
    "303130344432303030303030303530303030414243443030303702574149540174727565"
    "02434c55535445520144656661756c74436c757374657202"
)
PROPERTIES = (
    "TAGS\1TagA\2KEYS\1k1\2UNIQ_KEY\0010A00000104D2000000050000ABCD0007\2WAIT\1true\2"
    "CLUSTER\1DefaultCluster\2"
)


def test_a_record_is_what_java_writes() -> None:
    writer = RecordWriter(
        "TopicTest", 1, host_bytes("10.0.0.1", 50_000), host_bytes("192.168.1.10", 10_911)
    )
    written = writer.write(
        b"hello",
        PROPERTIES.encode(),
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
    )
    ((_, _, record),) = written.rows(42, 4_096)
    assert record.hex() == V4


def test_a_long_topic_and_ipv6_hosts_are_what_java_writes() -> None:
    writer = RecordWriter(
        "%RETRY%" + "g" * 125, 0, host_bytes("2001:db8::1", 50_000), host_bytes("::1", 10_911)
    )
    written = writer.write(
        b"x",
        b"",
        flag=0,
        sys_flag=0,
        born_ms=1_700_000_000_000,
        stored_ms=1_700_000_000_005,
        reconsume_times=3,
    )
    ((_, _, record),) = written.rows(0, 0)
    assert record.hex().startswith("000000f9daa320ab0cdc1683")
    assert hashlib.sha256(record).hexdigest().startswith("55cddb6c409af6de")
    assert stored_at(record) == 1_700_000_000_005
    message = StoredMessage.read(bytes(record))
    assert (message.topic, message.reconsume_times) == ("%RETRY%" + "g" * 125, 3)
    assert (message.body, len(message.born_host), len(message.store_host)) == (b"x", 20, 20)


def test_a_record_is_read_as_it_was_written() -> None:
    record = bytes.fromhex(V4)
    message = StoredMessage.read(record)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 1, 42)
    assert (message.physical_offset, message.born_ms) == (4_096, 1_700_000_000_000)
    assert (message.body, message.properties) == (b"hello", PROPERTIES.encode())
    assert message.stored_ms == stored_at(record) == 1_700_000_000_005
    assert message.born_host == host_bytes("10.0.0.1", 50_000)


@pytest.mark.parametrize("size", [0, 4, 50, 88, 95, 100])
def test_a_truncated_record_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="stored record is truncated"):
        StoredMessage.read(bytes.fromhex(V4)[:size])


def test_the_width_of_a_host_overrides_the_flag_of_the_sender() -> None:
    host = host_bytes("127.0.0.1", 1)
    written = RecordWriter("t", 0, host, host).write(
        b"x", b"", flag=0, sys_flag=0x30 | 1, born_ms=0, stored_ms=7
    )
    ((_, _, record),) = written.rows(0, 0)
    assert StoredMessage.read(bytes(record)).sys_flag == 1
    assert stored_at(record) == 7
