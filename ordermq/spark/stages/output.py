"""What a stage gives back: the schema's columns, found by name and cast.

Spark maps the columns of mapInArrow by position and believes their types (spark.md, H).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError

# Rows gathered before they go to Spark: its cost is a batch's, not a row's.
GATHERED_ROWS = 10_000


def struct_of(schema: StructType | str) -> StructType:
    """A schema given as such or as DDL text."""
    if isinstance(schema, StructType):
        return schema
    return StructType.fromDDL(schema)


class OutputShape:
    """The columns a stage's function must return.

    Args:
        schema: Spark's.
        time_zone: what a timestamp without a zone is meant in, the session's.
    """

    def __init__(self, schema: StructType, time_zone: str) -> None:
        plain = to_arrow_schema(schema, timezone="UTC")
        self.schema = pa.schema([pa.field(one.name, one.type) for one in plain])
        self._time_zone = time_zone
        names = self.schema.names
        if len(set(names)) != len(names):
            raise ConfigError(f"output schema {names}: expected each name once")

    def column(self, at: int, values: Any) -> Any:
        """One column's values, an Array or a pandas Series, cast to what the schema says.

        Raises: ConfigError: a value does not fit.
        """
        if isinstance(values, pa.ChunkedArray):
            values = _chunk(values)
        return self._column(self.schema.field(at), values)

    def batches(self, result: Any) -> list[Any]:
        """A function's answer as record batches of the schema; [] for None or no rows.

        Args: result: RecordBatch, Table or pandas DataFrame, columns in any order; or None.
        Raises: ConfigError: missing or extra columns, a value that does not fit its type.
        """
        if result is None:
            return []
        if isinstance(result, pa.RecordBatch):
            if result.schema.equals(self.schema):
                return [result] if result.num_rows else []
            return self._cast(result.schema.names, result.columns)
        if isinstance(result, pa.Table):
            flat = result.combine_chunks()
            columns = [_chunk(column) for column in flat.columns]
            return self._cast(result.schema.names, columns)
        if hasattr(result, "columns") and hasattr(result, "iloc"):
            names = [str(name) for name in result.columns]
            return self._cast(names, [result.iloc[:, at] for at in range(len(names))])
        raise ConfigError(
            f"the function returned a {type(result).__name__}: expected a pandas DataFrame, a "
            "pyarrow RecordBatch or Table, or None for no rows"
        )

    def _cast(self, names: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        self._check_names(names)
        if not columns or not len(columns[0]):
            return []
        found = dict(zip(names, columns, strict=True))
        arrays = [self._column(field, found[field.name]) for field in self.schema]
        return [pa.RecordBatch.from_arrays(arrays, schema=self.schema)]

    def _check_names(self, names: Sequence[str]) -> None:
        wanted = self.schema.names
        if len(names) == len(wanted) and set(names) == set(wanted):
            return
        missing = [name for name in wanted if name not in names]
        extra = [name for name in names if name not in wanted]
        twice = sorted({name for name in names if list(names).count(name) > 1})
        parts = (("missing", missing), ("not in the schema", extra), ("more than once", twice))
        wrong = "; ".join(f"{what}: {which}" for what, which in parts if which)
        raise ConfigError(
            f"the function returned columns {list(names)}, the schema has {wanted}: {wrong}. "
            "Return exactly these, in any order"
        )

    def _column(self, field: Any, values: Any) -> Any:
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
                f"column {field.name!r} of what the function returned does not fit the schema's "
                f"{kind}: {error}"
            ) from error

    def _from_pandas(self, values: Any, kind: Any) -> Any:
        if pa.types.is_timestamp(kind) and kind.tz and str(values.dtype).startswith("datetime64"):
            # Naive, or of a zone: the type found first, or naive times would be taken as UTC.
            found = pa.Array.from_pandas(values)
        else:
            found = pa.Array.from_pandas(values, type=kind)
        return _chunk(found) if isinstance(found, pa.ChunkedArray) else found


def _is_naive(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _chunk(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else whole.chunk(0)


class Gathered:
    """Joins small batches until they are worth Spark's price of one."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._rows = 0

    def add(self, batches: Sequence[Any]) -> Iterator[Any]:
        """Keep batches; give what is enough."""
        for batch in batches:
            if not self._held and batch.num_rows >= GATHERED_ROWS:
                yield batch
                continue
            self._held.append(batch)
            self._rows += batch.num_rows
            if self._rows >= GATHERED_ROWS:
                yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Give what is held."""
        held, self._held, self._rows = self._held, [], 0
        if len(held) == 1:
            yield held[0]
        elif held:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
