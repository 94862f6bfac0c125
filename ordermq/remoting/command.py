"""Command: one request or response of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ordermq.remoting.codes import PROTOCOL_VERSION, LanguageCode

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
_opaques = itertools.count(1)


def next_opaque() -> int:
    """Return a new opaque of 31 bits."""
    # The field is a signed 32-bit integer, and 0 is what peers read where it is missing.
    return next(_opaques) & 0x7FFFFFFF


class Serialization(IntEnum):
    """Encoding of a header; each frame says its own (docs/internals/protocol.md#frame)."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """Content of a frame (docs/internals/protocol.md#flags-and-request-ids).

    Args:
        code: a `RequestCode`, or a `ResponseCode` in a response.
        ext: the named fields; all values are strings.
        body: bytes after the header, possibly empty.
        opaque: id of the request, repeated in its response.
    """

    code: int
    ext: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    # An int, not the enumeration: peers may send numbers that it does not have.
    language: int = LanguageCode.PYTHON
    version: int = PROTOCOL_VERSION
    serialization: Serialization = Serialization.JSON

    @classmethod
    def request(cls, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Create a request with a new opaque."""
        return cls(code, ext or {}, body, opaque=next_opaque())

    def reply(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> Command:
        """Create the response to this request, in JSON, which every peer reads."""
        return Command(code, ext or {}, body, remark, self.opaque, RESPONSE_FLAG)

    @property
    def is_response(self) -> bool:
        """True for a response, False for a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """True for a request that gets no response."""
        return bool(self.flag & ONEWAY_FLAG)
