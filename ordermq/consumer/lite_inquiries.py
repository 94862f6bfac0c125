"""What an admin tool asks a lite pull consumer through the broker (protocol 3.8).

| request | what becomes of it |
|---|---|
| 307 GET_CONSUMER_RUNNING_INFO | our queues, subscriptions, counters; stacks if wanted |
| 221 GET_CONSUMER_STATUS_FROM_CLIENT | how far each of our queues of a topic is done |
| 220 RESET_CONSUMER_CLIENT_OFFSET | each of our queues it names goes on from there |
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ordermq.client.instance import ClientInstance
from ordermq.consumer import stacks
from ordermq.consumer.inquiries import status_of
from ordermq.consumer.poll_buffer import PollBuffer, PulledQueue
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


class LiteInquiries:
    """Answers for one lite pull consumer; on the I/O thread.

    Args:
        last_pull_ms: when a queue was last pulled, ms since 1970; 0 if not yet.
        seek: lets a queue go on from an offset.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        buffer: PollBuffer,
        statistics: ConsumerStatistics,
        *,
        last_pull_ms: Callable[[MessageQueue], int],
        seek: Callable[[MessageQueue, int], None],
    ) -> None:
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._statistics = statistics
        self._last_pull_ms = last_pull_ms
        self._seek = seek
        self._started_ms = client.clock.wall_ms()

    def answer(self, request: Command) -> Command | None:
        """The answer to a request of a broker; None if it is none of ours."""
        serve = {
            int(RequestCode.GET_CONSUMER_RUNNING_INFO): self._running_info,
            int(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT): self._status,
            int(RequestCode.RESET_CONSUMER_CLIENT_OFFSET): self._reset,
        }.get(request.code)
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

    def _status(self, request: Command) -> Command:
        topic = request.ext.get("topic", "")
        rows = queue_table_to_json(
            {
                pulled.queue: pulled.done
                for pulled in self._buffer.held()
                if pulled.queue.topic == topic
            }
        )
        body = b'{"consumerTable":{},"messageQueueTable":' + rows + b"}"
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, request: Command) -> Command:
        parts: dict[str, Any] = {
            "mqPopTable": {},
            "properties": {
                "PROP_CLIENT_VERSION": f"ordermq {importlib.metadata.version('ordermq')}",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self._client.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": "0",
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
        table = {pulled.queue: self._queue_info(pulled) for pulled in self._buffer.held()}
        body = b'{"mqTable":' + queue_table_to_json(table) + b"," + orjson.dumps(parts)[1:]
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _queue_info(self, pulled: PulledQueue) -> dict[str, Any]:
        """Java's ProcessQueueInfo; "transaction" is what pollers have in their hands."""
        is_out = pulled.done < pulled.position
        return {
            "cachedMsgCount": pulled.count,
            "cachedMsgMaxOffset": max(pulled.pull_offset - 1, 0) if pulled.count else 0,
            "cachedMsgMinOffset": pulled.position if pulled.count else 0,
            "cachedMsgSizeInMiB": pulled.size_bytes >> 20,
            "commitOffset": pulled.committed or 0,
            "droped": not pulled.is_held,
            "lastConsumeTimestamp": self._started_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": self._last_pull_ms(pulled.queue),
            "locked": False,
            "transactionMsgCount": pulled.position - pulled.done if is_out else 0,
            "transactionMsgMaxOffset": pulled.position - 1 if is_out else 0,
            "transactionMsgMinOffset": pulled.done if is_out else 0,
            "tryUnlockTimes": 0,
        }

    def _reset(self, request: Command) -> Command:
        wanted = queue_table_from_body(request.body, "offsetTable")
        for pulled in self._buffer.held():
            if pulled.queue in wanted:
                self._seek(pulled.queue, wanted[pulled.queue])
        return request.reply(ResponseCode.SUCCESS)
