"""The accumulator: messages in call order, checked and numbered, until their queue's sender."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ordermq.callables import require_plain_result
from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.errors import ConfigError, OrderMQError
from ordermq.model.hashing import key_text
from ordermq.model.identifiers import unique_message_id, unique_message_ids
from ordermq.model.message import (
    Message,
    PlainMessages,
    id_only_properties,
    with_own_properties,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.hooks import SendCheck, SendHooks
from ordermq.producer.pending_message import PendingMessage
from ordermq.producer.queue_selector import QueueRouting, ShardingKey
from ordermq.producer.queue_sender import InFlightBatch, QueueSender, QueueSenders
from ordermq.producer.send_times import SendTimers
from ordermq.remoting.reading import AnswerWaiter, wait_for_event

_FLUSH_TICK_MS = 5
# Also a selector's sys.exit(), which would end the I/O thread's loop.
_ALL_REFUSALS: tuple[type[BaseException], ...] = (Exception, SystemExit)


class MessagePreparation:
    """Makes the pending messages of one producer; any thread.

    A message that no request could hold raises here, before anything is sent.
    """

    def __init__(self, config: SendConfig, hooks: SendHooks, timers: SendTimers) -> None:
        self._max_message_bytes = config.max_message_bytes
        self._max_batch_bytes = config.max_batch_bytes
        self._hooks = hooks
        self._timers = timers
        self._plain = PlainMessages(PendingMessage)
        self.checks: list[SendCheck] = []

    def one(
        self,
        message: Message,
        key: ShardingKey | None,
        on_done: Callable[[PendingMessage], None],
        added: Mapping[str, str] | None = None,
    ) -> PendingMessage:
        """Return the pending message of one message.

        Args: added: properties that the protocol needs as well.
        """
        for check in self.checks:
            require_plain_result("check", check, check(message))
        body = message.body
        if len(body) > self._max_message_bytes:
            raise self._too_long(message)
        plain: PendingMessage | None = None
        if not added:
            plain = self._plain.pending(message, key, on_done)
        pending = self._in_full(message, key, on_done, added) if plain is None else plain
        calls = None
        if self._hooks.hooks:
            calls = self._hooks.begin((message,), pending.unique_ids, pending.properties, key)
            (text,) = self._hooks.with_added(calls, pending.properties)
            pending.size += len(text) - len(pending.properties[0])
            pending.properties = (text,)
        if self._timers.are_used:
            pending.begin_timing(self._timers.of(message.topic))
        if calls is not None:
            self._hooks.follow(calls, pending)
        return pending

    def _in_full(
        self,
        message: Message,
        key: ShardingKey | None,
        on_done: Callable[[PendingMessage], None],
        added: Mapping[str, str] | None,
    ) -> PendingMessage:
        body = message.body
        # Made once, in the call: every re-sent copy carries the same id, by which consumers can
        # recognise it.
        unique_id = unique_message_id()
        text = message.wire_properties(None if key is None else key_text(key), unique_id, added)
        pending = PendingMessage(
            (body if type(body) is bytes else bytes(body),),
            (text,),
            (unique_id,),
            (message.flag,),
            len(body) + len(text),
            key,
            message.is_delayed,
            on_done,
        )
        if pending.is_alone:
            pending.is_timed = message.is_timed
        return pending

    def batch(
        self,
        messages: Sequence[Message],
        key: ShardingKey | None,
        on_done: Callable[[PendingMessage], None],
    ) -> list[PendingMessage]:
        """Return those of messages that lie back to back: one, unless no request can hold it."""
        if len(messages) == 1:
            return [self.one(messages[0], key, on_done)]
        for check in self.checks:
            for message in messages:
                require_plain_result("check", check, check(message))
        bodies = [message.body for message in messages]
        if max(map(len, bodies)) > self._max_message_bytes:
            raise self._too_long(max(messages, key=lambda message: len(message.body)))
        bodies = [body if type(body) is bytes else bytes(body) for body in bodies]
        # All at once, not `one` by one: a batch of 100 takes 1.7 us per message that way.
        ids = unique_message_ids(len(messages))
        named = None if key is None else key_text(key)
        with_own = with_own_properties(messages)
        if with_own:
            texts = [
                message.wire_properties(named, unique_id)
                for message, unique_id in zip(messages, ids, strict=True)
            ]
        else:
            texts = id_only_properties(messages[0].topic, named, ids)
        flags = [message.flag for message in messages]
        hooks, calls = self._hooks, None
        if hooks.hooks:
            calls = hooks.begin(messages, ids, texts, key)
            texts = hooks.with_added(calls, texts)
        made = []
        for part, size in self._parts(bodies, texts, _delayed(messages, with_own)):
            first = messages[part.start]
            pending = PendingMessage(
                bodies[part],
                texts[part],
                ids[part],
                flags[part],
                size,
                key,
                first.is_delayed,
                on_done,
            )
            pending.is_timed = first.is_timed
            if self._timers.are_used:
                pending.begin_timing(self._timers.of(first.topic))
            made.append(pending)
            if calls is not None:
                hooks.follow(calls[part], pending)
        return made

    def _parts(
        self, bodies: Sequence[bytes], texts: Sequence[str], delayed: Sequence[int]
    ) -> Iterator[tuple[slice, int]]:
        # The messages and bytes of each part, in order; a delayed message is a part of its own.
        # Characters count as bytes in `texts`; almost all of them are ASCII.
        whole = sum(map(len, bodies)) + sum(map(len, texts))
        if whole <= self._max_batch_bytes and not delayed:
            yield slice(0, len(bodies)), whole
            return
        sizes = [len(body) + len(text) for body, text in zip(bodies, texts, strict=True)]
        borders = {at + side for at in delayed for side in (0, 1)}
        begin, size = 0, sizes[0]
        for at in range(1, len(sizes)):
            if at in borders or size + sizes[at] > self._max_batch_bytes:
                yield slice(begin, at), size
                begin, size = at, 0
            size += sizes[at]
        yield slice(begin, len(sizes)), size

    def _too_long(self, message: Message) -> ConfigError:
        return ConfigError(
            f"message body of {len(message.body)} bytes: expected at most "
            f"{self._max_message_bytes}; raise max_message_bytes, and the broker's "
            "maxMessageSize if it is lower",
            topic=message.topic,
        )


def _delayed(messages: Sequence[Message], with_own: Sequence[Message]) -> list[int]:
    # Positions of delayed messages; only messages with properties of their own can be delayed.
    if not any(message.is_delayed for message in with_own):
        return []
    return [at for at, message in enumerate(messages) if message.is_delayed]


@dataclass(slots=True, eq=False, repr=False)
class SendRequest:
    """The messages of one call, for one queue, where they lie back to back."""

    topic: str  # its route must be known before they are sent
    message: Message  # the first of them, for the selector
    key: ShardingKey | None
    queue: MessageQueue | None  # as the caller named it
    pending: Sequence[PendingMessage]
    sender: QueueSender | None = None  # of the chosen queue
    # Its thread waits next, by `wait`, and may read answers: its messages only wake threads.
    is_read_by_caller: bool = False
    begun: InFlightBatch | None = None  # the batch that its thread has begun to send, if any

    def wait(self, waiter: AnswerWaiter) -> None:
        """Return once the waiter is done, on its thread; it may read answers meanwhile."""
        begun = self.begun
        if begun is None or (callers := begun.callers) is None:
            wait_for_event(waiter)
        else:
            callers.wait(waiter)
            # They hold each other: every send would leave them to the garbage collector.
            begun.callers = None

    def fail(self, error: BaseException) -> None:
        self.sender = None
        for pending in self.pending:
            pending.finish(None, error)


class Accumulator:
    """Hands messages to their queues' senders in the order they came.

    A message whose topic's route is unknown holds up all that came after it: no later one may
    overtake it. A message that finds the producer idle is sent by its caller's thread.

    Callers and the I/O thread share no lock: a request leaves `_handed_in` only when its sender has
    it, so a caller that finds nothing there overtakes nothing.
    """

    def __init__(self, client: ClientSession, routing: QueueRouting, senders: QueueSenders) -> None:
        self._client = client
        self._routes = client.routes
        self._routing = routing
        self._senders = senders
        self._sender_of = senders.sender_of
        self._senders_in_flight = senders.in_flight
        # Without user code, all others in a caller's thread are of a signal handler.
        self._refusals = _ALL_REFUSALS if routing.runs_user_code else (OrderMQError,)
        self._handed_in: deque[SendRequest] = deque()
        self._to_begin: set[QueueSender] = set()  # senders with new messages
        self._is_woken = False  # the I/O thread will look at `_handed_in`
        self._resolving: asyncio.Task[None] | None = None  # of the first one's queue
        self._refusal: BaseException | None = None  # since `close`

    def hand_in(self, request: SendRequest, *, is_awaited: bool) -> None:
        """Accept messages, from any thread; each one's `on_done` gets the outcome.

        Args:
            is_awaited: the caller waits for these before it hands in more. It may as well send
                them itself, which spares waking the I/O thread, unless that is busy anyway:
                then messages that gather leave in one write, and those of a queue in one
                request. A `send_batch` is a request of its own in any case.

        After an exception, as of a signal handler, either nothing was handed in or it is sent.
        """
        try:
            self._hand_in(request, is_awaited=is_awaited)
        except BaseException:
            self.recover(request)
            raise

    def recover(self, request: SendRequest) -> None:
        """Let the I/O thread finish what an exception has left of a request; any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed: nothing is sent any more
            self._client.runtime.post(self._recover, request)

    def _hand_in(self, request: SendRequest, *, is_awaited: bool) -> None:
        self._routing.check_not_selecting(request.topic)
        if self._routes.is_known(request.topic):
            # Here, and not on the I/O thread: the selector may be the user's, and slow.
            self._choose(request, self._refusals)
            if request.sender is None:
                return  # it failed
            # Looked at here, too: most messages of many tasks find others before them.
            if is_awaited and not self._handed_in and self._is_sent(request):
                return
        self._handed_in.append(request)
        if self._refusal is not None:  # closed since the caller checked: nothing would be sent
            request.fail(self._refusal)
            return
        # The I/O thread is woken once for all that gathers until it runs.
        if not self._is_woken:
            self._is_woken = True
            self._client.runtime.post(self._drain)

    def _is_sent(self, request: SendRequest) -> bool:
        # What several threads write leaves in one request per queue and few writes by itself.
        is_single = len(request.pending[0]) == 1 and not request.is_read_by_caller
        joins_others = is_single and self._senders_in_flight
        if joins_others or self._handed_in or self._refusal:  # earlier messages first
            return False
        assert request.sender is not None
        request.sender.send(request)
        return True

    def _choose(
        self, request: SendRequest, refusals: tuple[type[BaseException], ...] = _ALL_REFUSALS
    ) -> None:
        if request.sender is not None:
            return
        try:
            queue = self._routing.choose(self._routes, request.message, request.key, request.queue)
            request.sender = self._sender_of(queue, request.key)
        except refusals as error:  # raised where the receipt is read
            request.fail(error)

    # On the I/O thread.

    @property
    def is_empty(self) -> bool:
        """Return True if every message has reached a sender that was told to begin."""
        return not self._handed_in and not self._to_begin

    @property
    def is_idle(self) -> bool:
        """Return True if every message that was handed in has its outcome; any thread."""
        return self.is_empty and self._senders.are_idle

    async def flush(self) -> None:
        """Return when every message that was handed in has its outcome."""
        while not self.is_idle:
            await self._client.clock.sleep_ms(_FLUSH_TICK_MS)

    def close(self, error: BaseException) -> None:
        """Fail the messages that have not reached their sender."""
        self._refusal = error
        if self._resolving is not None:
            self._resolving.cancel()
        self._turn_away(error)

    def _turn_away(self, error: BaseException) -> None:
        while self._handed_in:
            self._handed_in.popleft().fail(error)

    def _recover(self, request: SendRequest) -> None:
        self._drain()
        if request.sender is not None:
            request.sender.begin()
        if request.begun is not None and request.begun.callers is not None:
            request.begun.callers.take_again()

    def _drain(self) -> None:
        # Cleared first: what is handed in meanwhile is seen below or wakes this thread again.
        self._is_woken = False
        if self._refusal is not None:
            self._turn_away(self._refusal)
        while self._resolving is None:
            request = self._enter_chosen()
            if request is None:
                break
            if self._routes.is_known(request.topic) and not self._routing.runs_user_code:
                self._choose(request)
            else:
                name = f"queue of {request.topic}"
                self._resolving = self._client.runtime.spawn(self._resolve_first(request), name)
                self._resolving.add_done_callback(self._resolved)
                break
            self._enter_first()
        # After all of them: messages that came together leave in one request and one write.
        with self._client.connections.joined():
            while self._to_begin:
                self._to_begin.pop().begin()

    async def _resolve_first(self, request: SendRequest) -> None:
        try:
            await self._routing.learn(self._routes, request.topic)
            if self._routing.runs_user_code:  # it may be slow: every client shares this thread
                # No signal handler runs there, so whatever is raised is the selector's.
                await asyncio.to_thread(self._choose, request, (BaseException,))
            else:
                self._choose(request)
        except Exception as error:  # noqa: BLE001 - raised where the receipt is read
            request.fail(error)
        self._enter_first()

    def _resolved(self, task: asyncio.Task[None]) -> None:
        self._resolving = None
        if not task.cancelled():
            self._drain()

    def _enter_chosen(self) -> SendRequest | None:
        """Hand over the first messages, as far as queue and route are known; return the next."""
        handed_in, is_known = self._handed_in, self._routes.is_known
        while handed_in:
            request = handed_in[0]
            # A reply names its queue, of a topic whose route nobody may have asked for.
            if request.sender is None or not is_known(request.topic):
                return request
            self._enter_first()
        return None

    def _enter_first(self) -> None:
        if not self._handed_in:  # closed meanwhile
            return
        request = self._handed_in[0]
        if request.sender is not None:  # else it failed
            request.sender.put(request.pending)
            self._to_begin.add(request.sender)
        # Only now, or a caller's next message could overtake it.
        self._handed_in.popleft()
