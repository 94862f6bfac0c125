"""A message an admin tool has a member consume directly
(docs/internals/semantics.md#admin-requests, docs/internals/protocol.md#requests-to-consumers).

Out of any order, without lock, offset or retry: so for concurrent groups only.
"""

from __future__ import annotations

import logging

import orjson

from ordermq.client.session import ClientSession
from ordermq.consumer.claim import Claim
from ordermq.consumer.dispatch.concurrent import ConcurrentService
from ordermq.consumer.lease import UNLOCKED
from ordermq.consumer.listener import ConcurrentContext, judge_concurrent
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, ProtocolError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.consumer")


class DirectConsumption:
    """Calls the listener of a concurrent group for one message; on the I/O thread."""

    def __init__(self, client: ClientSession, group: str, service: ConcurrentService) -> None:
        self._client = client
        self._group = group
        self._service = service

    async def answer(self, request: Command) -> Command:
        """What became of the message; an answer to CONSUME_MESSAGE_DIRECTLY."""
        try:
            context = self._context(request)
        except ProtocolError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        _log.warning(
            "%s: offset %d consumed directly, as an admin tool asks",
            context.message_queue,
            context.messages.first_offset,
        )
        begun_ms = self._client.clock.now_ms()
        value, raised = await self._service.call_alone(context)
        result, remark = _judged(value, raised, context)
        body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": False,
            "remark": remark,
            "spentTimeMills": self._client.clock.now_ms() - begun_ms,
        }
        return request.reply(ResponseCode.SUCCESS, body=orjson.dumps(body))

    def _context(self, request: Command) -> ConcurrentContext:
        record = StoredMessage.read(bytes(request.body))
        broker = request.ext.get("brokerName", "")
        queue = MessageQueue(record.topic, broker, record.queue_id)
        batch = MessageBatch(queue, bytes(request.body), (), self._client.config.namespace)
        # A queue of its own: whoever holds the real one knows nothing of this call.
        alone = AssignedQueue(
            queue,
            self._group,
            UNLOCKED,
            record.queue_offset,
            on_lapse=lambda *_: None,
            on_drained=lambda _: None,
            on_room=lambda _: None,
        )
        alone.accept(alone.generation, batch, record.queue_offset + 1)
        claim = alone.begin_batch(1, self._client.clock.now_ms())
        assert isinstance(claim, Claim)
        return ConcurrentContext(alone, claim, claim.messages, record.reconsume_times)


def _judged(
    value: object, raised: BaseException | None, context: ConcurrentContext
) -> tuple[str, str | None]:
    """Java's CMResult, and why."""
    if raised is not None:
        return "CR_THROW_EXCEPTION", f"{type(raised).__name__}: {raised}"
    try:
        done = judge_concurrent(value, context.ack_index, 1)
    except ConfigError as error:
        return "CR_LATER", str(error)
    return ("CR_SUCCESS" if done else "CR_LATER"), None
