"""The id window through cffi."""

from __future__ import annotations

import random
from typing import final

from ordermq.core import contract, status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import INT32_MAX, INT64_MAX, clamped, raise_unless_ok
from ordermq.core.cffi_binding.message_codec import MessageIndex
from ordermq.threads import Lock

_random_seed = random.SystemRandom().getrandbits


@final
class IdWindow:
    """See contract.IdWindow."""

    def __init__(self, size: int) -> None:
        if not 1 <= size <= INT32_MAX:
            raise status.failure(status.OUT_OF_RANGE, f"id window of {size} offsets")
        self._size = size
        # The C window has no mutex of its own, and cffi releases the GIL in every call.
        self._lock = Lock()
        window = lib.omq_id_window_new(size, _random_seed(64))
        if not window:
            raise MemoryError("no memory for an id window")
        self._window = ffi.gc(window, lib.omq_id_window_free)

    def drop_copies(self, index: contract.MessageIndex, end: int = INT64_MAX) -> int:
        if not isinstance(index, MessageIndex):
            raise TypeError(f"drop_copies: expected a MessageIndex, got {type(index).__name__}")
        dropped = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_id_window_drop_copies(
                self._window, index._bytes, clamped(end), index._rows, dropped
            )
        raise_unless_ok(code, f"drop_copies of {len(index)} messages")
        return int(dropped[0])

    def clear(self) -> None:
        with self._lock:
            lib.omq_id_window_clear(self._window)

    @property
    def size(self) -> int:
        return self._size

    def __len__(self) -> int:
        with self._lock:
            return int(lib.omq_id_window_count(self._window))

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_id_window_check(self._window)
        if broken:
            raise AssertionError(f"{ffi.string(broken).decode()}: {len(self)} ids")
