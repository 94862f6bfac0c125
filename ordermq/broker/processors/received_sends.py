"""Received sends: the plain sends of one read, stored and answered as bytes.

Clients with many sends in flight write them together, and so they are read together. One write to
the store for all of them, one append per queue and one piece of answers take half of the time that
as many writes take, and half of what is left was to make a command, a header and a record of each
in Python. The core's `SendRun` reads the plain sends at the beginning of a read in one call, writes
the records of each queue in another, and all answers in a third.

One that comes alone costs the broker 4 us, where it takes 11 by the handler of single sends.
Plain is what needs nothing but its queue: known topic, no delay, no transaction, no retry, no copy.
Whatever else comes, malformed requests included, is left to `send.send`, with everything behind it
in the same read.
"""

from __future__ import annotations

from typing import Protocol

from ordermq import core
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.broker.processors.fast_path import SEND_REPLY
from ordermq.broker.store import Append, QueueLog
from ordermq.broker.topics import is_retry_topic
from ordermq.errors import StoreError
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

_SEND = b'{"code":%d,' % RequestCode.SEND_MESSAGE_V2  # as all known clients begin its header


class ReceivedSends(Protocol):
    """Sends that need no command; on the loop thread."""

    def take(self, connection: BrokerConnection, received: bytes) -> int:
        """Store the plain sends at the beginning of received bytes; return the bytes they take."""


class NoReceivedSends:
    """Leaves every send to its handler."""

    def take(self, connection: BrokerConnection, received: bytes) -> int:
        return 0


class NativeReceivedSends:
    """Stores the sends that the native core takes for plain."""

    def __init__(self, context: BrokerContext, run: type[core.contract.SendRun]) -> None:
        self._context = context
        self._new_run = run

    def take(self, connection: BrokerConnection, received: bytes) -> int:
        # A run ends, too, where the ids of a queue do not ascend, as of a client whose threads
        # send by themselves: the next one may begin there.
        taken = 0
        while size := self._take_run(connection, received[taken:] if taken else received):
            taken += size
        return taken

    def _take_run(self, connection: BrokerConnection, received: bytes) -> int:
        # Other requests come alone: seen here, one costs 0.1 us, and 2.4 by the core.
        if not received.startswith(_SEND, 8):
            return 0
        context = self._context
        run = self._new_run(
            received,
            max_frame_bytes=connection.max_frame_bytes,
            max_body_bytes=context.config.max_message_bytes,
        )
        if not len(run):
            return 0
        appends: list[Append] = []
        unique_ids: list[list[str]] = []
        for part, (topic, queue_id) in enumerate(run.queues()):
            log = _plain_log(context, topic, queue_id)
            if log is None:
                return 0
            ids = run.unique_ids(part)
            # A lower id may be that of a copy: `send.send` searches for it.
            if not context.recent_sends.are_new(log, ids):
                return 0
            writer = connection.writer(topic, queue_id)
            records = run.write(part, writer, context.routing.stored_now(log))
            appends.append(Append(log, records))
            unique_ids.append(ids)
        for append, ids in zip(appends, unique_ids, strict=True):
            context.recent_sends.begin_all(append.log, ids)
        context.statistics.requests += len(run)
        self._store(connection, run, appends)
        return run.size

    def _store(
        self, connection: BrokerConnection, run: core.contract.SendRun, appends: list[Append]
    ) -> None:
        def finish(error: StoreError | None) -> None:
            self._finish(connection, run, appends, error)

        try:
            self._context.routing.append(appends, finish)
        except StoreError as error:  # the broker is closing
            finish(error)

    def _finish(
        self,
        connection: BrokerConnection,
        run: core.contract.SendRun,
        appends: list[Append],
        error: StoreError | None,
    ) -> None:
        recent_sends = self._context.recent_sends
        if error is not None:
            for append in appends:
                recent_sends.failed_all(append.log, len(append.records))
            for opaque, flag in run.requests():
                request = Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque, flag=flag)
                self._context.reply_write_failed(connection, request, error)
            return
        offsets = []
        for append in appends:
            first = append.first_offset
            recent_sends.stored_all(append.log, first, len(append.records))
            offsets.append((first, append.log.physical_offset(first)))
        answers = run.answers(SEND_REPLY, connection.store_host_hex.encode(), offsets)
        if answers:
            connection.send(answers)


def _plain_log(context: BrokerContext, topic_name: str, queue_id: int) -> QueueLog | None:
    """Return the log of a queue whose sends are stored there as they come; None for any other."""
    topic = context.topics.sendable(topic_name)
    if (
        topic is None
        or not topic.is_writable
        or is_retry_topic(topic.name)
        or not 0 <= queue_id < max(topic.read_queues, topic.write_queues)
    ):
        return None
    return context.store.log(topic.name, queue_id)


def received_sends(context: BrokerContext) -> ReceivedSends:
    """Return how a broker takes sends: where requests are signed, each is a command to check."""
    if context.config.accounts or not core.HAS_ENGINE:
        return NoReceivedSends()
    return NativeReceivedSends(context, core.SendRun)
