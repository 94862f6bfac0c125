"""Steps from the queues a member holds to its share (docs/internals/semantics.md#rebalance)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import RebalanceConfig
from ordermq.consumer.group.rebalance import Plan, plan, share_of
from ordermq.model.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(8)]
SETS = st.sets(st.sampled_from(QUEUES))


@given(SETS, SETS)
def test_acting_on_a_plan_gives_the_share_and_touches_nothing_else(
    held: set[MessageQueue], share: set[MessageQueue]
) -> None:
    todo = plan(held, share)
    assert (held - set(todo.revoke)) | set(todo.acquire) == share
    assert set(todo.revoke) == held - share
    assert todo.revoke == sorted(todo.revoke)
    assert todo.acquire == sorted(todo.acquire)


def test_an_unchanged_share_plans_nothing() -> None:
    assert plan(QUEUES, QUEUES) == Plan([], [])


def test_members_compute_disjoint_shares_from_lists_in_any_order() -> None:
    config = RebalanceConfig()
    shares = [share_of(config, QUEUES, ["b", "c", "a"], own) for own in ("a", "b", "c")]
    assert shares == [QUEUES[:3], QUEUES[3:6], QUEUES[6:]]


def test_a_member_the_broker_forgot_has_no_share_rather_than_an_empty_one() -> None:
    assert share_of(RebalanceConfig(), QUEUES, ["a", "b"], "me") is None
    assert share_of(RebalanceConfig(), QUEUES, [], "me") is None
