"""The driver half of a streaming query: locks, offsets and commits of one run.

Nothing here needs pyspark: only the offsets of a batch pass between Spark and this class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.errors import OrderMQError, StateError
from ordermq.forking import ProcessBound
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions, queue_text
from ordermq.spark.session import learn_routes, new_run_id, queues_of
from ordermq.spark.source.driver_locks import DriverLocks
from ordermq.spark.source.offsets import (
    LatestOffsets,
    Offsets,
    StreamOffset,
    advance,
    earliest_offsets,
    find_truncation,
    resolve_boundary,
)
from ordermq.spark.source.packing import Range, task_count

_log = logging.getLogger("ordermq.spark")
# The checkpoint is the truth, so the commit of an unordered run at its end may be given up.
_COMMIT_WAIT_S = 10.0


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
        self._latest = LatestOffsets(self._session, options.topics)
        self._frozen_end: Offsets | None = None  # of Trigger.AvailableNow
        self._initial: StreamOffset | None = None
        self._in_flight: Offsets | None = None  # the end of a batch handed out, not yet finished
        self._finished: Offsets = {}
        self._has_warned = False
        self._is_closed = False

    @property
    def run_id(self) -> int | None:
        """The id of this run, under which it holds its locks; None when it holds none."""
        return None if self._locks is None else self._locks.run_id

    def initial(self) -> StreamOffset:
        """Return the offset at which a query without a checkpoint begins."""
        # Kept, because Spark asks twice and must get the same answer.
        if self._initial is None:
            queues = self._session.call(queues_of(self._session, self._options.topics))
            # Locked first: until then another member may move the group's offset on.
            self._hold(queues, None)
            boundary = self._options.stream_start()
            start = self._session.call(
                resolve_boundary(self._session, self._options, boundary, queues)
            )
            self._initial = StreamOffset(start, self.run_id)
        return self._initial

    def freeze_end(self) -> None:
        """Let the stream end at the present ends of its queues: Trigger.AvailableNow."""
        self._frozen_end = self._latest.get_now()

    def next_end(self, start: StreamOffset, limit: int | None) -> StreamOffset | None:
        """Return the end of the next batch; None if there is nothing to read."""
        self._hold(start.queues, start.run_id)
        # Everything before `start` is finished: Spark asks for the next batch after the sink has
        # committed the last one. Spark's own `commit` comes only when a further batch is planned,
        # so the last batch of a run would never be committed by it.
        self._finish(start.queues)
        latest = self._latest.get() if self._frozen_end is None else self._frozen_end
        self._check_not_truncated(start.queues, latest)
        # A new queue enters with its beginning and no messages. The start of each batch must be
        # in the checkpoint, so that a batch which runs again reads the same messages.
        added = self._begin_new(sorted(set(latest).difference(start.queues)))
        end = advance(start.queues, latest, limit) | added
        if end == start.queues:
            return None
        ranges = _ranges(start.queues, end)
        tasks = task_count(ranges, self._options.tasks)
        # In the checkpoint, so that a batch which runs again has the same tasks, also on another
        # machine: rows without a queue are stamped with the number of their task.
        return StreamOffset(end, self.run_id, tasks if tasks < len(ranges) else None)

    def queue_ends(self) -> StreamOffset:
        """Return the ends of the queues, for Spark's progress."""
        return StreamOffset(self._latest.get())

    def begin_batch(self, start: StreamOffset, end: StreamOffset) -> list[Range]:
        """Return the ranges of a batch, which is in flight until `next_end(start=end)`."""
        self._hold(end.queues, end.run_id)
        for queue, at in start.queues.items():
            if end.queues.get(queue, -1) < at:
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
        self._session.call(locks.commit(self._finished))
        self._session.call(locks.release(is_in_flight=is_in_flight))

    def _hold(self, queues: Iterable[MessageQueue], previous_run_id: int | None) -> None:
        if self._locks is not None:
            self._locks.hold(list(queues), previous_run_id)

    def _finish(self, end: Offsets) -> None:
        if self._in_flight is not None and end == self._in_flight:
            self._in_flight = None
        if end != self._finished:
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
        if self._options.fail_on_data_loss:
            raise error
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s", error)


def _ranges(start: Offsets, end: Offsets) -> list[Range]:
    """Return what lies between two offsets, without the queues that have nothing there."""
    return [(q, start[q], at) for q, at in sorted(end.items()) if start.get(q, at) < at]
