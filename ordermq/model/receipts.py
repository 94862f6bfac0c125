"""Receipts of sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from ordermq.model.foreign_attributes import OF_RECEIPTS, explain_attributes
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import SendStatus


@dataclass(slots=True, unsafe_hash=True, repr=False)
class SendReceipt:
    """Receipt of an acknowledged send.

    `message_id` is the producer's id (UNIQ_KEY), `offset_message_id` the broker's; `offset`, or
    `queue_offset`, is the message's place in `message_queue`. `recall_handle` cancels a timed
    message (`Producer.recall`), if the broker returned one.
    """

    message_queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.message_queue} offset={self.queue_offset} "
            f"{self._state()} id={self.message_id}>"
        )

    def _state(self) -> str:
        return self.status.value

    @property
    def offset(self) -> int:
        """The message's place in its queue: RocketMQ's `queue_offset`."""
        return self.queue_offset


explain_attributes(SendReceipt, OF_RECEIPTS)


class SendReceipts(Sequence[SendReceipt]):
    """Receipts of messages with consecutive offsets; each is created when it is read.

    Args:
        queue_offset: offset of the first message.
        message_ids, offset_message_ids: one each per message.
    """

    __slots__ = (
        "_message_ids",
        "_message_queue",
        "_offset_message_ids",
        "_queue_offset",
        "_recall_handle",
        "_status",
    )

    def __init__(
        self,
        message_queue: MessageQueue,
        queue_offset: int,
        message_ids: Sequence[str],
        offset_message_ids: Sequence[str],
        status: SendStatus,
        recall_handle: str | None,
    ) -> None:
        self._message_queue = message_queue
        self._queue_offset = queue_offset
        self._message_ids = message_ids
        self._offset_message_ids = offset_message_ids
        self._status = status
        self._recall_handle = recall_handle

    def __repr__(self) -> str:
        return f"<{len(self)} receipts of {self._message_queue} from {self._queue_offset}>"

    def __len__(self) -> int:
        return len(self._message_ids)

    @overload
    def __getitem__(self, position: int) -> SendReceipt: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[SendReceipt]: ...
    def __getitem__(self, position: int | slice) -> SendReceipt | Sequence[SendReceipt]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        message_id = self._message_ids[position]
        if position < 0:
            position += len(self)
        return SendReceipt(
            self._message_queue,
            self._queue_offset + position,
            message_id,
            self._offset_message_ids[position],
            self._status,
            self._recall_handle,
        )
