"""How options of a Spark format are read: text to value, every fault in one error.

A format's options are one table of `Setting`s, which `docs/spark.md` is held against by a test.
Spark brings keys in lower case; ours are compared without their underscores too, so that
`startingOffsets` and `starting_offsets` are one option.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from ordermq.client.name_server_api import parse_name_servers
from ordermq.config import LeaseConfig, ProducerConfig, RemotingConfig, SendConfig
from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS, checked_columns
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_sendable_topic, check_topic
from ordermq.model.subscription import Subscription
from ordermq.producer.queue_selector import selector_of

_E = TypeVar("_E", bound=StrEnum)

# What Spark itself hands on, and that means nothing here: of sinks, then of CREATE TABLE.
_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "comment", "external"}
    | {"is_managed_location", "collation"}
)
_OF_TABLE: Final = "option."  # before each option while CREATE TABLE asks for the schema
_SECRET: Final = frozenset({"secret_key", "security_token"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One option.

    Args:
        name: in snake_case.
        read: text to value; raises ValueError, whose text is not shown.
        allowed: what is allowed, for the error and the page.
        default: its value where it is not given.
        says: what it does, for the page.
    """

    name: str
    read: Callable[[str], Any]
    allowed: str
    default: Any
    says: str


def read_options(settings: Iterable[Setting], given: Mapping[str, str]) -> dict[str, Any]:
    """The value of every setting.

    Raises: ConfigError: names each option that is unknown or wrong, its value, what is allowed.
    """
    table = {_folded(setting.name): setting for setting in settings}
    values = {setting.name: setting.default for setting in table.values()}
    faults: list[str] = []
    for told, text in given.items():
        key = told[len(_OF_TABLE) :] if told.lower().startswith(_OF_TABLE) else told
        setting = table.get(_folded(key))
        if setting is None:
            faults += _unknown(key, table)
            continue
        try:
            values[setting.name] = setting.read(text.strip())
        except ValueError:
            shown = "(not shown)" if setting.name in _SECRET else repr(text)
            faults.append(f"option {setting.name}={shown}: expected {setting.allowed}")
    if faults:
        raise ConfigError("; ".join(faults))
    return values


def missing(*names: str) -> ConfigError:
    """The error for options that are needed and were not given.

    A table made by CREATE TABLE is named too: Spark forgets its options.
    """
    text = " and ".join(names)
    return ConfigError(
        f"option {text} is missing: give it by .option(...). Of a table made by CREATE TABLE ... "
        "USING ordermq Spark forgets the OPTIONS: read it as SELECT * FROM t WITH (topic '...', "
        "name_servers '...'), by spark.read.option(...).table('t'), or make it a TEMPORARY VIEW"
    )


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _unknown(key: str, table: Mapping[str, Setting]) -> list[str]:
    if key.lower() in _SPARKS_OWN:
        return []
    if key.lower() == "path":
        return ["a path, as load('...') gives it, means nothing here: use option topic"]
    near = difflib.get_close_matches(_folded(key), table, n=1)
    hint = f"; did you mean {table[near[0]].name}?" if near else ""
    return [f"no option {key!r}{hint}"]


# Readers of values; each raises ValueError.


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value:
        raise ValueError
    return value


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number of a range."""

    def read(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def flag(value: str) -> bool:
    """true or false, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError
    return value.lower() == "true"


def choice(kind: type[_E]) -> Callable[[str], _E]:
    """A member of an enumeration by its value; case and underscores do not count."""
    members = {_folded(member.value): member for member in kind}

    def read(value: str) -> _E:
        member = members.get(_folded(value))
        if member is None:
            raise ValueError
        return member

    return read


def config_settings(kind: type[Any], **says: str) -> tuple[Setting, ...]:
    """Settings of the fields of a dataclass of `ordermq.config`, which checks their ranges.

    Args:
        kind: the dataclass; each field a flag, a whole number, a text or a choice.
        says: a field's name and what it does; only these become settings.
    """
    defaults = kind()
    return tuple(_of_field(name, getattr(defaults, name), said) for name, said in says.items())


def config_of(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The dataclass of these values; what is not in them keeps its default.

    Raises: ConfigError: a value out of its range.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in fields})


def _of_field(name: str, default: Any, says: str) -> Setting:
    if isinstance(default, bool):
        return Setting(name, flag, "true or false", default, says)
    if isinstance(default, StrEnum):
        kind = type(default)
        allowed = "one of " + ", ".join(member.value for member in kind)
        return Setting(name, choice(kind), allowed, default, says)
    if isinstance(default, int):
        return Setting(name, whole(0, 1 << 62), "a whole number", default, says)
    return Setting(name, str, "a text", default, says)


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
