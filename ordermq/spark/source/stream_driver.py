"""The driver half of a streaming query: locks, offsets and commits of one run.

Nothing here needs pyspark: only the offsets of a batch pass between Spark and this class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.errors import DataLoss, OrderMQError, StateError
from ordermq.forking import ProcessBound
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions, queue_text
from ordermq.spark.session import learn_routes, new_run_id
from ordermq.spark.source.driver_locks import DriverLocks
from ordermq.spark.source.latest_offsets import LatestOffsets
from ordermq.spark.source.offsets import (
    Offsets,
    StreamOffset,
    advance,
    check_past,
    earliest_offsets,
    find_truncation,
    first_queues,
    resolve_boundary,
    warn_of_unnamed,
)
from ordermq.spark.source.task_ranges import Range, task_count

_log = logging.getLogger("ordermq.spark")
# The checkpoint is the truth, so the commit of an unordered run at its end may be given up.
_COMMIT_WAIT_S = 10.0
_FIRST_PAUSE_MS = 5  # of an idle stream, then twice as long each time


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
        self._began_ms = self._session.clock.now_ms()
        # The offset at which nothing was to read, and the version of the ends it was compared
        # with: an idle stream asks many times per second, and may have a thousand queues.
        self._idle_at: tuple[StreamOffset, int] | None = None
        self._pause_ms = 0
        self._batch_ms = self._began_ms  # the last batch was planned
        self._frozen_end: Offsets | None = None  # of Trigger.AvailableNow
        self._initial: StreamOffset | None = None
        self._in_flight: Offsets | None = None  # the end of a batch handed out, not yet finished
        self._finished: Offsets = {}
        self._warned: set[str] = set()
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
            self._initial = StreamOffset(start, self.run_id)
        return self._initial

    def freeze_end(self) -> None:
        """Let the stream end at the present ends of its queues: Trigger.AvailableNow."""
        self._frozen_end = self._latest.get_now()

    def next_end(self, start: StreamOffset, limit: int | None) -> StreamOffset | None:
        """Return the end of the next batch; None if there is nothing to read.

        Raises: StateError: the checkpoint is of other topics. DataLoss: a queue ends before the
            stream's offset, or is gone. LockLost, LockRefused: see `DriverLocks.hold`.
        """
        if self._is_still_idle(start):
            return None
        self._check_selected(start.queues)
        own = {queue: at for queue, at in start.queues.items() if self._is_read(queue)}
        self._hold(own, start.run_id)
        # Everything before `start` is finished: Spark asks for the next batch after the sink has
        # committed the last one. Spark's own `commit` comes only when a further batch is planned,
        # so the last batch of a run would never be committed by it.
        self._finish(start.queues)
        # Before the ends: they may change between the two, and must then be compared again.
        version = self._latest.version
        latest = self._latest.get() if self._frozen_end is None else self._frozen_end
        self._check_not_truncated(own, latest)
        are_all_there = self._check_not_gone(own)
        # A new queue enters with its beginning and no messages. The start of each batch must be
        # in the checkpoint, so that a batch which runs again reads the same messages.
        new = sorted(set(latest).difference(own, self._latest.gone))
        begun = self._begin_new(new)
        end = advance(own, latest, limit) | begun
        if end == start.queues:
            # A new queue which another member holds is tried again, a missing one waited for.
            if self._frozen_end is None and are_all_there and not new:
                self._idle_at = start, version
            return None
        # A new queue enters at once: its messages count only from then on.
        if not begun and self._is_too_little(own, latest):
            return None
        self._batch_ms = self._session.clock.now_ms()
        self._idle_at, self._pause_ms = None, 0
        return self._end_of(start.queues, end)

    def _end_of(self, start: Offsets, end: Offsets) -> StreamOffset:
        ranges = _ranges(start, end)
        tasks = task_count(ranges, self._options.tasks)
        # In the checkpoint, so that a batch which runs again has the same tasks, also on another
        # machine: rows without a queue are stamped with the number of their task.
        return StreamOffset(end, self.run_id, tasks if tasks < len(ranges) else None)

    def first_end(self, limit: int | None) -> StreamOffset:
        """Return the end of a new query's first batch, where Spark does not say its beginning."""
        # Nothing is marked as finished: whoever asks may have a checkpoint that is ahead.
        start = self.initial().queues
        return self._end_of(start, advance(start, self._latest.get_now(), limit))

    def _is_too_little(self, start: Offsets, latest: Offsets) -> bool:
        """Return whether the batch waits for more messages, by `min_rows`."""
        wanted = self._options.min_rows
        if wanted is None or self._frozen_end is not None:
            return False
        waited_ms = self._session.clock.now_ms() - self._batch_ms
        if waited_ms >= self._options.max_trigger_delay_ms:
            return False
        return sum(max(latest.get(queue, at) - at, 0) for queue, at in start.items()) < wanted

    def _is_still_idle(self, start: StreamOffset) -> bool:
        # By identity: comparing a thousand queues costs more than all the rest.
        if self._idle_at is None or self._idle_at[0] is not start:
            return False
        if self._locks is not None:
            self._locks.check_all()
        self._latest.refresh()
        return self._latest.version == self._idle_at[1] and not self._latest.gone

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
        """Return the ranges of a batch, which is in flight until `next_end(start=end)`."""
        self._check_selected(end.queues)
        self._hold(end.queues, end.run_id)
        for queue, at in start.queues.items():
            if end.queues.get(queue, -1 if self._is_read(queue) else at) < at:
                raise StateError(
                    f"the checkpoint has {queue_text(queue)} at {at}, then at "
                    f"{end.queues.get(queue)}: start with a new checkpoint. This one was changed "
                    "by hand, or belongs to another query"
                )
        self._in_flight = end.queues
        return _ranges(start.queues, end.queues)

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
                self._session.call(self._commit(self._finished), _COMMIT_WAIT_S)
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
                runtime = self._session.runtime
                runtime.post(lambda: runtime.spawn(self._commit(end), "commit of a query"))

    async def _commit(self, end: Offsets) -> None:
        if self._locks is not None:
            await self._locks.commit(end)
            return
        if not self._options.group:
            return
        session = self._session
        await learn_routes(session, end)
        for queue, offset in sorted(end.items()):
            try:
                address = session.routes.master_of(queue.broker_name)
                await session.api.update_offset(address, self._options.group, queue, offset)
            except OrderMQError as error:
                session.report_failure(queue.broker_name, "commit", error)

    def _begin_new(self, queues: list[MessageQueue]) -> Offsets:
        if not queues or (self._locks is not None and not self._locks.try_hold(queues)):
            return {}  # another member still holds one: the next call tries again
        _log.info("new queues: %s", ", ".join(map(queue_text, queues)))
        return self._session.call(earliest_offsets(self._session, queues))

    def _check_not_truncated(self, start: Offsets, latest: Offsets) -> None:
        error = find_truncation(start, latest)
        if error is None:
            return
        self._fail_or_warn(error)

    def _fail_or_warn(self, error: OrderMQError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        kind = str(error)
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s", error)

    def _is_read(self, queue: MessageQueue) -> bool:
        return self._options.selection.reads(queue)

    def _check_selected(self, offsets: Offsets) -> None:
        """Refuse the checkpoint of another selection; of what is read no more, or warn."""
        selection = self._options.selection
        left_out = [queue for queue in offsets if not selection.reads(queue)]
        if not left_out:
            return
        known = sorted({queue.topic for queue in offsets})
        missing = sorted(
            {queue_text(queue) if selection.queues else queue.topic for queue in left_out}
        )
        error = StateError(
            f"the checkpoint is of topic {', '.join(known)}, and the query reads {selection}: give "
            f"the query a checkpointLocation of its own, or add {', '.join(missing)} to option "
            f"{selection.option}. With fail_on_data_loss=false what is left out of several is read "
            "no more"
        )
        if len(left_out) == len(offsets):
            raise error
        self._fail_or_warn(error)

    def _check_not_gone(self, start: Offsets) -> bool:
        """Return whether the routes have all queues; raise, or warn, where one is gone."""
        routed, gone = self._latest.routed, self._latest.gone
        if routed is None or routed.issuperset(start):
            return True
        # A broker that restarts is in no route for a while. Not so a queue whose broker still has
        # others of the topic, nor in a run that ends with what there is now.
        present = {(queue.topic, queue.broker_name) for queue in routed}
        now_ms, grace_ms = self._session.clock.now_ms(), self._session.config.forget_broker_after_ms
        lost = [
            queue
            for queue in sorted(set(start) - routed)
            if self._frozen_end is not None
            or (queue.topic, queue.broker_name) in present
            or now_ms - gone.get(queue, self._began_ms) > grace_ms
        ]
        if lost:
            first = lost[0]
            self._fail_or_warn(
                DataLoss(
                    f"{len(lost)} queues of the stream are gone, in no route any more: bring their "
                    "broker or topic back, or set fail_on_data_loss=false to continue without "
                    "them. What they had from the stream's offset on was not read",
                    topic=first.topic,
                    broker=first.broker_name,
                    queue_id=first.queue_id,
                    offset=start[first],
                )
            )
        return False


def _ranges(start: Offsets, end: Offsets) -> list[Range]:
    """Return what lies between two offsets, without the queues that have nothing there."""
    return [(q, start[q], at) for q, at in sorted(end.items()) if start.get(q, at) < at]
