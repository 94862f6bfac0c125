"""Consumer groups, seen from outside: progress, members, queue owners, locks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ordermq.admin.topics import Topics, no_such_topic
from ordermq.client.admin_api import AdminApi
from ordermq.client.routes import subscribe_queues
from ordermq.client.session import ClientSession
from ordermq.client.withdrawn_queues import Unread, WithdrawnSearch
from ordermq.errors import ConfigError, OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import (
    RETRY_PREFIX,
    dead_letter_topic,
    retry_topic,
    unwrapped,
    wrapped,
)
from ordermq.remoting.admin_bodies import (
    GroupMember,
    HeldLock,
    QueueHolding,
    QueueProgress,
    group_to_body,
)
from ordermq.value import Value

# Groups that brokers and RocketMQ's tools make for themselves.
_OWN_GROUPS = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})
_OWN_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS", "CID_SYS_RMQ_", "ordermq_")
_MOST_TOGETHER = 16  # groups asked for at once: a thousand of them do not flood a broker


class GroupSummary(Value):
    """One line of the list of groups.

    Args:
        members: number of live members.
        topics: those it has offsets or members for, sorted.
        lag: messages behind, on the queues it has an offset for.
    """

    group: str
    members: int
    topics: tuple[str, ...]
    lag: int


class GroupState(Value):
    """Snapshot of a consumer group.

    Args:
        progress: every queue of its topics, including those without a committed offset. What a
            member has consumed, and not committed yet, is no lag.
        holdings: per queue, the client id of the member that reports it, and its report.
        locks: live locks at the brokers, per queue; None if a broker does not list them.
        silent: members that did not answer, with the reason.
        subscriptions: per client id of a member that answered, its expressions by topic.
        pops: its members lease batches (consume_mode="pop") instead of owning queues.
        absent: topics of its members that no broker has: not created yet, or deleted.
        withdrawn: what is unread in queues that its topics have no more, or that are closed for
            reads. No member gets it, and `lag` does not count it.
    """

    group: str
    members: tuple[GroupMember, ...]
    progress: dict[MessageQueue, QueueProgress]
    holdings: dict[MessageQueue, tuple[str, QueueHolding]]
    locks: dict[MessageQueue, HeldLock] | None
    silent: dict[str, str]
    subscriptions: dict[str, dict[str, str]]
    pops: bool = False
    absent: tuple[str, ...] = ()
    withdrawn: dict[MessageQueue, Unread] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Messages of all queues that are not consumed yet."""
        return sum(progress.lag for progress in self.progress.values())

    def __repr__(self) -> str:
        return (
            f"<GroupState {self.group}: {len(self.members)} members, {len(self.progress)} queues, "
            f"{self.lag} messages behind>"
        )


class Groups:
    """Reads the state of groups, creates and deletes them; on the I/O thread. It joins none."""

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._topics = topics
        self._api = AdminApi.of(client)

    async def create(self, group: str, is_orderly: bool) -> None:
        """Create a group at every broker, as `Admin.create_group` describes."""
        if not isinstance(is_orderly, bool):
            raise ConfigError(f"is_orderly={is_orderly!r}: expected True or False", group=group)
        masters = await self._client.name_servers.masters()
        known = await asyncio.gather(*map(self._api.group_names, masters.values()))
        full_name = wrapped(self._client.config.namespace, group)
        if any(full_name in names for names in known):
            raise StateError(
                "the group exists, perhaps because a member has joined: its settings stay; "
                "RocketMQ's mqadmin updateSubGroup changes them",
                group=group,
            )
        body = group_to_body(group, is_orderly=is_orderly)
        for address in masters.values():
            await self._api.put_group(address, body)

    async def delete(self, group: str, *, is_forced: bool, with_dead_letters: bool) -> bool:
        """Delete a group at every broker, as `Admin.delete_group` describes."""
        addresses = [*(await self._client.name_servers.masters()).values()]
        found = await asyncio.gather(
            *(self._api.group_connections(address, group) for address in addresses)
        )
        members = sorted({member.client_id for each in found for member in each.members})
        if members and not is_forced:
            raise StateError(
                f"{len(members)} of its members are online, and would make the group again: stop "
                f"them first ({', '.join(members[:3])}), or force it",
                group=group,
            )
        if not members and not await self._is_known(group, addresses):
            raise StateError("no broker knows the group: check its name", group=group)
        # The group itself last: after an error on the way the call can be made again.
        await self._topics.remove(retry_topic(group))
        if with_dead_letters:
            await self._topics.remove(dead_letter_topic(group))
        for address in addresses:
            await self._api.delete_group(address, group)
        return not await self._has_offsets(group, addresses)

    async def _is_known(self, group: str, addresses: Sequence[str]) -> bool:
        names = await asyncio.gather(*map(self._api.group_names, addresses))
        if any(wrapped(self._client.config.namespace, group) in each for each in names):
            return True
        # Offsets outlive the settings: mqadmin deletes those alone, and so does any tool before
        # RocketMQ 5.
        return await self._has_offsets(group, addresses)

    async def _has_offsets(self, group: str, addresses: Sequence[str]) -> bool:
        return any([await self._api.group_progress(address, group) for address in addresses])

    async def summaries(self) -> list[GroupSummary]:
        """Return every group of the users, sorted by name."""
        masters = await self._client.name_servers.masters()
        known = await asyncio.gather(*map(self._api.group_names, masters.values()))
        names = {name for names in known for name in names}
        turn = asyncio.Semaphore(_MOST_TOGETHER)

        async def summary(group: str) -> GroupSummary:
            async with turn:
                return await self._summary(group, masters.values())

        own = self._client.config.namespace
        # Names of other namespaces could not be written as this client writes names.
        visible = [
            unwrapped(own, name)
            for name in sorted(names)
            if not own or unwrapped(own, name) != name
        ]
        return await asyncio.gather(*(summary(name) for name in visible if not _is_own(name)))

    async def _summary(self, group: str, addresses: Iterable[str]) -> GroupSummary:
        members: set[str] = set()
        topics: set[str] = set()
        lag = 0
        for address in addresses:
            found = await self._api.group_connections(address, group)
            members |= {member.client_id for member in found.members}
            progress = await self._api.group_progress(address, group)
            topics |= {*found.topics, *(queue.topic for queue in progress)}
            lag += sum(row.lag for row in progress.values())
        shown = sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX))
        return GroupSummary(group, len(members), tuple(shown), lag)

    async def look(self, group: str, topics: Sequence[str], ask_members: bool) -> GroupState:
        """Return the state of one group.

        Args:
            topics: default all that its members subscribe to or that it has offsets for.
            ask_members: also ask each member for its queues, through its broker.
        Raises:
            RouteError: no name server answers, or no broker has one of the topics given.
            BrokerError: a broker refused a request.
        """
        # Every broker of the cluster: which of them know the group is not known beforehand.
        masters = await self._client.name_servers.masters()
        members: dict[str, GroupMember] = {}
        known_by: dict[str, str] = {}
        wanted, pops = set(topics), False
        for address in masters.values():
            found = await self._api.group_connections(address, group)
            members |= {member.client_id: member for member in found.members}
            known_by |= {member.client_id: address for member in found.members}
            pops = pops or found.pops
            if not topics:
                wanted |= set(found.topics)
        names = sorted(known_by) if ask_members else []
        # Through the broker that lists the member: clients do not listen on a port. Before the
        # ends of the queues: what a member has consumed is never beyond an end asked for later.
        reports = await asyncio.gather(
            *(self._api.member_report(known_by[name], group, name) for name in names),
            return_exceptions=True,  # one that is silent must not keep the others from being shown
        )
        progress: dict[MessageQueue, QueueProgress] = {}
        for address in masters.values():
            rows = await self._api.group_progress(address, group)
            progress |= rows
            if not topics:
                wanted |= {queue.topic for queue in rows}
        progress = {queue: row for queue, row in progress.items() if queue.topic in wanted}
        untouched, absent = await self._untouched(wanted, progress, masters)
        if topics and absent:
            raise no_such_topic(absent[0])
        progress |= untouched
        # Every push consumer subscribes to its group's retry topic, which an orderly group never
        # uses: shown only where a message is or was.
        progress = {
            queue: row
            for queue, row in progress.items()
            if row.end or queue.topic in topics or not queue.topic.startswith(RETRY_PREFIX)
        }
        holdings: dict[MessageQueue, tuple[str, QueueHolding]] = {}
        silent: dict[str, str] = {}
        subscriptions: dict[str, dict[str, str]] = {}
        for name, report in zip(names, reports, strict=True):
            if isinstance(report, OrderMQError):
                # A frozen member is what the tool is there to find: note it, look at the others.
                silent[name] = str(report)
                continue
            if isinstance(report, BaseException):
                raise report
            reported, told = report
            subscriptions[name] = dict(told.subscriptions)
            # A member that pops reports every queue, and knows of those it has a batch of now.
            known = {q for q, row in reported.items() if row.is_locked or not told.pops}
            for queue in known & progress.keys():
                holdings[queue] = (name, reported[queue])
                progress[queue] = progress[queue]._replace(consumed=reported[queue].done)
        return GroupState(
            group,
            tuple(members[name] for name in sorted(members)),
            dict(sorted(progress.items())),
            holdings,
            await self._locks(group, list(progress), masters),
            silent,
            subscriptions,
            pops,
            tuple(topic for topic in absent if not topic.startswith(RETRY_PREFIX)),
            await self._withdrawn(group, wanted.difference(absent), masters),
        )

    async def _untouched(
        self,
        topics: set[str],
        progress: Mapping[MessageQueue, QueueProgress],
        masters: Mapping[str, str],
    ) -> tuple[dict[MessageQueue, QueueProgress], list[str]]:
        """Return the progress of queues without a committed offset, and what no broker has."""
        untouched: dict[MessageQueue, QueueProgress] = {}
        absent: list[str] = []
        for topic in sorted(topics):
            # Refreshed, not from memory: `top` runs for hours, and queues are added meanwhile.
            route = await self._client.routes.refresh(topic)
            if route is None or self._client.routes.is_missing(topic):
                absent.append(topic)
                continue
            for queue in subscribe_queues(topic, route):
                # A queue without a committed offset is missing in the broker's answer, and is
                # the one whose lag an operator must not miss.
                if queue not in progress and queue.broker_name in masters:
                    end = await self._api.max_offset(masters[queue.broker_name], queue)
                    untouched[queue] = QueueProgress(end, None, 0)
        return untouched, absent

    async def _withdrawn(
        self, group: str, topics: set[str], masters: Mapping[str, str]
    ) -> dict[MessageQueue, Unread]:
        """Return what is unread in queues that are in no route, and so in no broker's answer."""
        search = WithdrawnSearch(self._api, group, masters)
        routes = {topic: self._client.routes.known(topic) for topic in sorted(topics)}
        places = [
            (topic, data)
            for topic, route in routes.items()
            if route is not None and not topic.startswith(RETRY_PREFIX)
            for data in route.queues
            if data.broker_name in masters
        ]
        found = await asyncio.gather(*(search.unread(topic, data) for topic, data in places))
        return {queue: one for each in found for queue, one in sorted(each.items())}

    async def _locks(
        self, group: str, queues: Sequence[MessageQueue], masters: Mapping[str, str]
    ) -> dict[MessageQueue, HeldLock] | None:
        locks: dict[MessageQueue, HeldLock] = {}
        for name, address in masters.items():
            there = [queue for queue in queues if queue.broker_name == name]
            held = await self._api.held_locks(address, group, there)
            # Without the locks of one broker the picture would be wrong, not only incomplete.
            if held is None:
                return None
            locks |= {lock.queue: lock for lock in held}
        return locks


def _is_own(name: str) -> bool:
    return name in _OWN_GROUPS or name.startswith(_OWN_PREFIXES)
