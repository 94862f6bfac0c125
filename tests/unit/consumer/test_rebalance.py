"""Steps from the queues a member holds to its share (docs/internals/semantics.md#rebalance)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.clock import ManualClock
from ordermq.config import RebalanceConfig
from ordermq.consumer.group.queue_locks import NoLocks
from ordermq.consumer.group.rebalance import (
    LockRetries,
    Plan,
    QueueOwner,
    Rebalancer,
    plan,
    share_of,
)
from ordermq.consumer.queue.assigned_queue import QueueState
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder, MemberContext
from ordermq.events import NoHistory
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

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


# -- new topics: nothing waits for the periodic pass ------------------------------------------

OWN = "me@1"


def route_of(*brokers: str) -> TopicRoute:
    return TopicRoute(
        queues=tuple(QueueData(name, 4, 4, 6, 0) for name in brokers),
        brokers=tuple(BrokerData("c", name, {0: f"{name}:1"}) for name in brokers),
    )


class NewTopics:
    """A rebalancer among name servers and brokers that a test holds up; time is the test's.

    Attributes:
        routes: of the topics that are there, at the name server.
        gate: looks at routes wait for it.
        looks: how many were begun.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.topics = ["T"]
        self.routes: dict[str, TopicRoute] = {}
        self.known: dict[str, TopicRoute] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.looks = 0
        self.assigned: list[MessageQueue] = []
        routes = SimpleNamespace(
            get_all=self.get_all,
            refresh_soon=self.refresh_soon,
            known=self.known.get,
            is_missing=lambda topic: False,
            masters=lambda: ["b:1", "c:1"],
            master_of=lambda name: f"{name}:1",
        )
        client = SimpleNamespace(
            client_id=OWN,
            clock=self.clock,
            routes=routes,
            connections=SimpleNamespace(own=lambda address: ()),
            is_connected=lambda broker: True,
            proxy=None,
            api=SimpleNamespace(addresses_of=self.addresses_of),
            group_members=self.group_members,
        )
        self.rebalancer = Rebalancer(
            MemberContext(
                cast(Any, client), "G", EventRecorder(NoHistory(), "G"), ConsumerStatistics()
            ),
            RebalanceConfig(),
            200,
            QueueOwner(
                topics=lambda: self.topics,
                make_queue=lambda queue, lease, offset: cast(
                    Any, SimpleNamespace(queue=queue, state=QueueState.ACTIVE)
                ),
                on_assigned=lambda assigned: self.assigned.append(assigned.queue),
                on_released=lambda assigned: None,
            ),
            NoLocks(held=list, on_regained=lambda each: None, clock=self.clock, retry_ms=200),
            cast(
                Any,
                SimpleNamespace(
                    start_offset=self.start_offset,
                    rule=SimpleNamespace(take_skipped=dict),
                    is_local=True,  # no broker is asked for withdrawn queues
                ),
            ),
            cast(Any, None),
            takes_all=False,
        )
        self.rounds = asyncio.ensure_future(self.go_round())

    async def go_round(self) -> None:
        while True:
            await self.rebalancer.round()

    async def get_all(self, topics: list[str]) -> dict[str, TopicRoute | None]:
        self.looks += 1
        found = {topic: self.known.get(topic, self.routes.get(topic)) for topic in topics}
        await self.gate.wait()
        self.known.update({topic: route for topic, route in found.items() if route})
        return found

    async def refresh_soon(self, topic: str) -> None:
        self.known[topic] = self.routes[topic]

    async def addresses_of(self, *about: str) -> list[str]:
        return []

    async def group_members(self, group: str) -> list[str]:
        return [OWN]

    async def start_offset(self, queue: MessageQueue, lease: object) -> int:
        return 0

    async def pass_ms(self, duration_ms: int, step_ms: int = 5) -> None:
        for _ in range(duration_ms // step_ms):
            await settle()
            self.clock.advance(step_ms)
        await settle()


async def settle() -> None:
    """Let every task do what it can without time."""
    for _ in range(30):
        await asyncio.sleep(0)


def with_new_topics(check: Callable[[NewTopics], Awaitable[None]]) -> None:
    async def main() -> None:
        topics = NewTopics()
        try:
            await check(topics)
        finally:
            topics.rounds.cancel()
            await asyncio.gather(topics.rounds, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("held_up_ms", [0, 5, 50, 400])
def test_a_first_message_is_found_although_a_pass_beside_the_loop_takes_long(
    held_up_ms: int,
) -> None:
    async def check(topics: NewTopics) -> None:
        await settle()  # the first pass of the loop has found no topic
        topics.gate.clear()
        beside = asyncio.ensure_future(topics.rebalancer.rebalance_now())
        # Meanwhile the loop decides how long to wait.
        await topics.pass_ms(held_up_ms)
        topics.gate.set()
        await beside
        topics.routes["T"] = route_of("b", "c")
        await topics.pass_ms(500)
        assert len(topics.assigned) == 8

    with_new_topics(check)


def test_a_topic_that_is_subscribed_beside_the_loop_is_looked_for_soon() -> None:
    async def check(topics: NewTopics) -> None:
        topics.topics = ["U"]
        topics.routes["U"] = route_of("b", "c")
        await topics.pass_ms(100)  # the loop waits for its next pass, which is 20 s away
        assert len(topics.assigned) == 8
        topics.topics = ["T", "U"]
        await topics.rebalancer.rebalance_now()
        topics.routes["T"] = route_of("b", "c")
        await topics.pass_ms(500)
        assert len(topics.assigned) == 16

    with_new_topics(check)


def test_queues_that_another_broker_creates_a_moment_later_are_found_soon() -> None:
    async def check(topics: NewTopics) -> None:
        await settle()
        topics.routes["T"] = route_of("b")
        await topics.pass_ms(500)
        assert len(topics.assigned) == 4
        topics.routes["T"] = route_of("b", "c")
        await topics.pass_ms(500)
        assert len(topics.assigned) == 8
        looks = topics.looks
        await topics.pass_ms(2_000)
        assert topics.looks == looks, "all brokers have it: nothing more is looked for"

    with_new_topics(check)


def test_a_topic_is_young_for_a_minute_only() -> None:
    async def check(topics: NewTopics) -> None:
        await settle()
        topics.routes["T"] = route_of("b")
        await topics.pass_ms(60_500, step_ms=50)
        looks = topics.looks
        await topics.pass_ms(3_000)
        assert topics.looks <= looks + 1

    with_new_topics(check)
