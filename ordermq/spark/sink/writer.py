"""The sink: writes rows to a topic, at least once, in order, with stamps.

Spark may write a batch twice, and the losing attempt may go on after the batch was committed. So
every message carries a stamp of its origin (row_stamps.py), by which `drop_repeats` finds the
repeated ones.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyspark.sql.datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.frozen_imports import freeze_imports
from ordermq.spark.options import Order, SinkOptions
from ordermq.spark.session import running_task
from ordermq.spark.shown_errors import text_first
from ordermq.spark.sink.block_sender import BlockSender, block_sender
from ordermq.spark.sink.row_encoder import RowEncoder

_log = logging.getLogger("ordermq.spark")
_SENT = (
    "The messages are sent, in no defined order: their stamps identify them, but do not rise as "
    "drop_repeats needs it"
)


@dataclass
class Sent(WriterCommitMessage):
    """The report of one task.

    Args:
        targets: the queues it sent to.
        sources: the queues its rows came from; empty without origin columns.
        keys: its sharding keys; None if there are none, or too many to report.
    """

    # Small and plain: Spark pickles it, and collects one per task on the driver.
    partition: int
    rows: int
    targets: tuple[MessageQueue, ...]
    sources: tuple[str, ...]
    keys: frozenset[str] | None


class SinkWriter:
    """The common part of the batch and the streaming writer; pickled to every task."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)
        # Names a batch write in its stamps. Made on the driver and pickled, so that a task which
        # runs again has the same name and its repeats can be recognized. Short, for it is in each
        # message; 64 bits, so that no two writes into a topic have the same.
        self._write_id = secrets.token_urlsafe(8)

    def _sender(self) -> BlockSender:
        options = self._options
        return block_sender(options.name_servers, options.config, options.group, options.selector)

    @text_first()
    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send the rows of one task; return when the broker has acknowledged them all."""
        task = running_task("sink")
        sender = self._sender()
        origin = f"{task.query_id or self._write_id}/{task.partition}"
        # A new encoder per task: its order check must not remember rows of another attempt.
        encoder = RowEncoder(
            self._options,
            self._columns,
            sender.queues,
            (origin, task.batch_id),
            task.partition,
        )
        with sender.stream(is_bulk=encoder.is_bulk) as stream:
            for batch in iterator:
                stream.send(encoder.encode(batch))  # encoded while those before are being sent
        freeze_imports()
        order = encoder.source_order
        return Sent(
            task.partition,
            encoder.rows,
            tuple(sorted(encoder.targets)),
            tuple(sorted(order.queues)) if order is not None else (),
            frozenset(encoder.keys) if encoder.keys is not None else None,
        )

    @text_first()
    def check(self, sent: Sequence[Sent | None]) -> None:
        """Check what the tasks together did to the order.

        A task sees only its own rows, so a key in two tasks is found here, after the sends. The
        error fails the batch; the stamps keep its messages recognizable.

        Raises: OrderingError: two tasks sent what only one may send.
        """
        # None stands for a task that failed; then the batch is aborted, not committed.
        done = [one for one in sent if one is not None]
        if self._options.order is Order.QUEUE:
            _refuse_shared_targets(Counter(queue for one in done for queue in one.targets))
        if self._options.order is Order.KEY:
            _refuse_split_keys(done, bool(self._options.key_column))
        freeze_imports()


def _refuse_shared_targets(tasks: Mapping[MessageQueue, int]) -> None:
    shared = sorted(queue for queue, count in tasks.items() if count > 1)
    if shared:
        raise OrderingError(
            f"option order='queue': {tasks[shared[0]]} tasks of one batch sent to the same queue. "
            "Call ordermq.spark.by_target_queue(frame, ...) before the write, or use order='key'. "
            f"{_SENT}",
            topic=shared[0].topic,
            broker=shared[0].broker_name,
            queue_id=shared[0].queue_id,
        )


def _refuse_split_keys(sent: Sequence[Sent], has_keys: bool) -> None:
    # A source queue in two tasks means that something shuffled. A shuffle by key is fine: then
    # no key is in two tasks.
    tasks = Counter(queue for one in sent for queue in one.sources)
    split = sorted(queue for queue, count in tasks.items() if count > 1)
    # Without origin columns nothing tells where rows come from, and only keys can be compared.
    if not split and (tasks or not has_keys):
        return
    repeated = sorted(_repeated(one.keys or frozenset() for one in sent))
    if has_keys and not repeated:
        if any(one.keys is None for one in sent):
            _log.warning(
                "%s: rows are in several tasks, with too many keys to check their order",
                split[0] if split else "sink",
            )
        return
    what = f"key {repeated[0]!r} is" if repeated else f"rows of {split[0]} are"
    raise OrderingError(
        f"{what} in several tasks of one batch: write straight from the source or an ordered "
        "stage, call ordermq.spark.by_target_queue(frame, ...) before the write, or give option "
        f"order='none'. Something before the write shuffles the rows. {_SENT}"
    )


def _repeated(keys: Iterable[frozenset[str]]) -> set[str]:
    """Return what is in several of the sets."""
    seen: set[str] = set()
    found: set[str] = set()
    for each in keys:
        found |= seen & each
        seen |= each
    return found


# Two classes, because Spark tells a batch from a streaming writer by its base class. The Arrow
# bases get record batches; the plain ones would get a Python object per row.


class BatchWriter(SinkWriter, DataSourceArrowWriter):
    """The writer of `df.write.format("ordermq")`."""

    def commit(self, messages: list[Sent | None]) -> None:
        self.check(messages)

    def abort(self, messages: list[Sent | None]) -> None:
        _log_aborted(messages)


# Spark 4.0 has no Arrow writer of streams, and takes the other one for both.
_StreamArrowBase: Any = getattr(
    pyspark.sql.datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter
)


class StreamWriter(SinkWriter, _StreamArrowBase):
    """The writer of `df.writeStream.format("ordermq")`."""

    def commit(self, messages: list[Sent | None], batchId: int) -> None:
        self.check(messages)

    def abort(self, messages: list[Sent | None], batchId: int) -> None:
        _log_aborted(messages)


def _log_aborted(messages: Sequence[Sent | None]) -> None:
    rows = sum(one.rows for one in messages if one is not None)
    _log.warning("write failed: %d rows of finished tasks are sent and will be sent again", rows)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch query.

    Raises: ConfigError: an option is wrong, or the mode is not append.
    """
    with text_first():
        if overwrite:
            raise ConfigError(
                "mode 'overwrite' is not supported: write with mode('append'). A topic cannot be "
                "overwritten"
            )
    options = _sink_options(given, schema)
    freeze_imports()
    return BatchWriter(options, schema.names)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query.

    Args:
        overwrite: of output mode `complete`, in which each batch is the whole result: as with
            Kafka's sink it is written after what is there, and the last message of a key counts.
    Raises: ConfigError: an option is wrong.
    """
    options = _sink_options(given, schema)
    freeze_imports()
    return StreamWriter(options, schema.names)


@text_first()
def _sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    return SinkOptions.of(given, {field.name: field for field in schema.fields})
