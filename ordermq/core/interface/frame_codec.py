"""The contract of the frame codec."""

from __future__ import annotations

from typing import Protocol, TypeAlias

# code, language, version, opaque, flag, remark ("" for none), fields
Header: TypeAlias = tuple[int, int, int, int, int, str, dict[str, str]]


class ReadHeader(Protocol):
    """The type of `ordermq.core.read_header`."""

    def __call__(self, header: bytes) -> Header:
        """Read a command header in the binary ROCKETMQ serialisation
        (docs/internals/protocol.md#binary-header).

        Every length is checked before use. Of a field that comes twice the last counts.
        Pure, any thread. O(size).

        Raises: ProtocolError: cut, a length out of bounds, text that is not UTF-8; says where.
        """
