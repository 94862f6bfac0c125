"""Moving a group to other offsets: through its live members, or for them while none is online.

A live member of an ordered group has a lease on its queues and commits what it has done, so an
offset that is only stored would be overwritten with its next commit. Hence members are asked to
move themselves. While no member is online the queues are locked first, as a member would: one that
was killed or cut off may still hold a lock, and one that joins waits until the reset is done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ordermq.admin.topics import Place, Topics
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, LockRefused, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.headers import ResetOffsetHeader

_log = logging.getLogger("ordermq.client")
_END_MS = -1  # as a timestamp of a reset: after the newest message


@dataclass(frozen=True, slots=True)
class QueueReset:
    """Outcome of a reset on one queue.

    Args:
        before: the committed offset; None if there was none.
        after: the offset that the group continues from.
        by_members: live members were told, and each goes there as soon as its running batch ends;
            False: the offset is stored.
    """

    queue: MessageQueue
    before: int | None
    after: int
    by_members: bool

    def __repr__(self) -> str:
        way = "by its member" if self.by_members else "stored"
        return f"<QueueReset {self.queue}: {self.before} to {self.after}, {way}>"


class Resets:
    """Resets of offsets; on the I/O thread."""

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    async def reset(
        self, group: str, topic: str, place: Place, queue_ids: Sequence[int]
    ) -> list[QueueReset]:
        """Move the group, as `Admin.reset` describes."""
        queues = await self._topics.queues(topic, queue_ids)
        targets = {queue: await self._topics.offset_at(queue, place) for queue in queues}
        before = await self._committed(group, queues)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        is_online = bool(await self._members(group))
        after: dict[MessageQueue, int] = {}
        for broker, there in by_broker.items():
            address = self._client.routes.master_of(broker)
            chosen = {queue: targets[queue] for queue in there}
            if not is_online:
                after |= await self._store(address, group, chosen)
            elif await self._client.api.held_locks(address, group, []) is not None:
                after |= await self._ask_embedded(address, group, chosen)
            else:
                whole = len(there) == len(await self._queues_of(topic, broker))
                self._require_askable(group, topic, place, whole)
                after |= await self._ask_rocketmq(address, group, topic, place)
        if not is_online and (joined := await self._members(group)):
            _log.warning(
                "group %s: %s joined during the reset of %s; ordered members waited for it, others "
                "may undo it with their next commit", group, ", ".join(sorted(joined)), topic,
            )  # fmt: skip
        return [
            QueueReset(queue, before[queue], after[queue], is_online)
            for queue in queues
            if queue in after
        ]

    async def _store(
        self, address: str, group: str, targets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Store offsets while no member is online, under the queues' locks."""
        queues = list(targets)
        held = (await self._client.api.lock(address, group, queues)).granted
        try:
            if missing := [queue for queue in queues if queue not in held]:
                raise LockRefused(
                    f"{missing[0]} is locked by a member that is not online: it was killed or cut "
                    "off, and its lock ends by itself (60 s after its last renewal); reset then",
                    group=group,
                )
            for queue, offset in targets.items():
                await self._client.api.update_offset(
                    address, group, queue, offset, held[queue], reset=True
                )
        finally:
            epochs = [held[queue] for queue in held]
            await self._client.api.unlock(address, group, list(held), epochs)
        return dict(targets)

    async def _ask_embedded(
        self, address: str, group: str, targets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Have the embedded broker move live members, queue by queue."""
        after: dict[MessageQueue, int] = {}
        for queue, offset in targets.items():
            header = ResetOffsetHeader(
                queue.topic, group, _END_MS, queue_id=queue.queue_id, offset=offset
            )
            after |= await self._client.api.reset_offsets(address, header)
        return after

    async def _ask_rocketmq(
        self, address: str, group: str, topic: str, place: Place
    ) -> dict[MessageQueue, int]:
        """Have a broker of RocketMQ move live members; it knows times only."""
        wall_ms = {"first": 0, "last": _END_MS}.get(str(place))
        if isinstance(place, datetime):
            wall_ms = int(place.timestamp() * 1000)
        assert wall_ms is not None, place
        header = ResetOffsetHeader(topic, group, wall_ms)
        try:
            return await self._client.api.reset_offsets(address, header)
        except BrokerError as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                raise
            # Its remark says that the group does not exist.
            raise StateError(
                "members are online and have not committed an offset of every queue yet, and "
                f"RocketMQ's brokers refuse to move those ({error}): stop the group first",
                group=group, topic=topic,
            ) from error  # fmt: skip

    def _require_askable(self, group: str, topic: str, place: Place, is_whole: bool) -> None:
        # Its request 222 ignores what it does not know, and would move every queue by time.
        if isinstance(place, int) or not is_whole:
            raise StateError(
                "members are online, and RocketMQ's brokers move those on all queues of a topic "
                "and by time only: stop the group first, or reset to 'first', 'last' or a time",
                group=group, topic=topic,
            )  # fmt: skip

    async def _queues_of(self, topic: str, broker: str) -> list[MessageQueue]:
        return [each for each in await self._topics.queues(topic) if each.broker_name == broker]

    async def _members(self, group: str) -> set[str]:
        masters = await self._client.name_servers.masters()
        found: set[str] = set()
        for address in masters.values():
            members = (await self._client.api.group_connections(address, group)).members
            found |= {member.client_id for member in members}
        return found

    async def _committed(
        self, group: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        known: dict[MessageQueue, int | None] = {}
        for queue in queues:
            address = self._client.routes.master_of(queue.broker_name)
            known[queue] = await self._client.api.query_offset(address, group, queue)
        return known
