"""Values of a type from JSON, and what is told of one that is not of it (docs/codecs.md)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest

from ordermq.errors import ConfigError
from ordermq.model.codec import JsonCodec
from ordermq.model.json_types import JsonMismatch


class Kind(enum.Enum):
    PLACED = "placed"


class Buyer(TypedDict):
    name: str
    note: NotRequired[str]


@dataclass
class Item:
    sku: str
    count: int = 1
    weight: float | None = None


@dataclass
class Order:
    number: str
    items: list[Item]
    buyer: Buyer
    kind: Kind = Kind.PLACED
    total: Decimal = Decimal(0)
    at: datetime | None = None
    parent: Order | None = None
    tags: set[str] = field(default_factory=set)
    place: tuple[int, str] | None = None
    unit: Literal["kg", "g"] = "kg"
    more: dict[str, Any] = field(default_factory=dict)


FULL = Order(
    "o-1", [Item("a", 2, 0.5), Item("b")], {"name": "Ann"}, total=Decimal("1.10"),
    at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC), tags={"x"}, place=(3, "left"), more={"a": [1]},
    parent=Order("o-0", [], {"name": "Bob", "note": "!"}),
)  # fmt: skip


def test_a_value_comes_back_as_it_was() -> None:
    codec = JsonCodec(Order)
    assert codec.decode(codec.encode(FULL)) == FULL


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (int | None, b"null", None),
        (float, b"3", 3.0),
        (list[Item], b'[{"sku": "a"}]', [Item("a")]),
        (dict[str, Item], b'{"x": {"sku": "a"}}', {"x": Item("a")}),
        (tuple[int, ...], b"[1, 2]", (1, 2)),
        (date, b'"2026-01-02"', date(2026, 1, 2)),
        (UUID, b'"12345678123456781234567812345678"', UUID("12345678123456781234567812345678")),
        (Annotated[int, "cents"], b"7", 7),
        (Item, b'{"sku": "a", "newer": true}', Item("a")),
        (Any, b'{"a": [1]}', {"a": [1]}),
    ],
)
def test_each_kind_of_type_is_made(kind: Any, body: bytes, value: Any) -> None:
    assert JsonCodec(kind).decode(body) == value


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (Item, b"[]", "$: expected an object of Item, got an array"),
        (Item, b"{}", "$.sku: missing in Item"),
        (Item, b'{"sku": "a", "count": true}', "$.count: expected an int, got a bool"),
        (Item, b'{"sku": "a", "count": 1.0}', "$.count: expected an int, got a float"),
        (list[Item], b'[{"sku": "a"}, {"sku": 1}]', "$[1].sku: expected a str, got an int"),
        (Item | None, b'{"sku": 1}', "$.sku: expected a str, got an int"),
        (int | str, b"[]", "$: expected int or str, got an array"),
        (Buyer, b'{"note": "x"}', "$.name: missing in Buyer"),
        (dict[str, int], b'{"a": "secret"}', "$.a: expected an int, got a str"),
        (tuple[int, str], b"[1]", "$: expected an array of 2, got an array"),
        (datetime, b'"secret"', "$: not a datetime"),
        (Kind, b'"secret"', "$: not a Kind"),
        (Literal["kg", "g"], b'"secret"', "$: expected one of 'kg', 'g'"),
    ],
)
def test_a_mismatch_tells_where_and_what_and_shows_no_value(
    kind: Any, body: bytes, told: str
) -> None:
    with pytest.raises(JsonMismatch) as caught:
        JsonCodec(kind).decode(body)
    assert str(caught.value) == told
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [complex, object(), list[bytes]])
def test_a_type_without_one_form_in_json_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="PydanticCodec has more types"):
        JsonCodec(kind)


def test_a_codec_is_shown_with_its_type() -> None:
    assert [repr(each) for each in (JsonCodec(), JsonCodec(Item), JsonCodec(list[int]))] == [
        "JsonCodec()", "JsonCodec(Item)", "JsonCodec(list[int])"
    ]  # fmt: skip
