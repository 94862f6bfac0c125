"""Reference records of message traces, and the traced listener; see contract/."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ordermq.core.contract.trace_records import TRACE_MOST_BYTES, TRACE_MOST_KEY_BYTES
from ordermq.core.reference.message_codec import MessageRun
from ordermq.errors import ProtocolError
from ordermq.threads import RLock

if TYPE_CHECKING:
    from ordermq.core.contract import TraceRules

_Record = tuple[str, str]  # text, and the words that it is found by


def _traced(messages: Any) -> list[tuple[str, str, str, int]] | None:
    """Return id, keys, region and retries of each traced message; None: read it otherwise."""
    found = []
    for message in messages:
        try:
            properties = message.properties
        except ProtocolError:  # not UTF-8
            return None
        keys = properties.get("KEYS", "")
        if (
            getattr(message.index, "attempts", None) is not None
            or "UNIQ_KEY" not in properties
            or keys != " ".join(keys.split())
            or not keys.isprintable()
        ):
            return None
        if properties.get("TRACE_ON") != "false":
            region = properties.get("MSG_REGION", "DefaultRegion")
            found.append((properties["UNIQ_KEY"], keys, region, message.reconsume_times))
    return found


def _text(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


def _words(*words: str) -> str:
    return "".join(f"{word} " for word in words if word)


class TraceRecords:
    """See contract.TraceRecords."""

    def __init__(
        self,
        most: int,
        enough: int,
        on_enough: Callable[[], object],
        on_dropped: Callable[[int], object],
    ) -> None:
        self._most = most
        self._enough = enough
        self._on_enough = on_enough
        self._on_dropped = on_dropped
        self._lock = RLock()
        self._full: deque[list[_Record]] = deque()
        self._records: list[_Record] = []  # of the trace message under way
        self._number = 0
        self._is_hurried = False

    @property
    def waiting(self) -> int:
        return sum(map(len, [*self._full, self._records]))

    def add(self, text: str, message_id: str, keys: str | None) -> None:
        self._add(1, lambda: [(text, _words(message_id, keys or ""))])

    def add_begun(self, messages: Any, group: bytes, request_id: str, at_ms: int) -> int:
        if (found := _traced(messages)) is None:
            return -1
        with self._lock:
            number = self._number
            self._add(len(messages), lambda: [
                (
                    _text("SubBefore", at_ms, region, group.decode(), request_id, message_id,
                          retries, keys or "null"),
                    _words(message_id, keys),
                )
                for message_id, keys, region, retries in found
            ])  # fmt: skip
        return number

    def add_ended(
        self,
        messages: Any,
        group: bytes,
        request_id: str,
        begun_in: int,
        cost_ms: int,
        is_success: bool,
        code: int,
        at_ms: int,
    ) -> bool:
        if (found := _traced(messages)) is None:
            return False
        word = "true" if is_success else "false"
        self._add(len(messages), lambda: (
            (
                _text("SubAfter", request_id, message_id, cost_ms, word, keys or "null", code,
                      at_ms, group.decode()),
                # Otherwise the trace message has its words.
                _words(message_id, keys) if begun_in != self._number else "",
            )
            for message_id, keys, _, _ in found
        ))  # fmt: skip
        return True

    def add_published(
        self,
        batch: Sequence[Any],
        receipts: Sequence[Sequence[Any]],
        head: bytes,
        host: bytes,
        is_success: bool,
        now_ms: int,
    ) -> bool:
        if any(message.is_alone for message in batch):
            return False
        found = []
        for message, its_receipts in zip(batch, receipts, strict=True):
            cost_ms = message.spent_ns // 1_000_000
            if not its_receipts:
                continue
            for text, body, receipt in zip(
                message.properties, message.bodies, its_receipts, strict=True
            ):
                entries = [entry.split("\x01", 1) for entry in text.split("\x02")]
                properties = {entry[0]: entry[1] for entry in entries if len(entry) == 2}
                tags, keys = properties.get("TAGS", ""), properties.get("KEYS", "")
                record = _text(
                    head.decode() + receipt.message_id, tags or "null", keys or "null",
                    host.decode(), len(body), cost_ms, 0, receipt.offset_message_id,
                    "true" if is_success else "false",
                )  # fmt: skip
                found.append(
                    (f"Pub\x01{now_ms - cost_ms}{record}", _words(receipt.message_id, keys))
                )
        self._add(sum(len(message.bodies) for message in batch), lambda: found)
        return True

    def _add(self, count: int, records: Callable[[], Iterable[_Record]]) -> None:
        with self._lock:
            has_room = self.waiting + count <= self._most
            for record in records() if has_room else ():
                self._records.append(record)
                size = sum(len(text.encode()) for text, _ in self._records)
                key_size = sum(len(words.encode()) for _, words in self._records)
                if size >= TRACE_MOST_BYTES or key_size >= TRACE_MOST_KEY_BYTES:
                    self._seal()
            hurries = self.waiting >= self._enough and not self._is_hurried
            self._is_hurried |= hurries
        if hurries:
            self._on_enough()
        if not has_room:
            self._on_dropped(count)

    def _seal(self) -> None:
        """End the trace message under way."""
        self._full.append(self._records)
        self._records = []
        self._number += 1

    def take(self) -> tuple[bytes, bytes, int] | None:
        with self._lock:
            self._is_hurried = False
            if self._records and not self._full:
                self._seal()
            if not self._full:
                return None
            records = self._full.popleft()
        text = "".join(text for text, _ in records).encode()
        return text, "".join(words for _, words in records).encode(), len(records)


class TracedListener:
    """See contract.TracedListener."""

    def __init__(self, listener: Callable[[Any, Any], Any], rules: TraceRules) -> None:
        self._listener = listener
        self._rules = rules

    def __call__(self, messages: Any, context: Any) -> Any:
        rules = self._rules
        at_ms, request_id, number = rules.wall_ms(), rules.one_id(), -1
        if isinstance(messages, MessageRun):
            number = rules.records.add_begun(messages, rules.group, request_id, at_ms)
        if number < 0:
            rules.on_begin(messages, request_id, at_ms)
        begun_ns = time.monotonic_ns()
        try:
            value = self._listener(messages, context)
        except BaseException as error:
            spent_ns = time.monotonic_ns() - begun_ns
            rules.on_end(messages, context, None, error, spent_ns, request_id)
            raise
        spent_ns = time.monotonic_ns() - begun_ns
        is_success = value is rules.success or value is rules.other_success
        is_quick = spent_ns < rules.timeout_ms * 1_000_000 and context._ack_index is None
        if number >= 0 and is_success and is_quick:
            cost_ms = spent_ns // 1_000_000 // len(messages)
            if rules.records.add_ended(
                messages, rules.group, request_id, number, cost_ms, True, 0, rules.wall_ms()
            ):
                return value
        return rules.on_end(messages, context, value, None, spent_ns, request_id)
