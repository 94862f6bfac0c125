"""`ordered_udf`: column functions whose calls get the rows of each queue in offset order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from ordermq.errors import ConfigError, FunctionFailed
from ordermq.spark.row_order import ORIGIN_COLUMNS, OrderCheck, RowOrigins, row_tokens
from ordermq.spark.session import running_task
from ordermq.spark.stages.apply_in_order import check_engine, check_speculation, session_time_zone
from ordermq.spark.stages.output import OutputShape
from ordermq.spark.stages.stage_invocation import PROCESS_QUEUES, Engine

# Spark recognizes an Arrow UDF over batches, one that keeps state from batch to batch, by these
# annotations.
_ANNOTATIONS = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
_REMEDY = (
    "use the function straight on the source's columns, before any repartition, join, sort or "
    "distinct; for the order of another key use apply_in_order(key=...)"
)


def ordered_udf(
    return_type: DataType | str, *, engine: Engine = "pandas", allow_speculation: bool = False
) -> Callable[[Callable[..., Any]], OrderedUdf]:
    """Make a column function of one that takes and returns columns of rows in order.

        @ordered_udf("double")
        def mean_so_far(price: pd.Series) -> pd.Series: ...

        orders.select("offset", mean_so_far("price"))

    Each call gets rows of one queue, offsets rising, and returns as many values. It is built on
    an Arrow UDF, so there is no shuffle and no cost per group. It reads the columns topic,
    broker, queue_id and offset of the DataFrame on which it is used, and raises where a queue's
    offsets do not rise. It checks no lease and sends no dead letters: `apply_in_order` does.

    Args:
        return_type: Spark's.
        engine: pandas Series or pyarrow Arrays as arguments and result.
        allow_speculation: as in `apply_in_order`.
    """
    check_engine(engine)

    def made(function: Callable[..., Any]) -> OrderedUdf:
        return OrderedUdf(function, return_type, engine, allow_speculation)

    return made


class OrderedUdf:
    """A column function made by `ordered_udf`."""

    def __init__(
        self,
        function: Callable[..., Any],
        return_type: DataType | str,
        engine: Engine,
        allow_speculation: bool,
    ) -> None:
        self._function = function
        self._return_type = return_type
        self._engine = engine
        self._allow_speculation = allow_speculation
        self.__name__ = getattr(function, "__name__", "ordered_udf")
        self.__doc__ = function.__doc__

    def __call__(self, *columns: Column | str) -> Column:
        """Return the column of the function's values for these columns.

        Raises: ConfigError: the session runs two attempts of a task at once.
        """
        spark = SparkSession.active()
        check_speculation(spark, self._allow_speculation)
        kind = self._return_type
        if isinstance(kind, str):
            kind = DataType.fromDDL(kind)
        shape = OutputShape(StructType([StructField("value", kind)]), session_time_zone(spark))
        column_stage = _ColumnStage(uuid.uuid4().hex, self._function, self._engine, shape)

        # A plain function: Spark inspects it, and a bound method cannot carry annotations.
        def run(batches: Any) -> Any:
            return column_stage.run(batches)

        run.__annotations__ = dict(_ANNOTATIONS)
        # Not deterministic, for Spark: an optimizer that copies an expression would otherwise run
        # the function's effects twice.
        udf = F.arrow_udf(run, kind).asNondeterministic()
        origins = [F.col(name) for name in ORIGIN_COLUMNS]
        return udf(*origins, *columns).alias(self.__name__)


class _ColumnStage:
    def __init__(
        self, name: str, function: Callable[..., Any], engine: Engine, shape: OutputShape
    ) -> None:
        self._name = name
        self._function = function
        self._engine = engine
        self._shape = shape

    def run(self, batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        task, check = running_task(self._name), OrderCheck(_REMEDY)
        n_origins = len(ORIGIN_COLUMNS)
        for columns in batches:
            count = len(columns[0])
            if not count:
                yield pa.array([], self._shape.schema.field(0).type)
                continue
            # The origin columns are arguments of the UDF: Spark passes it nothing else of a row.
            origins = RowOrigins(
                pa.RecordBatch.from_arrays(list(columns[:n_origins]), names=list(ORIGIN_COLUMNS))
            )
            results: list[Any] = []
            for queue, first, end in check.runs(origins, 0, count):
                process_queue = PROCESS_QUEUES.get(task, queue, origins.offsets[first])
                process_queue.put_columns(origins.offsets[first:end], row_tokens(first, end))
                _, tokens = process_queue.take_columns(end - first)
                given = [column.slice(tokens[0], len(tokens)) for column in columns[n_origins:]]
                results.append(self._call(given, len(tokens), origins, first, end))
                process_queue.commit()
            # One value per row in the order of the rows: Spark adds them to the other columns.
            yield results[0] if len(results) == 1 else pa.concat_arrays(results)

    def _call(self, given: list[Any], count: int, origins: RowOrigins, first: int, end: int) -> Any:
        if self._engine == "pandas":
            given = [column.to_pandas() for column in given]
        try:
            result = self._function(*given)
        except Exception as error:
            queue = origins.queue(first)
            raise FunctionFailed(
                f"the ordered function failed on {count} rows, offsets {origins.offsets[first]} "
                f"to {origins.offsets[end - 1]}: {type(error).__name__}: {error}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=origins.offsets[first],
            ) from error
        # Checked per call, so that the error names the numbers of the function's own call.
        if not hasattr(result, "__len__") or len(result) != count:
            size = len(result) if hasattr(result, "__len__") else type(result).__name__
            raise ConfigError(
                f"the ordered function returned {size} for {count} rows: return a Series or an "
                "Array with one value per row"
            )
        return self._shape.column(0, result)
