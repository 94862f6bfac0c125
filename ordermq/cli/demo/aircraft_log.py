"""The log of one aircraft: a fold over its events.

It is wrong as soon as one event is missing, duplicated or out of order: `digest` detects any of
these, the other figures show its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIGEST_FACTOR = 31_337
DIGEST_PRIME = 2_147_483_647
DIVERTED_MIN = 60  # delay a diversion adds
NOWHERE = "?"  # after a diversion: the data do not say where it landed


@dataclass(slots=True)
class AircraftLog:
    """The state of one aircraft after its last event; times in minutes."""

    key: str
    events: int = 0
    legs: int = 0
    cancelled: int = 0
    diverted: int = 0
    place: str = ""  # where it is
    base: str = ""  # the New York airport it left last
    moves: int = 0  # how often it left from another one than before
    landed: int | None = None  # when
    turns: int = 0  # landings followed by a departure
    ground: int = 0  # minutes between them, the way back to New York included
    shortest: int = 0
    carried: int = 0  # delay carried from leg to leg: half of it stays
    worst: int = 0
    miles: int = 0
    digest: int = 0

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply the next event of this aircraft."""
        self.events += 1
        self.digest = (self.digest * DIGEST_FACTOR + event["row"] + 1) % DIGEST_PRIME
        if event["cancelled"]:
            self.cancelled += 1
            self.carried //= 2
            return
        if self.base not in ("", event["origin"]):
            self.moves += 1
        self.base = event["origin"]
        if self.landed is not None:
            turn = event["departs"] - self.landed
            self.shortest = turn if self.turns == 0 else min(self.shortest, turn)
            self.turns += 1
            self.ground += turn
        self.miles += event["miles"]
        if event["arr_delay"] is None:
            self.diverted += 1
            self.place = NOWHERE
            self.landed = None
            self.carried = self.carried // 2 + DIVERTED_MIN
        else:
            self.legs += 1
            self.place = event["dest"]
            self.landed = event["departs"] + event["air_time"]
            self.carried = max(0, self.carried // 2 + event["arr_delay"])
        self.worst = max(self.worst, self.carried)
