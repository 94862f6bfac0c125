"""The named fields of requests and answers (docs/internals/protocol.md#commands)."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from ordermq.errors import ProtocolError
from ordermq.remoting import headers, rare_headers
from ordermq.remoting.headers import (
    Header,
    LockExtHeader,
    PullHeader,
    PullReplyHeader,
    RouteHeader,
    SendHeader,
    UpdateOffsetHeader,
)
from ordermq.remoting.rare_headers import LongSendHeader

CLASSES = [
    kind
    for home in (headers, rare_headers)
    for _, kind in inspect.getmembers(home, inspect.isclass)
    if issubclass(kind, Header) and kind is not Header and kind.__module__ == home.__name__
]
SAMPLES = {"str": "text", "int": -7, "bool": True}


def filled(kind: type[Header]) -> Header:
    values = {
        part.name: SAMPLES[str(part.type).split(" ")[0]]
        for part in dataclasses.fields(kind)  # type: ignore[arg-type]
    }
    return kind(**values)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_comes_back_as_it_was_written(kind: type[Header]) -> None:
    header = filled(kind)
    ext = header.to_ext()
    assert len(ext) == len(dataclasses.fields(kind))  # type: ignore[arg-type]
    assert all(isinstance(value, str) for value in ext.values())
    assert kind.from_ext(ext) == header


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_required_field_that_is_missing_is_named(kind: type[Header]) -> None:
    ext = filled(kind).to_ext()
    plan = dataclasses.fields(kind)  # type: ignore[arg-type]
    for part in plan:
        wire = part.metadata.get("ext", part.name)
        without = {name: value for name, value in ext.items() if name != wire}
        if part.default is dataclasses.MISSING:
            with pytest.raises(ProtocolError, match=f"'{wire}' .* is missing"):
                kind.from_ext(without)
        else:
            assert getattr(kind.from_ext(without), part.name) == part.default


def test_a_send_is_encoded_with_single_letters() -> None:
    header = SendHeader("PG", "T", 3, born_timestamp_ms=5, properties="p", batch=True)
    assert header.to_ext() == {
        "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "5", "h": "0",
        "i": "p", "j": "0", "m": "true",
    }  # fmt: skip


def test_the_long_send_header_holds_the_same_as_the_short_one() -> None:
    long = LongSendHeader("PG", "T", 3, reconsume_times=2, max_reconsume_times=5)
    assert long.short() == SendHeader("PG", "T", 3, reconsume_times=2, max_reconsume_times=5)


def test_an_invalid_number_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"'minOffset' .* is 'x', not a number"):
        PullReplyHeader.from_ext({"nextBeginOffset": "1", "minOffset": "x", "maxOffset": "3"})


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_000", "0x1", "1.0", "9" * 20, "9" * 5000])
def test_a_number_is_whatever_java_parses_as_a_long(text: str) -> None:
    with pytest.raises(ProtocolError):
        PullReplyHeader.from_ext({"nextBeginOffset": text, "minOffset": "0", "maxOffset": "3"})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False)]
)
def test_a_boolean_is_true_only_by_its_name(text: str, value: bool) -> None:
    header = RouteHeader.from_ext({"topic": "T", "acceptStandardJsonOnly": text})
    assert header.accept_standard_json is value


def test_unknown_fields_and_empty_numbers_are_ignored() -> None:
    ext = PullHeader("G", "T", 0, 5, 32, 2).to_ext() | {"ReqT": "0", "maxMsgBytes": ""}
    assert PullHeader.from_ext(ext) == PullHeader("G", "T", 0, 5, 32, 2)


def test_an_unconditional_commit_has_no_extension_fields() -> None:
    assert not [name for name in UpdateOffsetHeader("G", "T", 0, 5).to_ext() if "omq" in name]


def test_epochs_are_numbers_joined_by_commas() -> None:
    assert LockExtHeader(epochs="1,22,3").epoch_list() == [1, 22, 3]
    assert LockExtHeader().epoch_list() == []
    with pytest.raises(ProtocolError, match="'1,x'"):
        LockExtHeader(epochs="1,x").epoch_list()
