"""The output of a stage: columns found by name and cast to the schema, batches of a good size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ordermq.errors import ConfigError
from ordermq.spark.versions import is_before

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Rows collected before they go to Spark: its cost is per batch, not per row.
BATCH_ROWS = 10_000


def struct_of(schema: StructType | str) -> StructType:
    """Return a schema that is given as such or as DDL text."""
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    return StructType.fromDDL(schema)


class OutputShape:
    """The columns that the function of a stage must return.

    Spark maps the columns of mapInArrow by position and trusts their types. Swapped columns would
    be swapped silently, and a wrong type crashes far from its cause, so both are checked here.

    Args:
        schema: Spark's.
        time_zone: the session's, for timestamps without a zone.
    """

    def __init__(self, schema: StructType, time_zone: str) -> None:
        # Imported here: what is tested without PySpark imports this file, too.
        from pyspark.sql.pandas.types import to_arrow_schema

        # Before Spark 4.2 there is no such argument, and UTC is meant.
        zone: dict[str, str] = {} if is_before((4, 2)) else {"timezone": "UTC"}
        plain = to_arrow_schema(schema, **zone)
        # Rebuilt without Spark's "not null" and metadata: batches are compared with it exactly.
        self.schema = pa.schema([pa.field(one.name, one.type) for one in plain])
        self._time_zone = time_zone
        names = self.schema.names
        if len(set(names)) != len(names):
            raise ConfigError(f"output schema {names}: each name may be used only once")

    def column(self, index: int, values: Any) -> Any:
        """Return one column's values, an Array or a pandas Series, cast to the schema's type.

        Raises: ConfigError: a value does not fit.
        """
        if isinstance(values, pa.ChunkedArray):
            values = _one_chunk(values)
        return self._cast_column(self.schema.field(index), values)

    def batches(self, result: Any) -> list[Any]:
        """Return a function's result as record batches of the schema; [] for None or no rows.

        Args: result: RecordBatch, Table or pandas DataFrame, columns in any order; or None.
        Raises: ConfigError: a column is missing or unknown, or a value does not fit its type.
        """
        if result is None:
            return []
        if isinstance(result, pa.RecordBatch):
            # The usual case of engine="arrow" costs one comparison of schemas.
            if result.schema.equals(self.schema):
                return [result] if result.num_rows else []
            return self._cast(result.schema.names, result.columns)
        if isinstance(result, pa.Table):
            flat = result.combine_chunks()
            columns = [_one_chunk(column) for column in flat.columns]
            return self._cast(result.schema.names, columns)
        # By what it can do, not by its class: importing pandas takes a second, which a stage with
        # engine="arrow" need not pay.
        if hasattr(result, "columns") and hasattr(result, "iloc"):
            names = [str(name) for name in result.columns]
            return self._cast(names, [result.iloc[:, at] for at in range(len(names))])
        raise ConfigError(
            f"the function returned a {type(result).__name__}: return a pandas DataFrame, a "
            "pyarrow RecordBatch or Table, or None for no rows"
        )

    def _cast(self, names: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        self._check_names(names)
        if not columns or not len(columns[0]):
            return []
        found = dict(zip(names, columns, strict=True))
        arrays = [self._cast_column(field, found[field.name]) for field in self.schema]
        return [pa.RecordBatch.from_arrays(arrays, schema=self.schema)]

    def _check_names(self, names: Sequence[str]) -> None:
        wanted = self.schema.names
        if len(names) == len(wanted) and set(names) == set(wanted):
            return
        missing = [name for name in wanted if name not in names]
        extra = [name for name in names if name not in wanted]
        repeated = sorted({name for name in names if list(names).count(name) > 1})
        # All differences at once, in the terms of the user's function.
        parts = (("missing", missing), ("not in the schema", extra), ("more than once", repeated))
        wrong = "; ".join(f"{what}: {which}" for what, which in parts if which)
        raise ConfigError(
            f"the function returned columns {list(names)}, the schema has {wanted}: {wrong}. "
            "Return exactly these, in any order"
        )

    def _cast_column(self, field: Any, values: Any) -> Any:
        kind = field.type
        try:
            if not isinstance(values, pa.Array):
                values = self._from_pandas(values, kind)
            if values.type == kind:
                return values
            if pa.types.is_timestamp(kind) and kind.tz and _is_naive(values.type):
                values = pc.assume_timezone(values, self._time_zone)
            return values.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ConfigError(
                f"column {field.name!r} of the function's result does not fit the schema's "
                f"{kind}: {error}"
            ) from error

    def _from_pandas(self, values: Any, kind: Any) -> Any:
        if pa.types.is_timestamp(kind) and kind.tz and str(values.dtype).startswith("datetime64"):
            # Without a type: given one with a zone, Arrow takes naive times for UTC, and they are
            # meant in the session's zone.
            found = pa.Array.from_pandas(values)
        else:
            found = pa.Array.from_pandas(values, type=kind)
        return _one_chunk(found) if isinstance(found, pa.ChunkedArray) else found


def _is_naive(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _one_chunk(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    # combine_chunks may return an Array or a ChunkedArray.
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)


class BatchCollector:
    """Joins small record batches until they reach `BATCH_ROWS`."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._rows = 0

    def add(self, batch: Any) -> Sequence[Any]:
        """Keep a batch; return what is kept, joined, if it is large enough."""
        self._held.append(batch)
        self._rows += batch.num_rows
        return self.rest() if self._rows >= BATCH_ROWS else ()

    def rest(self) -> list[Any]:
        """Return the rows that are kept."""
        held, self._held, self._rows = self._held, [], 0
        if len(held) < 2:
            return held
        joined: list[Any] = pa.Table.from_batches(held).combine_chunks().to_batches()
        return joined
