"""Event loop of the connections: uvloop if it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from typing import Final

from ordermq.errors import ConfigError
from ordermq.remoting.connecting import taking_descriptors
from ordermq.standard_descriptors import fill_standard_descriptors

_VARIABLE: Final = "ORDERMQ_EVENT_LOOP"
_CHOICES: Final = ("asyncio", "uvloop")
_DESCRIPTORS: Final = 8  # of the first loop of uvloop; asyncio's has three


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create a loop; `ORDERMQ_EVENT_LOOP=asyncio|uvloop` forces the kind.

    uvloop saves a fifth of a consumer's CPU time (docs/benchmarks.md):
    pip install 'ordermq[uvloop]'.

    Raises:
        ConfigError: the variable has another value, or uvloop cannot be imported.
        ConnectFailed: this process has no descriptor left for it.
    """
    forced = os.environ.get(_VARIABLE)
    if forced and forced not in _CHOICES:
        raise ConfigError(f"{_VARIABLE}={forced!r}: expected {' or '.join(_CHOICES)}")
    with taking_descriptors("cannot start an event loop"):
        fill_standard_descriptors()
        # Tried first: uvloop aborts a process that has too few.
        with contextlib.ExitStack() as opened:
            for _ in range(_DESCRIPTORS):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        return _loop_of_kind(forced)


def _loop_of_kind(forced: str | None) -> asyncio.AbstractEventLoop:
    if forced == "asyncio":
        return asyncio.new_event_loop()
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError as error:
        # Silently only if nobody asked: a forced loop that is missing must not be replaced.
        if forced:
            raise ConfigError(
                f"{_VARIABLE}=uvloop: {error}; install it with pip install 'ordermq[uvloop]', "
                "or unset the variable for asyncio's own loop"
            ) from error
        return asyncio.new_event_loop()
    return loop
