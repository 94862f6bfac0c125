"""The options of the sink: one table, read and checked at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ordermq.config import ProducerConfig, RemotingConfig, SendConfig
from ordermq.errors import ConfigError
from ordermq.model.names import check_group, check_sendable_topic
from ordermq.producer.selectors import selector_of
from ordermq.spark.options import CLIENT
from ordermq.spark.settings import (
    Setting,
    choice,
    config_of,
    config_settings,
    missing,
    read_options,
    text,
)

SINK_GROUP: Final = "ordermq-spark-sink"


class Order(StrEnum):
    """What the sink promises of the order of what it sends."""

    KEY = "key"  # within a sharding key; without one, within a source queue
    QUEUE = "queue"  # also within a target queue: one task of a batch feeds it
    NONE = "none"


def _selector(value: str) -> str:
    selector_of(value)
    return value


SINK: Final = (
    *CLIENT,
    Setting(
        "topic", lambda name: check_sendable_topic(name) or name, "a topic's name", "", "where to"
    ),
    Setting("topic_column", text, "a column's name", "", "the column that names it, instead"),
    Setting("group", check_group, "a producer group's name", SINK_GROUP, "the producer group"),
    Setting("body_column", text, "a column's name", "body", "the message: BINARY or STRING"),
    Setting(
        "key_column",
        text,
        "a column's name",
        "sharding_key",
        "the sharding key, whose messages stay in order; used if it is there",
    ),
    Setting(
        "queue_column",
        text,
        "a column's name",
        "",
        "INT: the target queue's number among the topic's queues, sorted; instead of the key's",
    ),
    Setting(
        "selector",
        _selector,
        "java, go, sip or sha256",
        "java",
        "which queue a key goes to; all producers of a topic must agree",
    ),
    Setting(
        "order",
        choice(Order),
        "key, queue or none",
        Order.KEY,
        "what is promised, and refused where the plan cannot keep it: order within a key, or "
        "one task for each target queue too, or nothing",
    ),
    *config_settings(
        SendConfig,
        send_timeout_ms="of one try",
        retry_times="re-sends of a batch after a time-out, to the same queue",
        retry_delay_ms="before the first of them",
        max_batch_bytes="bodies and properties of one request",
        default_topic_queue_nums="queues of a topic that its first message makes",
        allow_queue_change="go on when the topic's queues change: keys move",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a user asks of the sink; see `SINK` for each."""

    name_servers: str
    topic: str
    topic_column: str
    group: str
    body_column: str
    key_column: str
    queue_column: str
    selector: str
    order: Order
    config: ProducerConfig

    @classmethod
    def of(cls, given: Mapping[str, str], columns: Mapping[str, Any]) -> SinkOptions:
        """Read the options of a format, and hold them against the DataFrame's columns.

        Raises: ConfigError: names every option at fault; a column that is not there.
        """
        values = read_options(SINK, given)
        if not values["name_servers"]:
            raise missing("name_servers")
        if bool(values["topic"]) == bool(values["topic_column"]):
            raise ConfigError(
                "the sink needs option topic, or option topic_column, one of the two. The "
                "column `topic` of the source says where a row comes from, not where it goes"
            )
        folded = {name.lower().replace("_", "") for name in given}
        for option in ("body_column", "topic_column", "queue_column", "key_column"):
            name = values[option]
            is_wanted = option == "body_column" or option.replace("_", "") in folded
            if name and is_wanted and name not in columns:
                raise ConfigError(
                    f"option {option}={name!r}: the DataFrame has no such column; it has "
                    f"{', '.join(columns)}"
                )
        config = ProducerConfig(
            remoting=config_of(RemotingConfig, values), send=config_of(SendConfig, values)
        )
        own = {name: values[name] for name in cls.__slots__ if name in values}
        if values["key_column"] not in columns:
            own["key_column"] = ""
        return cls(config=config, **own)
