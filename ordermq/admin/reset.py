"""Moving a group to other offsets: through its live members, or for them while none is online.

A live member of an ordered group has a lease on its queues and commits what it has done, so an
offset that is only stored would be overwritten with its next commit. Hence members are asked to
move themselves. While no member is online the queues are locked first, as a member would: one that
was killed or cut off may still hold a lock, and one that joins waits until the reset is done.

RocketMQ 5 and the embedded broker tell of a reset once, in the answer to the next pull of a queue.
That may be a pull which they hold since before the queue moved to another member, and its answer
reaches nobody. So members are asked until each has heard of it, and those that have not are told
again. An idle member, whose own pull the broker holds, is asked to pull at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import count
from typing import NamedTuple

from ordermq.admin.topics import Place, Topics
from ordermq.client.admin_api import AdminApi
from ordermq.client.session import ClientSession
from ordermq.client.store_times import broker_wall_ms
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.errors import BrokerError, ConfigError, LockRefused, RemotingError, StateError
from ordermq.leases.lease import Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import QueueHolding
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.rare_headers import ResetOffsetHeader
from ordermq.value import Value
from ordermq.wall_time import wall_ms_of

_log = logging.getLogger("ordermq.client")
_END_MS = -1  # as a timestamp of a reset: after the newest message
_CHECK_MS, _CHECKS_PER_REPEAT = 250, 12  # a held pull is answered at its end, some seconds later
_EARLIER_TIMES = 17  # each twice as far back, the last 65 s
_OTHER_CLOCK_MS = 60_000  # a "now" of another machine is no time to come
_TOLD_BY_PULLS = "useServerSideResetOffset=true"  # a line of a broker's configuration


class QueueReset(Value):
    """Outcome of a reset on one queue.

    Args:
        before: the committed offset; None if there was none.
        after: the offset that the group continues from.
        by_members: live members were told, and each goes there as soon as its running batch ends;
            False: the offset is stored.
        is_confirmed: it is stored, or the queue's member has heard of it, or a broker that tells
            members itself did so. False: the member did not say so in time, as after a freeze;
            members of other clients never do.
    """

    queue: MessageQueue
    before: int | None
    after: int
    by_members: bool
    is_confirmed: bool = True

    def __repr__(self) -> str:
        way = "by its member" if self.by_members else "stored"
        way += "" if self.is_confirmed else ", not confirmed"
        return f"<QueueReset {self.queue}: {self.before} to {self.after}, {way}>"


class _Wanted(NamedTuple):
    """A reset that the queue's member has to hear of by a pull."""

    address: str
    offset: int


class Resets:
    """Resets of offsets; on the I/O thread."""

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._api = AdminApi.of(client)
        self._topics = topics

    async def reset(
        self, group: str, topic: str, place: Place, queue_ids: Sequence[int], wait_ms: int
    ) -> list[QueueReset]:
        """Move the group, as `Admin.reset` describes."""
        queues = await self._topics.queues(topic, queue_ids)
        await self._topics.require_range(queues, place)
        await self._require_past({queue.broker_name for queue in queues}, place)
        targets = {queue: await self._topics.offset_at(queue, place, group) for queue in queues}
        before = await self._committed(group, queues)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        members, pops = await self._members(group)
        is_online = bool(members)
        heard = await self._heard(group) if is_online else {}
        after: dict[MessageQueue, int] = {}
        wanted: dict[MessageQueue, _Wanted] = {}
        for broker, there in by_broker.items():
            address = self._client.routes.master_of(broker)
            chosen = {queue: targets[queue] for queue in there}
            if not is_online:
                after |= await self._store(address, group, chosen)
            elif await self._tells_by_pulls(address, group):
                told = {queue: _Wanted(address, offset) for queue, offset in chosen.items()}
                after |= await self._tell(group, told)
                # No member of a group that pops has a position: the next batch begins there.
                wanted |= {} if pops else told
            else:
                whole = len(there) == len(await self._queues_of(topic, broker))
                self._require_askable(group, topic, place, whole)
                wall_ms = await self._early_enough(chosen, place)
                after |= await self._ask_rocketmq(address, group, topic, wall_ms)
        if not is_online and (joined := (await self._members(group))[0]):
            _log.warning(
                "group %s: %s joined during the reset of %s; ordered members waited for it, others "
                "may undo it with their next commit", group, ", ".join(sorted(joined)), topic,
            )  # fmt: skip
        left = await self._confirm(group, wanted, heard, wait_ms) if wanted else wanted.keys()
        return [
            QueueReset(queue, before[queue], after[queue], is_online, queue not in left)
            for queue in queues
            if queue in after
        ]

    async def _require_past(self, brokers: Iterable[str], place: Place) -> None:
        """Raise ConfigError for a time to come: the group would skip everything that waits."""
        if not isinstance(place, datetime):
            return
        ahead_ms = wall_ms_of(place) - self._client.clock.wall_ms()
        if ahead_ms <= _OTHER_CLOCK_MS:
            return
        # Store times are of the brokers' clocks, which may be ahead of this one.
        clocks = await asyncio.gather(*(broker_wall_ms(self._client, each) for each in brokers))
        if wall_ms_of(place) > max(each or 0 for each in clocks) + _OTHER_CLOCK_MS:
            raise ConfigError(
                f"to={place.isoformat()}: {ahead_ms // 1_000:,} s in the future, so every message "
                "that waits would be skipped: look at the time zone (a time without one is this "
                "machine's), or reset to 'last', the end"
            )

    async def _store(
        self, address: str, group: str, targets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Store offsets while no member is online, under the queues' locks."""
        queues = list(targets)
        held = (await self._api.lock(address, group, queues)).granted
        try:
            if missing := [queue for queue in queues if queue not in held]:
                raise LockRefused(
                    f"{missing[0]} is locked by a member that is not online: it was killed or cut "
                    "off, and its lock ends by itself (60 s after its last renewal); reset then",
                    group=group,
                )
            # As a member writes them: brokers since 5.3 refuse those of a group that they do not
            # know, and a group may be moved before its first member starts.
            offsets = BrokerOffsets(self._client, group)
            for queue, offset in targets.items():
                lease = Lease(held[queue], deadline_ms=0, is_fenced=True)
                await offsets.write(queue, offset, lease, reset=True)
        finally:
            epochs = [held[queue] for queue in held]
            await self._api.unlock(address, group, list(held), epochs)
        return dict(targets)

    async def _tells_by_pulls(self, address: str, group: str) -> bool:
        """Return True if this broker moves single queues, and tells of it by their next pull."""
        if await self._api.held_locks(address, group, []) is not None:
            return True  # the embedded broker
        # Asked, not taken from the version: brokers with this setting off ignore the queue and the
        # offset of a request, and would move every queue.
        try:
            return _TOLD_BY_PULLS in await self._api.broker_config(address)
        except BrokerError as error:  # an account that may reset, and not read settings
            _log.info("%s: moving members by time only: %s", address, error)
            return False

    async def _tell(
        self, group: str, wanted: Mapping[MessageQueue, _Wanted]
    ) -> dict[MessageQueue, int]:
        """Have brokers move live members, queue by queue."""
        after: dict[MessageQueue, int] = {}
        for queue, (address, offset) in wanted.items():
            header = ResetOffsetHeader(
                queue.topic, group, _END_MS, queue_id=queue.queue_id, offset=offset
            )
            after |= await self._api.reset_offsets(address, header)
        return after

    async def _confirm(
        self,
        group: str,
        wanted: Mapping[MessageQueue, _Wanted],
        before: Mapping[tuple[MessageQueue, str], QueueHolding],
        wait_ms: int,
    ) -> Set[MessageQueue]:
        """Wait until the members have heard of it; return the queues whose members have not."""
        left = dict(wanted)
        topic = next(iter(wanted)).topic
        end_ms = self._client.clock.now_ms() + wait_ms
        for number in count(1):
            others: set[MessageQueue] = set()
            # After each round of telling; what it brings is seen at the next check.
            hurry = topic if number % _CHECKS_PER_REPEAT == 1 else None
            heard = await self._heard(group, hurry)
            for place, holding in heard.items():
                queue, _ = place
                if holding.resets is None:
                    others.add(queue)  # a member of another client, which says nothing of it
                elif queue in left:
                    known = before.get(place)
                    is_new = holding.resets > ((known and known.resets) or 0)
                    if is_new or holding.done == left[queue].offset:
                        del left[queue]
            if left.keys() <= others or self._client.clock.now_ms() >= end_ms:
                break
            if number % _CHECKS_PER_REPEAT == 0:
                # Only what a member holds and has not heard of: a pull of an earlier member took
                # it. Told twice, a queue would move once more.
                held = {queue for queue, _ in heard}
                missed = {q: to for q, to in left.items() if q in held and q not in others}
                if not missed and not left.keys() & held:
                    break  # the members that are online consume other topics
                await self._tell(group, missed)
            await self._client.clock.sleep_ms(_CHECK_MS)
        return left.keys()

    async def _heard(
        self, group: str, pull_now: str | None = None
    ) -> dict[tuple[MessageQueue, str], QueueHolding]:
        """Return what each live member says of each of its queues."""
        masters = await self._client.name_servers.masters()
        members: dict[str, str] = {}
        for address in masters.values():
            found = await self._api.group_connections(address, group)
            members |= {member.client_id: address for member in found.members}
        # All at once: one that is frozen is waited for.
        told = await asyncio.gather(
            *(self._holdings(at, group, name, pull_now) for name, at in members.items())
        )
        return {
            (queue, name): holding
            for name, holdings in zip(members, told, strict=True)
            for queue, holding in holdings.items()
        }

    async def _holdings(
        self, address: str, group: str, member: str, pull_now: str | None
    ) -> dict[MessageQueue, QueueHolding]:
        try:
            holdings, _ = await self._api.member_report(address, group, member, pull_now)
        except RemotingError as error:
            # Frozen, or just left: its queues stay unconfirmed, and the caller is told which.
            _log.debug("member %s of group %s does not answer: %s", member, group, error)
            return {}
        return holdings

    async def _early_enough(self, targets: Mapping[MessageQueue, int], place: Place) -> int:
        """Return the time to name to a broker that knows times only, so that it skips nothing.

        Its search may answer from the middle of a millisecond. An earlier time, by as little as
        possible, repeats messages of some queues instead.

        Raises: StateError: its answers are too late for every earlier time, too.
        """
        if not isinstance(place, datetime):
            return {"first": 0, "last": _END_MS}[str(place)]
        asked_ms = wall_ms_of(place)
        for back_ms in (0, *(1 << n for n in range(_EARLIER_TIMES))):
            wall_ms = asked_ms - back_ms
            found = await asyncio.gather(
                *(
                    self._api.search_offset(
                        self._client.routes.master_of(queue.broker_name), queue, wall_ms
                    )
                    for queue in targets
                )
            )
            late = [queue for queue, at in zip(targets, found, strict=True) if at > targets[queue]]
            if not late:
                return wall_ms
        raise StateError(
            "members are online, and this broker's own search for the time would skip messages: "
            "stop the group first, or reset to 'first'",
            topic=late[0].topic, broker=late[0].broker_name, queue_id=late[0].queue_id,
        )  # fmt: skip

    async def _ask_rocketmq(
        self, address: str, group: str, topic: str, wall_ms: int
    ) -> dict[MessageQueue, int]:
        """Have a broker that tells its members itself move them; it knows times only."""
        header = ResetOffsetHeader(topic, group, wall_ms)
        try:
            return await self._api.reset_offsets(address, header)
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
        # Its request 222 ignores queue and offset, and would move every queue by time.
        if isinstance(place, int) or not is_whole:
            raise StateError(
                "members are online, and this broker moves those on all queues of a topic and by "
                "time only, as RocketMQ does without useServerSideResetOffset: stop the group "
                "first, or reset to 'first', 'last' or a time",
                group=group, topic=topic,
            )  # fmt: skip

    async def _queues_of(self, topic: str, broker: str) -> list[MessageQueue]:
        return [each for each in await self._topics.queues(topic) if each.broker_name == broker]

    async def _members(self, group: str) -> tuple[set[str], bool]:
        """Return the ids of the members that are online, and whether they pop."""
        masters = await self._client.name_servers.masters()
        found = [await self._api.group_connections(at, group) for at in masters.values()]
        names = {member.client_id for each in found for member in each.members}
        return names, any(each.pops for each in found)

    async def _committed(
        self, group: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        known: dict[MessageQueue, int | None] = {}
        for queue in queues:
            address = self._client.routes.master_of(queue.broker_name)
            known[queue] = await self._api.query_offset(address, group, queue)
        return known
