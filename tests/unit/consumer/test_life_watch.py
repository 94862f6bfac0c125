"""A look at a queue, and when it says that others took the place of what was read
(docs/internals/semantics.md#a-topics-second-life)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from ordermq.client.queue_life import NewLife, QueueMark
from ordermq.clock import ManualClock
from ordermq.consumer.fetch.life_watch import LifeWatch, PulledMark
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.subscription import Subscription

from .batches import QUEUE


class Watched(LifeWatch):
    """A watch of a queue whose broker is a list of the times at which its messages were stored.

    Attributes:
        answers: a look waits for it.
        by_clock: where a new life is to begin by the store times.
        requests: messages that were asked for.
    """

    def __init__(self) -> None:
        self.queue: Any = SimpleNamespace(
            queue=QUEUE, next_pull_offset=0, first_read=None, last_read=None
        )
        client = cast(Any, SimpleNamespace(clock=ManualClock()))
        super().__init__(client, self.queue, None, ConsumerStatistics(0), lambda life: None)
        self.stored: list[int] = []
        self.expired: set[int] = set()
        self.by_clock = self.requests = self._comparisons = 0
        self.answers = asyncio.Event()
        self.answers.set()

    def read(self, *stored: int) -> None:
        """Store messages, and have them read."""
        self.stored += stored
        last = len(self.stored) - 1
        self.queue.next_pull_offset = last + 1
        self.queue.last_read = (last, stored[-1], last, stored[-1])

    async def _message_before(self, offset: int) -> Any:
        await self.answers.wait()
        for each in (offset - 1, offset):
            if 0 <= each < len(self.stored) and each not in self.expired:
                return self._message(each)
        return None

    def _message(self, offset: int) -> Any:
        self.requests += 1
        stored_ms = self.stored[offset]
        return SimpleNamespace(
            queue_offset=offset,
            store_timestamp_ms=stored_ms,
            message_id=str(stored_ms),
            physical_offset=offset,
            born_timestamp_ms=stored_ms,
        )

    async def _new_life(self, at: int, mark: Any) -> NewLife | None:
        self._comparisons += 1
        for _ in range(9 * self._comparisons):  # each takes longer than the one before
            await asyncio.sleep(0)
        if mark is None or mark.offset in self.expired or await self._has(mark):
            return None
        return NewLife(QUEUE, at, self.by_clock, len(self.stored), "another message")

    async def _has(self, mark: Any) -> bool:
        if mark.offset in self.expired or mark.offset >= len(self.stored):
            return False
        return bool(mark.is_of(self._message(mark.offset)))


def mark_at(offset: int, stored_ms: int) -> QueueMark:
    """Return the mark of a message of a `Watched` queue."""
    return QueueMark.of(
        cast(
            Any,
            SimpleNamespace(
                queue_offset=offset, store_timestamp_ms=stored_ms, message_id=str(stored_ms)
            ),
        )
    )


def looks_after(steps: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(steps)


async def cut_and_grown() -> Watched:
    """Return a watch of a queue whose last two messages are others, behind its mark at offset 1."""
    watch = Watched()
    watch.read(10, 11)
    assert await watch.look() is None
    assert watch.mark == mark_at(1, 11)
    watch.read(12, 13)
    watch.doubt()
    watch.stored = [10, 11, 22, 23, 24]
    return watch


def test_a_look_goes_back_behind_the_mark_where_others_took_the_place_of_the_last_one() -> None:
    async def steps() -> NewLife | None:
        watch = await cut_and_grown()
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert (life.at, life.first, life.end) == (4, 2, 5)


def test_a_mark_that_is_gone_tells_nothing_of_what_is_before_it() -> None:
    async def steps() -> NewLife | None:
        watch = await cut_and_grown()
        watch.expired = {1}
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert life.first == 0


def test_a_queue_that_is_too_short_stays_in_doubt_until_it_has_moved() -> None:
    async def steps() -> None:
        watch = await cut_and_grown()
        watch.stored = [10, 11]
        assert await watch.look() is None
        assert watch.is_doubtful
        watch.stored = [10, 11, 22, 23, 24]  # before the pull
        assert await watch.look() is not None
        watch.stored = [10, 11]
        watch.moved()
        watch.queue.next_pull_offset = 2
        assert await watch.look() is None
        assert not watch.is_doubtful
        watch.doubt()
        watch.stored = [10, 11, 22, 23, 24]
        assert await watch.look() is None, "what was lost is known"

    looks_after(steps())


def test_a_reader_that_was_moved_back_goes_on_there() -> None:
    async def steps(at: int) -> NewLife | None:
        watch = await cut_and_grown()
        watch.queue.next_pull_offset = at
        return await watch.look()

    for at in 0, 1, 2:
        assert looks_after(steps(at)) is None, "all before it is as it was"
    life = looks_after(steps(3))
    assert life is not None
    assert life.first == 2


def test_a_reader_that_was_moved_back_before_what_was_lost_is_in_doubt_no_more() -> None:
    """No pull tells it that the queue is too short: it reads what others store there."""

    async def steps() -> None:
        watch = await cut_and_grown()
        watch.stored = [10, 11]
        watch.queue.next_pull_offset = 1
        assert await watch.look() is None
        assert not watch.is_doubtful
        watch.stored = [10, 11, 22, 23, 24]
        watch.queue.next_pull_offset, watch.queue.last_read = 5, (4, 24, 4, 24)
        watch.doubt()
        assert await watch.look() is None

    looks_after(steps())


def test_a_look_that_nothing_has_asked_for_compares_what_was_read_last() -> None:
    """A broker may be back before the pulls have missed it; its mark would hide what it lost."""

    async def steps() -> NewLife | None:
        watch = await cut_and_grown()
        watch._trusted, watch._settled_doubts = (), watch.doubts
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert life.first == 2


def test_a_message_that_is_still_there_tells_more_than_the_clocks() -> None:
    async def steps() -> NewLife | None:
        watch = await cut_and_grown()
        watch.by_clock = 3  # the broker's was set back
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert life.first == 2


def test_a_look_asks_for_the_mark_and_for_the_last_message_before_and_after_it() -> None:
    async def steps() -> tuple[int, int]:
        watch = Watched()
        watch.read(10, 11)
        await watch.look()
        watch.read(12, 13)
        for _ in range(3):
            watch.doubt()
        watch.requests = 0
        await watch.look()
        moved, watch.requests = watch.requests, 0
        watch.doubt()
        await watch.look()
        return moved, watch.requests

    assert looks_after(steps()) == (3, 1), "the second time the mark is the last message"


def test_a_doubt_that_comes_up_while_a_queue_is_moved_is_looked_at() -> None:
    """A move waits for what is buffered, and the topic may be made again meanwhile."""

    async def steps() -> None:
        watch = await cut_and_grown()
        watch.stored = [10, 11]
        assert await watch.look() is None
        watch.doubt()
        watch.moved()
        watch.queue.next_pull_offset = 2
        assert watch.is_doubtful
        watch.stored = [20, 21, 22]
        life = await watch.look()
        assert life is not None
        assert life.first == 0

    looks_after(steps())


def test_a_doubt_that_comes_up_during_a_look_is_not_settled_by_it() -> None:
    async def steps() -> None:
        watch = Watched()
        watch.read(10, 11)
        watch.doubt()
        watch.answers.clear()
        look = asyncio.create_task(watch.look())
        await asyncio.sleep(0)
        watch.doubt()
        watch.answers.set()
        assert await look is None
        assert watch.is_doubtful
        assert await watch.look() is None
        assert not watch.is_doubtful

    looks_after(steps())


def test_of_doubts_that_no_look_has_settled_the_first_and_the_last_are_compared() -> None:
    async def steps(*stored: int) -> NewLife | None:
        watch = Watched()
        watch.read(10)
        assert await watch.look() is None
        for each in 11, 12, 13:
            watch.read(each)
            watch.doubt()
        watch.stored = list(stored)
        return await watch.look()

    assert looks_after(steps(10, 11, 12, 13, 14)) is None
    for stored, first in (
        ((10, 11, 12, 23, 24), 2),
        ((10, 11, 22, 23, 24), 2),
        ((10, 21, 22, 23, 24), 1),
    ):
        life = looks_after(steps(*stored))
        assert life is not None
        assert life.first == first


def test_until_a_look_has_made_a_mark_a_message_of_the_first_answer_is_one() -> None:
    """The last one may be of the next topic of that name, before any look was made."""

    async def steps() -> NewLife | None:
        watch = Watched()
        watch.read(10)
        watch.queue.first_read = watch.queue.last_read
        watch.read(11, 12)
        watch.note_read()
        assert watch.mark == PulledMark(0, 10, 0, 10)
        watch.stored = [20, 21, 22]
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert life.first == 0


def test_a_held_pull_that_the_next_life_answers_does_not_hide_it() -> None:
    """RocketMQ answers a pull at offset 2 of the topic that was deleted with what is there now."""

    async def steps() -> NewLife | None:
        watch = Watched()
        watch.read(10, 11)
        assert await watch.look() is None
        watch.stored = [20, 21]
        watch.read(22, 23)
        watch.doubt()
        return await watch.look()

    life = looks_after(steps())
    assert life is not None
    assert (life.at, life.first) == (4, 0)


def test_a_look_tells_nothing_of_a_queue_that_has_gone_back_meanwhile() -> None:
    """A lock was lost, and the group's offset is before what was lost: nothing is left out."""

    async def steps(back_to: int) -> tuple[NewLife | None, NewLife | None]:
        watch = await cut_and_grown()
        watch.answers.clear()
        early = asyncio.create_task(watch.look())
        await asyncio.sleep(0)
        watch.reads_from(4, 0, None)  # the same place: the look goes on
        watch.reads_from(back_to, 1, None)
        watch.queue.next_pull_offset = back_to
        watch.answers.set()
        told = await early
        assert watch.is_doubtful, "the loop looks before its first pull"
        return told, await watch.look()

    assert looks_after(steps(1)) == (None, None)
    told, found = looks_after(steps(3))
    assert told is None
    assert found is not None, "another member went on behind what was lost"
    assert (found.at, found.first) == (3, 2)


def test_of_two_looks_that_find_the_same_life_one_tells_of_it() -> None:
    async def steps() -> tuple[NewLife | None, NewLife | None]:
        watch = await cut_and_grown()
        watch.stored = [20, 21, 22, 23, 24]
        watch.answers.clear()
        looks = [asyncio.create_task(watch.look()) for _ in range(2)]
        await asyncio.sleep(0)
        watch.answers.set()
        first = await looks[0]
        watch.began()
        return first, await looks[1]

    first, late = looks_after(steps())
    assert first is not None
    assert late is None


def test_a_pulled_message_is_another_one_if_its_store_time_and_one_more_part_differ() -> None:
    mark = PulledMark(7, 100, 5_000, 90)

    def is_same(stored_ms: int, physical_offset: int, born_ms: int) -> bool:
        return mark.is_of(
            cast(
                Any,
                SimpleNamespace(
                    store_timestamp_ms=stored_ms,
                    physical_offset=physical_offset,
                    born_timestamp_ms=born_ms,
                ),
            )
        )

    assert is_same(100, 5_000, 90)
    for damaged in (101, 5_000, 90), (100, 5_001, 90), (100, 5_000, 91):
        assert is_same(*damaged)
    for another in (101, 5_001, 90), (101, 5_000, 91), (101, 5_001, 91):
        assert not is_same(*another)


def test_a_look_of_one_life_keeps_none_of_the_next_one_away() -> None:
    async def steps() -> None:
        watch = Watched()
        watch._client.runtime = cast(
            Any, SimpleNamespace(spawn=lambda work, name: asyncio.create_task(work))
        )
        watch.read(10, 11)
        await watch.look()
        watch._look_soon()
        waiting = watch._look_task
        await asyncio.sleep(0)
        watch.began()
        watch.stored = []
        watch.read(20)
        watch._look_soon()
        assert watch._look_task not in (None, waiting)
        await asyncio.gather(*filter(None, (waiting, watch._look_task)), return_exceptions=True)
        assert watch.mark == mark_at(0, 20)
        assert watch._look_task is None

    looks_after(steps())


def test_what_a_filter_passes_over_is_marked_as_often_as_what_is_read() -> None:
    """Else a look in doubt would read all of it again."""

    async def steps() -> list[int]:
        watch = Watched()
        watch._client.runtime = cast(
            Any, SimpleNamespace(spawn=lambda work, name: asyncio.create_task(work))
        )
        clock, looks = cast(ManualClock, watch._client.clock), []
        for second in range(200):
            if second < 100:
                watch.stored.append(second)
                watch.queue.next_pull_offset += 1
            watch.reads_from(watch.queue.next_pull_offset, 1, Subscription.parse("T", "a", 1))
            watch.note_nothing()
            if watch._look_task is not None:
                looks.append(second)
                await watch._look_task
            clock.advance(1_000)
        return looks

    assert looks_after(steps()) == [0, 30, 60, 90, 120]
