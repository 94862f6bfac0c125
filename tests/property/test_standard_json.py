"""JSON by the standard library is JSON by orjson: the same values, the same refusals."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ordermq import json_text, standard_json


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Place(NamedTuple):
    x: int


@dataclasses.dataclass
class Order:
    number: str
    parts: list[Any]
    _hidden: int = 3


class Text(str):
    __slots__ = ()


def _may_be_key(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    # One may write with an exponent what the other writes without: the same number, but two texts.
    return not (isinstance(value, float) and "e" in repr(value))


times = st.datetimes() | st.datetimes(timezones=st.just(timezone(timedelta(hours=2))))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=5)
    | st.sampled_from([
        Colour.RED, Number.ONE, Place(1), Decimal("1.5"), b"x", {1}, Text("t"), object,
        UUID(int=5), date(2026, 1, 2), time(1, 2, 3), time(1, tzinfo=UTC),
    ])
    | times
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | leaves.filter(_may_be_key), inner, max_size=3)
        | st.builds(Order, st.text(max_size=3), st.lists(inner, max_size=2))
    ),
    max_leaves=8,
)


def outcome(dumps: Any, loads: Any, value: object, **options: Any) -> object:
    try:
        return loads(dumps(value, **options))
    except TypeError:
        return TypeError


def read(loads: Any, text: bytes) -> object:
    try:
        return repr(loads(text))
    except json.JSONDecodeError:
        return json.JSONDecodeError


@given(values, st.sampled_from([0, 1]), st.booleans())
@example({Text("a"): 1}, 0, False)
@example({Colour.RED: 1, Number.ONE: 2, None: 3, 1.5: 4, True: 5}, 1, True)
@example(float("nan"), 0, False)
def test_both_write_the_same_or_refuse(value: object, indent: int, has_other_keys: bool) -> None:
    theirs = orjson.OPT_INDENT_2 * indent | orjson.OPT_NON_STR_KEYS * has_other_keys
    own = standard_json.OPT_INDENT_2 * indent | standard_json.OPT_NON_STR_KEYS * has_other_keys
    expected = outcome(orjson.dumps, orjson.loads, value, option=theirs)
    assert outcome(standard_json.dumps, orjson.loads, value, option=own) == expected
    with_default = outcome(orjson.dumps, orjson.loads, value, option=theirs, default=str)
    assert (
        outcome(standard_json.dumps, orjson.loads, value, option=own, default=str) == with_default
    )


def _has_no_float(value: object) -> bool:
    return not any(mark in repr(value) for mark in (".", "e+", "e-"))


@given(values.filter(_has_no_float))
def test_what_has_no_fractions_is_written_in_the_same_bytes(value: object) -> None:
    try:
        expected = orjson.dumps(value)
    except TypeError:
        return
    assert standard_json.dumps(value) == expected
    assert standard_json.dumps(value, option=standard_json.OPT_INDENT_2) == orjson.dumps(
        value, option=orjson.OPT_INDENT_2
    )


json_like = st.text(st.sampled_from('{}[]",:\\/ \n\t0123456789.eE+-truefalsnNIyudDc8é\ufeff\x01'))


@given(
    st.binary(max_size=20)
    | json_like.map(str.encode)
    | values.map(lambda value: json.dumps(value, default=str, skipkeys=True).encode())
)
@example(b"")
@example(b'"\\ud800"')
@example(b'"\\ud83d\\ude00"')
@example(b"1e999")
@example(b"-0")
@example(b"9" * 400)
@example(b"18446744073709551616")
@example(b"[" * 100_000)
@example(b"NaN")
@example(b"\xef\xbb\xbf1")
@example(b'{"a":1,"a":2}')
@example(b'"\x01"')
@example(b"1_0")
def test_both_read_the_same_or_refuse(text: bytes) -> None:
    expected = read(orjson.loads, text)
    for given_text in (text, bytearray(text), memoryview(text)):
        assert read(standard_json.loads, given_text) == expected  # type: ignore[arg-type]


def test_where_orjson_is_missing_its_names_stand_for_the_standard_library() -> None:
    assert set(json_text.__all__) <= set(vars(standard_json))
    assert issubclass(orjson.JSONDecodeError, standard_json.JSONDecodeError)
    with pytest.raises(standard_json.JSONDecodeError, match="bytes, bytearray"):
        standard_json.loads(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("dumps", [orjson.dumps, standard_json.dumps])
def test_what_makes_other_values_may_raise(dumps: Any) -> None:
    def refuse(value: object) -> object:
        raise ValueError("none of mine")

    with pytest.raises(TypeError, match="Type is not JSON serializable: object") as raised:
        dumps([object()], default=refuse)
    assert isinstance(raised.value.__cause__, ValueError)


def test_what_refers_to_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="Recursion"):
        standard_json.dumps(endless)
    with pytest.raises(TypeError, match="serializable"):
        standard_json.dumps(object(), default=lambda value: value)
