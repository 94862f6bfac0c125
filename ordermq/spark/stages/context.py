"""What a stage's function may be told besides its rows, and how it is asked."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.ordered_queues import TaskPlace


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
