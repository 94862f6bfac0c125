"""What runs around a send: checks that may refuse it, hooks before it and after its outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.model import properties as props
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import SendReceipt, SendStatus
from ordermq.producer.pending_message import Entry
from ordermq.producer.selectors import ShardingKey
from ordermq.remoting.trace import DEFAULT_REGION, DELAYED, HALF, NORMAL, Published

_log = logging.getLogger("ordermq.producer")

SendCheck = Callable[[Message], object]  # what it raises refuses the message


@dataclass(slots=True)
class SendCall:
    """One message on its way, as hooks see it; what follows `is_half` is set for `after` only."""

    group: str
    message: Message
    message_id: str
    sharding_key: ShardingKey | None
    is_half: bool  # of a transaction
    receipt: SendReceipt | None = None
    exception: BaseException | None = None
    region: str | None = None  # of the broker, if it said
    is_trace_on: bool = True  # the broker's switch
    at_ms: int = 0  # when it was handed in, wall clock
    spent_ms: int = 0  # from then to its outcome
    notes: dict[str, Any] = field(default_factory=dict)  # from a hook's `before` to its `after`


class SendHook(Protocol):
    """Called around each send, in the order hooks were added.

    `before` runs on the thread that sends, `after` on the I/O thread, for one-way sends never:
    it must be quick, and must not send. What a hook raises is logged and counted
    (`Producer.hook_errors`); the send goes on.
    """

    def before(self, call: SendCall) -> None: ...

    def after(self, call: SendCall) -> None: ...


class SendHooks:
    """The hooks of one producer."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self.hooks: list[SendHook] = []
        self.errors = 0  # what hooks raised
        self._counting = threading.Lock()  # callers, and the I/O thread

    def around(self, messages: Sequence[Message], entry: Entry) -> None:
        """Run the hooks before `entry` is handed in, and see to those after its outcome.

        Args: messages: those the entry holds.
        """
        if not self.hooks:
            return
        calls = [
            SendCall(
                self._group,
                message,
                unique_id,
                entry.key,
                props.TRANSACTION_PREPARED in text,
                at_ms=self._clock.wall_ms(),
                spent_ms=-self._clock.now_ms(),
            )
            for message, unique_id, text in zip(
                messages, entry.unique_ids, entry.properties, strict=True
            )
        ]
        for call in calls:
            for hook in self.hooks:
                self._run(hook.before, call, call.message.topic)
        entry.is_watched = True
        entry.on_done = partial(self._after, calls, entry.on_done)

    def _after(
        self, calls: Sequence[SendCall], on_done: Callable[[Entry], None], entry: Entry
    ) -> None:
        for at, call in enumerate(calls):
            where: MessageQueue | str = call.message.topic
            call.exception = entry.error
            if entry.receipts is not None:
                call.receipt = entry.receipts[at]
                where = call.receipt.message_queue
            call.spent_ms += self._clock.now_ms()
            if entry.reply is not None:
                call.region = entry.reply.region
                call.is_trace_on = entry.reply.trace_on != "false"
            for hook in self.hooks:
                self._run(hook.after, call, where)
        on_done(entry)

    def _run(
        self, step: Callable[[SendCall], None], call: SendCall, where: MessageQueue | str
    ) -> None:
        try:
            step(call)
        except Exception:  # noqa: BLE001 - the user's; logged, and the send goes on
            with self._counting:
                self.errors += 1
            _log.exception("%s: message %s: a send hook raised", where, call.message_id)


class TraceSends:
    """The hook that tells of each message a broker has.

    Args: address_of: a broker's, by its name.
    """

    def __init__(self, dispatcher: TraceDispatcher, address_of: Callable[[str], str]) -> None:
        self._dispatcher = dispatcher
        self._address_of = address_of

    def before(self, call: SendCall) -> None: ...

    def after(self, call: SendCall) -> None:
        message, receipt = call.message, call.receipt
        if receipt is None or not call.is_trace_on:
            return
        if message.topic == self._dispatcher.config.customized_trace_topic:
            return
        record = Published(
            call.at_ms,
            call.region or DEFAULT_REGION,
            call.group,
            message.topic,
            receipt.message_id,
            message.tags,
            " ".join(message.keys) or None,
            self._address_of(receipt.message_queue.broker_name),
            len(message.body),
            call.spent_ms,
            HALF if call.is_half else DELAYED if message.is_delayed else NORMAL,
            receipt.offset_message_id,
            receipt.status is SendStatus.SEND_OK,
        )
        self._dispatcher.append((record,))
