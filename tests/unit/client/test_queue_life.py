"""The life of a queue, and how it is told from the one before
(docs/internals/semantics.md#a-topics-second-life)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.client import queue_life
from ordermq.client.queue_life import NewLife, QueueMark, new_life
from ordermq.model.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)
LONG_AGO_MS, OLD_MS, NEW_MS = 600_000, 6_000_000, 12_000_000


def message(offset: int, stored_ms: int) -> Any:
    return SimpleNamespace(
        queue_offset=offset, store_timestamp_ms=stored_ms, message_id=f"{offset}:{stored_ms}"
    )


def look(
    monkeypatch: pytest.MonkeyPatch, *ends: tuple[int, int], at: int = 40, kept: int = 0
) -> NewLife | None:
    """Look at a queue that had 40 old messages, with a mark at the last one.

    Args:
        ends: the queue's first offset and its end at the begin, and at each question for both.
        at: the reader's offset.
        kept: so many of the old messages are still there.
    """
    now, later = ends[0], list(ends[1:])
    mark = QueueMark.of(message(39, OLD_MS))

    async def read(_: Any, __: str, ___: MessageQueue, offset: int) -> Any:
        stored_ms = LONG_AGO_MS if offset < kept else NEW_MS
        return message(offset, stored_ms) if now[0] <= offset < now[1] else None

    async def ask(_: Any, __: MessageQueue) -> tuple[int, int]:
        nonlocal now
        now = later.pop(0) if later else now
        return now

    async def find(*_: Any) -> int:
        return kept

    monkeypatch.setattr(queue_life, "_message", read)
    monkeypatch.setattr(queue_life, "offset_at_time", find)
    monkeypatch.setattr(queue_life, "_ends", ask)
    return asyncio.run(new_life(cast(Any, None), "g", QUEUE, at, mark))


def test_a_queue_that_ends_before_its_mark_began_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    life = look(monkeypatch, (0, 10))
    assert life is not None
    assert (life.first, life.end) == (0, 10)


def test_a_queue_that_has_grown_over_its_mark_during_the_look_has_not_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = look(monkeypatch, (0, 10), (0, 40))
    assert life is not None
    assert (life.first, life.end) == (0, 40)


def test_a_mark_before_the_first_message_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, (40, 60)) is None


@pytest.mark.parametrize(
    ("at", "first", "unread"), [(40, 0, 20), (20, 0, 20), (5, 0, 5), (0, 0, 0), (5, 10, 10)]
)
def test_a_reader_that_was_moved_back_leaves_out_nothing_of_what_its_queue_still_has(
    monkeypatch: pytest.MonkeyPatch, at: int, first: int, unread: int
) -> None:
    life = look(monkeypatch, (first, 60), at=at, kept=20)
    assert life is not None
    assert (life.at, life.first) == (at, unread)
