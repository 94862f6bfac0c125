"""Reference of calls with hooks; see contract/."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ordermq.core.contract import HookRules
    from ordermq.core.reference.consume_loop import CallContext


class HookedCall:
    """See contract.HookedCall."""

    __slots__ = (
        "attempt",
        "done",
        "exception",
        "group",
        "message_queue",
        "messages",
        "namespace",
        "notes",
        "outcome",
        "result",
        "spent_ms",
    )

    def __init__(self) -> None:
        self.group: Any = None
        self.message_queue: Any = None
        self.messages: Any = None
        self.attempt: Any = None
        self.namespace: Any = None
        self.result: Any = None
        self.exception: Any = None
        self.outcome: Any = None
        self.done = 0
        self.spent_ms = 0
        self.notes: dict[str, Any] = {}


class HookedListener:
    """See contract.HookedListener."""

    def __init__(self, listener: Callable[[Any, Any], Any], rules: HookRules) -> None:
        self._listener = listener
        self._rules = rules

    def __call__(self, messages: Any, context: CallContext) -> Any:
        rules = self._rules
        call: HookedCall = object.__new__(rules.call)
        HookedCall.__init__(call)
        call.group, call.namespace = rules.group, rules.namespace
        call.message_queue = context._assigned.source
        call.messages, call.attempt = messages, context.attempt
        self._tell(rules.befores, call)
        begun_ms = rules.clock_ms()  # behind the hooks: their time is not the listener's
        try:
            value = self._listener(messages, context)
        except BaseException as error:
            rules.on_other(call, context, None, error, rules.clock_ms() - begun_ms)
            raise
        spent_ms = rules.clock_ms() - begun_ms
        is_success = value is rules.success or value is rules.other_success
        if not is_success or context._ack_index is not None:
            return rules.on_other(call, context, value, None, spent_ms)
        is_in_time = spent_ms < rules.timeout_ms
        call.outcome = rules.succeeded if is_in_time else rules.timed_out
        call.result, call.done, call.spent_ms = value, len(messages), spent_ms
        self._tell(rules.afters, call)
        return value

    def _tell(self, steps: Sequence[Callable[[Any], object]], call: HookedCall) -> None:
        for step in steps:
            try:
                returned = step(call)
                if returned is not None:
                    self._rules.on_odd(step, call, returned, None)
            # Also sys.exit(): a hook watches the call and does not decide it.
            except BaseException as error:  # noqa: BLE001 - the user's; told
                self._rules.on_odd(step, call, None, error)
