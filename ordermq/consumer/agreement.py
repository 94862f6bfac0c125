"""Whether the members of a group want the same: nothing else tells who does not.

A broker keeps one subscription a group and topic, that of whoever subscribed last, and gives
each member of a group the share of a topic whether it wants that topic or not: members that
subscribe differently lose each other's messages, and Java's clients do so silently. Likewise a
group of which one member takes queues in order and another many batches at once. And an admin
may have told brokers to have a topic's messages popped one by one, which no lock of ours keeps in
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from ordermq.client.runtime import wait_until_set
from ordermq.client.session import ClientSession
from ordermq.errors import OrderMQError
from ordermq.model.names import retry_topic
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.remoting.bodies import MemberSubscriptions

_log = logging.getLogger("ordermq.consumer")
_AT_MOST_EVERY_MS = 1_000
POP = "POP"


class Agreement:
    """Compares us with our neighbour in the group whenever its members change.

    Neighbours are the next in the sorted list of client ids, so that of any two kinds of members
    some are neighbours, and a group of many asks as many questions, not their square.

    Args:
        is_orderly: whether our listener is.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        *,
        is_orderly: bool,
    ) -> None:
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._is_orderly = is_orderly
        self._wake = asyncio.Event()
        self._told: set[str] = set()

    def wake(self) -> None:
        """The members changed: compare again."""
        self._wake.set()

    async def run(self) -> None:
        """Ask when we join, and after each change; at most once a second."""
        await self._ask_for_mode()
        while True:
            self._wake.clear()
            await self._compare()
            await self._client.clock.sleep_ms(_AT_MOST_EVERY_MS)
            interval_ms = self._client.config.heartbeat_interval_ms
            await wait_until_set(self._wake, self._client.clock, interval_ms)

    def _ours(self) -> MemberSubscriptions:
        own = [item for item in self._subscriptions() if item.topic != retry_topic(self._group)]
        return MemberSubscriptions({item.topic: item.expression for item in own}, self._is_orderly)

    async def _ask_for_mode(self) -> None:
        for address in self._client.routes.masters():
            for topic in sorted(self._ours().subscriptions):
                try:
                    mode = await self._client.api.request_mode(address, self._group, topic)
                except OrderMQError as error:
                    # Before RocketMQ 5 there are no modes; or an account may not ask.
                    _log.debug("%s: consume mode of %s not known: %s", address, topic, error)
                    return
                if mode == POP:
                    self._tell(
                        f"group {self._group}: the broker at {address} has it pop the messages of "
                        f"topic {topic} (mqadmin setConsumeMode). This member pulls all the same; "
                        "one that pops gets the same messages beside it, and in no order: if "
                        "there is any, set the mode to PULL"
                    )

    async def _compare(self) -> None:
        for address in self._client.routes.masters():
            try:
                ids = await self._client.api.consumer_ids(address, self._group)
                neighbour = neighbour_of(self._client.client_id, ids)
                if neighbour is not None:
                    theirs = await self._client.api.member_subscriptions(
                        address, self._group, neighbour
                    )
                    for problem in differences(self._ours(), theirs, retry_topic(self._group)):
                        self._tell(
                            f"group {self._group}: {problem} at member {neighbour}. Messages get "
                            "lost or come out of order: all members of a group must subscribe and "
                            "listen alike; give one of the two a group of its own"
                        )
                return
            except OrderMQError as error:
                _log.debug("%s: members not compared: %s", address, error)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            _log.warning("%s", problem)


def differences(ours: MemberSubscriptions, theirs: MemberSubscriptions, retry: str) -> list[str]:
    """What two members of a group want differently, in words."""
    found = []
    other = {topic: text for topic, text in theirs.subscriptions.items() if topic != retry}
    for topic in sorted({*ours.subscriptions, *other}):
        here, there = _said(ours.subscriptions, topic), _said(other, topic)
        if here != there:
            found.append(f"topic {topic} is {here} here and {there}")
    if theirs.is_orderly is not None and ours.is_orderly != theirs.is_orderly:
        ways = ("concurrently", "orderly")
        found.append(
            f"listening is {ways[bool(ours.is_orderly)]} here and {ways[bool(theirs.is_orderly)]}"
        )
    return found


def _said(subscriptions: Mapping[str, str], topic: str) -> str:
    if topic not in subscriptions:
        return "not subscribed"
    tags = sorted({tag.strip() for tag in subscriptions[topic].split("||")} - {""})
    return f"subscribed with {' || '.join(tags) or EVERYTHING!r}"


def neighbour_of(own_id: str, ids: Sequence[str]) -> str | None:
    """The member after us, the first after the last; None if we are alone or not known yet."""
    if own_id not in ids or len(ids) < 2:
        return None
    return ids[(ids.index(own_id) + 1) % len(ids)]
