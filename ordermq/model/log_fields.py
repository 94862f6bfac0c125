"""Fields of log records: what a line's text names, as attributes for filters and JSON."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ordermq.model.message_queue import MessageQueue


def log_fields(
    queue: MessageQueue | None = None,
    *,
    offset: int | None = None,
    topic: str | None = None,
    group: str | None = None,
    member: str | None = None,
    broker: str | None = None,
) -> dict[str, object]:
    """Return the `extra` of a log record: the fields that are known, as strings and ints.

    A queue gives `queue` ("topic@broker/id", as in the texts) and `topic`.

    Args:
        offset: of the message that the line is about, the first one of several.
        member: client id.
        broker: name or address of the server that the line is about.
    """
    fields: dict[str, object] = {
        "topic": topic if queue is None else queue.topic,
        "queue": None if queue is None else str(queue),
        "offset": offset,
        "group": group,
        "member": member,
        "broker": broker,
    }
    return {name: value for name, value in fields.items() if value is not None}


class MemberFields:
    """The fields of the log records of one member of a group: `log_fields` with both filled in."""

    __slots__ = ("_group", "_member")

    def __init__(self, group: str, member: str) -> None:
        self._group = group
        self._member = member

    def __call__(
        self,
        queue: MessageQueue | None = None,
        *,
        offset: int | None = None,
        topic: str | None = None,
        broker: str | None = None,
    ) -> dict[str, object]:
        group, member = self._group, self._member
        return log_fields(
            queue, offset=offset, topic=topic, group=group, member=member, broker=broker
        )


class WarnOnce:
    """Logs a problem once for as long as it stays the same; used by one thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._problems: dict[str, str] = {}

    def note(self, subject: str, problem: str, fields: Mapping[str, object]) -> None:
        """Log the problem of a subject, unless it was logged last; empty: there is none now.

        Args: fields: of the record (`log_fields`).
        """
        if problem and self._problems.get(subject) != problem:
            self._log.warning("%s: %s", subject, problem, extra=fields)
        self._problems[subject] = problem
