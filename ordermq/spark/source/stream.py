"""The streaming source, as Spark calls it.

Spark makes a reader in one process a query run and calls its driver-side methods there; others
are made only to be pickled, and read on executors. So a reader keeps its options, and opens
nothing before the first call that needs it.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ordermq.clock import Clock
from ordermq.errors import ConfigError, OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import Boundary, Edge, SourceOptions, queue_text
from ordermq.spark.session import Link, new_lease
from ordermq.spark.source.driver_lease import DriverLease
from ordermq.spark.source.offsets import (
    Offsets,
    StreamOffset,
    Tails,
    advance,
    heads_of,
    offsets_at,
    went_back,
)
from ordermq.spark.source.queue_reader import range_of, read_range


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, each queue in the order of its offsets."""

    def __init__(self, options: SourceOptions) -> None:
        if options.end != Boundary(Edge.LATEST):
            raise ConfigError("options ending_offsets and ending_timestamp are for batch reads")
        self.options = options
        self._opened: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_opened": None}

    def _driver(self) -> StreamDriver:
        if self._opened is None:
            end_in_order()
            self._opened = StreamDriver(self.options)
        return self._opened

    # On the driver. The names are Spark's.

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        return self._driver().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`max_rows` of a micro-batch."""
        most = self.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what there is now."""
        self._driver().freeze()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next batch; the very `start` if there is nothing to read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._driver().latest(StreamOffset.of(start), most)
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, int]:
        """Where the queues end, for the query's progress."""
        return self._driver().report().to_json()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One for each queue that has messages in the batch."""
        driver = self._driver()
        ranges = driver.begin(StreamOffset.of(start), StreamOffset.of(end))
        return [range_of(*one, driver.lease_id) for one in ranges]

    def commit(self, end: dict[str, int]) -> None:
        """A batch is finished; the group's offset follows, for tools that show lag."""
        self._driver().commit(StreamOffset.of(end))

    def stop(self) -> None:
        """The run ends."""
        if self._opened is not None:
            self._opened.close()

    # On executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a queue's range, ascending in offset."""
        return read_range(self.options, partition, is_ordered=self.options.is_ordered)


_log = logging.getLogger("ordermq.spark")
_COMMIT_WAIT_S = 10.0


class StreamDriver:
    """A run of a streaming query, on the driver."""

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._lease: DriverLease | None = None
        if options.is_ordered:
            self._lease = DriverLease(options, new_lease(), clock)
            self._link = self._lease.link
        else:
            self._link = Link(options.name_servers, options.remoting, clock=clock)
        self._tails = Tails(self._link, options.topics)
        self._targets: Offsets | None = None  # of Trigger.AvailableNow
        self._initial: StreamOffset | None = None
        self._in_flight: Offsets | None = None  # the end of a batch handed out and not finished
        self._finished: Offsets = {}
        self._warned: set[MessageQueue] = set()
        self._is_closed = False

    @property
    def lease_id(self) -> int | None:
        """The id of this run's lease; None when no locks are held."""
        return None if self._lease is None else self._lease.id

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint begins; Spark asks twice."""
        if self._initial is None:
            queues = self._link.call(self._link.queues(self._options.topics))
            self._hold(queues, None)  # only a holder's reading of the group's offset stays true
            start = self._options.stream_start()
            found = self._link.call(offsets_at(self._link, self._options, start, queues))
            self._initial = StreamOffset(found, self.lease_id)
        return self._initial

    def freeze(self) -> None:
        """What there is now is all there will be: Trigger.AvailableNow."""
        self._targets = self._tails.fresh()

    def latest(self, start: StreamOffset, limit: int | None) -> StreamOffset | None:
        """The end of the next batch; None if there is nothing for one.

        All before `start` is finished: Spark asks for the next batch when the last one's sink
        has committed. So `start` is what the group has consumed.
        """
        self._hold(start.queues, start.lease)
        self._finish(start.queues)
        tails = self._tails.latest() if self._targets is None else self._targets
        self._refuse_going_back(start.queues, tails)
        # A queue enters where it begins, with no messages yet: the start of each batch must be
        # in the checkpoint, so that a batch that runs again reads the same.
        entered = self._begin_new(sorted(set(tails).difference(start.queues)))
        end = advance(start.queues, tails, limit) | entered
        return None if end == start.queues else StreamOffset(end, self.lease_id)

    def report(self) -> StreamOffset:
        """Where the queues end, for Spark's progress."""
        return StreamOffset(self._tails.latest())

    def begin(self, start: StreamOffset, end: StreamOffset) -> list[tuple[MessageQueue, int, int]]:
        """The ranges of a batch; from now on until `latest(start=end)` it is in flight."""
        self._hold(end.queues, end.lease)
        for queue, at in start.queues.items():
            if end.queues.get(queue, -1) < at:
                raise StateError(
                    f"the checkpoint has {queue_text(queue)} at {at}, then at "
                    f"{end.queues.get(queue)}: it was changed by hand, or is another query's"
                )
        self._in_flight = end.queues
        return [
            (queue, start.queues[queue], at)
            for queue, at in sorted(end.queues.items())
            if start.queues.get(queue, at) < at
        ]

    def commit(self, done: StreamOffset) -> None:
        """Spark has finished a batch."""
        self._finish(done.queues)

    def close(self) -> None:
        """End the run; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._lease is not None:
                self._close_ordered(self._lease)
            else:
                self._link.call(self._commit(self._finished), _COMMIT_WAIT_S)
        finally:
            self._link.close()

    def _close_ordered(self, lease: DriverLease) -> None:
        is_in_flight = self._in_flight is not None
        if is_in_flight:
            _log.warning(
                "stopped in the middle of a batch: release_in_flight=%s",
                self._options.release_in_flight.value,
            )
        self._link.call(lease.commit(self._finished))
        self._link.call(lease.release(is_in_flight=is_in_flight))

    def _hold(self, queues: Any, former: int | None) -> None:
        if self._lease is not None:
            self._lease.hold(queues, former)

    def _finish(self, done: Offsets) -> None:
        if self._in_flight is not None and done == self._in_flight:
            self._in_flight = None
        if done != self._finished:
            self._finished = done
            if self._options.group:
                self._link.submit(self._commit(done))

    async def _commit(self, done: Offsets) -> None:
        if self._lease is not None:
            await self._lease.commit(done)
            return
        if not self._options.group:
            return
        client = self._link.client
        await self._link.known(queue.topic for queue in done)
        for queue, offset in sorted(done.items()):
            try:
                address = client.routes.master_of(queue.broker_name)
                await client.api.update_offset(address, self._options.group, queue, offset)
            except OrderMQError as error:
                _log.warning("%s: commit of offset %d failed: %s", queue, offset, error)

    def _begin_new(self, queues: list[MessageQueue]) -> Offsets:
        if not queues or (self._lease is not None and not self._lease.try_hold(queues)):
            return {}
        _log.info("new queues: %s", ", ".join(map(queue_text, queues)))
        return self._link.call(heads_of(self._link, queues))

    def _refuse_going_back(self, start: Offsets, tails: Offsets) -> None:
        error = went_back(start, tails)
        if error is None:
            return
        if self._options.fail_on_data_loss:
            raise error
        if not self._warned:
            self._warned = set(start)
            _log.warning("%s", error)


def end_in_order() -> None:
    """Let `stop()` run when Spark ends this process: it sends SIGTERM, and does not wait.

    Once: a second one must not cut the release of the locks short.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)
