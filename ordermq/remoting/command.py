"""One request or answer."""

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
    """A fresh one; 31 bits: the field is signed, and 0 is what peers default to."""
    return next(_opaques) & 0x7FFFFFFF


class Serialization(IntEnum):
    """How the header is written; chosen frame by frame (docs/internals/protocol.md#frame)."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """A frame's content (docs/internals/protocol.md#frame, 1.4).

    Args:
        code: a `RequestCode`, or the `ResponseCode` of an answer.
        ext: the named fields; texts only.
        body: the bytes after the header, empty if there are none.
        opaque: ties an answer to its request.
    """

    code: int
    ext: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = LanguageCode.PYTHON
    version: int = PROTOCOL_VERSION
    serialization: Serialization = Serialization.JSON

    @classmethod
    def request(cls, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """A request with a fresh opaque."""
        return cls(code, ext or {}, body, opaque=next_opaque())

    def reply(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> Command:
        """The answer to this request, in JSON, which every peer accepts."""
        return Command(code, ext or {}, body, remark, self.opaque, RESPONSE_FLAG)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)
