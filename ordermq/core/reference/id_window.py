"""The id window in one dict of ids by offset."""

from __future__ import annotations

from typing import final
from zlib import crc32

from ordermq.core import contract
from ordermq.core.reference.arguments import MAX_SIZE, out_of_range
from ordermq.core.reference.message_codec import MessageIndex
from ordermq.core.status import MAX_OFFSET


@final
class IdWindow:
    """See contract.IdWindow."""

    def __init__(self, size: int) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise out_of_range(f"id window of {size} offsets")
        self._size = size
        self.clear()

    def clear(self) -> None:
        # By offset, ascending: id, size and CRC-32 of the stored body.
        self._ids: dict[int, tuple[bytes, int, int]] = {}
        self._newest = -1

    @property
    def size(self) -> int:
        return self._size

    def __len__(self) -> int:
        return len(self._ids)

    def drop_copies(self, index: contract.MessageIndex, end: int = MAX_OFFSET + 1) -> int:
        if not isinstance(index, MessageIndex):
            raise TypeError(f"drop_copies: expected a MessageIndex, got {type(index).__name__}")
        return index._drop_rows(
            lambda offset, unique_id, body: offset < end and self._is_copy(offset, unique_id, body)
        )

    def _is_copy(self, offset: int, unique_id: bytes, body: bytes) -> bool:
        if offset <= self._newest:
            return False
        self._newest = offset
        if not unique_id:
            return False
        message = unique_id, len(body), crc32(body)
        is_copy = any(
            held == message and offset - at <= self._size for at, held in self._ids.items()
        )
        near = {at: held for at, held in self._ids.items() if offset - at < self._size}
        self._ids = near | {offset: message}
        return is_copy

    def _check(self) -> None:
        offsets = list(self._ids)
        assert offsets == sorted(offsets), offsets
        assert all(unique_id for unique_id, _, _ in self._ids.values()), self._ids
        assert not offsets or offsets[-1] - offsets[0] < self._size, offsets
        assert not offsets or offsets[-1] <= self._newest, (offsets, self._newest)
