"""Trace records, byte for byte as Java's encoder writes them (tests/vectors/trace)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordermq.errors import ProtocolError
from ordermq.remoting.trace import (
    DELAYED,
    NORMAL,
    ConsumeBegun,
    ConsumeEnded,
    Published,
    TraceRecord,
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


def test_records_are_written_and_read_as_java_does(vector: Callable[[str], bytes]) -> None:
    text = vector("trace/records").decode()
    assert "".join(record.to_text() for record in JAVAS) == text
    assert read(text) == JAVAS


def test_a_newer_clients_record_with_its_host_is_read() -> None:
    text = JAVAS[0].to_text()
    assert read(text[:-1] + "\x0110.0.0.9\x02") == JAVAS[:1]


def test_records_of_kinds_we_do_not_read_are_left_out() -> None:
    assert read("Recall\x011\x02" + JAVAS[2].to_text()) == JAVAS[2:3]
    assert read("") == []


@pytest.mark.parametrize("text", ["Pub\x011\x02", "SubBefore\x01x\x01\x01\x01\x01\x011\x01\x02"])
def test_a_truncated_record_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="is truncated or malformed"):
        read(text)
