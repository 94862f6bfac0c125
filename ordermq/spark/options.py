"""The options of the source: one table, read and checked at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from ordermq.client.name_server_api import parse_name_servers
from ordermq.config import LeaseConfig, RemotingConfig
from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS, checked_columns
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_topic
from ordermq.model.subscription import Subscription
from ordermq.spark.settings import (
    Setting,
    choice,
    config_of,
    config_settings,
    flag,
    missing,
    read_options,
    whole,
)

READ_GROUP: Final = "ordermq-spark"  # pulls name a group; this one where the user has none
_DAY_MS: Final = 86_400_000


class Edge(StrEnum):
    """Where reading begins or ends, but for offsets given one by one and for times."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"  # where the group has committed; earliest where it has not


class ReleaseInFlight(StrEnum):
    """What becomes of the locks when a query is stopped in the middle of a batch."""

    STRICT = "strict"
    AFTER_PAUSE = "afterPause"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where reading begins, or where it ends.

    Args:
        edge: for the queues `offsets` does not name.
        offsets: of queues named one by one.
        timestamp_ms: since 1970; the first message stored then or later, for every queue.
    """

    edge: Edge
    offsets: tuple[tuple[MessageQueue, int | Edge], ...] = ()
    timestamp_ms: int | None = None


def queue_text(queue: MessageQueue) -> str:
    """`topic@broker:queue`, the name of a queue in offsets."""
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def queue_of(name: str) -> MessageQueue:
    """The queue of such a name.

    Raises: ValueError: it is none.
    """
    where, _, number = name.rpartition(":")
    topic, _, broker = where.partition("@")
    if not topic or not broker:
        raise ValueError(f"{name!r} is no queue: expected topic@broker:queue")
    return MessageQueue(topic, broker, int(number))


def _topics(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError
    return tuple(check_topic(name) for name in names)


def _name_servers(value: str) -> str:
    return ";".join(parse_name_servers(value))


def _columns(value: str) -> tuple[str, ...]:
    return checked_columns([name.strip() for name in value.split(",")])


def _tags(value: str) -> str:
    return Subscription.parse("any", value, 0).expression


def _offsets(value: str) -> tuple[tuple[MessageQueue, int | Edge], ...]:
    told = json.loads(value)
    if not isinstance(told, dict):
        raise ValueError
    return tuple(sorted((queue_of(name), _offset(where)) for name, where in told.items()))


def _offset(where: object) -> int | Edge:
    if isinstance(where, int) and not isinstance(where, bool) and 0 <= where < 1 << 62:
        return where
    if where in (Edge.EARLIEST, Edge.LATEST):
        return Edge(str(where))
    raise ValueError


def _start(value: str) -> Boundary:
    if value.startswith("{"):
        return Boundary(Edge.EARLIEST, _offsets(value))
    return Boundary(choice(Edge)(value))


def _end(value: str) -> Boundary:
    if value.startswith("{"):
        return Boundary(Edge.LATEST, _offsets(value))
    if value.lower() != Edge.LATEST:
        raise ValueError
    return Boundary(Edge.LATEST)


def _timestamp(value: str) -> Boundary:
    if value.isdecimal():
        return Boundary(Edge.LATEST, timestamp_ms=int(value))
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Boundary(Edge.LATEST, timestamp_ms=int(moment.timestamp() * 1_000))


_PER_QUEUE = 'JSON like {"topic@broker:0": 17}'

CLIENT: Final = (
    Setting(
        "name_servers",
        _name_servers,
        "host:port, several joined by ;",
        "",
        "where the name servers are; needed",
    ),
    *config_settings(
        RemotingConfig,
        access_key="the account that signs requests",
        secret_key="its secret",
        security_token="of a temporary account",
        tls="talk TLS",
        tls_verify="what is asked of a server's certificate",
        tls_ca_file="PEM file, on driver and executors: who may sign servers' certificates",
        tls_certificate="PEM file, on driver and executors: ours, where servers ask for one",
        tls_key="PEM file of its key",
        connect_timeout_ms="to open a connection",
        request_timeout_ms="of route, heartbeat and member list",
        offset_timeout_ms="of query and commit of offsets",
        lock_timeout_ms="of lock and unlock",
        heartbeat_interval_ms="between heartbeats of an ordered stream",
        route_interval_ms="how often the routes are asked again: a new queue is seen after that",
    ),
)

SOURCE: Final = (
    *CLIENT,
    Setting("topic", _topics, "names of topics, joined by ,", (), "what to read; needed"),
    Setting(
        "group",
        check_group,
        "a consumer group's name",
        "",
        "the consumer group: whose offsets are read and committed, and, in ordered mode, whose "
        "locks are held",
    ),
    Setting("tags", _tags, "* or tags joined by ||", "*", "only messages with one of these tags"),
    Setting(
        "columns",
        _columns,
        f"some of {','.join(COLUMNS)}",
        COLUMNS,
        "which columns, in which order; Spark prunes none itself",
    ),
    Setting(
        "starting_offsets",
        _start,
        f"earliest, latest, group, or {_PER_QUEUE} (others: earliest)",
        None,
        "where to begin; a stream with a checkpoint goes on from that. Default: of a stream with "
        "a group `group`, else `earliest`",
    ),
    Setting(
        "starting_timestamp",
        _timestamp,
        "ms since 1970, or ISO 8601",
        None,
        "begin with what was stored then or later, instead of starting_offsets",
    ),
    Setting(
        "ending_offsets",
        _end,
        f"latest, or {_PER_QUEUE} (others: latest)",
        Boundary(Edge.LATEST),
        "batch only: where to end, exclusive; latest is what there is when the DataFrame is made",
    ),
    Setting(
        "ending_timestamp",
        _timestamp,
        "ms since 1970, or ISO 8601",
        None,
        "batch only: end before what was stored then or later",
    ),
    Setting(
        "max_rows",
        whole(1, 1 << 40),
        "a whole number from 1",
        None,
        "most offsets of a micro-batch (of a batch read: altogether), shared fairly among queues",
    ),
    Setting(
        "fail_on_data_loss",
        flag,
        "true or false",
        True,
        "fail when messages expired unread, instead of a warning",
    ),
    Setting(
        "pushdown",
        flag,
        "true or false",
        False,
        "batch only: read only the topics, queues and offsets a filter asks for; needs "
        "spark.sql.python.filterPushdown.enabled=true",
    ),
    Setting(
        "ordered",
        flag,
        "true or false",
        None,
        "stream: hold the broker's queue locks as a member of the group, and give the column "
        "`lease`. Default: true with a group",
    ),
    Setting(
        "lock_wait_ms",
        whole(0, _DAY_MS),
        "0..86400000",
        120_000,
        "ordered: how long a batch waits for queues that another member holds, then it fails",
    ),
    Setting(
        "release_in_flight",
        choice(ReleaseInFlight),
        "strict or afterPause",
        ReleaseInFlight.STRICT,
        "ordered, stopped in the middle of a batch: leave the locks to expire at the broker, or "
        "unlock after release_pause_ms",
    ),
    Setting(
        "release_pause_ms",
        whole(0, _DAY_MS),
        "0..86400000",
        10_000,
        "ordered: how long executors are given to end after a stop in the middle of a batch",
    ),
    *config_settings(
        LeaseConfig,
        lock_max_live_ms="ordered: a lease ends so long after its last renewal was sent; half of "
        "RocketMQ's lockMaxLiveTime, which its broker does not tell",
        lock_interval_ms="ordered: the longest time between renewals",
    ),
    Setting(
        "pull_batch_size",
        whole(1, 1_024),
        "1..1024",
        1_024,
        "messages asked for in one pull; RocketMQ's broker gives 32 unless told otherwise",
    ),
    Setting(
        "pull_batch_bytes",
        whole(1_024, 16_000_000),
        "1024..16000000",
        1_048_576,
        "bytes asked for in one pull",
    ),
    Setting(
        "arrow_batch_rows",
        whole(1, 1 << 20),
        "1..1048576",
        10_000,
        "rows of one Arrow record batch",
    ),
    Setting(
        "read_timeout_ms",
        whole(1, _DAY_MS),
        "1..86400000",
        60_000,
        "a task gives up a queue whose broker does not answer for so long; Spark tries it again",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user asks of the source; see `SOURCE` for each."""

    name_servers: str
    topics: tuple[str, ...]
    group: str
    tags: str
    columns: tuple[str, ...]
    start: Boundary | None
    end: Boundary
    max_rows: int | None
    fail_on_data_loss: bool
    pushdown: bool
    is_ordered: bool
    lock_wait_ms: int
    release_in_flight: ReleaseInFlight
    release_pause_ms: int
    pull_batch_size: int
    pull_batch_bytes: int
    arrow_batch_rows: int
    read_timeout_ms: int
    remoting: RemotingConfig
    lease: LeaseConfig

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read the options of a format.

        Raises: ConfigError: names every option at fault, its value and what is allowed.
        """
        values = read_options(SOURCE, given)
        wanted = [name for name in ("name_servers", "topic") if not values[name]]
        if wanted:
            raise missing(*wanted)
        _check_together(values)
        if values["ordered"] is None:
            values["ordered"] = bool(values["group"])
        fields = {field.name for field in dataclasses.fields(cls)}
        return cls(
            topics=values["topic"],
            start=values["starting_timestamp"] or values["starting_offsets"],
            end=values["ending_timestamp"] or values["ending_offsets"],
            is_ordered=values["ordered"],
            remoting=config_of(RemotingConfig, values),
            lease=config_of(LeaseConfig, values),
            **{name: value for name, value in values.items() if name in fields},
        )

    @property
    def read_group(self) -> str:
        """The group that pulls are made for."""
        return self.group or READ_GROUP

    def stream_start(self) -> Boundary:
        """Where a stream without a checkpoint begins."""
        return self.start or Boundary(Edge.GROUP if self.group else Edge.EARLIEST)

    def batch_start(self) -> Boundary:
        """Where a batch read begins."""
        return self.start or Boundary(Edge.EARLIEST)


def _check_together(values: Mapping[str, Any]) -> None:
    def is_given(name: str) -> bool:
        default = next(setting.default for setting in SOURCE if setting.name == name)
        return bool(values[name] != default)

    for way in ("starting", "ending"):
        if is_given(f"{way}_offsets") and is_given(f"{way}_timestamp"):
            raise ConfigError(f"options {way}_offsets and {way}_timestamp: give one of the two")
    start = values["starting_offsets"]
    if start is not None and start.edge is Edge.GROUP and not values["group"]:
        raise ConfigError("option starting_offsets='group' needs option group")
    if values["ordered"] and not values["group"]:
        raise ConfigError("option ordered='true' needs option group: its members share the locks")
    for boundary in (start, values["ending_offsets"]):
        foreign = [
            q for q, _ in (boundary.offsets if boundary else ()) if q.topic not in values["topic"]
        ]
        if foreign:
            raise ConfigError(
                f"offsets are given for {queue_text(foreign[0])}, whose topic is not read: "
                f"option topic names {', '.join(values['topic'])}"
            )
