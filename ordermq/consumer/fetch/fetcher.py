"""Fetching: pulls messages of each held queue ahead of their consumption, one request in flight
per queue (docs/internals/semantics.md#pull-loop).

A `PullLoop` fills one queue for as long as the queue says it may be filled. All other answers go
to the `QueueFetcher` of the queue, which decides what to do. The `Fetcher` has one of them for each
queue of its member.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ordermq import core
from ordermq.client.broker_api import MAX_PAST_END, BrokerApi
from ordermq.client.connections import is_forbidden
from ordermq.client.routes import MASTER_ID, PullSource
from ordermq.client.runtime import cancelled
from ordermq.clock import growing_pause_ms, wait_until_set
from ordermq.config import PullConfig
from ordermq.consumer.fetch.copy_filter import copy_filter
from ordermq.consumer.fetch.engine_loop import EnginePath
from ordermq.consumer.fetch.life_watch import LifeWatch
from ordermq.consumer.fetch.pull_path import PullPath, PullTarget, QueuePulls, RunningPulls
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, FillPermit, QueueState
from ordermq.consumer.queue.receiver import Flow, Receiver
from ordermq.consumer.queue.statistics import ConsumerStatistics, MemberContext
from ordermq.errors import OrderMQError, ProtocolError, RemotingError, RouteError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import OFFSET_RESET, OFFSETS_LEFT_OUT, PullFlag, ResponseCode
from ordermq.remoting.command import Command, next_opaque
from ordermq.remoting.connection import Connection
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.client.queue_life import Landmark, NewLife

_log = logging.getLogger("ordermq.consumer")
_FLOW_CONTROL_DELAY_MS = 20  # Java's pause where a broker asks for one
_ROOM_RECHECK_MS = 1_000  # only in case a notification is missed; `wake` ends the wait
_SIZE_RECHECK_MS = 50
_HELD_MS = 1_000
_BEING_REMOVED = "MESSAGE_WAS_REMOVING"  # RocketMQ's remark where it removes expired messages
_REFUSED_PAUSE_MS = 10_000  # the longest between pulls that an admin has forbidden
# Stores where a queue's new life starts, and continues there once no batch of it runs.
BeginLife = Callable[[AssignedQueue, int], None]


class PullLoop(ResponseFuture):
    """Pulls again and again while each answer is messages and there is room for more.

    It has no task: as an answer is read it is buffered and the next pull is sent, on the I/O
    thread. A task per pull cost more than all of that.

    Attributes:
        ended: done when the loop is over, with the answer that was no batch of messages, or
            None; or with what `Connection.request` raises. Cancel it to end the loop.
        offset: where the last pull was.
    """

    __slots__ = (
        "_api",
        "_connection",
        "_frames",
        "_is_filtered",
        "_queue",
        "_suggestion",
        "_tags",
        "_target",
        "_timeout_ms",
        "ended",
        "offset",
    )

    def __init__(self, api: BrokerApi, connection: Connection, pulls: QueuePulls) -> None:
        self.code = pulls.frames.code
        self._api = api
        self._connection = connection
        self._frames = pulls.frames
        self._timeout_ms = pulls.config.pull_timeout_ms
        self._queue = pulls.assigned.queue
        self._target: PullTarget = pulls.target
        self.offset = pulls.offset
        self._tags = pulls.tags
        self._is_filtered = pulls.is_filtered
        self._suggestion = str(pulls.broker_id)
        self.ended: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        self._pull()

    @property
    def is_asking(self) -> bool:
        return not self.ended.done()

    def configure(self, config: PullConfig) -> None:
        """Nothing: the target is asked after each answer."""

    @property
    def asked_ms(self) -> int:
        """The time of the last pull, on the monotonic clock."""
        return self.deadline_ms - self._timeout_ms

    # ResponseFuture

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def answered(self, command: Command) -> None:
        if self.ended.done():
            return
        try:
            self._take(command)
        except Exception as error:  # noqa: BLE001 - for whoever awaits the end, as in a task
            self.ended.set_exception(error)

    def failed(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _take(self, command: Command) -> None:
        fields = command.ext
        # An answer that is not just more messages ends the loop; `QueueFetcher` handles it in
        # `_handle_unusual_answer`, which may wait.
        if (
            command.code != ResponseCode.SUCCESS
            or fields.get("suggestWhichBrokerId", "0") != self._suggestion
            or "offsetDelta" in fields
            or (next_offset := offset_of(next_text := fields.get("nextBeginOffset", ""))) < 0
            or (max_offset := offset_of(fields.get("maxOffset", next_text))) < 0
            or next_offset > max_offset + MAX_PAST_END
        ):
            self.ended.set_result(command)
            return
        batch = self._api.batch(
            self._queue, command.body, self._tags, self.offset, next_offset
        )  # raises before anything of a bad answer is buffered
        if not len(batch) or not (self._is_filtered or is_whole(batch, self.offset)):
            self.ended.set_result(command)
            return
        self.offset = next_offset if self._is_filtered else batch.last_offset + 1
        submit = self._target.accept(batch, self.offset, max_offset)
        if submit is not None:
            # The broker is asked for more before a listener's thread wants the interpreter.
            self._connection.after_read(submit)
        if self._target.may_pull() and self._connection.is_writable:
            self._pull()
        else:
            self.ended.set_result(None)

    def _pull(self) -> None:
        opaque = next_opaque()
        frame = self._frames.frame(self.offset, opaque)
        self._connection.ask(opaque, frame, self, self._timeout_ms)


def is_whole(batch: MessageBatch, offset: int) -> bool:
    """Return whether no message is missing from `offset` to the last one of a batch."""
    return batch.last_offset + 1 - offset == len(batch)


def offset_of(text: str) -> int:
    """Return an offset of an answer's header; -1 for anything else, as numbers over 64 bits."""
    # ASCII first: Java writes no other digits, and `isdecimal` knows hundreds.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1


class PythonPath:
    """Pulls by loops on the I/O thread; fulfils `PullPath`."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    async def connect(self, address: str) -> Connection:
        return await self._api.begin_pulls(address)

    def begin(self, connection: Connection, pulls: QueuePulls) -> PullLoop:
        return PullLoop(self._api, connection, pulls)


class FetchParts(Value):
    """The parts that the fetchers of all queues of one member share.

    Args:
        begin_life: stores where the new life of a queue starts, and continues there, soon.
    """

    member: MemberContext
    config: PullConfig
    offsets: OffsetCommitter
    receiver: Receiver[Any]
    path: PullPath[Any]
    begin_life: BeginLife


class LeftQueue(Value):
    """A queue that this member gave up, and may get again.

    Args:
        mark: of the life in which it was read.
        committed: the last offset that this member stored.
    """

    mark: Landmark
    committed: int

    def mark_for(self, start: int) -> Landmark | None:
        """Return the mark for a reader that starts there; None if that begins anew.

        A start before what was stored continues nothing of that: the offsets went with the topic,
        another member has gone on in its new life, or an admin has moved the group. By the mark,
        what is read from there would be found to be another life, and be read again.
        """
        return self.mark if start >= max(self.committed, 1) else None


class QueueFetcher:
    """Fetches one queue: starts its pull loop, and decides what to do with unusual answers.

    Args:
        mark: of the life in which the queue was fetched before; None if it was not.
    """

    def __init__(self, parts: FetchParts, assigned: AssignedQueue, mark: Landmark | None) -> None:
        member = parts.member
        self._client = client = member.client
        self._config = config = parts.config
        self._path = parts.path
        self._statistics = statistics = member.statistics
        self.life = LifeWatch(client, assigned, mark, statistics, self._begin_life)
        self._begin_there = parts.begin_life
        self.assigned = assigned
        self._copies = copy_filter(config, client.api, assigned, member.recorder, statistics)
        self._group = member.group
        self._fields = member.fields
        self._offsets = parts.offsets
        self._receiver = parts.receiver
        # Kept for the life of the assignment: a broker's suggestion holds until the next one.
        self._source = PullSource(client.routes, assigned.queue)
        self._is_from_slave = False
        self._wake = asyncio.Event()
        self._connection: object = None  # of the last pull loop
        self._loop: RunningPulls | None = None
        self._generation = 0  # of the queue when the pull loop began
        self._polled_ms = client.clock.now_ms()  # when a pull loop last ended with an answer
        self._has_messages = False  # the present pull loop has had an answer
        self._refusals = 0  # of pulls, in a row
        self._refusal = ""  # the last one's words, until a pull is answered otherwise
        self._has_told_missing = False
        self._moving = -1  # the generation that ends in a new life
        self.task: asyncio.Task[None] | None = None

    @property
    def last_pull_ms(self) -> int:
        """The time of the last pull, ms since 1970; 0 before the first."""
        if self._loop is None:
            return 0
        clock = self._client.clock
        return clock.wall_ms() - (clock.now_ms() - self._loop.asked_ms)

    @property
    def is_pulling(self) -> bool:
        """True while a pull waits for its answer, which tells of new messages at once."""
        return self._loop is not None and self._loop.is_asking

    def poll_age_ms(self, now_ms: int) -> int | None:
        """Return the age of the last answered pull; None while none is due."""
        assigned = self.assigned
        if (
            assigned.state is not QueueState.ACTIVE
            or assigned.lease is None
            or self._receiver.flow(assigned, self._config) is not Flow.PULL
        ):
            return None
        polled_ms = self._polled_ms
        if self._has_messages and self._loop is not None:
            # The next pull is sent as soon as an answer has come.
            polled_ms = max(polled_ms, self._loop.asked_ms)
        return now_ms - polled_ms

    def count_held(self) -> None:
        """Count a pull that is ended here, to be made again, as answered, unless it is overdue.

        Else those of a queue without messages, whose route changes more often than a broker
        answers, would never be.
        """
        now_ms = self._client.clock.now_ms()
        if self._loop is not None and now_ms - self._loop.asked_ms < self._config.pull_timeout_ms:
            self._polled_ms = now_ms

    def refusal(self, now_ms: int) -> str:
        """Return why the broker refuses pulls; empty if it does not."""
        # It refuses at once: a pull that it holds is one that it will answer.
        if self._loop is not None and self._loop.is_asking:
            return self._refusal if now_ms - self._loop.asked_ms < _HELD_MS else ""
        return self._refusal

    def subscribe(self, subscription: Subscription) -> None:
        """Pull these messages of the topic from the next pull loop on."""
        config, queue = self._config, self.assigned.queue
        self._tags = tuple(tag.encode() for tag in subscription.tags)
        self._is_filtered = subscription.is_sql or bool(self._tags)
        self._wanted = subscription if self._is_filtered else None
        self._header = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            0,
            config.pull_batch_size,
            # With the expression in any case: the one that a broker knows may be another member's.
            PullFlag.SUSPEND | PullFlag.SUBSCRIPTION,
            suspend_timeout_ms=config.broker_suspend_ms,
            subscription=subscription.expression,
            subscription_version=subscription.version,
            expression_type=subscription.expression_type,
            max_bytes=config.pull_batch_bytes,
            broker_name=queue.broker_name,
        )
        self._frames = self._client.api.pull_frames(self._header)
        self._copies.forget()

    def configure(self, config: PullConfig) -> None:
        """Use other thresholds from now on."""
        self._config = config
        if self._loop is not None:
            self._loop.configure(config)
        self.wake()

    def wake(self) -> None:
        """Look now: there is room again, a lease, or a broker."""
        self._wake.set()

    async def round(self) -> bool:
        """Pull for as long as messages come, or wait for a moment; False after a revocation."""
        assigned = self.assigned
        if assigned.state is not QueueState.ACTIVE:
            return False
        # Cleared before looking: a `wake` between the look and the wait must not be lost.
        self._wake.clear()
        if assigned.lease is None:
            await wait_until_set(self._wake, self._client.clock, _ROOM_RECHECK_MS)
        elif not await self._wait_for_room():
            await self._run_pull_loop()
        return True

    async def _wait_for_room(self) -> bool:
        flow = self._receiver.flow(self.assigned, self._config)
        if flow is Flow.PULL:
            return False
        if flow is Flow.WAIT:
            # Nothing notifies when bytes or the span have shrunk.
            await wait_until_set(self._wake, self._client.clock, _SIZE_RECHECK_MS)
            return True
        # Half empty before pulling on: waking for each message costs more than it gives.
        half = self._config.pull_threshold_for_queue // 2 + 1
        if flow is Flow.WAIT_FOR_ROOM or self.assigned.wait_for_room(half):
            await wait_until_set(self._wake, self._client.clock, _ROOM_RECHECK_MS)
        return True

    # PullTarget

    def accept(
        self, batch: MessageBatch, next_offset: int, max_offset: int
    ) -> Callable[[], object] | None:
        self._count(len(batch))
        self.assigned.max_offset = max_offset
        submits = self._copies.accept(self._generation, batch, next_offset)
        return self._submit if submits else None

    def may_pull(self) -> bool:
        # After each answer, on the I/O thread: attribute reads and one native call.
        assigned = self.assigned
        return (
            assigned.generation == self._generation
            and assigned.state is QueueState.ACTIVE
            and not self._config.pull_interval_ms
            and self._receiver.flow(assigned, self._config) is Flow.PULL
        )

    # EngineTarget

    def permit(self, permit: FillPermit) -> bool:
        return self.assigned.permit(self._generation, permit)

    def filled(self, is_dispatched: bool) -> None:
        if is_dispatched:
            self._submit()
        self._begun()

    def counted(self, pulls: int, messages: int, spent_ms: int, buckets: Sequence[int]) -> None:
        self.life.note_messages()
        self._statistics.pulled_many(self.assigned.queue, pulls, messages, spent_ms, buckets)
        if self._is_from_slave:
            self._statistics.add("pulls_from_slaves", pulls)

    async def _run_pull_loop(self) -> None:
        """Pull until something but messages comes, or there is no room for more."""
        assigned = self.assigned
        generation, offset = assigned.generation, assigned.next_pull_offset
        address = assigned.queue.broker_name
        self.life.reads_from(offset, generation, self._wanted)
        try:
            broker_id, address = self._source.choose()
            self._is_from_slave = broker_id != MASTER_ID
            connection = await self._path.connect(address)
            if connection is not self._connection:
                # A broker that lost messages ended its connections first, also while no pull was
                # on its way that could fail.
                if self._connection is not None:
                    self.life.doubt()
                self._connection = connection
            doubts = -1
            # What a look leaves in doubt the answer to the pull tells, but not what came up since.
            while self.life.is_doubtful and self.life.doubts != doubts:
                doubts = self.life.doubts
                if life := await self._look(broker_id):
                    self._begin_life(life)
                    await self._wait_for_generation(generation)
                    return
            moved = await self._copies.prepare(address, self._header, self._tags)
            if moved is not None:
                await self._move(generation, offset, moved, is_reset=True)
                return
            # At last: thresholds and subscriptions may have changed meanwhile.
            loop = self._path.begin(connection, self._plan(offset))
            self._generation = generation
            self._has_messages = False
            self._loop = loop
            loop.start()
            try:
                # Cancelling this task cancels the future, which ends the loop: no answer to a pull
                # from an old offset is taken any more.
                answer = await loop.ended
            finally:
                self.life.has_reached(loop.offset)
            self._polled_ms = self._client.clock.now_ms()
            if answer is not None:
                header = replace(self._header, queue_offset=loop.offset)
                code, reply, body = self._client.api.pulled(address, header, answer)
                self._not_refused()
                if code != ResponseCode.SUCCESS:
                    self._statistics.add("pulls")
                    self._statistics.add("pulls_from_slaves", self._is_from_slave)
                await self._handle_unusual_answer(
                    generation, loop.offset, code, reply, body, answer.remark
                )
            if self._config.pull_interval_ms and generation == assigned.generation:
                await self._client.clock.sleep_ms(self._config.pull_interval_ms)
        except ProtocolError as error:
            await self._drop_answer(error)
        except (RemotingError, RouteError) as error:
            await self._pause_after(address, error)

    def _plan(self, offset: int) -> QueuePulls:
        return QueuePulls(
            self.assigned,
            self,
            self._frames,
            self._config,
            offset,
            self._tags,
            self._source.wanted,
            self._is_filtered,
            self._copies.window,
        )

    def _count(self, messages: int) -> None:
        """Count a pull with messages, at its answer."""
        assert self._loop is not None
        self._statistics.pulled(self.assigned.queue, messages, self._loop.asked_ms)
        self._begun()
        if self._is_from_slave:
            self._statistics.add("pulls_from_slaves")

    def _submit(self) -> None:
        # First: what follows may raise, as without memory, and nobody would consume the queue.
        self._receiver.submit(self.assigned)
        self.life.note_read()

    def _begun(self) -> None:
        """Note that the present pull loop has brought messages."""
        self._has_messages = True
        self._not_refused()
        self.life.note_read()
        self.life.note_messages()
        if self.assigned.bad_answer_at >= 0:
            bad_answer_at, self.assigned.bad_answer_at = self.assigned.bad_answer_at, -1
            _log.info("%s: pulled past offset %d again", self.assigned.queue, bad_answer_at)

    async def _handle_unusual_answer(
        self,
        generation: int,
        offset: int,
        code: int,
        reply: PullReplyHeader,
        body: bytes,
        remark: str | None,
    ) -> None:
        """Act on an answer that ended the pull loop."""
        assigned = self.assigned
        assigned.max_offset = max(reply.max_offset, 0)
        if code == ResponseCode.SUCCESS:
            next_offset = reply.next_begin_offset
            batch = self._client.api.batch(assigned.queue, body, self._tags, offset, next_offset)
            if batch.last_offset < 0:
                raise ProtocolError("the broker found messages, and sent none")
            if not self._is_filtered:
                # Nothing lies between the last record and the next offset, whatever it says.
                next_offset = batch.last_offset + 1
                if not is_whole(batch, offset):
                    self._tell_missing(offset, next_offset, next_offset - offset - len(batch))
            self._count(len(batch))
            if len(batch) == 0:
                assigned.skip_to(generation, next_offset)
            elif self._copies.accept(generation, batch, next_offset):
                # Messages, but the broker suggests another replica for the next pull.
                self._submit()
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(generation, offset, reply, is_reset=remark == OFFSET_RESET)
        else:
            # Nothing new, or other tags only: the position moves past them without a message.
            target = reply.next_begin_offset
            if remark == OFFSETS_LEFT_OUT:
                _log.info(
                    "%s: the broker was restored from a back-up, and left out offsets %d to %d",
                    assigned.queue,
                    offset,
                    target - 1,
                    extra=self._fields(assigned.queue, offset=offset),
                )
            elif target > offset and (not self._is_filtered or remark == _BEING_REMOVED):
                self._tell_missing(offset, target, target - offset)
            assigned.skip_to(generation, target)
            self.life.note_nothing()
        is_elsewhere = self._source.suggest(reply.suggested_broker_id)
        if (
            code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and reply.next_begin_offset <= offset
            and not is_elsewhere
        ):
            # A slave that suggests a master that is away, or that has less than was read; or it was
            # the master itself: another one has been chosen, and grants locks already.
            self._client.doubt_route(assigned.queue.topic)
            await wait_until_set(
                self._wake, self._client.clock, self._config.pull_delay_on_error_ms
            )

    def _tell_missing(self, offset: int, end: int, count: int) -> None:
        """Count and log messages that the broker passed over: at WARNING once, then at INFO.

        Args: end: behind the last offset that was asked for.
        """
        self._statistics.add("skipped", count)
        # Each answer of a compacted topic leaves some out.
        level = logging.INFO if self._has_told_missing else logging.WARNING
        self._has_told_missing = True
        _log.log(
            level,
            "%s: %d messages expired unread between offsets %d and %d: the broker has removed them",
            self.assigned.queue,
            count,
            offset,
            end - 1,
            extra=self._fields(self.assigned.queue, offset=offset),
        )

    async def _move(
        self, generation: int, offset: int, reply: PullReplyHeader, *, is_reset: bool
    ) -> None:
        """Continue where the broker says: it does not have the offset, or an admin reset it."""
        assigned, target = self.assigned, reply.next_begin_offset
        is_cut = False
        # Counted before the buffer is done: an admin who asks learns that the reset has arrived.
        assigned.resets += is_reset
        if not is_reset and (offset > reply.max_offset or target < offset):
            found = await self.life.found_by_broker(offset, reply)
            if assigned.generation != generation:
                return  # a look beside the pulls has found it, and the queue has moved
            if not isinstance(found, int):
                self._begin_life(found)
                await self._wait_for_generation(generation)
                return
            target, is_cut = found, True
        # What is buffered comes first: it is older than the answer.
        while assigned.generation == generation and assigned.wait_for_room(1):
            await wait_until_set(self._wake, self._client.clock, _ROOM_RECHECK_MS)
            self._wake.clear()
        if assigned.generation != generation or assigned.state is not QueueState.ACTIVE:
            return
        if is_reset:
            # Nothing is lost: the messages between the two offsets are still stored.
            _log.warning(
                "%s: an admin reset the group's offset; continuing from %d, not %d",
                assigned.queue,
                target,
                offset,
                extra=self._fields(assigned.queue, offset=target),
            )
        else:
            _log.warning(
                "%s: the broker has offsets %d-%d, not %d; continuing from %d%s",
                assigned.queue,
                reply.min_offset,
                reply.max_offset,
                offset,
                target,
                f", {target - offset} messages expired unread" if target > offset else "",
                extra=self._fields(assigned.queue, offset=target),
            )
            self._statistics.add("skipped", max(target - offset, 0))
        try:
            await self._offsets.reset(assigned, generation, target)
        finally:
            # Also where the new offset could not be stored: the next commit does it.
            if is_cut and assigned.generation != generation:
                self.life.moved()

    def _begin_life(self, life: NewLife) -> None:
        """Continue with what a queue has in its new life, from its first unread message on.

        Waits for nothing: a restart of the pulls would end it halfway, and the queue would wait for
        a move that nobody has begun.
        """
        assigned = self.assigned
        # What was fetched and not consumed may lie before the part that the broker has lost.
        life = life._replace(first=min(life.first, assigned.done_offset))
        if self._moving == assigned.generation or not assigned.begin_life(life.first):
            return
        self._moving = assigned.generation
        self.life.began()
        dropped = assigned.process_queue.message_count
        self._statistics.add("new_lives")
        _log.warning(
            "%s: the queue is not the one that was read: %s. The topic was deleted and created "
            "again, or the broker lost messages. Continuing from offset %d of %d-%d, not %d; %d "
            "messages of the queue before that were fetched and not consumed are dropped",
            assigned.queue,
            life.reason,
            life.first,
            life.first,
            life.end,
            life.at,
            dropped,
            extra=self._fields(assigned.queue, offset=life.first),
        )
        self._client.doubt_route(assigned.queue.topic)  # the new one may have other queues, too
        self._begin_there(assigned, life.first)

    async def _look(self, broker_id: int) -> NewLife | None:
        """Look at the queue's life, if its master can be asked.

        Looks go to the master: a slave may have less than was read. While it is away the slave is
        read without one, or nothing would be; the queue stays in doubt until the master is back.

        Args: broker_id: the replica that is pulled from.
        """
        if broker_id == MASTER_ID:
            return await self.life.look()
        if not self._client.is_connected(self.assigned.queue.broker_name):
            return None
        try:
            return await self.life.look()
        except (RemotingError, RouteError) as error:
            _log.debug("%s: read from a slave without a look: %s", self.assigned.queue, error)
            return None

    async def _wait_for_generation(self, generation: int) -> None:
        """Pull nothing until the queue was moved, or is held no more; the move ends this task."""
        assigned = self.assigned
        while assigned.generation == generation and assigned.state is QueueState.ACTIVE:
            await self._client.clock.sleep_ms(_ROOM_RECHECK_MS)

    async def _drop_answer(self, error: ProtocolError) -> None:
        """Wait, to pull again from the same offset: nothing of a bad answer was used."""
        assert self._loop is not None
        assigned, offset = self.assigned, self._loop.offset
        self._statistics.add("bad_answers")
        self._statistics.add("pull_errors")
        # Once, not once per attempt. `unreadable_queues` tells that it goes on.
        if assigned.bad_answer_at != offset:
            assigned.bad_answer, assigned.bad_answer_at = str(error), offset
            _log.error(
                "%s: dropped a bad answer to the pull at offset %d, and will pull again every %d "
                "ms: %s",
                assigned.queue,
                offset,
                self._config.pull_delay_on_error_ms,
                error,
                extra=self._fields(assigned.queue, offset=offset),
            )
        await self._source.failed()
        await wait_until_set(self._wake, self._client.clock, self._config.pull_delay_on_error_ms)

    async def _pause_after(self, address: str, error: OrderMQError) -> None:
        if getattr(error, "response_code", None) == ResponseCode.FLOW_CONTROL:
            await self._client.clock.sleep_ms(_FLOW_CONTROL_DELAY_MS)
            return
        self._statistics.add("pull_errors")
        self.life.doubt()
        # Reported with the broker, not once for each of its queues.
        self._client.outages.failed(address, "pull", error)
        await self._source.failed()
        pause_ms = self._config.pull_delay_on_error_ms
        if is_forbidden(error):
            # The broker says no until an admin has done something: there is no hurry.
            pause_ms = growing_pause_ms(pause_ms, self._refusals, _REFUSED_PAUSE_MS)
            self._refusals += 1
            self._refusal = str(error)
        # `wake`, as after a reconnect, ends the pause early.
        await wait_until_set(self._wake, self._client.clock, pause_ms)

    def _not_refused(self) -> None:
        self._refusals, self._refusal = 0, ""


class Fetcher:
    """Fetches the queues of one member; on the I/O thread.

    Args:
        before_first: awaited before the first pull of a queue.
        begin_life: stores where the new life of a queue starts, and continues there, soon.
    """

    def __init__(
        self,
        member: MemberContext,
        config: PullConfig,
        offsets: OffsetCommitter,
        receiver: Receiver[Any],
        *,
        before_first: Callable[[MessageQueue], Awaitable[None]],
        begin_life: BeginLife,
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._config = config
        self._receiver = receiver
        path = self._choose_path(member.statistics)
        self._parts = FetchParts(member, config, offsets, receiver, path, begin_life)
        self._before_first = before_first
        self._left: dict[MessageQueue, LeftQueue] = {}  # queues that were given up
        self._by_queue: dict[MessageQueue, QueueFetcher] = {}

    def begin(self, assigned: AssignedQueue, subscription: Subscription) -> None:
        """Fetch a queue that was just assigned."""
        left = self._left.pop(assigned.queue, None)
        mark = None if left is None else left.mark_for(assigned.next_pull_offset)
        fetcher = QueueFetcher(self._parts, assigned, mark)
        fetcher.life.begin()
        fetcher.subscribe(subscription)
        self._by_queue[assigned.queue] = fetcher
        self._start(
            fetcher,
            partial(self._before_first, assigned.queue),
            partial(self._receiver.prepare, assigned),
        )
        self._divide(assigned.queue.topic)

    def end(self, assigned: AssignedQueue) -> None:
        """Stop fetching a queue that was given up."""
        fetcher = self._by_queue.pop(assigned.queue)
        assert fetcher.task is not None
        fetcher.task.cancel()
        fetcher.life.close()
        if (mark := fetcher.life.mark) is not None:
            self._left[assigned.queue] = LeftQueue(mark, assigned.committed_offset)
        self._divide(assigned.queue.topic)

    def wake(self, assigned: AssignedQueue) -> None:
        """Look at a queue now: there is room in its buffer again."""
        fetcher = self._by_queue.get(assigned.queue)
        if fetcher is not None:
            fetcher.wake()

    def wake_all(self) -> None:
        """End the pauses after errors: a broker is back."""
        for fetcher in self._by_queue.values():
            fetcher.wake()

    def restart(self, assigned: AssignedQueue) -> None:
        """Pull a queue from its current offset; the pull at the old offset may be held for long."""
        fetcher = self._by_queue.get(assigned.queue)
        if fetcher is not None:
            self._restart(fetcher)

    def pull_now(self, assigned: AssignedQueue) -> None:
        """Pull a queue again if the broker holds its pull: an admin's reset comes with the next."""
        fetcher = self._by_queue.get(assigned.queue)
        # Not while an answer is acted on: it may be that of a reset.
        if fetcher is not None and fetcher.is_pulling:
            fetcher.count_held()
            self._restart(fetcher)

    def subscribe(self, subscription: Subscription) -> None:
        """Pull a topic by another expression; what is buffered stays."""
        for queue, fetcher in list(self._by_queue.items()):
            if queue.topic == subscription.topic:
                fetcher.subscribe(subscription)
                self._restart(fetcher)

    def last_pull_ms(self, queue: MessageQueue) -> int:
        """Return when a queue was last pulled, ms since 1970; 0 if not yet."""
        fetcher = self._by_queue.get(queue)
        return 0 if fetcher is None else fetcher.last_pull_ms

    def is_pulling(self, queue: MessageQueue) -> bool:
        """Return whether a pull of the queue waits for its answer."""
        fetcher = self._by_queue.get(queue)
        return fetcher is not None and fetcher.is_pulling

    async def refresh(self, assigned: AssignedQueue) -> None:
        """Nothing: nobody else moves the group in a queue that this member holds."""

    def oldest_poll(self, now_ms: int) -> tuple[int, MessageQueue] | None:
        """Return the age of the oldest last poll, and its queue; see `QueueFetcher.poll_age_ms`."""
        ages = [(each.poll_age_ms(now_ms), queue) for queue, each in self._by_queue.items()]
        return max(((age, queue) for age, queue in ages if age is not None), default=None)

    def refusals(self) -> list[str]:
        """Return why brokers refuse pulls now, one text per reason and queue."""
        now_ms = self._client.clock.now_ms()
        refusals = [each.refusal(now_ms) for each in self._by_queue.values()]
        return [text for text in refusals if text]

    def doubt(self, topic: str) -> None:
        """Look at a topic's queues before their next pulls: its route has changed."""
        for queue, fetcher in self._by_queue.items():
            if queue.topic == topic:
                fetcher.life.doubt()
                # RocketMQ holds a pull beyond the end of its topic, and answers it with messages of
                # the next one of that name, from the middle.
                self.pull_now(fetcher.assigned)

    async def close(self) -> None:
        """End every pull."""
        for fetcher in self._by_queue.values():
            fetcher.life.close()
        await cancelled(*(fetcher.task for fetcher in self._by_queue.values()))

    def _choose_path(self, statistics: ConsumerStatistics) -> PullPath[Any]:
        if not core.HAS_ENGINE:
            return PythonPath(self._client.api)
        path = EnginePath(self._client, self._receiver)
        statistics.gather_with(path.gather)
        self._receiver.take_from(path)
        return path

    def _divide(self, topic: str) -> None:
        """Share the thresholds of a topic among its queues
        (docs/internals/semantics.md#pull-loop)."""
        # Otherwise each of a thousand queues that leave would be told to all others, for nothing.
        if not self._config.has_topic_limits:
            return
        fetchers = [item for queue, item in self._by_queue.items() if queue.topic == topic]
        # At each change of the share: queues that leave give their part to those that stay.
        for fetcher in fetchers:
            fetcher.configure(self._config.for_one_of(len(fetchers)))

    def _restart(self, fetcher: QueueFetcher) -> None:
        if fetcher.last_pull_ms == 0:
            return  # the first pull is still to come
        assert fetcher.task is not None
        fetcher.task.cancel()
        self._start(fetcher, partial(self._receiver.prepare, fetcher.assigned))

    def _start(self, fetcher: QueueFetcher, *steps: Callable[[], Awaitable[None]]) -> None:
        """Take the steps, one after the other, then pull; a step that fails is taken again."""
        left = deque(steps)

        async def round() -> bool:
            if not left:
                return await fetcher.round()
            await left[0]()
            left.popleft()
            return True

        name = f"{fetcher.assigned.queue} {self._group}"
        fetcher.task = self._client.supervisor.start("pull", round, name)
