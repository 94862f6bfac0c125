"""The invocation of a stage's function: which rows per call, its context, what a failure does.

`StageInvocation` calls it for one task. Each queue's rows pass a native process queue (take,
call, commit), so that a failed call is taken again in halves until the failing row is alone.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ordermq.callables import require_plain
from ordermq.core import ProcessQueue, contract
from ordermq.errors import ConfigError, FunctionFailed, OrderingError, error_text
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.packages import require_packages
from ordermq.spark.row_order import row_tokens
from ordermq.spark.schema import LEASE_COLUMN
from ordermq.spark.session import RunningTask, running_task
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.failure_policy import DeadLetter, FailureHandler
from ordermq.spark.stages.output import FrameCollector, OutputShape

if TYPE_CHECKING:
    from ordermq.spark.stages.rows_by_key import KeyRun

Engine = Literal["pandas", "arrow"]
MOST_EXACT: Final = 1 << 53  # up to here a float has every integer


@dataclass(frozen=True, slots=True)
class StageFunction:
    """The user's function of a stage, and how it wants to be called.

    Args:
        engine: what it is given as rows.
        rows_per_call: maximum number of rows per call; None: as they arrive.
        arguments: how many it takes before the context: the rows, and a state where there is one.
    """

    call: Callable[..., Any]
    engine: Engine
    rows_per_call: int | None = None
    arguments: int = 1


@dataclass(frozen=True)
class StageSpec:
    """A stage as the driver made it and the executors run it.

    Args:
        stage: unique per stage; names its process queues.
        remedy: advice for the user where the order is broken, the end of the error's text.
        rows_per_call: maximum number of rows per call; None: as they arrive.
        fence: checks the lease before each call; None without a column `lease`.
        client: options of the format, for dead letters; empty where none are sent.
    """

    function: Callable[..., Any]
    with_context: bool
    engine: Engine
    output: OutputShape
    stage: str
    remedy: str
    on_failure: DeadLetter | None
    rows_per_call: int | None
    fence: ExecutorLease | None
    client: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StageContext:
    """The origin of a call's rows, by which effects outside can be made idempotent.

    Args:
        query_id: id of the streaming query, kept over restarts; None in a batch query.
        batch_id: number of the micro-batch, the same when it runs again; None in a batch query.
        partition: Spark's number of this part of the stage.
        attempt: number of the task's attempt, 0 for the first.
        queue: the rows' message queue; None where a key's rows come from several.
        key: the rows' key, where a call is made per key.
        is_continued: the call before had earlier rows of the same key.
        lease: id of the run that holds the queue (ordered mode of the source), else None.
    """

    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int
    queue: MessageQueue | None = None
    key: Any = None
    is_continued: bool = False
    lease: int | None = None


def is_spark_udf(function: Any) -> bool:
    """Return whether Spark's `pandas_udf`, `arrow_udf` or `udf` made this function."""
    # A call of such a function makes a Column, which an executor cannot do.
    return hasattr(function, "evalType") and hasattr(function, "func")


def takes_context(function: Callable[..., Any], rows: int = 1) -> bool:
    """Return whether a function takes a context after its first `rows` arguments.

    Raises: ConfigError: it takes another number of arguments, is a UDF of Spark, or asynchronous.
    """
    require_plain("function", function)
    if is_spark_udf(function):
        name = function.__name__
        raise ConfigError(
            f"{name} is decorated with pandas_udf, or is another UDF of Spark, and takes columns: "
            f"use ordered_udf({name}), or pass a function without decorator, which takes rows"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function written in C without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    # A default in the context's place is the user's own argument, not a wish for the context.
    if len(needed) <= rows <= len(positional) and len(needed) == rows:
        return False
    if len(needed) == rows + 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    raise ConfigError(
        f"the function takes {len(needed)} arguments: it must take {rows}, or {rows + 1} with the "
        "context"
    )


# Process queues of a worker.

# Bounds of what a worker keeps: Spark may give it the queues of any number of queries.
MAX_QUEUES = 1_024
MAX_IDLE_S = 600.0


@dataclass(slots=True)
class _Entry:
    process_queue: contract.ProcessQueue
    task: RunningTask
    used_s: float


class ProcessQueues:
    """The process queues of a worker process, one per stage and message queue.

    Spark reuses a worker for many tasks and never promises it the same queue again. So an entry
    only saves the next task the allocation; each task begins it anew.

    Bounded in number and age. Not thread-safe: a worker runs one task at a time.
    """

    def __init__(self, max_queues: int = MAX_QUEUES, max_idle_s: float = MAX_IDLE_S) -> None:
        self._max_queues = max_queues
        self._max_idle_s = max_idle_s
        # Least recently used first.
        self._entries: OrderedDict[tuple[str, str | None, MessageQueue], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self, task: RunningTask, queue: MessageQueue, first_offset: int, now_s: float | None = None
    ) -> contract.ProcessQueue:
        """Return the process queue of this task; a new task's begins at `first_offset`.

        Raises: OrderingError: a later micro-batch begins before the end of an earlier one.
        """
        now_s = time.monotonic() if now_s is None else now_s
        # Not the batch: the next one of the same query continues where this one ended.
        key = (task.stage, task.query_id, queue)
        entry = self._entries.get(key)
        if entry is None or entry.task.task_attempt != task.task_attempt:
            if entry is not None:
                _check_continues(entry, task, queue, first_offset)
            # Rows of a task that failed in the middle may still be in it; `reset` drops them.
            process_queue = ProcessQueue(str(queue)) if entry is None else entry.process_queue
            process_queue.reset(first_offset)
            entry = self._entries[key] = _Entry(process_queue, task, now_s)
        entry.used_s = now_s
        self._entries.move_to_end(key)
        self._drop_idle(now_s)
        return entry.process_queue

    def _drop_idle(self, now_s: float) -> None:
        while len(self._entries) > 1:
            oldest = next(iter(self._entries.values()))
            if len(self._entries) <= self._max_queues and now_s - oldest.used_s <= self._max_idle_s:
                return
            self._entries.popitem(last=False)


def _check_continues(
    entry: _Entry, task: RunningTask, queue: MessageQueue, first_offset: int
) -> None:
    # Spark checks its checkpoint, but not that a batch begins where the one before ended. This
    # finds it only if the same worker sees both, which costs nothing.
    before = entry.task.batch_id
    if before is None or task.batch_id is None or task.batch_id <= before:
        return  # the same or an older batch runs again
    done = entry.process_queue.next_uncommitted
    if first_offset < done:
        raise OrderingError(
            f"micro-batch {task.batch_id} begins at offset {first_offset}, but batch {before} "
            f"ended at {done - 1}: start with a new checkpoint. The query was given the offsets "
            "of another checkpoint, or the topic was created anew",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=first_offset,
        )


PROCESS_QUEUES = ProcessQueues()


# Calling the function.


def frame_of(rows: Any, *, use_threads: bool = True) -> Any:
    """Return a record batch as a pandas DataFrame, no integer of which is changed.

    pandas makes floats of integers where one is missing. Those that no float is are Int64.
    """
    frame = rows.to_pandas(use_threads=use_threads)
    for at, column in enumerate(rows.columns):
        if column.null_count and column.type == pa.int64() and not _are_floats(column):
            import pandas as pd  # type: ignore[import-untyped]  # loaded by now

            kinds = {pa.int64(): pd.Int64Dtype()}
            frame.isetitem(at, column.to_pandas(types_mapper=kinds.get))
    return frame


def _are_floats(column: Any) -> bool:
    ends = pc.min_max(column).as_py()
    return ends["min"] is None or (ends["min"] >= -MOST_EXACT and ends["max"] <= MOST_EXACT)


class SharedFrame:
    """The rows of record batches as pandas DataFrames: each batch is converted once.

    A conversion takes 500 microseconds, for one row as for a thousand, and a slice 20.
    """

    def __init__(self) -> None:
        self._batch: Any = None
        self._frame: Any = None

    def of(self, run: KeyRun) -> Any:
        """Return the rows of a run; the function may write into them."""
        if run.batch is None:
            return frame_of(run.rows, use_threads=False)
        if run.batch is not self._batch:
            # A copy: where Arrow's own memory serves as a column, it cannot be written.
            self._batch, self._frame = run.batch, frame_of(run.batch).copy()
        # No two runs have a row in common, so they may share memory. The shallow copy is a
        # DataFrame of its own; pandas would warn of a write into a slice.
        count = run.rows.num_rows
        frame = self._frame[run.first : run.first + count].copy(deep=False)
        frame.index = range(count)
        return frame


class StageInvocation:
    """Calls the function for the rows of one task.

    Args: by_key: calls are many and short, so their rows and results are converted together; end
        with `rest`.
    """

    def __init__(self, spec: StageSpec, by_key: bool = False) -> None:
        if spec.engine == "pandas":
            require_packages("pandas")  # of this executor: the driver's were looked at before
        self.spec = spec
        self.task = running_task(spec.stage)
        self.failures: FailureHandler | None = None
        if spec.on_failure is not None:
            self.failures = FailureHandler(spec.on_failure, dict(spec.client))
        # Making a context takes as long as a short call, and there may be a call per row.
        needs_context = spec.with_context or spec.fence is not None or self.failures is not None
        self._key_context = self.key_context if needs_context else self._same_context
        self._empty_context = self.context(None, None)
        self._shared = SharedFrame()
        self._whole: KeyRun | None = None  # whose rows the next call gets, if it gets them all
        self._collector = FrameCollector(spec.output)
        self._made: Callable[[Any], list[Any]] = (
            self._collector.add if by_key and spec.engine == "pandas" else spec.output.batches
        )

    def context(
        self,
        queue: MessageQueue | None,
        lease: int | None,
        key: Any = None,
        is_continued: bool = False,
    ) -> StageContext:
        """Return the context of a call."""
        task = self.task
        return StageContext(
            task.query_id,
            task.batch_id,
            task.partition,
            task.attempt,
            queue,
            key,
            is_continued,
            lease,
        )

    def key_context(
        self, rows: Any, queue: MessageQueue | None, key: Any, is_continued: bool
    ) -> StageContext:
        """Return the context of a call with the rows of one key."""
        return self.context(queue, lease_of(rows, 0), key, is_continued)

    def _same_context(
        self, rows: Any, queue: MessageQueue | None, key: Any, is_continued: bool
    ) -> StageContext:
        return self._empty_context

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[Any]:
        """Call with the rows first .. end - 1 of one queue, in order; yield its results' rows."""
        process_queue = PROCESS_QUEUES.get(self.task, queue, offsets[first])
        process_queue.put_columns(offsets[first:end], row_tokens(first, end))
        context = self.context(queue, lease_of(rows, first))
        yield from self._drain(process_queue, rows, end - first, context)

    def call_key(self, run: KeyRun) -> Iterable[Any]:
        """Call with the rows of one key, whatever their queues; return its results' rows."""
        rows, key = run.rows, run.key
        context = self._key_context(rows, run.queue, key, run.is_continued)
        # The common case, without a process queue: keys are many, and their runs often short.
        if self.failures is None and (self.spec.rows_per_call or rows.num_rows) >= rows.num_rows:
            self._whole = run
            return self.call(rows, context)
        process_queue = ProcessQueue(f"key {key!r}")
        # Row numbers serve as offsets: those of several queues do not compare.
        numbers = row_tokens(0, rows.num_rows)
        process_queue.put_columns(numbers.cast("B").cast("q"), numbers)
        return self._drain(process_queue, rows, rows.num_rows, context)

    def rest(self) -> list[Any]:
        """Return the rows of results that were not converted yet."""
        return self._collector.rest()

    def _drain(
        self, process_queue: contract.ProcessQueue, rows: Any, count: int, context: StageContext
    ) -> Iterator[Any]:
        """Take, call and commit until the queue is empty.

        After a failed call, half as many rows are taken, until the failing row is alone.
        """
        most = min(self.spec.rows_per_call or count, count)
        limit, attempts = most, 0
        while True:
            _, tokens = process_queue.take_columns(limit)
            taken = len(tokens)
            if not taken:
                return
            # Offsets rise with the row numbers, so the rows that were taken are adjacent.
            part = rows.slice(tokens[0], taken)
            parked: list[Any] = []
            if self.failures is not None:
                part, parked = self.failures.parted(part, context.queue)
            result: list[Any] = []
            if part.num_rows:
                try:
                    result = self.call(part, context)
                except FunctionFailed as error:
                    if self.failures is None:
                        raise
                    if taken > 1:
                        process_queue.rollback()
                        limit = (taken + 1) // 2
                        continue
                    attempts += 1
                    if attempts < self.failures.policy.max_attempts:
                        process_queue.rollback()
                        continue
                    self.failures.give_up(part, context.queue, error)
            if attempts:  # of a row alone, which is done with
                # Back to whole batches: the next failing row is found by halving again.
                limit, attempts = most, 0
            if self.failures is not None:
                self.failures.divert_parked(parked)
            process_queue.commit()
            yield from result

    def call(self, rows: Any, context: StageContext) -> list[Any]:
        """Call the function once; return its result as batches of the schema.

        Raises: LockLost: another member holds the queue now. FunctionFailed: the function raised.
        """
        return self._made(self._result(rows, (), context))

    def _result(self, rows: Any, more: tuple[Any, ...], context: StageContext) -> Any:
        """Call the function with rows and more arguments; raises as `call`."""
        spec = self.spec
        # Before every call, not once per batch: a batch may take minutes, and the lock may be
        # another member's by then. Mostly answered from memory.
        if spec.fence is not None:
            spec.fence.check_rows(rows, context.queue, context.lease)
        given = self._as_frame(rows) if spec.engine == "pandas" else rows
        try:
            if spec.with_context:
                return spec.function(given, *more, context)
            return spec.function(given, *more)
        except Exception as error:
            first, last = (rows.slice(at, 1).to_pylist()[0] for at in (0, rows.num_rows - 1))
            raise function_failed(rows.num_rows, first, last, error) from error

    def _as_frame(self, rows: Any) -> Any:
        run, self._whole = self._whole, None
        return frame_of(rows) if run is None else self._shared.of(run)


def lease_of(rows: Any, row: int) -> int | None:
    """Return the lease a row was read under; None where the source is not in ordered mode."""
    at = rows.schema.get_field_index(LEASE_COLUMN)
    return None if at < 0 else rows.column(at)[row].as_py()


def function_failed(count: int, first: Any, last: Any, error: Exception) -> FunctionFailed:
    """Make the error for an exception of the function.

    Args: first, last: the first and the last of the `count` rows, as mappings.
    """
    # Spark shows the text only, so offsets and remedy are in it; the fields are for tests.
    if count == 1:
        which = f"the row of offset {first['offset']}"
    else:
        which = f"{count} rows, offsets {first['offset']} to {last['offset']}"
    return FunctionFailed(
        f"the stage's function failed on {which}: {error_text(error)}. The batch will "
        "run again; give on_failure=DeadLetter(topic) or ParkKey(topic) to continue with the "
        "other rows",
        topic=first.get("topic"),
        broker=first.get("broker"),
        queue_id=_plain_int(first.get("queue_id")),
        offset=_plain_int(first.get("offset")),
    )


def _plain_int(number: Any) -> int | None:
    return None if number is None else int(number)  # pandas has NumPy's ints
