"""Ordered stages that remember: a value a key over micro-batches, exact where a batch comes again.

Spark commits the state with the batch: a batch that failed begins from the state before it.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StringType, StructType

from ordermq.errors import ConfigError, FunctionFailed, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import PLACE_COLUMNS, check_columns
from ordermq.spark.stages.apply_in_order import (
    SHARDING_KEY,
    check_speculation,
    make_spec,
)
from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey
from ordermq.spark.stages.output import struct_of
from ordermq.spark.stages.stage_invocation import Calls, StageContext, StageSpec

_OURS = "_ordermq"  # the state's own column: cursors, parked, whether there is a user's value
_LEAST_PROTOBUF = (6, 33, 5)
_REMEDY = "pass drop_repeats=True to have rows that come again dropped, or read each offset once"


def apply_with_state(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType | str,
    state_schema: StructType | str,
    *,
    key: str | Sequence[str] = SHARDING_KEY,
    order_by: Sequence[str] = PLACE_COLUMNS,
    drop_repeats: bool = False,
    on_failure: DeadLetter | None = None,
    ttl_ms: int | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with each key's rows in order and the state it left at its last call.

    One call a key and micro-batch; a key's rows of a micro-batch are in memory together. Runs
    on `transformWithStateInPandas`, several times slower than `apply_in_order`: use it where
    something must be remembered.

    Args:
        function: (rows, state) or (rows, state, context) -> (rows or None, state). Rows are a
            pandas DataFrame with Spark's own times (naive, of the session's zone). The state is
            a dict with the columns of `state_schema`, or None at first; return None to forget.
        state_schema: of the state.
        key: what a state belongs to.
        drop_repeats: remember the last offset of each queue too, and drop rows at or below it:
            a queue read twice, or an outer replay, reaches the function once.
        on_failure: as in `apply_in_order`; parked keys are kept in the state, no directory.
        ttl_ms: forget a key so long after its last call.
    Others as in `apply_in_order`.
    Raises: ConfigError: protobuf or the RocksDB state store is missing, or an argument is wrong.
    """
    keys = [key] if isinstance(key, str) else list(key)
    check_columns(frame, *keys, *(name for name in order_by if name not in PLACE_COLUMNS))
    spark = frame.sparkSession
    check_speculation(spark, allow_speculation)
    check_state_store(spark)
    target = struct_of(schema)
    spec = make_spec(
        frame,
        function,
        target,
        engine="pandas",
        remedy=_REMEDY,
        on_failure=on_failure,
        rows_a_call=None,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
        rows=2,
    )
    state = struct_of(state_schema)
    processor = _Stage(spec, frame.columns, tuple(order_by), state, drop_repeats, ttl_ms)
    return frame.groupBy(*keys).transformWithStateInPandas(
        statefulProcessor=processor,
        outputStructType=target,
        outputMode="append",
        timeMode="none" if ttl_ms is None else "processingTime",
    )


def check_state_store(spark: SparkSession) -> None:
    """Refuse a session that cannot keep state.

    Raises: ConfigError: says what to install or set.
    """
    try:
        found = importlib.metadata.version("protobuf")
    except importlib.metadata.PackageNotFoundError:
        found = "0"
    parts = tuple(int(part) for part in found.split(".")[:3] if part.isdecimal())
    if parts < _LEAST_PROTOBUF:
        raise ConfigError(
            f"state needs protobuf 6.33.5 or later, which pyspark does not bring, and has "
            f"{'none' if found == '0' else found}: pip install 'ordermq[spark-state]', here and "
            "on the executors"
        )
    name = "spark.sql.streaming.stateStore.providerClass"
    provider = str(spark.conf.get(name, ""))
    if "RocksDB" not in provider:
        raise ConfigError(
            f"state needs the RocksDB store, and {name} is {provider!r}: set it to "
            "'org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider'"
        )


@dataclass
class _Memory:
    """What is kept of a key."""

    state: dict[str, Any] | None
    cursors: dict[str, int]
    parked: str | None  # why its rows are diverted


class _Stage(StatefulProcessor):
    def __init__(
        self,
        spec: StageSpec,
        columns: list[str],
        order_by: tuple[str, ...],
        state_schema: StructType,
        drops_repeats: bool,
        ttl_ms: int | None,
    ) -> None:
        self._spec = spec
        self._columns = columns
        self._order_by = list(order_by)
        self._names = state_schema.names
        self._kept_schema = StructType(list(state_schema.fields)).add(_OURS, StringType())
        self._drops_repeats = drops_repeats
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("kept", self._kept_schema, self._ttl_ms)
        self._calls = Calls(self._spec)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        # Spark 4.3 hands over computed columns as _13, _14, ...: in their places, unnamed.
        frame.columns = self._columns
        memory = self._recall()
        queue = self._queue_in_order(frame)
        if queue is None:
            frame = frame.sort_values(self._order_by, kind="stable", ignore_index=True)
            frame = self._checked(frame, memory)
        elif self._drops_repeats:
            frame = self._after_cursor(frame, queue, memory)
        if len(frame):
            context = self._context(frame, key)
            yield from self._consumed(frame, memory, context)
            self._remember(memory)

    def _queue_in_order(self, frame: pd.DataFrame) -> MessageQueue | None:
        """The queue all rows are of, if they rise there already, as a key's mostly do.

        Sorting a few rows by four columns, and looking for repeats, cost pandas a millisecond
        each, which was most of what a key cost.
        """
        if self._order_by != list(PLACE_COLUMNS):
            return None
        queue, offsets = _only_queue(frame), frame["offset"].to_numpy()
        return queue if (offsets[1:] > offsets[:-1]).all() else None

    @staticmethod
    def _after_cursor(frame: pd.DataFrame, queue: MessageQueue, memory: _Memory) -> pd.DataFrame:
        """Rows of one queue, rising, that are new; moves its cursor over them."""
        offsets = frame["offset"].to_numpy()
        last = memory.cursors.get(str(queue), -1)
        memory.cursors[str(queue)] = max(last, int(offsets[-1]))
        if offsets[0] > last:
            return frame
        return frame[offsets > last].reset_index(drop=True)

    def close(self) -> None:
        pass

    def _recall(self) -> _Memory:
        kept = self._value.get() if self._value.exists() else None
        if kept is None:
            return _Memory(None, {}, None)
        *values, ours = kept
        told = json.loads(ours)
        state = dict(zip(self._names, values, strict=True)) if told["has"] else None
        return _Memory(state, told["cursors"], told["parked"])

    def _remember(self, memory: _Memory) -> None:
        if memory.state is None and not memory.cursors and memory.parked is None:
            if self._value.exists():
                self._value.clear()
            return
        state = memory.state or {}
        if memory.state is not None and set(state) != set(self._names):
            raise ConfigError(
                f"the function returned a state of {sorted(state)}: the state's schema has "
                f"{sorted(self._names)}"
            )
        ours = {
            "has": memory.state is not None,
            "cursors": memory.cursors,
            "parked": memory.parked,
        }
        values = [state.get(name) for name in self._names]
        self._value.update((*values, json.dumps(ours)))

    def _checked(self, frame: pd.DataFrame, memory: _Memory) -> pd.DataFrame:
        """Rows that are new; moves the cursors over them."""
        repeated = frame.duplicated(list(PLACE_COLUMNS))
        if not self._drops_repeats:
            if repeated.any():
                row = frame[repeated].iloc[0]
                raise OrderingError(
                    f"offset {row['offset']} comes again: {_REMEDY}",
                    topic=row["topic"],
                    broker=row["broker"],
                    queue_id=int(row["queue_id"]),
                    offset=int(row["offset"]),
                )
            return frame
        for place, own in frame.groupby(list(PLACE_COLUMNS[:3]), sort=False):
            name = str(MessageQueue(*place))
            last = memory.cursors.get(name, -1)
            repeated.loc[own.index[own["offset"] <= last]] = True
            memory.cursors[name] = max(last, int(own["offset"].max()))
        return frame[~repeated].reset_index(drop=True) if repeated.any() else frame

    def _context(self, frame: pd.DataFrame, key: Any) -> StageContext:
        lease = frame["lease"].iat[0] if "lease" in frame else None
        value = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        told = None if lease is None or pd.isna(lease) else int(lease)
        return self._calls.context(_only_queue(frame), told, value)

    def _consumed(
        self, frame: pd.DataFrame, memory: _Memory, context: StageContext
    ) -> Iterator[pd.DataFrame]:
        """Call with the rows; what fails is called again in halves until it stands alone."""
        first, attempts, limit = 0, 0, len(frame)
        policy = self._spec.on_failure
        while first < len(frame):
            whole = first == 0 and limit == len(frame)
            part = frame if whole else frame.iloc[first : first + limit]
            if memory.parked is not None:
                self._divert(part, memory.parked)
                first += len(part)
                continue
            self._fence(context, part)
            try:
                answer, memory.state = self._called(part, memory.state, context)
            except FunctionFailed as error:
                if policy is None:
                    raise
                if len(part) > 1:
                    limit = (len(part) + 1) // 2
                    continue
                attempts += 1
                if attempts < policy.max_attempts:
                    continue
                self._give_up(part, memory, error)
                answer, limit, attempts = None, len(frame), 0
            first += len(part)
            for batch in self._spec.output.batches(answer):
                # Without threads: waking them took longer than the work. Spark wants maps as dicts.
                yield batch.to_pandas(use_threads=False, maps_as_pydicts="lossy")

    def _called(
        self, part: pd.DataFrame, state: dict[str, Any] | None, context: StageContext
    ) -> tuple[Any, dict[str, Any] | None]:
        rows = part if part.index[0] == 0 else part.reset_index(drop=True)
        given = (rows, None if state is None else dict(state))
        function = self._spec.function
        try:
            answer = function(*given, context) if self._spec.with_context else function(*given)
        except Exception as error:
            raise _failed(part, error) from error
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConfigError(
                f"the function returned a {type(answer).__name__}: expected (rows, state)"
            )
        return answer

    def _fence(self, context: StageContext, part: pd.DataFrame) -> None:
        fence = self._spec.fence
        if fence is None:
            return
        if context.queue is not None and context.lease is not None:
            fence.check(context.queue, context.lease)
            return
        leases = part[[*PLACE_COLUMNS[:3], "lease"]].drop_duplicates().dropna()
        for topic, broker, queue_id, lease in leases.itertuples(index=False, name=None):
            fence.check(MessageQueue(topic, broker, int(queue_id)), int(lease))

    def _give_up(self, part: pd.DataFrame, memory: _Memory, error: FunctionFailed) -> None:
        row = _values(part.iloc[0].to_dict())
        reason = str(error.__cause__ or error)
        if isinstance(self._spec.on_failure, ParkKey):
            memory.parked = (
                f"its key is parked since offset {row['offset']} of {_queue_of(row)}: {reason}"
            )
        self._calls.divert(row, _queue_of(row), reason)

    def _divert(self, part: pd.DataFrame, reason: str) -> None:
        for row in part.to_dict("records"):
            self._calls.divert(_values(row), _queue_of(row), reason)


def _values(row: dict[str, Any]) -> dict[str, Any]:
    """A row without pandas' NaN for what is not there."""
    return {name: None if value != value else value for name, value in row.items()}


def _only_queue(frame: pd.DataFrame) -> MessageQueue | None:
    """The queue that all rows are of; None if there are several."""
    columns = [frame[name].to_numpy() for name in PLACE_COLUMNS[:3]]
    if not all((column == column[0]).all() for column in columns):
        return None
    topic, broker, queue_id = (column[0] for column in columns)
    return MessageQueue(topic, broker, int(queue_id))


def _queue_of(row: Any) -> MessageQueue:
    return MessageQueue(row["topic"], row["broker"], int(row["queue_id"]))


def _failed(part: pd.DataFrame, error: Exception) -> FunctionFailed:
    first, last = part.iloc[0], part.iloc[-1]
    return FunctionFailed(
        f"the stage's function failed on {len(part)} rows, offsets {first['offset']} to "
        f"{last['offset']}: {type(error).__name__}: {error}. The batch comes again; "
        "on_failure=DeadLetter(topic) or ParkKey(topic) lets the others go on",
        topic=first["topic"],
        broker=first["broker"],
        queue_id=int(first["queue_id"]),
        offset=int(first["offset"]),
    )
