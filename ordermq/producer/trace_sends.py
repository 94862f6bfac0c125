"""TraceSends: the records of producers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    EncodedRecord,
    PublishedBatch,
)


class TraceSends:
    """Records a trace of each message that a broker stored, a request at a time.

    Its messages must be timed (`PendingFields.begin_timing`).
    """

    def __init__(self, dispatcher: TraceDispatcher, group: str, clock: Clock) -> None:
        self._dispatcher = dispatcher
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
        if topic == self._dispatcher.config.customized_trace_topic:
            return
        now_ms = self._clock.wall_ms()
        records: list[EncodedRecord] = []
        record: Callable[..., EncodedRecord] | None = None
        for message, its_receipts in zip(batch, receipts, strict=True):
            if not its_receipts:
                continue
            if record is None:
                is_success = its_receipts[0].status is SendStatus.SEND_OK
                record = PublishedBatch(
                    region or DEFAULT_REGION, self._group, topic, address, is_success
                ).record
            cost_ms = message.spent_ns // 1_000_000
            for text, body, receipt in zip(
                message.properties, message.bodies, its_receipts, strict=True
            ):
                tags = keys = None
                kind = NORMAL
                # A value may have these words, too: then looking costs time and changes nothing.
                if message.is_alone or props.TAGS in text or props.KEYS in text:
                    found = props.decode(text)
                    tags, keys, kind = found.get(props.TAGS), found.get(props.KEYS), _kind(found)
                records.append(
                    record(
                        now_ms - cost_ms, cost_ms, kind, receipt.message_id, tags, keys, len(body),
                        receipt.offset_message_id,
                    )
                )  # fmt: skip
        if records:
            self._dispatcher.append(records)


def _kind(properties: dict[str, str]) -> int:
    if props.TRANSACTION_PREPARED in properties:
        return HALF
    return DELAYED if any(name in properties for name in props.DELAYS) else NORMAL
