"""Which brokers are slow or away, for messages that may go to any; Java's table."""

from __future__ import annotations

from ordermq.clock import Clock

# A send that took so long keeps its broker out of the turns for so long, both in ms.
_PENALTIES = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
_AS_IF_MS = 10_000  # how long a send took that had no answer


class Faults:
    """Brokers that are left out for a while; on the I/O thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[str, int] = {}

    def note(self, broker_name: str, spent_ms: int) -> None:
        """A broker took so long to answer; a quick one is back in turn at once."""
        for at_least_ms, penalty_ms in _PENALTIES:
            if spent_ms >= at_least_ms:
                self._until_ms[broker_name] = self._clock.now_ms() + penalty_ms
                return
        self._until_ms.pop(broker_name, None)

    def note_unanswered(self, broker_name: str) -> None:
        """A broker did not answer, or could not be reached."""
        self.note(broker_name, _AS_IF_MS)

    def is_available(self, broker_name: str) -> bool:
        """Whether it is in turn."""
        until_ms = self._until_ms.get(broker_name)
        return until_ms is None or until_ms <= self._clock.now_ms()
