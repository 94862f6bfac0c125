"""The stamps of messages that the sink writes, and the check of their order.

A stamp is a source and a sequence which rises within it, and within each of its keys. It stays
the same however often Spark writes a batch, so consumers recognize a repeated message by it
(`drop_repeats`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.errors import OrderingError
from ordermq.spark.row_order import RowOrigins

_Numbers = np.ndarray[Any, Any]
_NO_ROW: Final = -1, ""


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of a batch's rows.

    Args:
        source: of every row; None if they differ, and `sources` has one per row.
        rows: the third part; None where all are 0.
    """

    source: str | None
    sources: Any
    sequence: _Numbers
    rows: _Numbers | None


class SourceOrder:
    """Stamps the rows of one task and checks that offsets rise within a key.

    Without keys they must rise within a source queue. Several rows may have one offset: a stage
    may make several of one message.

    Args: is_checked: raise where offsets fall.
    """

    def __init__(self, is_checked: bool) -> None:
        self._is_checked = is_checked
        # Two memories. As long as every batch is a run of one queue, or of several queues one
        # after the other, as the source makes them, the last row per queue is enough and nothing
        # is computed per row: its offset, and the name of its queue and key. From the first other
        # batch on, (offset, row) is kept per queue and key.
        self._runs: dict[str, tuple[int, str]] = {}
        self._last: dict[str, tuple[int, int]] = {}
        self.queues: set[str] = set()

    def stamps(self, batch: Any, keys: Any | None) -> Stamps:
        """Return the stamps of a batch that has rows.

        Args: keys: the sharding keys as a string column, or None.
        Raises: OrderingError: an offset is lower than the one before it.
        """
        origins = RowOrigins(batch)
        offsets = np.asarray(origins.offsets)
        ends = {} if self._last else self._whole_runs(origins, batch.num_rows)
        if not ends:
            return self._stamps_by_key(batch, keys, offsets)
        for queue, end in ends.items():
            name = queue if keys is None else f"{queue}\x01{keys[end - 1].as_py() or ''}"
            self._runs[queue] = origins.offsets[end - 1], name
        self.queues.update(ends)
        if len(ends) == 1:
            return Stamps(next(iter(ends)), None, offsets, None)
        counts = np.diff([0, *ends.values()])
        names = pa.array(list(ends)).take(pa.array(np.repeat(np.arange(len(ends)), counts)))
        return Stamps(None, names, offsets, None)

    def _whole_runs(self, origins: RowOrigins, count: int) -> dict[str, int]:
        """Return the end of each queue's rows; empty unless each is a run behind its last one."""
        ends: dict[str, int] = {}
        first = 0
        while first < count:
            queue = str(origins.queue(first))
            if queue in ends or origins.offsets[first] <= self._runs.get(queue, _NO_ROW)[0]:
                return {}
            ends[queue] = first = origins.run_end(first, count)
        return ends

    def _stamps_by_key(self, batch: Any, keys: Any | None, offsets: _Numbers) -> Stamps:
        """Stamp rows of several queues, several rows of one offset, or rows sorted by key."""
        # Cast: with spark.sql.execution.arrow.useLargeVarTypes texts come with 64-bit positions.
        named = (batch.column(name).cast(pa.string()) for name in ("topic", "broker"))
        topics = pc.binary_join_element_wise(*named, "@")
        numbers = pc.cast(batch.column("queue_id"), pa.string())
        queues = pc.binary_join_element_wise(topics, numbers, "/")
        self.queues.update(pc.unique(queues).to_pylist())
        names = queues
        if keys is not None:
            # U+0001 separates properties in a message, so no key that can be sent contains it.
            names = pc.binary_join_element_wise(queues, pc.fill_null(keys, ""), "\x01")
        coded = names.dictionary_encode()
        codes = coded.indices.to_numpy()
        # Stable: rows of one group keep their order, which is what is checked.
        order = np.argsort(codes, kind="stable")
        found = np.empty(len(order), dtype=np.int64)
        found[order] = self._row_numbers(offsets[order], codes[order], coded.dictionary.to_pylist())
        return Stamps(None, queues, offsets, found if found.any() else None)

    def _row_numbers(self, sequence: _Numbers, group: _Numbers, names: list[str]) -> _Numbers:
        """Return how many rows of its offset came before each row, in grouped rows."""
        same_group = group[1:] == group[:-1]
        falls = np.flatnonzero((sequence[1:] < sequence[:-1]) & same_group)
        if len(falls) and self._is_checked:
            at = int(falls[0]) + 1
            raise _out_of_order(names[group[at]], int(sequence[at]), int(sequence[at - 1]))
        is_new = np.r_[True, (sequence[1:] != sequence[:-1]) | ~same_group]
        starts = np.flatnonzero(is_new)
        rows: _Numbers = np.arange(len(sequence)) - starts[np.cumsum(is_new) - 1]
        begins = np.flatnonzero(np.r_[True, ~same_group])
        ends = np.r_[begins[1:], len(sequence)]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            name = names[group[begin]]
            self._continue_group(name, sequence[begin:end], rows[begin:end])
            self._last[name] = (int(sequence[end - 1]), int(rows[end - 1]))
        return rows

    def _continue_group(self, name: str, sequence: _Numbers, rows: _Numbers) -> None:
        """Check a group's first row against the batch before, and go on counting its offset."""
        last = self._last.get(name)
        if last is None:
            offset, known = self._runs.get(name.partition("\x01")[0], _NO_ROW)
            # Only the last row of the runs before is known. Where that is of another key, no row of
            # this one has an offset that comes again: stamps do not depend on where batches end.
            if known != name:
                return
            last = offset, 0
        if sequence[0] < last[0] and self._is_checked:
            raise _out_of_order(name, int(sequence[0]), last[0])
        if sequence[0] == last[0]:
            rows[sequence == last[0]] += last[1] + 1


def _out_of_order(name: str, offset: int, last: int) -> OrderingError:
    queue, _, key = name.partition("\x01")
    return OrderingError(
        f"rows reach the sink out of order: offset {offset} of {queue}"
        f"{f', key {key!r},' if key else ''} arrives after offset {last}. Write straight from the "
        "source or an ordered stage, call ordermq.spark.by_target_queue(frame, ...) before a "
        "write that must shuffle, or give option order='none'"
    )
