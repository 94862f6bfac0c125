"""A message on its way, and how several of them go in one request."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ordermq import core
from ordermq.model.status import SendReceipt
from ordermq.producer.selectors import ShardingKey
from ordermq.remoting.headers import SendReplyHeader

_log = logging.getLogger("ordermq.producer")


@dataclass(slots=True, eq=False)
class Entry:
    """A message on its way.

    Args:
        properties: its property text; `unique_id` is in there.
        key: the sharding key, None for unordered messages.
        on_done: called once, on the I/O thread, when `receipt` or `error` is set; what it raises
            is logged.
    """

    body: bytes
    properties: str
    unique_id: str
    flag: int
    key: ShardingKey | None
    is_alone: bool  # no batch may hold it: it is delayed, or half of a transaction
    on_done: Callable[[Entry], None] = field(repr=False)
    sys_flag: int = 0  # bits besides that of compression
    moves_left: int = 0  # how often it may yet go to another broker
    is_watched: bool = False  # hooks want to know what the broker said
    is_timed: bool = False  # old brokers would deliver it at once
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    reply: SendReplyHeader | None = None  # of a watched one

    @property
    def is_done(self) -> bool:
        return self.receipt is not None or self.error is not None

    def outcome(self) -> SendReceipt:
        """The receipt of a message that is done.

        Raises: what its sending failed with.
        """
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt

    def finish(self, receipt: SendReceipt | None, error: BaseException | None) -> None:
        self.receipt, self.error = receipt, error
        try:
            self.on_done(self)
        except Exception:  # noqa: BLE001 - a defect: those it went with shall be told all the same
            where = error if receipt is None else receipt.message_queue
            _log.exception("message %s (%s): not told who waits", self.unique_id, where)


def batch_body(batch: Sequence[Entry]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    return core.encode_batch(
        [entry.body for entry in batch],
        [entry.properties for entry in batch],
        [entry.flag for entry in batch],
    )


def take_batch(waiting: deque[Entry], max_bytes: int) -> list[Entry]:
    """Remove the next entries that may go in one request, in order; at least one."""
    batch = [waiting.popleft()]
    size = len(batch[0].body) + len(batch[0].properties)
    while waiting and not batch[0].is_alone and not waiting[0].is_alone:
        size += len(waiting[0].body) + len(waiting[0].properties)
        if size > max_bytes:
            break
        batch.append(waiting.popleft())
    return batch
