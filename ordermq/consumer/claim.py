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


@dataclass(slots=True)
class Claim:
    """What is being consumed, one batch or several in turn, with the lease it started under.

    Never changed.
    """

    messages: MessageRun
    lease: Lease
    generation: int
