"""The encoding of protocol buffers: records with numbered fields to bytes and back.

The messages of the proxy need numbers, strings, nested messages, lists and maps of strings; nothing
else is here. Unknown fields are skipped, as the format wants it: newer servers add some.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar, dataclass_transform

from ordermq.errors import ProtocolError
from ordermq.value import Record

_M = TypeVar("_M", bound="ProtoMessage")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def numbered(number: int, *, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """Declare the field of this number.

    Args: default: None for a field that may be absent; else it is sent only if it differs.
    """
    made: Any = field(metadata={"number": number}, default=default, default_factory=default_factory)
    return made


@dataclass_transform(field_specifiers=(numbered,), kw_only_default=True)
class ProtoMessage(Record, kw_only=True):
    """Base of all messages, whose fields are `numbered`.

    A field is an int, bool, str or bytes, another message, a list of these, or a dict of str.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=True)

    def to_bytes(self) -> bytes:
        """Encode the message."""
        out = bytearray()
        _write(self, out)
        return bytes(out)

    @classmethod
    def from_bytes(cls: type[_M], data: bytes) -> _M:
        """Decode a message.

        Raises: ProtocolError: it is malformed.
        """
        return _read(cls, data)


class _FieldPlan:
    """Encoding of one field."""

    __slots__ = ("default", "key", "kind", "name", "number", "shape")

    def __init__(self, name: str, number: int, hint: Any, default: Any) -> None:
        self.name = name
        self.number = number
        self.default = default  # not sent; None where absence has a meaning
        hint = _without_none(hint)
        origin = typing.get_origin(hint)
        self.shape = origin if origin in (list, dict) else None
        self.kind: type = typing.get_args(hint)[0] if self.shape is list else hint
        wire_type = _VARINT if self.kind in (int, bool) and self.shape is None else _BYTES
        self.key = _varint(number << 3 | wire_type)


class _Plan:
    """The fields of a message, in their order and by number."""

    def __init__(self, kind: type[ProtoMessage]) -> None:
        self._kind = kind
        hints = typing.get_type_hints(kind)
        self.fields = [
            _FieldPlan(each.name, each.metadata["number"], hints[each.name], each.default)
            for each in fields(kind)
        ]
        self.by_number = {each.number: each for each in self.fields}
        self._defaults = {
            each.name: each.default for each in fields(kind) if each.default is not MISSING
        }
        self._containers = [
            (each.name, each.default_factory)
            for each in fields(kind)
            if each.default_factory is not MISSING
        ]

    def empty(self) -> Any:
        """Return a message without any field.

        By its constructor, decoding took half as long again.
        """
        message = self._kind.__new__(self._kind)
        values = vars(message)
        values.update(self._defaults)
        for name, factory in self._containers:
            values[name] = factory()
        return message


_PLANS: dict[type, _Plan] = {}


def _plan_of(kind: type[ProtoMessage]) -> _Plan:
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = _Plan(kind)
    return plan


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return next(each for each in typing.get_args(hint) if each is not types.NoneType)
    return hint


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text_field(number: int, text: str) -> bytes:
    """Return a field with a text, as messages have it that are not empty."""
    data = text.encode()
    return b"%b%b%b" % (_varint(number << 3 | _BYTES), _varint(len(data)), data)


def _write(message: ProtoMessage, out: bytearray) -> None:
    for each in _plan_of(type(message)).fields:
        value = getattr(message, each.name)
        if value is not None and value != each.default:
            if each.shape is None:
                _write_one(each.key, value, out)
            else:
                _write_several(each, value, out)


def _write_several(each: _FieldPlan, value: Any, out: bytearray) -> None:
    if each.shape is list:
        # Lists of numbers, too, one by one: readers take both forms.
        key = _varint(each.number << 3) if each.kind is int else each.key
        for item in value:
            _write_one(key, item, out)
    else:
        for name, text in value.items():
            entry = bytearray()
            _write_one(b"\x0a", name, entry)
            _write_one(b"\x12", text, entry)
            _write_one(each.key, entry, out)


def _write_one(key: bytes, value: Any, out: bytearray) -> None:
    out += key
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, int):
        if 0 <= value < 0x80:
            out.append(value)
        else:  # negative numbers as 64-bit ones, whatever the field's width
            out += _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
        return
    elif isinstance(value, ProtoMessage):
        nested = bytearray()
        _write(value, nested)
        value = nested
    size = len(value)
    if size < 0x80:
        out.append(size)
    else:
        out += _varint(size)
    out += value


def _read(kind: type[_M], data: bytes) -> _M:
    plan = _plan_of(kind)
    by_number = plan.by_number
    message: _M = plan.empty()
    values = vars(message)
    at, end = 0, len(data)
    try:
        while at < end:
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _read_varint(data, at - 1)
            each, wire_type = by_number.get(key >> 3), key & 7
            if wire_type == _BYTES:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = _read_varint(data, at - 1)
                part = data[at : at + size]
                at += size
                if at > end:
                    raise ProtocolError(f"a {kind.__name__} is truncated")
                if each is None:
                    continue
                if each.shape is None and each.kind is str:  # most fields
                    values[each.name] = part.decode()
                else:
                    _take_bytes(message, each, part)
            elif wire_type == _VARINT:
                value = data[at]
                at += 1
                if value >= 0x80:
                    value, at = _read_varint(data, at - 1)
                if each is not None:
                    _take_number(message, each, value)
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            else:
                raise ProtocolError(f"a {kind.__name__} has wire type {wire_type}: not known")
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a {kind.__name__} is malformed: {error}") from error
    if at > end:
        raise ProtocolError(f"a {kind.__name__} is truncated")
    return message


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ProtocolError("a number has more than ten bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _take_number(message: ProtoMessage, each: _FieldPlan, value: int) -> None:
    if each.kind is bool:
        setattr(message, each.name, value != 0)
    elif each.kind is int:
        if each.shape is list:
            getattr(message, each.name).append(_signed(value))
        else:
            setattr(message, each.name, _signed(value))
    else:
        raise ProtocolError(f"{type(message).__name__}.{each.name} is a number")


def _take_bytes(message: ProtoMessage, each: _FieldPlan, part: bytes) -> None:
    kind: Any = each.kind
    if each.shape is dict:
        entry = _read(_MapEntry, part)
        getattr(message, each.name)[entry.key] = entry.value
        return
    if kind is int and each.shape is list:  # packed
        at = 0
        while at < len(part):
            number, at = _read_varint(part, at)
            getattr(message, each.name).append(_signed(number))
        return
    value: Any
    if kind is str:
        value = part.decode()
    elif kind is bytes:
        value = part
    elif kind in (int, bool):
        raise ProtocolError(f"{type(message).__name__}.{each.name} is no number")
    else:
        value = _read(kind, part)
    if each.shape is list:
        getattr(message, each.name).append(value)
    else:
        setattr(message, each.name, value)


class _MapEntry(ProtoMessage):
    key: str = numbered(1, default="")
    value: str = numbered(2, default="")
