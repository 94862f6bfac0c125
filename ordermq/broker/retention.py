"""Old messages go: those past an age, and the oldest of all while the store is too large.

In small steps, each a write of its own between those of clients. The newest message of a queue
always stays: a table's greatest offset is where a restart goes on counting. A reader behind the
oldest message left hears "offset moved" at its next pull (docs/internals/protocol.md#pulling) and
goes on from there.
"""

from __future__ import annotations

import asyncio
import heapq

from ordermq.broker.context import BrokerContext
from ordermq.broker.group_commit import QueueLog, Write
from ordermq.broker.topics import belongs_to_broker
from ordermq.errors import StoreError
from ordermq.model.stored_message import stored_at

STEP = 256  # messages deleted in one write


class Retention:
    """Trims the logs of users' topics, on the loop thread."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Look at the store again and again, until cancelled."""
        config, clock = self._context.config, self._context.clock
        while config.retention_ms or config.retention_bytes:
            await clock.sleep_ms(config.retention_interval_ms)
            if config.retention_ms:
                await self._trim_by_age(clock.wall_ms() - config.retention_ms)
            if config.retention_bytes:
                await self._trim_by_size(config.retention_bytes)

    def _logs(self) -> list[QueueLog]:
        """Those with a message that may go."""
        return [
            found
            for found in self._context.store.logs()
            if not belongs_to_broker(found.topic) and _spare(found) > 0
        ]

    async def _trim_by_age(self, before_ms: int) -> None:
        for found in self._logs():
            first_kept = self._context.store.search(found, before_ms, after=False)
            while found.min_offset < first_kept and _spare(found) > 0:
                if not await self._trim(found, first_kept - found.min_offset):
                    return

    async def _trim_by_size(self, most_bytes: int) -> None:
        store = self._context.store
        heads = [(self._oldest_ms(found), found.row, found) for found in self._logs()]
        heapq.heapify(heads)
        while heads and store.used_bytes() > most_bytes:
            found = heads[0][2]
            if not await self._trim(found, STEP):
                return
            if _spare(found) > 0:
                heapq.heapreplace(heads, (self._oldest_ms(found), found.row, found))
            else:
                heapq.heappop(heads)

    def _oldest_ms(self, found: QueueLog) -> int:
        record = self._context.store.record(found, found.min_offset)
        return 0 if record is None else stored_at(record)

    async def _trim(self, found: QueueLog, count: int) -> bool:
        """Delete so many of the oldest, at most a step; False if the store could not write."""
        count = min(count, STEP, _spare(found))
        # Moved first: nobody is sent to a message that may be gone when he asks for it.
        found.min_offset += count
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

        def finish(error: StoreError | None) -> None:
            if not done.done():
                done.set_result(error)

        statement = f"DELETE FROM {found.table} WHERE off < ?", (found.min_offset,)
        self._context.store.submit(Write(finish, statements=[statement]))
        error = await done
        if error is not None:
            # Readers keep the new beginning; the rows go with the next step of this log.
            self._context.statistics.writes_failed += 1
            return False
        self._context.statistics.messages_trimmed += count
        return True


def _spare(found: QueueLog) -> int:
    """How many of its messages may go."""
    return found.max_offset - found.min_offset - 1
