"""The writer of sends to a proxy, field by field."""

from __future__ import annotations

import re
from typing import Final

from ordermq.core.reference.arguments import out_of_range
from ordermq.core.reference.message_writer import _messages
from ordermq.errors import ProtocolError

_VARINT, _BYTES = 0, 2  # how a field is written
# Fields of a SendMessageRequest, of a Message, of an entry of its map, and of a time.
_MESSAGE, _TOPIC, _USER_PROPERTY, _SYSTEM, _BODY = 1, 1, 2, 3, 4
_NAME, _VALUE, _SECONDS, _NANOS = 1, 2, 1, 2
_TAG, _KEY, _MESSAGE_ID, _ENCODING, _TYPE, _BORN, _DELIVER = 1, 2, 3, 5, 6, 7, 11
_GROUP, _TRACE, _RECOVERY = 17, 18, 19
_IDENTITY, _ZIPPED = 1, 2
_NORMAL, _FIFO, _DELAYED, _TRANSACTION = 1, 2, 3, 4
_MOST: Final = 1 << 53
_NUMBER: Final = re.compile(r"-?[0-9]+")
# Names that fields of a message say, or nothing can.
_SAID: Final = frozenset({
    "UNIQ_KEY", "__SHARDINGKEY", "TAGS", "KEYS", "TRACE_CONTEXT", "DELAY", "TIMER_DELIVER_MS",
    "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TRAN_MSG", "CHECK_IMMUNITY_TIME_IN_SECONDS",
})  # fmt: skip
# Names with a meaning to RocketMQ that no field of a message has; PROTOCOL_NAMES of
# ordermq/model/properties.py has all.
_UNSAID: Final = frozenset({
    "WAIT", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES", "PGROUP", "__transactionId__", "TIMER_OUT_MS", "CORRELATION_ID",
    "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "CLUSTER", "PUSH_REPLY_TIME", "MSG_REGION", "TRACE_ON",
    "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "POP_CK", "1ST_POP_TIME", "ARRIVE_TIME",
    "BORN_TIMESTAMP", "BUYER_ID", "CONSUME_START_TIME", "CORRECTION_FLAG", "DUP_INFO",
    "EXTEND_UNIQ_INFO", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM", "INSTANCE_ID", "MAX_OFFSET", "MIN_OFFSET", "MQ2_FLAG", "POP_CK_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "TIMER_DELAY_LEVEL", "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES", "TRANSACTION_CHECK_TIMES",
    "TRANSFER_FLAG", "TRAN_PREPARED_QUEUE_OFFSET", "__BORNHOST", "__CRC32#",
})  # fmt: skip
_TRANSIENT: Final = "__RMQ.TRANSIENT."


def encode_proxy_send(
    topic: bytes,
    body: bytes,
    properties: str | None,
    *,
    flag: int,
    is_zipped: bool,
    born_ms: int,
    now_ms: int,
) -> tuple[bytes, bool] | None:
    """See contract.EncodeProxySend."""
    if not (0 <= born_ms <= _MOST and 0 <= now_ms <= _MOST):
        raise out_of_range(f"send born at {born_ms} and encoded at {now_ms}")
    try:
        messages = [(flag, body, properties)]
        if properties is None:
            messages = [(flag, body, text.decode()) for flag, body, text in _messages(body)]
        said = [_properties(text or "") for _, _, text in messages]
        fields = [
            _field(_TOPIC, topic)
            + users
            + _field(_SYSTEM, _system(own, is_zipped, born_ms, now_ms))
            + _field(_BODY, part)
            for (_, part, _), (own, users) in zip(messages, said, strict=True)
        ]
    except (ProtocolError, UnicodeDecodeError, _NoNumber):
        return None
    if any(flag for flag, _, _ in messages) or any("DELAY" in own for own, _ in said):
        return None
    is_keyed = properties is not None and "__SHARDINGKEY" in said[0][0]
    return b"".join(_part(_MESSAGE, each) for each in fields), is_keyed


class _NoNumber(Exception):
    """A property is no number that counts."""


def _properties(text: str) -> tuple[dict[str, str], bytes]:
    """Return what fields say by name, and the user's properties as fields."""
    own, users = {}, b""
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if not name or not value:
            continue
        if name in _SAID:
            own[name] = value
        elif name not in _UNSAID and not name.startswith(_TRANSIENT):
            entry = _field(_NAME, name.encode()) + _field(_VALUE, value.encode())
            users += _field(_USER_PROPERTY, entry)
    return own, users


def _system(own: dict[str, str], is_zipped: bool, born_ms: int, now_ms: int) -> bytes:
    """Return the SystemProperties."""
    group, due_ms, immunity_s = own.get("__SHARDINGKEY"), _due_ms(own, now_ms), None
    if "CHECK_IMMUNITY_TIME_IN_SECONDS" in own:
        immunity_s = _number(own["CHECK_IMMUNITY_TIME_IN_SECONDS"])
    kind = _NORMAL if group is None else _FIFO
    if "TRAN_MSG" in own:
        kind = _TRANSACTION
    elif due_ms is not None:
        kind = _DELAYED
    keys = [key for key in own.get("KEYS", "").split(" ") if key]
    return b"".join((
        _field(_TAG, own.get("TAGS", "").encode()),
        *(_field(_KEY, key.encode()) for key in keys),
        _field(_MESSAGE_ID, own.get("UNIQ_KEY", "").encode()),
        _numbered(_ENCODING, _ZIPPED if is_zipped else _IDENTITY),
        _numbered(_TYPE, kind),
        _part(_BORN, _time(born_ms)),
        b"" if due_ms is None else _part(_DELIVER, _time(due_ms)),
        _field(_GROUP, (group or "").encode()),
        _field(_TRACE, own.get("TRACE_CONTEXT", "").encode()),
        b"" if immunity_s is None else _part(_RECOVERY, _time(immunity_s * 1_000)),
    ))  # fmt: skip


def _due_ms(own: dict[str, str], now_ms: int) -> int | None:
    """Return when a message is due; the first of the ways to say it counts."""
    if "TIMER_DELIVER_MS" in own:
        return _number(own["TIMER_DELIVER_MS"])
    if "TIMER_DELAY_MS" in own:
        return now_ms + _number(own["TIMER_DELAY_MS"])
    if "TIMER_DELAY_SEC" in own:
        return now_ms + _number(own["TIMER_DELAY_SEC"]) * 1_000
    return None


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise _NoNumber
    digits = text.removeprefix("-").lstrip("0") or "0"
    # The length first: Python refuses to read thousands of digits.
    if len(digits) > len(str(_MOST)) or int(digits) > _MOST:
        raise _NoNumber
    return -int(digits) if text.startswith("-") else int(digits)


def _time(ms: int) -> bytes:
    """Return a Timestamp or a Duration."""
    parts = (_SECONDS, ms // 1_000), (_NANOS, ms % 1_000 * 1_000_000)
    return b"".join(_numbered(number, value) for number, value in parts if value)


def _numbered(number: int, value: int) -> bytes:
    """Return a field of a number."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes, which is not written without any."""
    return _part(number, data) if data else b""


def _part(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
