"""Membership: whether brokers list this member, and why not
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ordermq.clock import growing_pause_ms
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError, OrderMQError, RemotingError
from ordermq.remoting.codes import ResponseCode

_log = logging.getLogger("ordermq.consumer")
_LONGEST_PAUSE_MS = 10_000
# Heartbeats in a row after which a broker that acknowledges them is asked why it lists nobody.
# RocketMQ works a heartbeat and a request for the list in different threads: one may be overtaken.
_ENOUGH_BEATS = 3
LOOK_MS = 2_000  # between two looks at the connections of this member's client id


class Membership:
    """The place of this member in its group's list; on the I/O thread.

    Args:
        warn: logs a problem once for as long as it stays the same; empty: there is none now.
        retry_ms: the first pause; each later one is twice as long, up to 10 s.
    Attributes:
        problem: why brokers do not list this member, with the remedy; empty if they do, or if
            nobody knows yet.
        is_in_doubt: another client has this one's id; look again, `LOOK_MS` later.
        has_stepped_down: it still had it then: this one is no member meanwhile.
    """

    def __init__(
        self,
        member: MemberContext,
        retry_ms: int,
        warn: Callable[[str, str, Mapping[str, object]], object],
    ) -> None:
        self.problem = ""
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._retry_ms = retry_ms
        self._warn = warn
        self.is_in_doubt = self.has_stepped_down = False
        self._looked_ms: int | None = None
        self._beats = 0  # in a row, without effect
        self._due_ms = 0

    def found(self) -> None:
        """Note that the list has this member."""
        if self._beats:
            self._beats = self._due_ms = 0
            self._set_problem("")

    async def missed(self) -> int:
        """Act on a list without this member: register again; return when to look again, in ms.

        Each pass may call it: it sends nothing before the pause has passed.
        """
        now_ms = self._client.clock.now_ms()
        if now_ms >= self._due_ms:
            if self._beats >= _ENOUGH_BEATS:
                self._set_problem(await self._cause())
            if not self._beats:
                _log.info(
                    "group %s: broker does not list this member; sending heartbeat", self._group
                )
            await self._client.heartbeats.beat()
            pause_ms = growing_pause_ms(self._retry_ms, self._beats, _LONGEST_PAUSE_MS)
            self._beats += 1
            self._due_ms = now_ms + pause_ms
        return self._due_ms - now_ms

    async def is_only_one(self) -> bool:
        """Look whether another live client has this one's id; step down, or return.

        Brokers know members and their locks by client id alone: two clients with one id would both
        own its queues.
        """
        now_ms = self._client.clock.now_ms()
        if self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS:
            is_new, self._looked_ms = self._looked_ms is None, now_ms
            other = await self._other()
            # The newer of two leaves, which has no queue yet. The old one leaves if that does
            # not, as a client of another kind would not.
            was_in_doubt, self.is_in_doubt = self.is_in_doubt, bool(other)
            if other and not self.has_stepped_down and (is_new or was_in_doubt):
                await self._step_down(other)
            elif other == "" and self.has_stepped_down:
                self.has_stepped_down = False
                _log.info("group %s: no other client has this one's id any more", self._group)
                self._set_problem("")
                await self._client.heartbeats.beat()
        return not self.has_stepped_down

    async def _step_down(self, other: str) -> None:
        self.has_stepped_down = True  # first: a heartbeat must not register it again
        self.problem = (
            f"client id {self._client.client_id!r} is in use by another live client, at {other}: "
            "this one has left the group and consumes nothing until that one is gone; stop one of "
            "the two, and copy no running process or machine"
        )
        _log.error(
            "group %s: %s",
            self._group,
            self.problem,
            extra=self._fields(),
        )
        await self._client.withdraw()

    async def _other(self) -> str | None:
        """Return where another client with this one's id is; "" if nowhere, None if unknown."""
        for address in self._client.routes.masters():
            own = self._client.connections.own(address)
            try:
                listed = await self._client.api.addresses_of(
                    address, self._group, self._client.client_id
                )
            except OrderMQError:
                continue  # it may not be allowed to ask; outages are reported by the heartbeat
            others = [each for each in listed if each not in own]
            # Where none of the addresses is this one's, something between has changed it.
            if not others or self.has_stepped_down or len(others) < len(listed):
                return min(others, default="")
        return None

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        fields = self._fields()
        self._warn(f"group {self._group} at its brokers", problem, fields)

    async def _cause(self) -> str:
        for address in self._client.routes.masters():
            refusal = self._client.heartbeats.refusal_of(address)
            if refusal is not None:  # first: a group may be unknown only because nobody may join it
                return f"{address} refuses the heartbeats, so nothing is consumed: {refusal}"
            try:
                await self._client.api.check_group(address, self._group)
            except BrokerError as error:
                if error.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    return (
                        f"{address} does not know the group and does not create it "
                        "(autoCreateSubscriptionGroup=false), so nothing is consumed: create it "
                        f"(mqadmin updateSubGroup -g {self._group}), or check its name"
                    )
            except RemotingError:
                continue  # its outage is reported by the heartbeat
        return ""
