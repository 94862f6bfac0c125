"""Topics: queue counts, permissions, creation by a send or by an admin request
(docs/internals/protocol.md#names-and-permissions)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ordermq import json_text
from ordermq.broker.connection import RequestRefused
from ordermq.broker.store import Done, QueueLog, Statement, Store, Write
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, StoreError
from ordermq.model.delay_levels import DELAY_LEVELS_MS
from ordermq.model.names import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    check_topic,
    reply_topic,
)
from ordermq.remoting.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE
from ordermq.remoting.codes import ResponseCode

MAX_QUEUES = 65_535  # as RocketMQ's tools accept
# Clients neither send to these nor pull them; RocketMQ calls them system topics.
_SYSTEM_TOPICS = frozenset({AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic's configuration."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    is_ordered: bool = False

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def to_json(self) -> dict[str, Any]:
        """Return the body of GET_TOPIC_CONFIG, and an entry of GET_ALL_TOPIC_CONFIG's."""
        return {
            "attributes": {},
            "order": self.is_ordered,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": 0,
            "writeQueueNums": self.write_queues,
        }


class _Change(NamedTuple):
    """A change of a topic that is not durable yet."""

    topic: Topic | None  # None: it is deleted
    write: Write


def _ignore(error: StoreError | None) -> None:
    """Do nothing at the end of a write that others build on: they are answered with its error."""


class TopicTable:
    """All topics of the broker.

    Answers know a change once it is durable. Sends know it at once, and what they write fails if
    the change does (`builds_on`): so a topic can be made by the first of many sends.
    """

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._store = store
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._changes: dict[str, list[_Change]] = {}  # by topic, in the order of submission
        for name, text in store.rows("SELECT name, config FROM topics"):
            self._topics[str(name)] = Topic(**json_text.loads(str(text)))
        count = config.default_queue_count
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        # Java's producers ask for the route of TBW102 to find out where a new topic may be created.
        self._template = Topic(AUTO_CREATE_TOPIC, count, count, perm)
        levels = len(DELAY_LEVELS_MS)
        self._built_in = {
            SCHEDULE_TOPIC: Topic(SCHEDULE_TOPIC, levels, levels),
            # Producers look up its route to reply to requests; replies are pushed, never stored.
            reply_topic(config.cluster_name): Topic(reply_topic(config.cluster_name), 1, 1),
        }

    def get(self, name: str) -> Topic | None:
        """Return a topic; TBW102, the template of new topics, only with auto_create_topics."""
        if name == AUTO_CREATE_TOPIC:
            return self._template if self._config.auto_create_topics else None
        return self._built_in.get(name) or self._topics.get(name)

    def existing(self, name: str) -> Topic:
        """Return a topic.

        Raises: RequestRefused: there is none of that name.
        """
        topic = self.get(name)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name!r} does not exist: create it, or send a message to it first",
            )
        return topic

    def staying(self, name: str) -> Topic:
        """Return a topic whose offsets may be stored.

        Raises: RequestRefused: there is none of that name, or it is being deleted.
        """
        # Behind the deletion an offset would be stored for the topic's next life.
        if self.is_ending(name):
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name!r} is being deleted: its offsets are not stored any more",
            )
        return self.existing(name)

    def is_ending(self, name: str) -> bool:
        """Return True while a deletion of the topic is not durable."""
        changes = self._changes.get(name, ()) if self._changes else ()
        return any(each.topic is None for each in changes)

    def sendable(self, name: str) -> Topic | None:
        """Return a topic that clients may send to: neither the template nor a built-in one.

        It has the changes that are not durable yet.
        """
        if self._changes and name in self._changes:
            return self._changes[name][-1].topic
        return self._topics.get(name)

    def all(self) -> list[Topic]:
        """Return every topic of the users, including retry and dead-letter topics."""
        return list(self._topics.values())

    def put(self, topic: Topic, done: Done = _ignore) -> None:
        """Create or change a topic; `done` is called once that is durable.

        Raises: ConfigError: an illegal name, or a queue count out of range.
        """
        check_topic(topic.name)
        self._check_system(topic.name)
        for count in (topic.read_queues, topic.write_queues):
            if not 1 <= count <= MAX_QUEUES:
                raise ConfigError(
                    f"topic {topic.name!r} with {count} queues: expected 1..{MAX_QUEUES}"
                )
        text = json_text.dumps(asdict(topic)).decode()
        store = Statement("INSERT OR REPLACE INTO topics VALUES (?, ?)", (topic.name, text))
        self._submit(topic.name, topic, done, [store])

    def of_first_send(self, name: str, wanted_queues: int) -> Topic | None:
        """Return the topic that a first send creates by `keep`; None without auto_create_topics."""
        # As in RocketMQ: the producer's default_topic_queue_nums, at most the template's count.
        if not self._config.auto_create_topics:
            return None
        count = min(max(wanted_queues, 1), self._template.write_queues)
        return Topic(name, count, count)

    def internal(self, name: str) -> Topic:
        """Return a group's retry or dead-letter topic; a new one is created by `keep`."""
        return self.sendable(name) or Topic(name, 1, 1)

    def keep(self, topic: Topic) -> None:
        """Create a topic if there is none of its name.

        Raises: ConfigError: an illegal name.
        """
        if self.sendable(topic.name) is None:
            self.put(topic)

    def remove(self, name: str, done: Done) -> None:
        """Delete a topic with its messages and offsets; `done` is called once that is durable.

        Raises: ConfigError: it belongs to the broker.
        """
        self._check_system(name)
        # Everything of the topic goes in one write.
        statements = [
            Statement("DELETE FROM offsets WHERE topic = ?", (name,)),
            Statement("DELETE FROM pop_leases WHERE topic = ?", (name,)),
            Statement("DELETE FROM open_pops WHERE topic = ?", (name,)),
            Statement("DELETE FROM topics WHERE name = ?", (name,)),
        ]

        def finish(error: StoreError | None) -> None:
            self._store.life_ended(name, is_durable=error is None)
            done(error)

        dropped = self._store.end_life(name)
        try:
            self._submit(name, None, finish, statements, dropped)
        except StoreError:  # the broker is closing
            self._store.life_ended(name, is_durable=False)
            raise

    @property
    def has_changes(self) -> bool:
        """True while any change is not durable."""
        return bool(self._changes)

    def builds_on(self, name: str) -> list[Write]:
        """Return the writes without which one for this topic must not be stored."""
        if is_system_topic(name):  # a waiting message may be for any topic
            changes = [each for found in self._changes.values() for each in found]
        else:
            changes = self._changes.get(name, [])
        return [each.write for each in changes]

    def _submit(
        self,
        name: str,
        topic: Topic | None,
        done: Done,
        statements: list[Statement],
        drops: Sequence[QueueLog] = (),
    ) -> None:
        def finish(error: StoreError | None) -> None:
            changes = self._changes[name]
            del changes[0]  # writes end in the order of submission
            if not changes:
                del self._changes[name]
            if error is None:
                if topic is None:
                    self._topics.pop(name, None)
                else:
                    self._topics[name] = topic
            done(error)

        needs = self.builds_on(name)
        write = Write(finish, statements=statements, drops=drops, needs=needs)
        self._store.submit(write)
        self._changes.setdefault(name, []).append(_Change(topic, write))

    def _check_system(self, name: str) -> None:
        if is_system_topic(name) or name in self._built_in:
            raise ConfigError(
                f"topic {name!r} belongs to the broker: it can neither be changed nor deleted"
            )


def is_system_topic(name: str) -> bool:
    """True for the topics that only the broker itself writes and reads."""
    return name in _SYSTEM_TOPICS


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


def group_of_retry_topic(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)


def is_internal_name(name: str) -> bool:
    """True for a group's retry or dead-letter topic."""
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
