"""How a stage calls the user's function: inside the lease, a process queue around each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ordermq.core import ProcessQueue, interface
from ordermq.errors import FunctionFailed
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.ordered_failure import DeadLetter, DeadLetters, ParkedKeys, ParkKey
from ordermq.spark.ordered_queues import TABLE, TaskPlace
from ordermq.spark.stages.context import StageContext, task_place
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.output import OutputShape
from ordermq.spark.stages.rows import row_tokens

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
