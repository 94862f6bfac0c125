"""Steps from the queues a member holds to its share (docs/internals/semantics.md#rebalance)."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import RebalanceConfig
from ordermq.consumer.group.rebalance import LockRetries, Plan, plan, share_of
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


def pauses(retries: LockRetries, count: int, *refused: MessageQueue) -> list[int]:
    return [retries.pause_ms(frozenset(refused)) for _ in range(count)]


def test_locks_are_asked_for_soon_at_first_and_then_seldom() -> None:
    found = pauses(LockRetries(200), 40, QUEUES[0])
    waited = list(accumulate(found, initial=0))
    assert found[:6] == [5, 10, 20, 20, 20, 20]
    assert all(
        pause == min(max(20, before // 4), 200)
        for pause, before in list(zip(found, waited, strict=False))[2:18]
    )
    assert set(found[18:]) == {200}
    assert sum(at < 1_000 for at in waited) <= 17, "requests in the first second"
    assert pauses(LockRetries(10), 4, QUEUES[0]) == [5, 10, 10, 10]


def test_the_pauses_are_short_again_only_for_a_queue_that_was_not_refused_before() -> None:
    retries = LockRetries(200)
    pauses(retries, 20, *QUEUES[:3])
    assert pauses(retries, 1, *QUEUES[:2]) == [200], "others were granted meanwhile"
    assert pauses(retries, 2, *QUEUES[:3]) == [5, 10], "one that was granted is refused again"


def test_a_long_wait_for_locks_is_told_once_and_of_queues_that_were_refused_all_along() -> None:
    retries = LockRetries(200)
    assert retries.long_refused({QUEUES[0], QUEUES[1]}, 1_000) == []
    assert retries.long_refused({QUEUES[0]}, 3_000) == [], "the other one was granted"
    assert retries.long_refused({QUEUES[0], QUEUES[1]}, 4_000) == []
    assert retries.long_refused({QUEUES[0], QUEUES[1]}, 6_000) == [QUEUES[0]]
    assert retries.long_refused({QUEUES[0], QUEUES[1]}, 60_000) == []


@given(st.lists(st.sets(st.sampled_from(QUEUES[:2]), min_size=1), min_size=1, max_size=60))
def test_each_refusal_of_another_queue_costs_sixteen_early_requests_at_most(
    refusals: list[set[MessageQueue]],
) -> None:
    retries = LockRetries(200)
    early, changes, before = 0, 0, set[MessageQueue]()
    for refused in refusals:
        early += retries.pause_ms(frozenset(refused)) < 200
        changes += bool(refused - before)
        before = refused
    assert early <= 16 * changes
