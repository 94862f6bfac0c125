"""The sink: rows to a topic, at least once, in order, stamped.

Spark may write a batch twice, and a losing attempt may go on after the batch's commit, so every
message says where it comes from (sink_places.py); `drop_repeats` reads that.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import Order, SinkOptions
from ordermq.spark.sink.block_sender import BlockSender, sender_of
from ordermq.spark.sink.row_encoder import RowEncoder
from ordermq.spark.stages.stage_invocation import task_place

_log = logging.getLogger("ordermq.spark")


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent.

    Args:
        targets: the queues it sent to.
        sources: the queues its rows came from; empty where they do not say.
        keys: its sharding keys; None if they are too many, or there are none.
    """

    partition: int
    rows: int
    targets: tuple[MessageQueue, ...]
    sources: tuple[str, ...]
    keys: frozenset[str] | None


class SinkWriter:
    """What the batch and the streaming writer do alike; pickled to every task."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)
        self._write_id = uuid.uuid4().hex  # names a batch write, whose tasks may be run again

    def _sender(self) -> BlockSender:
        options = self._options
        return sender_of(options.name_servers, options.config, options.group, options.selector)

    def write(self, iterator: Iterator[Any]) -> Sent:
        """Send one task's rows; returns when the broker has acknowledged them all."""
        place = task_place("sink")
        sender = self._sender()
        origin = f"{place.query_id or self._write_id}/{place.partition}"
        encoder = RowEncoder(
            self._options,
            self._columns,
            sender.queues,
            (origin, place.batch_id or 0),
            place.partition,
        )
        sending: Future[None] | None = None
        for batch in iterator:
            bodies = encoder.encode(batch)  # while the batch before is on its way
            if sending is not None:
                sending.result()
            sending = sender.begin(bodies)
        if sending is not None:
            sending.result()
        order = encoder.source_order
        return Sent(
            place.partition,
            encoder.rows,
            tuple(sorted(encoder.targets)),
            tuple(sorted(order.queues)) if order is not None else (),
            frozenset(encoder.keys) if encoder.keys is not None else None,
        )

    def check(self, sent: Sequence[Sent | None]) -> None:
        """Find what the tasks together have done to the order.

        Raises: OrderingError: two tasks sent what must come from one.
        """
        done = [one for one in sent if one is not None]
        if self._options.order is Order.QUEUE:
            _refuse_shared(Counter(queue for one in done for queue in one.targets))
        if self._options.order is Order.KEY:
            _refuse_split(done, bool(self._options.key_column))


def _refuse_shared(tasks: Mapping[MessageQueue, int]) -> None:
    shared = sorted(queue for queue, count in tasks.items() if count > 1)
    if shared:
        raise OrderingError(
            f"option order='queue': {tasks[shared[0]]} tasks of one batch sent to one queue, so "
            "its order is chance. Call ordermq.spark.by_target_queue(frame, ...) before the "
            "write, or be content with order='key'. The messages are sent; their stamps tell "
            "them apart",
            topic=shared[0].topic,
            broker=shared[0].broker_name,
            queue_id=shared[0].queue_id,
        )


def _refuse_split(sent: Sequence[Sent], has_keys: bool) -> None:
    """A source queue in two tasks means a shuffle; then no key may be in two."""
    tasks = Counter(queue for one in sent for queue in one.sources)
    split = sorted(queue for queue, count in tasks.items() if count > 1)
    if not split:
        return
    keys = Counter(key for one in sent for key in one.keys or ())
    twice = sorted(key for key, count in keys.items() if count > 1)
    if has_keys and not twice:
        if any(one.keys is None for one in sent):
            _log.warning("%s is in several tasks, with too many keys to compare", split[0])
        return  # shuffled by key
    what = f"key {twice[0]!r} is" if twice else f"rows of {split[0]} are"
    raise OrderingError(
        f"{what} in several tasks of one batch, so their order is chance: something before the "
        "write shuffles. Write straight from the source or an ordered stage, call "
        "ordermq.spark.by_target_queue(frame, ...) before the write, or give option "
        "order='none'. The messages are sent; their stamps tell them apart"
    )


class BatchWriter(SinkWriter, DataSourceArrowWriter):
    """`df.write.format("ordermq")`."""

    def commit(self, messages: list[Sent | None]) -> None:
        self.check(messages)

    def abort(self, messages: list[Sent | None]) -> None:
        _log_aborted(messages)


class StreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """`df.writeStream.format("ordermq")`."""

    def commit(self, messages: list[Sent | None], batchId: int) -> None:
        self.check(messages)

    def abort(self, messages: list[Sent | None], batchId: int) -> None:
        _log_aborted(messages)


def _log_aborted(messages: Sequence[Sent | None]) -> None:
    rows = sum(one.rows for one in messages if one is not None)
    _log.warning("a write failed; %d rows of its finished tasks are sent and will be again", rows)


def _options(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise ConfigError(
            "mode 'overwrite': a topic cannot be overwritten; write with mode('append'), or "
            "outputMode('append') in streaming"
        )
    return SinkOptions.of(given, {field.name: field for field in schema.fields})


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of a batch query.

    Raises: ConfigError: options that are wrong, a mode other than append.
    """
    return BatchWriter(_options(given, schema, overwrite), schema.names)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a streaming query; raises as `batch_writer`."""
    return StreamWriter(_options(given, schema, overwrite), schema.names)
