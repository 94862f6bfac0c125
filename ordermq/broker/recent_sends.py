"""Recent sends by their producers' ids, so that a copy that is sent again is stored once
(docs/internals/semantics.md#copies-sent-again).

A producer that gets no answer sends the same message again. Both copies may arrive, the second one
late, behind messages that were sent after it: A, B, A. The copies have the same id (`UNIQ_KEY`).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ordermq.broker.store import QueueLog, Store
from ordermq.broker.store.store import WAITING_TOPICS
from ordermq.clock import Clock
from ordermq.errors import ProtocolError
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage, stored_at

IN_FLIGHT = -1  # in place of an offset
_COUNTER_DIGITS = 12  # of an id: its time and counter, which only grow; before them, its producer
_MAX_PRODUCERS = 1_024  # of one queue
_MAX_WINDOWS = 64  # searched windows, of all queues; an id takes about 200 bytes
_RELOAD_AGE_MS = 600_000  # a copy that is later than this is not expected
_RELOAD_BYTES = 67_108_864  # of records read at once


class SendId(NamedTuple):
    """The id that a send and its copies have in common, beside their log.

    Args:
        unique_id: of the message.
        target: digest of its topic, queue and body, of one that waits. Many topics share that log,
            and the body is not there any more once it is due; and an id may come again with another
            message, as of a `Message` object of Java's that is sent twice.
    """

    unique_id: str
    target: str = ""


def waiting_send_id(unique_id: str, topic: str, queue_id: int, body: bytes) -> SendId:
    """Return the id of a send that waits in a log of the broker's own.

    Args: topic, queue_id: that it waits for.
    """
    place = f"{topic}/{queue_id}/".encode()
    return SendId(unique_id, hashlib.blake2b(place + body, digest_size=12).hexdigest())


class RecentSends(Protocol):
    """Ids of the sends of each queue; on the loop thread."""

    def begin(self, log: QueueLog, send_id: SendId) -> int | None:
        """Note a send that is appended next, if it is the first with this id: return None.

        Else return the offset of the first one, or IN_FLIGHT until that is durable.
        """

    def stored(self, log: QueueLog, offset: int) -> None:
        """Note that the oldest send of a queue that `begin` noted is durable."""

    def failed(self, log: QueueLog) -> None:
        """Note that the oldest send of a queue that `begin` noted was not stored."""

    def are_new(self, log: QueueLog, unique_ids: Sequence[str]) -> bool:
        """Return True if `begin` would return None for each of these ids without a search.

        Args: unique_ids: of one producer, ascending; at least one.
        """

    def begin_all(self, log: QueueLog, unique_ids: Sequence[str]) -> None:
        """Do what `begin` does for each of these ids, of which `are_new` was True."""

    def stored_all(self, log: QueueLog, first_offset: int, count: int) -> None:
        """Do what `stored` does for the oldest sends of a queue; their offsets are consecutive."""

    def failed_all(self, log: QueueLog, count: int) -> None:
        """Do what `failed` does for the oldest sends of a queue."""


class NoRecentSends:
    """Takes every send for the first one."""

    def begin(self, log: QueueLog, send_id: SendId) -> int | None:
        return None

    def stored(self, log: QueueLog, offset: int) -> None:
        return None

    def failed(self, log: QueueLog) -> None:
        return None

    def are_new(self, log: QueueLog, unique_ids: Sequence[str]) -> bool:
        return True

    def begin_all(self, log: QueueLog, unique_ids: Sequence[str]) -> None:
        return None

    def stored_all(self, log: QueueLog, first_offset: int, count: int) -> None:
        return None

    def failed_all(self, log: QueueLog, count: int) -> None:
        return None


class _Window:
    """Offsets of a queue's newest sends, by id: between one and two times `size` of them."""

    __slots__ = ("is_used", "newer", "older", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.newer: dict[str, int] = {}
        self.older: dict[str, int] = {}
        self.is_used = True  # searched since the generations last changed

    def find(self, key: str) -> int | None:
        self.is_used = True
        found = self.newer.get(key)
        return self.older.get(key) if found is None else found

    def add(self, key: str, offset: int) -> None:
        # Two generations: dropping one of them is cheaper than dropping the oldest id each time.
        if len(self.newer) >= self.size:
            self.older, self.newer = self.newer, {}
            self.is_used = False
        self.newer[key] = offset


class _QueueSends:
    """Sends of one queue."""

    __slots__ = ("highest", "pending", "window")

    def __init__(self, window: _Window | None) -> None:
        self.highest: dict[str, str] = {}  # producer -> the highest of its ids
        self.pending: deque[str] = deque()  # keys in flight, in the order of their writes
        self.window = window

    def raise_highest(self, unique_id: str) -> bool:
        """Note an id; return True if it is higher than all of its producer before."""
        producer = unique_id[:-_COUNTER_DIGITS]
        if unique_id <= self.highest.get(producer, ""):
            return False
        if len(self.highest) >= _MAX_PRODUCERS:
            self.highest.clear()
        self.highest[producer] = unique_id
        return True


class RecentSendSearch:
    """Searches the newest messages of a queue for the id of a send that may be a copy.

    Producers count their ids upwards. An id higher than all of its producer before can be no copy,
    so that most sends cost a comparison. Only after a lower one came, the ids of its queue are
    read from the log and kept from then on: a dictionary of all recent sends took 5% of a send.

    Args:
        size: messages of a queue that are searched.
    """

    def __init__(self, size: int, store: Store) -> None:
        self._size = size
        self._store = store
        self._queues: dict[QueueLog, _QueueSends] = {}
        self._window_count = 0

    def begin(self, log: QueueLog, send_id: SendId) -> int | None:
        sends = self._queues.get(log) or self._new_queue(log)
        key = send_id.unique_id + send_id.target
        if not sends.raise_highest(send_id.unique_id):
            if key in sends.pending:
                return IN_FLIGHT
            found = self._search(log, sends, key)
            if found is not None:
                return found
        sends.pending.append(key)
        return None

    def stored(self, log: QueueLog, offset: int) -> None:
        sends = self._queues[log]
        key = sends.pending.popleft()
        if sends.window is not None:
            sends.window.add(key, offset)
            if not sends.window.is_used and log.topic not in WAITING_TOPICS:
                sends.window = None
                self._window_count -= 1

    def failed(self, log: QueueLog) -> None:
        self._queues[log].pending.popleft()

    def are_new(self, log: QueueLog, unique_ids: Sequence[str]) -> bool:
        sends = self._queues.get(log)
        lowest = unique_ids[0]
        return sends is None or lowest > sends.highest.get(lowest[:-_COUNTER_DIGITS], "")

    def begin_all(self, log: QueueLog, unique_ids: Sequence[str]) -> None:
        sends = self._queues.get(log) or self._new_queue(log)
        # The ids ascend: the last one is the highest, and stands for the others.
        sends.raise_highest(unique_ids[-1])
        sends.pending += unique_ids

    def stored_all(self, log: QueueLog, first_offset: int, count: int) -> None:
        if self._queues[log].window is None:
            self.failed_all(log, count)  # nothing to keep them in
            return
        for offset in range(first_offset, first_offset + count):
            self.stored(log, offset)

    def failed_all(self, log: QueueLog, count: int) -> None:
        pending = self._queues[log].pending
        for _ in range(count):
            pending.popleft()

    def load(self, logs: list[QueueLog], clock: Clock) -> None:
        """Take up the ids of the newest messages, as they were before a restart."""
        # The clock may have been set forward since, and would make every message too old; or it was
        # ahead for a moment, and one message seems to be newer than it is.
        newest_ms = max((log.last_stored_ms for log in logs), default=0)
        after_ms = min(clock.wall_ms(), newest_ms) - _RELOAD_AGE_MS
        for log in logs:
            sends = self._new_queue(log)
            newest = self._store.newest(log, self._size, _RELOAD_BYTES // len(logs))
            for offset, record in newest:
                send_id = _id_of_record(log, record) if stored_at(record) >= after_ms else None
                if send_id is not None:
                    sends.raise_highest(send_id.unique_id)
                    if sends.window is not None:
                        sends.window.add(send_id.unique_id + send_id.target, offset)

    def _new_queue(self, log: QueueLog) -> _QueueSends:
        # Messages leave the logs in which they wait, so a search there would not find them.
        window = _Window(self._size) if log.topic in WAITING_TOPICS else None
        sends = self._queues[log] = _QueueSends(window)
        return sends

    def _search(self, log: QueueLog, sends: _QueueSends, key: str) -> int | None:
        if sends.window is None:
            if self._window_count >= _MAX_WINDOWS:
                return None
            sends.window = _Window(self._size)
            self._window_count += 1
            for offset, record in self._store.newest(log, self._size, _RELOAD_BYTES):
                found = _id_of_record(log, record)
                if found is not None:
                    sends.window.add(found.unique_id, offset)
        return sends.window.find(key)


def recent_sends(size: int, store: Store, logs: list[QueueLog], clock: Clock) -> RecentSends:
    """Return the search that a broker uses, 0 for none."""
    if not size:
        return NoRecentSends()
    search = RecentSendSearch(size, store)
    search.load(logs, clock)
    return search


def unique_id_of(properties: str) -> str | None:
    """Return the id of a message from its encoded properties; None if it has none."""
    # Without decoding the others: this runs for every send.
    at = properties.find("UNIQ_KEY\x01")
    if at < 0 or (at and properties[at - 1] != "\x02"):
        return None
    return properties[at + 9 : properties.find("\x02", at)]


def unique_id_of_batch(body: bytes) -> str | None:
    """Return the id of a batch's first message; producers send the same batch again."""
    # docs/internals/protocol.md#batch-body; the record writer has checked every length.
    properties_at = 22 + int.from_bytes(body[16:20])
    size = int.from_bytes(body[properties_at - 2 : properties_at])
    return unique_id_of(body[properties_at : properties_at + size].decode(errors="replace"))


def is_same_body(stored: bytes | None, record: bytes | bytearray) -> bool:
    """Return True if a record has the body of a stored one; one that was trimmed tells nothing."""
    if stored is None:
        return False  # better twice than not at all: an id may come again with another message
    return StoredMessage.read(stored).body == StoredMessage.read(bytes(record)).body


def _id_of_record(log: QueueLog, record: bytes) -> SendId | None:
    try:
        message = StoredMessage.read(record)
        properties = props.decode_bytes(message.properties)
        unique_id = properties.get(props.UNIQ_KEY)
        if unique_id is None:
            return None
        if log.topic not in WAITING_TOPICS:
            return SendId(unique_id)
        topic, queue_id = properties[props.REAL_TOPIC], int(properties[props.REAL_QUEUE_ID])
        return waiting_send_id(unique_id, topic, queue_id, message.body)
    except (ProtocolError, KeyError, ValueError):
        return None  # a damaged record is met by its readers
