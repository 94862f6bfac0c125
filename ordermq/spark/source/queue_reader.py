"""Reading a range of one queue on an executor: pulled ahead, returned as Arrow record batches.

Spark may run a task twice, even at the same time. So a read depends on the range alone: the same
messages in the same order each time, and never more than the range.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ordermq.client.session import ClientSession
from ordermq.errors import DataLoss, OrderMQError, ProtocolError, StateError
from ordermq.model.arrow import record_batch
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.spark.options import SourceOptions
from ordermq.spark.schema import source_schema
from ordermq.spark.session import shared_session

_log = logging.getLogger("ordermq.spark")
_RETRY_MS = 200
# Of one chunk, plus at most one pull: two chunks are in memory per task, and an executor runs as
# many tasks as it has cores.
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """The part of a queue that one task reads.

    Plain strings and numbers, because it travels from the driver to executors as a pickle, and
    because nothing else the driver knows reaches `read`.

    Args:
        start, end: offsets, end exclusive.
        lease: lease id of the run that holds the queue; None in a batch read, or without locks.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    lease: int | None = None

    @property
    def queue(self) -> MessageQueue:
        """The queue to read."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


def make_range(queue: MessageQueue, start: int, end: int, lease: int | None = None) -> QueueRange:
    """Make a range and try to pickle it.

    Raises: StateError: it cannot be pickled.
    """
    made = QueueRange(queue.topic, queue.broker_name, queue.queue_id, start, end, lease)
    # Spark reports a pickling failure of its own as a bare number, so it is tried here first.
    try:
        pickle.dumps(made)
    except Exception as error:
        raise StateError(f"range {made} cannot be sent to executors: {error}") from error
    return made


def read_range(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one partition.

    Raises: DataLoss: messages of the range are missing. RemotingError, RouteError: the broker did
        not answer for `read_timeout_ms`.
    """
    # With no partitions at all, Spark calls `read` once with an empty partition of its own.
    if not isinstance(partition, QueueRange):
        return
    session = shared_session(options.name_servers, options.remoting)
    yield from QueueReader(session, options, partition).batches()


@dataclass(slots=True)
class _Chunk:
    """The stored records of one or several pulls.

    Args:
        start: the offset that was asked for first.
        next: the offset at which the next chunk begins.
    """

    start: int
    records: bytes
    next: int


class QueueReader:
    """Reads one range: pulls on the I/O thread, decodes and checks on the task's thread."""

    def __init__(self, session: ClientSession, options: SourceOptions, wanted: QueueRange) -> None:
        self._session = session
        self._options = options
        self._range = wanted
        tags = Subscription.parse("any", options.tags, 0).tags
        self._tags = tuple(tag.encode() for tag in tags)
        self._must_refresh_route = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the range as record batches; raises as `read_range`."""
        end = self._range.end
        ahead: Future[_Chunk] | None = self._session.submit(self._pull_chunk(self._range.start))
        try:
            while ahead is not None:
                chunk, batch = self._index(ahead.result())
                # The next chunk is pulled while Spark takes this one: a generator gets control
                # back only when Spark wants more.
                ahead = None
                if chunk.next < end:
                    ahead = self._session.submit(self._pull_chunk(chunk.next))
                yield from self._decode(chunk, batch)
        finally:
            if ahead is not None:
                ahead.cancel()  # Spark has enough rows, as with LIMIT, or ended the task

    def _index(self, chunk: _Chunk) -> tuple[_Chunk, MessageBatch]:
        """Index a chunk; one that is damaged is pulled again, for `read_timeout_ms` at most."""
        session, started_ms = self._session, self._session.clock.now_ms()
        while True:
            try:
                batch = session.api.batch(
                    self._range.queue, chunk.records, self._tags, chunk.start, chunk.next
                )
            except ProtocolError as error:
                if self._waited_ms(started_ms) > self._options.read_timeout_ms:
                    raise self._protocol_error(str(error), chunk.start) from error
                session.call(self._report_bad_chunk(error))
                chunk = session.call(self._pull_chunk(chunk.start))
            else:
                return chunk, batch

    def _decode(self, chunk: _Chunk, batch: MessageBatch) -> Iterator[pa.RecordBatch]:
        options = self._options
        offsets = np.asarray(batch.offsets)
        # A pull may return messages after the end of the range: a replay must not have them.
        count = int(np.searchsorted(offsets, self._range.end))
        self._check_offsets(chunk, offsets[:count])
        for first in range(0, count, options.arrow_batch_rows):
            end = min(first + options.arrow_batch_rows, count)
            rows = record_batch(batch, options.columns, start=first, end=end)
            if options.is_ordered:
                lease = pa.repeat(pa.scalar(self._range.lease, pa.int64()), rows.num_rows)
                schema = source_schema(options.columns, is_ordered=True)
                rows = pa.RecordBatch.from_arrays([*rows.columns, lease], schema=schema)
            yield rows

    def _check_offsets(
        self, chunk: _Chunk, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> None:
        # Without a tag filter every offset of the range has a message, so a missing one is lost.
        # Counted here because a broker does not always say that it skipped expired messages.
        expected = min(chunk.next, self._range.end) - chunk.start
        if not self._tags and len(offsets) < expected:
            wanted = np.arange(chunk.start, chunk.start + expected)
            first_lost = int(np.setdiff1d(wanted, offsets)[0])
            self._report_loss(first_lost, f"{expected - len(offsets)} messages are missing")

    def _report_loss(self, offset: int, what: str) -> None:
        error = DataLoss(
            f"{what}: set fail_on_data_loss=false to continue without them, or keep messages "
            "longer at the broker. They expired, or the broker lost them",
            topic=self._range.topic,
            broker=self._range.broker,
            queue_id=self._range.queue_id,
            offset=offset,
        )
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s", error)

    def _protocol_error(self, text: str, offset: int) -> ProtocolError:
        return ProtocolError(
            text,
            topic=self._range.topic,
            broker=self._range.broker,
            queue_id=self._range.queue_id,
            offset=offset,
        )

    # On the I/O thread.

    async def _report_bad_chunk(self, error: ProtocolError) -> None:
        self._session.report_failure(self._range.broker, "pull", error)
        await self._session.clock.sleep_ms(_RETRY_MS)

    async def _pull_chunk(self, start: int) -> _Chunk:
        """Pull from `start` until the chunk is full or the range ends; raises as `read_range`."""
        options, end = self._options, self._range.end
        bodies: list[bytes] = []
        at, size = start, 0
        answered_ms = self._session.clock.now_ms()
        while at < end and at - start < options.arrow_batch_rows and size < _CHUNK_BYTES:
            try:
                code, reply, body = await self._pull(at)
            except OrderMQError as error:
                if not error.retriable or self._waited_ms(answered_ms) > options.read_timeout_ms:
                    raise
                self._session.report_failure(self._range.broker, "pull", error)
                await self._session.clock.sleep_ms(_RETRY_MS)
                self._must_refresh_route = True
                continue
            if code == ResponseCode.SUCCESS:
                bodies.append(body)
                size += len(body)
            # PULL_RETRY_IMMEDIATELY: messages are there, but with other tags; go on behind them.
            elif code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                found = self._next_after_miss(at, code, reply, self._waited_ms(answered_ms))
                if found == at:
                    await self._session.clock.sleep_ms(_RETRY_MS)
                    continue
                # A chunk ends at a gap. The next one begins behind it, so that the gap is
                # reported once and does not look like missing messages to `_check_offsets`.
                if bodies:
                    break
                start = at = found
                continue
            if reply.next_begin_offset <= at:
                # Following it would pull the same messages forever.
                raise self._protocol_error(
                    f"the broker answered a pull at offset {at} with next offset "
                    f"{reply.next_begin_offset}",
                    at,
                )
            at = reply.next_begin_offset
            answered_ms = self._session.clock.now_ms()
        return _Chunk(start, b"".join(bodies), at)

    async def _pull(self, at: int) -> tuple[int, PullReplyHeader, bytes]:
        options, wanted, session = self._options, self._range, self._session
        header = PullHeader(
            options.read_group,
            wanted.topic,
            wanted.queue_id,
            at,
            min(options.pull_batch_size, wanted.end - at),
            # Neither suspend nor commit: the range is known to have messages, and the group's
            # offset follows the checkpoint, not what a task has read.
            PullFlag.SUBSCRIPTION,
            subscription=options.tags,
            expression_type="TAG",
            max_bytes=options.pull_batch_bytes,
            broker_name=wanted.broker,
        )
        if self._must_refresh_route:  # the master may have moved
            await session.routes.refresh(wanted.topic)
            self._must_refresh_route = False
        await session.routes.get(wanted.topic)
        address = session.routes.master_of(wanted.broker)
        return await session.api.pull(address, header, options.remoting.offset_timeout_ms)

    def _next_after_miss(self, at: int, code: int, reply: PullReplyHeader, waited_ms: int) -> int:
        """Return the offset to continue at when the broker lacks `at`; `at` itself to retry."""
        wanted = self._range
        if code == ResponseCode.PULL_OFFSET_MOVED and reply.min_offset > at:
            found = min(reply.min_offset, wanted.end)
            self._report_loss(at, f"{found - at} messages expired before they were read")
            return found
        # The queue ends before the range does, which the driver saw with messages. A broker that
        # has just started may still be recovering its log, so it gets time before this is a loss.
        if waited_ms <= self._options.read_timeout_ms:
            return at
        self._report_loss(at, f"the queue ends at offset {reply.max_offset}")
        return wanted.end

    def _waited_ms(self, since_ms: int) -> int:
        return self._session.clock.now_ms() - since_ms
