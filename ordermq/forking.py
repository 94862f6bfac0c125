"""Objects that belong to the process that made them, and what happens to them at a fork.

A fork copies memory and file descriptors, and of all threads only the one that forks. The copies
of a producer or consumer have no I/O thread behind them, but they share the parent's sockets: a
send in the child would go out on the parent's connection, and the parent would read its answer.

So every object that holds threads, sockets or files is a `ProcessBound`. In a forked child the
methods of its copy raise `UsedAfterFork`, its `close` does nothing, and nothing of it is ever
finalized. Whoever needs one in the child makes one there. Until a fork all this costs nothing:
no call asks for the process it runs in.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NoReturn, Self, TypeVar

from ordermq.errors import UsedAfterFork
from ordermq.real_threads import require_real_threads
from ordermq.threads import Lock


class ProcessBound:
    """Base of classes whose objects a forked child must not use."""

    _is_inherited = False  # True in a forked child

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        closes = [vars(each)["close"] for each in cls.__mro__ if "close" in vars(each)]
        if "close" in vars(cls) and isinstance(closes[0], FunctionType):
            # One that overrides an `async def` returns a coroutine, too.
            is_awaited = any(inspect.iscoroutinefunction(inspect.unwrap(each)) for each in closes)
            cls.close = _unless_inherited(closes[0], is_awaited)  # type: ignore[attr-defined]

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        require_real_threads(cls.__name__)
        made = super().__new__(cls)
        _bound.add(made)
        return made

    def __reduce__(self) -> NoReturn:
        # Otherwise pickle names whichever lock or function within it comes first.
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: it belongs to process {os.getpid()}; "
            "create one in the process that uses it"
        )

    # At a fork; also of an object whose `__init__` has raised, or is being run by another thread.

    def _before_fork(self) -> None:
        """Come to rest: a fork follows, on this thread; by default nothing."""

    def _after_fork_in_parent(self) -> None:
        """Go on after `_before_fork`; by default nothing."""

    def _leave_to_parent(self) -> None:
        """Let go, in the child, of what the child must not hold; by default nothing."""


_bound: weakref.WeakSet[ProcessBound] = weakref.WeakSet()
_Bound = TypeVar("_Bound", bound=ProcessBound)
# Sockets and the like, by number: a child must not hold them open beyond the parent's close, or
# the peer would not notice the parent's end.
_descriptors: set[int] = set()
_pid = os.getpid()
_fork_turn = Lock()  # two forks at once would wait for each other's resting threads
_resting: list[ProcessBound] = []


def _unless_inherited(close: FunctionType, is_awaited: bool) -> Any:
    # In the class and not, as the other methods, in the object: `atexit.register(consumer.close)`
    # has the method already. What it calls raises, if it is not a `close`.
    @functools.wraps(close)
    def close_own(self: ProcessBound, *arguments: Any, **settings: Any) -> Any:
        if self._is_inherited:
            return _nothing() if is_awaited else None
        return close(self, *arguments, **settings)

    return close_own


async def _nothing() -> None:
    """Do nothing."""


def own(things: Iterable[_Bound]) -> list[_Bound]:
    """Return those that this process made, and not one that it was forked from."""
    return [thing for thing in things if not thing._is_inherited]


def keep_from_children(descriptor: int) -> None:
    """Replace this descriptor in forked children by one of /dev/null, until `closes`."""
    _descriptors.add(descriptor)


def closes(descriptor: int) -> None:
    """Note that a descriptor is about to be closed: its number may be used again."""
    _descriptors.discard(descriptor)


def _before() -> None:
    if _bound:
        # For the child, and in the parent: there another thread may hold the lock of an import,
        # which nobody gives back in the child.
        import ctypes  # noqa: F401
    _fork_turn.acquire()

    def rest(thing: ProcessBound) -> None:
        thing._before_fork()
        _resting.append(thing)

    _with_each(list(_bound), rest)


def _after_in_parent() -> None:
    for thing in _resting:
        thing._after_fork_in_parent()
    _resting.clear()
    _fork_turn.release()


def _after_in_child() -> None:
    global _pid, _fork_turn
    parent, _pid = _pid, os.getpid()
    _fork_turn = Lock()
    _resting.clear()
    _silence_descriptors()

    def leave(thing: ProcessBound) -> None:
        try:
            thing._leave_to_parent()
        finally:
            _keep_for_ever(thing)
            _refuse_calls(thing, parent)

    things = list(_bound)
    _bound.clear()  # a child of the child finds their methods replaced already
    _with_each(things, leave)


def _with_each(things: list[ProcessBound], step: Callable[[ProcessBound], None]) -> None:
    """Do a step with each, also behind one whose step raises; raise that last."""
    broken = None
    for thing in things:
        try:
            step(thing)
        except Exception as error:  # noqa: BLE001 - raised below
            broken = error
    if broken is not None:
        raise broken


def _silence_descriptors() -> None:
    # Replaced, not closed: the objects that own these numbers may still write to them or close
    # them, and a closed number would belong to another file by then.
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
    _descriptors.clear()


def _keep_for_ever(thing: ProcessBound) -> None:
    # A reference that nobody gives back, not even the end of the interpreter. Finalizers would
    # touch what is shared with the parent: a loop that is closed removes the parent's sockets
    # from the parent's epoll, and an SQLite connection writes its log back and deletes it.
    import ctypes  # `_before` has loaded it; most processes never fork

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _refuse_calls(thing: ProcessBound, parent: int) -> None:
    """Replace the methods of an inherited object by one that raises; `close` does nothing."""
    thing._is_inherited = True
    kind, names = type(thing), vars(thing)
    name = names.get("group") or names.get("client_id") or ""
    text = (
        f"{kind.__name__}{name and f' {name}'} was created in process {parent} and is used in "
        f"process {_pid}: create one after the fork"
    )

    def refuse(*arguments: object, **settings: object) -> None:
        raise UsedAfterFork(text)

    for base in kind.__mro__:
        for method, found in vars(base).items():
            if isinstance(found, FunctionType) and method != "close" and method[:2] != "__":
                names[method] = refuse


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
