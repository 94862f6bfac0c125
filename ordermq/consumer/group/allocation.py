"""Allocation: functions that share the queues of a topic among the members of a group
(docs/internals/semantics.md#rebalance).

All six of RocketMQ's. Those that need nothing but the two lists have a name in `Allocation`;
the others are made by the user, with what they need, and given as `allocation=`. So is a
function of one's own: what every member must compute alike is the only rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ordermq.callables import require_plain_result
from ordermq.config import Allocation, AllocationStrategy
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.value import Value

_VIRTUAL_NODES = 10  # of each member on the ring; Java's default


def allocate_avg(
    queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
) -> list[MessageQueue]:
    """Neighbouring queues to each member, sizes differing by at most one: 8/3 -> 012|345|67."""
    size, extra = divmod(len(queues), len(member_ids))
    # The first `extra` members have one queue more, so later ones start that many further on.
    index = member_ids.index(own_id)
    start = index * size + min(index, extra)
    return list(queues[start : start + size + (1 if index < extra else 0)])


def allocate_by_circle(
    queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
) -> list[MessageQueue]:
    """Queues dealt like cards: 8/3 -> 036|147|25."""
    return list(queues[member_ids.index(own_id) :: len(member_ids)])


def allocate_by_consistent_hash(
    queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
) -> list[MessageQueue]:
    """Each queue to the next member on a hash ring: one that joins takes queues, none else does."""
    from bisect import bisect_left  # here, as few allocate by a ring

    ring = {
        _ring_hash(f"{member}-{node}"): member
        for member in member_ids
        for node in range(_VIRTUAL_NODES)
    }
    places = sorted(ring)
    mine = []
    for queue in queues:
        name = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        place = bisect_left(places, _ring_hash(name)) % len(places)  # past the last: the first
        if ring[places[place]] == own_id:
            mine.append(queue)
    return mine


def _ring_hash(key: str) -> int:
    # As in Java, byte for byte: a mixed group must compute one ring.
    import hashlib  # here, as few allocate by a ring

    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class Configured(Value):
    """These queues to this member, whatever the others have.

    A queue that does not exist, or is in no member's list, is nobody's. The group's retry
    topic is shared likewise: name its queue at one member, or no retried message arrives.
    """

    queues: frozenset[MessageQueue]

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        object.__setattr__(self, "queues", frozenset(queues))

    def __call__(
        self, queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        return [queue for queue in queues if queue in self.queues]


class MachineRoom(Value):
    """Only queues of brokers in these rooms, `room@name` their names; shared by all members."""

    rooms: frozenset[str]

    def __init__(self, rooms: Iterable[str]) -> None:
        object.__setattr__(self, "rooms", frozenset(rooms))

    def __call__(
        self, queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        # Java's arithmetic, not that of `allocate_avg`: the remainder is dealt from the end.
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        index = member_ids.index(own_id)
        size, extra = divmod(len(near), len(member_ids))
        share = near[index * size : (index + 1) * size]
        if index < extra:
            share.append(near[size * len(member_ids) + index])
        return share

    def _is_near(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")  # as Java's split: no empty parts at the end
        return len(parts) == 2 and parts[0] in self.rooms


class MachineRoomNearby(Value):
    """Each room's queues to the members of that room; those of rooms without members to all.

    Args:
        room_of_broker: the room of a queue's broker, from its message queue.
        room_of_member: the room of a member, from its client id, `ip@instance`.
        within: how the queues of a room are shared.
    A room that is empty or None raises ConfigError at each rebalance: the queues stay where
    they are, and the log says so.
    """

    room_of_broker: Callable[[MessageQueue], str | None]
    room_of_member: Callable[[str], str | None]
    within: Allocation | AllocationStrategy = Allocation.AVG

    def __call__(
        self, queues: Sequence[MessageQueue], member_ids: Sequence[str], own_id: str
    ) -> list[MessageQueue]:
        queues_in: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            queues_in[_room(self.room_of_broker(queue), f"broker {queue.broker_name!r}")].append(
                queue
            )
        members_in: dict[str, list[str]] = defaultdict(list)
        for member in member_ids:
            members_in[_room(self.room_of_member(member), f"member {member!r}")].append(member)
        share: list[MessageQueue] = []
        # Own room first, so that the order of a share says which queues are near.
        for room in sorted(queues_in, key=lambda room: (own_id not in members_in[room], room)):
            sharers = members_in[room] or member_ids
            if own_id in sharers:
                share += allocate(self.within, queues_in[room], sharers, own_id)
        return share


def _room(found: str | None, whose: str) -> str:
    if not found:
        raise ConfigError(f"the machine room of {whose} is {found!r}: expected a name")
    return found


_STRATEGIES: dict[Allocation, AllocationStrategy] = {
    Allocation.AVG: allocate_avg,
    Allocation.AVG_BY_CIRCLE: allocate_by_circle,
    Allocation.CONSISTENT_HASH: allocate_by_consistent_hash,
}


def allocate(
    allocation: Allocation | AllocationStrategy,
    queues: Sequence[MessageQueue],
    member_ids: Sequence[str],
    own_id: str,
) -> list[MessageQueue]:
    """The share of `own_id`; every member computes the same from the same two lists.

    Args:
        queues: all readable queues of the topic, sorted.
        member_ids: the live members, sorted; must hold `own_id`.
    """
    strategy = _STRATEGIES[allocation] if isinstance(allocation, Allocation) else allocation
    return require_plain_result("allocation", strategy, strategy(queues, member_ids, own_id))
