"""`apply_with_state`: ordered stages with a state per key that is kept over micro-batches.

Spark commits the state with the batch. A batch that failed begins from the state before it, so
the state is exact although the batch runs twice.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from ordermq.errors import ConfigError, FunctionFailed, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.packages import needed_here
from ordermq.spark.row_order import ORIGIN_COLUMNS, check_columns
from ordermq.spark.schema import LEASE_COLUMN
from ordermq.spark.shown_errors import text_first
from ordermq.spark.stages.apply_in_order import SHARDING_KEY, check_speculation, make_spec
from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey, queue_of
from ordermq.spark.stages.output import struct_of
from ordermq.spark.stages.stage_invocation import (
    StageContext,
    StageInvocation,
    StageSpec,
    function_failed,
)
from ordermq.spark.versions import STATE_BY_ROW, is_before, require

with needed_here():
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa

# An additional column of the state: cursors, parked key, and whether there is a user's
# state. One JSON text, because a second ValueState would be a second lookup in RocksDB per key.
_OWN_COLUMN = "_ordermq"
# The first version that Spark's transformWithState runs with; with an older one its worker
# crashes without a message.
_MIN_PROTOBUF = (6, 33, 5)
Form = Literal["rows", "pandas"]
_REMEDY = "pass drop_repeats=True to drop rows that arrive twice, or read each offset once"


def apply_with_state(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType | str,
    state_schema: StructType | str,
    *,
    key: str | Sequence[str] = SHARDING_KEY,
    order_by: Sequence[str] = ORIGIN_COLUMNS,
    drop_repeats: bool = False,
    on_failure: DeadLetter | None = None,
    ttl_ms: int | None = None,
    form: Form | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with each key's rows in order, and with the state of its last call.

    One call per key and micro-batch; a key's rows of a micro-batch are in memory together. It
    runs on Spark's `transformWithState` (before 4.1 on its form for pandas), which takes
    milliseconds per key: `apply_with_keyed_state` has the states of a sharding key for a
    hundredth of that.

    Args:
        function: (rows, state) or (rows, state, context) -> (rows or None, state). Rows are a
            pandas DataFrame with Spark's own timestamps (naive, in the session's zone); returned
            ones are as those of `apply_in_order`. The state
            is a dict with the columns of `state_schema`, or None at first; return None to
            forget it.
        state_schema: of the state.
        key: column or columns to which a state belongs.
        drop_repeats: keep the last offset of each queue, too, and drop rows at or below it: a
            queue that is read twice, or replayed from outside, reaches the function once.
        on_failure: as in `apply_in_order`; parked keys are kept in the state, without directory.
        ttl_ms: forget a key this long after its last call.
        form: of Spark's `transformWithState`: "rows", the default where Spark has it (since 4.1),
            or "pandas". A checkpoint goes on only with the form that made it: "pandas" is for one
            that Spark 4.0 has made.
    Others as in `apply_in_order`.
    Raises: ConfigError: protobuf or the RocksDB state store is missing, or an argument is wrong.
    """
    keys = [key] if isinstance(key, str) else list(key)
    check_columns(frame, *keys, *(name for name in order_by if name not in ORIGIN_COLUMNS))
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
        rows_per_call=None,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
        rows=2,
    )
    state = struct_of(state_schema)
    grouped = frame.groupBy(*keys)
    given: _RowForm
    if _form(form) == "rows":
        transform, given = grouped.transformWithState, _RowForm(frame.schema)
    else:
        transform, given = grouped.transformWithStateInPandas, _PandasForm(frame.schema)
    processor = _KeyProcessor(spec, given, tuple(order_by), state, drop_repeats, ttl_ms)
    return transform(
        statefulProcessor=processor,
        outputStructType=target,
        outputMode="append",
        timeMode="none" if ttl_ms is None else "processingTime",
    )


def _form(asked: Form | None) -> Form:
    if asked not in (None, "rows", "pandas"):
        raise ConfigError(f"form={asked!r}: expected 'rows' or 'pandas'")
    # The form for pandas makes a DataFrame of a key's rows, row by row, and has pandas make an
    # Arrow batch of each result.
    if asked is None:
        return "rows" if not is_before(STATE_BY_ROW.since) else "pandas"
    if asked == "rows":
        require(STATE_BY_ROW)
    return asked


def check_state_store(spark: SparkSession) -> None:
    """Refuse a session that cannot keep state.

    Raises: ConfigError: names what to install or set.
    """
    try:
        found = importlib.metadata.version("protobuf")
    except importlib.metadata.PackageNotFoundError:
        found = "0"
    parts = tuple(int(part) for part in found.split(".")[:3] if part.isdecimal())
    if parts < _MIN_PROTOBUF:
        raise ConfigError(
            "state needs protobuf 6.33.5 or later: pip install 'ordermq[spark-state]', here and "
            f"on the executors. Installed is {'none' if found == '0' else found}; pyspark does "
            "not bring it"
        )
    name = "spark.sql.streaming.stateStore.providerClass"
    provider = str(spark.conf.get(name, ""))
    if "RocksDB" not in provider:
        raise ConfigError(
            f"state needs the RocksDB store, and {name} selects another: set it to "
            "'org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider'. It is "
            f"{provider!r}"
        )


@dataclass
class _KeyMemory:
    """The kept values of a key.

    Args:
        state: the user's; None if there is none.
        cursors: the last offset per queue, with `drop_repeats`.
        parked: the reason why the key's rows are diverted; None if they are not.
    """

    state: dict[str, Any] | None
    cursors: dict[str, int]
    parked: str | None


class _RowForm:
    """Spark's rows, one by one: made a DataFrame for the function, and of its result.

    Args: schema: of the rows.
    """

    def __init__(self, schema: StructType) -> None:
        self._names = schema.names
        self._columns = [_column_maker(field.dataType) for field in schema.fields]

    def frame(self, rows: Iterator[Any]) -> pd.DataFrame:
        """Return the rows of a key."""
        # A key that is no column of the frame comes before its columns.
        values = list(zip(*rows, strict=True))[-len(self._names) :]
        arrays = [make(column) for make, column in zip(self._columns, values, strict=True)]
        # By number: Spark 4.3 has computed columns named _13, _14, ... at their right places.
        found = pd.DataFrame(dict(enumerate(arrays)), copy=False)
        found.columns = self._names
        return found

    def results(self, batch: Any) -> Iterator[Any]:
        """Return the rows of a result as Spark takes them."""
        make = Row(*batch.schema.names)
        columns = [column.to_pylist() for column in batch.columns]
        return (make(*values) for values in zip(*columns, strict=True))


class _PandasForm(_RowForm):
    """Spark's DataFrames."""

    def frame(self, rows: Iterator[Any]) -> pd.DataFrame:
        frames = list(rows)
        frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        frame.columns = self._names
        return frame

    def results(self, batch: Any) -> Iterator[Any]:
        # Without threads: waking them took longer than the work. Spark needs maps as dicts.
        yield batch.to_pandas(use_threads=False, maps_as_pydicts="lossy")


def _column_maker(kind: DataType) -> Callable[[Sequence[Any]], Any]:
    """Return what makes a column of values; the types are those of Spark's form for pandas."""
    if isinstance(kind, IntegralType):
        return _integers
    if isinstance(kind, (FloatType, DoubleType)):
        return lambda values: np.array(values, np.float64)  # None is NaN
    if isinstance(kind, TimestampType):
        # Spark gives them in the session's zone.
        return _times
    if isinstance(kind, MapType):
        return lambda values: _objects([None if one is None else dict(one) for one in values])
    if isinstance(kind, ArrayType):
        items = to_arrow_type(kind)
        return lambda values: _objects(pa.array(values, items).to_pandas())  # NumPy arrays
    return _objects


def _integers(values: Sequence[Any]) -> Any:
    return np.array(values, np.float64 if None in values else np.int64)


def _times(values: Sequence[Any]) -> Any:
    # Nanoseconds, as in Spark's form for pandas, unless they end before the time.
    wide = np.array([None if one is None else one.replace(tzinfo=None) for one in values], "M8[us]")
    fine = wide.astype("M8[ns]")
    return fine if (fine[~np.isnat(wide)] == wide[~np.isnat(wide)]).all() else wide


def _objects(values: Sequence[Any]) -> Any:
    # Not np.array(values): it would make two dimensions of lists.
    made = np.empty(len(values), object)
    made[:] = values
    return made


class _KeyProcessor(StatefulProcessor):
    """Spark calls it once per key and micro-batch, with the key's rows in any order."""

    def __init__(
        self,
        spec: StageSpec,
        form: _RowForm,
        order_by: tuple[str, ...],
        state_schema: StructType,
        drops_repeats: bool,
        ttl_ms: int | None,
    ) -> None:
        self._spec = spec
        self._form = form
        self._order_by = list(order_by)
        self._names = state_schema.names
        self._kept_schema = StructType(list(state_schema.fields)).add(_OWN_COLUMN, StringType())
        self._drops_repeats = drops_repeats
        self._ttl_ms = ttl_ms

    # The three methods below are named and called by Spark.

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("kept", self._kept_schema, self._ttl_ms)
        self._invocation = StageInvocation(self._spec)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        frame = self._form.frame(rows)
        with text_first():
            yield from self._handle(key, frame)

    def close(self) -> None:
        pass

    def _handle(self, key: Any, frame: pd.DataFrame) -> Iterator[Any]:
        """Process the rows of a key, and keep its state."""
        memory = self._load()
        queue = self._queue_in_order(frame)
        if queue is None:
            frame = frame.sort_values(self._order_by, kind="stable", ignore_index=True)
            frame = self._without_repeats(frame, memory)
            queue = _single_queue(frame) if len(frame) else None
        elif self._drops_repeats:
            frame = self._after_cursor(frame, queue, memory)
        if len(frame):
            context = self._context(frame, key, queue)
            yield from self._process(frame, memory, context)
            self._save(memory)

    # The state.

    def _load(self) -> _KeyMemory:
        kept = self._value.get()
        if kept is None:
            return _KeyMemory(None, {}, None)
        *values, own_text = kept
        own = json.loads(own_text)
        state = dict(zip(self._names, values, strict=True)) if own["has"] else None
        return _KeyMemory(state, own["cursors"], own["parked"])

    def _save(self, memory: _KeyMemory) -> None:
        # A key without anything to keep is cleared, or the store would grow with every key.
        if memory.state is None and not memory.cursors and memory.parked is None:
            if self._value.exists():
                self._value.clear()
            return
        state = memory.state or {}
        if memory.state is not None and set(state) != set(self._names):
            raise ConfigError(
                f"the function returned a state of {sorted(state)}: return the columns of the "
                f"state's schema, {sorted(self._names)}"
            )
        own = {
            "has": memory.state is not None,
            "cursors": memory.cursors,
            "parked": memory.parked,
        }
        values = [state.get(name) for name in self._names]
        self._value.update((*values, json.dumps(own)))

    # The order.

    def _queue_in_order(self, frame: pd.DataFrame) -> MessageQueue | None:
        """Return the queue of all rows, if their offsets rise already, as they mostly do."""
        # Sorting a few rows by four columns, and looking for repeats, take pandas a millisecond
        # each: that was most of the time of a key.
        if self._order_by != list(ORIGIN_COLUMNS):
            return None
        queue, offsets = _single_queue(frame), frame["offset"].to_numpy()
        return queue if (offsets[1:] > offsets[:-1]).all() else None

    @staticmethod
    def _after_cursor(frame: pd.DataFrame, queue: MessageQueue, memory: _KeyMemory) -> pd.DataFrame:
        """Return the new rows of one queue, offsets rising, and move its cursor past them."""
        offsets = frame["offset"].to_numpy()
        last = memory.cursors.get(str(queue), -1)
        memory.cursors[str(queue)] = max(last, int(offsets[-1]))
        if offsets[0] > last:
            return frame
        return frame[offsets > last].reset_index(drop=True)

    def _without_repeats(self, frame: pd.DataFrame, memory: _KeyMemory) -> pd.DataFrame:
        """Return the new rows of any queues and move the cursors past them.

        Raises: OrderingError: a row arrives twice, and repeats are not dropped.
        """
        # Within the micro-batch by comparison, against earlier ones by the cursors.
        repeated = frame.duplicated(list(ORIGIN_COLUMNS))
        if not self._drops_repeats:
            if repeated.any():
                row = frame[repeated].iloc[0]
                raise OrderingError(
                    f"offset {row['offset']} arrives twice: {_REMEDY}",
                    topic=row["topic"],
                    broker=row["broker"],
                    queue_id=int(row["queue_id"]),
                    offset=int(row["offset"]),
                )
            return frame
        for origin, own in frame.groupby(list(ORIGIN_COLUMNS[:3]), sort=False):
            name = str(MessageQueue(*origin))
            last = memory.cursors.get(name, -1)
            repeated.loc[own.index[own["offset"] <= last]] = True
            memory.cursors[name] = max(last, int(own["offset"].max()))
        return frame[~repeated].reset_index(drop=True) if repeated.any() else frame

    # The calls.

    def _context(self, frame: pd.DataFrame, key: Any, queue: MessageQueue | None) -> StageContext:
        lease = frame[LEASE_COLUMN].iat[0] if LEASE_COLUMN in frame else None
        value = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        held_by = None if lease is None or pd.isna(lease) else int(lease)
        return self._invocation.context(queue, held_by, value)

    def _process(
        self, frame: pd.DataFrame, memory: _KeyMemory, context: StageContext
    ) -> Iterator[Any]:
        """Call with the rows; after a failure with half as many, until the failing row is alone.

        Not by a process queue, as `StageInvocation` does it: a call's state is the argument of
        the next one, and a failed call must leave no trace in it.
        """
        first, attempts, limit = 0, 0, len(frame)
        failures = self._invocation.failures
        while first < len(frame):
            is_whole = first == 0 and limit == len(frame)
            part = frame if is_whole else frame.iloc[first : first + limit]
            if memory.parked is not None:
                self._divert(part, memory.parked)
                first += len(part)
                continue
            self._check_lease(context, part)
            try:
                result, memory.state = self._call(part, memory.state, context)
            except FunctionFailed as error:
                if failures is None:
                    raise
                if len(part) > 1:
                    limit = (len(part) + 1) // 2
                    continue
                attempts += 1
                if attempts < failures.policy.max_attempts:
                    continue
                self._give_up(part, memory, error)
                result, limit, attempts = None, len(frame), 0
            first += len(part)
            for batch in self._spec.output.batches(result):
                yield from self._form.results(batch)

    def _call(
        self, part: pd.DataFrame, state: dict[str, Any] | None, context: StageContext
    ) -> tuple[Any, dict[str, Any] | None]:
        rows = part if part.index[0] == 0 else part.reset_index(drop=True)
        # A copy: a function that changes its state and then raises must not be seen to.
        given = (rows, None if state is None else dict(state))
        function = self._spec.function
        try:
            result = function(*given, context) if self._spec.with_context else function(*given)
        except Exception as error:
            raise function_failed(len(part), part.iloc[0], part.iloc[-1], error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"the function returned a {type(result).__name__}: return (rows, state)"
            )
        return result

    def _check_lease(self, context: StageContext, part: pd.DataFrame) -> None:
        fence = self._spec.fence
        if fence is None:
            return
        # A key of one queue, the usual case, is checked without looking at its rows.
        if context.queue is not None and context.lease is not None:
            fence.check(context.queue, context.lease)
            return
        leases = part[[*ORIGIN_COLUMNS[:3], LEASE_COLUMN]].drop_duplicates().dropna()
        for topic, broker, queue_id, lease in leases.itertuples(index=False, name=None):
            fence.check(MessageQueue(topic, broker, int(queue_id)), int(lease))

    def _give_up(self, part: pd.DataFrame, memory: _KeyMemory, error: FunctionFailed) -> None:
        assert self._invocation.failures is not None
        row = _without_nan(part.iloc[0].to_dict())
        reason = str(error.__cause__ or error)
        if isinstance(self._spec.on_failure, ParkKey):
            memory.parked = (
                f"its key is parked since offset {row['offset']} of {queue_of(row)}: {reason}"
            )
        self._invocation.failures.divert(row, queue_of(row), reason)

    def _divert(self, part: pd.DataFrame, reason: str) -> None:
        assert self._invocation.failures is not None
        for row in part.to_dict("records"):
            self._invocation.failures.divert(_without_nan(row), queue_of(row), reason)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    # pandas puts NaN where a value is missing, and only NaN differs from itself.
    return {name: None if value != value else value for name, value in row.items()}


def _single_queue(frame: pd.DataFrame) -> MessageQueue | None:
    """Return the queue of all rows; None if there are several."""
    columns = [frame[name].to_numpy() for name in ORIGIN_COLUMNS[:3]]
    if not all((column == column[0]).all() for column in columns):
        return None
    topic, broker, queue_id = (column[0] for column in columns)
    return MessageQueue(topic, broker, int(queue_id))
