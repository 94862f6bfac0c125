"""What an admin tool asks a member through the broker: answered, or refused with the reason.

| request | what becomes of it (protocol 3.8) |
|---|---|
| 307 GET_CONSUMER_RUNNING_INFO | our queues, subscriptions, counters; stacks if wanted |
| 221 GET_CONSUMER_STATUS_FROM_CLIENT | how far each of our queues of a topic is done |
| 220 RESET_CONSUMER_CLIENT_OFFSET | each of our queues it names goes on from there |
| 309 CONSUME_MESSAGE_DIRECTLY | concurrent: consumed, and what came of it; orderly: refused |
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ordermq.client.connections import Answer
from ordermq.client.instance import ClientInstance
from ordermq.consumer import stacks
from ordermq.consumer.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.direct import DirectConsumption
from ordermq.consumer.local_offsets import LocalOffsets
from ordermq.consumer.offsets import Offsets
from ordermq.consumer.rates import TopicRates
from ordermq.consumer.statistics import ConsumerStatistics
from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import (
    queue_table_from_body,
    queue_table_to_json,
    subscription_to_json,
)
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.consumer")


class Inquiries:
    """Answers for one member; on the I/O thread.

    Args:
        direct: consumes single messages for a concurrent group.
        thread_count: of the worker pool, for the tool to print.
        assigned: our queues.
        last_pull_ms: when a queue was last pulled, ms since 1970; 0 if not yet.
        seek: lets a queue go on from an offset.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        offsets: Offsets | LocalOffsets,
        statistics: ConsumerStatistics,
        *,
        direct: DirectConsumption | None,
        thread_count: int,
        assigned: Callable[[], list[AssignedQueue]],
        last_pull_ms: Callable[[MessageQueue], int],
        seek: Callable[[AssignedQueue, int], object],
    ) -> None:
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._statistics = statistics
        self._direct = direct
        self.thread_count = thread_count
        self._assigned = assigned
        self._last_pull_ms = last_pull_ms
        self._seek = seek
        self._started_ms = client.clock.wall_ms()
        self._lapsed_ms: dict[MessageQueue, int] = {}

    def on_lapse(self, queue: MessageQueue) -> None:
        """A queue's lease was lost just now; any thread."""
        self._lapsed_ms[queue] = self._client.clock.wall_ms()

    def answer(self, request: Command) -> Answer:
        """The answer to a request of a broker; None if it is none of ours."""
        served = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        serve = served.get(RequestCode(request.code)) if request.code in _KNOWN else None
        if serve is None:
            return None
        group = request.ext.get("consumerGroup") or request.ext.get("group")
        if group != self._group:
            return self._refuse(request, f"this client is a member of {self._group!r} only")
        try:
            return serve(request)
        except ProtocolError as error:
            return self._refuse(request, str(error))

    def _refuse(self, request: Command, reason: str) -> Command:
        # Logged too: nobody reads the answer to a request that wants none.
        _log.warning("group %s: request %d refused: %s", self._group, request.code, reason)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=reason)

    def _consume_directly(self, request: Command) -> Answer:
        if self._direct is not None:
            return self._client.runtime.spawn(self._direct.answer(request), "consume directly")
        return self._refuse(
            request,
            "an orderly listener of ordermq is called for messages of the queues its member holds, "
            "in their order, and for no other: reset the group's offset, or send the message again",
        )

    def _status(self, request: Command) -> Command:
        topic = request.ext.get("topic", "")
        table = {a.queue: a.done_offset for a in self._assigned() if a.queue.topic == topic}
        rows = queue_table_to_json(table)
        body = b'{"consumerTable":{},"messageQueueTable":' + rows + b"}"
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, request: Command) -> Command:
        parts: dict[str, Any] = {
            "mqPopTable": {},
            "properties": {
                "PROP_CLIENT_VERSION": f"ordermq {importlib.metadata.version('ordermq')}",
                "PROP_CONSUMEORDERLY": str(self._direct is None).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self._client.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(self.thread_count),
            },
            "statusTable": {
                topic: status_of(self._statistics.rates(topic))
                for topic in self._statistics.topics()
            },
            "subscriptionSet": [subscription_to_json(item) for item in self._subscriptions()],
            "userConsumerInfo": {k: str(v) for k, v in self._statistics.as_dict().items()},
        }
        if request.ext.get("jstackEnable", "").lower() == "true":
            parts["jstack"] = stacks.of_all_threads()
        table = queue_table_to_json({a.queue: self._queue_info(a) for a in self._assigned()})
        body = b'{"mqTable":' + table + b"," + orjson.dumps(parts)[1:]
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _queue_info(self, assigned: AssignedQueue) -> dict[str, Any]:
        """Java's ProcessQueueInfo; "transaction" is what has been handed to a listener."""
        buffered, now_ms = assigned.process_queue, self._client.clock.wall_ms()
        smallest = [n for n in (buffered.first_pending, buffered.first_consuming) if n >= 0]
        lease = assigned.lease
        claimed_ms = assigned.last_claim_ms
        idle_ms = self._client.clock.now_ms() - claimed_ms
        return {
            "cachedMsgCount": buffered.message_count,
            "cachedMsgMaxOffset": buffered.max_offset if smallest else 0,
            "cachedMsgMinOffset": min(smallest, default=0),
            "cachedMsgSizeInMiB": buffered.size_bytes >> 20,
            "commitOffset": assigned.committed_offset,
            "droped": assigned.state is not QueueState.ACTIVE,
            "lastConsumeTimestamp": self._started_ms if claimed_ms < 0 else now_ms - idle_ms,
            # When we last knew it to be ours: the tool prints how long that is ago.
            "lastLockTimestamp": now_ms if lease else self._lapsed_ms.get(assigned.queue, 0),
            "lastPullTimestamp": self._last_pull_ms(assigned.queue),
            "locked": lease is not None and lease.is_lock,
            "transactionMsgCount": buffered.consuming_count,
            "transactionMsgMaxOffset": max(buffered.last_consuming, 0),
            "transactionMsgMinOffset": max(buffered.first_consuming, 0),
            "tryUnlockTimes": 0,
        }

    def _reset(self, request: Command) -> Command:
        wanted = queue_table_from_body(request.body, "offsetTable")
        held = [assigned for assigned in self._assigned() if assigned.queue in wanted]
        for assigned in held:
            self._seek(assigned, wanted[assigned.queue])
        return request.reply(ResponseCode.SUCCESS)


def status_of(rates: TopicRates) -> dict[str, float]:
    """Java's ConsumeStatus."""
    return {
        "pullRT": rates.pull_rt_ms,
        "pullTPS": rates.pull_tps,
        "consumeRT": rates.consume_rt_ms,
        "consumeOKTPS": rates.consume_ok_tps,
        "consumeFailedTPS": rates.consume_failed_tps,
        "consumeFailedMsgs": rates.consume_failed_messages,
    }


_KNOWN = frozenset(RequestCode)
