"""The context of a listener call, as plain attributes."""

from __future__ import annotations

from typing import Any


class CallContext:
    """See contract.CallContext."""

    __slots__ = (
        "_ack_index",
        "_assigned",
        "_delay_level",
        "attempt",
        "claim",
        "messages",
        "suspend_ms",
    )

    def __init__(self, assigned: Any, claim: Any, messages: Any, attempt: int) -> None:
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt
        self.suspend_ms = -1
        self._ack_index: Any = None
        self._delay_level: Any = 0
