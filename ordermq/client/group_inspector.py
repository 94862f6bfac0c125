"""State of a consumer group, seen from outside: progress, members, queue owners, locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from ordermq.client.routes import subscribe_queues
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.closing import Closing
from ordermq.config import RemotingConfig
from ordermq.errors import OrderMQError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX
from ordermq.remoting.bodies import GroupMember, HeldLock, QueueHolding, QueueProgress

if TYPE_CHECKING:
    from ordermq.config.settings import RemotingSettings


@dataclass(frozen=True, slots=True)
class GroupState:
    """Snapshot of a consumer group.

    Args:
        progress: every queue of its topics, including those without a committed offset.
        holdings: per queue, the client id of the member that reports it, and its report.
        locks: live locks at the brokers, per queue; None if a broker does not list them.
        silent: members that did not answer, with the reason.
    """

    group: str
    members: tuple[GroupMember, ...]
    progress: dict[MessageQueue, QueueProgress]
    holdings: dict[MessageQueue, tuple[str, QueueHolding]]
    locks: dict[MessageQueue, HeldLock] | None
    silent: dict[str, str]

    @property
    def lag(self) -> int:
        """Messages of all queues that are not consumed yet."""
        return sum(progress.lag for progress in self.progress.values())


class GroupInspector(Closing):
    """Reads a group's state from name servers, brokers and members; joins and changes nothing.

    Args:
        name_servers: `host:port`, several joined by `;`, or a list of them.
        settings: of `RemotingConfig`, flat: accounts, TLS, time-outs.
    Raises: ConfigError: a setting that is unknown or out of its range.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        clock: Clock | None = None,
        **settings: Unpack[RemotingSettings],
    ) -> None:
        self._client = ClientSession(name_servers, RemotingConfig.of(**settings), clock=clock)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def look(
        self, group: str, topics: Sequence[str] = (), *, ask_members: bool = True
    ) -> GroupState:
        """Return the group's current state.

        Args:
            topics: default all that its members subscribe to or that it has offsets for.
            ask_members: also ask each member for its queues, through its broker.
        Raises:
            RouteError: no name server answers, or no broker has one of the topics.
            BrokerError: a broker refused a request.
        """
        return self._client.call(self._look(group, topics, ask_members))

    async def _look(self, group: str, topics: Sequence[str], ask_members: bool) -> GroupState:
        # Every broker of the cluster: which of them know the group is not known beforehand.
        masters = await self._client.name_servers.masters()
        members: dict[str, GroupMember] = {}
        known_by: dict[str, str] = {}
        wanted = set(topics)
        progress: dict[MessageQueue, QueueProgress] = {}
        for address in masters.values():
            found = await self._client.api.group_connections(address, group)
            members |= {member.client_id: member for member in found.members}
            known_by |= {member.client_id: address for member in found.members}
            rows = await self._client.api.group_progress(address, group)
            progress |= rows
            if not topics:
                wanted |= {*found.topics, *(queue.topic for queue in rows)}
        progress = {queue: row for queue, row in progress.items() if queue.topic in wanted}
        progress |= await self._untouched(wanted, progress, masters)
        # Every push consumer subscribes to its group's retry topic, which an orderly group never
        # uses: shown only where a message is or was.
        progress = {
            queue: row
            for queue, row in progress.items()
            if row.end or queue.topic in topics or not queue.topic.startswith(RETRY_PREFIX)
        }
        holdings: dict[MessageQueue, tuple[str, QueueHolding]] = {}
        silent: dict[str, str] = {}
        # Through the broker that lists the member: clients do not listen on a port.
        for name, address in sorted(known_by.items()) if ask_members else ():
            try:
                reported = await self._client.api.member_queues(address, group, name)
            except OrderMQError as error:
                # A frozen member is what the tool is there to find: note it, look at the others.
                silent[name] = str(error)
                continue
            holdings |= {queue: (name, row) for queue, row in reported.items() if queue in progress}
        return GroupState(
            group,
            tuple(members[name] for name in sorted(members)),
            dict(sorted(progress.items())),
            holdings,
            await self._locks(group, list(progress), masters),
            silent,
        )

    async def _untouched(
        self,
        topics: set[str],
        progress: Mapping[MessageQueue, QueueProgress],
        masters: Mapping[str, str],
    ) -> dict[MessageQueue, QueueProgress]:
        """Return the progress of queues without a committed offset."""
        untouched: dict[MessageQueue, QueueProgress] = {}
        for topic in sorted(topics):
            # Refreshed, not from memory: `top` runs for hours, and queues are added meanwhile.
            route = await self._client.routes.refresh(topic)
            if route is None:
                raise RouteError(
                    "topic not found on any broker: check its name and the name servers",
                    topic=topic,
                )
            for queue in subscribe_queues(topic, route):
                # A queue without a committed offset is missing in the broker's answer, and is
                # the one whose lag an operator must not miss.
                if queue not in progress and queue.broker_name in masters:
                    end = await self._client.api.max_offset(masters[queue.broker_name], queue)
                    untouched[queue] = QueueProgress(end, None, 0)
        return untouched

    async def _locks(
        self, group: str, queues: Sequence[MessageQueue], masters: Mapping[str, str]
    ) -> dict[MessageQueue, HeldLock] | None:
        locks: dict[MessageQueue, HeldLock] = {}
        for name, address in masters.items():
            there = [queue for queue in queues if queue.broker_name == name]
            held = await self._client.api.held_locks(address, group, there)
            # Without the locks of one broker the picture would be wrong, not only incomplete.
            if held is None:
                return None
            locks |= {lock.queue: lock for lock in held}
        return locks
