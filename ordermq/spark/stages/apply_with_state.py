"""`apply_with_state`: ordered stages with a state per key that is kept over micro-batches.

Spark commits the state with the batch. A batch that failed begins from the state before it, so
the state is exact although the batch runs twice.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter, lt
from typing import Any, Literal, NamedTuple

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

from ordermq.errors import ConfigError, FunctionFailed, OrderingError, own_text
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.packages import needed_here
from ordermq.spark.row_order import check_columns
from ordermq.spark.schema import LEASE_COLUMN, ORIGIN_COLUMNS, SHARDING_KEY
from ordermq.spark.shown_errors import text_first
from ordermq.spark.stages.apply_in_order import (
    check_speculation,
    make_spec,
    session_time_zone,
)
from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey, queue_of
from ordermq.spark.stages.output import OutputShape, RowShape, state_copier, struct_of
from ordermq.spark.stages.stage_invocation import (
    MOST_EXACT,
    StageContext,
    StageFunction,
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
# What that column has for a key with a state, no cursors, and not parked: nearly always.
_PLAIN = '{"has": true, "cursors": {}, "parked": null}'
Form = Literal["rows", "pandas"]
Rows = list[Any]  # tuples
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
    engine: Form = "pandas",
    form: Form | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with each key's rows in order, and with the state of its last call.

    One call per key and micro-batch; a key's rows of a micro-batch are in memory together. It
    runs on Spark's `transformWithState` (before 4.1 on its form for pandas), which takes a
    millisecond per key: `apply_with_keyed_state` has the states of a sharding key for a
    thirtieth of that, and for a tenth with the same function.

    Args:
        function: (rows, state) or (rows, state, context) -> (rows or None, state). Rows are as
            `engine` says, with Spark's own timestamps (naive, in the session's zone). The state
            is a dict with the columns of `state_schema`, or None at first; return None to
            forget it.
        state_schema: of the state.
        key: column or columns to which a state belongs.
        drop_repeats: keep the last offset of each queue, too, and drop rows at or below it: a
            queue that is read twice, or replayed from outside, reaches the function once.
        on_failure: as in `apply_in_order`; parked keys are kept in the state, without directory.
        ttl_ms: forget a key this long after its last call.
        engine: "pandas": rows are a DataFrame, and returned ones as those of `apply_in_order`.
            "rows" (since Spark 4.1): rows are a list of Spark's Rows, and returned ones Rows,
            dicts or tuples; for keys with a few rows each, where a DataFrame costs half as much
            as all of Spark.
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
    make_form = _form(engine, form)
    spec = make_spec(
        frame,
        StageFunction(function, "pandas", arguments=2),
        target,
        remedy=_REMEDY,
        on_failure=on_failure,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
    )
    state = struct_of(state_schema)
    grouped = frame.groupBy(*keys)
    by_pandas = make_form is _Frames
    transform = grouped.transformWithStateInPandas if by_pandas else grouped.transformWithState
    given = make_form(frame.schema, spec.output, may_call_again=on_failure is not None)
    kept = _StateKind(state, OutputShape(state, session_time_zone(spark)))
    processor = _KeyProcessor(spec, given, order_by, kept, drop_repeats, ttl_ms)
    return transform(
        statefulProcessor=processor,
        outputStructType=target,
        outputMode="append",
        timeMode="none" if ttl_ms is None else "processingTime",
    )


def _form(engine: Form, asked: Form | None) -> type[_RowForm]:
    for name, given in (("engine", engine), ("form", asked or "rows")):
        if given not in ("rows", "pandas"):
            raise ConfigError(f"{name}={given!r}: expected 'rows' or 'pandas'")
    if engine == "rows":
        if asked == "pandas":
            raise ConfigError('engine="rows" needs form="rows": leave out form')
        require(STATE_BY_ROW)
        return _RowForm
    # The form for pandas makes a DataFrame of a key's rows, row by row, and has pandas make an
    # Arrow batch of each result.
    if asked == "rows":
        require(STATE_BY_ROW)
    by_rows = asked == "rows" or (asked is None and not is_before(STATE_BY_ROW.since))
    return _FramesOfRows if by_rows else _Frames


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


class _StateKind(NamedTuple):
    """The schema of a state, and what fits its values to it."""

    schema: StructType
    shape: OutputShape


class _RowForm:
    """Spark's rows, for a function that takes and returns rows.

    Args: schema: of the rows. output: what the function must return. may_call_again: with the
        same rows, after a failure.
    """

    def __init__(self, schema: StructType, output: OutputShape, may_call_again: bool) -> None:
        self.names = schema.names
        # Columns of which the function may change a value in its place, and then raise.
        self._nested = [
            at
            for at, field in enumerate(schema.fields)
            if may_call_again and isinstance(field.dataType, (ArrayType, MapType, StructType))
        ]
        self._make = Row(*schema.names)
        self._output = output
        self._row_shape = RowShape(output)
        self._out_names = output.schema.names
        self._out_kind = _result_kind(output.schema)

    def receive(self, rows: Iterator[Any]) -> Rows:
        """Return the rows of a key as tuples that begin with the values of `names`."""
        found = list(rows)
        # A key that is no column of the frame comes before its columns, and Spark 4.3 has computed
        # columns named _13, _14, ... at their right places.
        if found[0].__fields__ != self.names:
            count = len(self.names)
            found = [self._make(*row[-count:]) for row in found]
        return found

    def argument(self, rows: Rows) -> Any:
        """Return rows as the function takes them; a value of its own, which it may change."""
        return list(map(self._own, rows)) if self._nested else list(rows)

    def _own(self, row: Any) -> Any:
        values = list(row)
        for at in self._nested:
            values[at] = copy.deepcopy(values[at])
        return self._make(*values)

    def results(self, result: Any) -> Iterable[Any]:
        """Return the function's result as Spark takes it.

        Raises: ConfigError: it is not what the schema has.
        """
        if result is None:
            return []
        if not isinstance(result, list):
            raise ConfigError(
                f"the function returned a {type(result).__name__}: return a list of rows, or None"
            )
        return [self._result(row) for row in result]

    def _result(self, row: Any) -> Any:
        names = self._out_names
        if isinstance(row, Row) and hasattr(row, "__fields__"):
            row = row.asDict()
        if isinstance(row, (tuple, list)):
            if len(row) == len(names):
                return tuple.__new__(self._out_kind, self._row_shape.fitted(row))
        elif isinstance(row, Mapping):
            if row.keys() == set(names):
                values = self._row_shape.fitted([row[name] for name in names])
                return tuple.__new__(self._out_kind, values)
            raise ConfigError(f"the function returned a row of {list(row)}: return {names}")
        raise ConfigError(
            f"the function returned the row {row!r}: return dicts, Rows, or tuples of {names}"
        )


def _result_kind(schema: pa.Schema) -> type[Row]:
    """Return the class of a stage's result rows, which are made as tuples.

    Spark asks each row for a dict, rows within it included. Making a Row and looking for such rows
    took longer than the function did, so where there can be none the class has its own answer.
    """
    names = schema.names
    own: dict[str, Any] = {"__fields__": names}
    if not any(map(pa.types.is_nested, schema.types)):
        own["asDict"] = lambda self, recursive=False: dict(zip(names, self, strict=True))
    return type("ResultRow", (Row,), own)


class _FramesOfRows(_RowForm):
    """Spark's rows, made a DataFrame for the function, and of its result."""

    def __init__(self, schema: StructType, output: OutputShape, may_call_again: bool) -> None:
        super().__init__(schema, output, may_call_again)
        self._columns = [_column_maker(field.dataType) for field in schema.fields]

    def argument(self, rows: Rows) -> Any:
        values = zip(*super().argument(rows), strict=True)
        arrays = [make(column) for make, column in zip(self._columns, values, strict=True)]
        # By number, and not by name, which may be there twice.
        found = pd.DataFrame(dict(enumerate(arrays)), copy=False)
        found.columns = self.names
        return found

    def results(self, result: Any) -> Iterable[Any]:
        for batch in self._output.batches(result):
            columns = [column.to_pylist() for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield tuple.__new__(self._out_kind, values)


class _Frames(_RowForm):
    """Spark's DataFrames, for a function that takes and returns them."""

    def receive(self, rows: Iterator[Any]) -> Rows:
        frames = list(rows)
        self._frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        self._frame.columns = self.names
        # Behind each row's values is its place in the frame.
        columns = [self._frame.iloc[:, at] for at in range(len(self.names))]
        return list(zip(*columns, range(len(self._frame)), strict=True))

    def argument(self, rows: Rows) -> Any:
        taken = self._frame.take([row[-1] for row in rows]).reset_index(drop=True)
        for at in self._nested:
            taken.isetitem(at, taken.iloc[:, at].map(copy.deepcopy))
        return taken

    def results(self, result: Any) -> Iterable[Any]:
        for batch in self._output.batches(result):
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
    if None not in values:
        return np.array(values, np.int64)
    if all(one is None or -MOST_EXACT <= one <= MOST_EXACT for one in values):
        return np.array(values, np.float64)
    return pd.array(values, dtype="Int64")  # of which a float does not have all


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


class _Order:
    """The place of a row: its queue and offset, or the columns that the user names.

    Args: names: of all columns. order_by: of those by which a key's rows are sorted.
    """

    def __init__(self, names: Sequence[str], order_by: Sequence[str]) -> None:
        self._is_own = tuple(order_by) != ORIGIN_COLUMNS
        self._places = [names.index(name) for name in order_by]
        *queue, offset = (names.index(name) for name in ORIGIN_COLUMNS)
        self.queue_of = itemgetter(*queue)
        self.offset_of = itemgetter(offset)

    def queue_in_order(self, rows: Rows) -> MessageQueue | None:
        """Return the queue of all rows, if their offsets rise already, as they mostly do."""
        if self._is_own:
            return None
        offsets = list(map(self.offset_of, map(tuple, rows)))
        return self.single_queue(rows) if all(map(lt, offsets, offsets[1:])) else None

    def single_queue(self, rows: Rows) -> MessageQueue | None:
        """Return the queue of all rows; None if there are several, or no rows."""
        # As plain tuples: an item of a Row is a call of a Python method.
        queues = set(map(self.queue_of, map(tuple, rows)))
        return _message_queue(*queues) if len(queues) == 1 else None

    def sorted(self, rows: Rows) -> Rows:
        """Return the rows in order; missing values come last."""
        return sorted(rows, key=self._key)

    def _key(self, row: Any) -> list[tuple[bool, Any]]:
        values = [row[at] for at in self._places]
        # Only a missing number differs from itself.
        return [(True, 0) if v is None or v != v else (False, v) for v in values]


class _KeyProcessor(StatefulProcessor):
    """Spark calls it once per key and micro-batch, with the key's rows in any order."""

    def __init__(
        self,
        spec: StageSpec,
        form: _RowForm,
        order_by: Sequence[str],
        state: _StateKind,
        drops_repeats: bool,
        ttl_ms: int | None,
    ) -> None:
        self._spec = spec
        self._form = form
        self._order = _Order(form.names, order_by)
        self._lease_at = form.names.index(LEASE_COLUMN) if LEASE_COLUMN in form.names else None
        self._state_shape = RowShape(state.shape)
        self._copy_state = state_copier(state.shape.schema)
        self._names = state.schema.names
        self._kept_schema = StructType(list(state.schema.fields)).add(_OWN_COLUMN, StringType())
        self._drops_repeats = drops_repeats
        self._ttl_ms = ttl_ms

    # The three methods below are named and called by Spark.

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("kept", self._kept_schema, self._ttl_ms)
        self._invocation = StageInvocation(self._spec)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = self._form.receive(rows)
        with text_first():
            yield from self._handle(key, found)

    def close(self) -> None:
        pass

    def _handle(self, key: Any, rows: Rows) -> Iterator[Any]:
        """Process the rows of a key, and keep its state."""
        memory = self._load()
        queue = self._order.queue_in_order(rows)
        if queue is None or self._drops_repeats:
            rows = self._without_repeats(rows if queue else self._order.sorted(rows), memory)
            queue = queue or self._order.single_queue(rows)
        if rows:
            context = self._context(rows, key, queue)
            yield from self._process(rows, memory, context)
            self._save(memory)

    # The state.

    def _load(self) -> _KeyMemory:
        kept = self._value.get()
        if kept is None:
            return _KeyMemory(None, {}, None)
        *values, own_text = kept
        state = dict(zip(self._names, values, strict=True))
        if own_text == _PLAIN:
            return _KeyMemory(state, {}, None)
        own = json.loads(own_text)
        return _KeyMemory(state if own["has"] else None, own["cursors"], own["parked"])

    def _save(self, memory: _KeyMemory) -> None:
        # A key without anything to keep is cleared, or the store would grow with every key.
        if memory.state is None and not memory.cursors and memory.parked is None:
            if self._value.exists():
                self._value.clear()
            return
        state = memory.state
        if state is not None and (not isinstance(state, Mapping) or set(state) != set(self._names)):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ConfigError(
                f"the function returned a state of {found}: return the columns of the state's "
                f"schema, {sorted(self._names)}"
            )
        own_text = _PLAIN
        if memory.state is None or memory.cursors or memory.parked is not None:
            own_text = json.dumps({
                "has": memory.state is not None,
                "cursors": memory.cursors,
                "parked": memory.parked,
            })  # fmt: skip
        try:
            values = self._state_shape.fitted([(state or {}).get(name) for name in self._names])
        except ConfigError as error:
            raise ConfigError(
                f"the state that the function returned does not fit state_schema: {error}"
            ) from error
        self._value.update((*values, own_text))

    def _without_repeats(self, rows: Rows, memory: _KeyMemory) -> Rows:
        """Return the new rows and move the cursors of their queues past them.

        Raises: OrderingError: a row arrives twice, and repeats are not dropped.
        """
        # Within the micro-batch by comparison, against earlier ones by the cursors.
        new, seen = [], set()
        names: dict[Any, str] = {}
        before = dict(memory.cursors)
        for row in rows:
            queue, offset = self._order.queue_of(row), int(self._order.offset_of(row))
            is_repeated = (queue, offset) in seen
            if is_repeated and not self._drops_repeats:
                topic, broker, queue_id = queue
                raise OrderingError(
                    f"offset {offset} arrives twice: {_REMEDY}",
                    topic=topic,
                    broker=broker,
                    queue_id=int(queue_id),
                    offset=offset,
                )
            seen.add((queue, offset))
            if self._drops_repeats:
                name = names.get(queue)
                if name is None:
                    name = names[queue] = str(_message_queue(queue))
                if is_repeated or offset <= before.get(name, -1):
                    continue
                memory.cursors[name] = max(offset, memory.cursors.get(name, -1))
            new.append(row)
        return new

    # The calls.

    def _context(self, rows: Rows, key: Any, queue: MessageQueue | None) -> StageContext:
        lease = None if self._lease_at is None else rows[0][self._lease_at]
        value = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        held_by = None if lease is None or lease != lease else int(lease)
        return self._invocation.context(queue, held_by, value)

    def _process(self, rows: Rows, memory: _KeyMemory, context: StageContext) -> Iterator[Any]:
        """Call with the rows; after a failure with half as many, until the failing row is alone.

        Not by a process queue, as `StageInvocation` does it: a call's state is the argument of
        the next one, and a failed call must leave no trace in it.
        """
        first, attempts, limit = 0, 0, len(rows)
        failures = self._invocation.failures
        while first < len(rows):
            part = rows[first : first + limit]
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
                result = None
            if attempts:  # of a row alone, which is done with
                limit, attempts = len(rows), 0
            first += len(part)
            yield from self._form.results(result)

    def _call(
        self, part: Rows, state: dict[str, Any] | None, context: StageContext
    ) -> tuple[Any, dict[str, Any] | None]:
        given = (self._form.argument(part), None if state is None else self._copy_state(state))
        function = self._spec.function
        try:
            result = function(*given, context) if self._spec.with_context else function(*given)
        except Exception as error:
            first, last = self._values(part[0]), self._values(part[-1])
            raise function_failed(len(part), first, last, error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"the function returned a {type(result).__name__}: return (rows, state)"
            )
        return result

    def _check_lease(self, context: StageContext, part: Rows) -> None:
        fence = self._spec.fence
        if fence is None:
            return
        # A key of one queue, the usual case, is checked without looking at its rows.
        if context.queue is not None and context.lease is not None:
            fence.check(context.queue, context.lease)
            return
        assert self._lease_at is not None  # the fence stands on that column
        held = {(self._order.queue_of(row), row[self._lease_at]) for row in part}
        for queue, lease in held:
            if lease is not None and lease == lease:
                fence.check(_message_queue(queue), int(lease))

    def _values(self, row: Any) -> dict[str, Any]:
        """Return a row's values by name; pandas has NaN for a missing one."""
        named = zip(self._form.names, row, strict=False)
        is_scalar = pd.api.types.is_scalar  # pandas has NumPy arrays for lists
        return {
            name: None if is_scalar(value) and pd.isna(value) else value for name, value in named
        }

    def _give_up(self, part: Rows, memory: _KeyMemory, error: FunctionFailed) -> None:
        assert self._invocation.failures is not None
        row = self._values(part[0])
        reason = own_text(error.__cause__ or error)
        if isinstance(self._spec.on_failure, ParkKey):
            memory.parked = (
                f"its key is parked since offset {row['offset']} of {queue_of(row)}: {reason}"
            )
        self._invocation.failures.divert(row, queue_of(row), reason)

    def _divert(self, part: Rows, reason: str) -> None:
        assert self._invocation.failures is not None
        for row in map(self._values, part):
            self._invocation.failures.divert(row, queue_of(row), reason)


def _message_queue(values: tuple[str, str, Any]) -> MessageQueue:
    topic, broker, queue_id = values
    return MessageQueue(topic, broker, int(queue_id))
