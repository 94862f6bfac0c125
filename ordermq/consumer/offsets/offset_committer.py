"""Consumer offsets: where a queue starts, what is committed and when."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Protocol

from ordermq.client.connections import is_busy
from ordermq.client.session import ClientSession
from ordermq.clock import growing_pause_ms
from ordermq.config import RebalanceConfig
from ordermq.consumer.offsets.start_rule import StartRule
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError, Fenced, LockLost, RemotingError, RouteError, StoreError
from ordermq.events import EventType
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
_IDLE_MS = 200  # without a batch; shorter than a person looks, longer than a busy queue pauses
_IDLE_PAUSE_MS = 1_000
# Between commits that a broker refuses until an admin has done something: doubled, from and up to.
_REFUSED_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 10_000
# Failures of storage, after which the same may be tried again; anything else is a defect.
STORE_ERRORS = (RemotingError, RouteError, StoreError)
_LATE_MS = 1_000  # of an answer: its broker may have stood still, and another one been elected


class OffsetStorage(Protocol):
    """Storage of a group's consumer offsets; on the I/O thread.

    Attributes:
        is_local: a file of this host: it is there at once, or for long it is not.
        stores_starts: False: the server alone decides where a queue starts, and tells nobody.
    Raises: one of STORE_ERRORS. Fenced: the queue has a newer owner.
    """

    is_local: bool
    stores_starts: bool

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        """Return the stored offset of a queue that was just granted, else where the storage lets a
        new group start; None if neither. 0 may be either.

        From then on the storage may refuse the owners of older leases.
        """

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset of any queue, None if there is none."""

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        """Store an offset; returns once it is safe.

        Args:
            lease: under which the queue is held; an older one than the last is refused.
            reset: a wanted move, perhaps backwards.
        """

    def close(self) -> None:
        """Release the storage; a second call does nothing."""


class BrokerOffsets:
    """Offsets of a group, each at the broker of its queue."""

    is_local = False
    stores_starts = True

    def __init__(self, client: ClientSession, group: str) -> None:
        self._client = client
        self._group = group
        self._first = FirstOffsets()

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        # No lease: the broker granted the lock, and knows its epoch.
        return await self._query(queue, stored_only=False)

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._query(queue, stored_only=True)

    async def _query(self, queue: MessageQueue, stored_only: bool) -> int | None:
        address, api = self._client.routes.master_of(queue.broker_name), self._client.api
        asked_ms = self._client.clock.now_ms()
        offset = await api.query_offset(address, self._group, queue, stored_only=stored_only)
        await self._require_master(queue, address, asked_ms)
        return offset if offset is not None and offset >= 0 else None

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        async with self._first.turn(queue):
            address = self._client.routes.master_of(queue.broker_name)
            asked_ms = self._client.clock.now_ms()
            await self._write_at(address, queue, offset, lease.wire_epoch, reset)
            await self._require_master(queue, address, asked_ms)

    async def _write_at(
        self, address: str, queue: MessageQueue, offset: int, epoch: int, reset: bool
    ) -> None:
        write = partial(
            self._client.api.update_offset, address, self._group, queue, offset, epoch, reset
        )
        for create_group in (self._create_group, self._create_group_behind_proxy):
            try:
                await write()
                return
            except BrokerError as error:
                if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
            await create_group(address, queue)
        await write()

    async def _require_master(self, queue: MessageQueue, address: str, asked_ms: int) -> None:
        """Refuse the answer of a broker that was replaced as the master while it was asked.

        One that stood still, as in a long pause of its JVM, answers what waited before it learns of
        the election. The new master knows nothing of that.

        Raises: RouteError: ask again.
        """
        routes = self._client.routes
        # Others may know of an election before this client does, which needs some seconds.
        if self._client.clock.now_ms() - asked_ms > _LATE_MS:
            await routes.refresh_soon(queue.topic)
        now_at = routes.master_of(queue.broker_name)
        if now_at != address:
            raise RouteError(
                f"{address} answered, and is not the master any more, which is at {now_at} now",
                broker=queue.broker_name,
                group=self._group,
            )

    def close(self) -> None:
        """Nothing is held here."""

    async def _create_group(self, address: str, queue: MessageQueue) -> None:
        await self._client.heartbeats.create_group(address, self._group)

    async def _create_group_behind_proxy(self, address: str, queue: MessageQueue) -> None:
        # RocketMQ's proxy keeps heartbeats to itself: a broker creates the group at its first pull,
        # before it looks at the queue, which may be that of an epoch.
        pull = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            queue_offset=0,
            max_messages=1,
            sys_flag=PullFlag.SUBSCRIPTION,  # else the proxy looks for one of this client
            subscription="*",
            broker_name=queue.broker_name,
        )
        with contextlib.suppress(BrokerError):  # the write that follows tells whether it helped
            await self._client.api.pull(address, pull, self._client.config.offset_timeout_ms)


class FirstOffsets:
    """Lets nothing beside a group's first offset of a topic on its way to a broker.

    RocketMQ (4.9.7, 5.3.3, 5.4.0) makes a group's table of a topic when it is told the first
    offset; it looks for the table and puts one without a lock, so that of two first offsets
    told at once one may be lost, acknowledged or not. Two queues handed over right after their
    group began are such a pair. Members of other processes can still meet it with us.
    """

    def __init__(self) -> None:
        self._made: set[tuple[str, str]] = set()
        self._making: dict[tuple[str, str], asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def turn(self, queue: MessageQueue) -> AsyncIterator[None]:
        """To be held while an offset is stored: alone, until one of its topic is acknowledged."""
        table = (queue.topic, queue.broker_name)
        if table in self._made:
            yield
            return
        async with self._making.setdefault(table, asyncio.Lock()):
            yield
            self._made.add(table)


class _Refusal(Value):
    """A commit that a broker refused until an admin has done something."""

    reason: str
    pause_ms: int
    again_ms: int  # then the next one is tried


class OffsetCommitter:
    """Reads and commits the offsets of a member's queues; on the I/O thread.

    A queue's start is stored before the queue is consumed: no later owner may find none, and decide
    another (docs/internals/semantics.md#where-a-queue-starts).

    A commit is awaited, carries the lease's epoch where the broker knows epochs, and is
    never sent outside the lease (docs/internals/semantics.md#fencing). Commits of one queue never
    overlap, so none can arrive behind a newer one and move the offset back.

    Args:
        config: says where a queue starts without a stored offset.
        commits_done: commit what is done without being asked, periodically and when a queue is
            given up. False: only `commit_at` commits.
        commits_resets: store the target of a reset at once, else with the next commit.
        is_transactional: listeners' own transactions move the stored offsets.
    """

    def __init__(
        self,
        member: MemberContext,
        config: RebalanceConfig,
        storage: OffsetStorage,
        *,
        commits_done: bool = True,
        commits_resets: bool = True,
        is_transactional: bool = False,
    ) -> None:
        self.is_transactional = is_transactional
        self._client = member.client
        self.rule = StartRule(member, config)
        self._storage = storage
        self._recorder = member.recorder
        self._statistics = member.statistics
        self._commits_done = commits_done
        self._commits_resets = commits_resets
        # One request per queue at a time; of many queues at the same time.
        self._busy: dict[MessageQueue, asyncio.Lock] = {}
        self._writes: dict[MessageQueue, asyncio.Future[None]] = {}  # under way
        self._is_closing = False
        self._refused_starts: dict[tuple[str, str], str] = {}  # of starts, by topic and broker
        self._refusals: dict[MessageQueue, _Refusal] = {}  # of commits, until one is stored
        self.is_local = storage.is_local
        self._assigned: Callable[[], Iterable[AssignedQueue]] = list
        # `_commit_idle` runs, or is about to: the I/O thread is woken once, not for each queue.
        self._is_idle_noted = not commits_done

    async def start_offset(self, queue: MessageQueue, lease: Lease) -> int:
        """Return where to start after the queue was granted: the stored offset, which every later
        owner finds, too.

        Raises: one of STORE_ERRORS. Fenced: the queue has a newer owner. LockLost: the start
            could not be stored before the lease ended.
        """
        # After a lost lease a commit of this member may be under way still; read before it is
        # stored, the offset would be behind it, and the next commit would move the group back.
        async with self._turn(queue):
            start = await self._storage.take_over(queue, lease)
            if not self._storage.stores_starts:
                return start or 0
            detail = ""
            if start == 0 and self.rule.is_by_time(queue):
                start = await self._storage.read(queue)
            if not start:  # 0 may be the broker's rule for new groups, with nothing stored
                start = await self.rule.start_of(queue, is_at_zero=start == 0)
                start, detail = await self._store_start(queue, start, lease)
            if not detail:
                self.rule.forget(queue)
            self._record(EventType.POSITION, queue, lease, start, detail=detail)
            return start

    async def _store_start(self, queue: MessageQueue, start: int, lease: Lease) -> tuple[int, str]:
        """Store a start unless the group has one; return what stands, and why it is not stored."""
        if not lease.is_lock:
            # Another member may have stored one since this one asked. Under a lock none can.
            found = await self._storage.read(queue)
            if found:
                return found, ""
            start = start if found is None else 0
        if not lease.is_valid(self._client.clock.now_ms()):
            raise LockLost(
                f"the lease ended before start offset {start} could be stored; asking for the "
                "queue again",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=start,
            )
        await self._record_commit(queue, lease, start)
        try:
            await self._write(queue, start, lease)
        except Fenced:
            raise
        except BrokerError as error:
            if is_busy(error):
                raise
            self._tell_of_refusal(queue, start, error)
            return start, str(error)
        self._refused_starts.pop((queue.topic, queue.broker_name), None)
        self._record(EventType.COMMIT_ACK, queue, lease, start)
        return start, ""

    def _tell_of_refusal(self, queue: MessageQueue, start: int, error: BrokerError) -> None:
        place, reason = (queue.topic, queue.broker_name), str(error)
        if self._refused_starts.get(place) != reason:
            self._refused_starts[place] = reason
            _log.warning(
                "%s: start offset %d is not stored, the broker refused it (%s); consuming all the "
                "same. Until something is committed, messages that are sent while no member runs "
                "may be skipped: let this account commit offsets",
                queue,
                start,
                reason,
                extra=log_fields(queue, offset=start, member=self._client.client_id),
            )

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the stored offset of any queue, None if there is none.

        Raises: one of STORE_ERRORS.
        """
        return await self._storage.read(queue)

    async def commit(self, assigned: AssignedQueue) -> bool:
        """Commit what is done of one queue and await the acknowledgement.

        Returns: True if everything that is done is stored; False after an error, which
            is logged: the next commit tries again, or a lost lease makes it moot.
        """
        async with self._turn(assigned.queue):
            return await self._commit(assigned)

    async def commit_periodically(self, assigned: Callable[[], Iterable[AssignedQueue]]) -> bool:
        """Commit what is done of the assigned queues; False if only callers commit."""
        if self._commits_done:
            await self.commit_all(assigned())
        return self._commits_done

    async def commit_all(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit every queue that has something new."""
        now_ms = self._client.clock.now_ms()
        new = [assigned for assigned in queues if self._is_new(assigned, now_ms)]
        await asyncio.gather(*(self.commit(assigned) for assigned in new))

    def follow(self, assigned: Callable[[], Iterable[AssignedQueue]]) -> None:
        """Commit these queues soon after they have become idle."""
        self._assigned = assigned

    def note_idle(self) -> None:
        """Look soon whether a queue is up to date and can be committed; any thread, often.

        Else its lag would be shown for an interval after its last message.
        """
        if not self._is_idle_noted:
            self._is_idle_noted = True
            self._client.runtime.post(self._look_for_idle)

    def _look_for_idle(self) -> None:
        self._client.runtime.spawn(self._commit_idle(), "commits of idle queues")

    async def _commit_idle(self) -> None:
        """Commit the queues that are up to date for a while, once they are."""
        clock, is_any_busy = self._client.clock, True
        while is_any_busy and not self._is_closing:
            await clock.sleep_ms(_IDLE_MS)
            now_ms, idle, is_any_busy = clock.now_ms(), [], False
            for assigned in self._assigned():
                if not self._is_idle(assigned):
                    continue
                # A queue that a message passes every few ms is busy, though it is empty in between.
                if now_ms - assigned.last_claim_ms >= _IDLE_MS:
                    idle.append(assigned)
                else:
                    is_any_busy = True
            await asyncio.gather(*(self.commit(assigned) for assigned in idle))
            if idle:  # else messages that come one by one would each bring a commit
                await clock.sleep_ms(_IDLE_PAUSE_MS)
        # What became idle since the look posts again: nobody else would look for it.
        self._is_idle_noted = self._is_closing
        if any(self._is_idle(assigned) for assigned in self._assigned()):
            self.note_idle()

    def _is_idle(self, assigned: AssignedQueue) -> bool:
        return assigned.is_up_to_date and self._is_new(assigned, self._client.clock.now_ms())

    def leave(self) -> None:
        """Look for idle queues no more: the member gives all up."""
        self._is_closing = self._is_idle_noted = True

    def _is_new(self, assigned: AssignedQueue, now_ms: int) -> bool:
        refusal = self._refusals.get(assigned.queue)
        is_due = refusal is None or now_ms >= refusal.again_ms
        return is_due and assigned.uncommitted(now_ms) is not None

    @property
    def refused_commits(self) -> list[str]:
        """Return why brokers refuse commits now, a text for each queue."""
        return [refusal.reason for refusal in self._refusals.values()]

    def _refuse(self, queue: MessageQueue, reason: str) -> None:
        before = self._refusals.get(queue)
        pause_ms = _REFUSED_PAUSE_MS
        if before is not None:
            pause_ms = growing_pause_ms(before.pause_ms, 1, _LONGEST_PAUSE_MS)
        self._refusals[queue] = _Refusal(reason, pause_ms, self._client.clock.now_ms() + pause_ms)

    async def commit_last(self, assigned: AssignedQueue) -> bool:
        """Commit as `commit` before a queue is given up; returns behind commits under way."""
        async with self._turn(assigned.queue):
            return not self._commits_done or await self._commit(assigned)

    async def commit_at(self, assigned: AssignedQueue, offset: int) -> bool:
        """Commit the offset a caller asks for, forwards or backwards.

        Returns: False, and nothing was stored, if the queue or its lease is lost.
        Raises: one of STORE_ERRORS: not stored.
        """
        async with self._turn(assigned.queue):
            lease, generation = assigned.lease, assigned.generation
            if lease is None or not lease.is_valid(self._client.clock.now_ms()):
                return False
            asked_ms = self._client.clock.now_ms()
            await self._write(
                assigned.queue, offset, lease, reset=offset < assigned.committed_offset
            )
            # Both at once, or the next periodic commit would move the offset back.
            assigned.set_done_offset(generation, offset)
            assigned.committed(offset, lease)
            self._statistics.committed(assigned.queue, asked_ms)
            return True

    async def reset(self, assigned: AssignedQueue, generation: int, offset: int) -> bool:
        """Continue from `offset`, forwards or backwards
        (docs/internals/semantics.md#pause-and-seek).

        Returns: False, and nothing happens, if a batch runs or the queue was lost meanwhile.
        Raises: one of STORE_ERRORS: it is not stored yet; the next commit stores it.
        """
        # Moved first: an error below leaves the queue at the new offset, and the old one behind.
        lease = assigned.lease
        if lease is None or not assigned.reposition(generation, offset):
            return False
        if self._commits_resets:
            async with self._turn(assigned.queue):
                self._record(EventType.RESET, assigned.queue, lease, offset)
                await self._write(assigned.queue, offset, lease, reset=True)
                assigned.committed(offset, lease)
        return True

    async def store_reset(self, queue: MessageQueue, offset: int) -> None:
        """Store an admin's offset of a queue that this member does not consume now.

        Raises: one of STORE_ERRORS.
        """
        async with self._turn(queue):
            self._record(EventType.RESET, queue, UNLOCKED, offset)
            await self._write(queue, offset, UNLOCKED, reset=True)

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is kept for a queue that was given up."""
        self._busy.pop(queue, None)
        self._refusals.pop(queue, None)

    def close(self) -> None:
        """Release the storage."""
        self._is_idle_noted = True  # a listener that ends later finds nobody to wake
        self._storage.close()

    @contextlib.asynccontextmanager
    async def _turn(self, queue: MessageQueue) -> AsyncIterator[None]:
        async with self._busy.setdefault(queue, asyncio.Lock()):
            if write := self._writes.get(queue):  # one whose caller has given up
                await asyncio.wait((write,))
            yield

    async def _commit(self, assigned: AssignedQueue) -> bool:
        found = assigned.uncommitted(self._client.clock.now_ms())
        is_new_life = assigned.begins_life
        if found is None:
            return is_new_life or assigned.done_offset == assigned.committed_offset
        (offset, lease), queue = found, assigned.queue
        asked_ms = self._client.clock.now_ms()
        if is_new_life:
            self._record(EventType.RESET, queue, lease, offset)
        await self._record_commit(queue, lease, offset)
        if lease.is_lock and not lease.is_valid(self._client.clock.now_ms()):
            return False
        try:
            if is_new_life or lease.is_lock or not await self._is_ahead(assigned, offset):
                await self._write(queue, offset, lease, reset=is_new_life)
        except Fenced as error:
            self._statistics.add("fenced_commits")
            _log.warning(
                "%s",
                error,
                extra=log_fields(assigned.queue, offset=offset, member=self._client.client_id),
            )
            assigned.lose_lease("its commit was fenced")
            return False
        except BrokerError as error:
            if (ends := await self._ends_behind(assigned, error)) is not None:
                first, end = ends
                if assigned.state is not QueueState.ACTIVE:
                    # The refused offset may be of an earlier life, and no pull will tell.
                    assigned.begin_life(first)
                    self._record(EventType.RESET, queue, lease, first)
                    return await self._commit(assigned)
                if end < offset:
                    # The next pull is told of it, and knows what of the queue is as it was read.
                    # Begun here, the life would keep back every commit until somebody moves it.
                    return False
            self._client.report_failure(queue.broker_name, "commit", error)
            if not is_busy(error):
                self._refuse(queue, str(error))
            # A topic that is gone has no position, and nobody waits for one.
            is_gone = error.response_code == ResponseCode.TOPIC_NOT_EXIST
            if not is_gone or assigned.state is not QueueState.DRAINING:
                return False
            self._record(EventType.RESET, queue, lease, 0)
            return True
        except STORE_ERRORS as error:
            self._client.report_failure(queue.broker_name, "commit", error)
            return False
        assigned.committed(offset, lease)
        self._refusals.pop(queue, None)
        self._statistics.committed(queue, asked_ms)
        self._record(EventType.COMMIT_ACK, queue, lease, offset)
        return True

    async def _ends_behind(
        self, assigned: AssignedQueue, error: BrokerError
    ) -> tuple[int, int] | None:
        """Return the first offset and the end of a queue that refused an offset as none of its own;
        None where a commit was refused for another reason.
        """
        if error.response_code != ResponseCode.INVALID_PARAMETER or assigned.begins_life:
            return None
        queue, api = assigned.queue, self._client.api
        try:
            address = self._client.routes.master_of(queue.broker_name)
            return await asyncio.gather(
                api.min_offset(address, queue), api.max_offset(address, queue)
            )
        except (RemotingError, RouteError) as also:
            self._client.report_failure(queue.broker_name, "look at a queue", also)
            return None

    async def _is_ahead(self, assigned: AssignedQueue, offset: int) -> bool:
        """Return whether the next owner of a queue without a lock has committed further."""
        if assigned.state is QueueState.ACTIVE:
            return False  # the next owner starts only after the release: spare the request
        stored = await self._storage.read(assigned.queue)
        # What this member stored itself is its own to move, backwards too after a seek.
        return stored is not None and stored != assigned.committed_offset and stored >= offset

    async def _write(
        self, queue: MessageQueue, offset: int, lease: Lease, *, reset: bool = False
    ) -> None:
        # Its caller may give up: be cancelled, or interrupted by a signal. A request that was sent,
        # or a thread that writes, cannot be called back, and must not overtake the next write.
        write = asyncio.ensure_future(self._storage.write(queue, offset, lease, reset=reset))
        self._writes[queue] = write
        write.add_done_callback(lambda _: self._writes.pop(queue))
        try:
            await asyncio.shield(write)
        except Fenced:
            raise  # no error of storage: another member owns the queue, as the caller counts
        except STORE_ERRORS:
            self._statistics.add("commit_errors")
            raise

    async def _record_commit(self, queue: MessageQueue, lease: Lease, offset: int) -> None:
        """Record that a commit is sent next, and wait until the history has what it covers.

        Of a process that is killed behind the commit, an audit would miss the end of messages that
        no other member is given.
        """
        self._record(EventType.COMMIT_SENT, queue, lease, offset)
        if self._recorder.enabled:
            await asyncio.to_thread(self._recorder.wait_written)

    def _record(
        self, event: EventType, queue: MessageQueue, lease: Lease, offset: int, **members: str
    ) -> None:
        if self._recorder.enabled:
            self._recorder.record(event, queue, lease.epoch, off=offset, **members)
