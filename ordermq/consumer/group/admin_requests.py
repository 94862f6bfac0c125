"""Requests of admin tools that a broker passes on to a member: answered, or refused with a reason.

| request | answer (docs/internals/protocol.md#requests-to-consumers) |
|---|---|
| 307 GET_CONSUMER_RUNNING_INFO | queues, subscriptions, counters; stacks if wanted |
| 221 GET_CONSUMER_STATUS_FROM_CLIENT | the done offset of each held queue of a topic |
| 220 RESET_CONSUMER_CLIENT_OFFSET | each held queue it names continues from its offset |
| 309 CONSUME_MESSAGE_DIRECTLY | the listener's result; refused if a batch of the queue may run |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ordermq import json_text
from ordermq.client.connections import Answer
from ordermq.consumer.dispatch.worker_pool import stacks_of_all_threads
from ordermq.consumer.fetch.message_fetcher import MessageFetcher
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import MemberContext, TopicRates
from ordermq.core.status import MAX_OFFSET
from ordermq.errors import ProtocolError, StateError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import (
    CONSUME_POP,
    PULL_NOW,
    RESETS,
    queue_table_from_body,
    queue_table_to_json,
    subscription_to_json,
)
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.version import VERSION

_log = logging.getLogger("ordermq.consumer")


class AdminRequests:
    """Answers the requests to one member; on the I/O thread.

    Args:
        receiver: consumes the message of request 309, or refuses.
        subscriptions: returns the subscriptions of this moment.
        assigned: returns the queues held at this moment.
        seek: lets a queue continue from an offset.
        consume_type: see the function of that name.
        thread_count: of the worker pool, for the tool to print.
    """

    def __init__(
        self,
        member: MemberContext,
        receiver: Receiver[Any],
        fetcher: MessageFetcher,
        *,
        subscriptions: Callable[[], Sequence[Subscription]],
        assigned: Callable[[], list[AssignedQueue]],
        seek: Callable[[AssignedQueue, int], object],
        consume_type: str,
        thread_count: int,
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._receiver = receiver
        self._fetcher = fetcher
        self._statistics = member.statistics
        self._subscriptions = subscriptions
        self._assigned = assigned
        self._seek = seek
        self._consume_type = consume_type
        self._is_polled = consume_type == _POLLED
        self.thread_count = thread_count
        self._started_ms = member.client.clock.wall_ms()
        self._lost_ms: dict[MessageQueue, int] = {}
        self._handlers: dict[int, Callable[[Command], Answer]] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def answer(self, request: Command) -> Answer:
        """Answer a request of a broker; None if it is no admin request."""
        handler = self._handlers.get(request.code)
        if handler is None:
            return None
        # Java's headers disagree on the name of this field.
        group = request.ext.get("consumerGroup") or request.ext.get("group")
        if group != self._group:
            return self._refuse(request, f"this client is a member of {self._group!r} only")
        try:
            return handler(request)
        except ProtocolError as error:
            return self._refuse(request, str(error))

    def on_lease_lost(self, queue: MessageQueue) -> None:
        """Remember when the lease of a queue was lost; any thread."""
        self._lost_ms[queue] = self._client.clock.wall_ms()

    def _refuse(self, request: Command, reason: str) -> Command:
        # Logged too: nobody reads the answer to a one-way request.
        _log.warning(
            "group %s: request %d refused: %s",
            self._group,
            request.code,
            reason,
            extra=self._fields(),
        )
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=reason)

    def _status(self, request: Command) -> Command:
        topic = request.ext.get("topic", "")
        # "consumerTable" is filled by the broker, which asks each member for its part.
        done = {a.queue: a.done_offset for a in self._assigned() if a.queue.topic == topic}
        body = b'{"consumerTable":{},"messageQueueTable":' + queue_table_to_json(done) + b"}"
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, request: Command) -> Command:
        if (topic := request.ext.get(PULL_NOW)) is not None:
            for assigned in self._assigned():
                if assigned.queue.topic == topic:
                    self._fetcher.pull_now(assigned)
        parts: dict[str, Any] = {
            "mqPopTable": {},
            "properties": {
                "PROP_CLIENT_VERSION": f"ordermq {VERSION}",
                "PROP_CONSUMEORDERLY": str(self._receiver.is_ordered).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": self._consume_type,
                "PROP_NAMESERVER_ADDR": ";".join(self._client.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(self.thread_count),
            },
            "statusTable": {
                topic: _status_of(self._statistics.rates(topic))
                for topic in self._statistics.topics()
            },
            "subscriptionSet": [subscription_to_json(item) for item in self._subscriptions()],
            "userConsumerInfo": {k: str(v) for k, v in self._statistics.as_dict().items()},
        }
        if request.ext.get("jstackEnable", "").lower() == "true":
            parts["jstack"] = stacks_of_all_threads()
        table = queue_table_to_json({a.queue: self._queue_info(a) for a in self._assigned()})
        # fastjson writes queues as object keys, which orjson cannot: joined by hand.
        body = b'{"mqTable":' + table + b"," + json_text.dumps(parts)[1:]
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _queue_info(self, assigned: AssignedQueue) -> dict[str, Any]:
        """Return Java's ProcessQueueInfo; "transaction" is what a listener or poller has."""
        buffered, now_ms = assigned.process_queue, self._client.clock.wall_ms()
        consuming = buffered.first_consuming
        # A polled batch has left the buffer for good, a listener's may be redelivered from it.
        taken = [] if self._is_polled else [consuming]
        smallest = [offset for offset in (buffered.first_pending, *taken) if offset >= 0]
        lease = assigned.lease
        claimed_ms = assigned.last_claim_ms
        idle_ms = self._client.clock.now_ms() - claimed_ms
        return {
            "cachedMsgCount": buffered.pending_count + len(taken) * buffered.consuming_count,
            "cachedMsgMaxOffset": buffered.max_offset if smallest else 0,
            "cachedMsgMinOffset": min(smallest, default=0),
            "cachedMsgSizeInMiB": buffered.size_bytes >> 20,
            # As in Java, what is done, committed or not.
            "commitOffset": assigned.done_offset,
            "droped": assigned.state is not QueueState.ACTIVE,
            "lastConsumeTimestamp": self._started_ms if claimed_ms < 0 else now_ms - idle_ms,
            # The last time it was known to be locked: the tool prints how long ago that was.
            "lastLockTimestamp": now_ms if lease else self._lost_ms.get(assigned.queue, 0),
            "lastPullTimestamp": self._fetcher.last_pull_ms(assigned.queue),
            "locked": lease is not None and lease.is_lock,
            "transactionMsgCount": buffered.consuming_count,
            "transactionMsgMaxOffset": max(buffered.last_consuming, 0),
            "transactionMsgMinOffset": max(consuming, 0),
            "tryUnlockTimes": assigned.try_unlock_times,
            RESETS: assigned.resets,
        }

    def _reset(self, request: Command) -> Command:
        offsets = queue_table_from_body(request.body, "offsetTable")
        for queue, offset in offsets.items():
            if not 0 <= offset <= MAX_OFFSET:
                raise ProtocolError(f"{queue}: reset to offset {offset}, which no queue has")
        # Answered before the seeks are done: a queue waits for its batch, the tool does not.
        for assigned in self._assigned():
            if assigned.queue in offsets:
                assigned.resets += 1
                self._seek(assigned, offsets[assigned.queue])
        return request.reply(ResponseCode.SUCCESS)

    def _consume_directly(self, request: Command) -> Answer:
        # A task: the listener may take long, and other requests of this connection must not wait.
        return self._client.runtime.spawn(self._consume(request), "consume directly")

    async def _consume(self, request: Command) -> Command:
        from ordermq.model.stored_message import StoredMessage  # here: tools only ask for this

        try:
            record = StoredMessage.read(bytes(request.body))
            queue = MessageQueue(record.topic, request.ext.get("brokerName", ""), record.queue_id)
            batch = MessageBatch(queue, bytes(request.body), (), self._client.config.namespace)
            batch.sole_message()
        except ProtocolError as error:
            return self._refuse(request, str(error))
        assigned = next((each for each in self._assigned() if each.queue == queue), None)
        try:
            result = await self._receiver.consume_directly(batch, assigned)
        except StateError as error:
            return self._refuse(request, str(error))
        _log.warning(
            "%s: offset %d consumed directly, for an admin tool: %s",
            queue,
            record.queue_offset,
            result.name,
            extra=self._fields(queue, offset=record.queue_offset),
        )
        body = {
            "autoCommit": result.auto_commit,
            "consumeResult": result.name,
            "order": self._receiver.is_ordered,
            "remark": result.remark,
            "spentTimeMills": result.spent_ms,
        }
        return request.reply(ResponseCode.SUCCESS, body=json_text.dumps(body))


_POLLED = "CONSUME_ACTIVELY"


def consume_type(is_polled: bool, *, pops: bool) -> str:
    """Return Java's name of the way in which a member gets its messages.

    Args:
        is_polled: its caller polls.
    """
    if pops:
        return CONSUME_POP
    return _POLLED if is_polled else "CONSUME_PASSIVELY"


def _status_of(rates: TopicRates) -> dict[str, float]:
    """Return Java's ConsumeStatus."""
    return {
        "pullRT": rates.pull_rt_ms,
        "pullTPS": rates.pull_tps,
        "consumeRT": rates.consume_rt_ms,
        "consumeOKTPS": rates.consume_ok_tps,
        "consumeFailedTPS": rates.consume_failed_tps,
        "consumeFailedMsgs": rates.consume_failed_messages,
    }
