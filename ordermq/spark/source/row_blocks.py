"""Pulled messages as record batches: one native pass over their bytes, no Python object each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ordermq.core import compression, contract, status
from ordermq.core.streams import ColumnBuffer
from ordermq.errors import ProtocolError
from ordermq.model import properties as props
from ordermq.model.arrow import FIELDS, pieces, property_map, repeated
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.schema import LEASE_COLUMN, source_schema

_BODY_BYTES: Final = 32 << 20  # of decompressed bodies in a record batch
# The names of properties that the map goes without, ascending by length, and the prefix of more.
_NOTHING: Final[tuple[tuple[bytes, ...], bytes]] = ((), b"")
_PROTOCOLS: Final = (
    tuple(sorted((name.encode() for name in props.PROTOCOL_NAMES), key=len)),
    props.TRANSIENT_PREFIX.encode(),
)


class RowBlocks:
    """Makes the record batches of one queue.

    Args: lease: value of the column `lease`, where the options ask for one.
    """

    def __init__(self, options: SourceOptions, queue: MessageQueue, lease: int | None) -> None:
        self._queue = queue
        self._schema = source_schema(options.columns, is_ordered=options.is_ordered)
        self._most_bytes = options.remoting.max_decompressed_bytes
        self._left_out = _NOTHING if options.all_properties else _PROTOCOLS
        # The offsets are always made: an error names one.
        self._wanted = 1 << ColumnBuffer.OFFSETS
        for name in options.columns:
            if name in _BUFFERS:
                self._wanted |= 1 << _BUFFERS[name]
        # Columns with one value: made as long as the longest batch so far, and cut.
        same: dict[str, str | int | None] = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            LEASE_COLUMN: lease,
        }
        self._same = {name: value for name, value in same.items() if name in self._schema.names}
        self._repeated: dict[str, pa.Array] = {}

    def record_batches(self, block: contract.AnswerBlock) -> Iterator[pa.RecordBatch]:
        """Return the messages of a block, which stays as it is, as record batches.

        One, unless bodies are decompressed: these may be a thousand times as long as they came.

        Raises: ProtocolError: a text is not UTF-8, or a body cannot be decompressed.
        """
        made = block.columns(self._wanted, *self._left_out)
        if made is None:
            offset, properties = block.malformed()
            raise self._malformed(offset, _text_error(properties))
        columns = _Columns(len(block), *made)
        names = self._schema.names
        is_cut = "body" in names and columns.has_compressed
        whole = [name for name in names if name != "body" or not is_cut]
        arrays = {name: self._array(name, columns) for name in whole}
        if not is_cut:
            yield pa.RecordBatch.from_arrays([*arrays.values()], schema=self._schema)
            return
        first = 0
        for bodies in self._decompressed(columns):
            part = {name: array.slice(first, len(bodies)) for name, array in arrays.items()}
            part["body"] = bodies
            yield pa.RecordBatch.from_arrays([part[name] for name in names], schema=self._schema)
            first += len(bodies)

    def _array(self, name: str, columns: _Columns) -> pa.Array:
        if name in self._same:
            return self._repeat(name, columns.rows)
        return _MAKERS[name](columns)

    def _repeat(self, name: str, rows: int) -> pa.Array:
        made = self._repeated.get(name)
        if made is None or len(made) < rows:
            kind = self._schema.field(name).type
            made = repeated(self._same[name], kind, rows)
            self._repeated[name] = made
        return made.slice(0, rows)

    def _decompressed(self, columns: _Columns) -> Iterator[pa.Array]:
        """Return the bodies in parts of about `_BODY_BYTES`, one longer body alone."""
        starts = columns.numbers(ColumnBuffer.BODY, np.int32)
        flags = columns.numbers(ColumnBuffer.SYS_FLAGS, np.int32)
        stored = columns.buffer(ColumnBuffer.BODY + 1)
        bodies: list[bytes] = []
        size = 0
        for row, flag in enumerate(flags.tolist()):
            body = stored.slice(starts[row], starts[row + 1] - starts[row]).to_pybytes()
            if flag & compression.COMPRESSED:
                try:
                    body = compression.decompress(body, flag, self._most_bytes)
                except ProtocolError as error:
                    offsets = columns.numbers(ColumnBuffer.OFFSETS, np.int64)
                    raise self._malformed(int(offsets[row]), error) from None
            if bodies and size + len(body) > _BODY_BYTES:
                yield pieces(bodies, pa.binary())
                bodies, size = [], 0
            bodies.append(body)
            size += len(body)
        yield pieces(bodies, pa.binary())

    def _malformed(self, offset: int, error: ProtocolError) -> ProtocolError:
        return ProtocolError(
            f"{error}; leave the column out, or skip the message",
            topic=self._queue.topic,
            broker=self._queue.broker_name,
            queue_id=self._queue.queue_id,
            offset=offset,
        )


def _text_error(properties: bytes) -> ProtocolError:
    try:
        properties.decode()
    except UnicodeDecodeError as error:
        return status.not_text(error)
    raise AssertionError("the properties are text")


class _Columns:
    """The buffers of one block; see `AnswerBlock.columns`."""

    def __init__(
        self,
        rows: int,
        memory: Any,
        spans: list[tuple[int, int]],
        entries: int,
        has_compressed: bool,
    ) -> None:
        self.rows = rows
        self.entries = entries
        self.has_compressed = has_compressed
        self._memory = pa.py_buffer(memory)
        self._spans = spans

    def buffer(self, number: int) -> pa.Buffer:
        return self._memory.slice(*self._spans[number])

    def numbers(self, number: int, kind: type[Any]) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.buffer(number), kind)

    def pieces(self, number: int, kind: pa.DataType, count: int) -> pa.Array:
        """Return byte strings, or texts, of which none is null."""
        buffers = [None, self.buffer(number), self.buffer(number + 1)]
        return pa.Array.from_buffers(kind, count, buffers, null_count=0)

    def optional(self, number: int) -> pa.Array:
        """Return texts that may be null."""
        validity = self.buffer(number) if self._spans[number][1] else None
        buffers = [validity, self.buffer(number + 1), self.buffer(number + 2)]
        return pa.Array.from_buffers(pa.string(), self.rows, buffers)

    def plain(self, number: int, kind: pa.DataType) -> pa.Array:
        """Return numbers."""
        return pa.Array.from_buffers(kind, self.rows, [None, self.buffer(number)], null_count=0)

    def map(self, number: int) -> pa.Array:
        """Return the properties."""
        names = self.pieces(number + 1, pa.string(), self.entries)
        values = self.pieces(number + 3, pa.string(), self.entries)
        return property_map(self.rows, self.buffer(number), names, values)


_BUFFERS: Final = {
    "sharding_key": ColumnBuffer.SHARDING_KEY,
    "keys": ColumnBuffer.KEYS,
    "tags": ColumnBuffer.TAGS,
    "body": ColumnBuffer.BODY,
    "properties": ColumnBuffer.PROPERTIES,
    "born_timestamp": ColumnBuffer.BORN,
    "store_timestamp": ColumnBuffer.STORED,
    "message_id": ColumnBuffer.MESSAGE_ID,
    "reconsume_times": ColumnBuffer.RECONSUME_TIMES,
}
_MAKERS: Final[dict[str, Callable[[_Columns], pa.Array]]] = {
    "offset": lambda columns: columns.plain(ColumnBuffer.OFFSETS, pa.int64()),
    "sharding_key": lambda columns: columns.optional(ColumnBuffer.SHARDING_KEY),
    "keys": lambda columns: columns.optional(ColumnBuffer.KEYS),
    "tags": lambda columns: columns.optional(ColumnBuffer.TAGS),
    "body": lambda columns: columns.pieces(ColumnBuffer.BODY, pa.binary(), columns.rows),
    "properties": lambda columns: columns.map(ColumnBuffer.PROPERTIES),
    "born_timestamp": lambda columns: columns.plain(ColumnBuffer.BORN, FIELDS["born_timestamp"]),
    "store_timestamp": lambda columns: columns.plain(
        ColumnBuffer.STORED, FIELDS["store_timestamp"]
    ),
    "message_id": lambda columns: columns.pieces(
        ColumnBuffer.MESSAGE_ID, pa.string(), columns.rows
    ),
    "reconsume_times": lambda columns: columns.plain(ColumnBuffer.RECONSUME_TIMES, pa.int32()),
}
