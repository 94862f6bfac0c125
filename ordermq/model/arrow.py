"""Messages as Arrow columns: one native pass per column, no Python object per message.

Needs the extra `arrow`, without which the rest of the package runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ordermq.core import compression
from ordermq.errors import ConfigError, ProtocolError, StateError
from ordermq.model import properties as props
from ordermq.model.message import MessageBatch, MessageView

_INSTANT: Final = pa.timestamp("us", tz="UTC")

# All columns, in this order. Strings are null where a message has none.
FIELDS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),  # of the queue; for a retried message the group's retry topic
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "offset": pa.int64(),
    "sharding_key": pa.string(),
    "keys": pa.string(),  # separated by blanks
    "tags": pa.string(),
    "body": pa.binary(),  # decompressed
    "properties": pa.map_(pa.string(), pa.string()),  # including the ones above
    "born_timestamp": _INSTANT,
    "store_timestamp": _INSTANT,
    "message_id": pa.string(),
    "reconsume_times": pa.int32(),
}
COLUMNS: Final = tuple(FIELDS)


def checked_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns as a tuple.

    Raises: ConfigError: an unknown column, a repeated one, or none at all.
    """
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r}: expected a list of names, as [{columns!r}]")
    wrong = [name for name in columns if name not in FIELDS]
    if wrong or not columns or len(set(columns)) < len(columns):
        what = "give each once, and at least one"
        if wrong:
            from ordermq.config.checks import hint  # only for a mistake

            what = f"no column {wrong[0]!r}{hint(wrong[0], COLUMNS)}"
        raise ConfigError(f"columns={','.join(columns)}: {what}; expected of {', '.join(COLUMNS)}")
    return tuple(columns)


@cache
def arrow_schema(columns: tuple[str, ...] = COLUMNS) -> pa.Schema:
    """Return the schema of these columns.

    Raises: ConfigError: see `checked_columns`.
    """
    return pa.schema([(name, FIELDS[name]) for name in checked_columns(columns)])


def record_batch(
    batch: MessageBatch,
    columns: Sequence[str] = COLUMNS,
    *,
    start: int = 0,
    end: int | None = None,
) -> pa.RecordBatch:
    """Return messages of a batch as an Arrow record batch of schema `arrow_schema(columns)`.

    Bodies and strings are copied in native code; compressed bodies are decompressed one by one.

    Args:
        columns: the columns in their order.
        start, end: rows of the batch, as in a slice.
    Raises: ConfigError: see `checked_columns`. ProtocolError: a string is not UTF-8, or a body
        cannot be decompressed; names the message. O(property bytes of the whole batch).
    """
    schema = arrow_schema(tuple(columns))
    first, last, _ = slice(start, end).indices(len(batch))
    rows = _Rows(batch, first, max(first, last))
    try:
        arrays = [_MAKERS[name](rows) for name in schema.names]
    except ProtocolError as error:
        raise _named(rows, error) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """Messages first..last - 1 of a batch, and the columns of its index."""

    def __init__(self, batch: MessageBatch, first: int, last: int) -> None:
        self.batch = batch
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return self.last - self.first

    def views(self) -> list[MessageView]:
        return list(self.batch.views(MessageView, self.first, len(self)))

    def numbers(self, *names: str) -> list[np.ndarray[Any, Any]]:
        found = self.batch.columns(*names)
        return [self._cut(found[name]) for name in names]

    def values_of(self, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        positions, sizes = self.batch.property_columns(name)
        return self._cut(positions), self._cut(sizes)

    def entries(self) -> list[np.ndarray[Any, Any]]:
        """Return the starts of the rows' properties, name positions, name sizes, value sizes."""
        starts, *columns = (np.asarray(one) for one in self.batch.property_entries())
        begin, end = starts[self.first], starts[self.last]
        cut = starts[self.first : self.last + 1] - begin
        return [cut, *(column[begin:end] for column in columns)]

    def _cut(self, column: memoryview) -> np.ndarray[Any, Any]:
        return np.asarray(column)[self.first : self.last]


def _gathered(
    rows: _Rows,
    kind: pa.DataType,
    positions: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
    *,
    has_nulls: bool,
) -> pa.Array:
    starts, data = rows.batch.gather(positions.data, sizes.data, kind == pa.string())
    known = None
    if has_nulls and not sizes.all():
        known = pa.py_buffer(np.packbits(sizes != 0, bitorder="little"))
    buffers = [known, pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def _property(name: str) -> Callable[[_Rows], pa.Array]:
    def made(rows: _Rows) -> pa.Array:
        # Size 0 means null: a property without a value does not exist.
        return _gathered(rows, pa.string(), *rows.values_of(name), has_nulls=True)

    return made


def _message_ids(rows: _Rows) -> pa.Array:
    positions, sizes = rows.values_of(props.UNIQ_KEY)
    if sizes.all():
        return _gathered(rows, pa.string(), positions, sizes, has_nulls=False)
    # Slow, but rare: every current producer sets it. The broker's id takes host and position.
    return pieces([view.message_id.encode() for view in rows.views()], pa.string())


def _bodies(rows: _Rows) -> pa.Array:
    positions, sizes, flags = rows.numbers("body_positions", "body_sizes", "sys_flags")
    if (flags & compression.COMPRESSED).any():
        return pieces([bytes(view.body) for view in rows.views()], pa.binary())
    return _gathered(rows, pa.binary(), positions, sizes, has_nulls=False)


def _properties(rows: _Rows) -> pa.Array:
    starts, positions, name_sizes, value_sizes = rows.entries()
    text = pa.string()
    names = _gathered(rows, text, positions, name_sizes, has_nulls=False)
    behind = positions + name_sizes + np.uint32(1)
    values = _gathered(rows, text, behind, value_sizes, has_nulls=False)
    return property_map(len(rows), pa.py_buffer(np.ascontiguousarray(starts)), names, values)


_ENTRY: Final = (FIELDS["properties"].key_field, FIELDS["properties"].item_field)


def property_map(rows: int, starts: pa.Buffer, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return the column of properties; none of its rows is null.

    Args: starts: row i has the names and values starts[i] .. starts[i + 1] - 1, int32.
    """
    entries = pa.StructArray.from_arrays([names, values], fields=[*_ENTRY])
    return pa.Array.from_buffers(
        FIELDS["properties"], rows, [None, starts], null_count=0, children=[entries]
    )


def _instants(name: str) -> Callable[[_Rows], pa.Array]:
    def made(rows: _Rows) -> pa.Array:
        (stamps_ms,) = rows.numbers(name)
        return _numbers(stamps_ms * 1_000, _INSTANT)

    return made


def _integers(name: str, kind: pa.DataType) -> Callable[[_Rows], pa.Array]:
    def made(rows: _Rows) -> pa.Array:
        (values,) = rows.numbers(name)
        return _numbers(values, kind)

    return made


def _numbers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


# PyArrow imports pandas, which costs a process a third of a second, to make a scalar or an array of
# Python's values. So the two that follow make them of buffers.


def repeated(value: str | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column with one value: a text, an integer, or null."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, str):
        return pieces([value.encode()] * rows, kind)
    return _numbers(np.full(rows, value, f"i{kind.byte_width}"), kind)


def pieces(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return a column of these byte strings, or of these texts in UTF-8.

    Raises: StateError: more than Arrow's 31 bits can address.
    """
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=starts[1:])
    if starts[-1] > np.iinfo(np.int32).max:
        raise StateError(f"{len(values)} messages have more than 2 GiB: take fewer")
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=0)


_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "topic": lambda rows: repeated(rows.batch.queue.topic, pa.string(), len(rows)),
    "broker": lambda rows: repeated(rows.batch.queue.broker_name, pa.string(), len(rows)),
    "queue_id": lambda rows: repeated(rows.batch.queue.queue_id, pa.int32(), len(rows)),
    "offset": _integers("offsets", pa.int64()),
    "sharding_key": _property(props.SHARDING_KEY),
    "keys": _property(props.KEYS),
    "tags": _property(props.TAGS),
    "body": _bodies,
    "properties": _properties,
    "born_timestamp": _instants("born_timestamps"),
    "store_timestamp": _instants("store_timestamps"),
    "message_id": _message_ids,
    "reconsume_times": _integers("reconsume_times", pa.int32()),
}


def _named(rows: _Rows, error: ProtocolError) -> ProtocolError:
    """Return the error of the first malformed message, with its queue and offset."""
    queue = rows.batch.queue
    # The native pass does not say which message it failed at, so decode them one by one.
    found, offset = str(error), rows.batch.offset_at(rows.first)
    for view in rows.views():
        try:
            _ = view.properties, view.body
        except ProtocolError as own:
            found, offset = str(own), view.queue_offset
            break
    return ProtocolError(
        f"{found}; leave the column out, or skip the message",
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        offset=offset,
    )
