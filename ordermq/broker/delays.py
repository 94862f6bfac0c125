"""Delayed messages: those of a level wait in its queue of the schedule topic, timed ones apart.

Delivery is one transaction: the message enters its real queue, the level's cursor moves on,
and the waiting copy goes. A crash leaves all of it or none, so each is delivered once.
"""

from __future__ import annotations

import asyncio
from itertools import takewhile

from ordermq.broker.context import BrokerContext
from ordermq.broker.group_commit import Append, QueueLog, Statement
from ordermq.broker.long_poll import until_set_or_passed
from ordermq.broker.placing import restored
from ordermq.broker.topics import DELAY_LEVELS_MS
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.model.names import SCHEDULE_TOPIC
from ordermq.model.stored_message import StoredMessage

_CURSOR_GROUP = "%SCHEDULE%"  # no client's group: the level cursors lie among the offsets
_BATCH = 256  # messages delivered in one transaction
_LONGEST_SLEEP_MS = 1_000  # due times are wall-clock: a jump is noticed after this
_RETRY_MS = 1_000  # after a failed write


class DelayedDelivery:
    """Moves due messages to their queues, on the loop thread."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._arrived = asyncio.Event()
        context.store.on_append(self._on_append)

    async def run(self) -> None:
        """Deliver what is due, when it is due, until cancelled."""
        while True:
            self._arrived.clear()
            wait_ms = _LONGEST_SLEEP_MS
            for level in range(len(DELAY_LEVELS_MS)):
                waiting = self._context.store.find_log(SCHEDULE_TOPIC, level)
                if waiting is not None:
                    wait_ms = min(wait_ms, await self._deliver(waiting))
            await until_set_or_passed(self._arrived, self._context.clock, max(wait_ms, 1))

    def _on_append(self, append: Append) -> None:
        if append.log.topic == SCHEDULE_TOPIC:
            self._arrived.set()

    def _cursor(self, waiting: QueueLog) -> int:
        key = _CURSOR_GROUP, SCHEDULE_TOPIC, waiting.queue_id
        return self._context.offsets.get(key) or 0

    async def _deliver(self, waiting: QueueLog) -> int:
        """Deliver one level's due messages; return how long until its next may be due, ms."""
        store = self._context.store
        while (cursor := self._cursor(waiting)) < waiting.max_offset:
            now_ms = self._context.clock.wall_ms()
            rows = store.scheduled(waiting, cursor, _BATCH)
            due = _due(rows, now_ms)
            if not due:
                return max(rows[0][0] - now_ms, 1)
            appends = [found for record in due if (found := self._real(record)) is not None]
            error = await self._move(waiting, cursor + len(due), appends)
            if error is not None:
                return _RETRY_MS
        return _LONGEST_SLEEP_MS

    def _real(self, record: bytes) -> Append | None:
        message = StoredMessage.read(record)
        properties = props.decode_bytes(message.properties)
        topic = properties.get(props.REAL_TOPIC, "")
        queue_id = int(properties.get(props.REAL_QUEUE_ID, "0"))
        return restored(
            self._context,
            message,
            topic,
            queue_id,
            properties=message.properties,
            sys_flag=message.sys_flag,
        )

    async def _move(
        self, waiting: QueueLog, cursor: int, appends: list[Append]
    ) -> StoreError | None:
        moved: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        key = _CURSOR_GROUP, SCHEDULE_TOPIC, waiting.queue_id
        # The last one stays: a table's greatest offset is where a restart goes on counting.
        statements: list[Statement] = [
            self._context.offsets.statement(key, cursor),
            (f"DELETE FROM {waiting.table} WHERE off < ?", (cursor - 1,)),
        ]

        def finish(error: StoreError | None) -> None:
            if error is None:
                self._context.offsets.note(key, cursor)
                waiting.min_offset = max(waiting.min_offset, cursor - 1)
            if not moved.done():
                moved.set_result(error)

        self._context.append(appends, finish, statements)
        return await moved


def _due(rows: list[tuple[int, bytes]], now_ms: int) -> list[bytes]:
    return [record for _, record in takewhile(lambda row: row[0] <= now_ms, rows)]


class TimedDelivery:
    """Moves timed messages to their queues when they are due, on the loop thread."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._arrived = asyncio.Event()
        context.store.on_append(self._on_append)

    async def run(self) -> None:
        """Deliver what is due, when it is due, until cancelled."""
        context = self._context
        while True:
            self._arrived.clear()
            wait_ms = _LONGEST_SLEEP_MS
            while taken := context.timers.take_due(context.clock.wall_ms(), _BATCH):
                if await self._move(taken) is not None:
                    wait_ms = _RETRY_MS
                    break
            else:
                due_ms = context.timers.next_due_ms()
                if due_ms is not None:
                    wait_ms = min(wait_ms, due_ms - context.clock.wall_ms())
            await until_set_or_passed(self._arrived, context.clock, max(wait_ms, 1))

    def _on_append(self, append: Append) -> None:
        if append.log is self._context.timers.log:
            self._arrived.set()

    async def _move(self, taken: list[tuple[int, int]]) -> StoreError | None:
        timers = self._context.timers
        removals = [timers.removal(offset) for offset, _ in taken]
        appends = [real for offset, _ in taken if (real := self._real(offset)) is not None]
        moved: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

        def finish(error: StoreError | None) -> None:
            if error is None:
                for removal in removals:
                    timers.left(removal)
            else:
                timers.put_back(taken)
            if not moved.done():
                moved.set_result(error)

        statements = [statement for removal in removals for statement in removal.statements]
        self._context.append(appends, finish, statements)
        return await moved

    def _real(self, offset: int) -> Append | None:
        message = self._context.timers.message(offset)
        properties = props.decode_bytes(message.properties)
        return restored(
            self._context,
            message,
            properties.pop(props.REAL_TOPIC, ""),
            int(properties.pop(props.REAL_QUEUE_ID, "0")),
            properties=props.encode(properties).encode(),
            sys_flag=message.sys_flag,
        )
