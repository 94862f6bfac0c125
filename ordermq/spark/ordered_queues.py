"""The process queues of a Spark worker process, one a stage and message queue.

Spark reuses worker processes for many tasks and gives none its queue again for sure, so an
entry is only memory: whatever task comes next begins it anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from ordermq.core import ProcessQueue, interface
from ordermq.errors import OrderingError
from ordermq.model.message_queue import MessageQueue

MOST_QUEUES = 1_024
OLDEST_S = 600.0  # an unused entry is dropped after this


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which run of which task this is.

    Args:
        stage: unique for each `apply_in_order` call.
        query_id: the streaming query's, kept over restarts; None in batch.
        batch_id: the micro-batch; None in batch.
        attempt: 0 at first.
        task_attempt: unique in the application: a replayed batch is another run.
    """

    stage: str
    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int
    task_attempt: int


@dataclass(slots=True)
class _Entry:
    process_queue: interface.ProcessQueue
    task: TaskPlace
    used_s: float


class QueueTable:
    """Bounded in number and age; one thread at a time, as Spark's workers are."""

    def __init__(self, most: int = MOST_QUEUES, oldest_s: float = OLDEST_S) -> None:
        self._most = most
        self._oldest_s = oldest_s
        self._entries: OrderedDict[tuple[str, str | None, MessageQueue], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def of(
        self, task: TaskPlace, queue: MessageQueue, first_offset: int, now_s: float | None = None
    ) -> interface.ProcessQueue:
        """The queue's process queue in this task; a new task begins it anew at `first_offset`.

        Raises: OrderingError: a later micro-batch begins before what an earlier one did here.
        """
        now_s = time.monotonic() if now_s is None else now_s
        key = (task.stage, task.query_id, queue)
        entry = self._entries.get(key)
        if entry is None or entry.task.task_attempt != task.task_attempt:
            if entry is not None:
                _check_continues(entry, task, queue, first_offset)
            process_queue = ProcessQueue(str(queue)) if entry is None else entry.process_queue
            process_queue.reset(first_offset)
            entry = self._entries[key] = _Entry(process_queue, task, now_s)
        entry.used_s = now_s
        self._entries.move_to_end(key)
        self._forget(now_s)
        return entry.process_queue

    def _forget(self, now_s: float) -> None:
        while len(self._entries) > 1:
            oldest = next(iter(self._entries.values()))
            if len(self._entries) <= self._most and now_s - oldest.used_s <= self._oldest_s:
                return
            self._entries.popitem(last=False)


def _check_continues(
    entry: _Entry, task: TaskPlace, queue: MessageQueue, first_offset: int
) -> None:
    before = entry.task.batch_id
    if before is None or task.batch_id is None or task.batch_id <= before:
        return  # the same or an older batch is a replay
    done = entry.process_queue.next_uncommitted
    if first_offset < done:
        raise OrderingError(
            f"micro-batch {task.batch_id} begins at offset {first_offset}, but batch {before} "
            f"went up to {done - 1} in this worker: the query was given another checkpoint's "
            "offsets, or the topic was created anew; start it with a new checkpoint",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=first_offset,
        )


TABLE = QueueTable()
