"""Listener calls with hooks around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class HookedCall(Protocol):
    """The fields of one listener call, as hooks see it; the base of what hooks get.

    It is made per call, so native code makes it without running `__init__`: `result`, `exception`
    and `outcome` are None then, `done` and `spent_ms` 0, and `notes` is an empty dict.
    """

    @property
    def group(self) -> Any: ...
    @property
    def message_queue(self) -> Any: ...
    @property
    def messages(self) -> Any: ...
    @property
    def attempt(self) -> Any: ...
    @property
    def namespace(self) -> Any: ...
    @property
    def done(self) -> int: ...
    @property
    def spent_ms(self) -> int: ...
    @property
    def result(self) -> Any: ...
    @property
    def exception(self) -> Any: ...
    @property
    def outcome(self) -> Any: ...
    @property
    def notes(self) -> dict[str, Any]: ...


class HookRules(Protocol):
    """The hooks of a consumer, and the calls they are told of natively."""

    @property
    def call(self) -> type:
        """Class of the calls, derived from HookedCall."""

    @property
    def group(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def befores(self) -> tuple[Callable[[Any], object], ...]:
        """The steps of hooks before the listener, in their order."""

    @property
    def afters(self) -> tuple[Callable[[Any], object], ...]:
        """The steps behind it."""

    @property
    def success(self) -> object:
        """A result of a call that is told of natively, if the call has no `ack_index`."""

    @property
    def other_success(self) -> object:
        """Another one."""

    @property
    def succeeded(self) -> object:
        """The outcome of such a call."""

    @property
    def timed_out(self) -> object:
        """The outcome of such a call that took `timeout_ms` or more."""

    @property
    def timeout_ms(self) -> int: ...
    @property
    def clock_ms(self) -> Callable[[], int]:
        """Returns the time in milliseconds."""

    @property
    def clock_id(self) -> int | None:
        """The system's clock that `clock_ms` reads, if it is one: native code reads it itself."""

    @property
    def on_odd(self) -> Callable[[Any, Any, object, BaseException | None], object]:
        """Is given a step of a hook, the call, and what it returned, if that is not None, or
        raised. What this raises of the first is told as the second.
        """

    @property
    def on_other(self) -> Callable[[Any, Any, object, BaseException | None, int], object]:
        """Is given each other call behind its listener, with its context, result, error and ms, and
        tells the hooks. The result of the call is its result, unless there was an error, which is
        raised again.
        """


class HookedListener(Protocol):
    """A listener with hooks around each call."""

    def __init__(self, listener: Callable[[Any, Any], Any], rules: HookRules) -> None: ...

    def __call__(self, messages: Any, context: Any) -> Any: ...
