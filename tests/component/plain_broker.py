"""The embedded broker as clients see one of RocketMQ: no lock epochs, offsets for any queue id."""

from __future__ import annotations

import pytest

from ordermq.broker import server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import (
    LockExtHeader,
    OffsetReplyHeader,
    QueryOffsetHeader,
    UpdateOffsetHeader,
)

NO_QUEUE = 1_000_000  # ids from here on are of no queue


class PlainBroker:
    """Changes the handlers of the brokers of this process, until the end of the test.

    Attributes:
        epochs: what members stored, by group, topic and queue id; a test may change it.
        history: every epoch that was stored, in its order.
        refusal: answers their requests with this code.
        on_store: called before an epoch is stored.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.epochs: dict[tuple[str, str, int], int] = {}
        self.history: list[tuple[tuple[str, str, int], int]] = []
        self.refusal: ResponseCode | None = None
        self.on_store = lambda: None
        self._handlers = dict(server.HANDLERS)
        for code, handler in (
            (RequestCode.LOCK_BATCH_MQ, self._without_extensions),
            (RequestCode.UNLOCK_BATCH_MQ, self._without_extensions),
            (RequestCode.UPDATE_CONSUMER_OFFSET, self._update),
            (RequestCode.QUERY_CONSUMER_OFFSET, self._query),
        ):
            patch.setitem(server.HANDLERS, code, handler)

    def epochs_of(self, topic: str, queue_id: int) -> list[int]:
        """Return what was stored for a queue, without repetitions in a row."""
        found: list[int] = []
        for (_, stored_topic, number), epoch in self.history:
            if (stored_topic, number) == (topic, queue_id) and found[-1:] != [epoch]:
                found.append(epoch)
        return found

    def _without_extensions(
        self, context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        for name in LockExtHeader("1", 1, "1").to_ext():
            request.ext.pop(name, None)
        self._handlers[request.code](context, connection, request)

    def _refused(self, connection: BrokerConnection, request: Command) -> bool:
        if self.refusal is not None:
            connection.reply(request, self.refusal, remark="a test's own refusal")
        return self.refusal is not None

    def _update(
        self, context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        header = UpdateOffsetHeader.from_ext(request.ext)
        assert header.epoch is None, "it knows no epochs"
        if header.queue_id < NO_QUEUE:
            self._handlers[request.code](context, connection, request)
            return
        if self._refused(connection, request):
            return
        self.on_store()
        place = header.group, header.topic, header.queue_id - NO_QUEUE
        self.epochs[place] = header.commit_offset
        self.history.append((place, header.commit_offset))
        connection.reply(request, ResponseCode.SUCCESS)

    def _query(
        self, context: BrokerContext, connection: BrokerConnection, request: Command
    ) -> None:
        header = QueryOffsetHeader.from_ext(request.ext)
        if header.queue_id < NO_QUEUE:
            self._handlers[request.code](context, connection, request)
            return
        if self._refused(connection, request):
            return
        stored = self.epochs.get((header.group, header.topic, header.queue_id - NO_QUEUE))
        if stored is None:
            connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark="not found")
        else:
            connection.reply(request, ResponseCode.SUCCESS, OffsetReplyHeader(stored).to_ext())
