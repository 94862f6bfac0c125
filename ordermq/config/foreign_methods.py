"""ExplainsMethods: the AttributeError of a client that is asked for another client's method."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar


class ExplainsMethods:
    """Base of clients and Admin: an error names what to call instead of another client's method."""

    _kind: ClassVar[str]  # "consumer", "producer" or "admin"

    def _settings(self) -> frozenset[str]:
        """Return what its constructor takes besides its arguments."""
        config = vars(self).get("config")  # not there yet while the constructor runs
        return config.flat_names() if config is not None else frozenset()

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __getattr__(self, name: str) -> object:
            # Only for a name that is not there, or for a property that raises AttributeError: the
            # second look raises what Python said, with its own proposal of a name.
            if not name.startswith("_") and not hasattr(type(self), name):
                from ordermq.config.checks import arguments_of
                from ordermq.config.foreign_names import explained_attribute

                owner = type(self)
                settings = self._settings() | {*arguments_of(owner)}
                told = explained_attribute(owner, self._kind, name, dir(self), settings)
                if told:
                    # Without `name=`, by which Python would add the most similar name of ours.
                    raise AttributeError(
                        f"{owner.__name__!r} object has no attribute {name!r}{told}"
                    )
            return object.__getattribute__(self, name)
