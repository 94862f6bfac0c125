"""Messages that are due at a time of their own, to the millisecond; kept apart, durable."""

from __future__ import annotations

import heapq

from ordermq.broker.group_commit import QueueLog
from ordermq.broker.set_aside import Removal, SetAside
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.model import properties as props
from ordermq.model.names import TIMER_TOPIC
from ordermq.model.recall_handle import RecallHandle
from ordermq.model.stored_message import StoredMessage


class Timers:
    """The waiting messages by their times; on the loop thread. In memory is a number of each."""

    def __init__(self, store: Store, statistics: BrokerStatistics) -> None:
        self._statistics = statistics
        self._aside = SetAside(store, TIMER_TOPIC)
        self._waiting: dict[int, list[int]] = {}  # due, ms since 1970 -> offsets as they came
        self._times: list[int] = []  # a heap of its keys
        for offset, due_ms in self._aside.load():
            self.add(offset, due_ms)

    @property
    def log(self) -> QueueLog:
        """Where they lie."""
        return self._aside.log

    def add(self, offset: int, due_ms: int) -> None:
        """Let a durable message wait."""
        offsets = self._waiting.get(due_ms)
        if offsets is None:
            offsets = self._waiting[due_ms] = []
            heapq.heappush(self._times, due_ms)
        offsets.append(offset)
        self._statistics.timed_messages += 1

    def next_due_ms(self) -> int | None:
        """When the first of them is due."""
        while self._times and self._times[0] not in self._waiting:  # all of that time recalled
            heapq.heappop(self._times)
        return self._times[0] if self._times else None

    def take_due(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """(offset, due) of messages that are due, in the order they are; they wait no more."""
        taken: list[tuple[int, int]] = []
        while len(taken) < most and (due_ms := self.next_due_ms()) is not None:
            if due_ms > now_ms:
                break
            offsets = self._waiting[due_ms]
            now = offsets[: most - len(taken)]
            taken += [(offset, due_ms) for offset in now]
            del offsets[: len(now)]
            if not offsets:
                del self._waiting[due_ms]
        self._statistics.timed_messages -= len(taken)
        return taken

    def put_back(self, taken: list[tuple[int, int]]) -> None:
        """They wait on, before others of their times: they could not leave."""
        for offset, due_ms in reversed(taken):
            self.add(offset, due_ms)
            offsets = self._waiting[due_ms]
            offsets.insert(0, offsets.pop())

    def take(self, handle: RecallHandle) -> int | None:
        """The offset of the message that is meant; it waits no more. None if none waits."""
        offsets = self._waiting.get(handle.deliver_at_ms, [])
        for offset in offsets:
            properties = props.decode_bytes(self.message(offset).properties)
            if (
                properties.get(props.UNIQ_KEY) == handle.message_id
                and properties.get(props.REAL_TOPIC) == handle.topic
            ):
                offsets.remove(offset)
                if not offsets:
                    del self._waiting[handle.deliver_at_ms]
                self._statistics.timed_messages -= 1
                return offset
        return None

    def message(self, offset: int) -> StoredMessage:
        """A waiting message."""
        return StoredMessage.read(self._aside.record(offset))

    def removal(self, offset: int) -> Removal:
        """What a write carries when a message leaves; then `left`."""
        return self._aside.removal(offset)

    def left(self, removal: Removal) -> None:
        """The removal is durable."""
        self._aside.removed(removal)
