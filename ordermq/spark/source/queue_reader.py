"""Reading a range of one queue on an executor: pulled ahead, given as Arrow record batches.

Spark may run a task twice, even at once, so this is a function of the range alone: the same
messages in the same order each time, and never more than the range.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ordermq.errors import DataLoss, OrderMQError, ProtocolError, StateError
from ordermq.model.arrow import record_batch
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.spark.options import SourceOptions
from ordermq.spark.schema import source_schema
from ordermq.spark.session import Link, shared_link

_log = logging.getLogger("ordermq.spark")
_RETRY_MS = 200
_CHUNK_BYTES = 32 << 20  # of one Arrow batch at most, or a little more


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """What one task reads: plain texts and numbers, for it travels as a pickle.

    Args:
        start, end: offsets, end exclusive.
        lease: of the run that holds the queue; None in a batch read, or without locks.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    lease: int | None = None

    @property
    def queue(self) -> MessageQueue:
        """Of what queue."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


def range_of(queue: MessageQueue, start: int, end: int, lease: int | None = None) -> QueueRange:
    """A range whose pickling was tried: Spark tells a failure only as a number.

    Raises: StateError: it cannot travel.
    """
    made = QueueRange(queue.topic, queue.broker_name, queue.queue_id, start, end, lease)
    try:
        pickle.dumps(made)
    except Exception as error:
        raise StateError(f"the range {made} cannot be pickled: {error}") from error
    return made


@dataclass(slots=True)
class _Chunk:
    """Stored records of one or several pulls, and where the next begins."""

    start: int
    records: bytes
    next: int


def read_range(
    options: SourceOptions, wanted: InputPartition, *, is_ordered: bool
) -> Iterator[pa.RecordBatch]:
    """Read one partition; the next pulls are under way while Spark takes a batch.

    Raises: DataLoss: messages of the range are not there. RemotingError, RouteError: the broker
        did not answer for `read_timeout_ms`.
    """
    if not isinstance(wanted, QueueRange):
        return  # what Spark makes of no partitions at all
    link = shared_link(options.name_servers, options.remoting)
    puller = _Puller(link, options, wanted)
    ahead = link.submit(puller.chunk(wanted.start))
    try:
        while ahead is not None:
            chunk = ahead.result()
            ahead = link.submit(puller.chunk(chunk.next)) if chunk.next < wanted.end else None
            yield from _batches(options, wanted, chunk, is_ordered=is_ordered)
    finally:
        if ahead is not None:
            ahead.cancel()  # Spark has enough, as with LIMIT, or ended the task


def _batches(
    options: SourceOptions, wanted: QueueRange, chunk: _Chunk, *, is_ordered: bool
) -> Iterator[pa.RecordBatch]:
    tags = tuple(tag.encode() for tag in Subscription.parse("any", options.tags, 0).tags)
    batch = MessageBatch(wanted.queue, chunk.records, tags)
    offsets = np.asarray(batch.offsets)
    last = int(np.searchsorted(offsets, wanted.end))
    _check_order(options, wanted, chunk, offsets[:last], has_gaps=bool(tags))
    for first in range(0, last, options.arrow_batch_rows):
        end = min(first + options.arrow_batch_rows, last)
        table = record_batch(batch, options.columns, start=first, end=end)
        if is_ordered:
            lease = pa.repeat(pa.scalar(wanted.lease, pa.int64()), table.num_rows)
            schema = source_schema(options.columns, is_ordered=True)
            table = pa.RecordBatch.from_arrays([*table.columns, lease], schema=schema)
        yield table


def _check_order(
    options: SourceOptions,
    wanted: QueueRange,
    chunk: _Chunk,
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
    *,
    has_gaps: bool,
) -> None:
    """Offsets rise within the range; without a tag filter none is left out."""
    if len(offsets) and (offsets[0] < chunk.start or (np.diff(offsets) <= 0).any()):
        raise ProtocolError(
            f"the broker answered with offsets out of order, from {chunk.start} on",
            topic=wanted.topic,
            broker=wanted.broker,
            queue_id=wanted.queue_id,
            offset=chunk.start,
        )
    expected = min(chunk.next, wanted.end) - chunk.start
    if not has_gaps and len(offsets) < expected:
        seen = np.arange(chunk.start, chunk.start + expected)
        lost = int(np.setdiff1d(seen, offsets)[0])
        _lose(options, wanted, lost, f"{expected - len(offsets)} messages are not there")


def _lose(options: SourceOptions, wanted: QueueRange, offset: int, what: str) -> None:
    error = DataLoss(
        f"{what}: they expired, or the broker lost them. Set fail_on_data_loss=false to go on "
        "without, or keep messages longer",
        topic=wanted.topic,
        broker=wanted.broker,
        queue_id=wanted.queue_id,
        offset=offset,
    )
    if options.fail_on_data_loss:
        raise error
    _log.warning("%s", error)


class _Puller:
    """Fetches chunks of one range, one pull after the other; on the I/O thread."""

    def __init__(self, link: Link, options: SourceOptions, wanted: QueueRange) -> None:
        self._link = link
        self._options = options
        self._wanted = wanted
        self._is_route_old = False

    async def chunk(self, start: int) -> _Chunk:
        """Pulls from `start` on until a batch is full or the range ends.

        Raises: as `read_range`.
        """
        options, end = self._options, self._wanted.end
        bodies: list[bytes] = []
        at, size = start, 0
        answered_ms = self._link.clock.now_ms()
        while at < end and at - start < options.arrow_batch_rows and size < _CHUNK_BYTES:
            try:
                code, reply, body = await self._pull(at)
            except OrderMQError as error:
                if not error.retriable or self._waited_ms(answered_ms) > options.read_timeout_ms:
                    raise
                _log.warning("%s: pull at offset %d failed: %s", self._wanted.queue, at, error)
                await self._link.clock.sleep_ms(_RETRY_MS)
                self._is_route_old = True
                continue
            if code == ResponseCode.SUCCESS:
                bodies.append(body)
                size += len(body)
            elif code != ResponseCode.PULL_RETRY_IMMEDIATELY:  # there, but with other tags
                found = self._miss(at, code, reply, self._waited_ms(answered_ms))
                if found == at:
                    await self._link.clock.sleep_ms(_RETRY_MS)
                    continue
                if bodies:  # the gap is the end of this chunk, so that it is looked at once
                    break
                start = at = found
                continue
            if reply.next_begin_offset <= at:
                raise ProtocolError(
                    f"the broker answered a pull at offset {at} and says to go on at "
                    f"{reply.next_begin_offset}",
                    topic=self._wanted.topic,
                    broker=self._wanted.broker,
                    queue_id=self._wanted.queue_id,
                    offset=at,
                )
            at = reply.next_begin_offset
            answered_ms = self._link.clock.now_ms()
        return _Chunk(start, b"".join(bodies), at)

    def _waited_ms(self, since_ms: int) -> int:
        return self._link.clock.now_ms() - since_ms

    def _miss(self, at: int, code: int, reply: PullReplyHeader, waited_ms: int) -> int:
        """Where to go on when the broker does not have `at`; `at` itself is to try again."""
        wanted = self._wanted
        if code == ResponseCode.PULL_OFFSET_MOVED and reply.min_offset > at:
            found = min(reply.min_offset, wanted.end)
            _lose(self._options, wanted, at, f"{found - at} messages expired unread")
            return found
        # The queue ends before the range does. A broker that has just started may still be
        # reading its log in: it gets time.
        if waited_ms <= self._options.read_timeout_ms:
            return at
        _lose(self._options, wanted, at, f"the queue ends at offset {reply.max_offset}")
        return wanted.end

    async def _pull(self, at: int) -> tuple[int, PullReplyHeader, bytes]:
        options, wanted, client = self._options, self._wanted, self._link.client
        header = PullHeader(
            options.read_group,
            wanted.topic,
            wanted.queue_id,
            at,
            min(options.pull_batch_size, wanted.end - at),
            PullFlag.SUBSCRIPTION,
            subscription=options.tags,
            expression_type="TAG",
            max_bytes=options.pull_batch_bytes,
            broker_name=wanted.broker,
        )
        if self._is_route_old:  # the master may have moved
            await client.routes.refresh(wanted.topic)
            self._is_route_old = False
        await client.routes.get(wanted.topic)
        address = client.routes.master_of(wanted.broker)
        return await client.api.pull(address, header, options.remoting.offset_timeout_ms)
