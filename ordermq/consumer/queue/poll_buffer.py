"""Poll buffer: hands messages out to the pollers of a lite pull consumer, and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

from ordermq import core
from ordermq.clock import Clock
from ordermq.consumer.queue.assigned_queue import BatchClaim
from ordermq.consumer.queue.polled_queue import PolledQueue, PollRoom
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError, StateError
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.threads import SIGNAL_CHECK_S, Lock, NativeEvent

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa

_log = logging.getLogger("ordermq.consumer")


class PolledBatch(MessageRun, core.PolledRun):
    """Messages of one queue, ascending in offset; a sequence of `MessageView`, empty if none came.

    Attributes:
        next_offset: what to commit once all of them are done. Not always the last offset plus
            one: what a tag expression leaves out behind it is covered too.
    """

    __slots__ = ()

    assigned: PolledQueue  # it and the claim: None in an empty batch
    claim: BatchClaim
    settle: SettleBatch | None  # ends the batch, with an error or None; None: it is not ordered

    def __enter__(self) -> Self:
        """Begin to handle the batch: `with batch:` says at its end whether it is done.

        It is done then, and its queue may go on. If an exception ends the block, that is handled as
        a listener's (docs/failures.md): logged, counted, and the batch is redelivered after the
        back-off, or `on_failure` acts; the loop around continues. What is no `Exception`, as
        KeyboardInterrupt or the cancellation of the task, is raised, and the batch redelivered.

        Raises: StateError: the consumer is not ordered: batches may be in several hands there.
        """
        if self and self.settle is None:
            raise StateError(
                "`with batch:` needs ordered=True: without it a batch that failed cannot be "
                "redelivered before later ones",
                topic=self.message_queue.topic,
                group=self.assigned.group,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.settle is not None:
            self.settle(self.claim, error)
        return isinstance(error, Exception)

    @property
    def message_queue(self) -> MessageQueue:
        """The one queue all of them come from.

        Raises: StateError: the batch is empty.
        """
        return self._held()[0].queue

    @property
    def fence_token(self) -> tuple[int, int]:
        """(lock epoch, first offset of the batch), for conditional writes of your own.

        Epochs of a queue grow from owner to owner (docs/internals/semantics.md#fencing): a store
        that remembers the greatest one seen can refuse a paused former owner.

        Raises: StateError: the consumer holds no queue locks, the broker did not store the epoch,
            or the batch is empty.
        """
        assigned, claim = self._held()
        return claim.lease.fence_epoch(assigned.queue), self.first_offset

    def is_revoked(self) -> bool:
        """Return True once the queue is to move away or was lost: finish early, then poll again.

        After a lost lease, or a seek, nothing of this batch counts any more.
        """
        assigned, claim = self._held()
        return assigned.is_revoked() or assigned.generation != claim.generation

    @property
    def counts(self) -> bool:
        """True while its queue was neither lost nor moved by a seek since it was polled."""
        assigned, claim = self._held()
        return assigned.generation == claim.generation

    def _held(self) -> tuple[PolledQueue, BatchClaim]:
        if not self:
            raise StateError("an empty batch is of no queue: nothing came before the time-out")
        return self.assigned, self.claim

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The messages as a table; no Python object per message.

        Args:
            columns: which, and in which order; None takes all of `ordermq.model.arrow.COLUMNS`:
                topic, broker, queue_id, offset, sharding_key, keys, tags, body, properties,
                born_timestamp, store_timestamp, message_id, reconsume_times.
        Raises: ConfigError: there is no such column, or no pyarrow (extra `arrow`).
            ProtocolError: a message's text is not UTF-8, or its body cannot be decompressed.
        """
        try:
            import pyarrow as pa

            from ordermq.model.arrow import COLUMNS, arrow_schema, checked_columns, record_batch
        except ModuleNotFoundError as error:
            raise _missing("pyarrow and numpy", error) from error
        wanted = COLUMNS if columns is None else checked_columns(columns)
        parts = [
            record_batch(batch, wanted, start=first, end=first + count)
            for batch, first, count in self.segments
        ]
        return pa.Table.from_batches(parts, schema=arrow_schema(wanted))

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """`to_arrow`, then pandas; texts and bodies are Python objects there."""
        table = self.to_arrow(columns)
        try:
            return table.to_pandas()
        except ModuleNotFoundError as error:
            raise _missing("pandas", error) from error

    def __repr__(self) -> str:
        if not self:
            return f"<{type(self).__name__}, empty>"
        offsets = f"{self.first_offset}..{self.next_offset - 1}"
        return f"<{type(self).__name__} {self.message_queue} {len(self)} messages, {offsets}>"


def _missing(what: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"{error}: columns need {what}; run pip install 'ordermq[arrow]'")


NOTHING = PolledBatch((), 0)
SettleBatch = Callable[[BatchClaim, BaseException | None], None]


class PollFailures(Protocol):
    """Treatment of batches that failed, under queue locks."""

    def failed(self, assigned: PolledQueue, claim: BatchClaim, error: BaseException | None) -> None:
        """Settle a batch whose poller has failed; any thread, no lock held.

        Args: error: of the poller; None: nobody knows, it left the batch.
        """


class PollWaiter:
    """A poller's wait for messages: a thread's, or an asyncio task's on a loop of its own."""

    def __init__(self) -> None:
        self._event = NativeEvent()
        self.is_set = False
        self._wakes: list[Callable[[], object]] = []

    def set(self) -> None:
        """Wake the poller; any thread, without waiting."""
        self.is_set = True
        self._event.set()
        for wake in self._wakes:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                wake()

    def wait(self, timeout_s: float | None) -> None:
        """Return once set, or earlier: the poller looks again."""
        most_s = SIGNAL_CHECK_S if timeout_s is None else min(timeout_s, SIGNAL_CHECK_S)
        self._event.wait(max(most_s, 0.0))

    def future(self) -> asyncio.Future[None]:
        """Return a future of the running loop that is done once this is set."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not made.done():
                made.set_result(None)

        self._wakes.append(partial(loop.call_soon_threadsafe, settle))
        if self.is_set:
            settle()
        return made


class PollBuffer:
    """Hands the messages of assigned queues out, batch by batch; any thread.

    A batch counts as done when its poller asks for the next one, or commits. A poller is a
    thread or, with `is_ordered`, an asyncio task.

    Its lock is taken before the mutex of a queue (docs/internals/architecture.md#locks).

    Args: is_ordered: under queue locks, one batch per queue at a time.
    Attributes:
        room: it has the queues; what is handed out makes room in it.
        lock: of all this, and of the room.
    """

    def __init__(self, clock: Clock, room: PollRoom, *, is_ordered: bool) -> None:
        self._clock = clock
        self.room = room
        self.is_ordered = is_ordered
        self.lock = Lock()
        self._ready: deque[PolledQueue] = deque()  # queues with messages, in turn
        self._out: dict[Hashable, PolledBatch] = {}
        self._line = core.PollLine(
            self._ready,
            self._out,
            is_ordered=is_ordered,
            settle=self.settle if is_ordered else None,
        )
        self._was_repaired = False
        self._waiting: set[PollWaiter] = set()
        self._reported: set[Hashable] = set()  # pollers that ended with a batch
        self._failures: PollFailures | None = None
        self._failing: list[PolledBatch] = []  # failed batches that are not settled yet
        self.is_stopped = False

    def fail_with(self, failures: PollFailures) -> None:
        """Have failed batches treated so; before the start."""
        self._failures = failures

    def count_for(self, statistics: ConsumerStatistics) -> None:
        """Count there what is handed out, and in order what is done; before the start."""
        statistics.gather_with(partial(self._add_counts, statistics))

    def _add_counts(self, statistics: ConsumerStatistics) -> None:
        polled, finished = self._line.take_counts()
        statistics.add("polled", polled)
        for assigned, batches, messages in finished:
            statistics.consumed(assigned.queue, messages, 0, batches, 0)

    # Polling

    def submit(self, assigned: PolledQueue) -> None:
        """Put a queue in the line, by whoever holds its dispatch flag."""
        with self.lock:
            # The repair after an exception may have put it there before this came.
            if not self._was_repaired or not self._has_turn(assigned):
                self._make_ready(assigned)

    def take(
        self, poller: Hashable, limit: int, kind: type[PolledBatch] = PolledBatch
    ) -> PolledBatch | None:
        """Hand out the next batch, of the queue whose turn it is; the poller's last one is done.

        Args: kind: class of the batch.
        Returns: None if nothing is buffered.
        """
        with self.lock:
            try:
                if self.is_stopped:
                    self._end(poller)
                    return None
                batch = self._line.take(kind, poller, limit, self._clock.now_ms())
                self._follow()
            except BaseException:
                self._repair()
                raise
            return cast(PolledBatch | None, batch)

    def out_of(self, poller: Hashable) -> PolledBatch | None:
        """Return the batch that a poller has."""
        return self._out.get(poller)

    def undo(self, poller: Hashable, before: PolledBatch | None) -> None:
        """Take back a batch that an exception kept from its poller, which had `before`.

        Messages of `before`, if that is ended by now, stay done.
        """
        with self.lock:
            if self._out.get(poller) is not before:
                self._out.pop(poller, None)
            self._repair()

    def finish(self, poller: Hashable) -> None:
        """End the poller's batch as done."""
        with self.lock:
            try:
                self._end(poller)
            except BaseException:
                self._repair()
                raise

    def wait(self) -> PollWaiter | None:
        """Return what is set when `take` is worth another try; None if it is now."""
        with self.lock:
            if self._ready or self.is_stopped:
                return None
            waiter = PollWaiter()
            self._waiting.add(waiter)
            return waiter

    def give_up(self, waiter: PollWaiter) -> None:
        """Forget a waiter that stopped waiting."""
        with self.lock:
            self._waiting.discard(waiter)

    def stop(self) -> None:
        """Hand nothing out any more; waiting pollers return."""
        with self.lock:
            self.is_stopped = True
            self._wake()  # who waits returns with nothing

    def give_back_of_thread(self, thread: int) -> None:
        """End the batches as not done that this thread has polled, for itself or its tasks."""
        with self.lock:
            for poller, out in list(self._out.items()):
                if out.thread == thread:
                    self._give_back(poller)

    def give_back(self, poller: Hashable, queue: MessageQueue | None = None) -> None:
        """End the poller's batch as not done; with a queue, only if it is of that queue."""
        with self.lock:
            out = self._out.get(poller)
            if out is None or queue not in (None, out.assigned.queue):
                return
            try:
                self._give_back(poller)
            except BaseException:
                self._repair()
                raise

    def settle(self, claim: BatchClaim, error: BaseException | None) -> None:
        """End a batch of any poller: done, or failed with an error; does nothing if it is over."""
        with self.lock:
            found = [poller for poller, out in self._out.items() if out.claim is claim]
            if found and error is None:
                try:
                    self._end(found[0])
                except BaseException:
                    self._repair()
                    raise
        if found and error is not None:
            if isinstance(error, Exception):
                self.fail(found[0], error)
            else:  # no failure: a signal, or the end of the task
                self.give_back(found[0])

    def fail(self, poller: Hashable, error: BaseException | None) -> None:
        """End the poller's batch as failed; see `PollFailures`."""
        with self.lock:
            out = self._out.pop(poller, None)
            self._reported.discard(poller)
            if out is None:
                return
            self._failing.append(out)
        assert self._failures is not None  # only under queue locks
        try:
            self._failures.failed(out.assigned, out.claim, error)
        except BaseException:
            with self.lock:
                self._failing.remove(out)
                self._repair()
            raise

    def settled(self, claim: BatchClaim) -> None:
        """Forget a failed batch that is settled; `submit_again` follows, unless the queue rests."""
        with self.lock:
            self._failing = [out for out in self._failing if out.claim is not claim]

    def submit_again(self, assigned: PolledQueue) -> None:
        """Put a queue in the line after the pause of a failed batch, if it is not there."""
        with self.lock:
            # Put there earlier by the repair after an exception, and perhaps handed out since.
            if not self._has_turn(assigned):
                self._make_ready(assigned)

    def poller_ended(self, poller: Hashable) -> None:
        """Report a poller that ended with a batch; under queue locks, redeliver the batch."""
        with self.lock:
            ends = self._check_end(poller)
        if ends:
            self._fail_ended(poller)

    def _fail_ended(self, poller: Hashable) -> None:
        if isinstance(poller, asyncio.Task) and poller.cancelled():
            self.give_back(poller)
        elif isinstance(poller, asyncio.Task):
            self.fail(poller, poller.exception())
        else:
            self.fail(poller, None)

    def is_out(self, batch: PolledBatch) -> bool:
        """Return True while a poller has this batch, and it counts."""
        with self.lock:
            return any(out.counts and out.claim is batch.claim for out in self._out.values())

    # Committing

    def find(self, queue: MessageQueue) -> PolledQueue | None:
        """Return the queue whose offset may be committed, None if it is not held."""
        with self.lock:
            found = [assigned for assigned in self._committable() if assigned.queue == queue]
            return found[0] if found else None

    def polled(self, poller: Hashable) -> dict[PolledQueue, int]:
        """Return the offsets a commit of everything polled stores, where they are new.

        In order, only the poller itself can tell whether its batch is done. Otherwise a commit
        counts everything as done that any of them has polled.
        """
        with self.lock:
            offsets = {
                queue: queue.done_offset if self.is_ordered else queue.position
                for queue in self._committable()
            }
            out = self._out.get(poller)
            if self.is_ordered and out is not None and out.counts:
                offsets[out.assigned] = out.next_offset
            return {
                queue: offset
                for queue, offset in offsets.items()
                if offset != queue.committed_offset
            }

    def finish_up_to(self, offsets: Mapping[PolledQueue, int]) -> None:
        """End the batches that committed offsets cover as done."""
        with self.lock:
            for poller, out in list(self._out.items()):
                if out.next_offset <= offsets.get(out.assigned, -1):
                    self._end(poller)

    # Under the lock.

    def _repair(self) -> None:
        """Restore what an exception of a signal handler has left half done."""
        self._was_repaired = True
        for assigned in list(self.room.queues):
            outs = [*self._out.values(), *self._failing]
            held = [out.claim for out in outs if out.assigned is assigned]
            if assigned.repair(held) and assigned not in self._ready:
                self._ready.append(assigned)
            assigned.notify_room()
        self._follow()
        self._wake()

    def _committable(self) -> list[PolledQueue]:
        # Under queue locks, a revoked queue is held until its batch is done and committed.
        return [
            queue
            for queue in self.room.queues
            if queue.lease is not None and (self.is_ordered or not queue.is_revoked())
        ]

    def _end(self, poller: Hashable) -> None:
        self._reported.discard(poller)
        self._line.end(poller, self._clock.now_ms())
        self._follow()

    def _follow(self) -> None:
        """Do what follows from steps of the line."""
        follows = self._line.follows
        while follows:
            assigned, flags = follows.pop(0)
            assigned.follow(flags)
        if self._waiting and self._ready:
            self._wake()
        if self.room.waiting:
            self.room.notify()

    def _give_back(self, poller: Hashable) -> None:
        out = self._out.pop(poller)
        # Out of order there is nothing to do: what is not done is not committed, and the offset
        # of the queue waits for it.
        if not self.is_ordered:
            return
        if out.assigned.end_batch(out.claim, 0, self._clock.now_ms()) and out.assigned.has_more():
            self._make_ready(out.assigned)

    def _has_turn(self, assigned: PolledQueue) -> bool:
        """Return whether a queue is in the line; in order also whether a batch of it is out."""
        outs = [*self._out.values(), *self._failing] if self.is_ordered else []
        return assigned in self._ready or any(out.assigned is assigned for out in outs)

    def _make_ready(self, assigned: PolledQueue) -> None:
        self._ready.append(assigned)
        self._wake()

    def _wake(self) -> None:
        # All of them: one that is just about to give up must not take the others' turn along.
        for waiter in self._waiting:
            waiter.set()
        self._waiting.clear()

    def _check(self) -> None:
        """Assert every invariant; for tests, while no other thread uses the buffer."""
        assert len(set(self._ready)) == len(self._ready)
        self.room._check()
        for queue in self.room.queues:
            buffered = queue.process_queue
            buffered._check()
            # The dispatch flag means one turn: in the line, or in a poller's hands in order.
            is_out = self.is_ordered and any(o.assigned is queue for o in self._out.values())
            assert buffered.is_dispatched <= (queue in self._ready or is_out)
            is_due = not queue.is_paused and not queue.is_revoked() and buffered.pending_count
            assert buffered.is_dispatched or not is_due

    # Pollers that ended.

    async def watch(self) -> None:
        """Find pollers that ended with a batch; a task's end is told at once, where it can be."""
        with self.lock:
            self._follow()  # what an exception has kept a poller from
            ended = [poller for poller in list(self._out) if self._check_end(poller)]
        for poller in ended:
            self._fail_ended(poller)

    def _check_end(self, poller: Hashable) -> bool:
        """Report a poller that ended; True: its batch is to be redelivered, without the lock."""
        out, name = self._out.get(poller), _end_of(poller)
        if out is None or not name:
            return False
        if self.is_ordered:
            self._report(name, out, "it is redelivered")
            return True
        # Out of order it is only reported: what it had may be in another thread's hands.
        if not out.counts:
            del self._out[poller]  # it counts no more, and nobody comes back with it
        elif poller not in self._reported:
            self._reported.add(poller)
            self._report(name, out, "no offset behind it is committed before commit() or seek()")
        return False

    def _report(self, name: str, out: PolledBatch, consequence: str) -> None:
        _log.warning(
            "%s: %s ended without polling again; nobody knows whether its last batch, offsets "
            "%d-%d, is done: %s",
            out.assigned.queue,
            name,
            out.claim.messages.first_offset,
            out.claim.messages.last_offset,
            consequence,
            extra=log_fields(out.assigned.queue, offset=out.claim.messages.first_offset),
        )


def _end_of(poller: Hashable) -> str:
    """Return the name of a poller that has ended; empty while it may come back."""
    if isinstance(poller, asyncio.Task):
        return f"task {poller.get_name()}" if poller.done() else ""
    thread = cast(threading.Thread, poller)
    return "" if thread.is_alive() else f"thread {thread.name}"
