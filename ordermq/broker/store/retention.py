"""Retention: delete messages older than an age, and the oldest while the store is too large."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store.group_commit import (
    QueueLog,
    Statement,
    Write,
    awaitable_done,
)
from ordermq.broker.store.store import Store
from ordermq.clock import Clock, SteadyWall
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.model.stored_message import stored_at

# Messages deleted per write: small, because each write shares the writer thread with sends.
STEP = 256
_JUMP_MS = 60_000  # drift and small corrections are less
_BELIEVED_AFTER_MS = 3_600_000


class Retention:
    """Trims the logs of users' topics, on the loop thread.

    A reader behind the oldest message left gets "offset moved" at its next pull and continues
    from there (docs/internals/protocol.md#pulling).

    Args:
        is_kept: True for topics that are never trimmed.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        steady: SteadyWall,
        statistics: BrokerStatistics,
        is_kept: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._steady = steady
        self._ahead_since_ms: int | None = None  # monotonic
        self._statistics = statistics
        self._is_kept = is_kept

    async def trim(self) -> bool:
        """Check the store once; False if nothing is ever deleted."""
        config = self._config
        if config.retention_ms:
            await self._trim_by_age(self._now_ms() - config.retention_ms)
        if config.retention_bytes:
            await self._trim_by_size(config.retention_bytes)
        return bool(config.retention_ms or config.retention_bytes)

    def _now_ms(self) -> int:
        """Return the wall time, but not that of a clock that has just jumped forward."""
        # A clock that is ahead for a moment must not delete everything. One that stays ahead was
        # behind when the broker started, as on a host that boots without the time.
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.now_ms()
        if wall_ms - self._steady.ms() < _JUMP_MS:
            self._ahead_since_ms = None
            return wall_ms
        if self._ahead_since_ms is None:
            self._ahead_since_ms = now_ms
        is_believed = now_ms - self._ahead_since_ms >= _BELIEVED_AFTER_MS
        return wall_ms if is_believed else self._steady.ms()

    def _trimmable_logs(self) -> list[QueueLog]:
        return [
            log
            for log in self._store.logs()
            if not self._is_kept(log.topic) and _removable_count(log) > 0
        ]

    async def _trim_by_age(self, before_ms: int) -> None:
        for log in self._trimmable_logs():
            first_kept = self._store.search(log, before_ms, after=False)
            while log.min_offset < first_kept and _removable_count(log) > 0:
                if not await self._trim(log, first_kept - log.min_offset):
                    break  # the topic may have been deleted meanwhile: the others have their turn

    async def _trim_by_size(self, max_bytes: int) -> None:
        # A heap of queues by the age of their oldest message: each step takes the oldest step
        # of all queues, so no queue loses newer messages while another keeps older ones.
        heads = [(self._oldest_ms(log), log.row, log) for log in self._trimmable_logs()]
        heapq.heapify(heads)
        while heads and self._store.used_bytes() > max_bytes:
            log = heads[0][2]
            if await self._trim(log, STEP) and _removable_count(log) > 0:
                heapq.heapreplace(heads, (self._oldest_ms(log), log.row, log))
            else:
                heapq.heappop(heads)

    def _oldest_ms(self, log: QueueLog) -> int:
        record = self._store.record(log, log.min_offset)
        return 0 if record is None else stored_at(record)

    async def _trim(self, log: QueueLog, count: int) -> bool:
        """Delete up to `count` of the oldest messages, at most one step; False if it failed."""
        count = min(count, STEP, _removable_count(log))
        # Moved before the delete: no pull is sent to an offset whose row may be gone by then.
        log.min_offset = self._store.next_stored(log, log.min_offset + count)

        def finish(error: StoreError | None) -> None:
            if error is None:
                self._statistics.messages_trimmed += count
            else:
                # Readers keep the new beginning; the rows go with the next step of this log.
                self._statistics.writes_failed += 1

        done, ended = awaitable_done(finish)
        sql = f"DELETE FROM {log.table} WHERE off < ?"
        statement = Statement(sql, (log.min_offset,), log)
        self._store.submit(Write(done, statements=[statement]))
        return await ended is None


def _removable_count(log: QueueLog) -> int:
    # The newest message stays: a restart continues counting after a table's greatest offset.
    return log.max_offset - log.min_offset - 1
