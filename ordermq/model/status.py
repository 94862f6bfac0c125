"""What a listener may answer, and what a producer gets back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ordermq.model.message_queue import MessageQueue


class ConsumeResult(StrEnum):
    """A listener's answer for its batch (semantics 4.4)."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND"  # try the batch again after a pause
    COMMIT = "COMMIT"  # manual mode: everything handed out so far is done
    ROLLBACK = "ROLLBACK"  # manual mode: everything not committed comes again


class SendStatus(StrEnum):
    """How durable the broker says a stored message is (protocol 3.1)."""

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
