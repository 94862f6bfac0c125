"""Message properties: their names, and the text form they travel in
(docs/internals/protocol.md#stored-message)."""

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
TIMER_OUT_MS = "TIMER_OUT_MS"  # set by brokers: when a timed message is due
CORRELATION_ID = "CORRELATION_ID"  # of a request and its reply
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"  # the client id of who asks
TTL = "TTL"  # ms the asker waits
MESSAGE_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"  # noted by brokers
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"  # noted by brokers
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

MAX_BYTES = 32_767  # the length travels as a signed 16-bit number
_NAME_END = "\x01"
_VALUE_END = "\x02"


def encode(properties: Mapping[str, str]) -> str:
    """Join properties into their text form; empty values are left out, as readers drop them.

    Raises: ConfigError: a name or value that is no text, or would tear the list apart.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"property {name!r}={value!r}: expected texts")
        if not value:
            continue
        if not name or _torn(name) or _torn(value):
            raise ConfigError(
                f"property {name!r}={value!r}: names must not be empty, and neither names nor "
                "values may hold the characters U+0001 and U+0002"
            )
        parts.append(name + _NAME_END + value + _VALUE_END)
    text = "".join(parts)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"message properties cannot be written as UTF-8: {error}") from None
    return text


def encode_plain(name: str, value: str) -> str:
    """One property of ours, whose name and value are known to be fit."""
    return f"{name}{_NAME_END}{value}{_VALUE_END}"


def _torn(text: str) -> bool:
    return _NAME_END in text or _VALUE_END in text


def decode(text: str) -> dict[str, str]:
    """Parse the text form as Java does: pieces without a name or a value vanish."""
    found: dict[str, str] = {}
    for piece in text.split(_VALUE_END):
        name, separator, value = piece.partition(_NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def decode_bytes(data: bytes) -> dict[str, str]:
    """Parse the stored form.

    Raises: ProtocolError: not UTF-8.
    """
    try:
        return decode(data.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"message properties are not UTF-8: {error}") from None
