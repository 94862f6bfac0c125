"""Connecting step by step, to say which step fails and why."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum

from ordermq.admin.groups import Groups
from ordermq.admin.topics import Topics
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, ConfigError, OrderMQError
from ordermq.model.names import TOOLS_GROUP
from ordermq.value import Value


class CheckKind(StrEnum):
    """Subject of a step, by which a script may tell what to do."""

    SETTINGS = "settings"
    CONNECTION = "connection"
    ANSWER = "answer"  # a server answered, and refused


class CheckStep(Value):
    """Outcome of one step.

    Args:
        name: what was tried.
        detail: what was found, or why it failed.
    """

    name: str
    kind: CheckKind
    is_ok: bool
    detail: str


class ConnectionCheck:
    """Tries each step from the name servers to a group; on the I/O thread."""

    def __init__(self, client: ClientSession, topics: Topics, groups: Groups) -> None:
        self._client = client
        self._topics = topics
        self._groups = groups

    async def run(self, topic: str | None, group: str | None) -> list[CheckStep]:
        """Return the outcome of each step; those behind one that failed are left out."""
        servers = self._client.name_servers
        steps = [
            await _tried(f"name server {address}", self._name_server(address))
            for address in servers.addresses
        ]
        # One of several is enough for clients; they say so only in their log.
        if not any(step.is_ok for step in steps):
            return steps
        masters: dict[str, str] = {}
        steps.append(await _tried("brokers", self._brokers(masters)))
        for name, address in sorted(masters.items()):
            steps.append(await _tried(f"broker {name} at {address}", self._broker(address)))
        if topic is not None:
            steps.append(await _tried(f"topic {topic}", self._topic(topic)))
        if group is not None:
            steps.append(await _tried(f"group {group}", self._group(group)))
        return steps

    async def _name_server(self, address: str) -> str:
        await self._client.name_servers.is_answering(address)
        return "answers"

    async def _brokers(self, masters: dict[str, str]) -> str:
        masters |= await self._client.name_servers.masters()
        if not masters:
            raise ConfigError("the name servers list no broker: is one running, and does it know "
                              "these name servers?")  # fmt: skip
        return ", ".join(sorted(masters))

    async def _broker(self, address: str) -> str:
        # A request that every client makes, so that the account's permissions are those it needs.
        await self._client.api.consumer_ids(address, TOOLS_GROUP)
        return "answers"

    async def _topic(self, topic: str) -> str:
        state = await self._topics.look(topic)
        return f"{len(state.queues)} queues, {state.messages:,} messages"

    async def _group(self, group: str) -> str:
        state = await self._groups.look(group, (), ask_members=False)
        if not state.members and not state.progress:
            return "no member and no offset yet: it begins where consume_from_where says"
        return f"{len(state.members)} live members, {state.lag:,} messages behind"


async def _tried(name: str, work: Awaitable[str]) -> CheckStep:
    try:
        return CheckStep(name, CheckKind.CONNECTION, True, await work)
    except OrderMQError as error:
        refused = isinstance(error, BrokerError | ConfigError)
        kind = CheckKind.ANSWER if refused else CheckKind.CONNECTION
        return CheckStep(name, kind, False, str(error))
