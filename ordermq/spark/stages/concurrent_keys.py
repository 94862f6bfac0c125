"""Concurrent calls for rows of different keys of a queue, for functions that wait for I/O."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pyarrow as pa

from ordermq.core import LaneMap
from ordermq.errors import FunctionFailed
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import row_tokens, text_values
from ordermq.spark.stages.failure_policy import ParkKey
from ordermq.spark.stages.stage_invocation import StageContext, StageInvocation, lease_of


class ConcurrentKeys:
    """Calls a function row by row: keys concurrently, each key in order
    (docs/internals/semantics.md#key-lanes).

    All rows of a batch are done before the next batch begins, so no row is processed that a
    replay would not bring again.

    Args:
        key: the column of the key. A row without one waits for all earlier rows and blocks all
            later ones.
        max_in_flight: maximum number of concurrent calls.
    """

    def __init__(self, invocation: StageInvocation, key: str, max_in_flight: int) -> None:
        self._invocation = invocation
        self._key = key
        self._max_in_flight = max_in_flight
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="ordermq-key")

    def close(self) -> None:
        """Wait for the running calls; no further one starts."""
        self._pool.shutdown(cancel_futures=True)

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[list[Any]]:
        """Call with each row of a queue's run; yield the results in the order of the rows."""
        # No limit ahead: the rows are in memory already, unlike those of a consumer's queue.
        lanes = LaneMap(str(queue), max_in_flight=self._max_in_flight, max_ahead=2**62)
        lanes.reset(offsets[first])
        part = rows.slice(first, end - first)
        keys = part.column(self._key).cast(pa.string())
        positions, values = text_values(keys)
        begins = np.frombuffer(memoryview(positions), dtype=np.int32)
        sizes = np.diff(begins).astype(np.int32)
        # The core takes -1 for "no key"; an empty text is a key.
        if keys.null_count:
            sizes[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        lanes.add_columns(
            offsets[first:end],
            row_tokens(0, end - first),
            values,
            begins[:-1].data,
            sizes.data,
        )
        context = self._invocation.context(queue, lease_of(rows, first))
        results = self._run(lanes, part, offsets[first:end], context)
        yield from (results[row] for row in sorted(results))

    def _run(
        self, lanes: Any, rows: Any, offsets: memoryview, context: StageContext
    ) -> dict[int, list[Any]]:
        results: dict[int, list[Any]] = {}
        running: dict[Future[list[Any]], int] = {}
        failure: Exception | None = None
        while True:
            if failure is None:
                _, tokens = lanes.take_columns(self._max_in_flight)
                for row in tokens:
                    running[self._pool.submit(self._call_row, rows.slice(row, 1), context)] = row
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = running.pop(future)
                error = future.exception()
                if error is None:
                    results[row] = future.result()
                # The first error fails the batch, but only after the running calls have ended:
                # Spark may run the task again at once, and the same row must not run twice at
                # the same time.
                elif failure is None:
                    failure = error if isinstance(error, Exception) else RuntimeError(error)
                lanes.done(offsets[row])
        if failure is not None:
            raise failure
        return results

    def _call_row(self, row: Any, context: StageContext) -> list[Any]:
        invocation, failures = self._invocation, self._invocation.failures
        if failures is None:
            return invocation.call(row, context)
        if failures.without_parked(row, context.queue).num_rows == 0:
            return []
        attempts = 0
        while True:
            try:
                return invocation.call(row, context)
            except FunctionFailed as error:
                attempts += 1
                if attempts >= failures.policy.max_attempts:
                    # On this key's thread: its next row is called only after this one is stored.
                    failures.give_up(row, context.queue, error)
                    return []


def concurrency_key(policy: object, key: str | None) -> str:
    """Return the column whose rows must wait for each other: a policy's key, or the stage's."""
    # A parked key diverts its later rows, so these must not run before the failure is known.
    if isinstance(policy, ParkKey):
        return policy.key
    return key or "sharding_key"
