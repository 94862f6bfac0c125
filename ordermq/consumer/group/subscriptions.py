"""Subscriptions of a member, and the check that all members of its group subscribe alike
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from ordermq.client.session import ClientSession
from ordermq.clock import wait_until_set
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError, OrderMQError
from ordermq.model.names import retry_topic
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.remoting.bodies import MemberSubscriptions

_log = logging.getLogger("ordermq.consumer")
_MIN_CHECK_INTERVAL_MS = 1_000  # members that start together would ask after each other's join
POP = "POP"


class Subscriptions:
    """The topics of a member, each with its filter expression; on the I/O thread."""

    def __init__(
        self, client: ClientSession, group: str, subscriptions: Iterable[Subscription]
    ) -> None:
        self._client = client
        self._group = group
        self._by_topic = {item.topic: item for item in subscriptions}

    def topics(self) -> list[str]:
        """Return the topics, sorted."""
        return sorted(self._by_topic)

    def all(self) -> tuple[Subscription, ...]:
        """Return the subscriptions, sorted by topic."""
        return tuple(self._by_topic[topic] for topic in sorted(self._by_topic))

    def of(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic, None if there is none."""
        return self._by_topic.get(topic)

    async def put(self, subscriptions: Iterable[Subscription]) -> None:
        """Add topics, or change their expressions, once every broker takes them.

        Raises: RouteError: no name server answers. BrokerError: see `check`.
        """
        wanted = {item.topic: item for item in subscriptions}
        # Checked before anything changes: a refused expression leaves the old one in force.
        await self.check(wanted.values())
        await self._client.routes.get_all(wanted)
        self._by_topic |= wanted

    def remove(self, topic: str) -> None:
        """Drop a topic; one that is not subscribed is ignored."""
        self._by_topic.pop(topic, None)

    async def check(self, subscriptions: Iterable[Subscription] | None = None) -> None:
        """Ask the brokers whether they can filter by these subscriptions; default all.

        Raises: BrokerError: one cannot.
        """
        for subscription in self.all() if subscriptions is None else subscriptions:
            if subscription.is_sql:
                await self._check_sql(subscription)

    async def _check_sql(self, subscription: Subscription) -> None:
        route = await self._client.routes.get(subscription.topic)
        for broker in route.brokers if route is not None else ():
            if not broker.master:
                continue  # no master is known now, so there is nobody to ask
            try:
                await self._client.api.check_subscription(broker.master, self._group, subscription)
            except BrokerError as error:
                raise BrokerError(
                    f"{error}; sql={subscription.expression!r} is for brokers of RocketMQ with "
                    "enablePropertyFilter=true in their broker.conf, others filter by tags only",
                    response_code=error.response_code,
                    topic=subscription.topic,
                    group=self._group,
                    broker=broker.broker_name,
                ) from error


class SubscriptionCheck:
    """Compares this member with its neighbour in the group whenever the members change.

    A broker keeps one subscription per group and topic, that of the member that subscribed last,
    and gives each member a share of a topic whether it subscribes that topic or not: members
    that subscribe differently lose each other's messages, and Java's clients do so silently.
    Likewise a group of which one member consumes orderly and another concurrently. And an admin
    may have told brokers to have a topic's messages popped one by one, which no queue lock
    keeps in order.

    Neighbours are the next in the sorted list of client ids, so that of any two kinds of members
    some are neighbours, and a group of many asks as many questions, not their square.

    Args:
        subscriptions: returns what this member shares with its group at this moment.
        is_ordered: whether this member consumes in order.
        pops: whether it pops, instead of pulling.
    Attributes:
        problem: how the neighbour subscribes or listens otherwise now, for this member's health;
            empty if it does as this member does.
    """

    def __init__(
        self,
        member: MemberContext,
        subscriptions: Callable[[], Sequence[Subscription]],
        *,
        is_ordered: bool,
        pops: bool,
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._subscriptions = subscriptions
        self._is_ordered = is_ordered
        self._pops = pops
        self.problem = ""
        self._wake = asyncio.Event()
        self._warned: set[str] = set()
        self._checked_topics: set[str] = set()

    def wake(self) -> None:
        """Compare again: the members or the topics changed."""
        self._wake.set()

    async def round(self) -> None:
        """Compare, and wait for a change, at least a second."""
        self._wake.clear()
        if own := self._own():
            if not self._pops:
                await self._check_modes(own)
            await self._compare(own)
        await self._client.clock.sleep_ms(_MIN_CHECK_INTERVAL_MS)
        # A change of expression wakes nobody: the other members find it within an interval.
        interval_ms = self._client.config.heartbeat_interval_ms
        await wait_until_set(self._wake, self._client.clock, interval_ms)

    def _own(self) -> MemberSubscriptions | None:
        retry = retry_topic(self._group)
        own = {item.topic: item.expression for item in self._subscriptions()}
        # Every ordered and concurrent member has it, pollers have not; it decides nothing.
        own.pop(retry, None)
        return MemberSubscriptions(own, self._is_ordered, self._pops) if own else None

    async def _check_modes(self, own: MemberSubscriptions) -> None:
        topics = sorted(set(own.subscriptions) - self._checked_topics)
        self._checked_topics.update(topics)
        for address in self._client.routes.masters():
            for topic in topics:
                try:
                    mode = await self._client.api.request_mode(address, self._group, topic)
                except OrderMQError as error:
                    # Before RocketMQ 5 there are no modes; or an account may not ask.
                    # No warning: the check is a courtesy, and consuming goes on without it.
                    _log.debug("%s: consume mode of %s not known: %s", address, topic, error)
                    return
                if mode == POP:
                    self._warn(
                        f"group {self._group}: the broker at {address} has the messages of "
                        f"topic {topic} popped (mqadmin setConsumeMode). This member pulls all the "
                        "same; a member that pops gets the same messages too, and in no order: if "
                        "there is any, set the mode to PULL"
                    )

    async def _compare(self, own: MemberSubscriptions) -> None:
        for address in self._client.routes.masters():
            try:
                ids = await self._client.api.consumer_ids(address, self._group)
                neighbour = neighbour_of(self._client.client_id, ids)
                problems = []
                if neighbour is not None:
                    theirs = await self._client.api.member_subscriptions(
                        address, self._group, neighbour
                    )
                    problems = [
                        f"group {self._group}: {found} at member {neighbour}. Messages get lost or "
                        "come out of order: all members of a group must subscribe and listen "
                        "alike; give one of the two a group of its own"
                        for found in differences(own, theirs, retry_topic(self._group))
                    ]
                for problem in problems:
                    self._warn(problem)
                self.problem = problems[-1] if problems else ""
                return  # every broker has the same list: one is enough
            except OrderMQError as error:
                _log.debug("%s: members not compared: %s", address, error)

    def _warn(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("%s", problem, extra=self._fields())


def differences(own: MemberSubscriptions, theirs: MemberSubscriptions, retry: str) -> list[str]:
    """Describe each difference of two members of a group."""
    found = []
    other = {topic: text for topic, text in theirs.subscriptions.items() if topic != retry}
    for topic in sorted({*own.subscriptions, *other}):
        here, there = _described(own.subscriptions, topic), _described(other, topic)
        if here != there:
            found.append(f"topic {topic} is {here} here and {there}")
    if theirs.is_orderly is not None and own.is_orderly != theirs.is_orderly:
        ways = ("concurrently", "orderly")
        found.append(
            f"listening is {ways[bool(own.is_orderly)]} here and {ways[bool(theirs.is_orderly)]}"
        )
    if twice := _twice(own, theirs):
        found.append(twice)
    return found


def _twice(own: MemberSubscriptions, theirs: MemberSubscriptions) -> str:
    # None of these ways knows of the others' locks or leases.
    ways = (own, theirs)
    if own.pops != theirs.pops:
        here, there = ("by pop" if each.pops else "by pulls" for each in ways)
    elif own.pops and {own.is_orderly, theirs.is_orderly} == {True, False}:
        here, there = ("in order" if each.is_orderly else "without order" for each in ways)
    else:
        return ""
    return f"each message is consumed twice, {here} here and {there}"


def _described(subscriptions: Mapping[str, str], topic: str) -> str:
    if topic not in subscriptions:
        return "not subscribed"
    # Clients write the same tags in any order and spacing; an empty expression is `*`.
    tags = sorted({tag.strip() for tag in subscriptions[topic].split("||")} - {""})
    return f"subscribed with {' || '.join(tags) or EVERYTHING!r}"


def neighbour_of(own_id: str, ids: Sequence[str]) -> str | None:
    """Return the member after this one, the first after the last; None if it is alone."""
    if own_id not in ids or len(ids) < 2:
        return None
    return ids[(ids.index(own_id) + 1) % len(ids)]
