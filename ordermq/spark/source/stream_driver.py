"""The driver half of a streaming query: locks, offsets and commits of one run.

Nothing here needs pyspark: only the offsets of a batch pass between Spark and this class.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from ordermq.client.queue_life import NewLife, is_told_by_routes
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.errors import OrderMQError, RequestTimeout
from ordermq.forking import ProcessBound
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions, queue_text
from ordermq.spark.session import new_run_id
from ordermq.spark.source.checkpoint_queues import CheckpointQueues
from ordermq.spark.source.driver_locks import DriverLocks
from ordermq.spark.source.group_starts import store_start
from ordermq.spark.source.latest_offsets import LatestOffsets
from ordermq.spark.source.offsets import (
    Offsets,
    StreamOffset,
    advance,
    check_past,
    earliest_offsets,
    first_queues,
    resolve_boundary,
    warn_of_unnamed,
)
from ordermq.spark.source.queue_lives import (
    Marks,
    QueueLives,
    StoreTimes,
    data_loss,
    topic_and_broker,
)
from ordermq.spark.source.task_ranges import Range, task_count

_log = logging.getLogger("ordermq.spark")
# The checkpoint is the truth, so the commit of an unordered run at its end may be given up.
_COMMIT_WAIT_S = 10.0
_RETRY_MS = 200  # of a question that a broker did not answer
_FIRST_PAUSE_MS = 5  # of an idle stream, then twice as long each time
# An idle stream looks this often whether its topics are still those that it has read. A busy one
# does at each batch: at all queues where nobody asked for their ends for so long.
_LOOK_MS = 5_000


class StreamDriver(ProcessBound):
    """One run of a streaming query, on the driver.

    One process per run calls these methods from its main thread. Whichever comes first opens the
    session and takes the queue locks: after a restart in the middle of a batch that is
    `begin_batch`, with neither `initial` nor `next_end` before it.
    """

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._locks: DriverLocks | None = None
        if options.is_ordered:
            self._locks = DriverLocks(options, new_run_id(), clock)
            self._session = self._locks.session
        else:
            self._session = ClientSession(options.name_servers, options.remoting, clock=clock)
        self._latest = LatestOffsets(self._session, options.selection, options.read_group)
        self._stored = BrokerOffsets(self._session, options.group)
        self._queues = CheckpointQueues(self._session, options, self._latest)
        self._lives = QueueLives(self._session, options.read_group)
        began_ms = self._session.clock.now_ms()
        self._asked_ms: int | None = None  # for the next batch
        self._looked_ms = began_ms
        self._turn = 0  # of the queue that a batch looks at
        self._planned: StreamOffset | None = None  # the end of the last batch of this run
        # The offset at which nothing was to read, and the version of the ends it was compared
        # with: an idle stream asks many times per second, and may have a thousand queues.
        self._idle_at: tuple[StreamOffset, int] | None = None
        self._pause_ms = 0
        self._batch_ms = began_ms  # the last batch was planned
        self._frozen_end: Offsets | None = None  # of Trigger.AvailableNow
        self._stored_by: StoreTimes = {}  # when the messages before the last ends were stored
        self._connected: Mapping[str, int] = {}  # as `LatestOffsets` has it, at the last look at it
        self._doubted: set[str] = set()  # brokers that have another connection since the last look
        self._may_be_last = False  # of the batch that is planned: Spark does not tell it
        self._initial: StreamOffset | None = None
        self._in_flight: Offsets | None = None  # the end of a batch handed out, not yet finished
        self._finished: Offsets = {}
        self._committed = self._finished  # or being committed; on the I/O thread, as the next one
        self._commits: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def run_id(self) -> int | None:
        """The id of this run, under which it holds its locks; None when it holds none."""
        return None if self._locks is None else self._locks.run_id

    def initial(self) -> StreamOffset:
        """Return the offset at which a query without a checkpoint begins."""
        # Kept, because Spark asks twice and must get the same answer.
        if self._initial is None:
            check_past(self._options.stream_start(), self._session.clock.wall_ms())
            queues = self._session.call(first_queues(self._session, self._options.selection))
            if not queues:
                _log.warning(
                    "option topic_pattern=%r matches no topic now: the query waits for one. It "
                    "must match whole names",
                    str(self._options.selection),
                )
            # Locked first: until then another member may move the group's offset on.
            self._hold(queues, None)
            boundary = self._options.stream_start()
            start = self._session.call(
                resolve_boundary(self._session, self._options, boundary, queues)
            )
            warn_of_unnamed(boundary, queues)
            self._session.call(self._store_start(start))
            self._initial = StreamOffset(start, self.run_id)
        return self._initial

    async def _store_start(self, start: Offsets) -> None:
        """Store the start for the group where it has none, before anything is read.

        Raises: OrderMQError: it cannot be stored now.
        """
        if self._locks is not None:
            await self._locks.store_start(start)
        elif self._options.group:
            await store_start(self._stored, self._options.group, start)

    def _is_first(self, start: StreamOffset) -> bool:
        """Return whether the start is in no checkpoint, and would be another one if asked again."""
        # Each other one is found again by its rule, so a new query has no batch without messages.
        return self._options.stream_start().is_moving and start == self._initial

    def _begin(self, start: StreamOffset) -> StreamOffset:
        """Return the end of a batch that reads nothing, and puts the start into the checkpoint."""
        self._hold(start.queues, start.run_id)
        marks = self._session.call(self._lives.mark(start.queues))
        self._planned = StreamOffset(start.queues, self.run_id, marks=marks, is_start=True)
        return self._planned

    def freeze_end(self) -> None:
        """Let the stream end at the present ends of its queues: Trigger.AvailableNow.

        Raises: as `_ends_of_all`.
        """
        self._frozen_end = self._ends_of_all()

    @contextlib.contextmanager
    def last_answer(self) -> Iterator[None]:
        """Plan a batch as the last one of a run, which it may be.

        Raises: as `_ends_of_all`.
        """
        self._ends_of_all()
        self._may_be_last = True
        try:
            yield
        finally:
            self._may_be_last = False

    @property
    def _ends_here(self) -> bool:
        """The run ends, or may end, with the messages that exist now."""
        return self._may_be_last or self._frozen_end is not None

    def _ends_of_all(self) -> Offsets:
        """Return the present ends of the queues of all brokers.

        Raises: RequestTimeout: a broker does not tell them for `read_timeout_ms`, and the run would
            end as if it had none. BrokerError: one refuses to.
        """
        session, options = self._session, self._options
        deadline_ms = session.clock.now_ms() + options.read_timeout_ms
        ends = self._ask_for_ends()
        while silent := self._latest.silent:
            broker = min(silent)
            error = silent[broker]
            if not error.retriable and not is_told_by_routes(error):
                raise error
            if session.clock.now_ms() > deadline_ms:
                raise RequestTimeout(
                    "the run may end with the messages that exist now, and a broker does not tell "
                    f"which it has, for read_timeout_ms={options.read_timeout_ms}: start the query "
                    f"again when it answers: {error}",
                    broker=broker,
                ) from error
            session.call(session.clock.sleep_ms(_RETRY_MS))
            ends = self._ask_for_ends()
        return ends

    def _ask_for_ends(self) -> Offsets:
        self._latest.get_now()
        ends, self._stored_by = self._latest.told
        return ends

    def next_end(self, start: StreamOffset, limit: int | None) -> StreamOffset | None:
        """Return the end of the next batch; None if there is nothing to read.

        Raises: StateError: the checkpoint is of other topics. DataLoss: a queue is gone, or not
            the one that the stream has read. LockLost, LockRefused: see `DriverLocks.hold`.
        """
        if self._is_first(start):
            return self._begin(start)
        now_ms, asked_ms = self._session.clock.now_ms(), self._asked_ms
        self._asked_ms = now_ms
        if self._is_still_idle(start, now_ms):
            return None
        own = self._queues.selected(start.queues)
        # Before the ends: they may change between the two, and must then be compared again.
        version = self._latest.version
        latest = self._ends_for(own, start.run_id)
        # What is in no route, or closed, stays: its tasks would wait for it, and then fail. It is
        # locked when it is there again.
        there = self._queues.routed(own)
        self._hold(there, start.run_id)
        # Everything before `start` is finished: Spark asks for the next batch after the sink has
        # committed the last one. Spark's own `commit` comes only when a further batch is planned,
        # so the last batch of a run would never be committed by it.
        self._finish(start.queues)
        are_all_there = self._queues.check_not_gone(own, ends_here=self._ends_here)
        # A new queue enters with its beginning and no messages. The start of each batch must be
        # in the checkpoint, so that a batch which runs again reads the same messages.
        new = sorted(set(latest).difference(own, self._latest.gone))
        begun = self._begin_new(new, {queue.topic for queue in own})
        end = own | advance(there, latest, limit) | begun
        # A new queue enters at once: its messages count only from then on.
        is_ready = end != start.queues and (bool(begun) or not self._is_too_little(there, latest))
        is_shrunk = any(latest.get(queue, at) < at for queue, at in own.items())
        is_late = asked_ms is None or now_ms - asked_ms > _LOOK_MS
        is_doubted = any(queue.broker_name in self._doubted for queue in there)
        are_all = is_shrunk or is_late or is_doubted
        marks, anew = start.marks, frozenset[MessageQueue]()
        if is_ready or are_all or now_ms - self._looked_ms > _LOOK_MS:
            self._looked_ms = now_ms
            end, marks, anew = self._look(start, own, end, latest, are_all=are_all)
        if end == start.queues and not anew:
            # A new queue which another member holds is tried again, a missing one waited for; and
            # so is the broker of one that has messages, and of which it did not tell the life.
            if self._frozen_end is None and are_all_there and not new and not is_ready:
                self._idle_at = start, version
            return None
        if not is_ready and not anew:
            return None
        self._batch_ms = self._session.clock.now_ms()
        self._idle_at, self._pause_ms = None, 0
        self._planned = self._end_of(start, end, marks, anew)
        return self._planned

    def _ends_for(self, own: Offsets, previous_run_id: int | None) -> Offsets:
        """Do as `_present_ends`; a run with locks waits for its brokers as for the locks."""
        try:
            return self._present_ends()
        except OrderMQError:
            if self._locks is None:
                raise
            self._hold(own, previous_run_id)
            return self._present_ends()

    def _present_ends(self) -> Offsets:
        """Return the ends of the queues, or those with which the run is to end."""
        ends = self._frozen_end
        if ends is None:
            self._latest.refresh()
            ends, self._stored_by = self._latest.told
        # After the ends: the connection is noted before what was told over it.
        before, self._connected = self._connected, self._latest.connected
        self._doubted |= {
            broker for broker, number in self._connected.items() if number > before.get(broker, 1)
        }
        return ends

    # The lives of queues.

    def _look(
        self, start: StreamOffset, own: Offsets, end: Offsets, latest: Offsets, *, are_all: bool
    ) -> tuple[Offsets, Marks, frozenset[MessageQueue]]:
        """Look whether the queues are those that the stream has read.

        All queues of a topic begin a new life together, and one that does so alone, because its
        broker deletes what has long expired, ends before the stream's offset for a while. So of
        each topic and broker a batch looks at one, in turn.

        Returns: the end of the batch, the marks of its queues, and those that begin anew.
        Raises: DataLoss: one is another queue now, with `fail_on_data_loss`.
        """
        # Nobody can tell it of a queue that is in no route: see `check_not_gone`.
        there = list(self._queues.routed(own))
        moved = [queue for queue in there if end[queue] > own[queue]]
        chosen = set(there) if are_all else self._one_of_each_broker(moved or there)
        # Others have their first messages, and may wait long for their turn: without a mark a topic
        # that is made again meanwhile tells nothing.
        unmarked = (queue for queue in moved if queue not in start.marks)
        # Marked first: what is found unchanged after that was marked in the same life.
        to_mark = chosen.union(end.keys() - own.keys(), unmarked)
        marked = self._session.call(self._lives.mark({queue: end[queue] for queue in to_mark}))
        # Without a mark, as in an older checkpoint, only the queue's end can tell.
        checked = {
            queue: own[queue]
            for queue in chosen
            if queue in start.marks or latest.get(queue, own[queue]) < own[queue]
        }
        lives, silent = self._session.call(self._check_lives(checked, start.marks, start.stored))
        if are_all:
            # One whose queues are in no route now is looked at when they are again.
            self._doubted -= {queue.broker_name for queue in there}
            self._doubted |= {queue.broker_name for queue in silent}
        if lives and not are_all:
            return self._look(start, own, end, latest, are_all=True)
        self._tell(lives)
        begun = {queue: life.first for queue, life in lives.items()}
        if self._frozen_end is not None:
            # Another dict: that one is what `LatestOffsets` knows.
            self._frozen_end = self._frozen_end | {each: life.end for each, life in lives.items()}
            # Those ends are of now, and these times of the start of the run.
            later = set(map(topic_and_broker, lives))
            self._stored_by = {at: ms for at, ms in self._stored_by.items() if at not in later}
        marks = {
            queue: mark
            for queue, mark in (start.marks | marked).items()
            if queue in end and queue not in begun
        }
        if begun:
            marks |= self._session.call(self._lives.mark(begun))
        # Not read on before its broker has told whether it is the same, nor what it stands for.
        unknown = set(map(topic_and_broker, silent))
        waiting = {queue: at for queue, at in own.items() if topic_and_broker(queue) in unknown}
        waiting = {queue: at for queue, at in waiting.items() if queue not in begun}
        marks = {queue: mark for queue, mark in marks.items() if queue not in waiting}
        marks |= {queue: start.marks[queue] for queue in waiting if queue in start.marks}
        return end | waiting | begun, marks, frozenset(begun)

    async def _check_lives(
        self, starts: Offsets, marks: Marks, stored: StoreTimes
    ) -> tuple[dict[MessageQueue, NewLife], set[MessageQueue]]:
        """Do as `QueueLives.check`; a run with a fixed end waits for brokers that are silent."""
        if not self._ends_here:
            return await self._lives.check(starts, marks, stored)
        timeout_ms = self._options.read_timeout_ms
        return await self._lives.check_all(starts, marks, stored, timeout_ms), set()

    def _one_of_each_broker(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        self._turn += 1
        parts = (list(part) for _, part in groupby(sorted(queues), topic_and_broker))
        return {part[self._turn % len(part)] for part in parts}

    def _tell(self, lives: dict[MessageQueue, NewLife]) -> None:
        """Raise for queues in a new life, or log what is read of each topic and broker."""
        if lives and self._options.fail_on_data_loss:
            raise data_loss(lives[min(lives)])
        for (topic, broker), part in groupby(sorted(lives), topic_and_broker):
            found = [lives[queue] for queue in part]
            first = found[0]
            _log.warning(
                "%s@%s: %d queues are not those that the stream has read, of which it reads %d "
                "messages from the first on that it has not read: queue %d, which stood at offset "
                "%d, from %d: %s",
                topic,
                broker,
                len(found),
                sum(max(life.end - life.first, 0) for life in found),
                first.queue.queue_id,
                first.at,
                first.first,
                first.reason,
            )

    def _end_of(
        self,
        start: StreamOffset,
        end: Offsets,
        marks: Marks,
        anew: frozenset[MessageQueue] = frozenset(),
    ) -> StreamOffset:
        ranges = _ranges(start.queues, end, anew)
        tasks = task_count(ranges, self._options.tasks)
        # In the checkpoint, so that a batch which runs again has the same tasks, also on another
        # machine: rows without a queue are stamped with the number of their task.
        packed = tasks if tasks < len(ranges) else None
        stored = {
            place: max(stored_ms, start.stored.get(place, 0))
            for place, stored_ms in self._stored_by.items()
        }
        # A broker that does not answer may come back with an older store: what it told by then, or
        # on its return before anybody could look, must not hide that.
        before = start.queues
        moved = {topic_and_broker(each) for each, at in end.items() if before.get(each) != at}
        stored |= {place: ms for place, ms in start.stored.items() if place not in moved}
        return StreamOffset(end, self.run_id, packed, marks=marks, stored=stored, anew=anew)

    def first_end(self, limit: int | None) -> StreamOffset:
        """Return the end of a new query's first batch, where Spark does not say its beginning.

        Raises: as `initial` and `_ends_of_all`.
        """
        # Nothing is marked as finished: whoever asks may have a checkpoint that is ahead.
        first = self.initial()
        if self._is_first(first):
            return self._begin(first)
        end = advance(first.queues, self._ends_of_all(), limit)
        self._planned = self._end_of(first, end, self._session.call(self._lives.mark(end)))
        return self._planned

    def _is_too_little(self, start: Offsets, latest: Offsets) -> bool:
        """Return whether the batch waits for more messages, by `min_rows`."""
        wanted = self._options.min_rows
        if wanted is None or self._ends_here:
            return False
        waited_ms = self._session.clock.now_ms() - self._batch_ms
        if waited_ms >= self._options.max_trigger_delay_ms:
            return False
        return sum(max(latest.get(queue, at) - at, 0) for queue, at in start.items()) < wanted

    def _is_still_idle(self, start: StreamOffset, now_ms: int) -> bool:
        # By identity: comparing a thousand queues costs more than all the rest.
        if self._idle_at is None or self._idle_at[0] is not start:
            return False
        if self._locks is not None:
            self._locks.check_all()
        if now_ms - self._looked_ms > _LOOK_MS:
            return False
        self._latest.refresh()
        latest = self._latest
        is_as_before = latest.version == self._idle_at[1] and latest.connected is self._connected
        return is_as_before and not latest.gone

    def wait_for_messages(self) -> bool:
        """Wait a moment for messages, longer the longer there were none.

        Returns: False at once where the stream ends at fixed offsets.
        """
        if self._frozen_end is not None:
            return False
        self._pause_ms = max(2 * self._pause_ms, _FIRST_PAUSE_MS)
        self._latest.wait(self._pause_ms)
        return True

    @property
    def ends_version(self) -> int:
        """A number that is another one when `queue_ends` returns something else."""
        return self._latest.version

    def queue_ends(self) -> StreamOffset:
        """Return the ends of the queues, for Spark's progress."""
        return StreamOffset(self._latest.get(), group=self._options.group)

    def begin_batch(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        """Return the ranges of a batch, which is in flight until `next_end(start=end)`.

        Raises: as `next_end`.
        """
        self._queues.check_selected(end.queues)
        ranges = _ranges(start.queues, end.queues, end.anew)
        is_planned = end == self._planned
        if not is_planned:
            # Nothing has asked for the routes since the restart.
            with contextlib.suppress(OrderMQError):
                self._latest.refresh()
            if not self._options.fail_on_data_loss:
                ranges = self._queues.without_gone(ranges)
        # What has no part in it may be gone.
        taking_part = {queue for queue, _, _ in ranges}
        self._hold(sorted(taking_part.union(self._queues.routed(end.queues))), end.run_id)
        if end.is_start:
            return []
        self._queues.check_order(start.queues, end, is_first=start == self._initial)
        self._in_flight = end.queues
        # One from the checkpoint: its messages may be those of another queue by now.
        return ranges if is_planned else self._unchanged(ranges, end)

    def _unchanged(self, ranges: list[Range], planned: StreamOffset) -> list[Range]:
        """Return the ranges without what queues that began a new life after the batch have lost.

        Such a queue goes on at the first message of its new life that was not read, which is part
        of the next batch. What lies before that, and in the range, has not been read either.
        """
        ends = {queue: end for queue, _, end in ranges}
        timeout_ms = self._options.read_timeout_ms
        check = self._lives.check_all(ends, planned.marks, planned.stored, timeout_ms)
        lives = self._session.call(check)
        if lives and self._options.fail_on_data_loss:
            raise data_loss(lives[min(lives)])
        found: list[Range] = []
        for queue, start, end in ranges:
            stop = end
            if queue in lives:
                stop = max(start, min(end, lives[queue].first))
                _log.warning(
                    "%s: %d messages of a batch that runs again are left out, offsets %d to %d: "
                    "they are gone, %s",
                    queue_text(queue),
                    end - stop,
                    stop,
                    end - 1,
                    lives[queue].reason,
                )
            if stop > start:
                found.append((queue, start, stop))
        return found

    def finish(self, end: StreamOffset) -> None:
        """Mark the batch that ends here as finished."""
        self._finish(end.queues)

    def close(self) -> None:
        """End the run; a second call does nothing."""
        try:
            if self._is_closed:
                return
            self._is_closed = True
            self._latest.close()
            if self._locks is not None:
                self._close_ordered(self._locks)
            else:
                self._session.call(self._commit_last(), _COMMIT_WAIT_S)
        except BaseException:
            # Ctrl-C, perhaps: nobody waits, and the locks expire, for nobody renews them.
            if self._locks is not None:
                self._session.call(self._locks.abandon())
            raise
        finally:
            self._session.close()

    def _close_ordered(self, locks: DriverLocks) -> None:
        is_in_flight = self._in_flight is not None
        if is_in_flight:
            _log.warning(
                "query stopped in the middle of a batch: release_in_flight=%s",
                self._options.release_in_flight.value,
            )
        # Commit, then unlock: the next owner asks for the offset as soon as it has the lock.
        self._session.call(locks.commit(self._finished, is_last=True))
        self._session.call(locks.release(is_in_flight=is_in_flight))

    def _hold(self, queues: Iterable[MessageQueue], previous_run_id: int | None) -> None:
        if self._locks is not None:
            self._locks.hold(list(queues), previous_run_id)

    def _finish(self, end: Offsets) -> None:
        if self._in_flight is not None and end == self._in_flight:
            self._in_flight = None
        if end is not self._finished and end != self._finished:
            self._finished = end
            # Not awaited: the checkpoint is the truth, and the group's offset only follows it.
            if self._options.group:
                self._session.runtime.post(self._commit_soon)

    # Commits, on the I/O thread: one at a time, or a slow one would bring an older offset later.

    def _commit_soon(self) -> None:
        if self._commits is None or self._commits.done():
            work = self._commit_newest()
            self._commits = self._session.runtime.spawn(work, "commit of a query")

    async def _commit_newest(self) -> None:
        """Commit what is finished, and what was finished meanwhile; all at once."""
        while (end := self._finished) is not self._committed:
            self._committed = end
            if self._locks is not None:
                await self._locks.commit(end)
            else:
                await asyncio.gather(*(self._commit_one(*each) for each in sorted(end.items())))

    async def _commit_one(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._session.address_of(queue)  # the route is known then
            await self._stored.write(queue, offset)
        except OrderMQError as error:
            self._session.report_failure(queue.broker_name, "commit", error)

    async def _commit_last(self) -> None:
        """Commit what is finished, also what was before: a killed broker forgets commits."""
        if self._commits is None:
            return
        await self._commits
        self._committed = {}
        await self._commit_newest()

    def _begin_new(self, queues: list[MessageQueue], topics: set[str]) -> Offsets:
        """Return the beginnings of new queues; empty while another member holds one.

        Args: topics: of which the stream reads other queues already.
        """
        if not queues:
            return {}
        if self._locks is not None:
            if self._ends_here:  # without them the run would end as if it had all
                self._hold(queues, None)
            elif not self._locks.try_hold(queues):
                return {}  # another member still holds one: the next call tries again
        names = ", ".join(map(queue_text, queues))
        if not topics.isdisjoint(queue.topic for queue in queues):
            _log.warning(
                "new queues of a topic, read from their beginning: %s. Keys have moved to other "
                "queues, and their messages there may be processed before those that wait in the "
                "old ones",
                names,
            )
        else:
            _log.info("new queues: %s", names)
        return self._session.call(earliest_offsets(self._session, queues))


def _ranges(start: Offsets, end: Offsets, anew: frozenset[MessageQueue]) -> list[Range]:
    """Return what lies between two offsets, without the queues that have nothing there."""
    return [
        (queue, start[queue], at)
        for queue, at in sorted(end.items())
        if start.get(queue, at) < at and queue not in anew
    ]
