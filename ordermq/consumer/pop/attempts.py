"""Attempts: ids of pops, by which servers give again what a lost answer brought."""

from __future__ import annotations

import secrets
from collections import deque

from ordermq.clock import Clock

_ON_ITS_WAY_MS = 1_000  # how late a request may come to the server that is to hold it
_MOST = 32  # ids to ask for again, where connections break faster than pops end


class Attempts:
    """Chooses the ids of the pops of one queue, or of those that wait together at a broker.

    A server gives what a pop in order has leased again to a pop with its id. It does so, too, while
    it still holds the first one: then both lease the next messages, and of the two only the later
    one's acknowledgements count, though both are answered with a yes. So a pop without an answer is
    asked for again when no server can hold it any more, and new ids are asked for until then.

    Args: held_ms: how long a server may hold a pop.
    """

    def __init__(self, clock: Clock, held_ms: int) -> None:
        self._clock = clock
        self._held_ms = held_ms + _ON_ITS_WAY_MS
        self._unanswered: deque[tuple[int, str]] = deque(maxlen=_MOST)  # from when on, and the id

    def next_id(self) -> str:
        """Return the id for a pop: that of one without an answer if it is over, or a new one."""
        if self._unanswered and self._clock.now_ms() >= self._unanswered[0][0]:
            return self._unanswered.popleft()[1]
        return secrets.token_hex(8)

    def failed(self, attempt_id: str, asked_ms: int) -> None:
        """Note a pop that may have leased messages which did not come."""
        self._unanswered.append((asked_ms + self._held_ms, attempt_id))

    def take_unanswered(self) -> list[str]:
        """Take all ids without an answer: to give back what they bring, held or not."""
        taken = [attempt_id for _, attempt_id in self._unanswered]
        self._unanswered.clear()
        return taken
