"""Messages of several indexes in a row, as a list of segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from ordermq.core.interface.message_codec import MessageIndex

RunT = TypeVar("RunT", bound="MessageRun")
_Segments = Sequence[tuple[Any, int, int]]


class MessageRun:
    """See interface.MessageRun."""

    __slots__ = ("_length", "_segments")

    _length: int
    _segments: _Segments

    def __init__(self, segments: Sequence[tuple[MessageIndex, int, int]]) -> None:
        for index, first, count in segments:
            if not callable(getattr(index, "offset_at", None)):
                raise TypeError(f"a segment of a {type(index).__name__}: expected a MessageIndex")
            if first < 0 or count < 1 or first + count > len(index):
                raise IndexError(f"messages {first}..{first + count - 1} of {len(index)}")
        self._segments = list(segments)
        self._length = sum(count for _, _, count in segments)

    def __len__(self) -> int:
        return self._length

    @property
    def segments(self) -> _Segments:
        return self._segments

    @property
    def first_offset(self) -> int:
        index, first, _ = self._segments[0]
        return int(index.offset_at(first))

    @property
    def last_offset(self) -> int:
        index, first, count = self._segments[-1]
        return int(index.offset_at(first + count - 1))

    def offsets(self) -> list[int]:
        return [
            index.offset_at(row)
            for index, first, count in self._segments
            for row in range(first, first + count)
        ]

    def cut(self, kind: type[RunT], size: int) -> Iterator[RunT]:
        if not (isinstance(kind, type) and issubclass(kind, MessageRun)):
            raise TypeError(f"cut: expected a class of MessageRuns, got {kind!r}")
        if size < 1:
            raise ValueError(f"cut: a size of {size}: expected 1 or more")
        return self._parts(kind, size)

    def _parts(self, kind: type[RunT], size: int) -> Iterator[RunT]:
        gathered: list[tuple[Any, int, int]] = []
        held = 0
        for index, first, count in self._segments:
            end = first + count
            while end - first >= size - held:
                middle = first + size - held
                yield _run(kind, [*gathered, (index, first, middle - first)])
                gathered, held, first = [], 0, middle
            if first < end:
                gathered.append((index, first, end - first))
                held += end - first
        if gathered:
            yield _run(kind, gathered)

    def views(self, kind: type[Any]) -> Iterator[Any]:
        return chain.from_iterable(
            index.views(kind, first, count) for index, first, count in self._segments
        )

    def view(self, kind: type[Any], position: int) -> Any:
        left = position
        if left >= 0:
            for index, first, count in self._segments:
                if left < count:
                    return next(index.views(kind, first + left, 1))
                left -= count
        raise IndexError(f"message {position} of {self._length}")


def _run(kind: type[RunT], segments: list[tuple[Any, int, int]]) -> RunT:
    """A run as `cut` makes it: without a call of the subclass's __init__."""
    run = kind.__new__(kind)
    MessageRun.__init__(run, segments)
    return run
