"""FailureStory: why a message is a dead letter, in its properties (docs/failures.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ordermq.model import properties as props
from ordermq.value import Value

# As of the dead letters of Spark's stages.
ERROR, QUEUE, OFFSET = "omq_error", "omq_failed_queue", "omq_failed_offset"
ATTEMPTS, FIRST_MS = "omq_attempts", "omq_first_failed_ms"
GROUP, MEMBER = "omq_failed_group", "omq_failed_member"
NAMES = frozenset({ERROR, QUEUE, OFFSET, ATTEMPTS, FIRST_MS, GROUP, MEMBER})
_MAX_ERROR = 1_000  # characters


class FailureStory(Value):
    """History of a message before it became a dead letter.

    Args:
        error: type and text of the last exception, at most 1,000 characters; or that the listener
            returned that it failed.
        attempts: failed attempts, with the last one; 0 if they are not known.
        first_failed_ms: time of the first one by this owner of the queue, ms since 1970; 0 if it is
            not known, as of a message that came from a retry topic.
        queue: `topic@broker/number` that it was consumed from. Of a concurrent group's later
            attempts that is the retry topic.
        offset: in this queue; -1 if it is not known.
        group, member: that gave it up; the member by its client id.
    """

    error: str
    attempts: int = 0
    first_failed_ms: int = 0
    queue: str = ""
    offset: int = -1
    group: str = ""
    member: str = ""

    @classmethod
    def of(cls, letter: Any) -> FailureStory | None:
        """Return the story of a dead letter, a `MessageView`; None if it has none, as one that a
        broker or another client has given up.
        """
        found: Mapping[str, str] = letter.properties
        if ERROR not in found:
            return None
        return cls(
            found[ERROR],
            _number(found.get(ATTEMPTS), 0),
            _number(found.get(FIRST_MS), 0),
            found.get(QUEUE, ""),
            _number(found.get(OFFSET), -1),
            found.get(GROUP, ""),
            found.get(MEMBER, ""),
        )

    def add_to(self, properties: dict[str, str]) -> None:
        """Add it to a message's properties, as far as they have room."""
        told = {
            ERROR: _plain(self.error[:_MAX_ERROR]),
            ATTEMPTS: str(self.attempts or ""),
            FIRST_MS: str(self.first_failed_ms or ""),
            QUEUE: self.queue,
            OFFSET: str(self.offset),
            GROUP: self.group,
            MEMBER: self.member,
        }
        for name in NAMES:
            properties.pop(name, None)  # of an earlier life, before it was sent again
        if len(props.encode(properties | told).encode()) <= props.MAX_BYTES:
            properties |= told


def _plain(text: str) -> str:
    """Return a text without the separators of properties, and without surrogates."""
    return text.replace("\x01", " ").replace("\x02", " ").encode(errors="replace").decode()


def _number(text: str | None, default: int) -> int:
    # Anybody may send a message with such properties.
    if text is None or len(text) > 20:
        return default
    try:
        return int(text)
    except ValueError:
        return default
