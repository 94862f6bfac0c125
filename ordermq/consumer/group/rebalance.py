"""Rebalance: each member computes its share of the queues alone, from the same lists
(docs/internals/semantics.md#rebalance)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from ordermq.client.routes import IF_IT_EXISTS, subscribe_queues
from ordermq.client.runtime import cancelled
from ordermq.clock import growing_pause_ms, wait_until_set
from ordermq.config import RebalanceConfig
from ordermq.consumer.group.allocation import allocate
from ordermq.consumer.group.membership import LOOK_MS, Membership
from ordermq.consumer.group.queue_locks import Locks
from ordermq.consumer.group.revocation import Revocation
from ordermq.consumer.group.withdrawn_queues import WithdrawnQueues
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import ConfigError, OrderMQError
from ordermq.leases.lease import LONG_WAIT_MS, Lease
from ordermq.model.log_fields import WarnOnce
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import retry_topic
from ordermq.remoting.bodies import TopicRoute
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
_FIRST_LOCK_RETRY_MS = 5
_EARLY_LOCK_RETRY_MS = 20
_LONGEST_RETRY_MS = 10_000
# A topic is created by its first message, which waits for the next look: so often in the first
# minute, when it is the likeliest, and so often later.
_NEW_TOPIC_LOOK_MS, _UNKNOWN_TOPIC_LOOK_MS = 100, 250
_YOUNG_MS = 60_000  # twice the time after which producers ask for a new topic's route again
_NO_SUCH_TOPIC = (
    "topic not found on any broker; waiting for it to be created. Check its name, or create it "
    "(`ordermq topics create`, mqadmin updateTopic), or send to it where brokers create topics "
    f"themselves; {IF_IT_EXISTS}"
)
_DELETED = (
    "no name server lists this topic any more, though its brokers are connected: it was deleted. "
    "Waiting for it to be created again, and to read it from its start: create it (`ordermq topics "
    f"create`, mqadmin updateTopic), or unsubscribe; {IF_IT_EXISTS}"
)
_AWAY = (
    "no name server lists this topic any more, and its brokers are away; waiting for them. Start "
    "them, or check that they reach their name servers"
)
_GONE_BEHIND_PROXY = (
    "the proxy has no route of this topic any more: its brokers are away, or it was deleted. "
    "Waiting for it: start them, create it (mqadmin updateTopic), or unsubscribe"
)
_NOT_READABLE = (
    "no queue of this topic is readable, so nothing of it is consumed: have an admin allow it "
    "(mqadmin updateTopicPerm -p 6), or subscribe another"
)


class TopicProblems:
    """Problems of subscribed topics without queues: never created, deleted, away or closed.

    Args:
        is_connected: returns True of a broker, by its name, that the client is connected to; None
            behind a proxy, whose connection tells nothing of brokers.
        retry_topic: of the group itself. Without queues it is no problem: brokers create it when
            they need it.
    """

    def __init__(self, is_connected: Callable[[str], bool] | None, retry_topic: str) -> None:
        self._is_connected = is_connected
        self._retry_topic = retry_topic
        self._brokers: dict[str, frozenset[str]] = {}  # of the last route of each topic
        self._lost: dict[str, str] = {}  # topics that were there, or are closed

    def look(self, topic: str, route: TopicRoute | None, *, is_missing: bool) -> str:
        """Return the warning for a topic; empty where it has queues.

        Args: is_missing: no name server lists it, and the route is its last one.
        """
        self._lost.pop(topic, None)
        if topic == self._retry_topic:
            return ""
        if route is not None:
            self._brokers[topic] = frozenset(data.broker_name for data in route.queues)
        if route is not None and not is_missing:
            if subscribe_queues(topic, route):
                return ""
            problem = _NOT_READABLE
        elif topic not in self._brokers:
            return _NO_SUCH_TOPIC
        elif self._is_connected is None:
            problem = _GONE_BEHIND_PROXY
        elif any(map(self._is_connected, self._brokers[topic])):
            problem = _DELETED
        else:
            problem = _AWAY
        self._lost[topic] = problem
        return problem

    def lost(self, topics: Collection[str]) -> list[str]:
        """Return the problems of those topics that were there, or are closed."""
        return [f"{topic}: {self._lost[topic]}" for topic in sorted(topics) if topic in self._lost]


class Plan(Value):
    """The queues to give up and to ask for."""

    revoke: list[MessageQueue]
    acquire: list[MessageQueue]


def plan(held: Collection[MessageQueue], share: Collection[MessageQueue]) -> Plan:
    """Return removals and additions, sorted; removals come first when acted on."""
    return Plan(sorted(set(held) - set(share)), sorted(set(share) - set(held)))


def share_of(
    config: RebalanceConfig,
    queues: Sequence[MessageQueue],
    member_ids: Sequence[str],
    own_id: str,
) -> list[MessageQueue] | None:
    """Return this member's share of a topic; None, not an empty one, if it is not listed.

    Java then drops every queue (docs/internals/semantics.md#rebalance): one broker that has just
    forgotten the member would stop it. Here it keeps what it holds, registers again, and asks
    later.

    Raises: ConfigError: a strategy of the user's gave queues the topic does not have.
    """
    if own_id not in member_ids:
        return None
    share = allocate(config.allocation, queues, sorted(member_ids), own_id)
    if unknown := set(share).difference(queues):
        raise ConfigError(
            f"allocation={config.allocation!r} gave {min(unknown)}, which is none of "
            f"the {len(queues)} queues it was asked to share"
        )
    return share


class LockRetries:
    """Pauses between requests for locks of a topic that other members still hold.

    RocketMQ's brokers tell nobody when a lock becomes free, and a member that was told of a change
    unlocks as soon as its listener returns, mostly within milliseconds. The first pauses are 5, 10
    and 20 ms; each later one is 20 ms or a quarter of the time waited before it: so a queue stands
    still by at most a quarter longer than its old owner needed, or by 20 ms, for at most 17
    requests in the first second.

    Args:
        longest_ms: the last pause, kept for as long as the locks are refused.
    """

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._refused: frozenset[MessageQueue] = frozenset()
        self._waited_ms = 0
        self._since_ms: dict[MessageQueue, int] = {}
        self._is_told = False

    def pause_ms(self, refused: frozenset[MessageQueue]) -> int:
        """Return the pause after a request; it is a short one if another queue was refused."""
        if refused - self._refused:
            self._waited_ms = 0
        self._refused = refused
        first_ms = min(_FIRST_LOCK_RETRY_MS + self._waited_ms, _EARLY_LOCK_RETRY_MS)
        pause_ms = max(first_ms, self._waited_ms // 4)
        self._waited_ms += pause_ms
        return min(pause_ms, self._longest_ms)

    def long_refused(self, refused: Collection[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Return the queues of which nothing was granted for 5 s, sorted; not a second time."""
        self._since_ms = {queue: self._since_ms.get(queue, now_ms) for queue in refused}
        found = [
            queue for queue in sorted(refused) if now_ms - self._since_ms[queue] >= LONG_WAIT_MS
        ]
        if self._is_told or not found:
            return []
        self._is_told = True
        return found


class QueueOwner(Value):
    """The member that a rebalancer gets queues for.

    Args:
        topics: returns the subscribed topics, sorted; the group's retry topic too.
        make_queue: makes the state of a queue under a lease, from an offset.
        on_assigned: called with a new queue before its first pull.
        on_released: called with a queue that was given up.
    """

    topics: Callable[[], list[str]]
    make_queue: Callable[[MessageQueue, Lease, int], AssignedQueue]
    on_assigned: Callable[[AssignedQueue], None]
    on_released: Callable[[AssignedQueue], None]


class Rebalancer:
    """Keeps the queues this member holds equal to its share; on the I/O thread.

    Args:
        retry_ms: pause before a broker that failed is asked again; the longest before a refused
            lock is.
        takes_all: the share is every queue of every topic, whatever other members there are.
    Attributes:
        assigned_by_user: if not empty, exactly these are held; nothing is shared with the group.
        held: the queues held or still being released.
        membership: this member's place in the group's list.
    """

    def __init__(
        self,
        member: MemberContext,
        config: RebalanceConfig,
        retry_ms: int,
        owner: QueueOwner,
        locks: Locks,
        offsets: OffsetCommitter,
        revocation: Revocation,
        *,
        takes_all: bool,
    ) -> None:
        self._client = client = member.client
        self._group = member.group
        self._fields = member.fields
        self._config = config
        self._retry_ms = retry_ms
        self._owner = owner
        self._locks = locks
        self._offsets = offsets
        self._revocation = revocation
        self._takes_all = takes_all
        self.assigned_by_user: frozenset[MessageQueue] = frozenset()
        self.held: dict[MessageQueue, AssignedQueue] = {}
        self._releases: dict[MessageQueue, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self._has_left = False  # the group, until `rejoin`
        self._excluded: set[MessageQueue] = set()  # queues not to take until `include`
        self._warnings = WarnOnce(_log)
        self._retry_topic = retry_topic(self._group)
        self._topic_problems = TopicProblems(
            client.is_connected if client.proxy is None else None, self._retry_topic
        )
        self._withdrawn = WithdrawnQueues(member, is_local=offsets.is_local, on_found=self.wake)
        self.membership = Membership(member, retry_ms, self._warnings.note)
        self._passing = asyncio.Lock()
        self._is_open = False  # whether the member has its share, after the last pass
        self._untaken: dict[MessageQueue, tuple[str, int]] = {}  # problem, and failures in a row
        self._waiting: list[asyncio.Event] = []  # see `settled`
        self._own_id = client.client_id
        self._next_pass_ms = config.rebalance_interval_ms
        self._unknown_since_ms: dict[str, int] = {}  # topics that are not there yet
        self._young_until_ms: dict[str, int] = {}  # topics that came a moment ago
        self._lock_retries: dict[str, LockRetries] = defaultdict(lambda: LockRetries(retry_ms))

    def assigned(self) -> list[AssignedQueue]:
        """Return the queues held or still being released, sorted; any thread."""
        return sorted(self.held.values(), key=lambda assigned: assigned.queue)

    def find(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return the state of a queue, None if it is not assigned; any thread."""
        return self.held.get(queue)

    def wake(self) -> None:
        """Run a pass now: members, routes, topics or locks may have changed."""
        self._wake.set()

    def exclude(self, queue: MessageQueue) -> None:
        """Give a queue up if it is held, and do not take it until `include`."""
        self._excluded.add(queue)
        self.wake()

    def include(self, queue: MessageQueue) -> bool:
        """End `exclude`; False if the queue was not excluded."""
        if queue not in self._excluded:
            return False
        self._excluded.remove(queue)
        self.wake()
        return True

    def include_all(self) -> None:
        """End every `exclude`."""
        self._excluded.clear()
        self.wake()

    def leave(self) -> None:
        """Have no share at all until `rejoin`; the caller leaves the group's member list."""
        self._has_left = True
        self.wake()

    def rejoin(self) -> None:
        """End `leave`."""
        self._has_left = False
        self.wake()

    async def released(self, topic: str) -> None:
        """Return once nothing of an unsubscribed topic is held."""
        await self._pass_beside()
        releases = [task for queue, task in self._releases.items() if queue.topic == topic]
        await asyncio.gather(*releases, return_exceptions=True)

    async def rebalance_now(self) -> None:
        """Run a pass; return when its releases have ended, except those waiting for a listener."""
        await self._pass_beside()
        releases = list(self._releases.items())
        soon = [task for queue, task in releases if not self.held[queue].is_running]
        await asyncio.gather(*soon, return_exceptions=True)

    async def round(self) -> None:
        """Run a pass, and wait until the next one is due."""
        clock, config = self._client.clock, self._config
        next_pass_ms = await self.pass_once()
        # Each join wakes every member once per broker, and every pass would compute the same:
        # many notices in a short time cause one pass; a single one is handled almost at once.
        await clock.sleep_ms(config.rebalance_min_interval_ms)
        # What this pass has asked for, and not `_next_pass_ms`: another pass, of `subscribe` as an
        # example, may be under way, and has not found yet that it must look again soon.
        await wait_until_set(self._wake, clock, next_pass_ms)

    async def pass_once(self) -> int:
        """Compare share and holdings of each topic once, and act on the difference.

        Returns: when the next pass is due, in ms.
        """
        async with self._passing:
            # Cleared before looking: what changes during the pass starts another one.
            self._wake.clear()
            self._is_open = False
            waiting = list(self._waiting)  # only those that came before it began
            self._next_pass_ms = self._config.rebalance_interval_ms
            try:
                await self._balance_all()
                self._warnings.note(f"group {self._group}", "", self._fields())
            except OrderMQError as error:
                self._try_again_in(self._retry_ms)
                self._warnings.note(
                    f"group {self._group}", f"rebalance failed: {error}", self._fields()
                )
            if not self._is_open:
                for event in waiting:
                    event.set()
            return self._next_pass_ms

    async def _pass_beside(self) -> None:
        """Run a pass beside `round`, which does the next one if that is due before its own."""
        if await self.pass_once() < self._config.rebalance_interval_ms:
            self.wake()

    async def settled(self, timeout_s: float) -> None:
        """Return after a pass that took this member's share, as far as others left it.

        Likewise after one that failed, and after the time, of the loop: a broker may be away.
        """
        event = asyncio.Event()
        self._waiting.append(event)
        self.wake()
        try:
            if not self._closing:
                await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            _log.info(
                "group %s: its first queues are not held after %.0f s; going on without",
                self._group,
                timeout_s,
            )
        finally:
            self._waiting.remove(event)

    async def abandon(self) -> None:
        """Stop waiting for batches: the locks of their queues expire at the broker."""
        await cancelled(*list(self._releases.values()))

    async def _balance_all(self) -> None:
        topics = [] if self._has_left else self._owner.topics()
        for assigned in self.assigned():
            if assigned.queue.topic not in topics:
                self._release(assigned)
        # Without topics brokers are not even asked: whoever is not registered is not listed, and
        # a heartbeat to change that would give this member a share of nothing.
        shares = await self._shares(topics) if topics else {}
        await _all_of(self._balance(topic, share) for topic, share in shares.items())

    async def _shares(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return the queues to hold of each topic; a topic of which nothing is known is absent."""
        if self.assigned_by_user:
            return {
                t: [queue for queue in self.assigned_by_user if queue.topic == t] for t in topics
            }
        routes = await self._client.routes.get_all(topics)
        await self._look_again(routes)
        is_missing = self._client.routes.is_missing
        # Once per topic and problem: passes come several times a second while locks are refused.
        for topic, route in routes.items():
            self._warnings.note(
                topic,
                self._topic_problems.look(topic, route, is_missing=is_missing(topic)),
                self._fields(topic=topic),
            )
        # Told once for all queues of a topic, which leave as their listeners return; those that do
        # during the look are counted by the next one.
        leaving = {queue.topic for queue in self._releases}
        await self._withdrawn.look(routes)
        for topic in set(topics).difference(leaving):
            if topic != self._retry_topic:
                self._withdrawn.search(topic, routes.get(topic))
            left = self._withdrawn.problem(topic)
            self._warnings.note(f"{topic}: withdrawn queues", left, self._fields(topic=topic))
        queues = {topic: subscribe_queues(topic, route) for topic, route in routes.items() if route}
        # What is held of a topic that no broker has any more is given up.
        gone: dict[str, list[MessageQueue]] = {
            topic: [] for topic, route in routes.items() if route is None
        }
        if self._takes_all:
            return queues | gone
        if not await self.membership.is_only_one():
            self._try_again_in(LOOK_MS)
            return {topic: [] for topic in topics}
        if self.membership.is_in_doubt:
            self._try_again_in(LOOK_MS)
        members = await self._client.group_members(self._group)
        if self._closing or self._has_left:
            # The member left while the list was on its way. A heartbeat now would register it
            # again, with a share that nobody else may take.
            return {}
        if self._own_id not in members and self._client.routes.masters():
            self._ask_again_in(0)
            # Alone: without a place in the list there is no share, whatever topics there are.
            self._next_pass_ms = await self.membership.missed()
        else:
            self.membership.found()
        shares = {
            topic: share_of(self._config, found, members, self._own_id)
            for topic, found in queues.items()
        }
        return gone | {topic: share for topic, share in shares.items() if share is not None}

    async def _look_again(self, routes: dict[str, TopicRoute | None]) -> None:
        """Look soon for topics that are not there yet, and for queues of those that just came.

        Each broker creates a topic with the first message that is sent to it, so a new topic may
        have queues at one broker now and at another a moment later. Without this they would be
        found with the next periodic refresh of routes.
        """
        now_ms, masters = self._client.clock.now_ms(), len(self._client.routes.masters())
        for topic, route in routes.items():
            if route is None:
                since_ms = self._unknown_since_ms.setdefault(topic, now_ms)
                is_new = now_ms - since_ms < _YOUNG_MS
                self._try_again_in(_NEW_TOPIC_LOOK_MS if is_new else _UNKNOWN_TOPIC_LOOK_MS)
                continue
            if self._unknown_since_ms.pop(topic, None) is not None:
                self._young_until_ms[topic] = now_ms + _YOUNG_MS
            if now_ms >= self._young_until_ms.get(topic, 0):
                self._young_until_ms.pop(topic, None)
            elif len(route.brokers) < masters and topic != self._retry_topic:
                await self._client.routes.refresh_soon(topic)
                routes[topic] = self._client.routes.known(topic)
                self._try_again_in(_UNKNOWN_TOPIC_LOOK_MS)

    def stop_acquiring(self) -> None:
        """Ask for no queue any more."""
        self._closing = True
        for event in self._waiting:
            event.set()

    async def release_all(self) -> None:
        """Give every queue up; returns when all are gone. After `stop_acquiring`."""
        async with self._passing:
            pass  # a pass under way may just be granted a lock; it must not be left behind
        await self._withdrawn.close()
        for assigned in self.assigned():
            self._release(assigned)
        await asyncio.gather(*self._releases.values())

    async def _balance(self, topic: str, share: Sequence[MessageQueue]) -> None:
        held = [
            queue
            for queue, assigned in self.held.items()
            if queue.topic == topic and assigned.state is QueueState.ACTIVE
        ]
        for queue in [each for each in self._untaken if each.topic == topic and each not in share]:
            del self._untaken[queue]
        todo = plan(held, [queue for queue in share if queue not in self._excluded])
        for queue in todo.revoke:
            self._release(self.held[queue])
        # A queue still being released comes back with a later pass, which the end of its
        # release starts: two objects of one queue would run its listener twice.
        await self._acquire(topic, [queue for queue in todo.acquire if queue not in self.held])

    async def _acquire(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        if not queues or self._closing or self._has_left:
            self._lock_retries.pop(topic, None)
            return
        leases = await self._locks.acquire(queues)
        # Refused ones belong to members that still drain: usually the next try gets them. The
        # embedded broker wakes this member as the lock becomes free.
        if refused := frozenset(queues).difference(leases):
            self._try_again_in(self._lock_retries[topic].pause_ms(refused))
            self._tell_of_long_wait(topic, refused)
        else:
            self._lock_retries.pop(topic, None)
        await _all_of(self._take(queue, lease) for queue, lease in leases.items())
        for topic, count in sorted(self._offsets.rule.take_skipped().items()):
            _log.warning(
                "%s: group %s is new and starts at the end: %d older messages are skipped "
                "(consume_from_where='last_offset'; 'first_offset' starts at the oldest)",
                topic,
                self._group,
                count,
                extra=self._fields(topic=topic),
            )

    def _tell_of_long_wait(self, topic: str, refused: Collection[MessageQueue]) -> None:
        # The outage of a broker that is away is told already.
        answered = [queue for queue in refused if self._client.is_connected(queue.broker_name)]
        waiting = self._lock_retries[topic].long_refused(answered, self._client.clock.now_ms())
        # Whoever waits for the retry topic's queue waits for the others, too.
        if waiting and topic != self._retry_topic:
            _log.warning(
                "group %s: waiting for the locks of %d queues of %s, from %s on: another member "
                "holds them, or one that was killed or not closed did; the locks of such a one "
                "expire at the broker, after 60 s by default. `ordermq locks %s` shows who",
                self._group,
                len(waiting),
                topic,
                waiting[0],
                self._group,
                extra=self._fields(waiting[0]),
            )

    async def _take(self, queue: MessageQueue, lease: Lease) -> None:
        try:
            start = await self._offsets.start_offset(queue, lease)
        except OrderMQError as error:
            problem = f"granted, but its offset could not be read or stored: {error}"
            self._ask_again_in(self._not_taken(queue, problem))
            await self._locks.give_back(queue, lease)
            return
        self._warnings.note(str(queue), "", self._fields(queue))
        self._untaken.pop(queue, None)
        if self._locks.is_doubtful(queue):
            self._ask_again_in(self._retry_ms)
            await self._locks.give_back(queue, lease)
            return
        if queue.topic not in self._owner.topics():  # unsubscribed meanwhile
            await self._locks.give_back(queue, lease)
            return
        # Nothing is awaited from here to `on_assigned`: who sees the queue may use it.
        assigned = self._owner.make_queue(queue, lease, start)
        self.held[queue] = assigned
        _log.info("%s: assigned, epoch %d, from offset %d", queue, lease.epoch, start)
        self._owner.on_assigned(assigned)
        self._locks.began(assigned)
        # The consumer was closed, or asked to give this queue up, while the offset was read.
        if self._closing or self._has_left or queue in self._excluded:
            self._release(assigned)

    def _not_taken(self, queue: MessageQueue, problem: str) -> int:
        """Note that a queue cannot be held; return the pause until it is asked for again."""
        self._warnings.note(str(queue), problem, self._fields(queue))
        _, failures = self._untaken.get(queue, ("", 0))
        self._untaken[queue] = problem, failures + 1
        # A store that answers nonsense, or is away for long, is asked less and less often.
        return growing_pause_ms(self._retry_ms, failures, _LONGEST_RETRY_MS)

    def problems(self) -> list[str]:
        """Return why queues that were granted are not held, one text for each."""
        return [f"{queue}: {problem}" for queue, (problem, _) in sorted(self._untaken.items())]

    def lost_topics(self) -> list[str]:
        """Return what topics that were there lack, one text for each: queues, or some of them."""
        topics = self._owner.topics()
        found = ((topic, self._withdrawn.problem(topic)) for topic in topics)
        left = [f"{topic}: withdrawn queues: {problem}" for topic, problem in found if problem]
        return self._topic_problems.lost(topics) + left

    def _release(self, assigned: AssignedQueue) -> None:
        if assigned.queue in self._releases:
            return
        assigned.revoke()  # at once, so that the queue is not reported as held
        self._releases[assigned.queue] = self._client.runtime.spawn(
            self._release_one(assigned), f"release {assigned.queue}"
        )

    async def _release_one(self, assigned: AssignedQueue) -> None:
        try:
            await self._revocation.release(assigned)
        finally:
            # Also after a cancel, at the end of `close`: the queue is no longer held in any case.
            self.held.pop(assigned.queue, None)
            self._releases.pop(assigned.queue, None)
            self._owner.on_released(assigned)
            self._withdrawn.gave_up(assigned)
            if not self._closing:  # nothing is taken instead, and there may be a thousand
                self.wake()

    def _ask_again_in(self, delay_ms: int) -> None:
        """Run a pass soon: whether this member has its share is still open."""
        self._is_open = True
        self._try_again_in(delay_ms)

    def _try_again_in(self, delay_ms: int) -> None:
        self._next_pass_ms = min(self._next_pass_ms, delay_ms)


async def _all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of these beside each other, and raise the first error when every one has ended.

    With one still under way, the next pass would take its queue a second time.
    """
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome
