"""HandledLetters: dead letters that were sent again or skipped before older ones of their queue."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import NamedTuple

from ordermq.admin.topics import Topics
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.clock import poll_until
from ordermq.errors import RouteError
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import HANDLED_LETTERS_TOPIC, TOOLS_GROUP
from ordermq.producer.producer import Producer
from ordermq.remoting.admin_bodies import QueueEnds

_TOPIC, _QUEUE, _OFFSET = "omqLetterTopic", "omqLetterQueue", "omqLetterOffset"
_CHECKS, _CHECK_MS = 100, 100


class _Mark(NamedTuple):
    """A record of the topic: this letter is handled."""

    queue: MessageQueue
    offset: int
    message_id: str


class HandledLetters:
    """Marks of letters that are handled while older ones of their queue still wait.

    The offset of a queue cannot say so. Each mark is a message of the topic
    `ordermq_handled_letters` at the letter's own broker: stored behind the letter, it is deleted
    after it.
    """

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    async def offsets(self, letters: Mapping[MessageQueue, range]) -> dict[MessageQueue, set[int]]:
        """Return the offsets with a mark, of these offsets of queues of letters."""
        found: dict[MessageQueue, set[int]] = {queue: set() for queue in letters}
        # Once for all queues of a broker, which has the marks of all groups in one queue.
        for broker_name in {queue.broker_name for queue, waiting in letters.items() if waiting}:
            ids = {
                (mark.queue, mark.offset): mark.message_id
                for mark in await self._marks(broker_name)
                if mark.offset in letters.get(mark.queue, ())
            }
            for (queue, offset), message_id in ids.items():
                if await self._is_at(queue, offset, message_id):
                    found[queue].add(offset)
        return found

    async def _is_at(self, queue: MessageQueue, offset: int, message_id: str) -> bool:
        # A topic that was deleted and made anew has other letters at its offsets.
        letters = scan(self._client, TOOLS_GROUP, queue, offset, offset + 1)
        async with aclosing(letters) as messages:
            return any([each.message_id == message_id async for each in messages])

    def note(self, producer: Producer, letter: MessageView) -> None:
        """Store a mark, and return once it can be read; on a caller's thread."""
        queue = letter.message_queue
        self._client.call(self._topics.put_at(HANDLED_LETTERS_TOPIC, queue.broker_name))
        at = MessageQueue(HANDLED_LETTERS_TOPIC, queue.broker_name, 0)
        place = {
            _TOPIC: queue.topic,
            _QUEUE: str(queue.queue_id),
            _OFFSET: str(letter.queue_offset),
        }
        mark = Message(at.topic, letter.message_id.encode(), properties=place)
        receipt = producer.send(mark, queue=at)
        self._client.call(self._await_mark(at, receipt.queue_offset))

    async def _await_mark(self, queue: MessageQueue, offset: int) -> None:
        async def is_readable() -> bool:
            ends = await self._ends(queue.broker_name)
            return any(each.end > offset for each in ends.values())

        # RocketMQ builds its queues behind its log, in another thread.
        if not await poll_until(is_readable, self._client.clock, _CHECKS, _CHECK_MS):
            raise RouteError(
                "the broker took a letter's mark and does not give it out: look at its log",
                topic=queue.topic,
                broker=queue.broker_name,
            )

    async def _ends(self, broker_name: str) -> dict[MessageQueue, QueueEnds]:
        ends = await self._topics.ends(HANDLED_LETTERS_TOPIC)
        return {queue: each for queue, each in ends.items() if queue.broker_name == broker_name}

    async def _marks(self, broker_name: str) -> list[_Mark]:
        found = []
        for queue, ends in (await self._ends(broker_name)).items():
            marks = scan(self._client, TOOLS_GROUP, queue, ends.first, ends.end)
            async with aclosing(marks) as messages:
                async for message in messages:
                    if (mark := _read(message)) is not None:
                        found.append(mark)
        return found


def _read(message: MessageView) -> _Mark | None:
    """Return the mark that a message is; None: it is none, somebody else sent it."""
    own = message.properties
    topic, queue_id, offset = own.get(_TOPIC), own.get(_QUEUE, ""), own.get(_OFFSET, "")
    if topic is None or not queue_id.isdecimal() or not offset.isdecimal():
        return None
    queue = MessageQueue(topic, message.message_queue.broker_name, int(queue_id))
    return _Mark(queue, int(offset), bytes(message.body).decode(errors="replace"))
