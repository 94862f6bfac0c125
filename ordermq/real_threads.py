"""Real threads and sockets: where a program has replaced Python's, no client can work.

The I/O thread, and the threads that wait for it, must run at the same time. In a program that
gevent or eventlet has patched they are green threads of one thread: `start` would wait for ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ordermq.errors import StateError

_GEVENT = ("thread", "threading", "socket", "select", "selectors", "queue")
_EVENTLET = ("thread", "socket", "select")
_GEVENT_REMEDY = (
    "gevent.monkey.patch_all(thread=False, socket=False, select=False, queue=False), and call "
    "ordermq from gevent's thread pool (gevent.get_hub().threadpool.apply) where other greenlets "
    "must run meanwhile"
)
_EVENTLET_REMEDY = (
    "eventlet.monkey_patch(thread=False, socket=False, select=False), and call ordermq by "
    "eventlet.tpool.execute where other green threads must run meanwhile"
)


def _is_subinterpreter() -> bool:
    for module in ("_interpreters", "_xxsubinterpreters"):  # the first one from Python 3.13 on
        try:
            interpreters: Any = importlib.import_module(module)
        except ImportError:  # PyPy has neither
            continue
        return _number(interpreters.get_current()) != _number(interpreters.get_main())
    return False


def _number(interpreter: Any) -> int:
    # From 3.13 on a tuple of its id and where it comes from.
    return int(interpreter[0] if isinstance(interpreter, tuple) else interpreter)


_IN_SUBINTERPRETER = _is_subinterpreter()


def require_real_threads(kind: str) -> None:
    """Raise StateError if this program has replaced threads or sockets.

    Args: kind: the class that is being made, for the text.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None:
        _require_none("gevent", kind, gevent.is_module_patched, _GEVENT, _GEVENT_REMEDY)
    if eventlet is not None:
        _require_none("eventlet", kind, eventlet.is_monkey_patched, _EVENTLET, _EVENTLET_REMEDY)
    if _IN_SUBINTERPRETER:
        raise StateError(
            f"{kind} in a subinterpreter: ordermq needs threads that outlive a call, and its "
            "native core is loaded once per process; use it in the main interpreter (mod_wsgi: "
            "WSGIApplicationGroup %{GLOBAL}), or in a process of its own"
        )


def _require_none(
    library: str,
    kind: str,
    is_patched: Callable[[str], bool],
    modules: tuple[str, ...],
    remedy: str,
) -> None:
    patched = [module for module in modules if is_patched(module)]
    if patched:
        raise StateError(
            f"{kind}: {library} has patched {', '.join(patched)}, and ordermq needs real threads "
            f"and sockets: its calls would wait for ever. Patch without them: {remedy}"
        )
