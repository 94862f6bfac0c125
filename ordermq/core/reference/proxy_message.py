"""The reader of a proxy's answers, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ordermq.core import status
from ordermq.core.compression import zipped_sys_flag
from ordermq.core.contract import ProxyMessage, StoredByProxy
from ordermq.core.reference.message_writer import RecordWriter
from ordermq.errors import ProtocolError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field is written
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
# Fields of answers, and of a Message.
_STATUS, _MESSAGE, _ENTRY, _CODE, _OK = 1, 2, 2, 1, 20_000
_TAKEN_STATUS = 3  # of an acknowledgement's entry
_SENT_STATUS, _SENT_ID, _SENT_TRANSACTION, _SENT_OFFSET, _SENT_RECALL = 1, 2, 3, 4, 5
_USER_PROPERTY, _SYSTEM, _BODY = 2, 3, 4
_TEXTS: Final = {  # fields of SystemProperties
    1: "tag", 2: "key", 3: "message_id", 12: "receipt_handle", 17: "group", 18: "trace",
}  # fmt: skip
_TIMES: Final = {7: "born", 9: "stored", 11: "deliver"}
_INT32: Final = range(-(1 << 31), 1 << 31)
_SECONDS: Final = range(-(1 << 53), (1 << 53) + 1)  # so that milliseconds are an int64
_NUMBERS: Final = {
    5: ("encoding", _INT32),
    13: ("queue_id", _INT32),
    14: ("offset", range(status.MAX_OFFSET + 1)),
    16: ("attempt", _INT32),
}
_TIME: Final = {1: _SECONDS, 2: range(1 << 31)}  # seconds, nanoseconds
_ZIPPED: Final = 2  # of the enumeration Encoding
_NO_HOST: Final = bytes(8)


def read_proxy_message(data: bytes, topic: str) -> ProxyMessage | None:
    """See contract.ReadProxyMessage."""
    found = None
    for number, wire_type, value in _fields(data):
        if number == _MESSAGE and wire_type not in _FIXED_SIZES:
            _need(wire_type == _BYTES)
            found = value
    return None if found is None else _message(found, topic)


def all_acknowledged(data: bytes) -> bool:
    """See contract.AllAcknowledged."""
    try:
        return _all_well(data, _TAKEN_STATUS)
    except ProtocolError:
        return False


def stored_by_proxy(data: bytes) -> StoredByProxy | None:
    """See contract.ReadStoredByProxy."""
    try:
        if not _all_well(data, _SENT_STATUS):
            return None
        stored = [_stored(value) for number, _, value in _fields(data) if number == _ENTRY]
    except ProtocolError:
        return None
    if not stored:
        return None
    _, offset, transaction_id, recall_handle = stored[0]
    ids = ",".join(message_id for message_id, *_ in stored)
    return ids, offset, transaction_id, recall_handle


def _stored(entry: bytes) -> StoredByProxy:
    texts, offset = {_SENT_ID: "", _SENT_TRANSACTION: "", _SENT_RECALL: ""}, 0
    for number, wire_type, value in _fields(entry):
        if wire_type in _FIXED_SIZES:
            continue
        if number in texts:
            texts[number] = _text(wire_type, value)
        elif number == _SENT_OFFSET:
            offset = _number(wire_type, value, range(status.MAX_OFFSET + 1))
    return texts[_SENT_ID], offset, texts[_SENT_TRANSACTION], texts[_SENT_RECALL]


def _all_well(data: bytes, entry_status: int) -> bool:
    """Return whether all is well with an answer and each of its entries, whose status is this
    field of it.
    """
    return _has_well(data, _STATUS) and all(
        wire_type == _BYTES and _has_well(value, entry_status)
        for number, wire_type, value in _fields(data)
        if number == _ENTRY
    )


def _has_well(data: bytes, wanted: int) -> bool:
    """Return whether a status is the field `wanted`, and all such fields say that all is well."""
    found = [(wire_type, value) for number, wire_type, value in _fields(data) if number == wanted]
    return bool(found) and all(
        wire_type == _BYTES and _code(value) == _OK for wire_type, value in found
    )


def _code(status: bytes) -> int:
    codes = [
        value if wire_type == _VARINT else 0
        for number, wire_type, value in _fields(status)
        if number == _CODE
    ]
    return codes[-1] if codes else 0


def _message(data: bytes, topic: str) -> ProxyMessage:
    users, system, body = [], None, b""
    for number, wire_type, value in _fields(data):
        if number not in (_USER_PROPERTY, _SYSTEM, _BODY) or wire_type in _FIXED_SIZES:
            continue
        _need(wire_type == _BYTES)
        if number == _USER_PROPERTY:
            users.append(_entry(value))
        elif number == _SYSTEM:
            system = value
        else:
            body = value
    found = {} if system is None else _system(system)
    if "offset" not in found:
        raise status.malformed_proxy_message("it has no offset")
    named = [
        *users,
        ("TAGS", found.get("tag", "")),
        ("KEYS", " ".join(found["keys"])),
        ("UNIQ_KEY", found.get("message_id", "")),
        ("__SHARDINGKEY", found.get("group", "")),
        ("TRACE_CONTEXT", found.get("trace", "")),
        ("TIMER_DELIVER_MS", str(found.get("deliver", ""))),
    ]
    text = "".join(f"{name}\x01{value}\x02" for name, value in named if name and value)
    queue_id = found.get("queue_id", 0)
    try:
        block = RecordWriter(topic, queue_id, _NO_HOST, _NO_HOST).write(
            body,
            text.encode(),
            flag=0,
            sys_flag=zipped_sys_flag(body[:4]) if found.get("encoding") == _ZIPPED else 0,
            born_ms=found.get("born", 0),
            stored_ms=found.get("stored", 0),
            reconsume_times=max(found.get("attempt", 0) - 1, 0),
        )
    except ValueError:
        raise status.malformed_proxy_message("it is too long for a record") from None
    record = bytes(block.rows(found["offset"], 0)[0][2])
    ids = found.get("message_id", ""), found.get("receipt_handle", "")
    return queue_id, found["offset"], *ids, record


def _entry(data: bytes) -> tuple[str, str]:
    """Return name and value of a property."""
    found = {1: "", 2: ""}
    for number, wire_type, value in _fields(data):
        if number in found and wire_type not in _FIXED_SIZES:
            found[number] = _text(wire_type, value)
    return found[1], found[2]


def _system(data: bytes) -> dict[str, Any]:
    """Return what SystemProperties say, by name."""
    found: dict[str, Any] = {"keys": []}
    for number, wire_type, value in _fields(data):
        if wire_type in _FIXED_SIZES:
            continue
        if number in _TIMES:
            _need(wire_type == _BYTES)
            found[_TIMES[number]] = _time(value)
        elif number in _NUMBERS:
            name, among = _NUMBERS[number]
            found[name] = _number(wire_type, value, among)
        elif number in _TEXTS:
            name, text = _TEXTS[number], _text(wire_type, value)
            if name == "key":
                found["keys"].append(text)
            else:
                found[name] = text
    return found


def _time(data: bytes) -> int:
    """Return a Timestamp, ms since 1970."""
    found = {1: 0, 2: 0}
    for number, wire_type, value in _fields(data):
        if number in found and wire_type not in _FIXED_SIZES:
            found[number] = _number(wire_type, value, _TIME[number])
    return found[1] * 1_000 + found[2] // 1_000_000


def _text(wire_type: int, value: Any) -> str:
    _need(wire_type == _BYTES)
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise status.malformed_proxy_message("a text is not UTF-8") from None


def _number(wire_type: int, value: Any, among: range) -> int:
    _need(wire_type == _VARINT)
    number = int(value) - (1 << 64 if value >> 63 else 0)
    if number not in among:
        raise status.malformed_proxy_message("a number is out of its range")
    return number


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field; None as the value of a fixed one."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        else:
            _need(wire_type in _FIXED_SIZES)
            size = _FIXED_SIZES[wire_type]
        _need(size <= len(data) - at)
        yield number, wire_type, data[at : at + size] if wire_type == _BYTES else None
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        _need(at < len(data))
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise status.malformed_proxy_message("it is truncated or malformed")


def _need(holds: bool) -> None:
    if not holds:
        raise status.malformed_proxy_message("it is truncated or malformed")
