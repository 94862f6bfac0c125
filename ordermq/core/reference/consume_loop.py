"""The fields that the consume loop reads and writes per call, as plain attributes."""

from __future__ import annotations

from typing import Any


class CallContext:
    """See interface.CallContext."""

    __slots__ = ("_assigned", "attempt", "claim", "messages", "suspend_ms")

    def __init__(self, assigned: Any, claim: Any, messages: Any, attempt: int) -> None:
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt
        self.suspend_ms = -1


class Claim:
    """See interface.Claim."""

    __slots__ = ("generation", "lease", "messages")

    def __init__(self, messages: Any, lease: Any, generation: int) -> None:
        self.messages = messages
        self.lease = lease
        self.generation = generation


class QueueFields:
    """See interface.QueueFields."""

    __slots__ = ("calling", "should_end_claim")

    def __init__(self) -> None:
        self.calling: Any = None
        self.should_end_claim = False
