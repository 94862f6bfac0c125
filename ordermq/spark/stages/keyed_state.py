"""The state of one queue's keys in memory: a row per key, in Arrow columns.

Rows are only appended: a key's newest row is found by its position, in a dict from keys to
positions. So a call's keys are looked up, and their new rows stored, by column and in C; no Python
code runs per key. What a micro-batch changed is a few of these rows again, which is what
`state_store.py` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.errors import ConfigError

# A chunk of strings has 32-bit positions, so it cannot hold more than 2 GiB.
MAX_BYTES = 1 << 30
# Rows that no key needs any more are dropped when they are as many as the needed ones, and these.
_MIN_GARBAGE = 4_096
# An entry of the dict: a key object with its header, and a number. Measured with texts of 15
# characters; the table itself is asked for its size.
_BYTES_PER_KEY = 96


class KeyedState:
    """The states of the keys of one queue. A state whose values are all missing is no state.

    Args:
        schema: the key's column, then those of the state.
        initial: values of the state of a new key by column; the others are missing.
    """

    def __init__(self, schema: Any, initial: Mapping[str, Any] | None = None) -> None:
        self.schema = schema
        self._initial = dict(initial or {})
        values = {name: self._initial.get(name) for name in schema.names}
        columns = [pa.array([values[field.name]], field.type) for field in schema]
        # Position 0 is the state of a key that has none, so a look-up needs no special case.
        self._new = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._clear()

    def _clear(self) -> None:
        self._chunks = [self._new]
        self._rows = 1
        self._positions: dict[Any, int] = {}
        self._changed: dict[Any, None] = {}  # in order, so that the same batch is stored alike

    def __len__(self) -> int:
        return len(self._positions)

    def is_like(self, schema: Any, initial: Mapping[str, Any]) -> bool:
        """Return whether a state made of these arguments would give the same answers."""
        return bool(self.schema.equals(schema)) and self._initial == initial

    @property
    def n_bytes(self) -> int:
        """The memory of the states and of their keys, estimated."""
        columns: int = sum(chunk.nbytes for chunk in self._chunks)
        return columns + sys.getsizeof(self._positions) + _BYTES_PER_KEY * len(self._positions)

    def compact(self) -> None:
        """Keep only the newest row of each key; raises as `put`."""
        if self._rows > 1 + len(self._positions):
            self._drop_garbage()

    def get(self, keys: Any) -> Any:
        """Return the keys and their states as a RecordBatch; new keys have the initial state.

        Args: keys: an Array of the key's type, each once, none missing.
        """
        names = _names(keys)
        found = np.fromiter(map(self._positions.get, names, repeat(0)), np.int64, len(names))
        return self._at(found).set_column(0, self.schema.field(0), keys)

    def put(self, states: Any) -> None:
        """Store the states of keys, each once; a key whose values are all missing is forgotten.

        Raises: ConfigError: the queue has more state than a process can keep.
        """
        forgotten = _all_missing(states)
        if forgotten is not None:
            for key in _names(states.column(0).filter(forgotten)):
                self._changed[key] = None
                self._positions.pop(key, None)
            states = states.filter(pc.invert(forgotten))
        keys = _names(states.column(0))
        if not keys:
            return
        self._positions.update(zip(keys, range(self._rows, self._rows + len(keys)), strict=True))
        self._changed.update(dict.fromkeys(keys))
        self._chunks.append(states)
        self._rows += len(keys)
        self._join_chunks()
        if self._rows > 2 * len(self._positions) + _MIN_GARBAGE:
            self._drop_garbage()

    def load(self, stored: Any) -> None:
        """Store what an earlier micro-batch changed; it is no change of this one."""
        self.put(stored)
        self._changed.clear()

    def changes(self) -> Any:
        """Return the states of the keys that were stored since `forget_changes`.

        The values of a key that was forgotten are all missing.
        """
        there = [key for key in self._changed if key in self._positions]
        found = np.fromiter(map(self._positions.__getitem__, there), np.int64, len(there))
        forgotten = [key for key in self._changed if key not in self._positions]
        kept = self._at(found)
        if not forgotten:
            return kept
        missing = [pa.nulls(len(forgotten), field.type) for field in list(self.schema)[1:]]
        columns = [_keys(forgotten, self.schema.field(0).type), *missing]
        return _joined([kept, pa.RecordBatch.from_arrays(columns, schema=self.schema)])

    def forget_changes(self) -> None:
        """Begin to note changes anew: those so far are stored."""
        self._changed.clear()

    def everything(self) -> Any:
        """Return the states of all keys."""
        self._drop_garbage()
        return self._chunks[0].slice(1)

    def _at(self, positions: Any) -> Any:
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(positions))
        starts = np.cumsum([0, *(chunk.num_rows for chunk in self._chunks[:-1])])
        chunk_of = np.searchsorted(starts, positions, side="right") - 1
        # Grouped by chunk, taken from each, joined, and put back in the order of the positions.
        order = np.argsort(chunk_of, kind="stable")
        ends = np.searchsorted(chunk_of[order], np.arange(len(self._chunks)), side="right")
        taken, first = [], 0
        for chunk, start, end in zip(self._chunks, starts, ends, strict=True):
            if end > first:
                taken.append(chunk.take(pa.array(positions[order[first:end]] - start)))
            first = end
        if not taken:
            return self._new.slice(0, 0)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return _joined(taken).take(pa.array(back))

    def _join_chunks(self) -> None:
        # Joining moves no row to another position. By sizes that double, so that a row is copied
        # a few times at most, and a look-up passes few chunks.
        chunks = self._chunks
        while len(chunks) > 1 and chunks[-2].num_rows <= 2 * chunks[-1].num_rows:
            if chunks[-2].nbytes + chunks[-1].nbytes > MAX_BYTES:
                return
            last = chunks.pop()
            chunks[-1] = _joined([chunks[-1], last])

    def _drop_garbage(self) -> None:
        """Keep the newest row of each key, in one chunk."""
        newest = np.fromiter(self._positions.values(), np.int64, len(self._positions))
        self._chunks = [self._at(np.concatenate(([0], newest)))]
        self._rows = 1 + len(newest)
        self._positions = dict(zip(self._positions, range(1, self._rows), strict=True))
        if self.n_bytes > MAX_BYTES:
            raise ConfigError(
                f"the state of one queue has {self.n_bytes} bytes, and {MAX_BYTES} is the most a "
                "process keeps: use more queues, smaller states, or forget keys that are done"
            )


def _names(keys: Any) -> list[Any]:
    """Return keys as objects that are equal only where the keys are."""
    # Two times of a zone are equal in Python where its clocks show the same, as in the hour that
    # comes twice when summer ends.
    own = keys.cast(pa.int64()) if pa.types.is_timestamp(keys.type) else keys
    found: list[Any] = own.to_pylist()
    return found


def _keys(names: list[Any], kind: Any) -> Any:
    """Return the keys of objects that `_names` made."""
    if pa.types.is_timestamp(kind):
        return pa.array(names, pa.int64()).cast(kind)
    return pa.array(names, kind)


def _all_missing(states: Any) -> Any:
    """Return a mask of the rows whose state is missing altogether; None if there are none."""
    columns = states.columns[1:]
    if not all(column.null_count for column in columns):
        return None
    mask = columns[0].is_null()
    for column in columns[1:]:
        mask = pc.and_(mask, column.is_null())
    return mask if pc.any(mask).as_py() else None


def _joined(batches: list[Any]) -> Any:
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    # An empty table has no batch; all its rows are the rows of the first one.
    return joined[0] if joined else batches[0]
