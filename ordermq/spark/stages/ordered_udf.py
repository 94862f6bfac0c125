"""`ordered_udf`: column functions whose calls get the rows of each queue in offset order."""

from __future__ import annotations

import typing
import uuid
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType
from pyspark.util import PythonEvalType

from ordermq.callables import require_plain
from ordermq.errors import ConfigError, FunctionFailed, error_text
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.packages import needed_here
from ordermq.spark.row_order import OrderCheck, RowOrigins, row_tokens
from ordermq.spark.schema import LEASE_COLUMN, ORIGIN_COLUMNS
from ordermq.spark.session import RunningTask, running_task
from ordermq.spark.shown_errors import text_first
from ordermq.spark.stages.apply_in_order import check_engine, check_speculation, session_time_zone
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.output import OutputShape
from ordermq.spark.stages.stage_invocation import PROCESS_QUEUES, Engine, is_spark_udf
from ordermq.spark.versions import ARROW_UDF, is_before, require

_REMEDY = (
    "use the function straight on the source's columns, before any repartition, join, sort or "
    "distinct; for the order of another key use apply_in_order(key=...)"
)
# The UDFs of Spark that are accepted: the engine, and whether the function works on iterators.
_ACCEPTED: dict[int, tuple[Engine, bool]] = {
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: ("pandas", False),
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: ("pandas", True),
}
if not is_before(ARROW_UDF.since):
    _ACCEPTED |= {
        PythonEvalType.SQL_SCALAR_ARROW_UDF: ("arrow", False),
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: ("arrow", True),
    }


@typing.overload
def ordered_udf(
    return_type: DataType | str | None = None,
    *,
    engine: Engine | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> Callable[[Callable[..., Any]], OrderedUdf]: ...


@typing.overload
def ordered_udf(
    return_type: Callable[..., Any],
    *,
    engine: Engine | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> OrderedUdf: ...


def ordered_udf(
    return_type: DataType | str | Callable[..., Any] | None = None,
    *,
    engine: Engine | None = None,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> Callable[[Callable[..., Any]], OrderedUdf] | OrderedUdf:
    """Make a column function of one that takes and returns columns of rows in order.

        @ordered_udf("double")
        def change(price: pd.Series) -> pd.Series: ...

        @ordered_udf
        @pandas_udf("double")
        def change(price: pd.Series) -> pd.Series: ...

        orders.select("offset", change("price"))

    Each call gets rows of one queue, offsets rising, and returns as many values. A function from
    `Iterator[pd.Series]`, or of tuples of several columns, to `Iterator[pd.Series]` is called once
    per task; each item has rows of one queue. It runs inside a real `pandas_udf`, or an
    `arrow_udf`: there is no shuffle and no cost per group. It reads the columns topic, broker,
    queue_id and offset of the DataFrame on which it is used, and raises where a queue's offsets do
    not rise. It sends no dead letters: `apply_in_order` does.

    Args:
        return_type: Spark's; or a function decorated with `pandas_udf` or `arrow_udf`, whose type,
            engine and form are used.
        engine: pandas Series or pyarrow Arrays as arguments and result; None: those of the
            decorator, else pandas.
        allow_speculation: as in `apply_in_order`.
        client_options: name servers, account and group of a source in ordered mode: with them the
            lease is read from the column `lease` and checked before the function gets rows.
        fence_interval_ms: how long an executor believes a confirmed lock.
    Raises: ConfigError: the function is a UDF of another form, an argument differs from it, or
        Spark is too old for the engine.
    """
    if engine is not None:
        check_engine(engine)
        if engine == "arrow":
            require(ARROW_UDF)
    fence = ExecutorLease.of(client_options, fence_interval_ms) if client_options else None

    def made(function: Callable[..., Any]) -> OrderedUdf:
        given = None if callable(return_type) else return_type
        return OrderedUdf(_form_of(function, given, engine), allow_speculation, fence)

    # An instance of a DataType is not callable, so a callable is the function itself.
    return made(return_type) if callable(return_type) else made


@dataclass(frozen=True)
class _Form:
    """The user's function, and how it is called."""

    function: Callable[..., Any]
    name: str
    return_type: DataType | str
    engine: Engine
    takes_iterator: bool


def _form_of(
    function: Callable[..., Any], return_type: DataType | str | None, engine: Engine | None
) -> _Form:
    name = getattr(function, "__name__", "ordered_udf")
    if is_spark_udf(function):
        return _form_of_udf(function, name, return_type, engine)
    require_plain("function", function)
    if return_type is None:
        raise ConfigError(f'{name} has no return type: write @ordered_udf("double"), or another')
    returned = _return_hint(function)
    if returned in (bool, int, float, str, bytes):
        raise ConfigError(_no_aggregates(name))
    takes_iterator = typing.get_origin(returned) in (abc.Iterator, abc.Generator)
    return _Form(function, name, return_type, engine or "pandas", takes_iterator)


def _form_of_udf(
    udf: Any, name: str, return_type: DataType | str | None, engine: Engine | None
) -> _Form:
    found = _ACCEPTED.get(udf.evalType)
    if found is None:
        raise ConfigError(_no_aggregates(name))
    if engine not in (None, found[0]):
        raise ConfigError(
            f"{name} is decorated with {found[0]}_udf: remove engine={engine!r}, or decorate it "
            f"with {engine}_udf"
        )
    given = DataType.fromDDL(return_type) if isinstance(return_type, str) else return_type
    if given is not None and given != udf.returnType:
        raise ConfigError(
            f"{name} returns {udf.returnType.simpleString()} by its decorator: remove the return "
            f"type {given.simpleString()} of ordered_udf"
        )
    return _Form(udf.func, name, udf.returnType, *found)


def _no_aggregates(name: str) -> str:
    return (
        f"{name} returns no column: return a Series or an Iterator of Series with one value per "
        "row and decorate with pandas_udf; for one result per key use apply_in_order(key=...), "
        "because the shuffle of Spark's groups loses the order"
    )


def _return_hint(function: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    # A name known only where the function was written, or an object without annotations. Spark,
    # too, then takes it for a function from Series to Series.
    except (NameError, TypeError):
        return None


class OrderedUdf:
    """A column function made by `ordered_udf`."""

    def __init__(self, form: _Form, allow_speculation: bool, fence: ExecutorLease | None) -> None:
        self._form = form
        self._allow_speculation = allow_speculation
        self._fence = fence
        self.__name__ = form.name
        self.__doc__ = form.function.__doc__

    def __call__(self, *columns: Column | str) -> Column:
        """Return the column of the function's values for these columns.

        Raises: ConfigError: the session runs two attempts of a task at once.
        """
        spark = SparkSession.active()
        check_speculation(spark, self._allow_speculation)
        form = self._form
        kind = form.return_type
        if isinstance(kind, str):
            kind = DataType.fromDDL(kind)
        shape = OutputShape(StructType([StructField("value", kind)]), session_time_zone(spark))
        frames: _Columns = _PandasColumns() if form.engine == "pandas" else _ArrowColumns(shape)
        stage = _ColumnStage(uuid.uuid4().hex, form, frames, self._fence)

        # A plain function: Spark inspects it, and a bound method cannot carry annotations.
        def run(batches: Any) -> Any:
            return stage.run(batches)

        run.__name__ = form.name  # in Spark's plans and errors
        # Spark recognizes a UDF over batches, one that keeps state from batch to batch, by these.
        column = frames.annotation()
        run.__annotations__ = {
            "batches": Iterator[tuple[column, ...]],  # type: ignore[valid-type]
            "return": Iterator[column],  # type: ignore[valid-type]
        }
        # Not deterministic, for Spark: an optimizer that copies an expression would otherwise run
        # the function's effects twice.
        made = F.pandas_udf if form.engine == "pandas" else F.arrow_udf
        udf = made(run, kind).asNondeterministic()
        # These columns are arguments of the UDF: Spark passes it nothing else of a row.
        read = [F.col(name) for name in ORIGIN_COLUMNS]
        if self._fence is not None:
            # pandas makes floats of integers with nulls, which cannot hold a lease id; none is 0.
            read.append(F.coalesce(F.col(LEASE_COLUMN), F.lit(0).cast("bigint")))
        return udf(*read, *columns).alias(self.__name__)


# Running, on executors.


class _Columns(Protocol):
    """Columns as Spark passes them: pandas Series or Arrow Arrays."""

    def annotation(self) -> Any:
        """Return the type by which Spark recognizes the UDF."""

    def arrow(self, columns: tuple[Any, ...]) -> list[Any]:
        """Return columns as Arrow Arrays, which the core reads."""

    def part(self, column: Any, first: int, end: int) -> Any:
        """Return the rows first .. end - 1."""

    def result(self, values: Any) -> Any:
        """Return a result of the function as Spark takes it."""


class _PandasColumns:
    """`_Columns` of a pandas_udf."""

    def annotation(self) -> Any:
        with needed_here():
            import pandas as pd  # type: ignore[import-untyped]  # a second, which Arrow need not pay

        return pd.Series

    def arrow(self, columns: tuple[Any, ...]) -> list[Any]:
        return [_arrow_of(column) for column in columns]

    def part(self, column: Any, first: int, end: int) -> Any:
        if end - first == len(column):
            return column
        return column.iloc[first:end].reset_index(drop=True)

    def result(self, values: Any) -> Any:
        with needed_here():
            import pandas as pd

        if isinstance(values, (pd.Series, pd.DataFrame)):  # a DataFrame for a STRUCT
            return values
        return pd.Series(values.to_numpy(False) if isinstance(values, pa.Array) else values)


def _arrow_of(column: Any) -> Any:
    values = column.to_numpy()
    # Topic and broker are mostly one text per batch, and Spark makes one object of equal texts:
    # to compare objects is a quarter of the price of turning each back into Arrow.
    if values.dtype == object and isinstance(values[0], str) and (values == values[0]).all():
        return pa.repeat(values[0], len(values))
    return pa.array(values, from_pandas=True)


class _ArrowColumns:
    """`_Columns` of an arrow_udf."""

    def __init__(self, shape: OutputShape) -> None:
        self._shape = shape

    def annotation(self) -> Any:
        return pa.Array

    def arrow(self, columns: tuple[Any, ...]) -> list[Any]:
        return list(columns)

    def part(self, column: Any, first: int, end: int) -> Any:
        return column.slice(first, end - first)

    def result(self, values: Any) -> Any:
        # Spark would not cast: a wrong type crashes far from its cause.
        return self._shape.column(0, values)


class _ColumnStage:
    """An `ordered_udf` as the driver made it and the executors run it."""

    def __init__(
        self, name: str, form: _Form, frames: _Columns, fence: ExecutorLease | None
    ) -> None:
        self._name = name
        self._form = form
        self._frames = frames
        self._fence = fence

    def run(self, batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Run the function for a task; yield columns with one value per row, in order."""
        guard = _OrderGuard(self._name, self._frames, self._fence)
        parts = guard.parts(batches)
        results = self._call_once if self._form.takes_iterator else self._call_per_part
        with text_first():
            for result in results(parts, guard):
                yield self._frames.result(result)

    def _call_per_part(self, parts: Iterator[tuple[Any, ...]], guard: _OrderGuard) -> Iterator[Any]:
        for part in parts:
            try:
                result = self._form.function(*part)
            except Exception as error:
                raise guard.function_failed(error) from error
            # Checked per call, so that the error names the numbers of the function's own call.
            size = len(result) if hasattr(result, "__len__") else type(result).__name__
            if size != guard.count:
                raise ConfigError(
                    f"the ordered function returned {size} for {guard.count} rows: return a Series "
                    "or an Array with one value per row"
                )
            yield result

    def _call_once(self, parts: Iterator[tuple[Any, ...]], guard: _OrderGuard) -> Iterator[Any]:
        try:
            # As Spark does: one column comes as it is, several as a tuple.
            yield from self._form.function(part[0] if len(part) == 1 else part for part in parts)
        except Exception as error:
            # A refusal passes through the user's code, and says more than its failure would.
            if error is guard.refusal:
                raise
            raise guard.function_failed(error) from error
        # The user's code may have caught it.
        if guard.refusal is not None:
            raise guard.refusal


class _OrderGuard:
    """Cuts a task's columns into runs of one queue, checked before the function gets them."""

    def __init__(self, stage: str, frames: _Columns, fence: ExecutorLease | None) -> None:
        self._stage = stage
        self._frames = frames
        self._fence = fence
        self._names = [*ORIGIN_COLUMNS] if fence is None else [*ORIGIN_COLUMNS, LEASE_COLUMN]
        # The number of rows that the function got last.
        self.count = 0
        self._queue: MessageQueue | None = None
        self._offsets = (0, 0)
        self.refusal: Exception | None = None

    def parts(self, batches: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the function's columns run by run.

        Raises: OrderingError: rows are out of order. LockLost: another member holds the queue.
        """
        task, check = running_task(self._stage), OrderCheck(_REMEDY)
        try:
            for columns in batches:
                if len(columns[0]):
                    yield from self._parts_of(columns, task, check)
        except Exception as error:
            self.refusal = error
            raise

    def _parts_of(
        self, columns: tuple[Any, ...], task: RunningTask, check: OrderCheck
    ) -> Iterator[tuple[Any, ...]]:
        n_read = len(self._names)
        read = pa.RecordBatch.from_arrays(self._frames.arrow(columns[:n_read]), names=self._names)
        origins = RowOrigins(read)
        for queue, first, end in check.runs(origins, 0, read.num_rows):
            self._check_lease(read, queue, first)
            process_queue = PROCESS_QUEUES.get(task, queue, origins.offsets[first])
            process_queue.put_columns(origins.offsets[first:end], row_tokens(first, end))
            _, tokens = process_queue.take_columns(end - first)
            self.count, self._queue = len(tokens), queue
            self._offsets = (origins.offsets[first], origins.offsets[end - 1])
            yield tuple(self._frames.part(column, first, end) for column in columns[n_read:])
            # Asked for more: the function is done with these rows.
            process_queue.commit()

    def _check_lease(self, read: Any, queue: MessageQueue, row: int) -> None:
        if self._fence is None:
            return
        lease = read.column(LEASE_COLUMN)[row].as_py()
        if lease:
            self._fence.check(queue, lease)

    def function_failed(self, error: Exception) -> FunctionFailed:
        """Make the error for an exception of the function."""
        queue, (first, last) = self._queue, self._offsets
        reason = error_text(error)
        if queue is None:
            return FunctionFailed(f"the ordered function failed before its first rows: {reason}")
        return FunctionFailed(
            f"the ordered function failed on {self.count} rows, offsets {first} to {last}, on one "
            f"of them at least: {reason}. The batch will run again; to continue with the other "
            "rows, use apply_in_order with on_failure=DeadLetter(topic) or ParkKey(topic)",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=first,
        )
