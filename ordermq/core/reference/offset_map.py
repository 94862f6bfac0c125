"""An offset map as a dict that is sorted when asked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ordermq.core import status
from ordermq.core.reference.arguments import MAX_TOKEN, column_of, out_of_range
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OffsetMap:
    """See contract.OffsetMap."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        # Also here, so that threads test the contract: a single operation is atomic.
        self._lock = RLock()

    def put(self, offset: int, token: int) -> bool:
        if not 0 <= offset <= status.MAX_OFFSET or not 0 <= token <= MAX_TOKEN:
            raise out_of_range(f"put of offset {offset}")
        with self._lock:
            is_new = offset not in self._tokens
            self._tokens[offset] = token
            return is_new

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        keys = column_of(offsets, "ql", "offsets")
        values = column_of(tokens, "QL", "tokens")
        if len(keys) != len(values):
            raise ValueError(f"offset map: {len(keys)} offsets, {len(values)} tokens")
        # All before any: a bad offset stores nothing.
        if not all(0 <= key <= status.MAX_OFFSET for key in keys):
            raise out_of_range("put_columns")
        with self._lock:
            # update() keeps the last of equal keys, which the contract asks for.
            before = len(self._tokens)
            self._tokens.update(zip(keys, values, strict=True))
            return len(self._tokens) - before

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        with self._lock:
            return sum(self.remove(key) for key in column_of(offsets, "ql", "offsets"))

    def columns(self, start: int = 0, n: int = 2**63 - 1) -> tuple[memoryview, memoryview]:
        if n < 1:
            raise out_of_range(f"columns of {n}")
        with self._lock:
            keys = [key for key in sorted(self._tokens) if key >= start][:n]
            values = [self._tokens[key] for key in keys]
        return memoryview(array("q", keys)), memoryview(array("Q", values))

    def get(self, offset: int) -> int | None:
        return self._tokens.get(offset)

    def __setitem__(self, offset: int, token: int) -> None:
        self.put(offset, token)

    def __getitem__(self, offset: int) -> int:
        return self._tokens[offset]

    def __delitem__(self, offset: int) -> None:
        with self._lock:
            del self._tokens[offset]

    def remove(self, offset: int) -> bool:
        with self._lock:
            return self._tokens.pop(offset, None) is not None

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        if n < 1:
            raise out_of_range(f"pop_first of {n}")
        with self._lock:
            return [(o, self._tokens.pop(o)) for o in sorted(self._tokens)[:n]]

    # Both ends through the general search: this core is about one way to be right.
    def first(self) -> tuple[int, int] | None:
        return self.ceiling(0)

    def last(self) -> tuple[int, int] | None:
        return self.floor(status.MAX_OFFSET)

    def floor(self, offset: int) -> tuple[int, int] | None:
        with self._lock:
            found = max((o for o in self._tokens if o <= offset), default=None)
            return None if found is None else (found, self._tokens[found])

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        with self._lock:
            found = min((o for o in self._tokens if o >= offset), default=None)
            return None if found is None else (found, self._tokens[found])

    def clear(self) -> None:
        with self._lock:
            self._tokens.clear()

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, offset: object) -> bool:
        return offset in self._tokens

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._tokens))

    def _check(self) -> None:
        assert all(0 <= offset <= status.MAX_OFFSET for offset in self._tokens), self._tokens
