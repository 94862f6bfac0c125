"""How a stage calls the user's function: inside the lease, a process queue around each call."""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from ordermq.core import ProcessQueue, interface
from ordermq.errors import ConfigError, FunctionFailed, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import row_tokens
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.failure_policy import DeadLetter, DeadLetters, ParkedKeys, ParkKey
from ordermq.spark.stages.output import OutputShape

Engine = Literal["pandas", "arrow"]


@dataclass(frozen=True)
class StageSpec:
    """A stage as the driver made it and the executors run it.

    Args:
        stage: unique for each stage; names its process queues.
        remedy: what to do where the order is broken, for the error.
        rows_a_call: at most so many, None: as they come.
        client: options of the format, for dead letters; empty where none are sent.
    """

    function: Callable[..., Any]
    with_context: bool
    engine: Engine
    output: OutputShape
    stage: str
    remedy: str
    on_failure: DeadLetter | None
    rows_a_call: int | None
    fence: ExecutorLease | None
    client: tuple[tuple[str, str], ...] = ()


class Calls:
    """One task's calls."""

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        self.place: TaskPlace = task_place(spec.stage)
        self._policy = spec.on_failure
        self._letters = (
            DeadLetters(spec.on_failure.topic, dict(spec.client)) if spec.on_failure else None
        )
        self.parked: ParkedKeys | None = None
        if isinstance(self._policy, ParkKey):
            self.parked = ParkedKeys(self._policy.directory)
            self.parked.load()

    def context(
        self,
        queue: MessageQueue | None,
        lease: int | None,
        key: Any = None,
        is_continued: bool = False,
    ) -> StageContext:
        place = self.place
        where = (place.query_id, place.batch_id, place.partition, place.attempt)
        return StageContext(*where, queue, key, is_continued, lease)

    def of_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[list[Any]]:
        """Call with the rows of a queue's run, in order; each call's answer."""
        process_queue = TABLE.of(self.place, queue, offsets[first])
        process_queue.put_columns(offsets[first:end], row_tokens(first, end))
        context = self.context(queue, lease_of(rows, first))
        yield from self._drain(process_queue, rows, end - first, context)

    def of_key(
        self, rows: Any, queue: MessageQueue | None, key: Any, is_continued: bool
    ) -> Iterator[list[Any]]:
        """Call with rows of one key, whatever queues they are of; each call's answer."""
        context = self.context(queue, lease_of(rows, 0), key, is_continued)
        if self._policy is None and (self.spec.rows_a_call or rows.num_rows) >= rows.num_rows:
            yield self.call(rows, context)
            return
        process_queue = ProcessQueue(f"key {key!r}")
        # Places in the run serve as offsets: those of several queues do not compare.
        places = row_tokens(0, rows.num_rows)
        process_queue.put_columns(places.cast("B").cast("q"), places)
        yield from self._drain(process_queue, rows, rows.num_rows, context)

    def _drain(
        self, process_queue: interface.ProcessQueue, rows: Any, count: int, context: StageContext
    ) -> Iterator[list[Any]]:
        """Take, call, commit; what fails is taken again in halves until it stands alone."""
        most = min(self.spec.rows_a_call or count, count)
        limit, attempts = most, 0
        while True:
            _, tokens = process_queue.take_columns(limit)
            taken = len(tokens)
            if not taken:
                return
            # Offsets rise with the rows, so what is taken lies together.
            part = self.without_parked(rows.slice(tokens[0], taken), context)
            answer: list[Any] = []
            if part.num_rows:
                try:
                    answer = self.call(part, context)
                except FunctionFailed as error:
                    if self._policy is None:
                        raise
                    if taken > 1:
                        process_queue.rollback()
                        limit = (taken + 1) // 2
                        continue
                    attempts += 1
                    if attempts < self._policy.max_attempts:
                        process_queue.rollback()
                        continue
                    self.give_up(part, context, error)
                    limit, attempts = most, 0
            process_queue.commit()
            yield answer

    def call(self, rows: Any, context: StageContext) -> list[Any]:
        """One call of the function; its answer as batches of the schema.

        Raises: LockLost: the queue is another's now. FunctionFailed: what the function raised.
        """
        spec = self.spec
        if spec.fence is not None:
            spec.fence.check_rows(rows, context)
        given = rows.to_pandas() if spec.engine == "pandas" else rows
        try:
            answer = spec.function(given, context) if spec.with_context else spec.function(given)
        except Exception as error:
            raise failed(rows, error) from error
        return spec.output.batches(answer)

    def give_up(self, row: Any, context: StageContext, error: FunctionFailed) -> None:
        """Send a failing row away, and park its key if the user wants that."""
        assert self._policy is not None
        reason = str(error.__cause__ or error)
        values = row.slice(0, 1).to_pylist()[0]
        queue = context.queue or _queue_of(values)
        if self.parked is not None and isinstance(self._policy, ParkKey):
            key = values.get(self._policy.key)
            if key is not None:
                self.parked.park(key, queue, values["offset"], reason)
        self._send_away(values, queue, reason)

    def divert(self, row: Any, queue: MessageQueue, reason: str) -> None:
        """Send a parked key's row after the one that failed."""
        self._send_away(row, queue, reason)

    def _send_away(self, values: Any, queue: MessageQueue, reason: str) -> None:
        assert self._policy is not None
        assert self._letters is not None
        self._letters.send(values, queue, reason)
        if self._policy.counter is not None:
            self._policy.counter.add(1)

    def without_parked(self, rows: Any, context: StageContext) -> Any:
        if self.parked is None or not self.parked.keys:
            return rows
        assert isinstance(self._policy, ParkKey)
        keys = rows.column(self._policy.key)
        mask = pc.is_in(keys, value_set=pa.array(list(self.parked.keys), type=keys.type))
        if not pc.any(mask).as_py():
            return rows
        held: list[bool] = mask.to_pylist()
        for at, is_held in enumerate(held):
            if is_held:
                held[at] = self._divert_parked(rows.slice(at, 1).to_pylist()[0], context)
        return rows.filter(pa.array([not is_held for is_held in held]))

    def _divert_parked(self, values: Any, context: StageContext) -> bool:
        assert self.parked is not None
        assert isinstance(self._policy, ParkKey)
        parked = self.parked.keys[values[self._policy.key]]
        queue = context.queue or _queue_of(values)
        if not parked.holds(queue, values["offset"]):
            return False
        self.divert(
            values, queue, f"its key is parked since offset {parked.offset} of {parked.queue}"
        )
        return True


def lease_of(rows: Any, row: int) -> int | None:
    """The lease a row was read under; None where the source is not in ordered mode."""
    at = rows.schema.get_field_index("lease")
    return None if at < 0 else rows.column(at)[row].as_py()


def failed(rows: Any, error: Exception) -> FunctionFailed:
    """The error for what the function raised on these rows: says which, and of which queue."""
    first, last = (rows.slice(at, 1).to_pylist()[0] for at in (0, rows.num_rows - 1))
    if rows.num_rows == 1:
        which = f"the row of offset {first['offset']}"
    else:
        which = f"{rows.num_rows} rows, offsets {first['offset']} to {last['offset']}"
    return FunctionFailed(
        f"the stage's function failed on {which}: {type(error).__name__}: {error}. The batch "
        "comes again; on_failure=DeadLetter(topic) or ParkKey(topic) lets the others go on",
        topic=first.get("topic"),
        broker=first.get("broker"),
        queue_id=first.get("queue_id"),
        offset=first.get("offset"),
    )


def _queue_of(values: Any) -> MessageQueue:
    return MessageQueue(values["topic"], values["broker"], values["queue_id"])


@dataclass(frozen=True, slots=True)
class StageContext:
    """Where the rows of one call come from: what outside effects can be made idempotent by.

    Args:
        query_id: of the streaming query, kept over restarts; None in batch.
        batch_id: of the micro-batch, the same when it is run again; None in batch.
        partition: Spark's number of this part of the stage.
        attempt: of the task, 0 at first.
        queue: the rows' message queue; None where a key's rows come from several.
        key: the rows' key where a call is made for each key.
        is_continued: the same key's earlier rows were in the call before.
        lease: the run that holds the queue (ordered mode of the source), else None.
    """

    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int
    queue: MessageQueue | None = None
    key: Any = None
    is_continued: bool = False
    lease: int | None = None


def task_place(stage: str) -> TaskPlace:
    """The running task, as Spark tells it."""
    task = TaskContext.get()
    if task is None:  # a stage driven by hand, as in tests
        return TaskPlace(stage, None, None, 0, 0, threading.get_ident())
    batch = task.getLocalProperty("streaming.sql.batchId")
    return TaskPlace(
        stage,
        task.getLocalProperty("sql.streaming.queryId"),
        int(batch) if batch is not None else None,
        task.partitionId(),
        task.attemptNumber(),
        task.taskAttemptId(),
    )


def takes_context(function: Callable[..., Any], rows: int = 1) -> bool:
    """Whether a function takes a context behind its `rows` first arguments.

    Raises: ConfigError: it takes neither.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C: nothing is known of it
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    if len(needed) <= rows <= len(places) and len(needed) == rows:
        return False
    if len(needed) == rows + 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    raise ConfigError(
        f"the function takes {len(needed)} arguments: expected {rows}, or {rows + 1} with the "
        "context"
    )


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
