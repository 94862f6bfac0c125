"""User functions: asynchronous ones are awaited where that is possible, and refused elsewhere."""

from __future__ import annotations

import functools
import inspect
from typing import TypeVar

from ordermq.errors import ConfigError

_T = TypeVar("_T")


def is_async(function: object) -> bool:
    """Return True if a call gives a coroutine: `async def`, a partial of one, or an object whose
    `__call__` is one.
    """
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - its kind, not its existence
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def require_plain(kind: str, *functions: object) -> None:
    """Check that functions that are called and not awaited are no `async def`.

    Raises: ConfigError: one is.
    """
    for function in functions:
        if is_async(function):
            raise refused_async(kind, function)


def require_functions(kind: str, *functions: object) -> None:
    """Check that these are functions, and none an `async def`.

    Raises: ConfigError: one is not.
    """
    for function in functions:
        if not callable(function):
            raise ConfigError(f"{kind}={function!r}: expected a function")
    require_plain(kind, *functions)


def require_callback(kind: str, function: object) -> None:
    """Check that this is a function, plain or `async def`, or None.

    Raises: ConfigError: it is not.
    """
    if function is not None and not callable(function):
        raise ConfigError(f"{kind}={function!r}: expected a function")


def require_methods(
    kind: str, given: object, *names: str, expected: str = "", group: str | None = None
) -> list[object]:
    """Return these methods of an object of the user.

    Args: expected: what the error says to give, if its class has no better name than its methods.
    Raises: ConfigError: it has not all of them, or is a class and no object of it.
    """
    methods = [getattr(given, name, None) for name in names]
    if isinstance(given, type) or not all(map(callable, methods)):
        told = expected or f"an object with {', '.join(f'{name}()' for name in names)}"
        raise ConfigError(f"{kind}={given!r}: expected {told}", group=group)
    return methods


def require_plain_result(kind: str, function: object, returned: _T) -> _T:
    """Return what a function returned; a lambda may have called an `async def`.

    Raises: ConfigError: that is to be awaited.
    """
    if returned is not None and type(returned) is not bool and inspect.isawaitable(returned):
        raise refused_async(kind, function, returned)
    return returned


def refused_async(kind: str, function: object, returned: object = None) -> ConfigError:
    """Return the error of an asynchronous function where a plain one is called."""
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns that it was never awaited
    return ConfigError(f"{kind} {function!r} is asynchronous: expected a plain function")
