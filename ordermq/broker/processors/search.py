"""Finding messages by one of their keys, or by their producer's id
(docs/internals/protocol.md#admin-requests).

There is no index: it would cost each send a row, for a question asked by hand. The messages of
the time asked for are looked through, newest first, in small steps between other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler
from ordermq.broker.group_commit import QueueLog
from ordermq.broker.processors.topics import existing_topic, number, required
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage, stored_at
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_STEP_RECORDS = 32  # records looked at before other requests have their turn
_PATIENCE_MS = 5_000  # admin tools wait for six seconds


class _Span(NamedTuple):
    """Offsets [first, end) of one queue, which are of the time asked for."""

    log: QueueLog
    first: int
    end: int

    def steps(self) -> Iterator[tuple[int, int]]:
        """Newest first."""
        for upper in range(self.end, self.first, -_STEP_RECORDS):
            yield max(upper - _STEP_RECORDS, self.first), upper


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = existing_topic(context, required(request, "topic"))
    key, most = required(request, "key"), max(number(request, "maxNum"), 1)
    begin_ms, end_ms = number(request, "beginTimestamp"), number(request, "endTimestamp")
    spans = []
    for queue_id in range(max(topic.read_queues, topic.write_queues)):
        log = context.store.find_log(topic.name, queue_id)
        if log is not None:
            first = context.store.search(log, begin_ms, after=False)
            spans.append(_Span(log, first, context.store.search(log, end_ms, after=True)))
    context.jobs.begin(_answer(context, connection, request, key, most, spans))


async def _answer(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    key: str,
    most: int,
    spans: Sequence[_Span],
) -> None:
    deadline_ms = context.clock.now_ms() + _PATIENCE_MS
    found: list[bytes] = []
    for span in spans:
        # The newest of each queue: among them are the newest of all.
        found += await _find(context, span, key, most, deadline_ms)
    if found:
        found.sort(key=stored_at, reverse=True)
        ext = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        connection.reply(request, ResponseCode.SUCCESS, ext, b"".join(found[:most]))
        return
    remark = f"no message of the topic and time asked for has the key {key!r}"
    if context.clock.now_ms() > deadline_ms:
        remark = f"not found in {_PATIENCE_MS} ms of looking: ask for a shorter time"
    connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)


async def _find(
    context: BrokerContext, span: _Span, key: str, most: int, deadline_ms: int
) -> list[bytes]:
    found: list[bytes] = []
    for first, end in span.steps():
        if len(found) >= most or context.clock.now_ms() > deadline_ms:
            break
        records = context.store.records(span.log, first, end)
        found += [record for record in reversed(records) if _has_key(record, key)]
        await asyncio.sleep(0)
    return found


def _has_key(record: bytes, key: str) -> bool:
    if key.encode() not in record:  # spares most records the careful look
        return False
    properties = props.decode_bytes(StoredMessage.read(record).properties)
    return key in properties.get(props.KEYS, "").split() or properties.get(props.UNIQ_KEY) == key


HANDLERS: dict[int, Handler] = {RequestCode.QUERY_MESSAGE: query}
