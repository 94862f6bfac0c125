"""What an admin tool asks any consumer through the broker: answered, or refused with the reason.

| request | what becomes of it (docs/internals/protocol.md#requests-to-consumers) |
|---|---|
| 307 GET_CONSUMER_RUNNING_INFO | our queues, subscriptions, counters; stacks if wanted |
| 221 GET_CONSUMER_STATUS_FROM_CLIENT | how far each of our queues of a topic is done |
| 220 RESET_CONSUMER_CLIENT_OFFSET | each of our queues it names goes on from there |
"""

from __future__ import annotations

import importlib.metadata
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ordermq.client.connections import Answer
from ordermq.client.session import ClientSession
from ordermq.consumer.dispatch.worker_pool import stacks_of_all_threads
from ordermq.consumer.queue.statistics import ConsumerStatistics, TopicRates
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


class Answers(ABC):
    """Answers for one consumer; on the I/O thread.

    Args:
        consume_type: as Java names it, CONSUME_PASSIVELY or CONSUME_ACTIVELY.
        thread_count: of the worker pool, for the tool to print.
        last_pull_ms: when a queue was last pulled, ms since 1970; 0 if not yet.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        statistics: ConsumerStatistics,
        *,
        consume_type: str,
        is_orderly: bool,
        thread_count: int,
        last_pull_ms: Callable[[MessageQueue], int],
    ) -> None:
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._statistics = statistics
        self._consume_type = consume_type
        self._is_orderly = is_orderly
        self.thread_count = thread_count
        self._last_pull_ms = last_pull_ms
        self._started_ms = client.clock.wall_ms()
        self._served: dict[int, Callable[[Command], Answer]] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
        }

    @abstractmethod
    def _done_offsets(self) -> dict[MessageQueue, int]:
        """How far each of our queues is done."""

    @abstractmethod
    def _queue_infos(self) -> dict[MessageQueue, dict[str, Any]]:
        """Java's ProcessQueueInfo of each of our queues."""

    @abstractmethod
    def _go_on(self, offsets: dict[MessageQueue, int]) -> None:
        """Let those of our queues that are named go on from these offsets."""

    def answer(self, request: Command) -> Answer:
        """The answer to a request of a broker; None if it is none of ours."""
        serve = self._served.get(request.code)
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
        done = {q: offset for q, offset in self._done_offsets().items() if q.topic == topic}
        body = b'{"consumerTable":{},"messageQueueTable":' + queue_table_to_json(done) + b"}"
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, request: Command) -> Command:
        parts: dict[str, Any] = {
            "mqPopTable": {},
            "properties": {
                "PROP_CLIENT_VERSION": f"ordermq {importlib.metadata.version('ordermq')}",
                "PROP_CONSUMEORDERLY": str(self._is_orderly).lower(),
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
        table = queue_table_to_json(self._queue_infos())
        body = b'{"mqTable":' + table + b"," + orjson.dumps(parts)[1:]
        return request.reply(ResponseCode.SUCCESS, body=body)

    def _reset(self, request: Command) -> Command:
        self._go_on(queue_table_from_body(request.body, "offsetTable"))
        return request.reply(ResponseCode.SUCCESS)


def _status_of(rates: TopicRates) -> dict[str, float]:
    """Java's ConsumeStatus."""
    return {
        "pullRT": rates.pull_rt_ms,
        "pullTPS": rates.pull_tps,
        "consumeRT": rates.consume_rt_ms,
        "consumeOKTPS": rates.consume_ok_tps,
        "consumeFailedTPS": rates.consume_failed_tps,
        "consumeFailedMsgs": rates.consume_failed_messages,
    }
