"""Queue senders: one request per queue at a time.

Messages that arrive while it is in flight form the next batch. A key always goes to one queue, so
one unacknowledged request per queue is at most one unacknowledged send per key
(docs/internals/semantics.md#ordered-sends), and a batch is stored whole or not at all. The rule
costs little: under load the batches grow, like the group commits of a database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.core import finish_stored, take_batch
from ordermq.errors import KeyFailed, OrderMQError, RequestTooLarge, StateError
from ordermq.model.hashing import key_text, string_hash
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt
from ordermq.producer.pending_message import PendingMessage, batch_body, is_single
from ordermq.producer.queue_selector import QueueRouting, ShardingKey
from ordermq.producer.retry_policy import (
    AfterFailure,
    is_outcome_unknown,
    is_route_in_doubt,
    may_use_fallback_broker,
    retry_delay_ms,
)
from ordermq.producer.send_protocol import SendProtocol, compressed, needs_compression
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.producer.accumulator import SendRequest
    from ordermq.producer.trace_sends import TraceSends

_log = logging.getLogger("ordermq.producer")
_TURN_S = 0.005  # how long the I/O thread waits for a turn: a thread that has it may need the GIL
_TURN_BEFORE_STOP_S = 0.2
_LANES_OF_PROXY = 16  # requests in flight of a queue, each of other keys


class FailedKeys:
    """Sharding keys with an unknown outcome: their later messages fail; any thread.

    One table per producer: after a change of queues a key must not go on in its new queue while
    its outcome in the old one is unknown.
    """

    def __init__(self) -> None:
        # By the text of a key, which is what consumers order by: 7 and "7" are one.
        self._reasons: dict[tuple[str, str], str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, topic: str, key: ShardingKey, reason: str) -> None:
        self._reasons.setdefault((topic, key_text(key)), reason)

    def resolve(self, topic: str, key: ShardingKey) -> bool:
        """Let a key go on; return False if it had not failed."""
        return self._reasons.pop((topic, key_text(key)), None) is not None

    def error_of(
        self, topic: str, key: ShardingKey | None, queue: MessageQueue | None = None
    ) -> KeyFailed | None:
        """Return the error of a message of this key; None if the key has not failed."""
        reason = self._reasons.get((topic, key_text(key))) if key is not None else None
        if reason is None:
            return None
        return KeyFailed(
            f"sharding key {key!r}: an earlier send has an unknown outcome ({reason}); check "
            "whether it arrived, then call producer.resolve(topic, key)",
            topic=topic,
            broker=queue.broker_name if queue else None,
            queue_id=queue.queue_id if queue else None,
        )


def _no_fallback(queue: MessageQueue, message: PendingMessage) -> bool:
    return False


class SenderState(Enum):
    """State of a queue sender.

    | state | messages come | begin | the batch ends | stop |
    |---|---|---|---|---|
    | IDLE | WAITING | | | STOPPED |
    | WAITING | | IN_FLIGHT; IDLE if all are refused | | STOPPED, they fail |
    | IN_FLIGHT | they wait | starts a NEW batch | WAITING or IDLE | STOPPED, all fail |
    | STOPPED | they fail | they fail | | |
    """

    IDLE = auto()
    WAITING = auto()  # messages wait; whoever has the turn next makes a batch of them
    IN_FLIGHT = auto()  # what waits is sent behind the end of the batch
    STOPPED = auto()


class LoopTurn(Enum):
    """Place of the I/O thread in a sender's order of turns."""

    NONE = auto()
    DUE = auto()  # another thread has the turn: `begin` is called later
    HELD = auto()  # in `begin`


class BatchState(Enum):
    """State of a batch; it is NEW, then SENDING over all its attempts, then ENDED for ever."""

    NEW = auto()  # to be started by the thread that made it, else by the I/O thread
    SENDING = auto()  # asked, or a task prepares an attempt: connection, compression, pause
    ENDED = auto()


class Ending(Enum):
    """End of a batch.

    | ending | its callers get | later messages of its keys | the queue sends what waits |
    |---|---|---|---|
    | STORED | receipts, once the next batch is on its way | are sent | yes |
    | MOVED | the outcome at other brokers, whose senders have all its messages | are sent | yes |
    | APART | the outcome of smaller requests, for which all of it waits again | are sent | yes |
    | REFUSED | the error | are sent | yes |
    | UNKNOWN | the error | fail until they are resolved | yes |
    | ABANDONED (`stop`, a defect) | the error | fail until they are resolved | no, it fails |
    """

    STORED = auto()  # also written, if nobody wants an answer
    MOVED = auto()
    APART = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    ABANDONED = auto()


# Plain names of the members: to look one up in its class takes 0.3 us in Python 3.11, each time.
_IDLE, _WAITING, _IN_FLIGHT, _STOPPED = SenderState
_NONE, _DUE, _HELD = LoopTurn
_NEW, _SENDING, _ENDED = BatchState
_STORED, _MOVED, _APART, _REFUSED, _UNKNOWN, _ABANDONED = Ending
_MAY_BE_STORED = {_UNKNOWN, _ABANDONED}


class QueueSender:
    """Sends the messages of one queue in the order they come (`SenderState`).

    On the I/O thread, except `send` and what has `on_caller` in its name. Whoever begins a request
    holds the sender's turn. A thread that sends may be suspended in it, by a signal handler that
    runs on top of it, or leave it by an exception that the handler raises. So the I/O thread waits
    for the turn for a moment only and looks again later, and each step leaves what the next holder
    of the turn needs to go on (docs/internals/semantics.md#asynchronous-exceptions). For the same
    reason states are read off fields that change in one step each.
    """

    def __init__(
        self,
        client: ClientSession,
        protocol: SendProtocol,
        config: SendConfig,
        failed_keys: FailedKeys,
        fallback: Callable[[MessageQueue, PendingMessage], bool] = _no_fallback,
        in_flight: set[QueueSender] | None = None,
    ) -> None:
        self._client = client
        self._protocol = protocol
        self._config = config
        self._failed_keys = failed_keys  # of the producer
        self._fallback = fallback  # hands a message to another broker's sender; False if none
        self._senders_in_flight = set() if in_flight is None else in_flight  # of the producer
        self._turn = Lock()  # of the thread that begins a request
        self._loop_turn = _NONE
        self._waiting: deque[PendingMessage] = deque()
        self._taken: list[PendingMessage] = []  # from `_waiting`, for the request that begins
        self._in_flight: InFlightBatch | None = None
        self._is_stopped = False
        self._max_batch_bytes = config.max_batch_bytes  # less where the broker takes no more

    @property
    def queue(self) -> MessageQueue:
        return self._protocol.queue

    @property
    def state(self) -> SenderState:
        if self._in_flight is not None:
            return _IN_FLIGHT
        if self._is_stopped:
            return _STOPPED
        return _WAITING if self._waiting or self._taken else _IDLE

    @property
    def is_idle(self) -> bool:
        """Return True if nothing waits and nothing is in flight, also after `stop`."""
        return self._in_flight is None and not self._waiting and not self._taken

    def put(self, messages: Sequence[PendingMessage]) -> None:
        """Queue messages; `begin` sends them."""
        self._waiting.extend(messages)

    def send(self, request: SendRequest) -> None:
        """Queue and send messages from another thread, which writes the request if it can.

        The request's `begun` is set if it is this thread that has begun one. After an exception the
        caller has `begin` called.
        """
        self._waiting.extend(request.pending)
        with self._turn:
            self._begin_on_caller(request)

    def begin(self) -> None:
        """Do what the state asks for: start a batch, make one of what waits, or fail what waits.

        Also begins again what an exception in `send` has left.
        """
        # HELD: called from the loop below, by a request that ended at once. DUE: called again,
        # before the next attempt.
        if self._loop_turn is not _NONE:
            return
        # No `with`, which has no limit; the I/O thread runs no signal handler.
        if not self._turn.acquire(timeout=_TURN_S):
            self._loop_turn = _DUE
            self._client.runtime.loop.call_later(_TURN_S, self._begin_due)
            return
        self._loop_turn = _HELD
        try:
            if self._in_flight is not None:
                self._in_flight.start()
            # A loop, because a request may end in `start`: no route, or a one-way send.
            while self.state is _WAITING:
                self._begin_or_fail()
            if self._is_stopped:
                self._fail_waiting()
        finally:
            self._loop_turn = _NONE
            self._turn.release()

    def _begin_due(self) -> None:
        self._loop_turn = _NONE
        self.begin()

    def _begin_or_fail(self) -> None:
        try:
            batch = self._make_batch()
            if batch is not None:
                batch.start()  # raises nothing: the batch handles its own errors
        except Exception:  # noqa: BLE001 - a defect: callers must not wait for ever
            _log.exception(
                "%s: internal error (please report), messages fail",
                self.queue,
                extra=log_fields(self.queue, member=self._client.client_id),
            )
            self._forget_batch()
            self._fail_waiting()

    def _begin_on_caller(self, request: SendRequest | None) -> None:
        # With the turn. What fails is left to the I/O thread.
        state = self.state
        if state is _STOPPED:
            if request is not None:
                request.fail(stopped_error(self.queue, "it was not sent"))
            self._client.runtime.post(self._fail_waiting)
        elif state is _WAITING and self._failed_keys:
            self._client.runtime.post(self.begin)
        elif state is _WAITING:
            batch = self._make_batch()
            if batch is None:
                return
            if request is not None:
                request.begun = batch
                batch.is_awaited = request.is_read_by_caller
            batch.start_on_caller()

    def _make_batch(self) -> InFlightBatch | None:
        """Make a batch of what waits; with the turn, and nothing in flight."""
        self._senders_in_flight.add(self)  # first: the producer must not look idle meanwhile
        taken = self._taken
        if not taken:
            try:
                take_batch(self._waiting, self._max_batch_bytes, taken)
            except IndexError:  # `stop` has just failed what waited
                self._senders_in_flight.discard(self)
                return None
        elif self._waiting and self._waiting[0] is taken[-1]:  # an exception came in `take_batch`
            self._waiting.popleft()
        sendable = self._without_failed_keys(taken) if self._failed_keys else taken
        batch = InFlightBatch(self, sendable) if sendable else None
        rest: list[PendingMessage] = []
        # No call, and so no exception, comes between these two.
        self._in_flight = batch
        self._taken = rest
        if batch is None:
            self._senders_in_flight.discard(self)
        return batch

    def take_apart(self, batch: Sequence[PendingMessage]) -> None:
        """Put messages that were too large together in front again, for smaller requests.

        Called while their batch is in flight: nobody takes what waits meanwhile.
        """
        self._max_batch_bytes = max(sum(message.size for message in batch) // 2, 1)
        _log.info(
            "%s: the broker takes less than %d messages in one request; %d bytes of them from now "
            "on: its maxMessageSize is lower than max_batch_bytes",
            self.queue,
            len(batch),
            self._max_batch_bytes,
            extra=log_fields(self.queue, member=self._client.client_id),
        )
        self._waiting.extendleft(reversed(batch))

    def continue_behind(self, batch: InFlightBatch, ending: Ending) -> None:
        """Do what the end of a batch leaves to do; once more is harmless."""
        if self._in_flight is batch:
            self._forget_batch()
        if ending is _ABANDONED:
            self._fail_waiting()
        else:
            self.begin()

    def continue_on_caller(self) -> None:
        """Begin the next batch behind one that the calling thread has found to be stored."""
        self._forget_batch()
        try:
            with self._turn:
                self._begin_on_caller(None)
        except BaseException:
            self._client.runtime.post(self.begin)
            raise

    async def stop(self) -> None:
        """End the request in flight; callers that wait for it get an error."""
        self._is_stopped = True
        # Whoever has the turn may have looked before; it has it for a moment, unless a signal
        # handler runs on top of it, which may be waiting for this very end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_BEFORE_STOP_S):
                while self._turn.locked():
                    await asyncio.sleep(_TURN_S)
        batch = self._in_flight  # a caller that reads its answer may end it meanwhile
        if batch is not None:
            await batch.stop()
        self._fail_waiting()

    def _forget_batch(self) -> None:
        # The set first: the next request of this queue, of another thread, adds it again.
        self._senders_in_flight.discard(self)
        self._in_flight = None

    def _fail_waiting(self) -> None:
        left, self._taken = self._taken, []
        with contextlib.suppress(IndexError):  # another thread may take the last ones
            while self._waiting:
                left.append(self._waiting.popleft())
        for message in left:
            unsent = stopped_error(self.queue, "it was not sent")
            message.finish(None, told_error(message.unanswered, unsent))

    def _without_failed_keys(self, batch: Sequence[PendingMessage]) -> list[PendingMessage]:
        # Checked when a batch leaves, not when its messages come: a key may fail meanwhile.
        passed = []
        for message in batch:
            error = self._failed_keys.error_of(self.queue.topic, message.key, self.queue)
            if error is None:
                passed.append(message)
            else:
                message.finish(None, error)
        return passed


class InFlightBatch(ResponseFuture):
    """One batch of a queue sender: attempts to send it (`BatchState`) until an `Ending`.

    On the I/O thread, except what has `on_caller` in its name. The request is written where the
    batch starts, and its answer read where it arrives. A task is made only for what must be
    awaited: a connection, compression, the pause before another attempt.
    """

    __slots__ = (
        "_attempts",
        "_batch",
        "_body",
        "_client",
        "_config",
        "_end_token",
        "_is_oneway",
        "_protocol",
        "_sender",
        "_sys_flag",
        "_task",
        "_unanswered",
        "is_awaited",
    )

    def __init__(self, sender: QueueSender, batch: Sequence[PendingMessage]) -> None:
        self._sender = sender
        self._client = sender._client
        self._protocol = sender._protocol
        self._config = sender._config
        self._batch = batch
        # One message that needs an answer makes the whole request need one.
        self._is_oneway = batch[0].is_oneway and all(message.is_oneway for message in batch)
        self._body: bytes | None = None  # as it is sent; None until it is made
        self._sys_flag = 0
        self._attempts = 0
        self._unanswered: OrderMQError | None = None  # the newest attempt that may be stored
        # Taken by the thread that ends it: a list, because its `pop` is one step for all threads.
        self._end_token = [True]
        self._task: asyncio.Task[None] | None = None
        self.is_awaited = False
        self.is_asked = False
        self.callers = None

    @property
    def state(self) -> BatchState:
        if not self._end_token:
            return _ENDED
        is_sending = self.is_asked or self._task is not None
        return _SENDING if is_sending else _NEW

    def start(self) -> None:
        """Send, now if nothing has to be awaited before; a second call does nothing."""
        if self.state is _NEW:
            self._guarded(self._start)

    def start_on_caller(self) -> None:
        """Send from another thread if that is possible at once; else the I/O thread starts.

        With `is_awaited` that thread waits for the answer next, by `callers` if that is set.
        """
        try:
            # Only the I/O thread writes one-way requests: there is no answer to order them by.
            is_sent = not self._is_oneway and self._is_body_made() and self._send()
        except OrderMQError:  # the I/O thread meets it again and handles it
            is_sent = False
        if not is_sent:
            self._client.runtime.post(self.start)

    async def stop(self) -> None:
        """Give up now; whether the batch was stored is unknown."""
        # Abandoned before the task is cancelled, or the task would report its cancellation.
        task, self._task = self._task, None
        self._abandon("the producer was closed")
        await cancelled(task)

    def _start(self) -> None:
        try:
            is_sent = self._is_body_made() and self._send()
        except OrderMQError as error:
            self._after_failure(error)
            return
        if not is_sent:
            self._spawn(0)

    def _is_body_made(self) -> bool:
        # False if the body has to be compressed, which is awaited.
        if self._body is None:  # a retry sends the same bytes
            first = self._batch[0]
            if not is_single(self._batch):
                self._body, self._sys_flag = batch_body(self._batch), 0  # never compressed
            elif not needs_compression(first.bodies[0], self._config):
                self._body, self._sys_flag = first.bodies[0], first.sys_flag
        return self._body is not None

    def _send(self) -> bool:
        assert self._body is not None
        if not self._is_oneway:
            return self._protocol.begin(self._batch, self._body, self._sys_flag, self)
        is_sent = self._protocol.begin(self._batch, self._body, self._sys_flag, None)
        if is_sent:  # written to the socket, in front of all that follows: it counts as sent
            self._end_stored([()] * len(self._batch))
        return is_sent

    def _spawn(self, pause_ms: int) -> None:
        name = f"send {self._protocol.queue}"
        self._task = self._client.runtime.spawn(self._send_later(pause_ms), name)

    async def _send_later(self, pause_ms: int) -> None:
        try:
            if pause_ms:
                await self._client.clock.sleep_ms(pause_ms)
            if not self._is_body_made():
                first = self._batch[0]
                self._body, sys_flag = await compressed(first.bodies[0], self._config)
                self._sys_flag = sys_flag | first.sys_flag
            try:
                while not self._send():
                    await self._protocol.ready(self._batch)
            except OrderMQError as error:
                self._after_failure(error)
        except BaseException as error:
            # Stopped, or a defect: callers must not wait for this batch for ever.
            self._abandon(repr(error))
            raise

    # ResponseFuture

    @property
    def is_over(self) -> bool:
        return not self._end_token

    def answered(self, command: Command) -> None:
        if self._end_token:
            self._guarded(self._read, command)
        else:
            self._repair_end(command)

    def answered_on_caller(self, command: Command) -> bool:
        """Take a success, if that only wakes threads; all else is the I/O thread's."""
        if command.code != ResponseCode.SUCCESS:
            return False
        assert self._body is not None
        size = len(self._body)
        return self._end_on_caller(lambda: self._protocol.receipts(self._batch, size, command))

    def stored_on_caller(self, message_ids: str, queue_id: int, queue_offset: int) -> bool:
        batch = self._batch
        return self._end_on_caller(
            lambda: self._protocol.stored(batch, message_ids, queue_id, queue_offset)
        )

    def failed(self, error: Exception) -> None:
        if self._end_token:
            self._guarded(self._after_failure, error)

    def _read(self, answer: Command) -> None:
        try:
            receipts = self._receipts_of(answer)
        except OrderMQError as error:
            self._after_failure(error)
            return
        self._end_stored(receipts)

    def _receipts_of(self, answer: Command) -> Sequence[Sequence[SendReceipt]]:
        assert self._body is not None
        return self._protocol.receipts(self._batch, len(self._body), answer)

    # The end: of all that would end a batch, the one that takes `_end_token` does.

    def _take_end(self) -> bool:
        """Return True to one of the threads that would end this batch."""
        try:
            return self._end_token.pop()
        except IndexError:
            return False

    def _end_on_caller(self, receipts_of: Callable[[], Sequence[Sequence[SendReceipt]]]) -> bool:
        for message in self._batch:
            if not message.wakes_only:
                return False
        try:
            receipts = receipts_of()
        except OrderMQError:  # the I/O thread meets it again and handles it
            return False
        if self._take_end():
            try:
                self._sender.continue_on_caller()
            finally:
                self._tell(receipts)
        return True

    def _end_stored(self, receipts: Sequence[Sequence[SendReceipt]]) -> None:
        if not self._take_end():
            return
        try:
            # The next request first: callers that wake up compete for the GIL.
            self._sender.continue_behind(self, _STORED)
        finally:
            self._tell(receipts)

    def _end_failed(self, error: OrderMQError, ending: Ending) -> None:
        if not self._take_end():
            return
        # The keys first: a caller that is told and sends the key's next message must be refused.
        if ending in _MAY_BE_STORED:
            topic = self._protocol.queue.topic
            for message in self._batch:
                if message.key is not None:
                    self._sender._failed_keys.add(topic, message.key, str(error))
        for message in self._batch:
            message.finish(None, told_error(message.unanswered, error))
        self._sender.continue_behind(self, ending)

    def _end_moved(self) -> None:
        if self._take_end():
            self._sender.continue_behind(self, _MOVED)

    def _end_apart(self) -> None:
        if self._take_end():
            self._sender.take_apart(self._batch)
            self._sender.continue_behind(self, _APART)

    def _abandon(self, why: str) -> None:
        outcome = f"whether it was stored is unknown ({why})"
        self._end_failed(stopped_error(self._protocol.queue, outcome), _ABANDONED)

    def _repair_end(self, command: Command) -> None:
        # An exception ended `_end_on_caller` somewhere; or the answer is to a batch that `stop`
        # gave up, and changes nothing.
        self._sender.continue_behind(self, _STORED)
        if not all(message.is_done for message in self._batch):
            self._guarded(lambda: self._tell(self._receipts_of(command)))
        for message in self._batch:
            message.tell_again()

    def _tell(self, receipts: Sequence[Sequence[SendReceipt]]) -> None:
        finish_stored(self._batch, receipts)
        self._protocol.trace(self._batch, receipts)

    def _guarded(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - a defect: callers must not wait for ever
            _log.exception(
                "%s: internal error (please report)",
                self._protocol.queue,
                extra=log_fields(self._protocol.queue, member=self._client.client_id),
            )
            self._abandon(repr(error))

    # After a failed attempt.

    def _after_failure(self, error: Exception) -> None:
        if not isinstance(error, OrderMQError):
            raise error
        self._attempts += 1
        broker_name = (
            self._protocol.queue.broker_name
        )  # `after_failure` of a reply sets the next one
        self._protocol.record_failure(error)
        # It was the sender that put them together: each is refused, or moved, for itself alone.
        is_refused = isinstance(error, RequestTooLarge) and not self._unanswered
        if is_refused and len(self._batch) > 1:
            self._end_apart()
            return
        if is_outcome_unknown(error):
            self._unanswered = error
        staying = self._without_fallbacks(error)
        if len(staying) < len(self._batch):  # the body holds messages that left
            self._batch, self._body = staying, None
        if not staying:
            self._end_moved()
            return
        is_unknown = self._unanswered is not None
        step, reason = self._protocol.after_failure(error, self._attempts, is_unknown)
        if is_route_in_doubt(error):
            self._client.doubt_route(self._protocol.queue.topic)
        if step is AfterFailure.SEND_AGAIN:
            self._client.report_failure(broker_name, "send", error)
            self._spawn(retry_delay_ms(self._attempts, self._config))
        else:
            ending = _UNKNOWN if step is AfterFailure.UNKNOWN else _REFUSED
            self._end_failed(told_error(self._unanswered, reason), ending)

    def _without_fallbacks(self, error: OrderMQError) -> Sequence[PendingMessage]:
        # The messages that stay with this queue; another broker's sender has the others now.
        batch, queue = self._batch, self._protocol.queue
        if not any(message.fallbacks_left for message in batch):
            return batch
        if not may_use_fallback_broker(error):
            return batch
        fallback = self._sender._fallback
        if self._unanswered is not None:  # first: the other sender may end them at once
            for message in batch:
                message.unanswered = self._unanswered
        staying = [m for m in batch if not (m.fallbacks_left and fallback(queue, m))]
        if len(staying) < len(batch):
            # With the broker: its other queues are refused for the same reason.
            meanwhile = "unordered messages go to another broker"
            self._client.report_failure(queue.broker_name, "send", error, meanwhile=meanwhile)
        return staying


def told_error(unanswered: OrderMQError | None, error: OrderMQError) -> OrderMQError:
    """Return the error of a message whose last attempt ended with `error`.

    Args: unanswered: of the newest attempt without an answer, after which it may be stored.
    """
    if unanswered is None or is_outcome_unknown(error):
        return error
    # Most others say that nothing was stored, and whoever believes them sends the message again.
    told = type(unanswered)(
        f"it may be stored: {unanswered}; the last attempt failed, too: {error}",
        topic=error.topic,
        broker=error.broker,
        queue_id=error.queue_id,
    )
    told.__cause__ = error
    return told


def stopped_error(queue: MessageQueue, outcome: str) -> StateError:
    """Return the error of messages that the producer stopped sending."""
    return StateError(
        f"the producer stopped sending before this message was acknowledged; {outcome}",
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
    )


class QueueSenders:
    """The queue senders of one producer, each made when it is first needed; any thread.

    Args:
        is_closed: returns True once the producer accepts no more messages.
    Attributes:
        in_flight: those with a request in flight, also of replies; they keep it up to date.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: SendConfig,
        routing: QueueRouting,
        failed_keys: FailedKeys,
        traces: TraceSends | None,
        *,
        is_closed: Callable[[], bool],
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._routing = routing
        self._is_behind_proxy = routing.is_behind_proxy
        self._failed_keys = failed_keys
        self._traces = traces
        self._is_closed = is_closed
        self._made: dict[tuple[MessageQueue, int], QueueSender] = {}  # by queue and lane
        self.in_flight: set[QueueSender] = set()

    def sender_of(self, queue: MessageQueue, key: ShardingKey | None = None) -> QueueSender:
        """Return the sender of a queue, or behind a proxy that of some of its keys."""
        lane = 0
        # A proxy takes one message with a key per request, so that the next key of the queue would
        # wait for its answer, and not gain a request by it.
        if self._is_behind_proxy and key is not None:
            lane = string_hash(key_text(key)) % _LANES_OF_PROXY
        sender = self._made.get((queue, lane))
        if sender is None:
            protocol = SendProtocol(
                self._client,
                self._group,
                queue,
                self._config,
                self._routing.latency_faults,
                self._traces,
            )
            # Two threads may want a queue's first sender: both get the same.
            sender = self._made.setdefault((queue, lane), self.make_sender(protocol))
        return sender

    def make_sender(self, protocol: SendProtocol) -> QueueSender:
        """Make a sender that no queue's messages go to, as for a reply."""
        return QueueSender(
            self._client,
            protocol,
            self._config,
            self._failed_keys,
            self._use_fallback,
            self.in_flight,
        )

    @property
    def are_idle(self) -> bool:
        """Return True if nothing waits and nothing is in flight."""
        return not self.in_flight and all(sender.is_idle for sender in [*self._made.values()])

    async def stop(self) -> None:
        """Stop all of them, on the I/O thread; what waits fails."""
        senders = {*self._made.values(), *self.in_flight}
        await asyncio.gather(*(sender.stop() for sender in senders))

    def _use_fallback(self, queue: MessageQueue, pending: PendingMessage) -> bool:
        """Hand an unordered message to another broker's sender; False if there is none."""
        if self._is_closed():
            return False
        try:
            target = self._routing.fallback(self._client.routes, queue)
        except OrderMQError:  # the topic is gone: the message stays, and fails with its error
            return False
        if target is None:
            return False
        pending.fallbacks_left -= 1
        sender = self.sender_of(target)
        sender.put([pending])
        sender.begin()
        return True
