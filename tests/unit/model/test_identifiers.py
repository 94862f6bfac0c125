"""Ids of messages and clients (docs/internals/protocol.md#identifiers, V5, V6)."""

from __future__ import annotations

import ipaddress
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from ordermq import core
from ordermq.model import identifiers
from ordermq.model.identifiers import (
    broker_of,
    offset_message_id,
    unique_message_id,
    unique_message_ids,
)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("192.168.1.10", "C0A8010A00002A9F0000000000001000"),
        ("::1", "0000000000000000000000000000000100002A9F0000000000001000"),
    ],
)
def test_the_brokers_id_is_its_address_and_the_records_place(address: str, text: str) -> None:
    assert offset_message_id(ipaddress.ip_address(address).packed, 10_911, 4_096) == text


def test_the_producers_id_is_laid_out_as_in_v6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "_process_digits", identifiers._process_digits.__wrapped__)
    monkeypatch.setattr(identifiers, "_month", identifiers._Month(0, 0))
    month_ms, pid, salt, address = 0xABCD, 1234, 5, bytes((10, 0, 0, 1))
    monkeypatch.setattr(identifiers, "_LOOPBACK", address)
    monkeypatch.setattr(identifiers, "_process_salt", salt)
    monkeypatch.setattr(identifiers, "_ids", core.UniqueIds(identifiers._prefix, 7))
    monkeypatch.setattr(identifiers.os, "getpid", lambda: 0x50000 + pid)
    first = datetime(2026, 11, 1).timestamp()
    assert unique_message_id(first + month_ms / 1000) == "0A00000104D2000000050000ABCD0007"


def test_an_id_counts_from_the_first_of_its_own_month() -> None:
    def since_ms(when: datetime) -> int:
        return int(unique_message_id(when.timestamp())[20:28], 16)

    day_ms = 86_400_000
    assert since_ms(datetime(2026, 1, 3)) == 2 * day_ms
    assert since_ms(datetime(2026, 2, 1)) == 0  # the next month, while the one before is known
    assert since_ms(datetime(2026, 1, 3)) == 2 * day_ms  # and a clock that was set back


def test_a_forked_process_makes_ids_of_its_own() -> None:
    before = unique_message_id()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, unique_message_id().encode())
        os._exit(0)
    os.close(writer)
    child = os.read(reader, 32).decode()
    os.close(reader)
    os.wait()
    assert child[8:12] != before[8:12]  # the process number
    # A child that is process 1 of a new pid namespace may share even that with its parent.
    assert child[12:20] != before[12:20]


def test_ids_made_within_one_millisecond_differ() -> None:
    ids = [unique_message_id(1_700_000_000.0) for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(len(bytes.fromhex(text)) == 16 for text in ids)


def test_ids_given_together_are_like_others_and_differ() -> None:
    before, ids = unique_message_id(), unique_message_ids(10_000)
    assert len({before, *ids, unique_message_id()}) == 10_002
    assert all(len(text) == 32 and text[:20] == before[:20] for text in ids)
    assert unique_message_ids(0) == []


def test_the_counter_of_an_id_wraps_at_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "_ids", core.UniqueIds(identifiers._prefix, 65_535))
    counters = [struct.unpack(">H", bytes.fromhex(unique_message_id())[14:]) for _ in range(2)]
    assert counters == [(65_535,), (0,)]


@pytest.mark.parametrize("given", [0, 250, 65_530])
@pytest.mark.parametrize("count", [1, 5, 6, 7, 300, 5_000])
def test_ids_given_together_are_numbered_in_a_row(
    monkeypatch: pytest.MonkeyPatch, given: int, count: int
) -> None:
    monkeypatch.setattr(identifiers, "_ids", core.UniqueIds(identifiers._prefix, given))
    ids = [*unique_message_ids(count), unique_message_id()]
    assert [int(text[28:], 16) for text in ids] == [
        (given + number) % 65_536 for number in range(count + 1)
    ]


def test_threads_are_given_different_ids() -> None:
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(lambda _: unique_message_ids(100), range(200)))
    assert len({text[20:] for ids in given for text in ids}) == 20_000


def test_the_broker_of_a_message_is_read_from_its_id() -> None:
    four = offset_message_id(bytes((10, 0, 0, 7)), 10_911, 4_096)
    assert broker_of(four) == "10.0.0.7:10911"
    assert broker_of(offset_message_id(bytes(15) + b"\x01", 10_911, 0)) == "[::1]:10911"
    for odd in ("", "xy", four[:-2], four + "00", "7F0000010000", "x" * 32):
        assert broker_of(odd) == ""
