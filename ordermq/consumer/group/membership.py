"""Membership: whether brokers list this member, and why not
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, RemotingError
from ordermq.remoting.codes import ResponseCode

_log = logging.getLogger("ordermq.consumer")
_LONGEST_PAUSE_MS = 10_000
# Heartbeats in a row after which a broker that acknowledges them is asked why it lists nobody.
# RocketMQ works a heartbeat and a request for the list in different threads: one may be overtaken.
_ENOUGH_BEATS = 3


class Membership:
    """The place of this member in its group's list; on the I/O thread.

    Args:
        warn: logs a problem once for as long as it stays the same; empty: there is none now.
        retry_ms: the first pause; each later one is twice as long, up to 10 s.
    Attributes:
        problem: why brokers do not list this member, with the remedy; empty if they do, or if
            nobody knows yet.
    """

    def __init__(
        self, client: ClientSession, group: str, retry_ms: int, warn: Callable[[str, str], object]
    ) -> None:
        self.problem = ""
        self._client = client
        self._group = group
        self._retry_ms = retry_ms
        self._warn = warn
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
            pause_ms = min(self._retry_ms << min(self._beats, 10), _LONGEST_PAUSE_MS)
            self._beats += 1
            self._due_ms = now_ms + pause_ms
        return self._due_ms - now_ms

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        self._warn(f"group {self._group} at its brokers", problem)

    async def _cause(self) -> str:
        for address in self._client.routes.masters():
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
