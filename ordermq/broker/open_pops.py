"""Batches that were popped without order, and the repetition of what is not acknowledged in time
(docs/internals/semantics.md#pop-without-order).

A pop moves the group's offset at once, so that members pop one queue side by side. Each message has
a lease of its own. Where it ends, a copy with one more reconsume time goes to the retry topic of
the group and the topic, in the write that ends the lease; members pop that topic with the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ordermq.broker.consumer_offsets import OffsetKey
from ordermq.broker.message_routing import DeliveryParts
from ordermq.broker.pop_leases import PopLease
from ordermq.broker.store import (
    Append,
    Done,
    Statement,
    Write,
    awaitable_done,
)
from ordermq.clock import wait_until_set
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.model.names import RETRY_PREFIX
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.pop import RETRIES, real_topic

_UPSERT = "INSERT OR REPLACE INTO open_pops VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM open_pops WHERE grp = ? AND topic = ? AND queue_id = ? AND pop_ms = ?"
_LONGEST_SLEEP_MS = 1_000
_RETRY_MS = 1_000  # after a failed write
_BATCH = 256  # messages repeated in one write
_HANDLE_BYTES = 512  # kept free for the handle that a pop adds: numbers, and the broker's name
_log = logging.getLogger("ordermq.broker")


class _Due(NamedTuple):
    """Messages of one batch whose leases are over."""

    key: OffsetKey
    lease: PopLease
    offsets: list[int]


class OpenPops:
    """Popped batches with messages that are not done, of all groups; on the loop thread.

    Args:
        on_change: called with a queue's key once the next pop of it may look.
    """

    def __init__(self, parts: DeliveryParts, on_change: Callable[[OffsetKey], None]) -> None:
        self._store = parts.store
        self._routing = parts.routing
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._steady = parts.steady
        self._on_change = on_change
        self._popping: set[OffsetKey] = set()  # by a write that is not durable
        self._last_pop_ms: dict[OffsetKey, int] = {}
        self._open: defaultdict[OffsetKey, dict[int, PopLease]] = defaultdict(dict)
        self._earlier = asyncio.Event()
        self._next_look_ms = 0
        now_ms = self._steady.ms()
        for group, topic, queue_id, pop_ms, text in self._store.rows("SELECT * FROM open_pops"):
            key, number = (str(group), str(topic), int(str(queue_id))), int(str(pop_ms))
            # For the whole time again, as the leases of ordered pops.
            lease = PopLease.of_text(str(text)).from_now(now_ms)
            self._open[key][number] = lease
            self._last_pop_ms[key] = max(self._last_pop_ms.get(key, 0), number)

    def is_popping(self, key: OffsetKey) -> bool:
        """Return True while a pop of the queue is not durable: the next one must wait for it."""
        return key in self._popping

    def is_behind(self, key: OffsetKey, offset: int) -> bool:
        """Return True if a commit would move a group back that pops the queue."""
        stored = self._offsets.get(key)
        return key in self._last_pop_ms and stored is not None and offset < stored

    def next_lease(self, key: OffsetKey, invisible_ms: int, offsets: Sequence[int]) -> PopLease:
        """Return the lease of a batch that is popped now."""
        # Two batches of one millisecond would be one to whoever acknowledges them.
        now_ms = self._steady.ms()
        pop_ms = max(now_ms, self._last_pop_ms.get(key, 0) + 1)
        return PopLease(pop_ms, now_ms, invisible_ms, None, tuple(offsets))

    def grant(self, batches: Sequence[tuple[OffsetKey, int, PopLease]], done: Done) -> None:
        """Store batches and the offsets behind them; then call `done`."""
        statements = []
        for key, end, lease in batches:
            statements.append(Statement(_UPSERT, (*key, lease.pop_ms, lease.text())))
            statements.append(self._offsets.statement(key, end))

        def finish(error: StoreError | None) -> None:
            for key, end, lease in batches:
                self._popping.discard(key)
                if error is None:
                    self._offsets.note(key, end)
                    self._open[key][lease.pop_ms] = lease
                    self._last_pop_ms[key] = lease.pop_ms
                    self._note(lease)
            done(error)
            for key, _, _ in batches:
                self._on_change(key)

        self._store.submit(Write(finish, statements=statements))
        for key, _, _ in batches:
            self._popping.add(key)

    def get(self, key: OffsetKey, pop_ms: int) -> PopLease | None:
        """Return a batch by the time of its pop; None: all of it is done, or was repeated."""
        return self._open[key].get(pop_ms) if key in self._open else None

    def put(self, key: OffsetKey, lease: PopLease) -> Statement:
        """Change a batch, and return the statement that stores the change."""
        # At once, as the next request builds on it. Should the write fail, the message may come
        # again after the broker's next start.
        if lease.is_done:
            self._open[key].pop(lease.pop_ms, None)
            return Statement(_DELETE, (*key, lease.pop_ms))
        self._open[key][lease.pop_ms] = lease
        self._note(lease)
        return Statement(_UPSERT, (*key, lease.pop_ms, lease.text()))

    def deletion(self, group: str) -> Statement:
        """Return the statement that deletes a group's batches; call `forget` then."""
        return Statement("DELETE FROM open_pops WHERE grp = ?", (group,))

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the batches of a group or a topic that was deleted."""
        for key in [key for key in self._last_pop_ms if group == key[0] or topic == key[1]]:
            del self._last_pop_ms[key]
            self._open.pop(key, None)

    async def round(self) -> None:
        """Repeat messages whose leases are over, and wait until the next one is."""
        self._earlier.clear()
        now_ms = self._steady.ms()
        # Before the look: what is leased meanwhile notes its own end.
        self._next_look_ms = now_ms + _LONGEST_SLEEP_MS
        due, left, next_ms = [], _BATCH, self._next_look_ms
        for key, batches in self._open.items():
            for lease in batches.values():
                over = [at for at, until_ms in lease.ends() if until_ms <= now_ms]
                next_ms = min([next_ms, *(end for _, end in lease.ends() if end > now_ms)])
                if over and left > 0:
                    due.append(_Due(key, lease, over[:left]))
                    left -= len(over)
        if due and await self._repeat(due) is not None:
            await self._clock.sleep_ms(_RETRY_MS)
        if due:
            return  # more may be due
        self._next_look_ms = min(self._next_look_ms, next_ms)
        await wait_until_set(self._earlier, self._clock, max(self._next_look_ms - now_ms, 1))

    async def _repeat(self, due: Sequence[_Due]) -> StoreError | None:
        copies = [self._copy(key, offset) for key, _, offsets in due for offset in offsets]
        appends = [copy for copy in copies if copy is not None]
        statements = [self.put(key, lease.acknowledged(offsets)) for key, lease, offsets in due]

        def finish(error: StoreError | None) -> None:
            if error is None:
                return
            for key, lease, offsets in due:
                now = self.get(key, lease.pop_ms) or lease.acknowledged(lease.offsets)
                self._open[key][lease.pop_ms] = now.reopened(offsets)

        done, ended = awaitable_done(finish)
        self._routing.append(appends, done, statements)
        return await ended

    def _copy(self, key: OffsetKey, offset: int) -> Append | None:
        """Return the append of a message to the retry topic; None if it is not stored any more."""
        group, topic, queue_id = key
        log = self._store.find_log(topic, queue_id)
        record = None if log is None else self._store.record(log, offset)
        if record is None:
            if log is not None:
                _log.warning(
                    "topic %s, queue %d: the message at offset %d expired before group %s was done "
                    "with it, and is not repeated",
                    topic,
                    queue_id,
                    offset,
                    group,
                )
            return None
        message = StoredMessage.read(record)
        properties = _repeatable(message.properties, topic, f"{topic}/{queue_id}, offset {offset}")
        if not topic.startswith(RETRY_PREFIX):
            topic = real_topic(topic, group, RETRIES)
        return self._routing.restored(
            replace(message, reconsume_times=message.reconsume_times + 1),
            topic,
            0,
            properties=properties,
            sys_flag=message.sys_flag,
        )

    def _note(self, lease: PopLease) -> None:
        look_ms = min(end_ms for _, end_ms in lease.ends())
        if look_ms < self._next_look_ms:
            self._next_look_ms = look_ms
            self._earlier.set()


def _repeatable(stored: bytes, topic: str, place: str) -> bytes:
    """Return the properties of a message's copy: with its topic, and with room for a pop's handle.

    As bytes, because they are what a client sent: perhaps no UTF-8, or with a separator in a value.
    A message that cannot be copied would keep all others from being repeated.
    """
    stored = props.with_default(stored, props.RETRY_TOPIC, topic)
    parts = stored.split(b"\x02")
    left_out = []
    while len(stored) > props.MAX_BYTES - _HANDLE_BYTES:
        longest = max(parts, key=len)
        parts.remove(longest)
        stored = b"\x02".join(parts)
        left_out.append(longest.partition(b"\x01")[0].decode(errors="replace"))
    if left_out:
        _log.error(
            "%s: repeated without its properties %s, which leave no room for a repetition's own; "
            "send shorter ones",
            place,
            ", ".join(left_out),
        )
    return stored
