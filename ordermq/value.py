"""The base of settings and other values that are frozen dataclasses."""

from __future__ import annotations

from dataclasses import fields


class Value:
    """Base of frozen dataclasses: they are compared, hashed and shown by their fields."""

    __slots__ = ()

    # Here, and not made for each class: that was nearly half of the time to import it.
    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = [each.name for each in fields(self) if each.repr]  # type: ignore[arg-type]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__name__}({values})"

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]
