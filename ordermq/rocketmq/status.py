"""Results and outcomes with the numbers of the old clients."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ordermq.model.receipts import SendReceipt
from ordermq.model.status import SendStatus as Durable


class SendStatus(IntEnum):
    """Durability of a stored message."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class TransactionStatus(IntEnum):
    """Outcome of a local transaction."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


class ConsumeStatus(IntEnum):
    """Result of a consumer's callback for its message."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(IntEnum):
    """Delivery to every member of the group, or to one."""

    BROADCASTING = 0
    CLUSTERING = 1


class SendResult(NamedTuple):
    """An acknowledged send: durability, message id, offset in its queue."""

    status: SendStatus
    msg_id: str
    offset: int


_STATUS = {
    Durable.SEND_OK: SendStatus.OK,
    Durable.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    Durable.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    Durable.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


def result_of(receipts: Sequence[SendReceipt]) -> SendResult:
    """Return one result for a send; of a batch the least durable status, all ids, first offset."""
    return SendResult(
        max(_STATUS[receipt.status] for receipt in receipts),
        ",".join(receipt.message_id for receipt in receipts),
        receipts[0].queue_offset,
    )
