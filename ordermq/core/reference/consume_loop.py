"""The fields that the consume loop reads and writes per call, as plain attributes."""

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


class Claim:
    """See contract.Claim."""

    __slots__ = ("generation", "lease", "messages")

    def __init__(self, messages: Any, lease: Any, generation: int) -> None:
        self.messages = messages
        self.lease = lease
        self.generation = generation


class QueueFields:
    """See contract.QueueFields."""

    __slots__ = (
        "_done_offset",
        "_failed_ms",
        "_generation",
        "_lease",
        "_lock",
        "_paused",
        "_room_below",
        "_running",
        "_state",
        "attempts",
        "auto_commit",
        "batches_per_claim",
        "calling",
        "internal_errors",
        "isolate_until",
        "last_claim_ms",
        "process_queue",
        "should_end_claim",
        "worker",
    )

    process_queue: Any
    attempts: Any
    _lock: Any
    _lease: Any
    _state: Any
    _failed_ms: Any
    _paused: Any
    _room_below: Any
    isolate_until: int
    last_claim_ms: int
    batches_per_claim: int
    internal_errors: int
    worker: int
    auto_commit: bool
    _generation: int
    _done_offset: int
    _running: int

    def __init__(self) -> None:
        self.calling: Any = None
        self.should_end_claim = False
