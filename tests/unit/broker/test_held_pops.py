"""Held pops: which of them are looked at again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ordermq.broker.held_pops import HeldPop, HeldPops
from ordermq.broker.statistics import BrokerStatistics
from ordermq.clock import SteadyWall, SystemClock
from ordermq.remoting.pop import ANY_QUEUE, PopHeader

KEY = ("billing", "orders")


def held(queue_id: int) -> HeldPop:
    header = PopHeader(*KEY, queue_id, 32, 1_000, 1_000, 0, 0, order=True)
    return HeldPop(cast(Any, None), cast(Any, None), header, (), 1 << 60, 1 << 60)


async def looked_at(*woken: int) -> list[int]:
    """Return the queues of the pops that are looked at when these queues change."""
    found: list[int] = []

    def look(pop: HeldPop) -> bool:
        found.append(pop.header.queue_id)
        return False

    clock = SystemClock()
    pops = HeldPops(clock, SteadyWall(clock), BrokerStatistics(), look)
    for queue_id in (0, 1, ANY_QUEUE, 2):
        assert pops.hold(held(queue_id))
    for queue_id in woken:
        pops.wake(KEY, queue_id)
    await asyncio.sleep(0)
    return found


def test_a_queue_that_changed_wakes_its_own_pops_and_those_of_any_queue() -> None:
    assert asyncio.run(looked_at(1)) == [1, ANY_QUEUE]
    assert asyncio.run(looked_at(2, 0)) == [0, ANY_QUEUE, 2]


def test_a_change_of_all_queues_wakes_every_pop() -> None:
    assert asyncio.run(looked_at(1, ANY_QUEUE)) == [0, 1, ANY_QUEUE, 2]
