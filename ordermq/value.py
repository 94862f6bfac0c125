"""Bases of classes that are defined by their fields: settings, headers and other plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform


# Above the classes: under `python -OO` no class has a docstring, and `dataclass` makes one of the
# signature at once.
def _is_named(each: Field[Any]) -> bool:
    return bool(each.kw_only)


def _parameter(each: Field[Any]) -> Parameter:
    place = Parameter.KEYWORD_ONLY if each.kw_only else Parameter.POSITIONAL_OR_KEYWORD
    default = each.default if each.default_factory is MISSING else each.default_factory
    if default is MISSING:
        default = Parameter.empty
    return Parameter(each.name, place, default=default, annotation=each.type)


class _Plan:
    """The arguments of a record's constructor."""

    def __init__(self, kind: type[_Fields]) -> None:
        every = fields(kind)
        self.names = frozenset(each.name for each in every)
        self.positional = tuple(each.name for each in every if not each.kw_only)
        self.defaults = {each.name: each.default for each in every if each.default is not MISSING}
        self.factories = tuple(
            (each.name, each.default_factory)
            for each in every
            if each.default_factory is not MISSING
        )


class _Signature:
    """The same for `help` and editors, which would see `*given, **named`."""

    def __get__(self, record: object, kind: type[_Fields]) -> Signature | None:
        if "__init__" in vars(kind):
            return None  # it has its own
        return Signature([_parameter(each) for each in sorted(fields(kind), key=_is_named)])


class _Fields:
    """Dataclasses without a decorator: a subclass lists its fields."""

    # The methods are made once, here. `dataclass` compiles them anew for each class, which was
    # more than a quarter of the time to import a consumer.

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __signature__: ClassVar = _Signature()

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(cls)

    def __init__(self, *given: Any, **named: Any) -> None:
        plan = _PLANS.get(type(self)) or _plan(type(self))
        values = vars(self)
        values.update(plan.defaults)
        values.update(zip(plan.positional, given, strict=False))
        values.update(named)
        for name, factory in plan.factories:
            if name not in values:
                values[name] = factory()
        if (
            values.keys() != plan.names
            or len(given) > len(plan.positional)
            or not named.keys().isdisjoint(plan.positional[: len(given)])
        ):
            _refuse(type(self), plan, given, named)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields; for subclasses."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(field_specifiers=(field,))
class Record(_Fields):
    """Base of records: they are created, compared and shown by their fields.

    `class Name(Record, kw_only=True)` has fields that are given by name only. A class whose
    objects are created for each message writes its own `__init__`, which is faster.
    """

    __hash__ = None  # type: ignore[assignment]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(_Fields):
    """Base of records that do not change, such as settings; they have a hash, too."""

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(record: _Fields) -> tuple[object, ...]:
    return tuple(getattr(record, each.name) for each in fields(record))


_PLANS: dict[type, _Plan] = {}


def _plan(kind: type[_Fields]) -> _Plan:
    _PLANS[kind] = plan = _Plan(kind)
    return plan


def _refuse(
    kind: type, plan: _Plan, given: Sequence[object], named: Mapping[str, object]
) -> NoReturn:
    """Raise TypeError, as a constructor does that Python itself checks."""
    by_place = plan.positional[: len(given)]
    optional = {*plan.defaults, *(name for name, _ in plan.factories)}
    if len(given) > len(plan.positional):
        wrong = f"takes {len(plan.positional)} positional arguments but {len(given)} were given"
    elif unknown := [name for name in named if name not in plan.names]:
        from ordermq.config.checks import meaning_of  # only for a mistake

        meant = meaning_of(unknown[0], plan.names)
        wrong = f"got an unexpected keyword argument {unknown[0]!r}{meant}"
    elif twice := [name for name in by_place if name in named]:
        wrong = f"got multiple values for argument {twice[0]!r}"
    else:
        missing = sorted(plan.names - optional - {*by_place, *named})
        wrong = f"missing required arguments: {', '.join(map(repr, missing))}"
    raise TypeError(f"{kind.__name__}() {wrong}")
