"""Values are compared, hashed and shown as dataclasses are that make these methods themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ordermq.value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Account(Value):
    name: str
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Other(Value):
    name: str
    secret: str = field(default="", repr=False)


def made_by_dataclass() -> type:
    @dataclass(frozen=True, slots=True)
    class Account:
        name: str
        secret: str = field(default="", repr=False)

    Account.__qualname__ = "Account"
    return Account


def test_a_value_is_shown_as_a_dataclass_is_without_its_secrets() -> None:
    assert repr(Account("shop", "key")) == repr(made_by_dataclass()("shop", "key"))
    assert repr(Account("shop", "key")) == "Account(name='shop')"


def test_values_are_equal_by_all_fields_and_within_one_class() -> None:
    assert Account("shop", "key") == Account("shop", "key")
    assert Account("shop", "key") != Account("shop", "other")
    assert Account("shop") != Other("shop")
    assert Account("shop") != "shop"


def test_equal_values_have_one_hash() -> None:
    assert len({Account("shop", "key"), Account("shop", "key"), Account("shop")}) == 2
    assert hash(Account("shop", "key")) == hash(made_by_dataclass()("shop", "key"))


def test_a_value_with_a_list_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Account(["shop"]))  # type: ignore[arg-type]
