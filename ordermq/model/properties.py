"""Message properties: names, and the encoding in records and requests
(docs/internals/protocol.md#stored-message).
"""

from __future__ import annotations

from collections.abc import Mapping

from ordermq.errors import ConfigError, ProtocolError

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
UNIQ_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TIMER_DELAY_S = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMERS = (TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # in the order of brokers' precedence
DELAYS = (DELAY, *TIMERS)
TIMER_OUT_MS = "TIMER_OUT_MS"  # set by brokers: when a timed message is due
CORRELATION_ID = "CORRELATION_ID"  # of a request and its reply
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"  # client id of the requester
TTL = "TTL"  # ms that the requester waits
MESSAGE_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"  # set by brokers
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"  # set by brokers
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
POP_HANDLE = "POP_CK"  # set by brokers: of a message that comes from a retry topic

# Every name that RocketMQ gives a meaning to (its MessageConst), whoever sets it: a client, a
# broker or a proxy. What is left of a received message without these are its user properties.
PROTOCOL_NAMES = frozenset({
    KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QUEUE_ID, UNIQ_KEY, SHARDING_KEY,
    ORIGIN_MESSAGE_ID, RECONSUME_TIME, MAX_RECONSUME_TIMES, TRANSACTION_PREPARED, PRODUCER_GROUP,
    TRANSACTION_ID, TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS, CORRELATION_ID,
    REPLY_TO_CLIENT, TTL, MESSAGE_TYPE, CLUSTER, PUSH_REPLY_TIME, REGION, TRACE_ON,
    CHECK_IMMUNITY_S, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, POP_HANDLE,
    "1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CONSUME_START_TIME",
    "CORRECTION_FLAG", "DUP_INFO", "EXTEND_UNIQ_INFO", "INNER_BASE", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INSTANCE_ID", "MAX_OFFSET", "MIN_OFFSET", "MQ2_FLAG",
    "POP_CK_OFFSET", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "TIMER_DELAY_LEVEL",
    "TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES",
    "TRACE_CONTEXT", "TRANSACTION_CHECK_TIMES", "TRANSFER_FLAG", "TRAN_PREPARED_QUEUE_OFFSET",
    "__BORNHOST", "__CRC32#",
})  # fmt: skip
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."

MAX_BYTES = 32_767  # a record stores the length as a signed 16-bit number
# For a message that is sent. What a retry, a dead letter, a parked copy or the end of a transaction
# adds, such as the message's topic, must fit as well: no broker would ever store it.
MAX_SENT_BYTES = MAX_BYTES - 640
_NAME_END = "\x01"
_VALUE_END = "\x02"


def split_keys(text: str) -> list[str]:
    """Return the keys of a property KEYS, which are separated by blanks.

    Other white space is a part of its key, as for the brokers that index keys (IndexService of
    https://github.com/apache/rocketmq).
    """
    return [key for key in text.split(" ") if key]


def encode(properties: Mapping[str, str]) -> str:
    """Encode properties; empty values are left out, because readers drop them.

    Raises: ConfigError: a name or value is not a str, or contains a separator.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError(f"property name {name!r} must be a str, got {type(name).__name__}")
        if not isinstance(value, str):
            raise ConfigError(f"property {name!r} must be a str, got {type(value).__name__}")
        if not value:
            continue
        if not name or _has_separator(name) or _has_separator(value):
            raise ConfigError(
                f"property {name!r}={value!r}: the name must not be empty, and name and value must "
                "not contain the separators U+0001 and U+0002"
            )
        parts.append(name + _NAME_END + value + _VALUE_END)
    text = "".join(parts)
    # Only surrogates can fail; checked here, where the caller still is, not on the I/O thread.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"message properties cannot be encoded as UTF-8: {error}") from None
    return text


def encode_plain(name: str, value: str) -> str:
    """Encode one property without checks, for names and values made by this package."""
    return f"{name}{_NAME_END}{value}{_VALUE_END}"


def of_the_user(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that mean nothing to RocketMQ."""
    return {
        name: value
        for name, value in properties.items()
        if name not in PROTOCOL_NAMES and not name.startswith(TRANSIENT_PREFIX)
    }


def _has_separator(text: str) -> bool:
    return _NAME_END in text or _VALUE_END in text


def decode(text: str) -> dict[str, str]:
    """Decode properties as Java does: pieces without a name or value are dropped."""
    found: dict[str, str] = {}
    for piece in text.split(_VALUE_END):
        name, separator, value = piece.partition(_NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def has(data: bytes, name: str) -> bool:
    """Return True if the properties of a record, which need not be UTF-8, have one of this name."""
    begin = f"{name}{_NAME_END}".encode()
    return any(part.startswith(begin) for part in data.split(_VALUE_END.encode()))


def with_one(data: bytes, name: str, value: str) -> bytes:
    """Return the properties of a record with another one, which counts before one of its name.

    The others stay as their sender made them, whatever they are.
    """
    end = b"" if not data or data.endswith(_VALUE_END.encode()) else _VALUE_END.encode()
    return data + end + encode_plain(name, value).encode()


def with_default(data: bytes, name: str, value: str) -> bytes:
    """Return the properties of a record, with this one if they have none of its name."""
    return data if has(data, name) else with_one(data, name, value)


def decode_bytes(data: bytes) -> dict[str, str]:
    """Decode the properties of a record.

    Raises: ProtocolError: not UTF-8.
    """
    try:
        return decode(data.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"message properties are not UTF-8: {error}") from None
