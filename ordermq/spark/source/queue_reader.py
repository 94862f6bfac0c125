"""Reading a task's ranges of queues on an executor, returned as Arrow record batches.

A task reads its queues one after the other, each in the order of its offsets, while the pull
engine fills the parts that follow. Spark may run a task twice, even at the same time. So a read
depends on the ranges alone: the same messages in the same order each time, and never more than the
ranges.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from ordermq import core
from ordermq.client.broker_api import MAX_PAST_END
from ordermq.client.connections import is_closed_for_reads
from ordermq.client.pull_connections import PullConnection, settle_end
from ordermq.client.queue_life import NewLife, QueueMark, is_gone, new_life
from ordermq.client.session import ClientSession
from ordermq.core.streams import StreamEnd, StreamPlan
from ordermq.errors import DataLoss, OrderMQError, ProtocolError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.row_blocks import RowBlocks

_log = logging.getLogger("ordermq.spark")
_RETRY_MS = 200
# A range is pulled in parts, several at once: with a round trip of 1 ms and 32 messages an answer,
# one pull after the other reads 32,000 rows/s at most. The parts of the task's next queues count,
# too, or a task with many small queues would wait for a round trip each.
_PARTS_AHEAD = 8
_MOST_PART_ROWS = 8_192
# The size of one part, plus one answer: all that are begun are in memory per task, and an executor
# runs as many tasks as it has cores.
_PART_BYTES = 4 << 20
_BLOCK_BYTES = 32 << 20
_JOINED_BYTES = 4 << 20  # of small record batches in one


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The part of a queue that a task reads.

    Plain strings and numbers, because it travels from the driver to executors as a pickle.

    Args:
        start, end: offsets, end exclusive.
        mark: the text of a `QueueMark`, by which the queue must still be known; "" for none.
    """

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    mark: str = ""

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
        answer for `read_timeout_ms`. StateError: the core has no pull engine.
    """
    if not core.HAS_ENGINE:
        raise StateError(
            f"executors read with the pull engine, and the {core.IMPLEMENTATION} core has no engine"
            ": unset ORDERMQ_CORE, or install a wheel of ordermq for this Python"
        )
    # One by one: what a reader keeps for its columns goes with the last part of its queue.
    readers = (QueueReader(session, options, each, lease) for each in ranges)
    return _joined(_one_by_one(readers, options), options.arrow_batch_rows)


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


def _one_by_one(readers: Iterator[QueueReader], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    upcoming = (part for reader in readers for part in reader.parts())
    begun: deque[_Part] = deque()
    block = core.AnswerBlock()
    try:
        while True:
            while len(begun) < _PARTS_AHEAD and (part := next(upcoming, None)) is not None:
                begun.append(part)
                part.begin()
            if not begun:
                return
            part = begun[0]
            is_over = block.take(part.answers, options.arrow_batch_rows, _BLOCK_BYTES)
            if is_over:
                # Left among the begun ones until now: an end in the middle must cancel it.
                part.finish()
                begun.popleft()
            part.report_losses()
            is_last = is_over and (not begun or begun[0].reader is not part.reader)
            if len(block) and (is_last or not is_over):
                yield from part.reader.rows.record_batches(block)
                block.clear()
    finally:
        for part in begun:
            part.cancel()  # Spark has enough rows, as with LIMIT, or ended the task


class QueueReader:
    """Reads one range of a queue, in parts.

    Attributes:
        rows: makes the record batches.
    """

    def __init__(
        self, session: ClientSession, options: SourceOptions, wanted: QueueRange, lease: int | None
    ) -> None:
        self.session = session
        self.options = options
        self.range = wanted
        self.rows = RowBlocks(options, wanted.queue, lease)
        subscription = options.subscription(wanted.topic)
        self.tags = tuple(tag.encode() for tag in subscription.tags)
        self.is_filtered = bool(self.tags) or subscription.is_sql
        self.must_refresh_route = False
        self.suggestion = 0  # the replica that the broker named last, as it does in each answer
        self._lost_until = wanted.start
        self._mark = QueueMark.parse(wanted.mark) if wanted.mark else None
        self._life: NewLife | None = None
        self._is_life_known = False
        self._life_turn = asyncio.Lock()
        self._unread = 0  # parts that are not pulled to their ends
        self.header = PullHeader(
            options.read_group,
            wanted.topic,
            wanted.queue_id,
            wanted.start,
            min(options.pull_batch_size, wanted.end - wanted.start),
            # Neither suspend nor commit: the range is known to have messages, and the group's
            # offset follows the checkpoint, not what a task has read.
            PullFlag.SUBSCRIPTION,
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
            max_bytes=options.pull_batch_bytes,
            broker_name=wanted.broker,
        )
        self.frames = session.api.pull_frames(self.header)

    def parts(self) -> Iterator[_Part]:
        """Return the parts of the range in order."""
        start, end, pull = self.range.start, self.range.end, self.header.max_messages
        # Whole pulls, or the last one of each part would bring what the next one brings again.
        rows = min(max((end - start) // _PARTS_AHEAD, pull), _MOST_PART_ROWS)
        rows = -(-rows // pull) * pull
        firsts = range(start, end, rows)
        self._unread = len(firsts)
        for first in firsts:
            yield _Part(self, first, min(first + rows, end))

    @property
    def is_marked(self) -> bool:
        """A mark is given: the queue may turn out to be another one, also once it was pulled."""
        return self._mark is not None

    def doubt_life(self) -> None:
        """Have the next `check_life` look again: the topic may have been made anew meanwhile."""
        self._is_life_known = False

    def is_all_pulled(self) -> bool:
        """Return True to the part that is the last one to come to its end."""
        self._unread -= 1
        return not self._unread

    async def check_life(self) -> NewLife | None:
        """Return the new life of the queue, if it is not the one whose offsets were taken.

        Raises: DataLoss: so it is, with `fail_on_data_loss`.
        """
        async with self._life_turn:  # the first part asks, in the name of all
            if self._mark is None or self._is_life_known or self._life is not None:
                return self._life
            queue = self.range.queue
            await self.session.address_of(queue)  # the route is known then
            life = await new_life(
                self.session, self.options.read_group, queue, self.range.end, self._mark
            )
            self._is_life_known = True
            # One that is shorter is found by reading, which gives a broker time to recover its log.
            self._life = life if life is not None and life.end >= self.range.end else None
            if self._life is not None and self.options.fail_on_data_loss:
                raise DataLoss(
                    "the queue is not the one that the DataFrame was made for: "
                    f"{self._life.reason}. Make the DataFrame anew, or set fail_on_data_loss=false "
                    "to leave it out. The topic was deleted and created again, or the "
                    "broker lost messages",
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                    offset=self.range.start,
                )
            return self._life

    def report_gap(self, loss: _Loss) -> None:
        """Report what lies before `loss.end`; once for what several parts have found."""
        if loss.end > self._lost_until:
            self._lost_until = loss.end
            self.report_loss(loss.start, loss.text)

    def report_loss(self, offset: int, text: str) -> None:
        """Raise DataLoss, or log a warning."""
        error = DataLoss(
            f"{text}: set fail_on_data_loss=false to continue without them, or keep messages "
            "longer at the broker. They expired, or the broker lost them",
            topic=self.range.topic,
            broker=self.range.broker,
            queue_id=self.range.queue_id,
            offset=offset,
        )
        if self.options.fail_on_data_loss:
            raise error
        _log.warning("%s", error)

    def protocol_error(self, text: str, offset: int) -> ProtocolError:
        """Return an error that names the queue."""
        return ProtocolError(
            text,
            topic=self.range.topic,
            broker=self.range.broker,
            queue_id=self.range.queue_id,
            offset=offset,
        )


class _Loss(NamedTuple):
    """Offsets start .. end - 1 that have no messages any more."""

    start: int
    end: int
    text: str


class _Part:
    """The messages start .. end - 1 of a queue: filled by the engine, taken by the task's thread.

    The coroutine on the I/O thread begins a stream of pulls, and another one after each answer that
    is not messages.
    """

    def __init__(self, reader: QueueReader, start: int, end: int) -> None:
        self.reader = reader
        self.answers = core.AnswerQueue(start, end, _PART_BYTES, not reader.is_filtered)
        self._end = end
        self._losses: deque[_Loss] = deque()
        self._counted = 0  # of the losses that the answers show
        self._seen = start  # the next offset when something had come for the last time
        self._seen_ms = reader.session.clock.now_ms()
        self._pulling: Future[None] | None = None

    def begin(self) -> None:
        """Begin to pull."""
        self._pulling = self.reader.session.submit(self._pull())

    def cancel(self) -> None:
        """End the pulls."""
        self.answers.end()
        if self._pulling is not None:
            self._pulling.cancel()

    def finish(self) -> None:
        """Raise what has ended the pulls before they were complete, or was found behind them."""
        is_over = self.answers.next >= self._end and not self.reader.is_marked
        if not is_over and self._pulling is not None:
            self._pulling.result()

    def report_losses(self) -> None:
        """Report what is missing before the offset that comes next."""
        while self._losses:
            self.reader.report_gap(self._losses.popleft())
        lost, first = self.answers.lost()
        if lost > self._counted:
            text = f"{lost - self._counted} messages are missing"
            self._counted = lost
            self.reader.report_loss(first, text)

    # On the I/O thread.

    async def _pull(self) -> None:
        """Fill the answers; raises as `read_ranges`."""
        reader, answers = self.reader, self.answers
        try:
            while answers.next < self._end:
                await self._try(self._pull_on)
            if reader.is_all_pulled():
                # Looked at before, too; a topic that is made anew while it is read may be full
                # again before the next pull, and nothing in the answers tells it.
                reader.doubt_life()
                while not await self._try(self._check_end):
                    pass
        finally:
            answers.end()

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Return whether a step ended without an error that may pass; raise others."""
        reader = self.reader
        session = reader.session
        try:
            await step()
        except OrderMQError as error:
            # A damaged answer may come whole the next time, and what an admin has closed may be
            # open again: the stream, which waits for that, has handed out this range before.
            may_pass = (
                error.retriable or isinstance(error, ProtocolError) or is_closed_for_reads(error)
            )
            if not may_pass or self._is_late():
                raise
            session.report_failure(reader.range.broker, "pull", error)
            reader.must_refresh_route = True  # the master may have moved
            reader.doubt_life()
            await session.clock.sleep_ms(_RETRY_MS)
            return False
        return True

    async def _pull_on(self) -> None:
        reader, answers = self.reader, self.answers
        at = answers.next
        life = await reader.check_life()
        if life is not None:
            end, reason = reader.range.end, life.reason
            self._losses.append(_Loss(at, end, f"the queue is another one: {reason}"))
            answers.skip(self._end)
            return
        address, answer = await self._stream(at)
        if answer is not None:
            await self._take(answers.next, address, answer)

    async def _check_end(self) -> None:
        reader = self.reader
        try:
            life = await reader.check_life()
        except OrderMQError as error:
            if not is_gone(error):
                raise
            return  # deleted after all of it was pulled
        if life is not None:
            start, end = reader.range.start, reader.range.end
            text = f"the queue became another one while it was read, {life.reason}"
            self._losses.append(_Loss(start, end, f"{text}: rows of both are among those read"))

    async def _stream(self, at: int) -> tuple[str, Command | None]:
        """Let the engine pull until an answer is not messages; return it with its address."""
        reader = self.reader
        session = reader.session
        if reader.must_refresh_route:
            await session.routes.refresh(reader.range.topic)
            reader.must_refresh_route = False
        address = await session.address_of(reader.range.queue)
        stream = _Stream(await session.pulls.get(address), reader, self.answers, at)
        return address, await stream.ended

    async def _take(self, at: int, address: str, answer: Command) -> None:
        reader = self.reader
        header = replace(reader.header, queue_offset=at)
        code, reply, body = reader.session.api.pulled(address, header, answer)
        following = reply.next_begin_offset
        if code == ResponseCode.SUCCESS:
            # Messages, but the broker names another replica for the next pull than it did before.
            reader.suggestion = reply.suggested_broker_id
            crcs = reader.options.remoting.check_crcs
            try:
                self.answers.put(body, reader.tags, crcs, reader.range.queue_id, at, following)
            except ProtocolError as error:
                raise reader.protocol_error(str(error), at) from error
        elif code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # Messages are there, and none passes the filter; or they are being removed.
            if following <= at:
                # Following it would pull the same messages forever.
                raise reader.protocol_error(
                    f"the broker answered a pull at offset {at} with next offset {following}", at
                )
            if not reader.is_filtered:
                end = min(following, reader.range.end)
                self._losses.append(_Loss(at, end, f"{end - at} messages are missing"))
            self.answers.skip(following)
        elif not self._skip_missing(at, code, reply):
            self.reader.doubt_life()
            await reader.session.clock.sleep_ms(_RETRY_MS)

    def _skip_missing(self, at: int, code: int, reply: PullReplyHeader) -> bool:
        """Continue behind what the broker lacks; False: it may still come."""
        end = self.reader.range.end
        if code == ResponseCode.PULL_OFFSET_MOVED and reply.min_offset > at:
            found = min(reply.min_offset, end)
            text = f"{found - at} messages expired before they were read"
        # The queue ends before the range does, which the driver saw with messages. A broker that
        # has just started may still be recovering its log, so it gets time before this is a loss.
        elif self._is_late():
            found, text = end, f"the queue ends at offset {reply.max_offset}"
        else:
            return False
        self._losses.append(_Loss(at, found, text))
        self.answers.skip(found)
        return True

    def _is_late(self) -> bool:
        """Return whether nothing has come for `read_timeout_ms`, as far as this was asked."""
        now_ms = self.reader.session.clock.now_ms()
        if self.answers.next != self._seen:
            self._seen, self._seen_ms = self.answers.next, now_ms
        return now_ms - self._seen_ms > self.reader.options.read_timeout_ms


class _Stream:
    """A stream of the engine, which fills the answers of a part; fulfils `StreamOwner`.

    Attributes:
        ended: fulfilled by `settle_end`. Cancel it to end the stream.
    """

    def __init__(
        self,
        connection: PullConnection,
        reader: QueueReader,
        answers: core.contract.AnswerQueue,
        offset: int,
    ) -> None:
        config = reader.options.remoting
        self.ended: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(lambda _: self._stream.stop())
        self._connection = connection
        self._max_frame_bytes = config.max_frame_bytes
        self._stream = core.PullStream(
            connection.native,
            answers,
            self,
            StreamPlan(
                template=reader.frames.template,
                suggestion=str(reader.suggestion).encode(),
                tags=reader.tags,
                check_crc=config.check_crcs,
                # The next pull begins where the broker says: what it passes over is counted.
                is_filtered=True,
                queue_id=reader.range.queue_id,
                offset=offset,
                timeout_ms=config.offset_timeout_ms,
                most_past_end=MAX_PAST_END,
                is_single=False,
                limits=None,
                new_batch=None,
                max_decompressed_bytes=config.max_decompressed_bytes,
            ),
        )
        self._stream.start()

    def on_filled(self, is_dispatched: bool) -> None:
        """Do nothing: the reader waits at the answers."""

    def on_end(self, end: StreamEnd, is_dispatched: bool, offset: int, frame: bytes) -> None:
        """Take the end of the stream; see `StreamOwner`."""
        settle_end(self.ended, self._connection, end, frame, self._max_frame_bytes)
