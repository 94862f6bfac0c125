"""The text form of properties (docs/internals/protocol.md#stored-message, V8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ConfigError, ProtocolError
from ordermq.model.properties import decode, decode_bytes, encode

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


def test_the_list_of_v8_is_read_as_java_reads_it() -> None:
    text = "a\x01\x02bc\x01d\x02\x01x\x02k\x01v"
    assert decode(text) == {"bc": "d", "k": "v"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("\x02\x02", {}),
        ("a", {}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
    ],
)
def test_properties_without_a_name_or_a_value_are_dropped(text: str, found: dict[str, str]) -> None:
    assert decode(text) == found


@given(st.dictionaries(TEXT, TEXT))
def test_what_is_written_is_read_back_in_order(properties: dict[str, str]) -> None:
    text = encode(properties)
    assert list(decode(text).items()) == list(properties.items())
    assert decode_bytes(text.encode()) == properties


def test_empty_values_are_not_written() -> None:
    assert encode({"a": "", "b": "c"}) == "b\x01c\x02"


@pytest.mark.parametrize(
    "properties", [{"": "v"}, {"a\x01": "v"}, {"a": "v\x02"}, {"a": "\x01"}, {"a": "\ud800"}]
)
def test_a_separator_in_a_name_or_value_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        encode(properties)


@pytest.mark.parametrize("properties", [{"a": 1}, {1: "a"}, {"a": b"x"}])
def test_a_property_that_is_not_a_str_is_refused_with_its_name(
    properties: dict[object, object],
) -> None:
    with pytest.raises(ConfigError, match="property"):
        encode(properties)  # type: ignore[arg-type]


def test_stored_properties_that_are_not_utf_8_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_bytes(b"a\x01\xff\x02")
