"""Where rows on their way out come from: their order, and the stamps that name them.

A stamp is what consumers know a repeat by (repeats.py): a source, and a sequence that rises
within it, and within its key, however often Spark writes a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.errors import OrderingError
from ordermq.spark.row_order import Places

SOURCE: Final = "omq_source"  # topic@broker/queue, or a query's partition
SEQUENCE: Final = "omq_offset"  # the source's offset, or the micro-batch
ROW: Final = "omq_row"  # counts rows of one offset, or of the micro-batch; left out where it is 0

_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of a batch's rows.

    Args:
        source: of every row, or None, then `sources` has one a row.
        rows: the third part; None where all are 0.
    """

    source: str | None
    sources: Any
    sequence: _Numbers
    rows: _Numbers | None


class SourceOrder:
    """Follows the rows of one task: within a key (without one, a source queue) offsets rise.

    Rows of one offset may be several: a stage made them of one message.

    Args: is_checked: raise where they do not.
    """

    def __init__(self, is_checked: bool) -> None:
        self._is_checked = is_checked
        # The last offset of each queue while batches are unbroken runs of one queue, as a
        # source gives them; from the first other batch on, by queue and key: offset and row.
        self._runs: dict[str, int] = {}
        self._last: dict[str, tuple[int, int]] = {}
        self.queues: set[str] = set()

    def stamps(self, batch: Any, keys: Any | None) -> Stamps:
        """The stamps of a batch that has rows.

        Args: keys: the sharding keys as a string column, or None.
        Raises: OrderingError: an offset is below the one before it.
        """
        places = Places(batch)
        offsets = np.asarray(places.offsets)
        if not self._last and places.run_end(0, batch.num_rows) == batch.num_rows:
            queue = str(places.queue(0))
            if places.offsets[0] > self._runs.get(queue, -1):
                self._runs[queue] = places.offsets[-1]
                self.queues.add(queue)
                return Stamps(queue, None, offsets, None)
        return self._mixed(batch, keys, offsets)

    def _mixed(self, batch: Any, keys: Any | None, offsets: _Numbers) -> Stamps:
        """Rows of several queues, or several of one offset, or sorted by key: key by key."""
        topics = pc.binary_join_element_wise(batch.column("topic"), batch.column("broker"), "@")
        numbers = pc.cast(batch.column("queue_id"), pa.string())
        queues = pc.binary_join_element_wise(topics, numbers, "/")
        self.queues.update(pc.unique(queues).to_pylist())
        names = queues
        if keys is not None:
            names = pc.binary_join_element_wise(queues, pc.fill_null(keys, ""), "\x01")
        coded = names.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        found = np.empty(len(order), dtype=np.int64)
        found[order] = self._numbered(offsets[order], codes[order], coded.dictionary.to_pylist())
        return Stamps(None, queues, offsets, found if found.any() else None)

    def _numbered(self, sequence: _Numbers, group: _Numbers, names: list[str]) -> _Numbers:
        """Of each row, grouped, how many of its offset were before it; follows each group."""
        same_group = group[1:] == group[:-1]
        falls = np.flatnonzero((sequence[1:] < sequence[:-1]) & same_group)
        if len(falls) and self._is_checked:
            at = int(falls[0]) + 1
            raise _broken(names[group[at]], int(sequence[at]), int(sequence[at - 1]))
        is_new = np.r_[True, (sequence[1:] != sequence[:-1]) | ~same_group]
        starts = np.flatnonzero(is_new)
        rows: _Numbers = np.arange(len(sequence)) - starts[np.cumsum(is_new) - 1]
        begins = np.flatnonzero(np.r_[True, ~same_group])
        ends = np.r_[begins[1:], len(sequence)]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            name = names[group[begin]]
            self._follow(name, sequence[begin:end], rows[begin:end])
            self._last[name] = (int(sequence[end - 1]), int(rows[end - 1]))
        return rows

    def _follow(self, name: str, sequence: _Numbers, rows: _Numbers) -> None:
        """Hold a group's first row against what was before it, and go on counting its offset."""
        queue, _, key = name.partition("\x01")
        last = self._last.get(name)
        if last is None and queue in self._runs:
            last = (self._runs[queue], 0)
            if key and sequence[0] < last[0]:
                return  # the run was perhaps of other keys: nothing is known of this one
        if last is None:
            return
        if sequence[0] < last[0] and self._is_checked:
            raise _broken(name, int(sequence[0]), last[0])
        if sequence[0] == last[0]:
            rows[sequence == last[0]] += last[1] + 1


def _broken(name: str, offset: int, last: int) -> OrderingError:
    queue, _, key = name.partition("\x01")
    return OrderingError(
        f"rows reach the sink out of order: offset {offset} of {queue}"
        f"{f', key {key!r},' if key else ''} comes after offset {last}. Write straight from the "
        "source or an ordered stage, call ordermq.spark.by_target_queue(frame, ...) before a "
        "write that must shuffle, or give option order='none'"
    )
