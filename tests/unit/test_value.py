"""Records are created, compared, hashed and shown as dataclasses are that make these methods
themselves.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field

import pytest

from ordermq.value import Record, Value


class Account(Value):
    name: str
    secret: str = field(default="", repr=False)
    groups: list[str] = field(default_factory=list)


class Other(Value):
    name: str
    secret: str = field(default="", repr=False)
    groups: list[str] = field(default_factory=list)


class Named(Account, kw_only=True):
    port: int
    host: str = "here"

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ValueError(f"port {self.port}")


class Counts(Record):
    done: int
    failed: int = 0


def made_by_dataclass() -> type:
    @dataclass(frozen=True, slots=True)
    class Account:
        name: str
        secret: str = field(default="", repr=False)
        groups: list[str] = field(default_factory=list)

    Account.__qualname__ = "Account"
    return Account


def test_a_value_is_shown_as_a_dataclass_is_without_its_secrets() -> None:
    assert repr(Account("shop", "key")) == repr(made_by_dataclass()("shop", "key"))
    assert repr(Account("shop", "key")) == "Account(name='shop', groups=[])"


def test_values_are_equal_by_all_fields_and_within_one_class() -> None:
    assert Account("shop", "key") == Account("shop", "key")
    assert Account("shop", "key") != Account("shop", "other")
    assert Account("shop") != Other("shop")
    assert Account("shop") != "shop"


def test_equal_values_have_one_hash() -> None:
    keys = [("shop", "key", ()), ("shop", "key", ()), ("shop", "", ())]
    assert len({Account(*key) for key in keys}) == 2  # type: ignore[arg-type]
    assert hash(Account(*keys[0])) == hash(made_by_dataclass()(*keys[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [Account("shop", groups=["a"]), Counts(1)])
def test_what_may_change_has_no_hash(record: object) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(record)


def test_fields_are_given_by_place_or_by_name_and_have_defaults_of_their_own() -> None:
    assert Account("shop", "key") == Account(secret="key", name="shop", groups=[])
    assert Account("shop").groups is not Account("shop").groups
    named = Named("shop", port=1)
    assert (named.name, named.secret, named.groups, named.port, named.host) == (
        "shop", "", [], 1, "here",
    )  # fmt: skip
    with pytest.raises(ValueError, match="port -1"):
        Named("shop", port=-1)


@pytest.mark.parametrize(
    ("given", "named", "wrong"),
    [
        ((), {}, r"missing required arguments: 'name', 'port'"),
        ((), {"name": "shop"}, r"missing required arguments: 'port'"),
        (("shop",), {"port": 1, "hots": "x"}, r"unexpected keyword argument 'hots'"),
        (("shop",), {"port": 1, "name": "shop"}, r"multiple values for argument 'name'"),
        # As many names as fields, one of which is none.
        (
            ("shop",),
            {"secret": "", "groups": [], "host": "", "prot": 1},
            r"unexpected keyword argument 'prot'",
        ),
        (("shop", "key", [], 1), {"port": 1}, r"takes 3 positional arguments but 4 were given"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    given: tuple[object, ...], named: dict[str, object], wrong: str
) -> None:
    with pytest.raises(TypeError, match=rf"Named\(\).* {wrong}"):
        Named(*given, **named)  # type: ignore[arg-type]


def test_a_value_does_not_change_and_a_record_does() -> None:
    account = Account("shop")
    with pytest.raises(dataclasses.FrozenInstanceError, match="'name'"):
        account.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'nmae'"):
        account.nmae = "other"  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'name'"):
        del account.name
    counts = Counts(1)
    counts.done += 1
    assert counts == Counts(2)


def test_records_are_dataclasses_to_those_who_ask() -> None:
    named = Named("shop", port=1)
    assert dataclasses.is_dataclass(Named)
    assert dataclasses.asdict(named) == {
        "name": "shop", "secret": "", "groups": [], "port": 1, "host": "here",
    }  # fmt: skip
    assert dataclasses.replace(named, port=2) == Named("shop", port=2)
    assert copy.deepcopy(named) == named
    assert pickle.loads(pickle.dumps(named)) == named


def test_the_signature_names_the_fields() -> None:
    signature = inspect.signature(Named)
    assert list(signature.parameters) == ["name", "secret", "groups", "port", "host"]
    assert signature.bind("shop", port=1)
    with pytest.raises(TypeError):
        signature.bind("shop", "key", [], 1)
