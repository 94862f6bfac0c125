"""The options of the source and of the sink: their tables, and how a text becomes a value.

The options of a format are one table of `Setting`s. ci/spark_options.py makes the tables of
docs/spark.md from them, and a test compares the page with the code.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from ordermq.client.name_server_api import parse_name_servers
from ordermq.clock import SystemClock
from ordermq.config import LeaseConfig, ProducerConfig, RemotingConfig, SendConfig
from ordermq.config.address_map import AddressMap
from ordermq.config.checks import ranges_of
from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS, checked_columns
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_sendable_topic, check_topic
from ordermq.model.subscription import Subscription
from ordermq.producer.queue_selector import selector_of
from ordermq.spark.schema import ORIGIN_COLUMNS, by_own_names
from ordermq.wall_time import moment_ms

_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")

# A pull request names a group. The broker creates it, or refuses the pull where it may not.
READ_GROUP: Final = "ordermq-spark"  # a pull request must name a group: this one by default
SINK_GROUP: Final = "ordermq-spark-sink"
_DAY_MS: Final = 86_400_000

# Keys that Spark passes on although they mean nothing to a format. The first two are of sinks,
# the others of CREATE TABLE; refusing them would refuse every such query.
_SPARK_KEYS: Final = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "comment", "external"}
    | {"is_managed_location", "collation"}
)
# Spark puts this before each key while CREATE TABLE asks for the schema.
_TABLE_PREFIX: Final = "option."
# A broker spends on a request as much as on some hundred rows. Those of RocketMQ take 4 MiB.
_SINK_BATCH_BYTES: Final = 1_048_576
# The values of these are left out of errors: an error ends in logs and in Spark's web pages.
_SECRET: Final = frozenset({"secret_key", "security_token"})
_ADDRESSES: Final = frozenset({"name_servers", "address_map"})


# Reading options.


@dataclass(frozen=True, slots=True)
class Setting:
    """One option.

    Args:
        name: in snake_case.
        read: turns text into the value; raises ValueError, whose text is not shown.
        allowed: type and range, for the error and the page.
        default: the value where the option is not given.
        description: one line for the page.
    """

    name: str
    read: Callable[[str], Any]
    allowed: str
    default: Any
    description: str


def read_options(settings: Iterable[Setting], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every setting.

    Args: given: texts, or values of which `_text_of` makes such.
    Raises: ConfigError: names every unknown or wrong option, its value, and what is allowed.
    """
    table = {_normalized(setting.name): setting for setting in settings}
    values = {setting.name: setting.default for setting in table.values()}
    # All faults in one error: a user who corrects one option at a time starts Spark each time.
    faults: list[str] = []
    for key, value in given.items():
        text = _text_of(value)
        name = key[len(_TABLE_PREFIX) :] if key.lower().startswith(_TABLE_PREFIX) else key
        setting = table.get(_normalized(name))
        if setting is None:
            faults += _unknown(name, table)
            continue
        # Every reader raises ValueError, ConfigError included. Its text is dropped: `allowed` says
        # the same in one form for the error and for the page.
        try:
            values[setting.name] = setting.read(text.strip())
        except ValueError:
            # An address with an '@' holds a secret, as https://user:secret@host.
            is_secret = setting.name in _SECRET or (setting.name in _ADDRESSES and "@" in text)
            shown = "(not shown)" if is_secret else repr(text)
            faults.append(f"option {setting.name}={shown}: expected {setting.allowed}")
    if faults:
        raise ConfigError("; ".join(faults))
    return values


def _text_of(value: object) -> str:
    # As Spark's `options(...)` writes Python's values: what serves there serves as client_options.
    return str(value).lower() if isinstance(value, bool) else str(value)


def group_of(options: Mapping[str, object]) -> str:
    """Return the consumer group among options of the format, however its name is written."""
    found = (_text_of(value) for name, value in options.items() if _normalized(name) == "group")
    return next(found, "").strip()


def _missing(*names: str) -> ConfigError:
    # CREATE TABLE is named because a table keeps none of its OPTIONS: Spark drops them, and the
    # user, who did give them, would look for the mistake in vain.
    return ConfigError(
        f"option {' and '.join(names)} is missing: give it by .option(...). A table made by "
        "CREATE TABLE ... USING ordermq loses its OPTIONS in Spark: read it as SELECT * FROM t "
        "WITH (topic '...', name_servers '...'), or by spark.read.option(...).table('t'). A "
        "TEMPORARY VIEW keeps its options, and the messages of its creation"
    )


def _normalized(name: str) -> str:
    # Spark hands keys over in lower case. Without underscores, startingOffsets (as Kafka's
    # connector writes it) and starting_offsets are the same option.
    return name.lower().replace("_", "")


def _unknown(key: str, table: Mapping[str, Setting]) -> list[str]:
    if key.lower() in _SPARK_KEYS:
        return []
    if key.lower() == "path":
        return ["a path, as in load('...'), is not supported: use option topic"]
    instead = _kafkas_option(key)
    if instead is not None:
        return [f"option {key!r} is of Kafka's connector: {instead}"]
    # Spark itself ignores unknown options, so a typo would be a silent default.
    for kind, settings in (("source", SOURCE), ("sink", SINK)):
        if _normalized(key) in {_normalized(setting.name) for setting in settings}:
            return [f"option {key!r} belongs to the {kind}: remove it here"]
    meant = [name for name in _MEANT.get(_normalized(key), ()) if name in table]
    near = meant or difflib.get_close_matches(_normalized(key), table, n=1)
    if near:
        return [f"no option {key!r}; did you mean {table[near[0]].name}?"]
    of_clients = {_normalized(setting.name) for setting in CLIENT}
    own = [setting.name for name, setting in table.items() if name not in of_clients]
    return [f"no option {key!r}: the format has {', '.join(own or of_clients)}"]


# Options of Kafka's connector, in `_normalized` form, which are not also ours, and what to give
# instead. A user who comes from there writes them by habit; the nearest of our names misleads.
_KAFKAS: Final = {
    "kafka.bootstrap.servers": "here name_servers, host:port of RocketMQ's name servers",
    "subscribe": "here topic, several joined by a comma",
    "subscribepattern": "here topic_pattern, a regular expression as Python writes it",
    "assign": "here queues, like topic@broker:0, several joined by a comma",
    "maxoffsetspertrigger": "here max_rows",
    "minoffsetspertrigger": "here min_rows",
    "maxtriggerdelay": "here max_trigger_delay_ms, in milliseconds",
    "maxrecordsperpartition": "here max_rows, or tasks",
    "startingoffsetsbytimestamp": "here starting_timestamp, one for all queues or JSON by queue",
    "endingoffsetsbytimestamp": "here ending_timestamp, one for all queues or JSON by queue",
    "startingoffsetsbytimestampstrategy": "a queue without messages since then begins at its end",
    "includeheaders": "here the column properties, which is always there; columns leaves it out",
    "groupidprefix": "here group",
    "kafka.group.id": "here group",
    "group.id": "here group",
    "bootstrap.servers": "here name_servers, host:port of RocketMQ's name servers",
    "auto.offset.reset": "here starting_offsets, earliest or latest",
    "fetchoffset.numretries": "here read_timeout_ms",
    "fetchoffset.retryintervalms": "here read_timeout_ms",
    "kafkaconsumer.polltimeoutms": "here read_timeout_ms",
    "key": "keys are a column, sharding_key; the sink's option is key_column",
    "value": "the value is a column, body; the sink's option is body_column",
}


# Other names that users try, in `_normalized` form, as are the options that may be meant. The
# nearest name misleads: min_partitions, for `partitions`, gives up the order.
_MEANT: Final = {
    "partition": ("queues", "queuecolumn"),
    "partitions": ("tasks",),
    "numpartitions": ("tasks",),
    "offset": ("startingoffsets",),
    "offsets": ("startingoffsets",),
    "timestamp": ("startingtimestamp",),
    "limit": ("maxrows",),
    "batchsize": ("maxrows", "maxbatchbytes"),
    "consumergroup": ("group",),
    "producergroup": ("group",),
    "subscription": ("topic",),
    "brokers": ("nameservers",),
}


def _kafkas_option(key: str) -> str | None:
    known = _KAFKAS.get(_normalized(key))
    if known is None and key.lower().startswith("kafka."):
        return "the client's settings have names of their own here, without a prefix"
    return known


# Readers of values; each raises ValueError.


def read_string(value: str) -> str:
    """Read a string that is not empty."""
    if not value:
        raise ValueError
    return value


def read_int(low: int, high: int) -> Callable[[str], int]:
    """Make a reader of whole numbers from `low` to `high`."""

    def read(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def read_bool(value: str) -> bool:
    """Read true or false, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError
    return value.lower() == "true"


def read_choice(kind: type[_E]) -> Callable[[str], _E]:
    """Make a reader of an enumeration's values; case and underscores do not count."""
    members = {_normalized(member.value): member for member in kind}

    def read(value: str) -> _E:
        member = members.get(_normalized(value))
        if member is None:
            raise ValueError
        return member

    return read


def config_settings(defaults: Any, **descriptions: str) -> tuple[Setting, ...]:
    """Make settings of the fields of a dataclass of `ordermq.config`.

    The fields have the ranges, so that they are written down once.

    Args:
        defaults: a value of the dataclass.
        descriptions: one line per field; only these fields become settings.
    """
    return tuple(
        _setting_of_field(type(defaults), name, getattr(defaults, name), description)
        for name, description in descriptions.items()
    )


def config_of(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Make the dataclass from these values; fields that are not among them keep their default.

    Raises: ConfigError: a value is out of its range.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in fields})


def _setting_of_field(kind: type[Any], name: str, default: Any, description: str) -> Setting:
    # bool before int: a bool is an int, too.
    if isinstance(default, bool):
        return Setting(name, read_bool, "true or false", default, description)
    if isinstance(default, StrEnum):
        choices = type(default)
        allowed = "one of " + ", ".join(member.value for member in choices)
        return Setting(name, read_choice(choices), allowed, default, description)
    if isinstance(default, int):
        least, most = ranges_of(kind)[name]
        return Setting(name, read_int(least, most), f"int {least}..{most}", default, description)
    return Setting(name, str, "string", default, description)


# Queues and offsets as users write them.


class Edge(StrEnum):
    """An end of a queue at which reading begins or stops."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"  # the group's committed offset; earliest where it has none


@dataclass(frozen=True, slots=True)
class Boundary:
    """The place in each queue where reading begins, or where it stops.

    Args:
        edge: for the queues that neither `offsets` nor `timestamps` names.
        offsets: of single queues.
        timestamp_ms: since 1970; the first message stored then or later, in every queue.
        timestamps: the same, of single queues.
    """

    edge: Edge
    offsets: tuple[tuple[MessageQueue, int | Edge], ...] = ()
    timestamp_ms: int | None = None
    timestamps: tuple[tuple[MessageQueue, int], ...] = ()

    @property
    def named(self) -> tuple[MessageQueue, ...]:
        """The queues that are named."""
        return tuple(queue for queue, _ in (*self.offsets, *self.timestamps))

    @property
    def is_moving(self) -> bool:
        """It is another place later, of one queue at least: an end, or an age."""
        # Nothing tells whether a time that is given by queue was an age.
        places = (self.edge, *(place for _, place in self.offsets))
        return bool(self.timestamps) or Edge.LATEST in places


def queue_text(queue: MessageQueue) -> str:
    """Return a queue's name in offsets: `topic@broker:queue`."""
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def parse_queue(name: str) -> MessageQueue:
    """Return the queue of a name made by `queue_text`.

    Raises: ValueError: it is not such a name.
    """
    # From the right: a broker's name may contain a colon, a queue id cannot.
    where, _, number = name.rpartition(":")
    # From the left: neither part is checked further, a queue that does not exist is found later
    # by its route.
    topic, _, broker = where.partition("@")
    # More than digits, like a sign or a line's end, would name a queue that it is not.
    if not topic or not broker or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name!r} is not a queue: expected topic@broker:queue")
    return MessageQueue(topic, broker, int(number))


@dataclass(frozen=True, slots=True)
class Selection:
    """The queues that a query reads.

    Args:
        topics: their names; empty with a pattern.
        pattern: of whole topic names; those that match later are read, too.
        queues: of these topics only these; empty for all.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    queues: frozenset[MessageQueue] = frozenset()

    def reads_topic(self, topic: str) -> bool:
        """Return whether queues of this topic are read."""
        if self.pattern is not None:
            return self.pattern.fullmatch(topic) is not None
        return topic in self.topics

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether this queue is read, once it exists."""
        return queue in self.queues if self.queues else self.reads_topic(queue.topic)

    @property
    def option(self) -> str:
        """The option that made it."""
        if self.queues:
            return "queues"
        return "topic" if self.pattern is None else "topic_pattern"

    def __str__(self) -> str:
        if self.queues:
            return ", ".join(map(queue_text, sorted(self.queues)))
        return ", ".join(self.topics) if self.pattern is None else self.pattern.pattern


def _read_pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(read_string(value))
    except re.error as error:
        raise ValueError from error


def _read_queues(value: str) -> frozenset[MessageQueue]:
    queues = frozenset(parse_queue(name.strip()) for name in value.split(",") if name.strip())
    if not queues:
        raise ValueError
    for queue in queues:
        check_topic(queue.topic)
    return queues


def _read_topics(value: str) -> tuple[str, ...]:
    # A topic that is named twice would be read twice: each once, in the given order.
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError
    return tuple(check_topic(name) for name in names)


def _read_name_servers(value: str) -> str:
    return ";".join(parse_name_servers(value))


def _read_columns(value: str) -> tuple[str, ...]:
    return checked_columns([name.strip() for name in value.split(",")])


def _read_tags(value: str) -> str:
    # Parsed with any topic: the expression is checked once here, and sent to brokers as it is.
    return Subscription.parse("any", value, 0).expression


def _read_per_queue(
    value: str, read: Callable[[object], _T]
) -> tuple[tuple[MessageQueue, _T], ...]:
    members = json.loads(value)
    if not isinstance(members, dict):
        raise ValueError
    found = sorted(
        ((parse_queue(name), read(each)) for name, each in members.items()),
        key=lambda pair: pair[0],
    )
    if len({queue for queue, _ in found}) < len(found):
        raise ValueError  # as t@b:0 and t@b:00
    return tuple(found)


def _read_offset(where: object) -> int | Edge:
    # JSON's true is an int in Python: refused, or it would be offset 1.
    if isinstance(where, int) and not isinstance(where, bool) and 0 <= where < 1 << 62:
        return where
    if where in (Edge.EARLIEST, Edge.LATEST):
        return Edge(str(where))
    raise ValueError


def _read_start(value: str) -> Boundary:
    if value.startswith("{"):
        return Boundary(Edge.EARLIEST, _read_per_queue(value, _read_offset))
    return Boundary(read_choice(Edge)(value))


def _read_end(value: str) -> Boundary:
    if value.startswith("{"):
        return Boundary(Edge.LATEST, _read_per_queue(value, _read_offset))
    if value.lower() != Edge.LATEST:
        raise ValueError
    return Boundary(Edge.LATEST)


def _read_timestamps(others: Edge) -> Callable[[str], Boundary]:
    """Make a reader of one time for all queues, or of times by queue.

    Args: others: the place in the queues that are not named.
    """

    def read(value: str) -> Boundary:
        if value.startswith("{"):
            return Boundary(others, timestamps=_read_per_queue(value, _read_timestamp))
        return Boundary(Edge.LATEST, timestamp_ms=_read_timestamp(value))

    return read


def _read_timestamp(value: object) -> int:
    text = str(value)
    # A number comes as a text; times, ages and their zone are as in every other place.
    moment = int(text) if text.isascii() and text.isdecimal() else text
    return moment_ms("timestamp", moment, SystemClock().wall_ms())


def _read_selector(value: str) -> str:
    selector_of(value)
    return value


def _read_writer(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", value):
        raise ValueError
    return value


# The options of name servers, accounts and connections, shared by source and sink.


CLIENT: Final = (
    Setting(
        "name_servers",
        _read_name_servers,
        "host:port, several joined by ;",
        "",
        "addresses of the name servers; required",
    ),
    Setting(
        "address_map",
        AddressMap,
        "told=reachable, several joined by ;",
        "",
        "where brokers are reached, if not where the name servers tell; the same on driver and "
        "executors",
    ),
    *config_settings(
        RemotingConfig(),
        access_key="account that signs requests",
        secret_key="secret of the account",
        security_token="session token of a temporary account",
        namespace="namespace of RocketMQ 4: brokers see names as namespace%name",
        namespace_v2="namespace of RocketMQ 5, sent with each request",
        unit_name="unit of a multi-unit deployment; part of the client id",
        client_ip="address in the client id; default the local one",
        serialize_type="encoding of request headers",
        tls="connect with TLS",
        tls_verify="how a server's certificate is verified",
        tls_ca_file="CA bundle (PEM) used to verify the server; a path on driver and executors",
        tls_certificate="client certificate (PEM) for mutual TLS; a path on driver and executors",
        tls_key="private key (PEM) of the client certificate",
        connect_timeout_ms="timeout for opening a connection",
        request_timeout_ms="timeout of route, heartbeat and group member requests",
        offset_timeout_ms="timeout of requests that pull, query or commit offsets",
        lock_timeout_ms="timeout of lock and unlock requests",
        heartbeat_interval_ms="interval between heartbeats of an ordered stream",
        route_interval_ms="interval between route refreshes; a new queue is found at the next one",
        reconnect_delay_ms="pause after a failed connect, doubled up to 16 times",
        forget_broker_after_ms="time after which a broker that is in no route any more is gone",
        max_frame_bytes="longest answer of a broker; a longer one closes the connection",
        check_crcs="compare each body with the checksum that the broker stored with it",
        max_decompressed_bytes="most bytes a body may become when it is decompressed",
    ),
)


# Dead letters and lease checks get all options of the source, or those a user passed to a stage;
# only the ones about servers and accounts concern them.
def client_options(options: Mapping[str, object]) -> tuple[str, RemotingConfig]:
    """Return name servers and connection settings among the options of a format.

    Raises: ConfigError: a value is out of its range.
    """
    known = {_normalized(setting.name) for setting in CLIENT}
    own = {name: value for name, value in options.items() if _normalized(name) in known}
    values = read_options(CLIENT, own)
    return values["name_servers"], config_of(RemotingConfig, values)


def client_of(given: Mapping[str, Any]) -> tuple[str, RemotingConfig]:
    """Return name servers and connection settings that are given as keywords, all of them known.

    Raises: ConfigError: names every wrong option; name_servers is missing.
    """
    values = read_options(CLIENT, given)
    if not values["name_servers"]:
        raise ConfigError("name_servers is missing: give host:port of RocketMQ's name servers")
    _check_account(values)
    return values["name_servers"], config_of(RemotingConfig, values)


# The source.


class ReleaseInFlight(StrEnum):
    """Release of the queue locks when a query stops in the middle of a batch."""

    STRICT = "strict"
    AFTER_PAUSE = "afterPause"


_PER_QUEUE = 'JSON like {"topic@broker:0": 17}'
_TIMES = (
    "ms since 1970 (not seconds), ISO 8601 (without a zone: the driver's local time), an age (15m, "
    '2h, 1d), or JSON like {"topic@broker:0": "2026-11-20"}'
)

SOURCE: Final = (
    *CLIENT,
    Setting(
        "topic",
        _read_topics,
        "topic names joined by ,",
        (),
        "topics to read; this, topic_pattern or queues is required",
    ),
    Setting(
        "topic_pattern",
        _read_pattern,
        "regular expression (Python's)",
        None,
        "read the topics whose whole name matches, in a stream also those that are created later",
    ),
    Setting(
        "queues",
        _read_queues,
        "queues joined by , like topic@broker:0,topic@broker:3",
        frozenset(),
        "read only these queues, in a stream also no new ones",
    ),
    Setting(
        "group",
        check_group,
        "consumer group name",
        "",
        "consumer group whose offsets are read and committed and, in ordered mode, whose queue "
        "locks are held",
    ),
    Setting(
        "tags", _read_tags, "* or tags joined by ||", "*", "read only messages with these tags"
    ),
    Setting(
        "sql",
        read_string,
        "SQL92 condition on properties",
        None,
        "read only messages that fulfil it, as the broker finds: RocketMQ's with "
        "enablePropertyFilter=true; instead of tags",
    ),
    Setting(
        "columns",
        _read_columns,
        f"some of {', '.join(COLUMNS)}",
        COLUMNS,
        "columns to read, in this order; Spark prunes none itself",
    ),
    Setting(
        "all_properties",
        read_bool,
        "true or false",
        False,
        "the column properties has those of RocketMQ, too, like TAGS, UNIQ_KEY, CLUSTER or "
        "DLQ_ORIGIN_TOPIC",
    ),
    Setting(
        "starting_offsets",
        _read_start,
        f"earliest, latest, group, or {_PER_QUEUE} (other queues: earliest)",
        None,
        "where a query without a checkpoint begins. Default: `group` for a stream with a group, "
        "else `earliest`",
    ),
    Setting(
        "starting_timestamp",
        _read_timestamps(Edge.EARLIEST),
        f"{_TIMES} (other queues: earliest)",
        None,
        "begin with the first message stored at this time or later, instead of starting_offsets",
    ),
    Setting(
        "ending_offsets",
        _read_end,
        f"latest, or {_PER_QUEUE} (other queues: latest)",
        Boundary(Edge.LATEST),
        "batch only: where to stop, exclusive; `latest` is resolved when the DataFrame is made",
    ),
    Setting(
        "ending_timestamp",
        _read_timestamps(Edge.LATEST),
        f"{_TIMES} (other queues: latest)",
        None,
        "batch only: stop before the first message stored at this time or later",
    ),
    Setting(
        "max_rows",
        read_int(1, 1 << 40),
        "int >= 1",
        None,
        "maximum number of offsets per micro-batch (or per batch read), shared fairly among queues",
    ),
    Setting(
        "min_rows",
        read_int(1, 1 << 40),
        "int >= 1",
        None,
        "stream: begin a micro-batch when this many messages wait, or after max_trigger_delay_ms; "
        "availableNow reads what there is",
    ),
    Setting(
        "max_trigger_delay_ms",
        read_int(1, _DAY_MS),
        f"int 1..{_DAY_MS}",
        900_000,
        "with min_rows: maximum time from one micro-batch to the next while any message waits",
    ),
    Setting(
        "tasks",
        read_int(1, 1 << 20),
        "int >= 1",
        None,
        "maximum number of tasks that read; queues are packed into them, each whole and in order. "
        "Default: twice the driver's cores, at least 4, more for backlogs beyond 100,000 rows a "
        "task",
    ),
    Setting(
        "min_partitions",
        read_int(1, 1 << 20),
        "int >= 1",
        None,
        "batch only: cut queues into at least this many tasks; their rows are not in order, and "
        "ordered stages refuse them",
    ),
    Setting(
        "fail_on_data_loss",
        read_bool,
        "true or false",
        True,
        "fail when messages expired before they were read; false logs a warning instead",
    ),
    Setting(
        "pushdown",
        read_bool,
        "true or false",
        False,
        "batch only: read only the topics, queues and offsets that a filter selects; needs "
        "spark.sql.python.filterPushdown.enabled=true",
    ),
    Setting(
        "ordered",
        read_bool,
        "true or false",
        None,
        "stream: hold the broker's queue locks as a member of the group, and add the column "
        "`lease`. Default: true with a group",
    ),
    Setting(
        "lock_wait_ms",
        read_int(0, _DAY_MS),
        f"int 0..{_DAY_MS}",
        120_000,
        "ordered: how long a batch waits for queues locked by another member before it fails",
    ),
    Setting(
        "release_in_flight",
        read_choice(ReleaseInFlight),
        "strict or afterPause",
        ReleaseInFlight.STRICT,
        "ordered, stopped in the middle of a batch: let the locks expire at the broker, or "
        "unlock after release_pause_ms",
    ),
    Setting(
        "release_pause_ms",
        read_int(0, _DAY_MS),
        f"int 0..{_DAY_MS}",
        10_000,
        "ordered: time for executors to end after a stop in the middle of a batch",
    ),
    *config_settings(
        LeaseConfig(),
        lock_max_live_ms="ordered: maximum time a lease lasts after its last renewal was sent; "
        "half of RocketMQ's lockMaxLiveTime, which its broker does not report",
        lock_interval_ms="ordered: maximum time between renewals",
    ),
    Setting(
        "pull_batch_size",
        read_int(1, 1_024),
        "int 1..1024",
        1_024,
        "messages requested per pull; RocketMQ's broker returns at most 32 unless configured",
    ),
    Setting(
        "pull_batch_bytes",
        read_int(1_024, 16_000_000),
        "int 1024..16000000",
        1_048_576,
        "bytes requested per pull",
    ),
    Setting(
        "arrow_batch_rows",
        read_int(1, 1 << 20),
        f"int 1..{1 << 20}",
        10_000,
        "maximum rows per Arrow record batch",
    ),
    Setting(
        "read_timeout_ms",
        read_int(1, _DAY_MS),
        f"int 1..{_DAY_MS}",
        60_000,
        "a task fails when the queue's broker does not answer for this long; Spark retries it",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of the source; `SOURCE` describes each."""

    name_servers: str
    selection: Selection
    group: str
    tags: str
    sql: str | None
    columns: tuple[str, ...]
    all_properties: bool
    start: Boundary | None
    end: Boundary
    max_rows: int | None
    min_rows: int | None
    max_trigger_delay_ms: int
    tasks: int | None
    min_partitions: int | None
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

        Raises: ConfigError: names every wrong option, its value and what is allowed.
        """
        values = read_options(SOURCE, given)
        # Checked here and not as a missing value, because their error explains CREATE TABLE.
        wanted = [] if values["name_servers"] else ["name_servers"]
        selected = [name for name in ("topic", "topic_pattern", "queues") if values[name]]
        if wanted or not selected:
            raise _missing(*wanted, *([] if selected else ["topic"]))
        if len(selected) > 1:
            raise ConfigError(f"options {' and '.join(selected)}: give only one of them")
        queues = values["queues"]
        topics = values["topic"] or tuple(sorted({queue.topic for queue in queues}))
        selection = Selection(topics, values["topic_pattern"], queues)
        _check_account(values)
        _check_source(values, selection)
        _check_span(values)
        if values["ordered"] is None:
            values["ordered"] = bool(values["group"])
        # Options whose name and value are the field's go straight in; the others are composed.
        fields = {field.name for field in dataclasses.fields(cls)}
        return cls(
            selection=selection,
            start=values["starting_timestamp"] or values["starting_offsets"],
            end=values["ending_timestamp"] or values["ending_offsets"],
            is_ordered=values["ordered"],
            remoting=config_of(RemotingConfig, values),
            lease=config_of(LeaseConfig, values),
            **{name: value for name, value in values.items() if name in fields},
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named; none with a pattern."""
        return self.selection.topics

    @property
    def read_group(self) -> str:
        """The group that pull requests name."""
        return self.group or READ_GROUP

    def subscription(self, topic: str) -> Subscription:
        """Return the filter of a topic."""
        return Subscription.of(topic, self.tags, self.sql, 0)

    def stream_start(self) -> Boundary:
        """Return where a stream without a checkpoint begins."""
        # With a group it takes over from the member before, be it a query or a push consumer. A
        # batch query does not: it commits nothing, and its result must not depend on others.
        return self.start or Boundary(Edge.GROUP if self.group else Edge.EARLIEST)

    def batch_start(self) -> Boundary:
        """Return where a batch read begins."""
        return self.start or Boundary(Edge.EARLIEST)


def _check_account(values: Mapping[str, Any]) -> None:
    # The dataclass checks it, too, and names itself; the user has given options.
    for given, missing in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if values[given] and not values[missing]:
            raise ConfigError(f"option {given} is given, {missing} is missing: give both")


def _check_span(values: Mapping[str, Any]) -> None:
    """Refuse an end before the start: it would read nothing, and no error would say so."""
    edges = (values["starting_timestamp"], values["ending_timestamp"])
    times = [edge.timestamp_ms for edge in edges if edge is not None]
    if len(times) == 2 and None not in times and times[1] < times[0]:
        raise ConfigError("option ending_timestamp is before starting_timestamp: exchange the two")
    last = dict(values["ending_offsets"].offsets)
    for queue, first in values["starting_offsets"].offsets if values["starting_offsets"] else ():
        until = last.get(queue)
        if isinstance(first, int) and isinstance(until, int) and until < first:
            raise ConfigError(
                f"option ending_offsets has {queue_text(queue)} at {until}, before {first} in "
                "starting_offsets: exchange the two"
            )


def _check_source(values: Mapping[str, Any], selection: Selection) -> None:
    # By comparison with the default: an option that is given with its default changes nothing.
    def is_given(name: str) -> bool:
        default = next(setting.default for setting in SOURCE if setting.name == name)
        return bool(values[name] != default)

    for edge in ("starting", "ending"):
        if is_given(f"{edge}_offsets") and is_given(f"{edge}_timestamp"):
            raise ConfigError(
                f"options {edge}_offsets and {edge}_timestamp: give only one of the two"
            )
    if values["tasks"] is not None and values["min_partitions"] is not None:
        raise ConfigError(
            "options tasks and min_partitions: give only one of the two; tasks keeps the order of "
            "each queue, min_partitions does not"
        )
    if values["sql"] is not None and values["tags"] != "*":
        raise ConfigError("options tags and sql: give only one of the two")
    start = values["starting_offsets"]
    if start is not None and start.edge is Edge.GROUP and not values["group"]:
        raise ConfigError("option starting_offsets='group' needs option group")
    if values["ordered"] and not values["group"]:
        raise ConfigError("option ordered='true' needs option group: its members share the locks")
    for edge in ("starting_offsets", "starting_timestamp", "ending_offsets", "ending_timestamp"):
        boundary = values[edge]
        foreign = [
            queue for queue in (boundary.named if boundary else ()) if not selection.reads(queue)
        ]
        if foreign:
            what = "which" if selection.queues else "whose topic"
            raise ConfigError(
                f"offsets are given for {queue_text(foreign[0])}, {what} is not read: add it to "
                f"option {selection.option}, which is {selection}"
            )


# The sink.


class Order(StrEnum):
    """The order that the sink promises for the messages it sends."""

    KEY = "key"  # within a sharding key; without a key, within a source queue
    QUEUE = "queue"  # also within a target queue: one task per batch sends to it
    NONE = "none"


# `topic` has no default and is not required alone, so it is checked with topic_column in `of`.
SINK: Final = (
    *CLIENT,
    Setting(
        "topic",
        lambda name: check_sendable_topic(name) or name,
        "topic name",
        "",
        "topic to write to; this or topic_column is required",
    ),
    Setting("topic_column", read_string, "column name", "", "column with the topic of each row"),
    Setting("group", check_group, "producer group name", SINK_GROUP, "producer group"),
    Setting("body_column", read_string, "column name", "body", "message body: BINARY or STRING"),
    Setting(
        "key_column",
        read_string,
        "column name",
        "sharding_key",
        "sharding key, whose messages stay in order; used if the DataFrame has the column",
    ),
    Setting(
        "queue_column",
        read_string,
        "column name",
        "",
        "INT column with the index of the target queue among the topic's sorted queues; overrides "
        "the key",
    ),
    Setting(
        "selector",
        _read_selector,
        "java, go, grpc, sip or sha256",
        "java",
        "how a key chooses its queue; all producers of a topic must use the same",
    ),
    Setting(
        "order",
        read_choice(Order),
        "key, queue or none",
        Order.KEY,
        "order to guarantee, else the write fails: within a key; also within a target queue, "
        "which needs one task per queue; or none",
    ),
    Setting(
        "writer",
        _read_writer,
        "up to 32 letters, digits, _ and -",
        "",
        "name of this write in the stamps of its messages; needed where several writes send rows "
        "of one source to one topic that drop_repeats reads",
    ),
    *config_settings(
        SendConfig(max_batch_bytes=_SINK_BATCH_BYTES),
        send_timeout_ms="timeout of one send attempt",
        retry_times="maximum retries of a batch after a timeout, to the same queue",
        retry_delay_ms="delay before the first retry",
        max_batch_bytes="maximum bytes of bodies and properties per request",
        default_topic_queue_nums="number of queues of a topic created by its first message",
        allow_queue_change="continue when the number of the topic's queues changes: keys move to "
        "other queues",
    ),
)


_COLUMN_OPTIONS: Final = ("body_column", "topic_column", "queue_column", "key_column")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of the sink; `SINK` describes each."""

    name_servers: str
    topic: str
    topic_column: str
    group: str
    body_column: str
    key_column: str
    queue_column: str
    selector: str
    order: Order
    writer: str
    config: ProducerConfig

    @classmethod
    def of(cls, given: Mapping[str, str], columns: Mapping[str, Any]) -> SinkOptions:
        """Read the options of a format and check them against the DataFrame's columns.

        Raises: ConfigError: names every wrong option; a column that does not exist.
        """
        values = read_options(SINK, given)
        if not values["name_servers"]:
            raise _missing("name_servers")
        if bool(values["topic"]) == bool(values["topic_column"]):
            # The source has a column `topic`, too. Taking it as the target by default would
            # write the rows of a copied DataFrame back into the topic they were read from.
            raise ConfigError(
                "the sink needs option topic, or option topic_column, exactly one of the two. The "
                "source's column `topic` is where a row comes from, not where it goes"
            )
        _check_account(values)
        # Only columns that the user named must exist, and the body's: a DataFrame without
        # `sharding_key` is written without keys.
        normalized = {_normalized(name) for name in given}
        names = by_own_names(columns, _columns_of(values))
        for option in _COLUMN_OPTIONS:
            name = values[option]
            is_wanted = option == "body_column" or _normalized(option) in normalized
            if name and is_wanted and name not in names:
                raise ConfigError(
                    f"option {option}={name!r}: the DataFrame has no such column; name one of "
                    f"{', '.join(columns)} by this option, or rename one to {name}"
                )
        config = ProducerConfig(
            remoting=config_of(RemotingConfig, values), send=config_of(SendConfig, values)
        )
        own = {name: values[name] for name in cls.__slots__ if name in values}
        if values["key_column"] not in names:
            own["key_column"] = ""
        return cls(config=config, **own)

    def column_names(self, given: Iterable[str]) -> list[str]:
        """Return a DataFrame's columns by the names that the sink knows, whatever their case.

        Raises: ConfigError: two columns differ by their case only, and none is as expected.
        """
        values = {option: getattr(self, option) for option in _COLUMN_OPTIONS}
        return by_own_names(given, _columns_of(values))


def _columns_of(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that a sink with these options reads."""
    named = (values[option] for option in _COLUMN_OPTIONS)
    return [*filter(None, named), *ORIGIN_COLUMNS, "tags", "keys", "properties"]
