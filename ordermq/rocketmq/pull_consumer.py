"""The pull consumer of 0.4.4: a generator over all messages of a topic not returned before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import ordermq.consumer.pull_consumer as engine
from ordermq.consumer.pull_consumer import PullStatus
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.rocketmq.client_settings import ClientSettings, shut_down_unreferenced
from ordermq.rocketmq.exceptions import (
    ConsumerException,
    PullConsumerFetchMessageFailed,
    PullConsumerFetchMQFailed,
    PullConsumerStartFailed,
    raised_as,
)
from ordermq.rocketmq.message import ReceivedMessage, Text, text_of


class PulledQueue(NamedTuple):
    """A queue as passed to `get_message_queue_offset`; names are those of the C structure."""

    topic: bytes
    brokerName: bytes
    queueId: int


class PullConsumer(ClientSettings):
    """Pulls whole topics. Offsets are this object's own, from 0; nothing is kept at the broker.

    To keep them elsewhere, override `get_message_queue_offset` and `set_message_queue_offset`.
    """

    def __init__(self, group_id: Text) -> None:
        super().__init__(group_id)
        self.offset_table: dict[PulledQueue, int] = {}
        self._engine: engine.PullConsumer | None = None

    def __del__(self) -> None:
        if self.__dict__.get("_engine") is not None:
            shut_down_unreferenced(self)

    @property
    def _is_running(self) -> bool:
        return self._engine is not None

    def set_group(self, group_id: Text) -> None:
        """Change the group."""
        self._set_group(group_id)

    def start(self) -> None:
        """Connect. Raises: PullConsumerStartFailed."""
        self._require_not_running()
        with raised_as(PullConsumerStartFailed):
            made = engine.PullConsumer(self._group, **self._endpoint())
            made.start()
        self._engine = made

    def shutdown(self) -> None:
        """Disconnect. Before a start, or a second time, it has no effect."""
        made, self._engine = self._engine, None
        if made is not None:
            with raised_as(ConsumerException):
                made.close()

    def get_message_queue_offset(self, mq: PulledQueue) -> int:
        """Return the offset of the next pull of a queue."""
        return self.offset_table.get(mq, 0)

    def set_message_queue_offset(self, mq: PulledQueue, offset: int) -> None:
        """Store the offset after each message, once the generator is asked for the next one."""
        self.offset_table[mq] = offset

    def pull(
        self, topic: Text, expression: Text = "*", max_num: int = 32
    ) -> Iterator[ReceivedMessage]:
        """Iterate over all messages, queue by queue; end when there are no more.

        Args:
            expression: `*`, or tags joined by `||`.
            max_num: messages per request.
        Raises: PullConsumerFetchMQFailed: no such topic. PullConsumerFetchMessageFailed.
        """
        name, tags = text_of(topic, "topic"), text_of(expression, "expression")
        with raised_as(PullConsumerFetchMQFailed):
            queues = self._live().fetch_subscribe_message_queues(name)
        for queue in queues:
            yield from self._drain(queue, tags, max_num)

    def _drain(self, queue: MessageQueue, tags: str, max_num: int) -> Iterator[ReceivedMessage]:
        mq = PulledQueue(queue.topic.encode(), queue.broker_name.encode(), queue.queue_id)
        while True:
            offset = self.get_message_queue_offset(mq)
            with raised_as(PullConsumerFetchMessageFailed):
                answer = self._live().pull(queue, tags, offset, max_num)
            for view in answer.messages:
                yield ReceivedMessage(view)
                # Only now: who fails on a message, and asks no further, is given it again.
                self.set_message_queue_offset(mq, view.queue_offset + 1)
            has_moved = answer.next_begin_offset != offset
            if has_moved:
                self.set_message_queue_offset(mq, answer.next_begin_offset)
            if answer.status is PullStatus.NO_NEW_MSG or not has_moved:
                return

    def _live(self) -> engine.PullConsumer:
        if self._engine is None:
            raise StateError("the consumer is not running: call start()", group=self._group)
        return self._engine
