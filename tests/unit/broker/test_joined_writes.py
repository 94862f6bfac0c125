"""Several writes with one end."""

from __future__ import annotations

from ordermq.broker.store import joined
from ordermq.errors import StoreError


def test_the_last_of_several_writes_tells_the_first_error() -> None:
    ends: list[StoreError | None] = []
    finish = joined(3, ends.append)
    first, second = StoreError("first"), StoreError("second")
    finish(None)
    finish(first)
    assert ends == []
    finish(second)
    assert ends == [first]


def test_writes_that_all_succeed_end_without_an_error() -> None:
    ends: list[StoreError | None] = []
    finish = joined(2, ends.append)
    finish(None)
    finish(None)
    assert ends == [None]
