"""Reading a task's ranges of queues on an executor, returned as Arrow record batches.

A task reads its queues one after the other, each in the order of its offsets, and pulls ahead.
Spark may run a task twice, even at the same time. So a read depends on the ranges alone: the same
messages in the same order each time, and never more than the ranges.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ordermq.client.session import ClientSession
from ordermq.errors import DataLoss, OrderMQError, ProtocolError
from ordermq.model.arrow import record_batch
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.spark.options import SourceOptions
from ordermq.spark.schema import source_schema

_log = logging.getLogger("ordermq.spark")
_RETRY_MS = 200
# Of one chunk, plus the pulls that are under way: two chunks are in memory per task, and an
# executor runs as many tasks as it has cores.
_CHUNK_BYTES = 32 << 20
# The next queues of a task are begun early, or a task with many small queues would wait for a
# round trip each. Only this much of each, because all of it is in memory, too.
_QUEUES_AHEAD = 4
_FIRST_CHUNK_BYTES = 4 << 20
_JOINED_BYTES = 4 << 20  # of small record batches in one
# Pulls of one queue under way at once: with a round trip of 1 ms and 32 messages an answer, one
# after the other reads 32,000 rows/s at most. Bounded by what their answers need, too.
_PULLS_AHEAD = 16
_PULLS_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The part of a queue that a task reads.

    Plain strings and numbers, because it travels from the driver to executors as a pickle.

    Args:
        start, end: offsets, end exclusive.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int

    @property
    def queue(self) -> MessageQueue:
        """The queue to read."""
        return MessageQueue(self.topic, self.broker, self.queue_id)


def read_ranges(
    session: ClientSession,
    options: SourceOptions,
    ranges: Sequence[QueueRange],
    lease: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read ranges of queues one after the other, small ones together in a record batch.

    Args: lease: lease id of the run that holds the queues; None in a batch read, or without locks.
    Raises: DataLoss: messages of a range are missing. RemotingError, RouteError: a broker did not
        answer for `read_timeout_ms`.
    """
    return _joined(_one_by_one(session, options, ranges, lease), options.arrow_batch_rows)


def _joined(batches: Iterator[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Join small record batches: each costs Spark as much as some hundred rows."""
    waiting: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > most_rows or size > _JOINED_BYTES):
            yield _one_of(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _one_of(waiting)


def _one_of(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _one_by_one(
    session: ClientSession,
    options: SourceOptions,
    ranges: Sequence[QueueRange],
    lease: int | None,
) -> Iterator[pa.RecordBatch]:
    readers = deque(QueueReader(session, options, each, lease) for each in ranges)
    begun: deque[QueueReader] = deque()
    try:
        while readers or begun:
            while readers and len(begun) <= _QUEUES_AHEAD:
                begun.append(readers.popleft())
                begun[-1].begin()
            # Left among the begun ones while it is read: an end in the middle must cancel it.
            yield from begun[0].batches()
            begun.popleft()
    finally:
        for reader in begun:
            reader.cancel()  # Spark has enough rows, as with LIMIT, or ended the task


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


class _PullAhead:
    """A pull under way for the messages `start` .. `end` - 1."""

    __slots__ = ("answer", "end", "start")

    def __init__(
        self, start: int, end: int, answer: asyncio.Task[tuple[int, PullReplyHeader, bytes]]
    ) -> None:
        self.start = start
        self.end = end
        self.answer = answer


class QueueReader:
    """Reads one range: pulls on the I/O thread, decodes and checks on the task's thread."""

    def __init__(
        self, session: ClientSession, options: SourceOptions, wanted: QueueRange, lease: int | None
    ) -> None:
        self._session = session
        self._options = options
        self._range = wanted
        self._lease = lease
        self._subscription = options.subscription(wanted.topic)
        self._tags = tuple(tag.encode() for tag in self._subscription.tags)
        self._is_filtered = bool(self._tags) or self._subscription.is_sql
        self._must_refresh_route = False
        self._ahead: Future[_Chunk] | None = None
        self._most_rows = options.arrow_batch_rows  # of a chunk; fewer where answers are damaged

    def begin(self) -> None:
        """Begin to pull the first chunk."""
        self._ahead = self._session.submit(self._pull_chunk(self._range.start, _FIRST_CHUNK_BYTES))

    def cancel(self) -> None:
        """Cancel what is being pulled."""
        if self._ahead is not None:
            self._ahead.cancel()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the range as record batches; raises as `read_ranges`."""
        while self._ahead is not None:
            chunk, batch = self._index(self._ahead.result())
            # The next chunk is pulled while Spark takes this one: a generator gets control
            # back only when Spark wants more.
            self._ahead = None
            if chunk.next < self._range.end:
                self._ahead = self._session.submit(self._pull_chunk(chunk.next))
            yield from self._decode(chunk, batch)

    def _index(self, chunk: _Chunk) -> tuple[_Chunk, MessageBatch]:
        """Index a chunk; one that is damaged is pulled again, for `read_timeout_ms` at most."""
        session, started_ms = self._session, self._session.clock.now_ms()
        first = chunk
        while True:
            try:
                batch = session.api.batch(
                    self._range.queue, chunk.records, self._tags, chunk.start, chunk.next
                )
            except ProtocolError as error:
                if self._waited_ms(started_ms) > self._options.read_timeout_ms:
                    raise self._protocol_error(str(error), chunk.start) from error
                session.call(self._report_bad_chunk(error))
                # One answer damages its whole chunk: a long one might never come whole.
                self._most_rows = max(self._most_rows // 2, 1)
                chunk = session.call(self._pull_chunk(chunk.start))
            else:
                if chunk is first:
                    self._most_rows = min(self._most_rows * 2, self._options.arrow_batch_rows)
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
                lease = pa.repeat(pa.scalar(self._lease, pa.int64()), rows.num_rows)
                schema = source_schema(options.columns, is_ordered=True)
                rows = pa.RecordBatch.from_arrays([*rows.columns, lease], schema=schema)
            yield rows

    def _check_offsets(
        self, chunk: _Chunk, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> None:
        # Without a filter every offset of the range has a message, so a missing one is lost.
        # Counted here because a broker does not always say that it skipped expired messages.
        expected = min(chunk.next, self._range.end) - chunk.start
        if not self._is_filtered and len(offsets) < expected:
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

    async def _pull_chunk(self, start: int, most_bytes: int = _CHUNK_BYTES) -> _Chunk:
        """Pull from `start` until the chunk is full or the range ends; raises as `read_ranges`."""
        options, end, most_rows = self._options, self._range.end, self._most_rows
        bodies: list[bytes] = []
        at, size = start, 0
        answered_ms = self._session.clock.now_ms()
        pulls = _PullsAhead(self, min(end, start + most_rows))
        try:
            while at < end and at - start < most_rows and size < most_bytes:
                try:
                    code, reply, body = await pulls.next(at)
                except OrderMQError as error:
                    waited_ms = self._waited_ms(answered_ms)
                    if not error.retriable or waited_ms > options.read_timeout_ms:
                        raise
                    self._session.report_failure(self._range.broker, "pull", error)
                    pulls.cancel()
                    await self._session.clock.sleep_ms(_RETRY_MS)
                    self._must_refresh_route = True
                    continue
                if code == ResponseCode.SUCCESS:
                    bodies.append(body)
                    size += len(body)
                # PULL_RETRY_IMMEDIATELY: messages are there, and none passes the filter; go on
                # behind them.
                elif code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                    found = self._next_after_miss(at, code, reply, self._waited_ms(answered_ms))
                    if found == at:
                        pulls.cancel()
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
                if not self._is_filtered:
                    pulls.learn(reply.next_begin_offset - at, len(body))
                at = reply.next_begin_offset
                answered_ms = self._session.clock.now_ms()
        finally:
            pulls.cancel()
        return _Chunk(start, b"".join(bodies), at)

    async def pull(self, at: int, end: int) -> tuple[int, PullReplyHeader, bytes]:
        """Pull messages from `at`, none from `end` on."""
        options, wanted, session = self._options, self._range, self._session
        header = PullHeader(
            options.read_group,
            wanted.topic,
            wanted.queue_id,
            at,
            min(options.pull_batch_size, end - at),
            # Neither suspend nor commit: the range is known to have messages, and the group's
            # offset follows the checkpoint, not what a task has read.
            PullFlag.SUBSCRIPTION,
            subscription=self._subscription.expression,
            expression_type=self._subscription.expression_type,
            max_bytes=options.pull_batch_bytes,
            broker_name=wanted.broker,
        )
        if self._must_refresh_route:  # the master may have moved
            await session.routes.refresh(wanted.topic)
            self._must_refresh_route = False
        address = await session.address_of(wanted.queue)
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


class _PullsAhead:
    """The pulls of one chunk, several under way at once; on the I/O thread.

    A pull needs to know where the one before will end. Brokers answer with less than was asked
    for, RocketMQ's with 32 messages or 256 KiB, so the first answer tells how far a pull goes.
    One that ends earlier leaves a gap, which is pulled before the next one's answer is taken.

    Args: end: of the chunk.
    """

    def __init__(self, reader: QueueReader, end: int) -> None:
        self._reader = reader
        self._end = end
        self._pulls: deque[_PullAhead] = deque()
        self._step = 0  # offsets per answer; 0 until the first, and with tags: one at a time
        self._asked = 0  # offsets, by the pull that is answered next
        self._most = 0  # of pulls under way

    def learn(self, offsets: int, size: int) -> None:
        """Note how many offsets and bytes an answer brought; only where every offset counts."""
        # Never more again in this chunk: longer pulls would be cut short, and leave gaps.
        if not self._step or offsets < self._asked:
            self._step = offsets
        self._most = min(_PULLS_AHEAD, _PULLS_AHEAD_BYTES // max(size, 1))

    async def next(self, at: int) -> tuple[int, PullReplyHeader, bytes]:
        """Return the answer to a pull at this offset."""
        pulls = self._pulls
        while pulls and pulls[0].start < at:
            pulls.popleft().answer.cancel()
        if pulls and pulls[0].start == at:
            head = pulls.popleft()
        else:
            end = pulls[0].start if pulls else self._end
            head = self._begin(at, min(end, at + self._step) if self._step else end)
        while self._step and len(pulls) < self._most:
            start = pulls[-1].end if pulls else head.end
            if start >= self._end:
                break
            pulls.append(self._begin(start, min(start + self._step, self._end)))
        self._asked = head.end - head.start
        return await head.answer

    def cancel(self) -> None:
        """Cancel every pull under way."""
        while self._pulls:
            self._pulls.popleft().answer.cancel()

    def _begin(self, start: int, end: int) -> _PullAhead:
        answer = asyncio.get_running_loop().create_task(self._reader.pull(start, end))
        # Those behind a failed pull fail with it as a rule, and nobody awaits them.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _PullAhead(start, end, answer)
