"""The producer: messages of one sharding key are stored in the order they were sent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from ordermq import core
from ordermq.callables import require_functions, require_methods, require_plain
from ordermq.client.name_server_api import are_proxies, parse_name_servers
from ordermq.client.runtime import NotDoneInTime, Shutdown
from ordermq.client.session import ClientSession, SessionEvents, new_client_id
from ordermq.clock import Clock, SystemClock
from ordermq.closing import Starting, not_running, note_closed, note_open
from ordermq.config import ProducerConfig
from ordermq.config.checks import refuse_places, refuse_unknown
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.core import compression
from ordermq.errors import ConfigError, RequestTimeout, StateError
from ordermq.model.log_fields import MemberFields
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, unwrapped
from ordermq.model.receipts import SendReceipt
from ordermq.producer.accumulator import Accumulator, MessagePreparation, SendRequest
from ordermq.producer.hooks import SendCheck, SendHook, SendHooks
from ordermq.producer.pending_message import (
    AsyncBatchWaiter,
    BatchWaiter,
    FutureWaiter,
    PendingMessage,
    SendStream,
    SendWindow,
    ThreadWaiter,
    batch_cancelled,
    log_unawaited,
    say_sent,
)
from ordermq.producer.queue_selector import LatencyFaults, QueueRouting, QueueSelector, ShardingKey
from ordermq.producer.queue_sender import FailedKeys, QueueSenders
from ordermq.producer.request_reply import (
    BrokerRegistration,
    ReplyProtocol,
    Request,
    Requests,
    reply_message,
)
from ordermq.producer.send_arguments import refuse_send, require_batch
from ordermq.producer.send_times import SendTimers, SendTimes
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.reading import AnswerWaiter, can_share_reads
from ordermq.wall_time import span_ms

if TYPE_CHECKING:
    from ordermq.config.settings import ProducerSettings
    from ordermq.health import ClientHealth
    from ordermq.model.codec import Codec
    from ordermq.model.message import MessageFields
    from ordermq.producer.trace_sends import TraceSends
    from ordermq.wall_time import Span

_log = logging.getLogger("ordermq.producer")
_LEAVE_S = 0.5
_FALLBACKS = 2  # other brokers tried for an unordered message; Java's retryTimesWhenSendFailed


class Producer(ExplainsMethods, Starting):
    """Sends messages; those of one sharding key in order.

    Args:
        group: the producer group, for the broker's statistics and transactions.
        name_servers: `host:port`, several joined by `;` or in a list; default those of `config`,
            or of the environment variable ORDERMQ_NAME_SERVERS.
        selector: how a sharding key chooses its queue: "java" (the classic Java client's way),
            "go", "grpc" (RocketMQ 5's proxy), "sip", "sha256", or a function (queues, message,
            key) -> queue, called on the thread that sends. All producers of an ordered topic must
            agree.
        instance_name: a part of the client id, for admin tools; the id is unique with and
            without it.
        config: all settings at once; else give them flat, as `send_timeout_ms=500`.
        codec: makes the bodies of `message`, as `JsonCodec()` (docs/codecs.md).
        clock: for tests.
    Raises: ConfigError: a name or setting no broker would accept.

    Any thread may send. Messages without a key go to the queues in turn. Every way to send takes
    the same path: the accumulator keeps the order of the calls, and each queue's sender has one
    request in flight.
    """

    _kind = "producer"

    def __init__(
        self,
        group: str | None = None,
        *misplaced: Never,
        name_servers: str | Sequence[str] | None = None,
        selector: str | QueueSelector = "java",
        instance_name: str | None = None,
        config: ProducerConfig | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        if misplaced:
            refuse_places(type(self), group, misplaced)
        self.config = ProducerConfig.given(config, settings, type(self), Message)
        self.group = check_group(self.config.group_or(group))
        self.name_servers = parse_name_servers(self.config.name_servers_or(name_servers))
        self.client_id = new_client_id(self.config.remoting, self.name_servers, instance_name)
        self._fields = MemberFields(self.group, self.client_id)
        compression.require(self.config.send.compress_type)
        self._codec: Codec | None = None
        if codec is not None:
            from ordermq.model.codec import require_codec

            self._codec = require_codec(codec, self.group)
        self._clock = clock if clock is not None else SystemClock()
        self._is_behind_proxy = are_proxies(self.name_servers)
        if self._is_behind_proxy:
            selector = _selector_of_proxy(selector, self.config, self.group)
        self._routing = QueueRouting(
            selector,
            self.config.send,
            LatencyFaults(self._clock) if self.config.send.send_latency_fault else None,
            is_behind_proxy=self._is_behind_proxy,
        )
        self._client: ClientSession | None = None  # from `start` on, as what else is optional
        self._closed = False
        self._senders: QueueSenders | None = None
        self._failed_keys = FailedKeys()
        self._accumulator: Accumulator | None = None
        self._arrivals: core.contract.Arrivals | None = None  # of the loop that awaited last
        self._hooks = SendHooks(self.group, self._clock, self.config.remoting.namespace)
        self._timers = SendTimers()
        self._preparation = MessagePreparation(self.config.send, self._hooks, self._timers)
        self._registration: BrokerRegistration | None = None
        self._requests: Requests | None = None
        self._shutdown: Shutdown | None = None
        self._traces: TraceSends | None = None
        self._oneway_failures = 0
        # Traces have the broker's region, which is read on the I/O thread.
        self._are_reads_shared = can_share_reads() and not self.config.trace.enable_msg_trace

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self.client_id}>"

    def start(self) -> Self:
        """Start the client and return self; the first send connects to a server."""
        if self._client is not None or self._closed:
            raise StateError(
                "start() may be called only once: create a new producer", group=self.group
            )
        client = self._client = ClientSession(
            self.name_servers,
            self.config.remoting,
            self.client_id,
            clock=self._clock,
            producer_groups=(self.group,),
            events=SessionEvents(on_request=self._on_request),
            are_reads_shared=self._are_reads_shared,
        )
        try:
            self._begin(client)
        except BaseException:  # also as of Ctrl-C: the start of a `with` block is not closed
            self.close(0.0)
            raise
        return self

    def _begin(self, client: ClientSession) -> None:
        client.start()
        if self.config.trace.enable_msg_trace:
            self._traces = self._make_traces()
        self._senders = QueueSenders(
            client,
            self.group,
            self.config.send,
            self._routing,
            self._failed_keys,
            self._traces,
            is_closed=lambda: self._closed,
        )
        self._accumulator = Accumulator(client, self._routing, self._senders)
        self._registration = BrokerRegistration(client)
        self._requests = Requests(
            client, self._routing, self._registration, self.config.remoting.namespace
        )
        self._shutdown = Shutdown(client.runtime, self._send_rest, is_hurried_by_second=False)
        if self._traces is not None:
            self._traces.dispatcher.start()
            self._timers.are_used = True
        note_open(self, Producer._loss)

    def _make_traces(self) -> TraceSends:
        from ordermq.client.trace import TraceDispatcher  # here: few producers are traced
        from ordermq.producer.trace_sends import TraceSends

        dispatcher = TraceDispatcher(
            self.group, self.name_servers, self.config.remoting, self.config.trace, self._clock
        )
        return TraceSends(dispatcher, self.group, self._clock)

    def add_hook(self, hook: SendHook) -> None:
        """Call `hook` around each send; only before `start`.

        Raises: ConfigError: its `before` or `after` is asynchronous; nothing could await it.
        """
        self._require_not_started("add_hook")
        require_plain("hook", *require_methods("hook", hook, "before", "after"))
        self._hooks.hooks.append(hook)

    def time_sends(self, times: SendTimes) -> None:
        """Have sends counted in the histograms of `times`; before `start`. Metrics read them.

        Raises: StateError: it was started.
        """
        self._require_not_started("time_sends")
        self._timers.count_into(times)

    def add_check(self, check: SendCheck) -> None:
        """Call `check(message)` before each send; an exception it raises refuses the message.

        The send raises it, and nothing is sent. Only before `start`.

        Raises: ConfigError: the check is asynchronous.
        """
        self._require_not_started("add_check")
        require_functions("check", check)
        self._preparation.checks.append(check)

    def _require_not_started(self, call: str) -> None:
        if self._client is not None or self._closed:
            raise StateError(f"call {call}() before start()", group=self.group)

    @property
    def traces_dropped(self) -> int:
        """The number of trace records lost: too many waited, or no broker accepted them."""
        return 0 if self._traces is None else self._traces.dispatcher.dropped

    @property
    def hook_errors(self) -> int:
        """The number of exceptions that hooks raised; each is logged with its message."""
        return self._hooks.errors

    @property
    def oneway_failures(self) -> int:
        """The number of one-way messages that failed after their call returned; all are logged."""
        return self._oneway_failures

    def close(self, timeout_s: float = 30.0) -> None:
        """Send what waits, for at most `timeout_s`, then disconnect.

        After an exception in it, such as KeyboardInterrupt, what waits fails and it disconnects
        all the same; a later call finishes what is left.

        Raises: StateError: called on the I/O thread, where callbacks and hooks run; nothing is
            closed then.
        """
        if self._client is None:
            return
        self._client.runtime.require_other_thread()
        self._closed = True  # first: what is handed in from now on is refused
        note_closed(self)
        try:
            if self._shutdown is not None and not self._shutdown.wait(timeout_s):
                _log.error(
                    "group %s: closed after %.0f s with messages not acknowledged",
                    self.group, timeout_s,
                    extra=self._fields(),
                )  # fmt: skip
        except BaseException:
            if self._shutdown is not None:
                self._shutdown.wait_hurried()  # first: it needs the connections
            self._client.close()
            raise
        self._client.close()

    def _loss(self) -> str:
        assert self._accumulator is not None
        if self._accumulator.is_idle:
            return ""
        return f"producer {self.group} had messages that no broker had confirmed; they may be lost"

    def hurry_close(self) -> None:
        """End the wait of a `close` that was called: what waits fails; any thread."""
        if self._shutdown is not None:
            self._closed = True
            self._shutdown.hurry()

    # Sending.

    def message(self, topic: str, value: Any, **fields: Unpack[MessageFields]) -> Message:
        """Return a message whose body is the codec's of `value`, to be sent in any way.

        Args:
            fields: the others of `Message`, as `tags="paid"`.
        Raises: StateError: the producer has no `codec`. ConfigError: as `Message`. What the codec
            raises.
        """
        if self._codec is None:
            raise StateError(
                "producer.message() needs a codec: give codec=JsonCodec(), or one of yours, to "
                "the producer",
                topic=topic,
                group=self.group,
            )
        return Message(topic, self._codec.encode(value), **fields)

    def send(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> SendReceipt:
        """Send and wait until the broker has stored the message.

        Args:
            sharding_key: messages of one key stay in order; the selector chooses their queue.
            queue: send to this queue, whatever the selector says. A key beside it goes with the
                message, and fails as others do; its order holds among messages of one queue.
        Raises:
            RequestTimeout, ConnectionLost: the outcome is unknown after all retries; the key
                fails until `resolve`.
            KeyFailed: an earlier send of this key ended so.
            BrokerError: the broker refused it; it is not stored.
            ConnectFailed: its broker is away, after all retries; it is not stored.
            RouteError: no broker has the topic.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.send, message, misplaced, unknown)
        self._live_for_blocking()
        waiter = ThreadWaiter()
        pending = self._preparation.one(message, sharding_key, waiter.on_done)
        self._hand_in_and_wait(message, sharding_key, queue, [pending], waiter)
        return pending.receipt()

    async def asend(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> SendReceipt:
        """`send` for asyncio code, on any loop; keep the order by awaiting in order.

        The message of a caller that is cancelled is sent all the same; a failure is logged then.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.asend, message, misplaced, unknown)
        receipt: SendReceipt = await self._handed_over(message, sharding_key, queue)
        return receipt

    def _handed_over(
        self, message: Message, key: ShardingKey | None, queue: MessageQueue | None
    ) -> core.contract.AwaitedReceipt:
        """Hand a message over; return its receipt, for the calling coroutine to await."""
        arrivals = self._arrivals_of_loop()
        pending = self._preparation.one(message, key, arrivals)
        receipt = arrivals.receipt_of(pending)
        self._hand_in(message, key, queue, [pending])
        return receipt

    def asend_nowait(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> asyncio.Future[SendReceipt]:
        """`send_nowait` for asyncio code: a future of the running loop.

        Cancelling it recalls no message.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.asend_nowait, message, misplaced, unknown)
        arrivals = self._arrivals_of_loop()
        pending = self._preparation.one(message, sharding_key, arrivals)
        receipt: asyncio.Future[SendReceipt] = arrivals.future_of(pending)
        self._hand_in(message, sharding_key, queue, [pending], is_awaited=False)
        return receipt

    def send_batch(
        self,
        messages: Sequence[Message],
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> Sequence[SendReceipt]:
        """Send messages of one topic to one queue, back to back, and all of them or none.

        Only messages that one request cannot hold go in several, one after the other: more than
        `max_batch_bytes`, and delayed ones.

        Returns: one receipt per message, created when it is read.
        Raises: ConfigError: no messages, or of several topics; else as `send`.
        """
        require_batch(Producer.send_batch, messages, misplaced, unknown)
        return self._send_and_wait(messages, sharding_key, queue)

    async def asend_batch(
        self,
        messages: Sequence[Message],
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> Sequence[SendReceipt]:
        """`send_batch` for asyncio code, on any loop; cancelled as `asend`."""
        require_batch(Producer.asend_batch, messages, misplaced, unknown)
        waiter = AsyncBatchWaiter(len(messages))
        made = self._preparation.batch(messages, sharding_key, waiter.on_done)
        self._hand_in(messages[0], sharding_key, queue, made)
        try:
            await waiter.done
        except asyncio.CancelledError as error:
            batch_cancelled(error, waiter.done, made)
            raise
        return _receipts(made)

    def send_many(
        self, events: Iterable[tuple[Message, ShardingKey | None]], *, max_in_flight: int = 256
    ) -> list[SendReceipt]:
        """Send (message, sharding key) pairs, in order within a key, pipelined across keys.

        Returns when all of them are stored; `send_stream` hands the receipts out as they come.

        Args:
            events: read no further ahead than `max_in_flight`.
            max_in_flight: messages sent ahead of the oldest one without receipt, 2..1000000.
        Returns: one receipt per message, in the order of `events`.
        Raises: as `send`, for the first message that failed; later ones may be stored, but
            none of the failed one's key after an unknown outcome.
        """
        return list(self._send_all(events, max_in_flight))

    def send_stream(
        self, events: Iterable[tuple[Message, ShardingKey | None]], *, max_in_flight: int = 256
    ) -> SendStream:
        """`send_many` for long or endless streams: receipts are read as the messages are sent.

        Returns: an iterator. Reading it sends: what is not read on stays in `events`, except the
            `max_in_flight` messages that are sent ahead. One that is dropped before its first
            receipt was read has sent nothing, and warns.
        Raises: reading raises as `send_many`; the receipts before it were read already.
        """
        return SendStream(self._send_all(events, max_in_flight))

    def _send_all(
        self, events: Iterable[tuple[Message, ShardingKey | None]], max_in_flight: int
    ) -> Iterator[SendReceipt]:
        # The checks here and not in the generator: the caller's line is where they should raise.
        if not 2 <= max_in_flight <= 1_000_000:
            raise ConfigError(f"max_in_flight={max_in_flight}: expected 2..1000000")
        self._live_for_blocking()
        return self._pipelined(events, max_in_flight)

    def _pipelined(
        self, events: Iterable[tuple[Message, ShardingKey | None]], max_in_flight: int
    ) -> Iterator[SendReceipt]:
        window = SendWindow()
        in_flight: deque[PendingMessage] = deque()
        refused: Exception | None = None
        source = iter(events)
        while True:
            try:
                event = next(source)
                try:
                    message, key = event
                except (TypeError, ValueError):
                    raise no_pair(event) from None
                if not isinstance(message, Message):
                    raise no_pair(event)
                pending = self._preparation.one(message, key, window.on_done)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - raised below
                # The source's error, too: what was sent before it has receipts, which come first.
                refused = error
                break
            in_flight.append(pending)
            self._hand_in(message, key, None, [pending], is_awaited=False)
            while in_flight:
                if in_flight[0].is_done:
                    yield in_flight.popleft().receipt()
                elif len(in_flight) >= max_in_flight:
                    yield window.receipt(in_flight.popleft())
                else:
                    break
        while in_flight:
            yield window.receipt(in_flight.popleft())
        if refused is not None:
            raise refused

    def send_nowait(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> Future[SendReceipt]:
        """Send without waiting, and return a future of the receipt.

        Messages of one key are stored in the order of the calls; `flush` waits for all of them.
        Nothing bounds how many wait in memory.

        Returns: a future that cannot be cancelled. Its `result()` returns or raises as `send`.
            Its callbacks run on the I/O thread: they must be quick, and `send` raises there.
        Raises: ConfigError, StateError: as `send`, if that is known at once.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.send_nowait, message, misplaced, unknown)
        waiter = FutureWaiter(self._live().runtime)
        pending = self._preparation.one(message, sharding_key, waiter.on_done)
        self._hand_in(message, sharding_key, queue, [pending], is_awaited=False)
        return waiter.receipt

    def flush(self, timeout_s: float = 30.0, **unknown: Never) -> None:
        """Wait until no message waits for its receipt: all are stored, or have failed.

        A failure is raised where its own receipt is read, not here.

        Raises: RequestTimeout: some still wait after `timeout_s`; they are sent all the same.
        """
        if unknown:
            refuse_unknown(Producer.flush, unknown)
        client = self._live_for_blocking()
        assert self._accumulator is not None
        try:
            client.runtime.call(self._accumulator.flush(), timeout_s)
        except NotDoneInTime:
            raise self._not_flushed(timeout_s) from None

    async def aflush(self, timeout_s: float = 30.0, **unknown: Never) -> None:
        """`flush` for asyncio code, on any loop."""
        if unknown:
            refuse_unknown(Producer.aflush, unknown)
        client = self._live()
        assert self._accumulator is not None
        try:
            await asyncio.wait_for(client.acall(self._accumulator.flush()), timeout_s)
        except TimeoutError:
            raise self._not_flushed(timeout_s) from None

    def _not_flushed(self, timeout_s: float) -> RequestTimeout:
        return RequestTimeout(
            f"messages still wait for their receipts after {timeout_s:g} s; they are sent all the "
            "same",
            group=self.group,
        )

    def send_oneway(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> None:
        """Send without waiting for the outcome; the message may be lost.

        It keeps its place behind all earlier sends. Without key and queue the broker is not
        asked for an answer: the message counts as sent once it is written to the socket. With
        either, its queue sends nothing more until the broker has answered, as for `send`:
        RocketMQ may work on requests of one connection in parallel, so a later message could
        be stored before it.

        Raises: KeyFailed, ConfigError, StateError: as `send`, if that is known at once. A later
            failure is logged and counted (`oneway_failures`).
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.send_oneway, message, misplaced, unknown)
        self._live()
        if (failed := self._failed_keys.error_of(message.topic, sharding_key)) is not None:
            raise failed
        on_done = partial(self._oneway_done, threading.get_ident())
        pending = self._preparation.one(message, sharding_key, on_done)
        pending.is_oneway = sharding_key is None and queue is None
        self._hand_in(message, sharding_key, queue, [pending], is_awaited=False)
        if pending.error is not None:
            raise pending.error

    def _oneway_done(self, caller: int, pending: PendingMessage) -> None:
        if pending.error is None:
            return
        assert self._client is not None
        # What the caller's own thread finds, it raises; no caller is left for a later failure.
        if threading.get_ident() != caller or self._client.runtime.is_io_thread:
            _log.warning("one-way message %s failed: %s", pending.unique_ids[0], pending.error)
            self._oneway_failures += 1

    def _send_and_wait(
        self, messages: Sequence[Message], key: ShardingKey | None, queue: MessageQueue | None
    ) -> Sequence[SendReceipt]:
        self._live_for_blocking()
        waiter = BatchWaiter(len(messages))
        made = self._preparation.batch(messages, key, waiter.on_done)
        self._hand_in_and_wait(messages[0], key, queue, made, waiter)
        return _receipts(made)

    def _hand_in_and_wait(
        self,
        message: Message,
        key: ShardingKey | None,
        queue: MessageQueue | None,
        made: Sequence[PendingMessage],
        waiter: AnswerWaiter,
    ) -> None:
        wakes_only = not self._hooks.hooks
        for pending in made:
            pending.wakes_only = wakes_only
        is_read = wakes_only and self._are_reads_shared
        request = self._hand_in(message, key, queue, made, is_read_by_caller=is_read)
        assert self._accumulator is not None
        try:
            request.wait(waiter)
        except BaseException as error:
            self._accumulator.recover(request)
            self._raise_if_closed(error)
            raise

    def _arrivals_of_loop(self) -> core.contract.Arrivals:
        # Kept for the last loop: nearly all programs have one.
        loop, found = asyncio.get_running_loop(), self._arrivals
        if found is None or found.loop is not loop:
            found = self._arrivals = core.Arrivals(loop, log_unawaited, say_sent)
        return found

    def _raise_if_closed(self, error: BaseException) -> None:
        # A signal handler on top of this call has closed the producer: asyncio says only that its
        # event loop is closed.
        if isinstance(error, RuntimeError) and self._client is not None and self._client.is_closed:
            raise self._not_running() from error

    def _hand_in(
        self,
        message: Message,
        key: ShardingKey | None,
        queue: MessageQueue | None,
        pending: Sequence[PendingMessage],
        *,
        is_awaited: bool = True,
        is_read_by_caller: bool = False,
        fallbacks: int = _FALLBACKS,
    ) -> SendRequest:
        self._live()
        if self._is_behind_proxy:
            _fit_to_proxy(message, key, queue, pending)
        # Any queue will do for an unordered message, so another broker's may store it, too. Not
        # for a batch of several requests: its messages lie in one queue.
        is_unordered = key is None and queue is None and len(pending) == 1
        if is_unordered and self.config.send.retry_another_broker:
            pending[0].fallbacks_left = fallbacks
        assert self._accumulator is not None
        request = SendRequest(message.topic, message, key, queue, pending)
        request.is_read_by_caller = is_read_by_caller
        try:
            self._accumulator.hand_in(request, is_awaited=is_awaited)
        except RuntimeError as error:
            self._raise_if_closed(error)
            raise
        return request

    # Requests and replies.

    def request(
        self,
        message: Message,
        timeout_ms: Span = 3_000,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> MessageView:
        """Send, and wait for the reply of a consumer of the topic.

        Args:
            timeout_ms: for both together, at least 1 ms, or as "3s", or a timedelta; consumers
                see it as the TTL.
            sharding_key, queue: as of `send`.
        Returns: the reply; the first one if several consumers reply.
        Raises:
            ReplyTimeout: none came in time; the request may yet be carried out.
            ConfigError: a property of the message is reserved for requests and replies.
            StateError: the producer was closed meanwhile. Else as `send`.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.request, message, misplaced, unknown)
        client = self._live_for_blocking()
        requests, request = self._begin_request(message, timeout_ms, sharding_key, queue)
        return self._decoding(client.runtime.call(requests.reply_to(request)))

    async def arequest(
        self,
        message: Message,
        timeout_ms: Span = 3_000,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> MessageView:
        """`request` for asyncio code, on any loop; keep the order by awaiting in order."""
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(Producer.arequest, message, misplaced, unknown)
        client = self._live()
        requests, request = self._begin_request(message, timeout_ms, sharding_key, queue)
        try:
            return self._decoding(await client.acall(requests.reply_to(request)))
        except asyncio.CancelledError as error:
            # `reply_to` may not have begun yet, and then cannot clean up itself.
            client.runtime.post(requests.give_up, request, error)
            raise

    def _decoding(self, message: MessageView) -> MessageView:
        if self._codec is not None:
            message.index.codec = self._codec
        return message

    def _begin_request(
        self,
        message: Message,
        timeout_ms: Span,
        key: ShardingKey | None,
        queue: MessageQueue | None,
    ) -> tuple[Requests, Request]:
        requests = self._requests
        assert requests is not None
        wait_ms = span_ms("timeout_ms", timeout_ms)
        request = Request(requests, message, wait_ms, self.client_id)
        pending = self._preparation.one(message, key, request.on_done, request.properties)
        pending.is_alone = True  # brokers add what a reply needs to no message of a batch
        pending.requirement = request
        request.pending = pending
        requests.add(request)
        try:
            self._hand_in(message, key, queue, [pending])
        except BaseException as error:  # closed meanwhile, or called by a selector
            requests.give_up(request, error)
            raise
        return requests, request

    def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Reply to a request, from a listener or elsewhere; return when the requester has it.

        Args:
            request: the message that was consumed.
            body, tags, keys, properties: of the reply, as of `Message`.
        Raises:
            ConfigError: the message is no request, or the reply no valid message.
            BrokerError: the requester waits no more, or is not connected to the broker.
            RequestTimeout, ConnectionLost, ConnectFailed: a broker did not answer; whether
                the reply arrived is unknown.
        """
        self._live_for_blocking()
        waiter = ThreadWaiter()
        message, added = reply_message(request, body, tags, keys, properties)
        pending = self._preparation.one(message, None, waiter.on_done, added)
        self._hand_in_reply(request, message, pending)
        waiter.wait()
        return pending.receipt()

    async def areply(
        self,
        request: MessageView,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """`reply` for asyncio code, on any loop."""
        arrivals = self._arrivals_of_loop()
        message, added = reply_message(request, body, tags, keys, properties)
        pending = self._preparation.one(message, None, arrivals, added)
        receipt = arrivals.receipt_of(pending)
        self._hand_in_reply(request, message, pending)
        found: SendReceipt = await receipt
        return found

    def _hand_in_reply(
        self, request: MessageView, message: Message, pending: PendingMessage
    ) -> None:
        client = self._live()
        assert self._accumulator is not None
        assert self._senders is not None
        protocol = ReplyProtocol(
            client, self.group, request, message.topic, self.config.send, self._traces
        )
        # A sender of its own: a reply belongs to no queue, and one requester that does not
        # answer must not hold up the replies to others.
        sender = self._senders.make_sender(protocol)
        # The route of the request's topic: it names the brokers that know the requester.
        reply = SendRequest(request.topic, message, None, None, [pending], sender)
        self._accumulator.hand_in(reply, is_awaited=True)

    # Other requests to brokers.

    def recall(self, topic: str, recall_handle: str) -> str:
        """Delete a timed message that is not due yet.

        RocketMQ's brokers do it since 5.3.2, with `recallMessageEnable=true`. They confirm as
        soon as the recall is stored, also for a message recalled before; the embedded broker
        confirms when the message is gone.

        Args: recall_handle: from the receipt of its send.
        Returns: the message's id.
        Raises:
            ConfigError: an invalid handle, or one of another topic.
            BrokerError: too late, no such message, or the broker does not support it.
            RouteError: no broker has the topic.
        """
        # Imported here: most recall nothing.
        from ordermq.model.recall_handle import RecallHandle
        from ordermq.remoting.rare_headers import RecallHeader

        client = self._live()
        handle = RecallHandle.of_text(recall_handle)
        named = unwrapped(self.config.remoting.namespace, handle.topic)
        if named != topic:
            raise ConfigError(f"the recall handle belongs to topic {named!r}", topic=topic)

        async def work() -> str:
            await client.routes.get(topic)
            address = client.routes.master_of(handle.broker_name)
            header = RecallHeader(topic, recall_handle, self.group, handle.broker_name)
            return await client.api.recall(address, header, self.config.send.send_timeout_ms)

        return client.runtime.call(work())

    def resolve(self, topic: str, sharding_key: ShardingKey) -> bool:
        """Let a failed key go on, after you checked whether its message arrived.

        Returns: False if the key had not failed.
        """
        self._live()
        return self._failed_keys.resolve(topic, sharding_key)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues the selector chooses from, sorted.

        Raises: RouteError: no broker has the topic.
        """
        client = self._live()

        async def work() -> list[MessageQueue]:
            await self._routing.learn(client.routes, topic)
            return list(self._routing.queues(client.routes, topic))

        return client.runtime.call(work())

    def health(self) -> ClientHealth:
        """Return what this producer can do at this moment, for a probe; any thread, never raises.

        It answers within two seconds even if the I/O thread is blocked.
        """
        from ordermq.health import ClientHealth  # here: few ask, and its classes are slow to make

        client = self._client
        if client is None or self._closed:
            reason = "the producer is not running: it was closed, or not started"
            return ClientHealth(is_alive=False, is_ready=False, reasons=(reason,))
        return client.ask_health(client.health, ClientHealth)

    # On the I/O thread.

    def _on_request(self, address: str, request: Command) -> Command | None:
        if request.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT or self._requests is None:
            return None
        return self._requests.take_reply(address, request)

    async def _send_rest(self, timeout_s: float) -> bool:
        """Flush and disconnect; False if messages were left."""
        client = self._client
        assert client is not None
        assert self._shutdown is not None
        assert self._requests is not None
        assert self._accumulator is not None
        assert self._senders is not None
        try:
            is_flushed = await self._shutdown.unless_hurried(self._accumulator.flush(), timeout_s)
            self._requests.close(
                StateError(
                    "the producer was closed while it waited for a reply; the request may yet be "
                    "carried out",
                    group=self.group,
                )
            )
            self._accumulator.close(self._not_running())
            await self._senders.stop()
            # The broker forgets this producer with its connection in any case. It may not answer,
            # or a handler that closes may have suspended a caller in the middle of a write.
            leave = client.leave(producer_group=self.group)
            await self._shutdown.unless_hurried(leave, _LEAVE_S)
        finally:
            await client.disconnect()
            if self._traces is not None:
                await self._shutdown.unless_hurried(self._traces.dispatcher.flush())
                await self._traces.dispatcher.end()
        return is_flushed

    def _live(self) -> ClientSession:
        if self._client is None or self._closed:
            raise self._not_running()
        return self._client

    def _live_for_blocking(self) -> ClientSession:
        client = self._live()
        if client.runtime.is_io_thread:
            raise StateError(
                "a blocking call on the I/O thread, where callbacks run, would wait for ever: use "
                "send_nowait there",
                group=self.group,
            )
        return client

    def _not_running(self) -> StateError:
        return not_running("producer", self.group, was_closed=self._closed)


def _selector_of_proxy(
    selector: str | QueueSelector, config: ProducerConfig, group: str
) -> str | QueueSelector:
    """Return the selector that chooses as a proxy does, which decides itself."""
    if selector not in ("java", "grpc"):
        raise ConfigError(
            f"selector={selector!r}: RocketMQ's proxy chooses the queue of a key itself; leave the "
            "selector out, or give the addresses of name servers",
            group=group,
        )
    if config.remoting.namespace:
        raise ConfigError(
            "grpc:// is not for namespace: give namespace_v2, that of RocketMQ 5", group=group
        )
    return "grpc"


def _fit_to_proxy(
    message: Message,
    key: ShardingKey | None,
    queue: MessageQueue | None,
    pending: Sequence[PendingMessage],
) -> None:
    """Let a request have one message only if it has a key.

    Raises: ConfigError: a proxy would put the message into another queue.
    """
    if queue is not None:
        raise ConfigError(
            f"queue={queue}: RocketMQ's proxy chooses the queue itself; give a sharding_key",
            topic=message.topic,
        )
    if key is None:
        return
    for each in pending:
        if len(each) > 1:
            raise ConfigError(
                "send_batch with a sharding key: RocketMQ's proxy puts a batch into any queue; "
                "send its messages one by one, as by send_many",
                topic=message.topic,
            )
        each.is_alone = True


def no_pair(event: object) -> ConfigError:
    """Return the error of `send_many` for what is no pair, such as a message alone."""
    kind = type(event).__name__
    if isinstance(event, tuple):
        kind = f"({', '.join(type(each).__name__ for each in event)})"
    return ConfigError(
        f"send_many got a {kind}: expected pairs (message, sharding key), with "
        "None as the key of a message that has none"
    )


def _receipts(made: Sequence[PendingMessage]) -> Sequence[SendReceipt]:
    if len(made) == 1:
        return made[0].all_receipts()
    return [receipt for pending in made for receipt in pending.all_receipts()]
