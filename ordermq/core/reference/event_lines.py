"""Reference lines of a history; see contract/."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ordermq.errors import ProtocolError
from ordermq.threads import Lock


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class EventLines:
    """See contract.EventLines."""

    def __init__(
        self, begin: bytes, clock_id: int, most_bytes: int, wake: Callable[[], bool]
    ) -> None:
        self._begin = begin
        self._clock_id = clock_id
        self._most_bytes = most_bytes
        self._wake = wake
        self._lock = Lock()
        self._lines: list[bytes] = []
        self._number = 0
        self._is_woken = False
        self._is_closed = False

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self._lines))

    def add(self, members: bytes) -> bool:
        return self._add(members, loses_number=True)

    def add_start(self, head: bytes, context: Any, lane: int = 0) -> bool:
        more = f',"attempt":{context.attempt}' + (f',"lane":{lane}' if lane else "")
        return self._add_call(b'"type":"START",' + head, context, more.encode())

    def add_end(self, head: bytes, context: Any, detail: bytes) -> bool:
        more = b',"done":%d,"detail":"%b"' % (len(context.messages), detail)
        return self._add_call(b'"type":"END",' + head, context, more)

    def _add_call(self, head: bytes, context: Any, more: bytes) -> bool:
        messages = list(context.messages)
        offsets = _json([message.queue_offset for message in messages])
        try:
            keys = _json([message.sharding_key for message in messages])
        except ProtocolError:  # not UTF-8
            return False
        return self._add(
            b'%b,"offs":%b,"keys":%b%b' % (head, offsets.encode(), keys.encode(), more)
        )

    def _add(self, members: bytes, *, loses_number: bool = False) -> bool:
        with self._lock:
            if self._is_closed:
                return True
            now_ns = time.clock_gettime_ns(self._clock_id)
            line = b'%b%d,"t":%d,%b}\n' % (self._begin, self._number, now_ns, members)
            has_room = not self._lines or self.waiting_bytes + len(line) <= self._most_bytes
            self._number += has_room or loses_number
            if not has_room:
                return False
            self._lines.append(line)
            wakes, self._is_woken = not self._is_woken, True
        if wakes:
            is_woken = False
            try:
                is_woken = self._wake()
            finally:
                self._is_woken = is_woken
        return True

    def take(self) -> bytes:
        with self._lock:
            lines, self._lines = self._lines, []
            self._is_woken = False
        return b"".join(lines)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._lines = []
