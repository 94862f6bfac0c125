"""What a poll hands out: messages of one queue, as views or as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ordermq.errors import ConfigError, StateError
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa


class PolledBatch(MessageRun):
    """Messages of one queue, ascending in offset; a sequence of `MessageView`, empty if none came.

    Args:
        queue: where they come from; None of an empty batch.
        next_offset: what to commit once all of them are done. Not always the last offset plus
            one: what a tag expression leaves out behind it is covered too.
    """

    __slots__ = ("_queue", "next_offset")

    def __init__(
        self,
        queue: MessageQueue | None,
        segments: Sequence[tuple[MessageBatch, int, int]],
        next_offset: int,
    ) -> None:
        super().__init__(segments)
        self._queue = queue
        self.next_offset = next_offset

    @property
    def message_queue(self) -> MessageQueue:
        """The one queue all of them come from.

        Raises: StateError: the batch is empty.
        """
        if self._queue is None:
            raise StateError("an empty batch is of no queue: nothing came before the time-out")
        return self._queue

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The messages as a table; no Python object a message.

        Args:
            columns: which, and in which order; None takes all of `ordermq.model.arrow.COLUMNS`:
                topic, broker, queue_id, offset, sharding_key, keys, tags, body, properties,
                born_timestamp, store_timestamp, message_id, reconsume_times.
        Raises: ConfigError: there is no such column, or no pyarrow (extra `arrow`).
            ProtocolError: a message's text is not UTF-8, or its body cannot be decompressed.
        """
        try:
            import pyarrow as pa

            from ordermq.model.arrow import COLUMNS, arrow_schema, record_batch
        except ModuleNotFoundError as error:
            raise _missing("pyarrow and numpy", error) from error
        wanted = COLUMNS if columns is None else tuple(columns)
        parts = [
            record_batch(batch, wanted, start=first, end=first + count)
            for batch, first, count in self.segments
        ]
        return pa.Table.from_batches(parts, schema=arrow_schema(wanted))

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """`to_arrow`, then pandas; texts and bodies are Python objects there."""
        table = self.to_arrow(columns)
        try:
            return table.to_pandas()
        except ModuleNotFoundError as error:
            raise _missing("pandas", error) from error

    def __repr__(self) -> str:
        if self._queue is None:
            return "<PolledBatch, empty>"
        last = self.next_offset - 1
        return f"<PolledBatch {self._queue} {len(self)} messages, {self.first_offset}..{last}>"


def _missing(what: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"{error}: columns need {what}; run pip install 'ordermq[arrow]'")


NOTHING = PolledBatch(None, (), 0)
