"""Headers: the named fields of each request and response, as records
(docs/internals/protocol.md#commands).

Each class lists its fields once, with their names on the wire; `to_ext` and `from_ext` are
generated from them. Booleans are sent as `true` and `false`, numbers in decimal, missing values
not at all. Those of requests that few programs make are in rare_headers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, NoReturn, Self, dataclass_transform

from ordermq.errors import ProtocolError
from ordermq.value import Record


def ext_field(name: str, *, default: Any = MISSING) -> Any:
    """Declare a field whose name on the wire is another one."""
    return field(metadata={"ext": name}, default=default)


@dataclass_transform(field_specifiers=(ext_field,))
class Header(Record):
    """Base of all headers, whose fields are `ext_field`s."""

    def __init__(self, *given: Any, **named: Any) -> None:
        _constructor(type(self))(self, *given, **named)  # the first one; it replaces this

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the fields of a received command.

        Raises: ProtocolError: a required field is missing, or is not a number.
        """
        header: Self = (_READERS.get(cls) or _reader(cls))(ext)
        return header

    def to_ext(self) -> dict[str, str]:
        """Return the fields that have a value, by their names on the wire."""
        return (_WRITERS.get(type(self)) or _writer(type(self)))(self)


# Every request and response passes the functions below; loops over the fields took four times as
# long. Each is generated at its first use: a client reads no requests and writes no responses.
_READERS: dict[type, Callable[[Mapping[str, str]], Any]] = {}
_WRITERS: dict[type, Callable[[Any], dict[str, str]]] = {}


def _constructor(header: type[Header]) -> Callable[..., None]:
    """Generate and keep the constructor of a header."""
    names: dict[str, Any] = {}
    arguments, lines = ["self"], []
    for part in fields(header):
        name = part.name
        names[f"default_{name}"] = part.default
        arguments.append(name if part.default is MISSING else f"{name}=default_{name}")
        lines.append(f"    self.{name} = {name}")
    made = _made("__init__", [f"def __init__({', '.join(arguments)}):", *lines], names)
    header.__init__ = made  # type: ignore[method-assign]
    return made


def _reader(header: type[Header]) -> Callable[[Mapping[str, str]], Any]:
    """Generate and keep the function that reads a header."""
    names: dict[str, Any] = {"cls": header, "number": _number, "missing": _missing}
    lines = ["def from_ext(ext):", "    get = ext.get"]
    for part in fields(header):
        name, wire, kind = _wire_form(part)
        names[f"default_{name}"] = part.default
        # A required field that is empty counts as missing: only strings may be empty.
        is_needed = part.default is MISSING
        absent = f"missing(cls, {wire!r}, {name!r})" if is_needed else f"default_{name}"
        lines.append(f"    {name} = get({wire!r})")
        is_absent = f"{name} is None" if kind == "str" else f"not {name}"
        lines.append(f"    if {is_absent}: {name} = {absent}")
        if kind == "int":
            # The usual case without a call: up to 18 digits cannot overflow a Java long.
            is_plain = f"len({name}) < 19 and {name}.isdecimal() and {name}.isascii()"
            lines.append(f"    elif {is_plain}: {name} = int({name})")
            lines.append(f"    else: {name} = number(cls, {name}, {wire!r}, {name!r})")
        elif kind == "bool":
            lines.append(f"    else: {name} = {name}.lower() == 'true'")
    lines.append(f"    return cls({', '.join(part.name for part in fields(header))})")
    _READERS[header] = made = _made("from_ext", lines, names)
    return made


def _writer(header: type[Header]) -> Callable[[Any], dict[str, str]]:
    """Generate and keep the function that writes a header."""
    lines = ["def to_ext(self):", "    ext = {}"]
    texts = {"int": "str(int(value))", "bool": "'true' if value else 'false'", "str": "value"}
    for part in fields(header):
        name, wire, kind = _wire_form(part)
        lines.append(f"    value = self.{name}")
        lines.append(f"    if value is not None: ext[{wire!r}] = {texts[kind]}")
    _WRITERS[header] = made = _made("to_ext", [*lines, "    return ext"], {})
    return made


def _wire_form(part: Field[Any]) -> tuple[str, str, str]:
    """Return the name of a field, its name on the wire, and its type."""
    return part.name, part.metadata.get("ext", part.name), str(part.type).split(" ")[0]


def _made(name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    # Only names of fields of this module get into the source, nothing that was received.
    exec("\n".join(lines), names)
    made: Callable[..., Any] = names[name]
    return made


def _missing(header: type[Header], wire: str, name: str) -> NoReturn:
    raise ProtocolError(f"{header.__name__}: field {wire!r} ({name}) is missing")


def _number(header: type[Header], text: str, wire: str, name: str) -> int:
    try:
        return _read_int(text)
    except ValueError:
        raise ProtocolError(
            f"{header.__name__}: field {wire!r} ({name}) is {text!r}, not a number"
        ) from None


def _read_int(text: str) -> int:
    value = int(text)
    # Python reads larger numbers and "1_0", which a Java long is not; SQLite could not store them.
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    if not text.isascii() or not text[-1].isdecimal() or "_" in text or text[0].isspace():
        raise ValueError
    return value


class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str
    # Otherwise the answer may have unquoted broker ids, which is not JSON.
    accept_standard_json: bool | None = ext_field("acceptStandardJsonOnly", default=None)


class TopicHeader(Header):
    """DELETE_TOPIC_IN_BROKER 215, DELETE_TOPIC_IN_NAMESRV 216, and others of one topic."""

    topic: str


class SendHeader(Header):
    """SEND_MESSAGE_V2 310 and SEND_BATCH_MESSAGE 320: names shortened to one letter."""

    # In the order of use, not of the letters: c and d have defaults.
    producer_group: str = ext_field("a")
    topic: str = ext_field("b")
    queue_id: int = ext_field("e")
    sys_flag: int = ext_field("f", default=0)  # a message's: other bits than those of a pull
    born_timestamp_ms: int = ext_field("g", default=0)
    flag: int = ext_field("h", default=0)
    # An unknown topic is created like this one, with the smaller of both numbers of queues.
    default_topic: str = ext_field("c", default="TBW102")
    default_topic_queue_nums: int = ext_field("d", default=4)
    properties: str = ext_field("i", default="")
    reconsume_times: int = ext_field("j", default=0)
    unit_mode: bool | None = ext_field("k", default=None)
    max_reconsume_times: int | None = ext_field("l", default=None)
    batch: bool | None = ext_field("m", default=None)
    broker_name: str | None = ext_field("n", default=None)


class SendReplyHeader(Header):
    """Response to a send; the ids of a batch are joined with commas."""

    # The first three are required: Java's client fails on a response without fields.
    message_id: str = ext_field("msgId")
    queue_id: int = ext_field("queueId")
    queue_offset: int = ext_field("queueOffset")  # of the first message of a batch
    transaction_id: str | None = ext_field("transactionId", default=None)
    region: str | None = ext_field("MSG_REGION", default=None)
    trace_on: str | None = ext_field("TRACE_ON", default=None)
    recall_handle: str | None = ext_field("recallHandle", default=None)


class PullHeader(Header):
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    queue_offset: int = ext_field("queueOffset")
    max_messages: int = ext_field("maxMsgNums")
    sys_flag: int = ext_field("sysFlag")  # a PullFlag: other bits than those of a message
    # Java's consumers commit with a pull. Ours never do: the response does not acknowledge it.
    commit_offset: int = ext_field("commitOffset", default=0)
    suspend_timeout_ms: int = ext_field("suspendTimeoutMillis", default=0)
    subscription: str | None = None
    # A broker that has an older subscription than this answers 25: heartbeat first, then pull.
    subscription_version: int = ext_field("subVersion", default=0)
    expression_type: str | None = ext_field("expressionType", default=None)
    max_bytes: int | None = ext_field("maxMsgBytes", default=None)  # RocketMQ's broker ignores it
    broker_name: str | None = ext_field("bname", default=None)


class PullReplyHeader(Header):
    """Response to a pull with code 0, 19, 20 or 21."""

    # After the last message the broker looked at, whether it matched or not.
    next_begin_offset: int = ext_field("nextBeginOffset")
    min_offset: int = ext_field("minOffset")
    max_offset: int = ext_field("maxOffset")
    suggested_broker_id: int = ext_field("suggestWhichBrokerId", default=0)
    # For a static topic of RocketMQ 5: what its records' offsets lack.
    offset_delta: int | None = ext_field("offsetDelta", default=None)


class QueryOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET 14."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    # RocketMQ's broker answers 0 instead of "not found" anyway, while the queue's first message is
    # in memory (rmq#9083).
    set_zero_if_not_found: bool | None = ext_field("setZeroIfNotFound", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class UpdateOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET 15; the `omq` fields are extensions that make it conditional."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    # May be lower than the stored one: resets do that.
    commit_offset: int = ext_field("commitOffset")
    broker_name: str | None = ext_field("bname", default=None)
    epoch: int | None = ext_field("omqEpoch", default=None)
    client_id: str | None = ext_field("omqClientId", default=None)
    reset: bool | None = ext_field("omqReset", default=None)


class QueueHeader(Header):
    """GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32."""

    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    committed: bool | None = None
    broker_name: str | None = ext_field("bname", default=None)


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP 29."""

    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    timestamp_ms: int = ext_field("timestamp")
    boundary: str | None = ext_field("boundaryType", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class OffsetReplyHeader(Header):
    """Response to 14, 29, 30 and 31."""

    offset: int


class GroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40, and others of one group."""

    group: str = ext_field("consumerGroup")


class UnregisterHeader(Header):
    """UNREGISTER_CLIENT 35."""

    client_id: str = ext_field("clientID")
    producer_group: str | None = ext_field("producerGroup", default=None)
    consumer_group: str | None = ext_field("consumerGroup", default=None)


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK 36."""

    physical_offset: int = ext_field("offset")
    group: str = ext_field("group")
    delay_level: int = ext_field("delayLevel")  # 0: the broker chooses; below 0: dead letter
    origin_message_id: str | None = ext_field("originMsgId", default=None)
    origin_topic: str | None = ext_field("originTopic", default=None)
    unit_mode: bool | None = ext_field("unitMode", default=None)
    max_reconsume_times: int | None = ext_field("maxReconsumeTimes", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class LockExtHeader(Header):
    """Extensions of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, in requests and responses.

    In a lock request `epochs` is "1", which asks for epochs. In its response and in an unlock
    request it holds one epoch per queue, joined with commas in the order of the body's queues.
    """

    epochs: str | None = ext_field("omqEpochs", default=None)
    lease_ms: int | None = ext_field("omqLeaseMs", default=None)
    broker_id: str | None = ext_field("omqBrokerId", default=None)

    def epoch_list(self) -> list[int]:
        """Return `epochs` as numbers.

        Raises: ProtocolError: one of them is not a number of 64 bits.
        """
        try:
            epochs = [_read_int(text) for text in self.epochs.split(",")] if self.epochs else []
            if min(epochs, default=0) < 0:
                raise ValueError
            return epochs
        except ValueError:
            raise ProtocolError(f"omqEpochs is {self.epochs!r:.100}, not numbers") from None
