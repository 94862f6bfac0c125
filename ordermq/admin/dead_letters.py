"""Dead letters: the messages that groups gave up, and sending them again."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ordermq.admin.handled_letters import HandledLetters
from ordermq.admin.topics import Place, Topics
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.errors import (
    BrokerError,
    ConfigError,
    DecodeError,
    LockRefused,
    OrderingError,
    OrderMQError,
    RouteError,
    StateError,
)
from ordermq.model import properties as props
from ordermq.model.failure_story import NAMES, FailureStory
from ordermq.model.message import RESERVED_PROPERTIES, Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import DEAD_LETTER_PREFIX, dead_letter_topic, group_named
from ordermq.producer.producer import Producer
from ordermq.remoting.admin_bodies import QueueEnds
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

# Its offsets say how far a dead-letter topic was sent again, and its locks that one tool at a
# time does so. Not the group itself: its lag would count dead letters.
REDRIVE_GROUP = "ordermq_redrive"
ORIGIN_PROPERTY = "omqRedriven"  # of a message that was sent again: the id of its dead letter
_LOCK_LIFE_MS = 60_000  # of RocketMQ's locks, and the embedded broker's, after the last renewal
_RENEWAL_MS = 1_000  # an embedded broker may be set to shorter lives
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
        waiting: those of them that were neither sent again nor skipped.
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


class _Chosen(NamedTuple):
    """A letter that a caller named.

    Args:
        older: ids of the letters of its key that wait, of those before it.
    """

    letter: MessageView
    older: list[str]
    is_handled: bool


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
        self._handled = HandledLetters(client, topics)

    async def summaries(self) -> list[DeadLetters]:
        """Return the groups that have dead letters, sorted."""
        topics = await self._topics.summaries(with_internal=True)
        names = [topic.name for topic in topics if topic.name.startswith(DEAD_LETTER_PREFIX)]
        found = await self._look_at([name.removeprefix(DEAD_LETTER_PREFIX) for name in names])
        return [each for each in found if each.messages]

    async def look(self, group: str) -> DeadLetters:
        """Return how many letters a group has; none if no broker has their topic."""
        (found,) = await self._look_at([group])
        return found

    async def _look_at(self, groups: Sequence[str]) -> list[DeadLetters]:
        ends = {group: await self._topics.ends(dead_letter_topic(group)) for group in groups}
        left = {
            queue: await self._left(queue, each)
            for queues in ends.values()
            for queue, each in queues.items()
        }
        handled = await self._handled.offsets(left)
        return [
            DeadLetters(
                group,
                sum(each.messages for each in queues.values()),
                sum(len(left[queue]) - len(handled[queue]) for queue in queues),
                max((each.last_stored_ms for each in queues.values()), default=0),
            )
            for group, queues in ends.items()
        ]

    async def waiting(self, group: str, start: Place, count: int) -> list[MessageView]:
        """Return letters that wait, as `Admin.waiting_letters` describes."""
        is_last = start == "last"
        ends = await self._topics.ends(dead_letter_topic(group))
        left = {queue: await self._left(queue, each) for queue, each in ends.items()}
        found = []
        for queue, handled in (await self._handled.offsets(left)).items():
            begin, end = left[queue].start, left[queue].stop
            if is_last:
                at, most = end - count - len(handled), end
            else:
                at, most = await self._topics.offset_at(queue, start), count
            found.append(await self._read(queue, max(begin, at), end, most, handled))
        letters = list(heapq.merge(*found, key=lambda each: each.store_timestamp_ms))
        return letters[-count:] if is_last else letters[:count]

    async def next_offsets(self, group: str) -> dict[MessageQueue, int]:
        """Return the offset of the first letter of each queue that was not sent again."""
        ends = await self._topics.ends(dead_letter_topic(group))
        return {queue: (await self._left(queue, each)).start for queue, each in ends.items()}

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
        waiting = self._client.call(self.look(group)).waiting
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
        call, locked_ms = self._client.call, self._client.clock.now_ms()
        with self._locked(queue) as epoch:
            # Under the lock: nobody else sends or skips one.
            left, handled = call(self._left_and_handled(queue, ends))
            offset = left.start
            while offset < ends.end and sent.letters != count:
                most = _AT_ONCE if count is None else min(_AT_ONCE, count - sent.letters)
                letters = call(self._read(queue, offset, ends.end, most, handled))
                if not letters:
                    break
                # All are made before the first is sent: one that cannot be stops nothing half-way.
                messages = [_as_message(each, to_topic) for each in letters]
                call(self._learn_ends({each.topic for each in letters}, sent))
                done = 0
                try:
                    for letter, message in zip(letters, messages, strict=True):
                        self._send(producer, letter, message)
                        done += 1
                        locked_ms = self._renewed(queue, epoch, locked_ms)
                except LockRefused:
                    done = 0  # whoever had the lock since may have got further
                    raise
                finally:
                    # Also after an error: what is stored must not be sent twice.
                    if done:
                        offset = _past(letters[done - 1].queue_offset + 1, handled)
                        call(self._commit(queue, offset, epoch))
                sent.letters += done
                for letter in letters[:done]:
                    sent.note(letter)
                sent.keys |= {letter.sharding_key for letter in letters if letter.sharding_key}

    @staticmethod
    def _send(producer: Producer, letter: MessageView, message: Message) -> None:
        """Send a letter, and return once it is stored.

        One by one: behind a letter that is refused, others would overtake it, and be sent again by
        the next call, as the offset cannot say that they were.
        """
        try:
            producer.send(message, sharding_key=letter.sharding_key)
        except OrderMQError as error:
            group = group_named(letter.message_queue.topic)
            error.add_note(
                f"dead letter {letter.message_id} was not sent, nor are those behind it: if it "
                f"cannot be, `ordermq dlq skip {group} {letter.message_id}` leaves it out"
            )
            raise

    # One letter.

    def redrive_one(
        self, group: str, message_id: str, to_topic: str | None, body: bytes | None
    ) -> Redriven:
        """Send a chosen letter again, as `Admin.redrive` describes."""
        sent = _Sent()
        with self._open_producer() as producer, self._chosen(producer, group, message_id) as chosen:
            letter = chosen.letter
            if chosen.older:
                raise OrderingError(
                    f"{len(chosen.older)} older dead letters of key {letter.sharding_key!r} wait, "
                    "which this one would overtake: send them again or skip them first, beginning "
                    f"with {chosen.older[0]}",
                    group=group,
                    offset=letter.queue_offset,
                )
            message = _as_message(letter, to_topic, body)
            self._client.call(self._learn_ends({message.topic, letter.topic}, sent))
            self._send(producer, letter, message)
            sent.note(letter)
        waiting = self._client.call(self.look(group)).waiting
        return Redriven(group, 1, 1 if letter.sharding_key else 0, waiting, sent.overtaken_by)

    def skip(self, group: str, message_id: str) -> MessageView:
        """Have a chosen letter count as handled, as `Admin.skip_letter` describes."""
        with self._open_producer() as producer, self._chosen(producer, group, message_id) as chosen:
            return chosen.letter

    @contextmanager
    def _chosen(self, producer: Producer, group: str, message_id: str) -> Iterator[_Chosen]:
        """Yield a letter that waits; without an error of the caller it is handled thereafter.

        Raises: StateError: there is none, or it was sent again or skipped.
        """
        ends, is_handled = self._client.call(self._topics.ends(dead_letter_topic(group))), False
        for queue, each in ends.items():
            with self._locked(queue) as epoch:
                left, handled = self._client.call(self._left_and_handled(queue, each))
                chosen = self._find(queue, each, left.start, handled, message_id)
                is_handled = is_handled or (chosen is not None and chosen.is_handled)
                if chosen is None or chosen.is_handled:
                    continue
                yield chosen
                offset = chosen.letter.queue_offset
                if _past(left.start, handled) == offset:  # the oldest that waits
                    self._client.call(self._commit(queue, _past(offset + 1, handled), epoch))
                else:
                    self._handled.note(producer, chosen.letter)
                return
        if is_handled:
            raise StateError(
                f"dead letter {message_id} was sent again or skipped before: if it failed once "
                "more, that is another letter with an id of its own",
                group=group,
            )
        raise StateError(
            f"no dead letter has the id {message_id}: `ordermq dlq show {group}` prints the ids",
            group=group,
        )

    def _find(
        self,
        queue: MessageQueue,
        ends: QueueEnds,
        begin: int,
        handled: Collection[int],
        message_id: str,
    ) -> _Chosen | None:
        """Return the first letter with an id that waits; else one that is handled."""
        older: dict[str, list[str]] = {}
        done: _Chosen | None = None
        offset = ends.first
        while letters := self._client.call(self._read(queue, offset, ends.end, _AT_ONCE)):
            for letter in letters:
                is_handled = letter.queue_offset < begin or letter.queue_offset in handled
                if letter.message_id.upper() == message_id.upper():
                    before = older.get(letter.sharding_key or "", [])
                    found = _Chosen(letter, before, is_handled)
                    if not is_handled:
                        return found
                    done = found
                elif letter.sharding_key and not is_handled:
                    older.setdefault(letter.sharding_key, []).append(letter.message_id)
            offset = letters[-1].queue_offset + 1
            self._client.call(self._lock(queue))  # a long topic takes longer than a lock lives
        return done

    # A queue of letters.

    async def _left_and_handled(
        self, queue: MessageQueue, ends: QueueEnds
    ) -> tuple[range, Collection[int]]:
        """Return the offsets that the group has left, and those of them that are handled."""
        left = await self._left(queue, ends)
        return left, (await self._handled.offsets({queue: left}))[queue]

    async def _left(self, queue: MessageQueue, ends: QueueEnds) -> range:
        """Return the offsets from the first letter on that was not sent again."""
        address, offset = self._client.routes.master_of(queue.broker_name), None
        try:
            offset = await self._client.api.query_offset(address, REDRIVE_GROUP, queue)
        except BrokerError as error:
            # A broker of RocketMQ 5 makes the group at its first pull.
            if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        # Letters that the broker has deleted for their age can no longer be sent.
        return range(min(max(offset or 0, ends.first), ends.end), ends.end)

    async def _unhandled(
        self, queue: MessageQueue, offset: int, end: int, handled: Collection[int]
    ) -> AsyncGenerator[MessageView, None]:
        async with aclosing(scan(self._client, REDRIVE_GROUP, queue, offset, end)) as letters:
            async for letter in letters:
                if letter.queue_offset not in handled:
                    yield letter

    async def _read(
        self,
        queue: MessageQueue,
        offset: int,
        end: int,
        count: int,
        handled: Collection[int] = (),
    ) -> list[MessageView]:
        found: list[MessageView] = []
        async with aclosing(self._unhandled(queue, offset, end, handled)) as letters:
            async for letter in letters:
                found.append(letter)
                if len(found) == count:
                    break
        return found

    @contextmanager
    def _locked(self, queue: MessageQueue) -> Iterator[int]:
        """Hold the lock of a queue; yields its epoch."""
        epoch = self._client.call(self._lock(queue))
        try:
            yield epoch
        finally:
            self._client.call(self._unlock(queue, epoch))

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

    def _renewed(self, queue: MessageQueue, epoch: int, locked_ms: int) -> int:
        """Renew the lock of a queue if that is due; return the time of its last renewal.

        Raises: LockRefused: it may be over, as after a pause of this process.
        """
        now_ms = self._client.clock.now_ms()
        if now_ms - locked_ms < _RENEWAL_MS:
            return locked_ms
        # Only the embedded broker's epoch tells of a lock that somebody had in between.
        if now_ms - locked_ms >= _LOCK_LIFE_MS or self._client.call(self._lock(queue)) != epoch:
            raise LockRefused(
                "the lock ended, as that of a process that stood still: another tool may have sent "
                "these dead letters since; call again for those that still wait",
                topic=queue.topic,
            )
        return now_ms

    async def _commit(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        address = self._client.routes.master_of(queue.broker_name)
        await self._client.api.update_offset(address, REDRIVE_GROUP, queue, offset, epoch)

    async def _unlock(self, queue: MessageQueue, epoch: int) -> None:
        address = self._client.routes.master_of(queue.broker_name)
        await self._client.api.unlock(address, REDRIVE_GROUP, [queue], [epoch])


def _past(offset: int, handled: Collection[int]) -> int:
    """Return the first offset from this one on that is not handled."""
    while offset in handled:
        offset += 1
    return offset


def _as_message(letter: MessageView, to_topic: str | None, body: bytes | None = None) -> Message:
    topic = to_topic or letter.topic
    if topic == letter.stored_topic:
        raise ConfigError(
            f"dead letter {letter.queue_offset} does not say which topic it was sent to: name one",
            topic=topic,
        )
    own = {name: value for name, value in letter.properties.items() if name not in _OWN_PROPERTIES}
    return Message(
        topic,
        _body_of(letter) if body is None else body,
        tags=letter.tags or None,
        keys=letter.keys,
        properties=own | {ORIGIN_PROPERTY: letter.message_id},
        flag=letter.flag,
    )


def _body_of(letter: MessageView) -> bytes:
    try:
        if body := bytes(letter.body):
            return body
        problem = "its body is empty"
    except DecodeError as error:
        problem = str(error)
    # Letters behind it are not sent before it, whatever their keys are: so the way out is named.
    raise DecodeError(
        f"dead letter {letter.message_id} cannot be sent again: {problem}; send it with another "
        "body (`ordermq dlq redrive GROUP --id ID --body FILE`), or skip it (`ordermq dlq skip "
        "GROUP ID`)",
        topic=letter.stored_topic,
        offset=letter.queue_offset,
    )
