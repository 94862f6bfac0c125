"""Sharing queues among members (docs/internals/semantics.md#rebalance, I13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import Allocation, AllocationStrategy, ConsumerConfig
from ordermq.consumer.group.allocation import Configured, MachineRoom, MachineRoomNearby, allocate
from ordermq.consumer.group.rebalance import share_of
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue

AVG, CIRCLE = Allocation.AVG, Allocation.AVG_BY_CIRCLE
HASH = Allocation.CONSISTENT_HASH
VECTORS = Path(__file__).parents[2] / "vectors" / "allocation" / "shares.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]


def room(name: str) -> str:
    return name.split("@")[0]


def strategy_of(case: dict[str, Any]) -> Allocation | AllocationStrategy:
    """Arguments that a line of the vectors was made with."""
    match case["strategy"]:
        case "config":
            return Configured(MessageQueue("T", "broker-a", number) for number in range(3))
        case "machine_room":
            return MachineRoom(case["told"].split())
        case "machine_room_nearby":
            return MachineRoomNearby(
                lambda queue: room(queue.broker_name), room, Allocation(case["told"])
            )
        case name:
            return Allocation(name)


@pytest.mark.parametrize("name", sorted({case["strategy"] for case in CASES}))
def test_shares_are_those_of_java(name: str) -> None:
    for case in CASES:
        if case["strategy"] != name:
            continue
        queues = [MessageQueue("T", broker, number) for broker, number in case["queues"]]
        for member, expected in zip(case["members"], case["shares"], strict=True):
            share = allocate(strategy_of(case), queues, case["members"], member)
            assert [queues.index(queue) for queue in share] == expected, (case, member)


def test_the_vectors_hold_every_strategy_of_java() -> None:
    assert {case["strategy"] for case in CASES} == {
        AVG, CIRCLE, HASH, "config", "machine_room", "machine_room_nearby",
    }  # fmt: skip


def shares(
    allocation: Allocation | AllocationStrategy, queues: int, members: int
) -> list[list[int]]:
    ids = [f"m{number:03}" for number in range(members)]
    every = [MessageQueue("T", "b", number) for number in range(queues)]
    return [[queue.queue_id for queue in allocate(allocation, every, ids, own)] for own in ids]


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


@pytest.mark.parametrize("allocation", Allocation)
@given(queues=st.integers(0, 100), members=st.integers(1, 40))
def test_each_queue_is_one_members(allocation: Allocation, queues: int, members: int) -> None:
    all_shares = shares(allocation, queues, members)
    assert sorted(queue for share in all_shares for queue in share) == list(range(queues))


@given(st.sampled_from([AVG, CIRCLE]), st.integers(0, 100), st.integers(1, 40))
def test_shares_differ_by_one_at_most(allocation: Allocation, queues: int, members: int) -> None:
    sizes = [len(share) for share in shares(allocation, queues, members)]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 60), st.integers(1, 20))
def test_a_member_that_joins_a_hash_ring_takes_queues_and_moves_no_other(
    queues: int, members: int
) -> None:
    before, after = shares(HASH, queues, members), shares(HASH, queues, members + 1)
    assert sorted(queue for share in after for queue in share) == list(range(queues))
    for old, new in zip(before, after, strict=False):
        assert set(new) <= set(old)


def test_rooms_without_members_are_shared_by_all_and_others_stay_within() -> None:
    strategy = MachineRoomNearby(lambda queue: room(queue.broker_name), room)
    queues = [MessageQueue("T", name, n) for name in ("near@b", "void@b") for n in range(4)]
    ids = ["far@1", "near@1"]
    far = allocate(strategy, queues, ids, "far@1")
    near = allocate(strategy, queues, ids, "near@1")
    assert sorted(far + near) == queues
    assert {queue.broker_name for queue in far} == {"void@b"}


def test_a_broker_or_member_without_a_room_is_refused_by_name() -> None:
    queues = [MessageQueue("T", "b", 0)]
    with pytest.raises(ConfigError, match="machine room of broker 'b' is ''"):
        allocate(MachineRoomNearby(lambda queue: "", room), queues, ["r@m"], "r@m")
    with pytest.raises(ConfigError, match="machine room of member 'm' is None"):
        allocate(MachineRoomNearby(lambda queue: "r", lambda member: None), queues, ["m"], "m")


def test_a_strategy_of_ones_own_may_share_only_what_is_there() -> None:
    queues = [MessageQueue("T", "b", number) for number in range(4)]
    config = ConsumerConfig.of(allocation=lambda queues, ids, own: queues[1:2])
    assert share_of(config.rebalance, queues, ["m"], "m") == queues[1:2]
    config = ConsumerConfig.of(allocation=lambda queues, ids, own: [MessageQueue("T", "b", 9)])
    with pytest.raises(ConfigError, match="gave T@b/9, which is none of the 4 queues"):
        share_of(config.rebalance, queues, ["m"], "m")


@pytest.mark.parametrize("allocation", list(Allocation))
def test_every_allocation_of_the_settings_has_a_strategy(allocation: Allocation) -> None:
    assert shares(allocation, 1, 1) == [[0]]
