"""Names of a package that are imported when they are first used, and libraries of extras."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package (PEP 562).

    Args:
        homes: the names by the module of the package that has them.
        modules: modules of the package that are found without an import, too.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    found_at_once = frozenset(modules)

    def get(name: str) -> object:
        if name in found_at_once:
            return _imported(f"{package}.{name}")
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_meant(name)}")
        found: object = getattr(_imported(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, found)  # from now on it is found without this function
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *found_at_once})

    return get, names


def _meant(name: str) -> str:
    # Classes alone: `from ordermq import json_text` asks for a module here before it is loaded.
    if not name[:1].isupper():
        return ""
    from ordermq.config.foreign_names import FOREIGN_CLASSES  # only for a mistake

    found = FOREIGN_CLASSES.get(name)
    return f": that is a class of another client; here ordermq.{found}" if found else ""


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except AttributeError as error:
        # Python would tell it as a name that the package does not have.
        raise ImportError(
            f"{module}: {error}. Are files of two versions of ordermq mixed? Install it again; in "
            "a checkout build it again: pip install --editable .",
            name=module,
        ) from error


@contextmanager
def needed_from(extra: str) -> Iterator[None]:
    """Name the extra to install, where a library that is imported within is not there.

    Raises: ModuleNotFoundError: of the same module, with that command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: run pip install 'ordermq[{extra}]'", name=error.name, path=error.path
        ) from error
