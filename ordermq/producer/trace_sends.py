"""TraceSends: the records of producers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.model import properties as props
from ordermq.model.receipts import SendReceipt
from ordermq.model.status import SendStatus
from ordermq.producer.pending_message import PendingMessage
from ordermq.remoting.trace import (
    DEFAULT_REGION,
    DELAYED,
    HALF,
    NORMAL,
    Published,
)


class TraceSends:
    """Records a trace of each message that a broker stored, a request at a time.

    Its messages must be timed (`PendingFields.begin_timing`).
    """

    def __init__(self, dispatcher: TraceDispatcher, group: str, clock: Clock) -> None:
        self.dispatcher = dispatcher
        self._group = group
        self._clock = clock

    def add_stored(
        self,
        batch: Sequence[PendingMessage],
        receipts: Sequence[Sequence[SendReceipt]],
        topic: str,
        address: str,
        region: str | None,
    ) -> None:
        """Record the messages of a request, which are finished; any thread.

        Args: receipts: of each; empty for one-way messages, which have no record.
        """
        # A trace of a trace would never end.
        if topic == self.dispatcher.config.customized_trace_topic:
            return
        now_ms = self._clock.wall_ms()
        stored = [its_receipts[0] for its_receipts in receipts if its_receipts]
        if not stored:
            return
        is_success = stored[0].status is SendStatus.SEND_OK
        region = region or DEFAULT_REGION
        head = f"\x01{region}\x01{self._group}\x01{topic}\x01".encode()
        records = self.dispatcher.records
        if records.add_published(batch, receipts, head, address.encode(), is_success, now_ms):
            return
        for message, its_receipts in zip(batch, receipts, strict=True):
            cost_ms = message.spent_ns // 1_000_000
            # A message without receipts, which was sent one-way, has no record.
            for text, body, receipt in zip(message.properties, message.bodies, its_receipts):  # noqa: B905
                found = props.decode(text)
                record = Published(
                    now_ms - cost_ms, region, self._group, topic, receipt.message_id,
                    found.get(props.TAGS), found.get(props.KEYS), address, len(body), cost_ms,
                    _kind(found), receipt.offset_message_id, is_success,
                )  # fmt: skip
                records.add(record.to_text(), record.message_id, record.keys)


def _kind(properties: dict[str, str]) -> int:
    if props.TRANSACTION_PREPARED in properties:
        return HALF
    return DELAYED if any(name in properties for name in props.DELAYS) else NORMAL
