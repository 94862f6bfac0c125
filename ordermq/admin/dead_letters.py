"""Dead letters: the messages that groups gave up, and sending them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from ordermq.admin.topics import Topics
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, ConfigError, LockRefused, RouteError
from ordermq.model import properties as props
from ordermq.model.failure_story import NAMES, FailureStory
from ordermq.model.message import RESERVED_PROPERTIES, Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import DEAD_LETTER_PREFIX, dead_letter_topic
from ordermq.producer.producer import Producer
from ordermq.remoting.admin_bodies import QueueEnds
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

# Its offsets say how far a dead-letter topic was sent again, and its locks that one tool at a
# time does so. Not the group itself: its lag would count dead letters.
REDRIVE_GROUP = "ordermq_redrive"
ORIGIN_PROPERTY = "omqRedriven"  # of a message that was sent again: the id of its dead letter
_AT_ONCE = 256  # letters between two commits: so many are sent twice after a crash
_OWN_PROPERTIES = RESERVED_PROPERTIES | {
    props.DLQ_ORIGIN_TOPIC,
    props.DLQ_ORIGIN_MESSAGE_ID,
    props.REGION,
    props.TRACE_ON,
    props.CLUSTER,
    ORIGIN_PROPERTY,
    *NAMES,
}


class DeadLetters(Value):
    """Dead letters of one group.

    Args:
        messages: those that the brokers have.
        waiting: those of them that were not sent again.
        last_stored_ms: time of the newest, ms since 1970; 0 without one.
    """

    group: str
    messages: int
    waiting: int
    last_stored_ms: int


class Redriven(Value):
    """Outcome of sending dead letters again.

    Args:
        sent: letters that were sent and stored.
        keys: sharding keys among them; letters without a key count as none.
        left: letters that still wait.
        overtaken_by: messages that were stored behind the letters in the queues that these came
            from: each letter is out of order with those of its key among them that were consumed.
            As far as letters say where they came from.
    """

    group: str
    sent: int
    keys: int
    left: int
    overtaken_by: int = 0


@dataclass(slots=True)
class _Sent:
    """Outcome so far of sending letters of several queues again."""

    letters: int = 0
    keys: set[str] = field(default_factory=set)
    # First offset of them in each queue they came from, and the end of each queue of these topics
    # before any was sent, by the queues' names.
    firsts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)

    def note(self, letter: MessageView) -> None:
        if (story := FailureStory.of(letter)) is not None and story.offset >= 0:
            first = self.firsts.get(story.queue, story.offset)
            self.firsts[story.queue] = min(first, story.offset)

    @property
    def overtaken_by(self) -> int:
        firsts = self.firsts.items()
        return sum(max(self.ends[name] - at - 1, 0) for name, at in firsts if name in self.ends)


class DeadLetterTopics:
    """Reads and re-drives dead letters; on a caller's thread.

    Args:
        open_producer: makes a producer for the same cluster.
    """

    def __init__(
        self, client: ClientSession, topics: Topics, open_producer: Callable[[], Producer]
    ) -> None:
        self._client = client
        self._topics = topics
        self._open_producer = open_producer

    async def summaries(self) -> list[DeadLetters]:
        """Return the groups that have dead letters, sorted."""
        found = []
        for topic in await self._topics.summaries(with_internal=True):
            if topic.name.startswith(DEAD_LETTER_PREFIX):
                found.append(await self._look(topic.name.removeprefix(DEAD_LETTER_PREFIX)))
        return [each for each in found if each.messages]

    async def _look(self, group: str) -> DeadLetters:
        ends = await self._topics.ends(dead_letter_topic(group))
        waiting = [each.end - await self._begin(queue, each) for queue, each in ends.items()]
        return DeadLetters(
            group,
            sum(each.messages for each in ends.values()),
            sum(waiting),
            max((each.last_stored_ms for each in ends.values()), default=0),
        )

    async def next_offsets(self, group: str) -> dict[MessageQueue, int]:
        """Return the offset of the first letter of each queue that was not sent again."""
        ends = await self._topics.ends(dead_letter_topic(group))
        return {queue: await self._begin(queue, each) for queue, each in ends.items()}

    def redrive(self, group: str, count: int | None, to_topic: str | None) -> Redriven:
        """Send letters again, as `Admin.redrive` describes."""
        # The present ends: a letter that fails once more meanwhile comes back behind them.
        ends = self._client.call(self._topics.ends(dead_letter_topic(group)))
        sent = _Sent()
        if to_topic is not None:
            self._client.call(self._learn_ends({to_topic}, sent))
        with self._open_producer() as producer:
            for queue, each in ends.items():
                if sent.letters != count:
                    self._redrive_queue(producer, queue, each, count, to_topic, sent)
        waiting = self._client.call(self._look(group)).waiting
        return Redriven(group, sent.letters, len(sent.keys), waiting, sent.overtaken_by)

    async def _learn_ends(self, topics: set[str], sent: _Sent) -> None:
        """Ask for the ends of topics, before a letter is sent to one: it would count as a message
        behind the letters.
        """
        for topic in topics - sent.topics:
            sent.topics.add(topic)
            with contextlib.suppress(RouteError):  # deleted: nothing is behind its letters
                ends = await self._topics.ends(topic)
                sent.ends |= {str(queue): each.end for queue, each in ends.items()}

    def _redrive_queue(
        self,
        producer: Producer,
        queue: MessageQueue,
        ends: QueueEnds,
        count: int | None,
        to_topic: str | None,
        sent: _Sent,
    ) -> None:
        call = self._client.call
        epoch = call(self._lock(queue))
        try:
            offset = call(self._begin(queue, ends))  # under the lock: nobody else moves it
            while offset < ends.end and sent.letters != count:
                most = _AT_ONCE if count is None else min(_AT_ONCE, count - sent.letters)
                letters = call(self._read(queue, offset, ends.end, most))
                if not letters:
                    break
                # All are made before the first is sent: one that cannot be stops nothing half-way.
                events = [(_as_message(each, to_topic), each.sharding_key) for each in letters]
                call(self._learn_ends({each.topic for each in letters}, sent))
                done = 0
                try:
                    # In the order of the queue, which is that in which each key's letters came.
                    for _ in producer.send_stream(events):
                        done += 1
                finally:
                    # Also after an error: what is stored must not be sent twice.
                    if done:
                        offset = letters[done - 1].queue_offset + 1
                        call(self._commit(queue, offset, epoch))
                sent.letters += done
                for letter in letters[:done]:
                    sent.note(letter)
                sent.keys |= {letter.sharding_key for letter in letters if letter.sharding_key}
                call(self._lock(queue))
        finally:
            call(self._unlock(queue, epoch))

    async def _begin(self, queue: MessageQueue, ends: QueueEnds) -> int:
        """Return the offset of the first letter that was not sent again."""
        address, offset = self._client.routes.master_of(queue.broker_name), None
        try:
            offset = await self._client.api.query_offset(address, REDRIVE_GROUP, queue)
        except BrokerError as error:
            # A broker of RocketMQ 5 makes the group at its first pull.
            if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        # Letters that the broker has deleted for their age can no longer be sent.
        return min(max(offset or 0, ends.first), ends.end)

    async def _read(
        self, queue: MessageQueue, offset: int, end: int, count: int
    ) -> list[MessageView]:
        found: list[MessageView] = []
        async with aclosing(scan(self._client, REDRIVE_GROUP, queue, offset, end)) as messages:
            async for message in messages:
                found.append(message)
                if len(found) == count:
                    break
        return found

    async def _lock(self, queue: MessageQueue) -> int:
        """Take the lock of a queue, or renew it; return its epoch."""
        address = self._client.routes.master_of(queue.broker_name)
        granted = (await self._client.api.lock(address, REDRIVE_GROUP, [queue])).granted
        if queue not in granted:
            raise LockRefused(
                "another tool sends these dead letters again at this moment, or was killed while "
                "it did: its lock ends by itself, 60 s after its last renewal",
                topic=queue.topic,
            )
        return granted[queue]

    async def _commit(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        address = self._client.routes.master_of(queue.broker_name)
        await self._client.api.update_offset(address, REDRIVE_GROUP, queue, offset, epoch)

    async def _unlock(self, queue: MessageQueue, epoch: int) -> None:
        address = self._client.routes.master_of(queue.broker_name)
        await self._client.api.unlock(address, REDRIVE_GROUP, [queue], [epoch])


def _as_message(letter: MessageView, to_topic: str | None) -> Message:
    topic = to_topic or letter.topic
    if topic == letter.stored_topic:
        raise ConfigError(
            f"dead letter {letter.queue_offset} does not say which topic it was sent to: name one",
            topic=topic,
        )
    own = {name: value for name, value in letter.properties.items() if name not in _OWN_PROPERTIES}
    return Message(
        topic,
        bytes(letter.body),
        tags=letter.tags or None,
        keys=letter.keys,
        properties=own | {ORIGIN_PROPERTY: letter.message_id},
        flag=letter.flag,
    )
