"""Handlers that find messages: by id, by key, by the producer's unique id
(docs/internals/protocol.md#admin-requests).

There is no index of keys: it would cost a row per send, for a query that people type by hand.
The messages of the requested time are scanned, newest first, in small steps between other
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import BrokerContext, Handler, number_field, required_field
from ordermq.broker.store import QueueLog
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage, stored_at
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_STEP_RECORDS = 32  # records scanned before other requests get the loop
_TIMEOUT_MS = 5_000  # RocketMQ's admin tools wait six seconds


class _Span(NamedTuple):
    """Offsets [first, end) of one queue that were stored in the requested time."""

    log: QueueLog
    first: int
    end: int


def view(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    offset = number_field(request, "offset")
    record = context.store.record_at(offset)
    if record is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message is stored at {offset}")
    connection.reply(request, ResponseCode.SUCCESS, body=record)


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = context.topics.existing(required_field(request, "topic"))
    key, most = required_field(request, "key"), max(number_field(request, "maxNum"), 1)
    begin_ms = number_field(request, "beginTimestamp")
    end_ms = number_field(request, "endTimestamp")
    spans = []
    for queue_id in range(max(topic.read_queues, topic.write_queues)):
        log = context.store.find_log(topic.name, queue_id)
        if log is not None:
            # Two binary searches per queue leave only the requested span to scan.
            first = context.store.search(log, begin_ms, after=False)
            spans.append(_Span(log, first, context.store.search(log, end_ms, after=True)))
    context.spawn(_answer(context, connection, request, key, most, spans))


async def _answer(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    key: str,
    most: int,
    spans: Sequence[_Span],
) -> None:
    deadline_ms = context.clock.now_ms() + _TIMEOUT_MS
    found: list[bytes] = []
    for span in spans:
        # The newest `most` of each queue: the newest of all are among them.
        found += await _find(context, span, key, most, deadline_ms)
    if found:
        found.sort(key=stored_at, reverse=True)
        ext = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        connection.reply(request, ResponseCode.SUCCESS, ext, b"".join(found[:most]))
        return
    remark = f"no message of this topic and time has the key {key!r}"
    if context.clock.now_ms() > deadline_ms:
        remark = f"not found within {_TIMEOUT_MS} ms: ask for a shorter span of time"
    connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)


async def _find(
    context: BrokerContext, span: _Span, key: str, most: int, deadline_ms: int
) -> list[bytes]:
    found: list[bytes] = []
    end = span.end
    while end > span.first:
        if len(found) >= most or context.clock.now_ms() > deadline_ms:
            break
        first = max(end - _STEP_RECORDS, span.first)
        records = context.store.records(span.log, first, end)
        # A step without records is in the gap that a restored back-up leaves: it is left at once.
        end = first if records else context.store.last_stored(span.log, first) + 1
        found += [record for record in reversed(records) if _has_key(record, key)]
        # Lets sends and pulls in between: a scan of a large topic takes seconds.
        await asyncio.sleep(0)
    return found


def _has_key(record: bytes, key: str) -> bool:
    if key.encode() not in record:  # spares most records the parsing of their properties
        return False
    properties = props.decode_bytes(StoredMessage.read(record).properties)
    keys = props.split_keys(properties.get(props.KEYS, ""))
    return key in keys or properties.get(props.UNIQ_KEY) == key


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_MESSAGE: query,
    RequestCode.VIEW_MESSAGE_BY_ID: view,
}
