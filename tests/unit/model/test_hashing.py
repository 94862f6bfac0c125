"""Java's hashes (protocol V9, docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

from enum import Enum, IntEnum

import pytest

from ordermq.errors import ConfigError
from ordermq.model.hashing import key_hash, key_text, long_hash, string_hash

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("订单", 1_129_459),
        ("😀x", 54_959_989),
        ("polygenelubricants", -2_147_483_648),
        ("order-1", -1_207_111_310),
        ("\U0001f600", 1_772_899),
        ("订单-7", 1_085_411_549),
    ],
)
def test_a_text_is_hashed_as_java_does_over_utf_16(text: str, value: int) -> None:
    assert string_hash(text) == value == key_hash(text)


@pytest.mark.parametrize(
    ("number", "value"),
    [(0, 0), (5, 5), (-5, 4), (-1, 0), (1 << 32, 1), (INT_MAX, INT_MAX), (INT_MIN, INT_MAX)],
)
def test_a_long_is_folded_in_halves(number: int, value: int) -> None:
    assert long_hash(number) == value


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (-5, -5),
        (INT_MIN, INT_MIN),
        (INT_MAX, INT_MAX),
        (INT_MAX + 1, INT_MIN),
        (INT_MIN - 1, INT_MIN),
        ((1 << 63) - 1, INT_MIN),
        (-(1 << 63), INT_MIN),
    ],
)
def test_a_key_within_32_bits_is_an_integer_and_a_wider_one_a_long(number: int, value: int) -> None:
    assert key_hash(number) == value


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 2**200])
def test_a_number_over_64_bits_has_no_hash(number: int) -> None:
    with pytest.raises(ConfigError, match="does not fit into the 64 bits of Java's long"):
        key_hash(number)


def test_a_boolean_key_is_a_boolean_not_a_number() -> None:
    assert (key_hash(True), key_hash(False)) == (1231, 1237)


def test_a_string_that_is_not_utf_8_has_no_hash() -> None:
    with pytest.raises(ConfigError, match="cannot be encoded as UTF-8"):
        string_hash("\ud83d")


@pytest.mark.parametrize("key", [None, ["k"], b"k", 1.5])
def test_a_key_must_be_a_str_or_an_int(key: object) -> None:
    with pytest.raises(ConfigError, match=r"sharding key .*: expected a str or an int"):
        key_hash(key)  # type: ignore[arg-type]


class Customer(str, Enum):  # noqa: UP042 - what is meant: formatted, it is its name
    """Keys as members of an Enum; numpy's texts are a subclass of str, too."""

    FIRST = "c-1"


class Number(int, Enum):
    """Numbers as keys."""

    FIRST = 7


class Year(IntEnum):
    """Numbers that are formatted as such."""

    NOW = 1 << 40


@pytest.mark.parametrize(
    ("key", "plain"), [(Customer.FIRST, "c-1"), (Number.FIRST, 7), (Year.NOW, 1 << 40)]
)
def test_a_key_of_an_enum_is_its_value(key: str | int, plain: str | int) -> None:
    assert key == plain
    assert key_hash(key) == key_hash(plain)
    assert type(key_text(key)) is str
    assert key_text(key) == key_text(plain) == str(plain)


def test_a_key_of_another_type_has_the_text_that_python_gives_it() -> None:
    assert (key_text(True), key_text(-3), key_text("\U0001f600")) == ("True", "-3", "\U0001f600")
