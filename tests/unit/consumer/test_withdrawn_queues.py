"""Unread messages in queues that left the route of their topic
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.client.withdrawn_queues import _NO_QUEUE
from ordermq.clock import ManualClock
from ordermq.consumer.group.withdrawn_queues import WithdrawnQueues
from ordermq.errors import BrokerError, RequestTimeout
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
    """Queues that were given up at these offsets, at a broker where all of them end at 100.

    Attributes:
        stored: the group's offset of each queue.
        offsets: those of single queues, by number; a broker like 4.9 tells 0 for no offset.
        first: the oldest offset of each queue.
    """

    def __init__(self, *, is_local: bool = False, **left_at: int) -> None:
        self.stored: int | None = None
        self.offsets: dict[int, int] = {}
        self.unknown: int | None = None
        self.first = 0
        self.fails = self.refuses = False
        self.clock = ManualClock()
        self.asked: list[int] = []
        self.found = 0
        self.tasks: list[asyncio.Task[None]] = []
        client = SimpleNamespace(
            api=SimpleNamespace(
                max_offset=self.max_offset,
                min_offset=self.min_offset,
                query_offset=self.query_offset,
            ),
            routes=SimpleNamespace(master_of=lambda name: f"{name}:1"),
            clock=self.clock,
            proxy=None,
            is_connected=lambda name: True,
            runtime=SimpleNamespace(spawn=self.spawn),
        )
        member = SimpleNamespace(client=client, group="g")
        self.queues = WithdrawnQueues(
            cast(Any, member), is_local=is_local, on_found=self.note_found
        )
        for queue, offset in zip((FIRST, LAST), left_at.values(), strict=False):
            self.queues.gave_up(cast(Any, SimpleNamespace(queue=queue, committed_offset=offset)))

    def note_found(self) -> None:
        self.found += 1

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        if self.fails:
            raise RequestTimeout("no answer")
        return 100 if queue.queue_id < 1_000 else 0

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        return self.first

    async def query_offset(self, address: str, group: str, queue: MessageQueue) -> int | None:
        assert group == "g"
        self.asked.append(queue.queue_id)
        if self.refuses:
            raise BrokerError("no", response_code=16)
        if self.stored is not None:
            return self.stored
        return self.offsets.get(queue.queue_id, self.unknown)

    def problem(self, route: TopicRoute | None) -> str:
        asyncio.run(self.queues.look({"T": route}))
        return self.queues.problem("T")

    def problem_after_search(self, route: TopicRoute) -> str:
        async def search() -> None:
            self.queues.search("T", route)
            self.queues.search("T", route)
            tasks, self.tasks = self.tasks, []
            await asyncio.gather(*tasks)

        asyncio.run(search())
        return self.problem(route)


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


def test_what_expires_unread_is_counted_no_more() -> None:
    given = Given(first=40)
    assert "60 unread" in given.problem(route_of(a=(2, 6)))
    given.first = 70
    assert "60 unread" in given.problem(route_of(a=(2, 6))), "it was counted a moment ago"
    given.clock.advance(60_000)
    assert "30 unread messages, as T@a/2 from offset 70" in given.problem(route_of(a=(2, 6)))
    given.first = 100
    given.clock.advance(60_000)
    assert given.problem(route_of(a=(2, 6))) == ""


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


@pytest.mark.parametrize("unknown", [None, 0])
def test_a_member_that_comes_later_finds_queues_that_left_by_the_offsets_of_the_group(
    unknown: int | None,
) -> None:
    given = Given()
    # Nobody of the group ever had number 3; RocketMQ 4.9 tells 0 of it, as of any other queue.
    given.offsets, given.unknown = {1: 50, 2: 40, 5: 90}, unknown
    problem = given.problem_after_search(route_of(a=(2, 6), b=(2, 2)))
    assert problem.startswith("3, with 120 unread messages, as T@a/2 from offset 40 on; ")
    assert given.found == 2
    assert set(given.asked) - {_NO_QUEUE} == set(range(10))
    assert (_NO_QUEUE in given.asked) == (unknown == 0)
    assert given.problem(route_of(a=(6, 6), b=(2, 6))) == ""


def test_queues_that_the_group_never_had_are_none_it_lost() -> None:
    given = Given()
    assert given.problem_after_search(route_of(a=(2, 6), b=(2, 2))) == ""
    assert given.found == 0


def test_a_start_that_is_stored_at_the_first_message_counts_where_a_broker_knows_it_is() -> None:
    given = Given()
    given.offsets = {2: 0}
    assert "100 unread messages, as T@a/2 from offset 0 on" in given.problem_after_search(
        route_of(a=(2, 6))
    )


def test_a_broker_that_did_not_answer_is_searched_again() -> None:
    given = Given()
    given.offsets, given.fails = {2: 40}, True
    assert given.problem_after_search(route_of(a=(2, 6))) == ""
    given.fails = False
    assert "60 unread" in given.problem_after_search(route_of(a=(2, 6)))


def test_a_broker_that_refuses_is_not_searched_again() -> None:
    given = Given()
    given.refuses = True
    assert given.problem_after_search(route_of(a=(2, 6))) == ""
    before = len(given.asked)
    assert given.problem_after_search(route_of(a=(2, 6))) == ""
    assert len(given.asked) == before


def test_offsets_that_no_broker_has_are_not_searched_for() -> None:
    given = Given(is_local=True)
    given.offsets = {2: 40}
    assert given.problem_after_search(route_of(a=(2, 6))) == ""
    assert given.asked == []
