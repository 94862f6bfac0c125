"""Trace records, byte for byte as Java's encoder writes them (tests/vectors/trace)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import pytest

from ordermq.errors import ProtocolError
from ordermq.remoting.trace import (
    DELAYED,
    NORMAL,
    ConsumeBegun,
    ConsumedCall,
    ConsumeEnded,
    EncodedRecord,
    Published,
    PublishedBatch,
    TraceRecord,
    keys_of,
    read,
)

AT_MS = 1_700_000_000_000
REGION, HOST = "DefaultRegion", "10.0.0.1:10911"
JAVAS: list[TraceRecord] = [
    Published(
        AT_MS, REGION, "g", "orders", "id-1", "paid", "o-17 all", HOST, 5, 12, NORMAL, "0A000001",
        True,
    ),
    Published(AT_MS, REGION, "g", "orders", "id-2", None, None, HOST, 5, 12, DELAYED, None, False),
    ConsumeBegun(AT_MS, REGION, "g", "request-1", "id-1", 2, "o-17"),
    ConsumeBegun(AT_MS, REGION, "g", "request-1", "id-2", 2, None),
    ConsumeEnded("request-1", "id-1", 12, False, "订单", 4, AT_MS, "g"),
]  # fmt: skip


def text_of(record: TraceRecord) -> str:
    """Write a record field by field, as Java does."""
    values = [record.word, *astuple(record)]
    words = {True: "true", False: "false", None: "null"}
    return (
        "\x01".join(
            words[value] if value is None or type(value) is bool else str(value) for value in values
        )
        + "\x02"
    )


def test_records_are_written_and_read_as_java_does(vector: Callable[[str], bytes]) -> None:
    text = vector("trace/records").decode()
    assert "".join(map(text_of, JAVAS)) == text
    assert read(text) == JAVAS


def encoded(record: TraceRecord) -> EncodedRecord:
    return EncodedRecord(text_of(record), record.message_id, record.keys)


def test_records_of_a_call_are_written_as_one_by_one() -> None:
    call = ConsumedCall("g", "request-1", AT_MS)
    begun = [record for record in JAVAS if isinstance(record, ConsumeBegun)]
    found = [call.begun(r.region, r.message_id, r.retry_times, r.keys) for r in begun]
    assert found == [encoded(record) for record in begun]
    for is_success, code in (True, 0), (False, 4):
        assert call.ended(found, 12, is_success, code, AT_MS) == [
            encoded(
                ConsumeEnded("request-1", r.message_id, 12, is_success, r.keys, code, AT_MS, "g")
            )
            for r in begun
        ]


def test_records_of_a_request_are_written_as_one_by_one() -> None:
    for record in JAVAS[:2]:
        assert isinstance(record, Published)
        batch = PublishedBatch(
            record.region, record.group, record.topic, record.store_host, record.is_success
        )
        found = batch.record(
            record.at_ms, record.cost_ms, record.kind, record.message_id, record.tags, record.keys,
            record.body_length, record.offset_message_id or "null",
        )  # fmt: skip
        assert found == encoded(record)


def test_a_newer_clients_record_with_its_host_is_read() -> None:
    text = text_of(JAVAS[0])
    assert read(text[:-1] + "\x0110.0.0.9\x02") == JAVAS[:1]


def test_records_of_kinds_we_do_not_read_are_left_out() -> None:
    assert read("Recall\x011\x02" + text_of(JAVAS[2])) == JAVAS[2:3]
    assert read("") == []


@pytest.mark.parametrize("text", ["Pub\x011\x02", "SubBefore\x01x\x01\x01\x01\x01\x011\x01\x02"])
def test_a_truncated_record_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="is truncated or malformed"):
        read(text)


def test_a_trace_is_found_by_ids_and_keys_each_once() -> None:
    assert keys_of([encoded(record) for record in JAVAS]) == ["id-1", "o-17", "all", "id-2", "订单"]
