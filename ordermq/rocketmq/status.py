"""Answers and outcomes, as the old clients numbered them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ordermq.model.status import SendReceipt
from ordermq.model.status import SendStatus as Durable


class SendStatus(IntEnum):
    """How durable a stored message is."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class TransactionStatus(IntEnum):
    """What a local transaction came to."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


class ConsumeStatus(IntEnum):
    """What a consumer's callback answers for its message."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(IntEnum):
    """Who gets a message: every member of the group, or one."""

    BROADCASTING = 0
    CLUSTERING = 1


class SendResult(NamedTuple):
    """An acknowledged send: how durable, the message's id, its offset in its queue."""

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
    """One result for a send; for a batch the least durable status, all ids, the first offset."""
    return SendResult(
        max(_STATUS[receipt.status] for receipt in receipts),
        ",".join(receipt.message_id for receipt in receipts),
        receipts[0].queue_offset,
    )
