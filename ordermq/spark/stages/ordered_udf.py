"""Column functions whose calls see each queue's rows in offset order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from ordermq.errors import ConfigError, FunctionFailed
from ordermq.spark.row_order import PLACE_COLUMNS, OrderCheck, Places, row_tokens
from ordermq.spark.stages.apply_in_order import check_speculation, session_time_zone
from ordermq.spark.stages.output import OutputShape
from ordermq.spark.stages.stage_invocation import TABLE, Engine, task_place

# How Spark knows an Arrow UDF over batches: one that keeps something from batch to batch.
_SHAPE = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
_REMEDY = (
    "use the function straight on the source's columns, before any repartition, join, sort or "
    "distinct; for another key's order use apply_in_order(key=...)"
)


def ordered_udf(
    return_type: DataType | str, *, engine: Engine = "pandas", allow_speculation: bool = False
) -> Callable[[Callable[..., Any]], OrderedUdf]:
    """Make a column function of one that takes and returns columns of rows in order.

        @ordered_udf("double")
        def mean_so_far(price: pd.Series) -> pd.Series: ...

        orders.select("offset", mean_so_far("price"))

    Each call gets rows of one queue, offsets rising; what it returns is as long. Underneath is
    an Arrow UDF, so there is no shuffle and no cost a group. It reads the columns topic,
    broker, queue_id and offset of the DataFrame it is used on, and raises where a queue's
    offsets do not rise. No fence and no dead letters: `apply_in_order` has them.

    Args:
        return_type: Spark's.
        engine: what the function takes and returns: pandas Series or pyarrow Arrays.
        allow_speculation: as in `apply_in_order`.
    """
    if engine not in ("pandas", "arrow"):
        raise ConfigError(f"engine={engine!r}: expected 'pandas' or 'arrow'")

    def made(function: Callable[..., Any]) -> OrderedUdf:
        return OrderedUdf(function, return_type, engine, allow_speculation)

    return made


class OrderedUdf:
    """A column function; made by `ordered_udf`."""

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
        """The column of what the function returns for these columns' rows.

        Raises: ConfigError: the session runs tasks twice at once.
        """
        spark = SparkSession.active()
        check_speculation(spark, self._allow_speculation)
        kind = self._return_type
        if isinstance(kind, str):
            kind = DataType.fromDDL(kind)
        shape = OutputShape(StructType([StructField("value", kind)]), session_time_zone(spark))
        stage = _Stage(uuid.uuid4().hex, self._function, self._engine, shape)

        def run(batches: Any) -> Any:
            return stage.run(batches)

        run.__annotations__ = dict(_SHAPE)
        # Effects must not be run twice by an optimizer that copies an expression.
        udf = F.arrow_udf(run, kind).asNondeterministic()
        places = [F.col(name) for name in PLACE_COLUMNS]
        return udf(*places, *columns).alias(self.__name__)


class _Stage:
    def __init__(
        self, name: str, function: Callable[..., Any], engine: Engine, shape: OutputShape
    ) -> None:
        self._name = name
        self._function = function
        self._engine = engine
        self._shape = shape

    def run(self, batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        place, check = task_place(self._name), OrderCheck(_REMEDY)
        for columns in batches:
            count = len(columns[0])
            if not count:
                yield pa.array([], self._shape.schema.field(0).type)
                continue
            where = pa.RecordBatch.from_arrays(list(columns[:4]), names=list(PLACE_COLUMNS))
            places = Places(where)
            answers: list[Any] = []
            for queue, first, end in check.runs(places, 0, count):
                process_queue = TABLE.of(place, queue, places.offsets[first])
                process_queue.put_columns(places.offsets[first:end], row_tokens(first, end))
                _, tokens = process_queue.take_columns(end - first)
                given = [column.slice(tokens[0], len(tokens)) for column in columns[4:]]
                answers.append(self._called(given, len(tokens), places, first, end))
                process_queue.commit()
            yield answers[0] if len(answers) == 1 else pa.concat_arrays(answers)

    def _called(self, given: list[Any], count: int, places: Places, first: int, end: int) -> Any:
        if self._engine == "pandas":
            given = [column.to_pandas() for column in given]
        try:
            answer = self._function(*given)
        except Exception as error:
            queue = places.queue(first)
            raise FunctionFailed(
                f"the ordered function failed on {count} rows, offsets {places.offsets[first]} "
                f"to {places.offsets[end - 1]}: {type(error).__name__}: {error}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=places.offsets[first],
            ) from error
        if not hasattr(answer, "__len__") or len(answer) != count:
            size = len(answer) if hasattr(answer, "__len__") else type(answer).__name__
            raise ConfigError(
                f"the ordered function returned {size} for {count} rows: expected a Series or an "
                "Array with a value a row"
            )
        return self._shape.column(0, answer)
