"""What a listener may answer, and what a producer gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from ordermq.model.message_queue import MessageQueue


class ConsumeResult(StrEnum):
    """A listener's answer for its batch (docs/internals/semantics.md#listener-results)."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND"  # try the batch again after a pause
    COMMIT = "COMMIT"  # manual mode: everything handed out so far is done
    ROLLBACK = "ROLLBACK"  # manual mode: everything not committed comes again


class SendStatus(StrEnum):
    """How durable the broker says a stored message is
    (docs/internals/protocol.md#response-codes)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionState(StrEnum):
    """How the local half of a transaction stands, says who executed or checked it."""

    COMMIT = "COMMIT"  # consumers may have the message
    ROLLBACK = "ROLLBACK"  # it is dropped
    UNKNOWN = "UNKNOWN"  # the broker will ask


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that made it the dearest part of a send
class SendReceipt:
    """An acknowledged send.

    `message_id` is ours (UNIQ_KEY), `offset_message_id` the broker's; `queue_offset` is where
    the message lies in `message_queue`. A timed message can be taken back by `recall_handle`,
    if the broker gave one (`Producer.recall`).
    """

    message_queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None


class SendReceipts(Sequence[SendReceipt]):
    """Those of messages that lie back to back; each is made when someone looks at it.

    Args:
        queue_offset: of the first.
        message_ids, offset_message_ids: one of each a message.
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


@dataclass(slots=True, unsafe_hash=True)
class TransactionReceipt(SendReceipt):
    """A half message the broker has, and what it was told of its transaction.

    `queue_offset` and `offset_message_id` are of the half message; `message_queue` is where the
    message goes once it is committed.
    """

    state: TransactionState = TransactionState.UNKNOWN

    @property
    def transaction_id(self) -> str:
        """The id the broker knows the transaction by: the message's own."""
        return self.message_id
