"""Sharing queues among members (semantics 6, I13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import Allocation
from ordermq.consumer.strategies import allocate

AVG, CIRCLE = Allocation.AVG, Allocation.AVG_BY_CIRCLE


def shares(allocation: Allocation, queues: int, members: int) -> list[list[int]]:
    ids = [f"m{number:03}" for number in range(members)]
    return [allocate(allocation, range(queues), ids, own) for own in ids]


@pytest.mark.parametrize(
    ("allocation", "queues", "members", "expected"),
    [
        (AVG, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AVG, 2, 3, [[0], [1], []]),
        (AVG, 8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (AVG, 7, 4, [[0, 1], [2, 3], [4, 5], [6]]),
        (AVG, 0, 2, [[], []]),
        (CIRCLE, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (CIRCLE, 2, 3, [[0], [1], []]),
    ],
)
def test_shares_are_those_of_java(
    allocation: Allocation, queues: int, members: int, expected: list[list[int]]
) -> None:
    assert shares(allocation, queues, members) == expected


def java_avg(queues: int, members: int, index: int) -> list[int]:
    """`AllocateMessageQueueAveragely`, word by word."""
    mod = queues % members
    size = 1 if queues <= members else queues // members + (1 if mod > 0 and index < mod else 0)
    start = index * size if mod > 0 and index < mod else index * size + mod
    return list(range(queues))[start : start + max(0, min(size, queues - start))]


@given(st.integers(0, 100), st.integers(1, 40))
def test_the_average_strategy_is_javas_formula(queues: int, members: int) -> None:
    assert shares(AVG, queues, members) == [
        java_avg(queues, members, index) for index in range(members)
    ]


@given(st.sampled_from([AVG, CIRCLE]), st.integers(0, 100), st.integers(1, 40))
def test_shares_are_disjoint_cover_all_and_differ_by_one_at_most(
    allocation: Allocation, queues: int, members: int
) -> None:
    all_shares = shares(allocation, queues, members)
    assert sorted(queue for share in all_shares for queue in share) == list(range(queues))
    sizes = [len(share) for share in all_shares]
    assert max(sizes) - min(sizes) <= 1


def test_every_allocation_of_the_settings_has_a_strategy() -> None:
    for allocation in Allocation:
        assert allocate(allocation, [1], ["me"], "me") == [1]
