"""Pull answers made by hand."""

from __future__ import annotations

from collections.abc import Iterable

from ordermq.core import RecordWriter
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import host_bytes

QUEUE = MessageQueue("T", "broker-a", 0)
_WRITER = RecordWriter("T", 0, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2))


def batch(offsets: Iterable[int]) -> MessageBatch:
    records = []
    for offset in offsets:
        written = _WRITER.write(b"x", b"", flag=0, sys_flag=0, born_ms=1, stored_ms=2)
        records += [record for _, _, record in written.rows(offset, 0)]
    return MessageBatch(QUEUE, b"".join(records))
