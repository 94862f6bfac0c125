"""Recall handles as RocketMQ 5.3.3 makes them (RecallMessageHandle)."""

from __future__ import annotations

import pytest

from ordermq.errors import ConfigError
from ordermq.model.recall_handle import RecallHandle

HANDLE = RecallHandle("T_orders", "broker-a", 1_700_000_000_001, "7F0000010001")
TEXT = "djEgVF9vcmRlcnMgYnJva2VyLWEgMTcwMDAwMDAwMDAwMSA3RjAwMDAwMTAwMDE="


def test_a_handle_is_written_and_read_as_java_does() -> None:
    assert HANDLE.to_text() == TEXT
    assert RecallHandle.of_text(TEXT) == HANDLE


@pytest.mark.parametrize("text", ["", "djE=", "djIgYSBiIDEgYw==", "ü", "djEgYSBiIHggYw==", "!!!!"])
def test_an_invalid_handle_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="recall handle"):
        RecallHandle.of_text(text)
