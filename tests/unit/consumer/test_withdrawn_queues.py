"""Unread messages in queues that left the route of their topic
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.consumer.group.withdrawn_queues import WithdrawnQueues
from ordermq.errors import RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

FIRST, LAST = MessageQueue("T", "a", 2), MessageQueue("T", "a", 3)


def route_of(**brokers: tuple[int, int]) -> TopicRoute:
    """Brokers with their queues for reads, and their permission."""
    return TopicRoute(
        brokers=tuple(BrokerData("C", name, {0: f"{name}:1"}) for name in brokers),
        queues=tuple(QueueData(name, reads, 4, perm, 0) for name, (reads, perm) in brokers.items()),
    )


class Given:
    """Queues that were given up at these offsets, at a broker where all of them end at 100."""

    def __init__(self, *, is_local: bool = False, **left_at: int) -> None:
        self.stored: int | None = None
        self.fails = False
        api = SimpleNamespace(max_offset=self.max_offset, query_offset=self.query_offset)
        routes = SimpleNamespace(master_of=lambda name: f"{name}:1")
        member = SimpleNamespace(client=SimpleNamespace(api=api, routes=routes), group="g")
        self.queues = WithdrawnQueues(cast(Any, member), is_local=is_local)
        for queue, offset in zip((FIRST, LAST), left_at.values(), strict=False):
            self.queues.gave_up(cast(Any, SimpleNamespace(queue=queue, committed_offset=offset)))

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        if self.fails:
            raise RequestTimeout("no answer")
        return 100

    async def query_offset(self, address: str, group: str, queue: MessageQueue) -> int | None:
        assert group == "g"
        return self.stored

    def problem(self, route: TopicRoute | None) -> str:
        asyncio.run(self.queues.look({"T": route}))
        return self.queues.problem("T")


def test_queues_that_a_topic_has_no_more_are_told_until_it_has_them_again() -> None:
    given = Given(first=40, last=90)
    problem = given.problem(route_of(a=(2, 6), b=(4, 6)))
    assert problem.startswith("2, with 70 unread messages, as T@a/2 from offset 40 on")
    assert "updateTopic -r" in problem
    assert given.queues.problem("other") == ""
    assert given.problem(route_of(a=(3, 6))).startswith("1, with 10 unread messages, as T@a/3")
    assert given.problem(route_of(a=(4, 6))) == ""


def test_queues_of_a_broker_that_is_closed_for_reads_are_told() -> None:
    problem = Given(first=40).problem(route_of(a=(4, 2), b=(4, 6)))
    assert "60 unread" in problem
    assert "closed for reads" in problem
    assert "brokerPermission" in problem


@pytest.mark.parametrize(
    "route",
    [
        route_of(a=(4, 6)),  # another member has them
        route_of(b=(4, 6)),  # its broker is away, or has the topic no more
        route_of(a=(4, 2)),  # no queue is readable: told as such
        None,
    ],
)
def test_queues_that_were_given_up_for_other_reasons_are_not_withdrawn(
    route: TopicRoute | None,
) -> None:
    given = Given(first=40)
    assert given.problem(route) == ""
    assert given.problem(route_of(a=(2, 6))) == "", "it was looked at once"


def test_what_the_group_has_done_beyond_the_members_own_offset_is_not_unread() -> None:
    given = Given(first=0, last=0)
    given.stored = 100
    assert given.problem(route_of(a=(2, 6))) == ""
    local = Given(is_local=True, first=30)
    local.stored = 100
    assert "70 unread" in local.problem(route_of(a=(2, 6)))


def test_a_queue_that_could_not_be_counted_is_counted_by_a_later_look() -> None:
    given = Given(first=40)
    given.fails = True
    assert given.problem(route_of(a=(2, 6))) == ""
    given.fails = False
    assert "60 unread" in given.problem(route_of(a=(2, 6)))
