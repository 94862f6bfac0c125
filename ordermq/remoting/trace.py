"""Message traces in the format of Java's clients and tools; pure functions.

A trace message holds many records. Fields are separated by U+0001, records end with U+0002. The
keys of the trace message are the ids and keys of the traced messages, so that a query for one of
them at the broker finds its traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ordermq.errors import ProtocolError

DEFAULT_REGION = "DefaultRegion"
NORMAL, HALF, DELAYED = 0, 1, 3  # ordinals of Java's MessageType
_FIELD_END = "\x01"
_RECORD_END = "\x02"


@dataclass(frozen=True, slots=True)
class Published:
    """Record of one send.

    Args:
        at_ms: start of the send, ms since 1970.
        store_host: the broker's address.
        cost_ms: time until the broker's response.
        kind: NORMAL, HALF or DELAYED.
    """

    word: ClassVar[str] = "Pub"

    at_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_length: int
    cost_ms: int
    kind: int
    offset_message_id: str | None
    is_success: bool

    def to_text(self) -> str:
        """Encode the record."""
        return _record(
            self.word, self.at_ms, self.region, self.group, self.topic, self.message_id, self.tags,
            self.keys, self.store_host, self.body_length, self.cost_ms, self.kind,
            self.offset_message_id, self.is_success,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsumeBegun:
    """Record of a listener call's start; one per message of the call.

    Args: request_id: id of the call, repeated in its `ConsumeEnded`.
    """

    word: ClassVar[str] = "SubBefore"

    at_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str | None

    def to_text(self) -> str:
        """Encode the record."""
        return _record(
            self.word, self.at_ms, self.region, self.group, self.request_id, self.message_id,
            self.retry_times, self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsumeEnded:
    """Record of a listener call's end; one per message of the call.

    Args:
        cost_ms: time of the call, divided by its messages.
        code: ordinal of Java's ConsumeReturnType.
    """

    word: ClassVar[str] = "SubAfter"

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    code: int
    at_ms: int
    group: str

    def to_text(self) -> str:
        """Encode the record."""
        return _record(
            self.word, self.request_id, self.message_id, self.cost_ms, self.is_success, self.keys,
            self.code, self.at_ms, self.group,
        )  # fmt: skip


TraceRecord = Published | ConsumeBegun | ConsumeEnded


def read(text: str) -> list[TraceRecord]:
    """Parse a trace message; records of other kinds are skipped.

    Raises: ProtocolError: a record has too few fields, or a field is not a number.
    """
    found: list[TraceRecord] = []
    for line in text.split(_RECORD_END):  # the last one is empty: records end with the separator
        word, *fields = line.split(_FIELD_END)
        try:
            if word == Published.word:
                found.append(_published(fields))
            elif word == ConsumeBegun.word:
                at_ms, region, group, request_id, message_id, retry_times, keys = fields
                found.append(
                    ConsumeBegun(
                        int(at_ms), region, group, request_id, message_id, int(retry_times),
                        _text(keys),
                    )
                )  # fmt: skip
            elif word == ConsumeEnded.word:
                request_id, message_id, cost_ms, is_success, keys, code, at_ms, group = fields
                found.append(
                    ConsumeEnded(
                        request_id, message_id, int(cost_ms), is_success == "true", _text(keys),
                        int(code), int(at_ms), group,
                    )
                )  # fmt: skip
        except ValueError as error:
            raise ProtocolError(
                f"trace record {line!r} is truncated or malformed: {error}"
            ) from None
    return found


def _published(fields: Sequence[str]) -> Published:
    (
        at_ms, region, group, topic, message_id, tags, keys, store_host, body_length, cost_ms, kind,
        offset_message_id, is_success,
    ) = fields[:13]  # newer clients may add their host  # fmt: skip
    return Published(
        int(at_ms), region, group, topic, message_id, _text(tags), _text(keys), store_host,
        int(body_length), int(cost_ms), int(kind), _text(offset_message_id), is_success == "true",
    )  # fmt: skip


def _record(*fields: str | int | None) -> str:
    return _FIELD_END.join(map(_field, fields)) + _RECORD_END


def _field(value: str | int | None) -> str:
    # By exact type: bool is a subclass of int, and Java writes its booleans in words.
    return _WRITERS[type(value)](value)


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: str,
    int: str,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",  # as Java appends a missing string
}


def _text(field: str) -> str | None:
    return None if field == "null" else field
