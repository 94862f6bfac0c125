"""The topics: their queue counts and permissions, and how one comes to be
(docs/internals/protocol.md#names-and-permissions)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from ordermq.broker.group_commit import Statement
from ordermq.broker.store import Store
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

MAX_QUEUES = 65_535
DELAY_LEVELS_MS = tuple(
    seconds * 1_000
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200,
    )
)  # fmt: skip
_OWN = frozenset({AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})


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
        """As 21 and 351 answer it."""
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

    A new topic is usable at once and stays `unsaved` until a write that carries its
    statement is durable: every write that needs the topic carries it until then, so an
    acknowledged message never lies in a topic that a restart does not know.
    """

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._unsaved: dict[str, Topic] = {}
        for name, text in store.rows("SELECT name, config FROM topics"):
            self._topics[str(name)] = Topic(**orjson.loads(str(text)))
        count = config.default_queue_count
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        self._template = Topic(AUTO_CREATE_TOPIC, count, count, perm)
        levels = len(DELAY_LEVELS_MS)
        self._built_in = {
            SCHEDULE_TOPIC: Topic(SCHEDULE_TOPIC, levels, levels),
            # A place on the route of replies, which are pushed and not stored.
            reply_topic(config.cluster_name): Topic(reply_topic(config.cluster_name), 1, 1),
        }

    def get(self, name: str) -> Topic | None:
        """A topic; TBW102, the template of new ones, only while sending makes topics."""
        if name == AUTO_CREATE_TOPIC:
            return self._template if self._config.auto_create_topics else None
        return self._built_in.get(name) or self._topics.get(name)

    def known(self, name: str) -> Topic | None:
        """A topic that clients may send to as it is; neither template nor schedule."""
        return self._topics.get(name)

    def all(self) -> list[Topic]:
        """Every topic of the users, retry and dead-letter topics among them."""
        return list(self._topics.values())

    def put(self, topic: Topic) -> Topic:
        """Create or change a topic.

        Raises: ConfigError: an illegal name, or a queue count out of range.
        """
        check_topic(topic.name)
        self._check_own(topic.name)
        for count in (topic.read_queues, topic.write_queues):
            if not 1 <= count <= MAX_QUEUES:
                raise ConfigError(
                    f"topic {topic.name!r} with {count} queues: expected 1..{MAX_QUEUES}"
                )
        self._topics[topic.name] = self._unsaved[topic.name] = topic
        return topic

    def create_by_send(self, name: str, wanted_queues: int) -> Topic | None:
        """The topic a send to an unknown name makes, if sends may make topics.

        Raises: ConfigError: an illegal name.
        """
        if not self._config.auto_create_topics:
            return None
        count = min(max(wanted_queues, 1), self._template.write_queues)
        return self.put(Topic(name, count, count))

    def ensure_internal(self, name: str) -> Topic:
        """A group's retry or dead-letter topic: one queue, made when first needed."""
        return self._topics.get(name) or self.put(Topic(name, 1, 1))

    def remove(self, name: str) -> None:
        """Forget a topic; its log is the store's to drop.

        Raises: ConfigError: it belongs to the broker.
        """
        self._check_own(name)
        self._topics.pop(name, None)
        self._unsaved.pop(name, None)

    def _check_own(self, name: str) -> None:
        if belongs_to_broker(name) or name in self._built_in:
            raise ConfigError(f"topic {name!r} belongs to the broker")

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def unsaved(self) -> tuple[list[Topic], list[Statement]]:
        """The topics no disk has yet, and what a write must carry to change that."""
        topics = list(self._unsaved.values())
        return topics, [
            (
                "INSERT OR REPLACE INTO topics VALUES (?, ?)",
                (topic.name, orjson.dumps(asdict(topic)).decode()),
            )
            for topic in topics
        ]

    def saved(self, topics: Iterable[Topic]) -> None:
        """Note that a write with these topics is durable."""
        for topic in topics:
            if self._unsaved.get(topic.name) is topic:
                del self._unsaved[topic.name]


def belongs_to_broker(name: str) -> bool:
    """Whether clients neither send to a topic nor pull it."""
    return name in _OWN


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


def group_of_retry_topic(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)


def is_internal_name(name: str) -> bool:
    """Whether a name is that of a group's retry or dead-letter topic."""
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
