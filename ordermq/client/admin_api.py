"""Requests of admin tools to brokers (docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ordermq.client.broker_api import BrokerApi
from ordermq.client.session import ClientSession
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import (
    GroupConnections,
    HeldLock,
    QueueEnds,
    QueueHolding,
    QueueProgress,
    connections_from_body,
    group_list_from_body,
    group_names_from_body,
    held_locks_from_body,
    holdings_from_body,
    progress_from_body,
    queue_ends_from_body,
    topic_table_from_body,
)
from ordermq.remoting.bodies import (
    LockBatch,
    MemberSubscriptions,
    QueueData,
    load_object,
    member_subscriptions_from_body,
    queue_table_from_body,
)
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import GroupHeader, TopicHeader
from ordermq.remoting.rare_headers import (
    DeleteGroupHeader,
    QueryMessageHeader,
    ViewMessageHeader,
)

if TYPE_CHECKING:
    from ordermq.remoting.rare_headers import CreateTopicHeader, ResetOffsetHeader


_SEARCH_TIMEOUT_MS = 8_000  # brokers look for up to 5 s


class AdminApi(BrokerApi):
    """Requests of `BrokerApi`, and those that only tools make."""

    @classmethod
    def of(cls, client: ClientSession) -> Self:
        """Return the requests of a client."""
        return cls(client.connections, client.config, client.client_id)

    async def put_topic(self, address: str, header: CreateTopicHeader) -> None:
        """Create a topic at this broker, or change the one there is."""
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker did not create topic {header.topic!r}", address)

    async def delete_topic(self, address: str, topic: str) -> None:
        """Delete a topic of this broker with its messages; one it does not have is none."""
        command = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic).to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker did not delete topic {topic!r}", address)

    async def topic_table(self, address: str, broker_name: str) -> dict[str, QueueData]:
        """Return every topic of this broker, the broker's own ones included, by name."""
        command = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not list its topics", address)
        return topic_table_from_body(answer.body, broker_name)

    async def find_messages(
        self, address: str, topic: str, key: str, count: int, *, is_id: bool
    ) -> bytes:
        """Return the records of the newest messages with a key, or with a producer's id.

        Raises: BrokerError: QUERY_NOT_FOUND: there is none.
        """
        header = QueryMessageHeader(topic, key, count)
        if is_id:
            header.is_unique_key = True
        command = Command.request(RequestCode.QUERY_MESSAGE, header.to_ext())
        answer = await self._connections.request(address, command, _SEARCH_TIMEOUT_MS)
        self._check(answer, f"broker found no message of topic {topic!r} by {key!r}", address)
        return answer.body

    async def message_at(self, address: str, physical_offset: int) -> bytes:
        """Return the record at a place in the broker's log."""
        command = Command.request(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(physical_offset).to_ext()
        )
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker has no message at {physical_offset} of its log", address)
        return answer.body

    async def queue_ends(self, address: str, topic: str) -> dict[MessageQueue, QueueEnds]:
        """Return the offsets of a topic's queues at this broker."""
        return queue_ends_from_body(await self.topic_statistics(address, topic))

    async def topic_groups(self, address: str, topic: str) -> list[str]:
        """Return the groups with a member or an offset of a topic at this broker."""
        header = TopicHeader(topic)
        command = Command.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header.to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker did not list the groups of topic {topic!r}", address)
        return group_list_from_body(answer.body)

    async def group_names(self, address: str) -> list[str]:
        """Return every group this broker knows, its own ones included."""
        command = Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not list its groups", address)
        return group_names_from_body(answer.body)

    async def put_group(self, address: str, body: bytes) -> None:
        """Create a group at this broker, or change the one there is."""
        command = Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not create the group", address)

    async def delete_group(self, address: str, group: str) -> None:
        """Delete a group of this broker with its offsets; one it does not have is none."""
        header = DeleteGroupHeader(group, cleans_offsets=True)
        command = Command.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not delete the group", address, group=group)

    async def reset_offsets(
        self, address: str, header: ResetOffsetHeader
    ) -> dict[MessageQueue, int]:
        """Have the live members of a group go to other offsets; return them.

        Raises: BrokerError: no member is online, or a queue has no offset of the group yet.
        """
        command = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not reset the group", address, group=header.group)
        return queue_table_from_body(answer.body, "offsetTable")

    async def broker_config(self, address: str) -> str:
        """Return a broker's settings, as `name=value` lines; empty from one that keeps none."""
        command = Command.request(RequestCode.GET_BROKER_CONFIG)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not return its settings", address)
        return answer.body.decode()

    async def group_settings(self, address: str, group: str) -> dict[str, Any]:
        """Return a broker's settings of a group, by RocketMQ's names.

        Raises: BrokerError: as `check_group`.
        """
        command = Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker has no settings of the group", address, group=group)
        return load_object(answer.body, "settings of a group")

    async def group_progress(self, address: str, group: str) -> dict[MessageQueue, QueueProgress]:
        """Return the group's offsets, on every queue of this broker it has an offset for."""
        command = Command.request(RequestCode.GET_CONSUME_STATS, GroupHeader(group).to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not return the group's progress", address, group=group)
        return progress_from_body(answer.body)

    async def group_connections(self, address: str, group: str) -> GroupConnections:
        """Return the group's live members; none if the broker knows none."""
        ext = GroupHeader(group).to_ext()
        command = Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        # Not an error for a tool: a group without members still has offsets and a lag.
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return GroupConnections((), ())
        self._check(answer, "broker did not list the group's connections", address, group=group)
        return connections_from_body(answer.body)

    async def member_report(
        self, address: str, group: str, client_id: str, pull_now: str | None = None
    ) -> tuple[dict[MessageQueue, QueueHolding], MemberSubscriptions]:
        """Return a member's own view of its queues, and its subscriptions.

        The broker forwards the request to it.

        Args:
            pull_now: the topic whose idle queues it pulls again; members of ordermq do.
        """
        body = await self._running_info(address, group, client_id, pull_now)
        return holdings_from_body(body), member_subscriptions_from_body(body)

    async def held_locks(
        self, address: str, group: str, queues: Sequence[MessageQueue]
    ) -> list[HeldLock] | None:
        """Return the live locks of these queues; None from a broker other than the embedded one."""
        body = LockBatch(group, "", tuple(queues)).to_body()
        command = Command.request(RequestCode.OMQ_QUERY_LOCKS, body=body)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        # The request is an extension of the embedded broker.
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        self._check(answer, "broker did not list the locks", address, group=group)
        return held_locks_from_body(answer.body)
