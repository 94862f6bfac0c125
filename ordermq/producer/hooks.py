"""Hooks around a send, and checks that may refuse it before."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ordermq.callables import require_plain_result
from ordermq.clock import Clock
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.log_fields import log_fields
from ordermq.model.message import Message, extended_properties
from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt
from ordermq.producer.pending_message import PendingMessage
from ordermq.producer.queue_selector import ShardingKey
from ordermq.threads import Lock

_log = logging.getLogger("ordermq.producer")

SendCheck = Callable[[Message], object]  # an exception it raises refuses the message


@dataclass(slots=True)
class SendCall:
    """One message being sent, as hooks see it; `receipt`, `exception`, `region`, `is_trace_on` and
    `spent_ms` are set for `after` only.

    A one-way message that needed no answer has neither receipt nor exception.
    """

    group: str
    message: Message
    message_id: str
    sharding_key: ShardingKey | None
    is_half: bool  # of a transaction
    receipt: SendReceipt | None = None
    exception: BaseException | None = None
    region: str | None = None  # of the broker, if it told
    is_trace_on: bool = True  # the broker's switch
    at_ms: int = 0  # wall clock of the call
    spent_ms: int = 0  # from the call to the outcome
    notes: dict[str, Any] = field(default_factory=dict)  # from a hook's `before` to its `after`
    added_properties: dict[str, str] = field(default_factory=dict)  # by `before`; sent with it
    # That of RocketMQ 4, which group and topics leave out; "" for none. Java's hooks are told it,
    # too.
    namespace: str = ""
    correlation_id: str | None = None  # of a request or a reply


class SendHook(Protocol):
    """Called around each send, in the order hooks were added.

    `before` runs on the thread that sends, `after` on the I/O thread (on the caller's, if no
    queue could be chosen): it must be quick and must not send. The first exception of a hook is
    logged, all are counted (`Producer.hook_errors`), and the send continues.
    """

    def before(self, call: SendCall, /) -> None: ...

    def after(self, call: SendCall, /) -> None: ...


class SendHooks:
    """The hooks of one producer."""

    def __init__(self, group: str, clock: Clock, namespace: str = "") -> None:
        self._group = group
        self._namespace = namespace
        self._clock = clock
        self.hooks: list[SendHook] = []
        self.errors = 0  # exceptions that hooks raised
        self._failed: list[Callable[..., object]] = []  # steps that have raised
        self._counting = Lock()  # callers and the I/O thread count

    def begin(
        self,
        messages: Sequence[Message],
        unique_ids: Sequence[str],
        texts: Sequence[str],
        key: ShardingKey | None,
    ) -> list[SendCall]:
        """Run the `before` hooks of messages with these encoded properties."""
        calls = [
            SendCall(
                self._group,
                message,
                unique_id,
                key,
                props.TRANSACTION_PREPARED in text,
                at_ms=self._clock.wall_ms(),
                # Negative until `_after` adds the time of the outcome.
                spent_ms=-self._clock.now_ms(),
                namespace=self._namespace,
                correlation_id=_correlation_of(text),
            )
            for message, unique_id, text in zip(messages, unique_ids, texts, strict=True)
        ]
        for call in calls:
            for hook in self.hooks:
                try:
                    _run(hook.before, call)
                except (Exception, SystemExit):  # noqa: BLE001 - logged, and the send continues
                    self._count(hook.before, call, call.message.topic)
        return calls

    def with_added(self, calls: Sequence[SendCall], texts: Sequence[str]) -> list[str]:
        """Return the encoded properties with those that the hooks have added."""
        return [
            self._extended(call, text) if call.added_properties else text
            for call, text in zip(calls, texts, strict=True)
        ]

    def _extended(self, call: SendCall, text: str) -> str:
        try:
            return extended_properties(text, call.added_properties, call.message.topic)
        except ConfigError:  # the message goes without them: a hook refuses none
            self._count(self._extended, call, call.message.topic)
            return text

    def follow(self, calls: Sequence[SendCall], pending: PendingMessage) -> None:
        """Have the `after` hooks run at the outcome of `pending`, which holds these messages."""
        pending.is_watched = True  # the broker's header is kept for hooks only
        pending.on_done = partial(self._after, calls, pending.on_done)

    def _after(
        self,
        calls: Sequence[SendCall],
        on_done: Callable[[PendingMessage], object],
        pending: PendingMessage,
    ) -> None:
        try:
            for at, call in enumerate(calls):
                self._after_one(call, pending, at)
        finally:  # whatever a hook does, the caller is waiting
            on_done(pending)

    def _after_one(self, call: SendCall, pending: PendingMessage, at: int) -> None:
        where: MessageQueue | str = call.message.topic
        call.exception = pending.error
        if pending.receipts:
            call.receipt = pending.receipts[at]
            where = call.receipt.message_queue
        call.spent_ms += self._clock.now_ms()
        if pending.reply_header is not None:
            call.region = pending.reply_header.region
            call.is_trace_on = pending.reply_header.trace_on != "false"
        for hook in self.hooks:
            try:
                _run(hook.after, call)
            # Whatever it is: on the I/O thread, others of the request would wait for ever.
            except BaseException as error:
                if _may_be_of_signal_handler(error):
                    raise
                self._count(hook.after, call, where)

    def _count(
        self, step: Callable[..., object], call: SendCall, where: MessageQueue | str
    ) -> None:
        with self._counting:
            self.errors += 1
            is_first = step not in self._failed
            if is_first:
                self._failed.append(step)
        if is_first:  # one line per hook: it may raise at each message
            _log.exception(
                "%s: message %s: a send hook raised; further errors of this hook are counted in "
                "hook_errors",
                where,
                call.message_id,
                extra=log_fields(
                    where if isinstance(where, MessageQueue) else None,
                    topic=call.message.topic,
                    group=self._group,
                ),
            )


def _correlation_of(text: str) -> str | None:
    # A search of the text first: nearly no message is a request, and hooks run for each.
    if props.CORRELATION_ID not in text:
        return None
    return props.decode(text).get(props.CORRELATION_ID)


def _may_be_of_signal_handler(error: BaseException) -> bool:
    is_usual = isinstance(error, (Exception, SystemExit, asyncio.CancelledError))
    return not is_usual and threading.current_thread() is threading.main_thread()


def _run(step: Callable[[SendCall], None], call: SendCall) -> None:
    returned: object = step(call)  # type: ignore[func-returns-value]
    if returned is not None:
        require_plain_result("hook", step, returned)
