"""Delayed messages: by level, in one queue per level, and timed messages, to the millisecond.

Delivery is one write: the message enters its real queue, and its waiting copy leaves (a level
also moves its cursor). A crash leaves all of it or nothing, so each is delivered once.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable

from ordermq.broker.message_routing import DeliveryParts, timer_delay_ms
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import (
    Append,
    Done,
    PendingLog,
    QueueLog,
    Statement,
    Write,
    awaitable_done,
)
from ordermq.clock import wait_until_set
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.model.delay_levels import DELAY_LEVELS_MS
from ordermq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from ordermq.model.recall_handle import RecallHandle
from ordermq.model.stored_message import StoredMessage

# The cursor of each level is stored as an offset of this group; no client may use the name.
_CURSOR_GROUP = "%SCHEDULE%"
_BATCH = 256  # messages delivered in one write
_LONGEST_SLEEP_MS = 1_000  # due times are wall-clock: a jump of it is noticed after this
_RETRY_MS = 1_000  # after a failed write


class DelayedMessages:
    """Delivers messages with a delay level, on the loop thread."""

    def __init__(self, parts: DeliveryParts) -> None:
        store = self._store = parts.store
        self._routing = parts.routing
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._steady = parts.steady
        self._started_ms = parts.steady.ms()
        # The first offset of each level that this run of the broker gives.
        self._first_offsets = {
            each.queue_id: each.max_offset for each in store.logs() if each.topic == SCHEDULE_TOPIC
        }
        self._arrived = asyncio.Event()
        store.on_append(self._on_append)

    async def round(self) -> None:
        """Deliver what is due, and wait until more may be."""
        # Cleared before looking: a message that arrives meanwhile ends the next wait.
        self._arrived.clear()
        wait_ms, broken = _LONGEST_SLEEP_MS, None
        for level in range(len(DELAY_LEVELS_MS)):
            waiting = self._store.find_log(SCHEDULE_TOPIC, level)
            if waiting is None:
                continue
            try:
                wait_ms = min(wait_ms, await self._deliver(waiting))
            except Exception as error:  # noqa: BLE001 - raised below
                broken = error  # the messages of the other levels are due all the same
        if broken is not None:
            raise broken
        await wait_until_set(self._arrived, self._clock, max(wait_ms, 1))

    def _on_append(self, append: Append) -> None:
        if append.log.topic == SCHEDULE_TOPIC:
            self._arrived.set()

    async def _deliver(self, waiting: QueueLog) -> int:
        """Deliver one level's due messages; return the time until its next may be due, ms."""
        key = _CURSOR_GROUP, SCHEDULE_TOPIC, waiting.queue_id
        # The cursor is the first offset of the level that was not delivered yet.
        while (cursor := self._offsets.get(key) or 0) < waiting.max_offset:
            now_ms = self._steady.ms()
            rows = self._store.scheduled(waiting, cursor, _BATCH)
            times = [self._due_ms(waiting, cursor + at, row[0]) for at, row in enumerate(rows)]
            # Within a level, times ascend with offsets: the first that is not due ends the batch.
            count = next((at for at, due_ms in enumerate(times) if due_ms > now_ms), len(times))
            due = [record for _, record in rows[:count]]
            if not due:
                return max(times[0] - now_ms, 1)
            appends = [found for record in due if (found := self._restored(record)) is not None]
            error = await self._move(waiting, cursor + len(due), appends)
            if error is not None:
                return _RETRY_MS
        return _LONGEST_SLEEP_MS

    def _due_ms(self, waiting: QueueLog, offset: int, stored_ms: int) -> int:
        if offset >= self._first_offsets.get(waiting.queue_id, 0):
            return stored_ms
        # An earlier run has stored it, whose clock may have been ahead: its whole delay has passed
        # when it has passed since this one began.
        return min(stored_ms, self._started_ms + DELAY_LEVELS_MS[waiting.queue_id])

    def _restored(self, record: bytes) -> Append | None:
        message = StoredMessage.read(record)
        # The properties stay as they are, REAL_TOPIC included.
        properties = props.decode_bytes(message.properties)
        return self._routing.restored(
            message,
            properties.get(props.REAL_TOPIC, ""),
            int(properties.get(props.REAL_QUEUE_ID, "0")),
            properties=message.properties,
            sys_flag=message.sys_flag,
        )

    async def _move(
        self, waiting: QueueLog, cursor: int, appends: list[Append]
    ) -> StoreError | None:
        key = _CURSOR_GROUP, SCHEDULE_TOPIC, waiting.queue_id
        # The last one stays: a restart continues counting after a table's greatest offset.
        sql = f"DELETE FROM {waiting.table} WHERE off < ?"
        statements = [
            self._offsets.statement(key, cursor),
            Statement(sql, (cursor - 1,), waiting),
        ]

        def finish(error: StoreError | None) -> None:
            if error is None:
                self._offsets.note(key, cursor)
                waiting.min_offset = max(waiting.min_offset, cursor - 1)

        done, ended = awaitable_done(finish)
        self._routing.append(appends, done, statements)
        return await ended


class _DueTimes:
    """Offsets of waiting messages by the time at which they are due.

    A heap of distinct times, and per time a list: many messages share one millisecond, and a recall
    finds its message by the time in its handle without searching the heap.

    Args:
        now_ms: the clock that the times are of.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self._offsets: dict[int, list[int]] = {}  # due time, ms since 1970 -> offsets, as they came
        self._times: list[int] = []  # a heap of the keys of `_offsets`

    def add(self, offset: int, due_ms: int) -> None:
        """Add a message."""
        offsets = self._offsets.get(due_ms)
        if offsets is None:
            offsets = self._offsets[due_ms] = []
            heapq.heappush(self._times, due_ms)
        offsets.append(offset)

    def at(self, due_ms: int) -> list[int]:
        """Return the messages that are due at a time."""
        return list(self._offsets.get(due_ms, ()))

    def has(self, offset: int, due_ms: int) -> bool:
        """Return whether a message waits for a time."""
        return offset in self._offsets.get(due_ms, ())

    def remove(self, offset: int, due_ms: int) -> None:
        """Remove a message."""
        offsets = self._offsets[due_ms]
        offsets.remove(offset)
        if not offsets:
            del self._offsets[due_ms]

    def left_ms(self) -> int | None:
        """Return the time until the next one is due; None if none waits."""
        # A time stays in the heap when all its messages were recalled; it is dropped here,
        # because removing it from the middle of the heap would be O(n).
        while self._times and self._times[0] not in self._offsets:
            heapq.heappop(self._times)
        return self._times[0] - self.now_ms() if self._times else None

    def take_due(self) -> list[tuple[int, int]]:
        """Take a batch of (offset, due time), in due order."""
        taken: list[tuple[int, int]] = []
        while len(taken) < _BATCH and (left_ms := self.left_ms()) is not None and left_ms <= 0:
            due_ms = self._times[0]
            offsets = self._offsets[due_ms]
            now = offsets[: _BATCH - len(taken)]
            taken += [(offset, due_ms) for offset in now]
            del offsets[: len(now)]
            if not offsets:
                del self._offsets[due_ms]
        return taken

    def put_back(self, taken: list[tuple[int, int]]) -> None:
        """Add messages that were taken, where they were."""
        # Before others of the same time: messages of one time keep their order.
        for offset, due_ms in reversed(taken):
            self.add(offset, due_ms)
            offsets = self._offsets[due_ms]
            offsets.insert(0, offsets.pop())


class TimedMessages:
    """Messages that are due at a time of their own; they can be recalled until then.

    All of it runs on the loop thread. Memory holds one number per waiting message.
    """

    def __init__(self, parts: DeliveryParts, statistics: BrokerStatistics) -> None:
        store = self._store = parts.store
        self._routing = parts.routing
        clock = self._clock = parts.clock
        self._statistics = statistics
        self._pending = PendingLog(store, TIMER_TOPIC)
        # A time that a user gave is one of the wall clock, which may be set; a delay is not.
        self._at_times = _DueTimes(clock.wall_ms)
        self._after_delays = _DueTimes(parts.steady.ms)
        # Messages of an earlier run that are due sooner than it said, by the time that it said,
        # which is in the handle for a recall: their offsets, and when they are due.
        self._sooner: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._load(parts.steady.ms())
        self._arrived = asyncio.Event()
        store.on_append(self._on_append)

    def _load(self, started_ms: int) -> None:
        delays = set()
        # The clock of an earlier run may have been ahead, or this one may be behind: a whole delay
        # has passed when it has passed since this run began.
        for offset, due_ms, record in self._pending.containing(b"TIMER_DELAY_", started_ms):
            delay_ms = timer_delay_ms(props.decode_bytes(StoredMessage.read(record).properties))
            if delay_ms is not None:
                delays.add(offset)
                soonest_ms = min(due_ms, started_ms + delay_ms)
                self.add(offset, soonest_ms, is_delay=True)
                if soonest_ms < due_ms:
                    self._sooner[due_ms].append((offset, soonest_ms))
        for offset, due_ms in self._pending.load():
            if offset not in delays:
                self.add(offset, due_ms)

    def add(self, offset: int, due_ms: int, *, is_delay: bool = False) -> None:
        """Add a durable message."""
        waiting = self._after_delays if is_delay else self._at_times
        waiting.add(offset, due_ms)
        self._statistics.timed_messages += 1

    async def round(self) -> None:
        """Deliver what is due, and wait until more may be."""
        self._arrived.clear()
        waits_ms = [await self._deliver(each) for each in (self._at_times, self._after_delays)]
        await wait_until_set(self._arrived, self._clock, max(min(waits_ms), 1))

    async def _deliver(self, waiting: _DueTimes) -> int:
        """Deliver what is due; return the time until more may be, ms."""
        while taken := waiting.take_due():
            self._statistics.timed_messages -= len(taken)  # no longer to be recalled
            if await self._move(waiting, taken) is not None:
                return _RETRY_MS
        left_ms = waiting.left_ms()
        return _LONGEST_SLEEP_MS if left_ms is None else min(left_ms, _LONGEST_SLEEP_MS)

    def recall(self, handle: RecallHandle, done: Done) -> bool:
        """Remove the handle's message before it is due; False if it does not wait.

        `done` is called once the removal is durable. From now on it cannot be delivered.
        """
        # Taken at once, before the write: a delivery that is due meanwhile must not find it.
        taken = self._take_recalled(handle)
        if taken is None:
            return False
        waiting, offset, due_ms = taken
        removal = self._pending.removal(offset)

        def finish(error: StoreError | None) -> None:
            if error is None:
                self._pending.removed(removal)
                self._statistics.messages_recalled += 1
            else:
                self._put_back(waiting, [(offset, due_ms)])
            done(error)

        self._store.submit(Write(finish, statements=removal.statements))
        return True

    def _on_append(self, append: Append) -> None:
        if append.log is self._pending.log:
            self._arrived.set()

    def _put_back(self, waiting: _DueTimes, taken: list[tuple[int, int]]) -> None:
        waiting.put_back(taken)
        self._statistics.timed_messages += len(taken)

    def _take_recalled(self, handle: RecallHandle) -> tuple[_DueTimes, int, int] | None:
        said_ms = handle.deliver_at_ms
        for waiting in (self._at_times, self._after_delays):
            found = [(offset, said_ms) for offset in waiting.at(said_ms)]
            found += [each for each in self._sooner.get(said_ms, ()) if waiting.has(*each)]
            for offset, due_ms in found:
                properties = props.decode_bytes(self._message(offset).properties)
                # Several messages may be due in the same millisecond.
                if (
                    properties.get(props.UNIQ_KEY) == handle.message_id
                    and properties.get(props.REAL_TOPIC) == handle.topic
                ):
                    waiting.remove(offset, due_ms)
                    self._statistics.timed_messages -= 1
                    return waiting, offset, due_ms
        return None

    async def _move(self, waiting: _DueTimes, taken: list[tuple[int, int]]) -> StoreError | None:
        try:
            removals = [self._pending.removal(offset) for offset, _ in taken]
            restored = [self._restored(offset) for offset, _ in taken]
        except Exception:
            self._put_back(
                waiting, taken
            )  # else only a restart of the broker would find them again
            raise
        appends = [found for found in restored if found is not None]

        def finish(error: StoreError | None) -> None:
            if error is None:
                for removal in removals:
                    self._pending.removed(removal)
            else:
                self._put_back(waiting, taken)

        done, ended = awaitable_done(finish)
        statements = [statement for removal in removals for statement in removal.statements]
        self._routing.append(appends, done, statements)
        return await ended

    def _restored(self, offset: int) -> Append | None:
        message = self._message(offset)
        properties = props.decode_bytes(message.properties)
        return self._routing.restored(
            message,
            properties.pop(props.REAL_TOPIC, ""),
            int(properties.pop(props.REAL_QUEUE_ID, "0")),
            properties=props.encode(properties).encode(),
            sys_flag=message.sys_flag,
        )

    def _message(self, offset: int) -> StoredMessage:
        return StoredMessage.read(self._pending.record(offset))
