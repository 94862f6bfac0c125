"""Messages on their way, and how many of them go in one request."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ordermq import core
from ordermq.model.status import SendReceipt
from ordermq.producer.selectors import ShardingKey
from ordermq.remoting.headers import SendReplyHeader

_log = logging.getLogger("ordermq.producer")


@dataclass(slots=True, eq=False)
class Entry:
    """A message on its way, or several that stay together: what a `send_batch` was given.

    Args:
        properties: the property text of each; its id of `unique_ids` is in there.
        size: bytes of bodies and properties.
        key: the sharding key, None for unordered messages.
        on_done: called once, on the I/O thread, when `receipts` or `error` is set; what it
            raises is logged.
    """

    bodies: Sequence[bytes]
    properties: Sequence[str]
    unique_ids: Sequence[str]
    flags: Sequence[int]
    size: int
    key: ShardingKey | None
    is_alone: bool  # no batch may hold it: it is delayed, or half of a transaction
    on_done: Callable[[Entry], None] = field(repr=False)
    sys_flag: int = 0  # bits besides that of compression
    moves_left: int = 0  # how often it may yet go to another broker
    is_watched: bool = False  # hooks want to know what the broker said
    is_timed: bool = False  # old brokers would deliver it at once
    receipts: Sequence[SendReceipt] | None = None
    error: BaseException | None = None
    reply: SendReplyHeader | None = None  # of a watched one

    def __len__(self) -> int:
        """How many messages it holds."""
        return len(self.bodies)

    @property
    def is_done(self) -> bool:
        return self.receipts is not None or self.error is not None

    def outcomes(self) -> Sequence[SendReceipt]:
        """The receipts of messages that are done.

        Raises: what their sending failed with.
        """
        if self.error is not None:
            raise self.error
        assert self.receipts is not None
        return self.receipts

    def outcome(self) -> SendReceipt:
        """The receipt of a single message; raises as `outcomes`."""
        return self.outcomes()[0]

    def finish(self, receipts: Sequence[SendReceipt] | None, error: BaseException | None) -> None:
        self.receipts, self.error = receipts, error
        try:
            self.on_done(self)
        except Exception:  # noqa: BLE001 - a defect: those it went with shall be told all the same
            where = error if receipts is None else receipts[0].message_queue
            _log.exception("message %s (%s): not told who waits", self.unique_ids[0], where)


def is_single(batch: Sequence[Entry]) -> bool:
    """Whether a request holds one message, which goes as it is."""
    return len(batch) == 1 and len(batch[0].bodies) == 1


def batch_body(batch: Sequence[Entry]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    if len(batch) == 1:
        return core.encode_batch(batch[0].bodies, batch[0].properties, batch[0].flags)
    every = chain.from_iterable
    return core.encode_batch(
        list(every(entry.bodies for entry in batch)),
        list(every(entry.properties for entry in batch)),
        list(every(entry.flags for entry in batch)),
    )


def take_batch(waiting: deque[Entry], max_bytes: int) -> list[Entry]:
    """Remove the next entries that may go in one request, in order; at least one."""
    batch = [waiting.popleft()]
    size = batch[0].size
    while waiting and not batch[0].is_alone and not waiting[0].is_alone:
        size += waiting[0].size
        if size > max_bytes:
            break
        batch.append(waiting.popleft())
    return batch
