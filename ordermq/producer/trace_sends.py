"""TraceSends: the hook of producers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

from collections.abc import Callable

from ordermq.client.trace import TraceDispatcher
from ordermq.model.status import SendStatus
from ordermq.producer.hooks import SendCall
from ordermq.remoting.trace import DEFAULT_REGION, DELAYED, HALF, NORMAL, Published


class TraceSends:
    """The hook that records a trace of each message a broker stored.

    Args: address_of: returns a broker's address by its name.
    """

    def __init__(self, dispatcher: TraceDispatcher, address_of: Callable[[str], str]) -> None:
        self._dispatcher = dispatcher
        self._address_of = address_of

    def before(self, call: SendCall) -> None: ...

    def after(self, call: SendCall) -> None:
        message, receipt = call.message, call.receipt
        if receipt is None or not call.is_trace_on:
            return
        # A trace of a trace would never end.
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
