"""Message traces in the format of Java's clients and tools; pure functions.

A trace message holds many records. Fields are separated by U+0001, records end with U+0002. The
keys of the trace message are the ids and keys of the traced messages, so that a query for one of
them at the broker finds its traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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


TraceRecord = Published | ConsumeBegun | ConsumeEnded


class EncodedRecord(NamedTuple):
    """A record as it is sent, with what its trace message is found by."""

    text: str
    message_id: str
    keys: str | None


class PublishedBatch:
    """Encodes the `Published` records of messages that were stored by one request."""

    __slots__ = ("_before_id", "_end", "_host")

    def __init__(
        self, region: str, group: str, topic: str, store_host: str, is_success: bool
    ) -> None:
        self._before_id = _FIELD_END.join(("", region, group, topic, ""))
        self._host = f"{_FIELD_END}{store_host}{_FIELD_END}"
        self._end = f"{_FIELD_END}{_word(is_success)}{_RECORD_END}"

    def record(
        self,
        at_ms: int,
        cost_ms: int,
        kind: int,
        message_id: str,
        tags: str | None,
        keys: str | None,
        body_length: int,
        offset_message_id: str,
    ) -> EncodedRecord:
        """Return the record of one message."""
        tags = "null" if tags is None else tags
        named = "null" if keys is None else keys
        text = (
            f"Pub\x01{at_ms}{self._before_id}{message_id}\x01{tags}\x01{named}{self._host}"
            f"{body_length}\x01{cost_ms}\x01{kind}\x01{offset_message_id}{self._end}"
        )
        return EncodedRecord(text, message_id, keys)


class ConsumedCall:
    """Encodes the records of one listener call, `ConsumeBegun` and `ConsumeEnded`.

    Args: request_id: id of the call, in all of its records.
    """

    __slots__ = ("_before_region", "_end", "_request")

    def __init__(self, group: str, request_id: str, at_ms: int) -> None:
        self._before_region = f"SubBefore\x01{at_ms}\x01"
        self._request = f"\x01{group}\x01{request_id}\x01"
        self._end = f"SubAfter\x01{request_id}\x01", group

    def begun(
        self, region: str, message_id: str, retry_times: int, keys: str | None
    ) -> EncodedRecord:
        """Return the record of a message that the call begins with."""
        named = "null" if keys is None else keys
        text = (
            f"{self._before_region}{region}{self._request}{message_id}\x01{retry_times}\x01"
            f"{named}\x02"
        )
        return EncodedRecord(text, message_id, keys)

    def ended(
        self,
        begun: Sequence[EncodedRecord],
        cost_ms: int,
        is_success: bool,
        code: int,
        at_ms: int,
    ) -> list[EncodedRecord]:
        """Return the records of the call's end, for the messages that it began with."""
        begin, group = self._end
        outcome = f"\x01{cost_ms}\x01{_word(is_success)}\x01"
        end = f"\x01{code}\x01{at_ms}\x01{group}\x02"
        return [
            EncodedRecord(
                f"{begin}{message_id}{outcome}{'null' if keys is None else keys}{end}",
                message_id,
                keys,
            )
            for _, message_id, keys in begun
        ]


def keys_of(records: Sequence[EncodedRecord]) -> list[str]:
    """Return the keys of a trace message with these records, each once."""
    found: dict[str, None] = {}
    for record in records:
        found[record.message_id] = None
        if record.keys is not None:
            found |= dict.fromkeys(record.keys.split())
    return list(found)


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


def _word(value: bool) -> str:
    return "true" if value else "false"  # as Java writes them


def _text(field: str) -> str | None:
    return None if field == "null" else field
