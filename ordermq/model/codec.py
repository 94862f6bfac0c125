"""Codecs: values of yours to message bodies, and back (docs/codecs.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from ordermq.callables import require_plain, require_plain_result
from ordermq.errors import ConfigError


class Codec(Protocol):
    """Two functions that belong together; any object that has them is one.

    `producer.message` encodes and `message.value()` decodes, on the thread that calls them.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the body of a value: at least one byte. What it raises, the caller gets."""

    def decode(self, body: bytes, /) -> Any:
        """Return the value of a body. What it raises becomes the cause of a `DecodeError`."""


class JsonCodec:
    """JSON, as orjson writes and reads it: also dataclasses, times and UUIDs, one way."""

    def encode(self, value: Any, /) -> bytes:
        return orjson.dumps(value)

    def decode(self, body: bytes, /) -> Any:
        return orjson.loads(body)


class PydanticCodec:
    """JSON of a pydantic model, or of any type that pydantic knows: checked both ways.

    Args:
        kind: `Order`, `Placed | Paid`, `list[Order]`.
    Raises: ConfigError: pydantic is not installed (extra `pydantic`).
    """

    def __init__(self, kind: Any) -> None:
        try:
            from pydantic import TypeAdapter
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error}: PydanticCodec needs it; run pip install 'ordermq[pydantic]'"
            ) from error
        self._type: TypeAdapter[Any] = TypeAdapter(kind)

    def encode(self, value: Any, /) -> bytes:
        # `dump_json` alone writes a value of another type, too, and only warns.
        return self._type.dump_json(self._type.validate_python(value))

    def decode(self, body: bytes, /) -> Any:
        return self._type.validate_json(body)


class FunctionCodec:
    """A pair of functions."""

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.encode = encode
        self.decode = decode


def require_codec(codec: Codec, group: str) -> Codec:
    """Return `codec` with functions that raise ConfigError if they return a coroutine.

    Raises: ConfigError: it is none, or its functions are asynchronous.
    """
    functions = getattr(codec, "encode", None), getattr(codec, "decode", None)
    if isinstance(codec, type) or not all(map(callable, functions)):
        raise ConfigError(
            f"codec={codec!r}: expected an object with encode(value) and decode(body), such as "
            "JsonCodec()",
            group=group,
        )
    require_plain("codec", *functions)
    return FunctionCodec(_checked(codec.encode), _checked(codec.decode))


def _checked(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        return require_plain_result("codec", function, function(value))

    return call
