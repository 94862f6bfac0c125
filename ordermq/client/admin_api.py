"""What admin tools ask brokers of a group: one typed method a request
(docs/internals/protocol.md#requests-to-consumers, docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.client.connections import Connections
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import (
    GroupConnections,
    HeldLock,
    MemberWishes,
    QueueHolding,
    QueueProgress,
    connections_from_body,
    held_locks_from_body,
    holdings_from_body,
    progress_from_body,
    wishes_from_body,
)
from ordermq.remoting.bodies import LockBatch
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_RELAY_TIMEOUT_MS = 10_000  # a broker gives the member it asks that long


class AdminApi:
    """Requests to brokers; on the I/O thread. An answer that is no success raises BrokerError."""

    def __init__(self, connections: Connections, config: RemotingConfig) -> None:
        self._connections = connections
        self._config = config

    async def progress(self, address: str, group: str) -> dict[MessageQueue, QueueProgress]:
        """How far the group is, on every queue of this broker it has an offset for."""
        command = Command.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
        answer = await self._ask(address, group, command)
        return progress_from_body(answer.body)

    async def connections(self, address: str, group: str) -> GroupConnections:
        """The group's live members; none, if the broker knows of none."""
        ext = {"consumerGroup": group}
        command = Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
        answer = await self._ask(address, group, command, ResponseCode.CONSUMER_NOT_ONLINE)
        if answer.code != ResponseCode.SUCCESS:
            return GroupConnections((), ())
        return connections_from_body(answer.body)

    async def holdings(
        self, address: str, group: str, client_id: str
    ) -> dict[MessageQueue, QueueHolding]:
        """What a member says of its queues, asked through the broker."""
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        answer = await self._ask(address, group, command, timeout_ms=_RELAY_TIMEOUT_MS)
        return holdings_from_body(answer.body)

    async def wishes(self, address: str, group: str, client_id: str) -> MemberWishes:
        """What a member subscribed and how it listens, asked through the broker."""
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        answer = await self._ask(address, group, command, timeout_ms=_RELAY_TIMEOUT_MS)
        return wishes_from_body(answer.body)

    async def locks(
        self, address: str, group: str, queues: Sequence[MessageQueue]
    ) -> list[HeldLock] | None:
        """The live locks of these queues; None from a broker other than ours."""
        body = LockBatch(group, "", tuple(queues)).to_body()
        command = Command.request(RequestCode.OMQ_QUERY_LOCKS, body=body)
        unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await self._ask(address, group, command, unknown)
        return None if answer.code == unknown else held_locks_from_body(answer.body)

    async def _ask(
        self,
        address: str,
        group: str,
        command: Command,
        also: ResponseCode = ResponseCode.SUCCESS,
        timeout_ms: int | None = None,
    ) -> Command:
        timeout_ms = timeout_ms or self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        if answer.code not in (ResponseCode.SUCCESS, also):
            raise BrokerError(
                answer.remark or f"the broker refused {RequestCode(command.code).name}",
                response_code=answer.code,
                group=group,
                address=address,
            )
        return answer
