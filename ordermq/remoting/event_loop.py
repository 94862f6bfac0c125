"""Which event loop carries the connections: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Final

from ordermq.errors import ConfigError

_VARIABLE: Final = "ORDERMQ_EVENT_LOOP"
_CHOICES: Final = ("asyncio", "uvloop")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make a loop; `ORDERMQ_EVENT_LOOP=asyncio|uvloop` forces which.

    uvloop takes a fifth off a consumer's CPU (docs/benchmarks.md): pip install ordermq[uvloop].

    Raises: ConfigError: the variable names neither, or uvloop and it cannot be loaded.
    """
    forced = os.environ.get(_VARIABLE)
    if forced and forced not in _CHOICES:
        raise ConfigError(f"{_VARIABLE}={forced!r}: expected {' or '.join(_CHOICES)}")
    if forced == "asyncio":
        return asyncio.new_event_loop()
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError as error:
        if forced:
            raise ConfigError(
                f"{_VARIABLE}=uvloop: {error}; install it with pip install ordermq[uvloop], or "
                "unset the variable for asyncio's own loop"
            ) from error
        return asyncio.new_event_loop()
    return loop
