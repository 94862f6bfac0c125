"""Messages waiting for their receipts, and how many of them share a request."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from ordermq import core
from ordermq.model.status import SendReceipt
from ordermq.producer.queue_selector import ShardingKey
from ordermq.remoting.headers import SendReplyHeader

_log = logging.getLogger("ordermq.producer")


class Requirement(Protocol):
    """A condition a broker must meet before it is sent a message, such as knowing this client."""

    def is_met(self, address: str) -> bool:
        """Return True if the message may be sent now; any thread.

        Raises: OrderMQError: it may never be sent.
        """

    async def meet(self, address: str) -> None:
        """Make it so; on the I/O thread.

        Raises: OrderMQError: the broker did not accept it; the attempt to send has failed.
        """


@dataclass(slots=True, eq=False)
class PendingMessage:
    """A message waiting for its receipt, or several that stay together (`send_batch`)."""

    bodies: Sequence[bytes]
    properties: Sequence[str]  # the encoded text of each, with its unique id
    unique_ids: Sequence[str]
    flags: Sequence[int]
    size: int  # bytes of bodies and properties
    key: ShardingKey | None  # None for an unordered message
    is_alone: bool  # shares no request: it is delayed, half of a transaction, or a request
    # Called once, with `receipts` or `error` set: on the I/O thread, or on the caller's if no
    # queue could be chosen.
    on_done: Callable[[PendingMessage], None] = field(repr=False)
    sys_flag: int = 0  # bits besides those of compression
    fallbacks_left: int = 0  # how many more other brokers may be tried
    is_watched: bool = False  # hooks want the header of the broker's answer
    is_timed: bool = False  # brokers before 5.0 would deliver it at once
    is_oneway: bool = False  # needs no answer: it is unordered, and its caller does not wait
    requirement: Requirement | None = None
    receipts: Sequence[SendReceipt] | None = None  # empty for a one-way message
    error: BaseException | None = None
    reply_header: SendReplyHeader | None = None  # only if `is_watched`

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.bodies)

    @property
    def is_done(self) -> bool:
        return self.receipts is not None or self.error is not None

    def all_receipts(self) -> Sequence[SendReceipt]:
        """Return the receipts of messages that are done.

        Raises: the error that sending failed with.
        """
        if self.error is not None:
            raise self.error
        assert self.receipts is not None
        return self.receipts

    def receipt(self) -> SendReceipt:
        """Return the receipt of a single message; raises as `all_receipts`."""
        return self.all_receipts()[0]

    def finish(self, receipts: Sequence[SendReceipt] | None, error: BaseException | None) -> None:
        """Set the outcome and notify the caller; later outcomes change nothing."""
        if self.receipts is not None or self.error is not None:
            return
        self.receipts, self.error = receipts, error
        try:
            self.on_done(self)
        except Exception:  # noqa: BLE001 - a defect; others of its request are notified next
            name, where = self.unique_ids[0], receipts[0].message_queue if receipts else error
            _log.exception("message %s (%s): notifying its caller failed", name, where)


def is_single(batch: Sequence[PendingMessage]) -> bool:
    """Return True if the request holds one message, which is not encoded as a batch."""
    return len(batch) == 1 and len(batch[0].bodies) == 1


def batch_body(batch: Sequence[PendingMessage]) -> bytes:
    """Return the body of SEND_BATCH_MESSAGE."""
    if len(batch) == 1:  # a `send_batch`: its lists are encoded as they are
        return core.encode_batch(batch[0].bodies, batch[0].properties, batch[0].flags)
    every = chain.from_iterable
    return core.encode_batch(
        list(every(message.bodies for message in batch)),
        list(every(message.properties for message in batch)),
        list(every(message.flags for message in batch)),
    )


def take_batch(waiting: deque[PendingMessage], max_bytes: int) -> list[PendingMessage]:
    """Remove the next messages that may share a request, in order; at least one."""
    # The first one even if it is too big by itself: then the broker refuses it, with a reason.
    batch = [waiting.popleft()]
    size = batch[0].size
    while waiting and not batch[0].is_alone and not waiting[0].is_alone:
        size += waiting[0].size
        if size > max_bytes:
            break
        batch.append(waiting.popleft())
    return batch
