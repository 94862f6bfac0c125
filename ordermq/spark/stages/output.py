"""The output of a stage: columns found by name and cast to the schema, batches of a good size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.errors import ConfigError
from ordermq.spark.arrow_schemas import arrow_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Rows collected before they go to Spark: its cost is per batch, not per row.
BATCH_ROWS = 10_000
_OBJECTS: Final = np.dtype(object)


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
        self.schema = arrow_schema_of(schema)
        self._time_zone = time_zone
        names = self.schema.names
        if len(set(names)) != len(names):
            raise ConfigError(f"output schema {names}: each name may be used only once")

    def column(self, index: int, values: Any) -> Any:
        """Return one column's values, an Array or a pandas Series, cast to the schema's type.

        Raises: ConfigError: a value does not fit.
        """
        return self._cast_column(self.schema.field(index), values)

    def batches(self, result: Any) -> list[Any]:
        """Return a function's result as record batches of the schema; [] for None or no rows.

        Args: result: RecordBatch, Table, pandas DataFrame or a dict of columns (arrays, Series or
            lists of one length), in any order; or None.
        Raises: ConfigError: a column is missing or unknown, or a value does not fit its type.
        """
        if result is None:
            return []
        if isinstance(result, pa.RecordBatch):
            # The usual case of engine="arrow" costs one comparison of schemas.
            if result.schema.equals(self.schema):
                return [result] if result.num_rows else []
            return self.from_columns(result.schema.names, result.columns)
        if isinstance(result, pa.Table):
            flat = result.combine_chunks()
            columns = [_one_chunk(column) for column in flat.columns]
            return self.from_columns(result.schema.names, columns)
        # By what it can do, not by its class: importing pandas takes a second, which a stage with
        # engine="arrow" need not pay.
        if hasattr(result, "columns") and hasattr(result, "iloc"):
            names = [str(name) for name in result.columns]
            return self.from_columns(names, [result.iloc[:, at] for at in range(len(names))])
        if isinstance(result, Mapping):
            return self.from_columns([str(name) for name in result], list(result.values()))
        raise ConfigError(
            f"the function returned a {type(result).__name__}: return a pandas DataFrame, a "
            "pyarrow RecordBatch or Table, a dict of columns, or None for no rows"
        )

    def from_columns(self, names: Sequence[str], columns: Sequence[Any]) -> list[Any]:
        """Return columns, in any order, as record batches of the schema; raises as `batches`.

        Args: columns: Arrays, NumPy arrays, pandas Series or lists.
        """
        self._check_names(names)
        sizes = {name: _size(column) for name, column in zip(names, columns, strict=True)}
        if len(set(sizes.values())) > 1:
            raise ConfigError(f"the function returned columns of different lengths: {sizes}")
        if not any(sizes.values()):
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
            if isinstance(values, pa.ChunkedArray):
                values = _one_chunk(values)
            if not isinstance(values, pa.Array):
                values = self._from_pandas(values, kind)
            if values.type == kind:
                return values
            if pa.types.is_timestamp(kind) and kind.tz and _is_naive(values.type):
                values = self._in_session_zone(field, values)
            return values.cast(kind)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
            OverflowError,  # an int that no type of Arrow has
        ) as error:
            raise ConfigError(
                f"column {field.name!r} of the function's result does not fit the schema's "
                f"{kind}: {error}"
            ) from error

    def _in_session_zone(self, field: Any, values: Any) -> Any:
        try:
            return pc.assume_timezone(values, self._time_zone)
        except pa.ArrowInvalid as error:
            # Where clocks are put forward or back, some local times are none, and others are two.
            raise ConfigError(
                f"column {field.name!r} of the function's result has a time without a zone that "
                "is not one moment in the session's: return times with a zone, or set "
                f"spark.sql.session.timeZone to UTC. {error}"
            ) from error

    def _from_pandas(self, values: Any, kind: Any) -> Any:
        if _is_converted_loosely(kind):
            # Without a type, and cast afterwards. Given one, Arrow cuts the fractions of objects
            # off, and takes times without a zone for UTC, which are meant in the session's zone.
            found = pa.Array.from_pandas(values)
            if pa.types.is_timestamp(found.type):
                _check_zones(values)
            elif not _is_cast_as_wanted(found.type, kind):
                found = pa.Array.from_pandas(values, type=kind)
        else:
            found = pa.Array.from_pandas(values, type=kind)
        return _one_chunk(found) if isinstance(found, pa.ChunkedArray) else found


class RowShape:
    """Rows of Python values, fitted to the columns of a schema.

    Spark's own conversion of such values stores a missing one in a state where a value does not
    fit, and cuts the fraction of a result off.

    Args: output: the columns.
    """

    def __init__(self, output: OutputShape) -> None:
        self._output = output
        self._fits = [_fit_of(kind) for kind in output.schema.types]

    def fitted(self, values: Sequence[Any]) -> list[Any]:
        """Return a row's values, one per column, those that do not fit converted.

        Raises: ConfigError: one cannot be. Values within lists, maps and structs are not looked at.
        """
        return [
            value if value is None or fits(value) else self._converted(at, value)
            for at, (fits, value) in enumerate(zip(self._fits, values, strict=True))
        ]

    def _converted(self, at: int, value: Any) -> Any:
        return self._output.column(at, [value])[0].as_py()


def state_copier(schema: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what copies a state: a function that changes its own and then raises leaves no trace.

    Args: schema: Arrow's, of the state.
    """
    return copy.deepcopy if any(map(pa.types.is_nested, schema.types)) else dict


def _fit_of(kind: Any) -> Callable[[Any], bool]:
    """Return what tells of a value that is not None whether Spark takes it as it is."""
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda value: (
            isinstance(value, (int, np.integer))
            and not isinstance(value, bool)
            and -most <= value < most
        )
    for is_kind, classes in _CLASSES:
        if is_kind(kind):
            return lambda value: isinstance(value, classes)
    return lambda value: pa.types.is_nested(kind)


_CLASSES: Final[tuple[tuple[Callable[[Any], bool], tuple[type, ...]], ...]] = (
    (pa.types.is_floating, (float, np.floating)),
    (pa.types.is_boolean, (bool, np.bool_)),
    (pa.types.is_string, (str,)),
    (pa.types.is_binary, (bytes, bytearray)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_date, (date,)),
)


def _is_converted_loosely(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _is_converted_loosely(kind.value_type)
    return bool(pa.types.is_integer(kind) or (pa.types.is_timestamp(kind) and kind.tz))


def _is_cast_as_wanted(found: Any, kind: Any) -> bool:
    """Return whether a cast between these types refuses what a conversion to `kind` would."""
    if pa.types.is_list(kind):
        return pa.types.is_list(found) and _is_cast_as_wanted(found.value_type, kind.value_type)
    # Not texts, of which a cast would read numbers.
    return bool(
        pa.types.is_null(found)
        or pa.types.is_integer(found)
        or pa.types.is_floating(found)
        or pa.types.is_decimal(found)
    )


def _check_zones(values: Any) -> None:
    """Refuse times with a zone among others: Arrow gives all the zone of the first."""
    if getattr(values, "dtype", _OBJECTS) != _OBJECTS:
        return  # a column of times: all have the same zone, or none
    zoned = {value.tzinfo is not None for value in values if isinstance(value, datetime)}
    if len(zoned) > 1:
        raise pa.ArrowInvalid("some of its times have a zone, and others have none")


def _size(column: Any) -> int:
    try:
        return len(column)
    except TypeError as error:
        raise ConfigError(
            f"the function returned a {type(column).__name__} as a column: return an array, a "
            "Series or a list"
        ) from error


def _is_naive(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _one_chunk(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    # combine_chunks may return an Array or a ChunkedArray.
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)


class FrameCollector:
    """Converts the DataFrames of many calls to Arrow together.

    A conversion takes some 50 microseconds per column, for one row as for a thousand.

    Args: output: the columns that a call's result must have.
    """

    def __init__(self, output: OutputShape) -> None:
        self._output = output
        # The columns of the frames that are kept: they are joined only if all have the same.
        self._names: tuple[Any, ...] = ()
        self._types: tuple[Any, ...] = ()
        self._columns: list[list[Any]] = []
        self._rows = 0

    def add(self, result: Any) -> list[Any]:
        """Keep a call's result; return the batches that are complete.

        Raises: ConfigError: a result does not fit, this one or an earlier one.
        """
        found = _numpy_columns(result)
        if found is None:
            return [*self.rest(), *self._output.batches(result)]
        names, types, columns = found
        done: list[Any] = []
        if names != self._names or types != self._types:
            done = self.rest()
            self._names, self._types = names, types
        self._columns.append(columns)
        self._rows += len(columns[0])
        return [*done, *self.rest()] if self._rows >= BATCH_ROWS else done

    def rest(self) -> list[Any]:
        """Return the rows that are kept; raises as `add`."""
        kept, self._columns, self._rows = self._columns, [], 0
        if not kept:
            return []
        joined = [np.concatenate(parts) for parts in zip(*kept, strict=True)]
        return self._output.from_columns([str(name) for name in self._names], joined)


def _numpy_columns(result: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]] | None:
    """Return names, types and values of a result whose columns are NumPy arrays, and have rows."""
    if not isinstance(result, Mapping) and not hasattr(result, "iloc"):
        return None
    names, values = tuple(result), [column for _, column in result.items()]
    types = tuple(getattr(column, "dtype", None) for column in values)
    # Those of pandas' own types have more in them than a NumPy array of them.
    if not types or not all(isinstance(kind, np.dtype) for kind in types):
        return None
    # Copies, because the function may change what it has returned.
    columns = [np.array(column) for column in values]
    shape = columns[0].shape
    if len(shape) != 1 or not shape[0] or any(one.shape != shape for one in columns):
        return None
    return names, types, columns


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
