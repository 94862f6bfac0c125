"""`apply_with_keyed_state`: ordered stages whose keys' states are kept beside their queue.

A key lives in one queue, and a queue is whole in one task: so the states of a queue's keys are in
one worker while it processes the queue's rows, and need no shuffle and no call per key. Before the
task ends it stores what the micro-batch changed (`state_store.py`). The worker keeps the state in
memory too; the next task that gets the queue there reads nothing.
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import OrderCheck, RowOrigins, check_columns, check_not_split
from ordermq.spark.schema import SHARDING_KEY
from ordermq.spark.shown_errors import text_first
from ordermq.spark.stages.apply_in_order import (
    MAX_ROWS_OF_A_KEY,
    QueueCaller,
    check_arguments,
    check_speculation,
    make_spec,
    session_time_zone,
    sources_of,
)
from ordermq.spark.stages.failure_policy import DeadLetter
from ordermq.spark.stages.output import BatchCollector, OutputShape, state_copier, struct_of
from ordermq.spark.stages.queue_counts import check_queue_counts
from ordermq.spark.stages.queue_state import QueueState
from ordermq.spark.stages.rows_by_key import KeyRuns, grouped_by_key, key_name
from ordermq.spark.stages.stage_invocation import (
    Engine,
    StageContext,
    StageFunction,
    StageInvocation,
    StageSpec,
    lease_of,
)
from ordermq.spark.stages.state_store import (
    StateFolder,
    file_system_of,
    prepare_directory,
    run_name,
)

MAX_STATE_BYTES = 512 << 20
_log = logging.getLogger("ordermq.spark")
# Part of the name of a run: the group of Spark's jobs may be the user's, the same in every program.
_DRIVER = uuid.uuid4().hex
_QUEUE_REMEDY = (
    "call the stage straight on the source's DataFrame, before any repartition, join, sort, "
    "distinct or union with itself"
)


def apply_with_keyed_state(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType | str,
    state_schema: StructType | str,
    *,
    directory: str | None = None,
    name: str = "state",
    key: str = SHARDING_KEY,
    one_queue_per_key: bool = False,
    per_key: bool = False,
    initial: Mapping[str, Any] | None = None,
    engine: Engine = "pandas",
    max_state_bytes: int = MAX_STATE_BYTES,
    on_failure: DeadLetter | None = None,
    rows_per_call: int | None = None,
    allow_speculation: bool = False,
    allow_queue_change: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with rows in order and the states of their keys.

    No shuffle: a queue is whole in one task, and the states of its keys are in that task's
    process. A call gets rows of one queue, of many keys, and one state per key. The states are
    stored with the micro-batch: a batch that runs again begins from the states before it. The
    function must return the same for the same rows and states, because a batch may run twice.

    Args:
        frame: rows of the ordermq source, with the columns topic, broker, queue_id, offset and
            the key.
        function: (rows, states) or (rows, states, context) -> (rows or None, states or None).
            Rows are a pandas DataFrame or a pyarrow RecordBatch (returned ones may be a dict of
            columns, too), the states likewise, one row per
            key in the order in which keys first appear. The DataFrame's index is the key; the
            RecordBatch has the key as its first column. A key that is new has missing values, or
            `initial`. Return the states that change. One whose values are all missing is
            forgotten; those that are not returned stay as they are.
        schema: of the result.
        state_schema: of a state.
        directory: where the states are stored: an absolute path or a URI that pyarrow knows, on a
            file system that driver and executors share. Required in streaming; a batch query
            begins without state and stores none.
        name: of the stage, unique in its query. Keep it, and the directory, as long as the
            query's checkpoint.
        key: the column to which a state belongs, with a value in every row.
        one_queue_per_key: confirm that a key other than the sharding key lives in one queue.
        per_key: make one call per key: (rows, state) -> (rows or None, state), the state a dict
            or None, as for `apply_with_state`.
        initial: values of the state of a new key, by column.
        engine: "pandas" or "arrow".
        max_state_bytes: limit of the states in a worker's memory. States of queues that were not
            used lately leave it first, and are read again; one queue's must fit.
        allow_queue_change: go on when the number of the topic's queues has changed: keys that have
            moved to another queue begin there without state. Else the query fails.
    Others as in `apply_in_order`.
    Raises: ConfigError: an argument does not fit the others, the DataFrame or the session.
    """
    check_columns(frame, key)
    check_not_split(frame)
    spark = frame.sparkSession
    check_speculation(spark, allow_speculation)
    check_arguments(frame, on_failure, 1, rows_per_call, False, False)
    if max_state_bytes < 1:
        raise ConfigError(f"max_state_bytes={max_state_bytes}: expected at least 1")
    if key != SHARDING_KEY and not one_queue_per_key:
        raise ConfigError(
            f"key={key!r}: pass one_queue_per_key=True if each of its values comes in one queue "
            "only, as a sharding key does; else use apply_with_state, which shuffles. A key that "
            "comes in two queues would have two states"
        )
    if name in ("", ".", ".."):
        raise ConfigError(f"name={name!r}: give the stage a name, which its folder gets")
    target = struct_of(schema)
    spec = make_spec(
        frame,
        StageFunction(function, engine, rows_per_call, arguments=2),
        target,
        remedy=_QUEUE_REMEDY,
        on_failure=on_failure,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
    )
    states = _state_spec(frame, struct_of(state_schema), key, per_key, initial, name, directory)
    client = _client(frame, client_options)
    states = replace(states, client=client, may_change_queues=allow_queue_change)
    run = _stage(spec, states, max_state_bytes)
    return frame.mapInArrow(run, target)


# Planning, on the driver.


@dataclass(frozen=True)
class StateSpec:
    """The states of a stage, as the driver made them and the executors keep them.

    Args:
        key: the key's column.
        shape: columns of a state.
        schema: the key's column, then the state's.
        initial: values of a new state.
        per_key: call once per key.
        name: of the stage.
        directory, directory_id: where states are stored; None in a batch query.
        driver: unique per driver process.
        client: options by which executors ask for a topic's queues; None where none are known.
        may_change_queues: go on where a topic has another number of queues than before.
    """

    key: str
    shape: OutputShape
    schema: Any
    initial: Mapping[str, Any]
    per_key: bool
    name: str
    directory: str | None
    directory_id: str | None
    driver: str
    client: Mapping[str, str] | None = None
    may_change_queues: bool = False


def _client(frame: DataFrame, given: Mapping[str, str] | None) -> Mapping[str, str] | None:
    if given or not frame.isStreaming:
        return given
    found = sources_of(frame)
    if len(found) == 1:
        return found[0]
    _log.warning(
        "apply_with_keyed_state does not see the source, and so not whether the number of a "
        "topic's queues changes, with which keys leave their states: give client_options"
    )
    return None


def _state_spec(
    frame: DataFrame,
    state: StructType,
    key: str,
    per_key: bool,
    initial: Mapping[str, Any] | None,
    name: str,
    directory: str | None,
) -> StateSpec:
    time_zone = session_time_zone(frame.sparkSession)
    key_field = frame.schema[key]
    shape = OutputShape(state, time_zone)
    if not len(shape.schema) or key in shape.schema.names:
        raise ConfigError(
            f"state_schema has the columns {shape.schema.names}: give at least one, and not the "
            f"key, {key!r}"
        )
    kept = OutputShape(StructType([StructField(key, key_field.dataType)]), time_zone).schema
    kind = kept.field(0).type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        raise ConfigError(
            f"key={key!r} is a {kind}: use a key of strings, integers, decimals, dates or "
            "timestamps. Others have values that are equal and not the same"
        )
    unknown = sorted(set(initial or ()) - set(shape.schema.names))
    if unknown:
        raise ConfigError(f"initial has {unknown}: give columns of the state's schema only")
    names = shape.schema.names
    first = _states_of(shape, [dict.fromkeys(names) | dict(initial or {})], "initial")
    return StateSpec(
        key=key,
        shape=shape,
        schema=pa.schema([kept.field(0), *shape.schema]),
        initial=first.to_pylist()[0],
        per_key=per_key,
        name=name,
        directory=directory,
        directory_id=_prepared(frame, directory),
        driver=_DRIVER,
    )


def _states_of(shape: OutputShape, states: Sequence[Mapping[str, Any]], what: str) -> Any:
    """Return states as a RecordBatch; raises ConfigError where one does not fit."""
    columns: list[Any] = []
    try:
        for field_ in shape.schema:
            values = [state[field_.name] for state in states]
            # In a dict, unlike in pandas, NaN is a number and not a missing one.
            is_float = pa.types.is_floating(field_.type)
            columns.append(pa.array(values, field_.type) if is_float else values)
        (made,) = shape.from_columns(shape.schema.names, columns)
    except (ConfigError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"{what} does not fit state_schema: {error}") from error
    return made


def _prepared(frame: DataFrame, directory: str | None) -> str | None:
    if directory is None:
        if frame.isStreaming:
            raise ConfigError(
                "states in streaming need directory=..., on a file system that driver and "
                "executors share, beside the checkpoint: the next micro-batch may run anywhere"
            )
        return None
    file_system_of(directory)
    if not _is_one_machine(frame.sparkSession) and is_temporary(directory):
        raise ConfigError(
            f"directory {directory!r} is local to each machine: give one that driver and all "
            "executors share, such as the checkpoint's file system"
        )
    return prepare_directory(directory)


def _is_one_machine(spark: SparkSession) -> bool:
    # Spark Connect does not show its master.
    master = getattr(getattr(spark, "_sc", None), "master", None)
    if master is None:
        return False
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost")


def is_temporary(directory: str) -> bool:
    """Return whether a directory is among a machine's own temporary files."""
    parts = urlsplit(directory)
    if parts.scheme not in ("", "file"):
        return False
    # What mounts are shared cannot be known here. An executor that looks at another disk finds
    # out by the directory's id; this refuses the usual mistake before the query starts.
    own = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")
    return any(os.path.commonpath([parts.path, each]) == each for each in own)


def _stage(
    spec: StageSpec, states: StateSpec, max_bytes: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    # Spark pickles this closure: it carries only what the executors need.
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        with text_first():
            yield from run_with_state(spec, states, max_bytes, batches)

    return stage


# Calling the function.


class _StateInvocation(StageInvocation):
    """Calls the function with rows and the states of their keys, for one task."""

    def __init__(self, spec: StageSpec, states: StateSpec, max_bytes: int) -> None:
        super().__init__(spec, by_key=states.per_key)
        self._states = states
        self._max_bytes = max_bytes
        self._folder = self._checked_folder()
        self._run = run_name(self.task, states.driver)
        self._done: set[MessageQueue] = set()
        self._counted: set[str] = set()  # topics of which the number of queues is as before
        self._lease: int | None = None
        self.queue_state: QueueState | None = None

    def _checked_folder(self) -> StateFolder | None:
        task, states = self.task, self._states
        if task.query_id is None or task.batch_id is None:
            return None
        if states.directory is None or states.directory_id is None:
            raise ConfigError(
                "states in foreachBatch need directory=..., on a file system that driver and "
                "executors share: the next micro-batch must find them"
            )
        folder = StateFolder(states.directory, states.name, task.query_id)
        folder.check(states.directory_id, task.batch_id)
        return folder

    def enter(self, rows: Any, queue: MessageQueue, first_offset: int, lease: int | None) -> None:
        """Begin with a run of rows: load the state of its queue, if it is not the one before.

        Raises: ConfigError: a row has no key. OrderingError: the queue was done already.
        """
        column = rows.column(self._states.key)
        if column.null_count:
            at = column.is_null().index(True).as_py()
            raise ConfigError(
                f"offset {rows.column('offset')[at]} of {queue} has no {self._states.key}: leave "
                f'such rows out before the stage, by where("{self._states.key} IS NOT NULL")'
            )
        self._lease = lease
        self._check_counts(queue.topic)
        if self.queue_state is not None and self.queue_state.queue == queue:
            return
        self.leave()
        if queue in self._done:
            raise OrderingError(
                f"rows of a queue come in two parts: {_QUEUE_REMEDY}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=first_offset,
            )
        states = self._states
        self.queue_state = QueueState(
            states.schema, states.initial, self._folder, self.task, self._run, queue, first_offset
        )

    def _check_counts(self, topic: str) -> None:
        client, folder = self._states.client, self._folder
        if client is None or folder is None or topic in self._counted:
            return
        may_change = self._states.may_change_queues
        check_queue_counts(folder, client, topic, may_change=may_change)
        self._counted.add(topic)

    def leave(self) -> None:
        """Store the state of the queue whose rows are all processed."""
        done = self.queue_state
        if done is None:
            return
        # The lease once more: a run that has lost the queue must not store a state over that of
        # the one that has it.
        if self.spec.fence is not None and self._lease is not None:
            self.spec.fence.check(done.queue, self._lease)
        done.store()
        self._done.add(done.queue)
        self.queue_state = None

    def keep(self, states: Any) -> None:
        """Take the states of some keys into the state of the queue."""
        assert self.queue_state is not None
        self.queue_state.state.put(states)
        self.queue_state.check_size(self._max_bytes)

    def call_with(self, rows: Any, state: Any, context: StageContext) -> tuple[list[Any], Any]:
        """Call the user's function; return its rows as batches, and its states as they are.

        Raises: LockLost: another member holds the queue now. FunctionFailed: it raised.
        """
        result = self._result(rows, (state,), context)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"the function returned a {type(result).__name__}: return (rows, states)"
            )
        return self._made(result[0]), result[1]


class _StateFrame(Protocol):
    """States of several keys, as the function takes and returns them."""

    def given(self, states: Any) -> Any:
        """Return states as the function takes them."""

    def returned(self, value: Any, states: Any) -> Any:
        """Return what the function returned as a RecordBatch.

        Args: states: those it was given.
        """


class _ArrowStates:
    """RecordBatches whose first column is the key."""

    def __init__(self, states: StateSpec) -> None:
        self._states = states

    def given(self, states: Any) -> Any:
        return states

    def returned(self, value: Any, states: Any) -> Any:
        if not hasattr(value, "schema"):
            raise ConfigError(
                f"the function returned states as a {type(value).__name__}: return a RecordBatch "
                "or a Table with the key and the columns of the state's schema, or None"
            )
        if value.schema.names.count(self._states.key) != 1:
            raise ConfigError(
                f"the function returned states without the key, {self._states.key!r}, or with two "
                "of it: return it once, beside the columns of the state's schema"
            )
        keys = value.column(self._states.key)
        return _checked(self._states, keys, value.drop_columns([self._states.key]), states)


class _PandasStates:
    """DataFrames whose index is the key."""

    def __init__(self, states: StateSpec) -> None:
        self._states = states

    def given(self, states: Any) -> Any:
        # A copy, because the function may write into it, and Arrow's memory is not writable.
        frame = pa.Table.from_batches([states]).to_pandas().set_index(self._states.key).copy()
        for field_ in self._states.shape.schema:
            column = states.column(field_.name)
            # Otherwise pandas makes floats of integers where one is missing, and texts of flags.
            if column.null_count and _is_whole(field_.type):
                values = column.to_pandas(types_mapper=_nullable)
                frame[field_.name] = values.set_axis(frame.index)
        return frame

    def returned(self, value: Any, states: Any) -> Any:
        if not hasattr(value, "index") or not hasattr(value, "columns"):
            raise ConfigError(
                f"the function returned states as a {type(value).__name__}: return a DataFrame "
                "with the keys as its index, or None"
            )
        return _checked(self._states, value.index, value, states)


def _is_whole(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _nullable(kind: Any) -> Any:
    import pandas as pd  # type: ignore[import-untyped]  # engine="arrow" need not pay for it

    types = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return types.get(kind)


def _checked(spec: StateSpec, keys: Any, values: Any, given: Any) -> Any:
    """Return returned states as a RecordBatch of the stored schema.

    Args: keys: an Array, a ChunkedArray or an Index; given: the states of the call.
    """
    key_field = spec.schema.field(0)
    try:
        batches = spec.shape.batches(values)
    except ConfigError as error:
        raise ConfigError(f"the states are not those of state_schema: {error}") from error
    if not batches:
        return given.slice(0, 0)
    try:
        if not isinstance(keys, pa.Array):
            keys = (
                keys.combine_chunks()
                if isinstance(keys, pa.ChunkedArray)
                else pa.Array.from_pandas(keys, type=key_field.type)
            )
        keys = keys.cast(key_field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"the function returned states whose keys are no {key_field.type}: keep the keys of "
            f"the states that it was given, in pandas as the index: {error}"
        ) from error
    if not keys.equals(given.column(0)):
        known = pc.index_in(keys, value_set=given.column(0))
        if known.null_count or pc.count_distinct(known).as_py() != len(known):
            raise ConfigError(
                "the function returned states of keys that the call does not have, or of a key "
                "twice: return at most one row per key of the states it was given"
            )
    return pa.RecordBatch.from_arrays([keys, *batches[0].columns], schema=spec.schema)


class _ColumnInvocation(_StateInvocation):
    """One call for rows of many keys."""

    def __init__(self, spec: StageSpec, states: StateSpec, max_bytes: int) -> None:
        super().__init__(spec, states, max_bytes)
        self._frames: _StateFrame = (
            _PandasStates(states) if spec.engine == "pandas" else _ArrowStates(states)
        )

    def call(self, rows: Any, context: StageContext) -> list[Any]:
        assert self.queue_state is not None
        keys = _distinct(rows.column(self._states.key), self._states.schema.field(0).type)
        states = self.queue_state.state.get(keys)
        result, value = self.call_with(rows, self._frames.given(states), context)
        if value is not None:
            self.keep(self._frames.returned(value, states))
        return result


def _distinct(column: Any, kind: Any) -> Any:
    if column.type != kind:
        column = column.cast(kind)
    return column.unique()


class _KeyInvocation(_StateInvocation):
    """One call per key, with its state as a dict or None."""

    def __init__(self, spec: StageSpec, states: StateSpec, max_bytes: int) -> None:
        super().__init__(spec, states, max_bytes)
        self._key_context = self.key_context  # its key finds the state
        self._of_key: dict[Any, dict[str, Any] | None] = {}
        self._copy = state_copier(states.shape.schema)

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[Any]:
        assert self.queue_state is not None
        by = self._states.key
        grouped = grouped_by_key(rows.slice(first, end - first), [by])
        # Looked up, and stored, together: by key it would take most of the time.
        keys = _distinct(grouped.column(by), self._states.schema.field(0).type)
        states = self.queue_state.state.get(keys)
        names = self._states.shape.schema.names
        nothing = dict.fromkeys(names)
        found = states.select(names).to_pylist()
        self._of_key = {
            key_name(key): None if state == nothing else state
            for key, state in zip(keys.to_pylist(), found, strict=True)
        }
        for run in KeyRuns([by], MAX_ROWS_OF_A_KEY, OrderCheck("")).of([grouped]):
            yield from self.call_key(run)
        yield from self.rest()
        values = [state or nothing for state in self._of_key.values()]
        kept = _states_of(self._states.shape, values, "a state that the function returned")
        self.keep(pa.RecordBatch.from_arrays([keys, *kept.columns], schema=self._states.schema))

    def call(self, rows: Any, context: StageContext) -> list[Any]:
        name = key_name(context.key)
        state = self._of_key[name]
        given = None if state is None else self._copy(state)
        result, value = self.call_with(rows, given, context)
        names = self._states.shape.schema.names
        if value is not None and (not isinstance(value, dict) or set(value) != set(names)):
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ConfigError(
                f"the function returned a state of {found}: return the columns of the state's "
                f"schema, {sorted(names)}"
            )
        self._of_key[name] = value
        return result


# Running, on executors.


def run_with_state(
    spec: StageSpec, states: StateSpec, max_bytes: int, batches: Iterator[Any]
) -> Iterator[Any]:
    """Run a stage: check the run of each queue, call with it and its states, store them."""
    kind = _KeyInvocation if states.per_key else _ColumnInvocation
    invocation, check = kind(spec, states, max_bytes), OrderCheck(spec.remedy)
    caller: QueueCaller = invocation
    collector = BatchCollector()
    for batch in batches:
        if not batch.num_rows:
            continue
        origins = RowOrigins(batch)
        for queue, first, end in check.runs(origins, 0, batch.num_rows):
            part = batch.slice(first, end - first)
            invocation.enter(part, queue, origins.offsets[first], lease_of(batch, first))
            for made in caller.call_queue(batch, queue, origins.offsets, first, end):
                yield from collector.add(made)
            assert invocation.queue_state is not None
            invocation.queue_state.last_offset = origins.offsets[end - 1]
    invocation.leave()
    yield from collector.rest()
