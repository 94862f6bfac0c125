"""Topics: queue counts, permissions, creation by a send or by an admin request
(docs/internals/protocol.md#names-and-permissions)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from ordermq.broker.connection import RequestRefused
from ordermq.broker.store import Statement, Store
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError
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
# messageDelayLevel of RocketMQ's default MessageStoreConfig; level n is entry n - 1.
DELAY_LEVELS_MS = tuple(
    seconds * 1_000
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200,
    )
)  # fmt: skip
# Clients neither send to these nor pull them; RocketMQ calls them system topics.
_SYSTEM_TOPICS = frozenset({AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})


# Frozen: a change makes another object, by which `saved` recognizes an outdated write.
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


class TopicTable:
    """All topics of the broker.

    A new topic is usable at once and stays `unsaved` until a write with its statement is
    durable. Every write includes the statements of unsaved topics until then, so an
    acknowledged message is never in a topic that a restart does not know.
    """

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._unsaved: dict[str, Topic] = {}
        for name, text in store.rows("SELECT name, config FROM topics"):
            self._topics[str(name)] = Topic(**orjson.loads(str(text)))
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

    def sendable(self, name: str) -> Topic | None:
        """Return a topic that clients may send to: neither the template nor a built-in one."""
        return self._topics.get(name)

    def all(self) -> list[Topic]:
        """Return every topic of the users, including retry and dead-letter topics."""
        return list(self._topics.values())

    def put(self, topic: Topic) -> Topic:
        """Create or change a topic.

        Raises: ConfigError: an illegal name, or a queue count out of range.
        """
        check_topic(topic.name)
        self._check_system(topic.name)
        for count in (topic.read_queues, topic.write_queues):
            if not 1 <= count <= MAX_QUEUES:
                raise ConfigError(
                    f"topic {topic.name!r} with {count} queues: expected 1..{MAX_QUEUES}"
                )
        # Visible before it is durable; see the class.
        self._topics[topic.name] = self._unsaved[topic.name] = topic
        return topic

    def create_by_send(self, name: str, wanted_queues: int) -> Topic | None:
        """Create the topic of a first send; None if auto_create_topics is off.

        Raises: ConfigError: an illegal name.
        """
        # As in RocketMQ: the producer's default_topic_queue_nums, at most the template's count.
        if not self._config.auto_create_topics:
            return None
        count = min(max(wanted_queues, 1), self._template.write_queues)
        return self.put(Topic(name, count, count))

    def ensure_internal(self, name: str) -> Topic:
        """Return a group's retry or dead-letter topic; it has one queue, created if missing."""
        return self._topics.get(name) or self.put(Topic(name, 1, 1))

    def remove(self, name: str) -> None:
        """Forget a topic; the caller drops its logs with `Store.forget_topic`.

        Raises: ConfigError: it belongs to the broker.
        """
        self._check_system(name)
        self._topics.pop(name, None)
        self._unsaved.pop(name, None)

    def _check_system(self, name: str) -> None:
        if is_system_topic(name) or name in self._built_in:
            raise ConfigError(
                f"topic {name!r} belongs to the broker: it can neither be changed nor deleted"
            )

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def unsaved(self) -> tuple[list[Topic], list[Statement]]:
        """Return the topics that are not durable yet, and the statements that store them."""
        topics = list(self._unsaved.values())
        return topics, [
            Statement(
                "INSERT OR REPLACE INTO topics VALUES (?, ?)",
                (topic.name, orjson.dumps(asdict(topic)).decode()),
            )
            for topic in topics
        ]

    def saved(self, topics: Iterable[Topic]) -> None:
        """Note that a write with these topics is durable."""
        # By identity: a topic changed again while the write was under way stays unsaved.
        for topic in topics:
            if self._unsaved.get(topic.name) is topic:
                del self._unsaved[topic.name]


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
