"""What a lite pull consumer holds: its queues, what was pulled of them, what was handed out.

Pure: no I/O, no clock. Fetchers put pull answers in, pollers take batches out, and the offsets
that may be committed follow from both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, InvalidStateError

from ordermq.config.pull import LitePullConfig
from ordermq.consumer.polled_batch import PolledBatch
from ordermq.errors import StateError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue


class PulledQueue:
    """One held queue; its `PollBuffer` guards it.

    Args:
        position: where to begin.
        committed: what the broker has stored for the group, as far as we know.
    """

    def __init__(self, queue: MessageQueue, position: int, committed: int | None) -> None:
        self.queue = queue
        self.position = position  # of the next message to hand out
        self.pull_offset = position  # of the next message to ask for
        self.committed = committed
        self.generation = 0  # grows with each seek: what was pulled before it is void
        self.is_held = True
        self.is_paused = False
        # (batch, first row not handed out, where the queue goes on after the batch)
        self.buffered: deque[tuple[MessageBatch, int, int]] = deque()
        self.count = 0
        self.size_bytes = 0
        # Where batches begin whose pollers have not come back, ascending.
        self.handed_out: list[int] = []

    @property
    def done(self) -> int:
        """Every message before this offset was handed out to a poller that came back."""
        return self.handed_out[0] if self.handed_out else self.position


class PollBuffer:
    """All held queues, and the pollers' end of them; any thread.

    Args:
        on_room: called with a queue that waited for room and has it; under the lock, so that it
            is over before the queue can be dropped, and must not call back.
    """

    def __init__(self, config: LitePullConfig, on_room: Callable[[PulledQueue], None]) -> None:
        self._config = config
        self._on_room = on_room
        self._lock = threading.Lock()
        self._queues: dict[MessageQueue, PulledQueue] = {}
        self._ready: deque[PulledQueue] = deque()  # those with messages, in turn
        self._given: dict[Hashable, tuple[PulledQueue, int, int]] = {}
        self._waiting: set[Future[None]] = set()
        self._without_room: set[PulledQueue] = set()
        self._count = 0
        self.is_closed = False

    # Holding queues.

    def hold(self, queue: MessageQueue, position: int, committed: int | None) -> PulledQueue:
        """Begin with a queue that is ours now."""
        with self._lock:
            assert queue not in self._queues
            pulled = self._queues[queue] = PulledQueue(queue, position, committed)
            return pulled

    def drop(self, pulled: PulledQueue) -> int:
        """The queue is no longer ours: what is buffered of it is never handed out.

        Returns: the offset that everything before it is done.
        """
        with self._lock:
            done = pulled.done
            pulled.is_held = False
            if self._queues.get(pulled.queue) is pulled:
                del self._queues[pulled.queue]
            self._clear(pulled)
            self._without_room.discard(pulled)
            self._tell_who_has_room()
            return done

    def held(self) -> list[PulledQueue]:
        """The queues that are ours, sorted."""
        with self._lock:
            return [self._queues[queue] for queue in sorted(self._queues)]

    def find(self, queue: MessageQueue) -> PulledQueue:
        """A queue that is ours.

        Raises: StateError: it is not.
        """
        with self._lock:
            return self._find(queue)

    # The fetchers' end.

    def may_pull(self, pulled: PulledQueue) -> bool:
        """Whether the queue is not paused and has room; if not, `on_room` tells when it does.

        A threshold is passed by the answer to one pull of each queue at most.
        """
        with self._lock:
            if self._has_room(pulled):
                return True
            self._without_room.add(pulled)
            return False

    def _has_room(self, pulled: PulledQueue) -> bool:
        config = self._config
        return (
            not pulled.is_paused
            and pulled.count <= config.pull_threshold_for_queue
            and pulled.size_bytes <= config.pull_threshold_size_for_queue_mib << 20
            and self._count <= config.pull_threshold_for_all
        )

    def accept(
        self, pulled: PulledQueue, generation: int, batch: MessageBatch, next_offset: int
    ) -> bool:
        """Take in the answer to a pull.

        Args:
            generation: of the queue when the pull was sent.
            batch: may be empty: everything up to `next_offset` was filtered out, or is gone.
        Returns: False if the queue was lost, or sought, meanwhile; nothing happened then.
        """
        with self._lock:
            if not pulled.is_held or pulled.generation != generation:
                return False
            pulled.pull_offset = next_offset
            if len(batch):
                self._append(pulled, batch, next_offset)
            elif pulled.buffered:
                # Moves on with the last message before the gap, so that its commit covers it.
                last, first, _ = pulled.buffered[-1]
                pulled.buffered[-1] = (last, first, next_offset)
            else:
                pulled.position = next_offset
            return True

    def _append(self, pulled: PulledQueue, batch: MessageBatch, next_offset: int) -> None:
        if not pulled.buffered and not pulled.is_paused:
            self._ready.append(pulled)
        pulled.buffered.append((batch, 0, next_offset))
        pulled.count += len(batch)
        pulled.size_bytes += len(batch.body)
        self._count += len(batch)
        if not pulled.is_paused:
            self._wake()

    # The pollers' end.

    def take(self, poller: Hashable, most: int) -> PolledBatch | None:
        """The next batch, of the queue whose turn it is; the poller's one before is done.

        Returns: None if there is nothing to hand out.
        """
        with self._lock:
            self._finish(poller)
            if self.is_closed or not self._ready:
                return None
            pulled = self._ready.popleft()
            begin = pulled.position
            batch = self._cut(pulled, most)
            pulled.handed_out.append(begin)
            self._given[poller] = (pulled, pulled.generation, begin)
            if pulled.buffered:
                self._ready.append(pulled)  # behind the others
            self._tell_who_has_room()
            return batch

    def finish(self, poller: Hashable) -> None:
        """The poller is through with the batch it was handed last."""
        with self._lock:
            self._finish(poller)

    def wait(self) -> Future[None] | None:
        """Done when `take` is worth another try; None if it is now."""
        with self._lock:
            if self._ready or self.is_closed:
                return None
            waiter: Future[None] = Future()
            self._waiting.add(waiter)
            return waiter

    def give_up(self, waiter: Future[None]) -> None:
        """Nobody waits for this any more."""
        with self._lock:
            self._waiting.discard(waiter)

    def close(self) -> None:
        """Hand nothing out any more; who waits stops waiting."""
        with self._lock:
            self.is_closed = True
            self._wake()

    def unfinished(self) -> list[tuple[Hashable, MessageQueue]]:
        """Pollers that hold a batch, with its queue."""
        with self._lock:
            return [
                (poller, pulled.queue)
                for poller, (pulled, generation, _) in self._given.items()
                if pulled.is_held and pulled.generation == generation
            ]

    # Offsets.

    def seek(self, queue: MessageQueue, offset: int) -> PulledQueue:
        """Go on from `offset`, either way; what is buffered or handed out is forgotten.

        Raises: StateError: the queue is not ours.
        """
        with self._lock:
            pulled = self._find(queue)
            self._clear(pulled)
            pulled.generation += 1
            pulled.position = pulled.pull_offset = offset
            self._tell_who_has_room()
            return pulled

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues; what is buffered stays.

        Raises: StateError: one is not ours; nothing happened.
        """
        with self._lock:
            for pulled in [self._find(queue) for queue in queues]:
                pulled.is_paused = True
                if pulled in self._ready:
                    self._ready.remove(pulled)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues.

        Raises: StateError: one is not ours; nothing happened.
        """
        with self._lock:
            for pulled in [self._find(queue) for queue in queues]:
                if pulled.is_paused and pulled.buffered:
                    self._ready.append(pulled)
                    self._wake()
                pulled.is_paused = False
            self._tell_who_has_room()

    def polled(self) -> list[tuple[PulledQueue, int]]:
        """What a commit of everything polled is about: queues and offsets not committed yet.

        Whoever calls this vouches for the batches handed out: they count as done.
        """
        with self._lock:
            for pulled in self._queues.values():
                pulled.handed_out.clear()
            self._given.clear()
            return [
                (pulled, pulled.position)
                for pulled in self._queues.values()
                if pulled.position != pulled.committed
            ]

    def done(self) -> list[tuple[PulledQueue, int]]:
        """Queues and offsets that are done and not committed yet."""
        with self._lock:
            return [
                (pulled, pulled.done)
                for pulled in self._queues.values()
                if pulled.done != pulled.committed
            ]

    def _find(self, queue: MessageQueue) -> PulledQueue:
        pulled = self._queues.get(queue)
        if pulled is None:
            raise StateError(
                "this queue is not ours now; see assignment()",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
            )
        return pulled

    def _finish(self, poller: Hashable) -> None:
        given = self._given.pop(poller, None)
        if given is None:
            return
        pulled, generation, begin = given
        if pulled.generation == generation and begin in pulled.handed_out:
            pulled.handed_out.remove(begin)

    def _cut(self, pulled: PulledQueue, most: int) -> PolledBatch:
        segments: list[tuple[MessageBatch, int, int]] = []
        held = 0
        while pulled.buffered and held < most:
            batch, first, next_offset = pulled.buffered.popleft()
            count = min(len(batch) - first, most - held)
            segments.append((batch, first, count))
            held += count
            if first + count < len(batch):
                pulled.buffered.appendleft((batch, first + count, next_offset))
                pulled.position = batch.offset_at(first + count)
            else:
                pulled.size_bytes -= len(batch.body)
                pulled.position = next_offset
        pulled.count -= held
        self._count -= held
        return PolledBatch(pulled.queue, segments, pulled.position)

    def _clear(self, pulled: PulledQueue) -> None:
        self._count -= pulled.count
        pulled.buffered.clear()
        pulled.handed_out.clear()
        pulled.count = pulled.size_bytes = 0
        if pulled in self._ready:
            self._ready.remove(pulled)

    def _tell_who_has_room(self) -> None:
        roomy = [pulled for pulled in self._without_room if self._has_room(pulled)]
        self._without_room.difference_update(roomy)
        for pulled in roomy:
            self._on_room(pulled)

    def _wake(self) -> None:
        # All of them: one that was just about to give up must not take the others' turn along.
        for waiter in self._waiting:
            try:
                waiter.set_result(None)
            except InvalidStateError:
                continue  # cancelled by its asyncio side
        self._waiting.clear()

    def _check(self) -> None:
        """Every invariant; for tests."""
        assert self._count == sum(pulled.count for pulled in self._queues.values())
        ready = {pulled.queue for pulled in self._ready}
        assert len(ready) == len(self._ready)
        for queue, pulled in self._queues.items():
            assert pulled.is_held
            assert pulled.queue == queue
            assert pulled.count == sum(len(batch) - first for batch, first, _ in pulled.buffered)
            assert pulled.size_bytes == sum(len(batch.body) for batch, _, _ in pulled.buffered)
            assert (queue in ready) == (bool(pulled.buffered) and not pulled.is_paused)
            assert pulled.handed_out == sorted(pulled.handed_out)
            if pulled.buffered:
                assert pulled.pull_offset == pulled.buffered[-1][2]
            else:
                assert pulled.pull_offset == pulled.position
        assert ready <= set(self._queues)
        assert not any(self._has_room(pulled) for pulled in self._without_room)
