"""Rows of different keys of a queue beside each other, for functions that wait for something."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pyarrow as pa

from ordermq.core import LaneMap
from ordermq.errors import FunctionFailed
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import row_tokens, texts_of
from ordermq.spark.stages.failure_policy import ParkKey
from ordermq.spark.stages.stage_invocation import Calls, StageContext, lease_of


class Lanes:
    """Calls a function row by row, keys beside each other, each key in order
    (docs/internals/semantics.md#key-lanes).

    A batch's rows are all done before the next batch begins: nothing is ahead of what a
    replay would bring again.

    Args:
        key: the column that says which rows must wait for each other; a row without one waits
            for all before it and holds all behind it.
        max_in_flight: calls at once.
    """

    def __init__(self, calls: Calls, key: str, max_in_flight: int) -> None:
        self._calls = calls
        self._key = key
        self._most = max_in_flight
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="ordermq-lane")

    def close(self) -> None:
        """Wait for the calls that run; none is begun any more."""
        self._pool.shutdown(cancel_futures=True)

    def of_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[list[Any]]:
        """Call with each row of a queue's run; the answers in the rows' order."""
        lanes = LaneMap(str(queue), max_in_flight=self._most, max_ahead=2**62)
        lanes.reset(offsets[first])
        part = rows.slice(first, end - first)
        keys = part.column(self._key).cast(pa.string())
        positions, values = texts_of(keys)
        begins = np.frombuffer(memoryview(positions), dtype=np.int32)
        sizes = np.diff(begins).astype(np.int32)
        if keys.null_count:
            sizes[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        lanes.add_columns(
            offsets[first:end],
            row_tokens(0, end - first),
            values,
            begins[:-1].data,
            sizes.data,
        )
        context = self._calls.context(queue, lease_of(rows, first))
        answers = self._run(lanes, part, offsets[first:end], context)
        yield from (answers[row] for row in sorted(answers))

    def _run(
        self, lanes: Any, rows: Any, offsets: memoryview, context: StageContext
    ) -> dict[int, list[Any]]:
        answers: dict[int, list[Any]] = {}
        running: dict[Future[list[Any]], int] = {}
        failure: Exception | None = None
        while True:
            if failure is None:
                _, tokens = lanes.take_columns(self._most)
                for row in tokens:
                    running[self._pool.submit(self._one, rows.slice(row, 1), context)] = row
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = running.pop(future)
                error = future.exception()
                if error is None:
                    answers[row] = future.result()
                elif failure is None:
                    failure = error if isinstance(error, Exception) else RuntimeError(error)
                lanes.done(offsets[row])
        if failure is not None:
            raise failure
        return answers

    def _one(self, row: Any, context: StageContext) -> list[Any]:
        calls, policy = self._calls, self._calls.spec.on_failure
        if calls.without_parked(row, context).num_rows == 0:
            return []
        attempts = 0
        while True:
            try:
                return calls.call(row, context)
            except FunctionFailed as error:
                attempts += 1
                if policy is None:
                    raise
                if attempts >= policy.max_attempts:
                    # In this key's lane: its next row is called only after this one is stored.
                    calls.give_up(row, context, error)
                    return []


def lane_key(policy: object, key: str | None) -> str:
    """The column that lanes are cut by: the stage's key, and what a policy parks."""
    if isinstance(policy, ParkKey):
        return policy.key
    return key or "sharding_key"
