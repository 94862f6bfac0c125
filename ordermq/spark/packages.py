"""The packages that the bridge needs on the driver and on each executor, besides PySpark.

Each of these Pythons may lack one: an environment that was packed by hand, an image of a worker.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ordermq.errors import ConfigError

_ALWAYS: Final = ("numpy", "pyarrow")
# Each only where it is used: pandas costs a process a second, and its absence many nothing.
_SOMETIMES: Final = frozenset({"pandas", "pyspark", *_ALWAYS})


def require_packages(*more: str) -> None:
    """Refuse a Python without what every part of the bridge imports, before it is imported.

    Args: more: packages that are needed, too.
    Raises: ConfigError: names all that are missing, the Python, and what to install.
    """
    if missing := [name for name in (*_ALWAYS, *more) if _is_missing(name)]:
        raise _error(missing)


@contextmanager
def needed_here() -> Iterator[None]:
    """Say what to install, and where, if a package that is imported within is not there.

    Raises: ConfigError: as by `require_packages`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # A part that an older version lacks is another matter.
        if package not in _SOMETIMES or not _is_missing(package):
            raise
        raise _error([package]) from error


def _is_missing(package: str) -> bool:
    return package not in sys.modules and importlib.util.find_spec(package) is None


def _error(missing: Sequence[str]) -> ConfigError:
    names, verb = " and ".join(missing), "is" if len(missing) == 1 else "are"
    return ConfigError(
        f"{names} {verb} missing in {sys.executable} on {platform.node()}: run pip install "
        "'ordermq[spark]' with it. The driver and each executor need the same packages; where "
        "Spark runs another Python than you meant, set PYSPARK_PYTHON"
    )
