"""Pull answers made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ordermq.core import RecordWriter
from ordermq.model import properties as props
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import host_bytes

QUEUE = MessageQueue("T", "broker-a", 0)
_WRITER = RecordWriter("T", 0, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2))


def batch(
    offsets: Iterable[int],
    keys: Sequence[str | None] = (),
    body: bytes = b"x",
    ids: Mapping[int, str] | None = None,
    *,
    apart_ms: int = 0,
) -> MessageBatch:
    """Messages at these offsets; `ids` are their producer's, by offset."""
    records = []
    for place, offset in enumerate(offsets):
        key = keys[place] if place < len(keys) else None
        own = {props.SHARDING_KEY: key} if key else {}
        if ids is not None:
            own[props.UNIQ_KEY] = ids[offset]
        properties = props.encode(own).encode()
        stored_ms = 2 + offset * apart_ms
        written = _WRITER.write(
            body, properties, flag=0, sys_flag=0, born_ms=1, stored_ms=stored_ms
        )
        records += [record for _, _, record in written.rows(offset, 0)]
    return MessageBatch(QUEUE, b"".join(records))
