"""How the queues of a topic are shared among members (semantics 6); pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ordermq.config import Allocation

_Q = TypeVar("_Q")
Strategy = Callable[[Sequence[_Q], int, int], list[_Q]]


def allocate_avg(queues: Sequence[_Q], members: int, index: int) -> list[_Q]:
    """Neighbouring queues to each member, sizes differing by at most one: 8/3 -> 012|345|67."""
    size, extra = divmod(len(queues), members)
    start = index * size + min(index, extra)
    return list(queues[start : start + size + (1 if index < extra else 0)])


def allocate_by_circle(queues: Sequence[_Q], members: int, index: int) -> list[_Q]:
    """Queues dealt like cards: 8/3 -> 036|147|25."""
    return list(queues[index::members])


_STRATEGIES: dict[Allocation, Strategy[object]] = {
    Allocation.AVG: allocate_avg,
    Allocation.AVG_BY_CIRCLE: allocate_by_circle,
}


def allocate(
    allocation: Allocation, queues: Sequence[_Q], member_ids: Sequence[str], own_id: str
) -> list[_Q]:
    """The share of `own_id`; every member computes the same from the same two lists.

    Args:
        queues: all readable queues of the topic, sorted.
        member_ids: the live members, sorted; must hold `own_id`.
    """
    index = list(member_ids).index(own_id)
    strategy: Strategy[_Q] = _STRATEGIES[allocation]  # type: ignore[assignment]
    return strategy(queues, len(member_ids), index)
