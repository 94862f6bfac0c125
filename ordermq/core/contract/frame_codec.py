"""The frame codec: headers, frames and requests from templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from ordermq.core.streams import RequestGap


# code, language, version, opaque, flag, remark ("" for none), fields
Header: TypeAlias = tuple[int, int, int, int, int, str, dict[str, str]]


class ReadHeader(Protocol):
    """Type of `ordermq.core.read_header`."""

    def __call__(self, header: bytes) -> Header:
        """Read a command header in the binary ROCKETMQ serialisation
        (docs/internals/protocol.md#binary-header).

        Every length is checked before use. If a field occurs twice the last one counts.
        Pure, any thread. O(size).

        Raises: ProtocolError: the header is truncated, a length is out of bounds, or a text is not
            UTF-8; the text says at which byte.
        """


FRAME_VALUES_MOST = 8


class FrameTemplate(Protocol):
    """Frames (docs/internals/protocol.md#frame) with JSON headers that differ in a few values.

    Args:
        texts: of the header, 1 to 9; the values come between them.
    """

    def __init__(self, texts: Sequence[bytes]) -> None: ...

    def frame(self, values: tuple[int | str, ...], body: bytes) -> bytes:
        """Return a frame; of its values a str is written in quotes. O(size).

        Raises: ValueError: too few values, or too many. Else as `status.failure` says: the frame
            would be over 2 GiB, or its header of 16 MiB or more (ValueError).
        """


REQUEST_GAPS_MOST = 4


class RequestTemplate(Protocol):
    """Frames of a request of which the offset and the request id change, and with them its
    signature and the size of its fields.

    Immutable, any thread.

    Args:
        texts: of the header, one more than gaps; the gaps lie between them.
        gaps: at most four.
        is_binary: the header's encoding (docs/internals/protocol.md#binary-header).
        signing: the secret key, and what is signed before and after the offset's decimal; None
            for a request without signature.
    Raises: ValueError: too many gaps, or not one text more than gaps.
    """

    def __init__(
        self,
        texts: tuple[bytes, ...],
        gaps: tuple[RequestGap, ...],
        is_binary: bool,
        signing: tuple[bytes, bytes, bytes] | None,
    ) -> None: ...

    def frame(self, offset: int, request_id: int) -> bytes:
        """Return a frame without a body. O(size)."""


class JavaHash(Protocol):
    """Type of `ordermq.core.java_hash`."""

    def __call__(self, text: str) -> int:
        """Return Java's `String.hashCode`: 31 * h + unit over UTF-16 units, signed 32 bits
        (docs/internals/protocol.md#tags).

        Pure, any thread. O(n).

        Raises: UnicodeEncodeError: a surrogate without its pair, which no message can carry.
        """
