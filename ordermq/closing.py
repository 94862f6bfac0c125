"""`with` for what closes, and for what starts there too."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Has a `close`, which the end of a `with` block calls."""

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Starting(Closing):
    """Has a `start`, too, which the beginning of the block calls."""

    def start(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self
