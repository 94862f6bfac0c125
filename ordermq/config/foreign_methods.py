"""ExplainsMethods: the AttributeError of a client that is asked for another client's method."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar


class ExplainsMethods:
    """Base of clients and Admin: an error names what to call instead of another client's method."""

    _kind: ClassVar[str]  # "consumer", "producer" or "admin"

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __getattr__(self, name: str) -> object:
            # Only for a name that is not there, or for a property that raises AttributeError: the
            # second look raises what Python said, with its own proposal of a name.
            if not name.startswith("_") and not hasattr(type(self), name):
                from ordermq.config.foreign_names import find_foreign_method

                found = find_foreign_method(self._kind, name)
                if found is not None:
                    owner = type(self)
                    # Without `name=`, by which Python would add the most similar name of ours.
                    raise AttributeError(
                        f"{owner.__name__!r} object has no attribute {name!r}"
                        f"{found.explained(owner)}"
                    )
            return object.__getattribute__(self, name)
