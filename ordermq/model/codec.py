"""Codecs: values of yours to message bodies, and back (docs/codecs.md)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Protocol, get_args, overload

from ordermq import json_text
from ordermq.callables import require_methods, require_plain, require_plain_result
from ordermq.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    _Value = TypeVar("_Value", default=Any)
else:
    from typing import TypeVar

    _Value = TypeVar("_Value")


class Codec(Protocol):
    """Two functions that belong together; any object that has them is one.

    `producer.message` encodes and `message.value()` decodes, on the thread that calls them.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a value: at least one byte. What it raises, the caller gets."""

    def decode(self, body: bytes, /) -> Any:
        """Return the value of a body. What it raises becomes the cause of a `DecodeError`."""


class JsonCodec(Generic[_Value]):
    """JSON, as orjson writes and reads it.

    Args:
        kind: `Order`, `Placed | Paid`, `list[Order]`: `decode` returns values of this type, made of
            dataclasses, TypedDicts, enumerations, dates, UUIDs, Decimals and plain values; fields
            that it does not have are left out. Without it, dicts, lists, texts and numbers.
    Raises: ConfigError: a type that is none of these.

    Values of pandas and NumPy are written as what they hold; NaN, NaT and NA are null.
    """

    @overload
    def __init__(self, kind: type[_Value]) -> None: ...
    @overload
    def __init__(self: JsonCodec[Any], kind: Any = None) -> None: ...  # unions, and no type
    def __init__(self, kind: Any = None) -> None:
        self._kind = kind
        self._convert: Callable[[Any, str], Any] | None = None
        self._may_have_gap: Callable[[Any], bool] | None = None
        if kind is not None:
            from ordermq.model.json_types import converter  # here: not every program has types
            from ordermq.model.json_values import may_have_gap

            self._convert, has_gaps = converter(kind)
            self._may_have_gap = may_have_gap if has_gaps else None

    def __repr__(self) -> str:
        return f"JsonCodec({'' if self._kind is None else shown_type(self._kind)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonCodec, (self._kind,)  # with a message that is sent to another process

    def encode(self, value: _Value, /) -> bytes:
        try:
            body = json_text.dumps(value, default=_more_json)
        except TypeError as error:
            from ordermq.model.json_values import explained  # for a mistake

            raise explained(value, error, _more_json) from error
        # For most types nothing is looked for, for the others only where there is a null.
        if self._may_have_gap is not None and b"null" in body and self._may_have_gap(value):
            self._require_readable(value, body)
        return body

    def _require_readable(self, value: _Value, body: bytes) -> None:
        """Refuse a NaN, written as null, where the type takes no null: nobody could read it."""
        from ordermq.model.json_types import JsonMismatch  # few values have a NaN
        from ordermq.model.json_values import gaps

        try:
            self.decode(body)
        except JsonMismatch as error:
            for path, gap in gaps(value):
                if str(error).startswith(f"{path}:"):
                    raise JsonMismatch(
                        f"{path} is {gap}, for which JSON has null, and {shown_type(self._kind)} "
                        "takes none there: declare the field with `| None`, or give another value"
                    ) from None

    def decode(self, body: bytes, /) -> _Value:
        value: _Value = json_text.loads(body)
        return value if self._convert is None else self._convert(value, "$")


def _more_json(value: Any) -> Any:
    """Return what orjson writes for a value that it does not know itself."""
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Decimal):
        return str(value)  # a float would be another number
    from ordermq.model.json_values import plain_value  # here: not every program has such values

    return plain_value(value)


def shown_type(kind: Any) -> str:
    """Return a type as a user writes it."""
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


class PydanticCodec(Generic[_Value]):
    """JSON of a pydantic model, or of any type that pydantic knows: checked both ways.

    Args:
        kind: `Order`, `Placed | Paid`, `list[Order]`.
    Raises: ConfigError: pydantic is not installed (extra `pydantic`).
    """

    @overload
    def __init__(self, kind: type[_Value]) -> None: ...
    @overload
    def __init__(self: PydanticCodec[Any], kind: Any) -> None: ...
    def __init__(self, kind: Any) -> None:
        try:
            from pydantic import TypeAdapter
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error}: PydanticCodec needs it; run pip install 'ordermq[pydantic]'"
            ) from error
        self._kind = kind
        self._type: TypeAdapter[Any] = TypeAdapter(kind)

    def __repr__(self) -> str:
        return f"PydanticCodec({shown_type(self._kind)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PydanticCodec, (self._kind,)

    def encode(self, value: _Value, /) -> bytes:
        # `dump_json` alone writes a value of another type, too, and only warns.
        return self._type.dump_json(self._type.validate_python(value))

    def decode(self, body: bytes, /) -> _Value:
        value: _Value = self._type.validate_json(body)
        return value


class FunctionCodec:
    """A pair of functions."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


def require_codec(codec: Codec, group: str) -> Codec:
    """Return `codec` with functions that raise ConfigError if they return a coroutine.

    Raises: ConfigError: it is none, or its functions are asynchronous.
    """
    expected = "an object with encode(value) and decode(body), such as JsonCodec()"
    functions = require_methods("codec", codec, "encode", "decode", expected=expected, group=group)
    require_plain("codec", *functions)
    return _CheckedCodec(codec)


class _CheckedCodec(FunctionCodec):
    """The codec of a client, by the name that its user knows it by."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(_checked(codec.encode), _checked(codec.decode))
        self._codec = codec

    def __reduce__(self) -> tuple[Any, ...]:
        return _CheckedCodec, (self._codec,)

    def __repr__(self) -> str:
        # An object without a repr of its own would be shown with its address.
        own = type(self._codec).__repr__ is object.__repr__
        return type(self._codec).__name__ if own else repr(self._codec)


def _checked(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        return require_plain_result("codec", function, function(value))

    return call
