"""What a worker is given when it asks a queue for work: a claim, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ordermq.consumer.lease import Lease
from ordermq.model.message import MessageRun


class Refusal(Enum):
    """Why no batch was handed out; each leaves the dispatch flag cleared."""

    EMPTY = auto()  # nothing pending
    REVOKED = auto()  # draining or gone
    PAUSED = auto()
    LAPSED = auto()  # the lease is over; the buffer was dropped


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A listener call under way: with what, since when, on which thread."""

    messages: MessageRun
    since_ms: int  # of the claim it belongs to
    thread: int


@dataclass(slots=True)
class Claim:
    """What is being consumed, one batch or several in turn, with the lease it started under.

    Never changed.
    """

    messages: MessageRun
    lease: Lease
    generation: int
