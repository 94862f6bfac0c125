"""KeyOrderedQueue: an assigned queue that is consumed by sharding key
(docs/internals/semantics.md#key-lanes).

Each key has a lane in the native lane map: its messages run one at a time, in order, in parallel
to those of other keys. The process queue only counts what is unfinished, for flow control; the
lane map says which messages may run and up to where everything is done (the watermark). Both
change under `AssignedQueue._lock`, and the lock order stays the same: that lock, then their own
mutexes.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import cast

from ordermq import core
from ordermq.config import ConsumeConfig
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Lease,
    NotClaimed,
    QueueCallbacks,
    QueueState,
    RunningCall,
)
from ordermq.core import LaneMap
from ordermq.core.status import NO_KEY
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue

# The lane map stores 64-bit tokens, no Python objects: batch number << 32 | row.
_ROW_BITS = 32
_FIRST_NUMBER = 1 << 31  # of batches that `accept` puts; the pull engine's are below


class KeyOrderedQueue(AssignedQueue):
    """Hands out messages of different keys at once, and those of one key one at a time.

    A claim is one listener call with messages of as many keys. The dispatch flag means something
    narrower than in the base class: a request waits in the pool. The worker that serves it clears
    the flag at its start, so that others can be submitted meanwhile.
    """

    lanes: core.contract.LaneMap

    def __init__(
        self,
        queue: MessageQueue,
        group: str,
        lease: Lease,
        start_offset: int,
        config: ConsumeConfig,
        callbacks: QueueCallbacks,
    ) -> None:
        super().__init__(queue, group, lease, start_offset, callbacks)
        self.lanes = LaneMap(
            str(queue),
            max_in_flight=config.max_in_flight_per_queue,
            max_ahead=config.max_ahead_per_queue,
            keyless=config.keyless.value,
        )
        self.lanes.reset(start_offset)
        self._batches: dict[int, MessageBatch] = {}  # by number; not all done
        self._next_number = _FIRST_NUMBER
        # Two reasons to hold a lane; it opens when neither is left.
        self._suspended: set[bytes] = set()  # keys that failed and wait for their next attempt
        self._parked: set[bytes] = set()  # keys given up until `unpark`
        # Failed messages without a key. The lane map parks by key and these have none, so until
        # their pause is over they count as in flight, which holds their common lane as well.
        self._held: set[int] = set()
        self._calls: dict[int, RunningCall] = {}  # by first offset

    # Worker: claim one call, settle it.

    def begin_batch(self, limit: int, now_ms: int) -> BatchClaim | NotClaimed:
        """Claim messages for one listener call, each of another key.

        Args:
            limit: maximum number of messages, >= 1. A message that failed before comes alone.
        """
        with self._lock:
            lease = self._lease
            if self._state is not QueueState.ACTIVE:
                return NotClaimed.REVOKED
            if lease is None:
                return NotClaimed.LEASE_LOST
            if self._paused:
                return NotClaimed.PAUSED
            if lease.is_valid(now_ms):
                tokens = self._take(limit)
                if not tokens:
                    return NotClaimed.EMPTY
                self._running += 1
                self.last_claim_ms = now_ms
                run = MessageRun(list(self._segments(tokens)))
                self._calls[run.first_offset] = RunningCall(
                    self, run, now_ms, threading.get_ident()
                )
                return BatchClaim(run, lease, self._generation)
            self._drop_lease()
        self._on_lease_lost(self, "the lease ended before a batch could start")
        return NotClaimed.LEASE_LOST

    def running_calls(self) -> list[RunningCall]:
        with self._lock:
            # No lane runs beside a message that is consumed directly.
            return list(self._calls.values()) or super().running_calls()

    def request_another(self) -> bool:
        """Set the dispatch flag if another call may run now; True: the caller submits the queue."""
        with self._lock:
            return self._may_begin() and self.process_queue.begin_dispatch()

    def set_auto_commit(self, is_on: bool) -> None:
        if not is_on:
            raise ConfigError(
                "context.auto_commit=False is not for order_by_key=True: a COMMIT of one message "
                "would also commit those of other keys that are not finished",
                topic=self.queue.topic,
            )

    def end_batch(self, claim: BatchClaim, done: int, now_ms: int, *, held: int = 0) -> bool:
        """Settle a call: the first `done` of its messages are finished.

        The lanes of the others stand still until `release`, and nothing else does.

        Args:
            held: has no effect: manual commit is refused together with `order_by_key`.
        Returns: False if the lease it started under is over. The results are discarded, and the
            queue restarts from the committed offset (docs/internals/semantics.md#fencing).
        """
        offsets = claim.messages.offsets()
        is_lost = False
        with self._lock:
            counts = claim.generation == self._generation and self._lease is not None
            if counts and not self._is_valid(now_ms):
                self._drop_lease()
                counts, is_lost = False, True
            if counts:
                self._finish(offsets[:done])
                self._suspend(claim, offsets[done:], done)
            else:
                # The lane map was reset while this call ran. It remembers the call as an old
                # flight and starts no message of its keys before the call is reported as ended.
                for offset in offsets:
                    self.lanes.failed(offset)
            self._calls.pop(offsets[0], None)
            is_idle = not self._calls
            drained = self._leave_batch()
            room = self._has_room()
        self._notify(is_lost, drained, room)
        if is_idle:
            self._on_idle()
        return counts

    def release(self, claim: BatchClaim, first: int) -> bool:
        """Make the messages of a settled claim pending again, from position `first` on.

        Returns: True if the caller must submit the queue.
        """
        with self._lock:
            for place, offset in enumerate(claim.messages.offsets()[first:], first):
                key = _key_of(claim.messages, place)
                if key is not None:
                    self._suspended.discard(key)
                    self._open_lane(key)
                # Only in its own generation: a restart has reset the lane map, and the
                # same offset may be in flight again.
                elif claim.generation == self._generation and offset in self._held:
                    self._held.remove(offset)
                    self.lanes.failed(offset)
            return self._begins()

    def request_next(self) -> bool:
        """Set the dispatch flag for a worker that leaves; True: it must submit the queue."""
        with self._lock:
            return self._begins()

    def abandon_batch(self, reason: str) -> None:
        """Give the lease up after an internal error; the caller has settled its claim."""
        self.lose_lease(reason)

    # Parked keys; any thread.

    def park(self, claim: BatchClaim, place: int) -> bytes | None:
        """Hold the lane of a claimed message until `unpark`; None if it has no key."""
        key = _key_of(claim.messages, place)
        if key is not None:
            with self._lock:
                self._parked.add(key)
                self.lanes.park(key)
        return key

    def unpark(self, key: bytes) -> bool | None:
        """Open a parked lane; None if it was not parked.

        Returns: True if the caller must submit the queue.
        """
        with self._lock:
            if key not in self._parked:
                return None
            self._parked.remove(key)
            self._open_lane(key)
            return self._begins()

    def take_parked(self, key: bytes, most: int, now_ms: int) -> BatchClaim | None:
        """Claim messages of a parked key to move them away; settle it as any other claim."""
        with self._lock:
            if not self._may_work(now_ms):
                return None
            _, tokens = self.lanes.divert_columns(key, most)
            if not tokens:
                return None
            assert self._lease is not None
            self._running += 1
            return BatchClaim(
                MessageRun(list(self._segments(tokens))), self._lease, self._generation
            )

    def begin_replay(self, now_ms: int) -> BatchClaim | None:
        """Claim the queue while its parked messages are consumed from the parking topic.

        The claim is empty: those messages are in another queue. It makes a revocation wait;
        `end_alone` ends it.
        """
        with self._lock:
            if not self._may_work(now_ms):
                return None
            assert self._lease is not None
            self._running += 1
            return BatchClaim(MessageRun([]), self._lease, self._generation)

    def restore_parked(self, generation: int, keys: set[bytes]) -> None:
        """Park exactly these keys, before the first pull of a generation."""
        with self._lock:
            if generation != self._generation:
                return
            gone, self._parked = self._parked - keys, set(keys)
            for key in gone:
                self._open_lane(key)
            for key in keys:
                self.lanes.park(key)

    def parked_keys(self) -> list[bytes]:
        """Return the parked keys, sorted."""
        with self._lock:
            return sorted(self._parked)

    # Under the lock.

    def _take(self, size: int) -> list[int]:
        taken, tokens = self.lanes.take_columns(size)
        # Attempts are counted per message, so one that failed before gets a call of its own: in a
        # mixed call its next failure could not be attributed to one of them.
        if len(taken) > 1 and self.attempts:
            failed_before = [offset in self.attempts for offset in taken]
            if any(failed_before):
                kept = [0] if failed_before[0] else _where(failed_before, False)
                for place in set(range(len(taken))).difference(kept):
                    self.lanes.failed(taken[place])
                return [tokens[place] for place in kept]
        return list(tokens)

    def _segments(self, tokens: Sequence[int]) -> Iterator[tuple[MessageBatch, int, int]]:
        """Cut tokens into runs of neighbouring messages: (batch, first row, number of rows)."""
        begin = 0
        for end in range(1, len(tokens) + 1):
            if end < len(tokens) and tokens[end] == tokens[end - 1] + 1:
                continue
            token = tokens[begin]
            batch = self._batch_of(token >> _ROW_BITS)
            yield batch, token & ((1 << _ROW_BITS) - 1), end - begin
            begin = end

    def _batch_of(self, number: int) -> MessageBatch:
        batch = self._batches.get(number)
        if batch is None:
            assert self._permit is not None
            batch = cast(MessageBatch, self._permit.lane_batch(number))
            self._batches[number] = batch
        return batch

    def _finish(self, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        self.lanes.done_columns(array("q", offsets))
        self.process_queue.remove(offsets)
        if self._failed_ms:
            for offset in offsets:
                self.attempts.pop(offset, None)
                self.outages.pop(offset, None)
                self._failed_ms.pop(offset, None)
        # The smallest unfinished offset: messages done above it are committed later.
        watermark = self.lanes.watermark
        self._done_offset = max(self._done_offset, self._done_after(watermark))
        # Drop the bytes of batches that lie below the watermark; a slow key keeps its batch alive.
        while self._batches:
            number = next(iter(self._batches))
            if self._batches[number].last_offset >= watermark:
                break
            del self._batches[number]

    def _suspend(self, claim: BatchClaim, offsets: Sequence[int], first: int) -> None:
        for place, offset in enumerate(offsets, first):
            key = _key_of(claim.messages, place)
            if key is None:
                self._held.add(offset)
            else:
                self._suspended.add(key)
                self.lanes.park(key)
                self.lanes.failed(offset)

    def _open_lane(self, key: bytes) -> None:
        if key not in self._suspended and key not in self._parked:
            self.lanes.unpark(key)

    def _may_work(self, now_ms: int) -> bool:
        return self._state is QueueState.ACTIVE and not self._paused and self._is_valid(now_ms)

    def _may_begin(self) -> bool:
        lanes = self.lanes
        return lanes.ready_count > 0 and lanes.in_flight_count < lanes.max_in_flight

    def _begins(self) -> bool:
        is_on = self._state is QueueState.ACTIVE and not self._paused
        return is_on and self.process_queue.begin_dispatch()

    def _put(self, batch: MessageBatch) -> bool:
        number, self._next_number = self._next_number, self._next_number + 1
        # Keys are read as positions within the pull body: no message object is made for them.
        positions, sizes = batch.property_columns(props.SHARDING_KEY)
        first = number << _ROW_BITS
        # The batch keeps its bytes alive as long as a token of the lane map may lead to them.
        self._batches[number] = batch
        self.lanes.add_columns(
            batch.offsets,
            array("Q", range(first, first + len(batch))),
            batch.body,
            positions,
            array("I", [size or NO_KEY for size in sizes]),
        )
        return super()._put(batch)

    def _drop_lease(self) -> None:
        super()._drop_lease()
        self._forget(self._done_offset)

    def _restart(self, offset: int) -> None:
        super()._restart(offset)
        self._forget(offset)

    def _forget(self, next_offset: int) -> None:
        for offset in self._held:
            self.lanes.failed(offset)  # its listener has returned: no old flight to wait for
        self._held.clear()
        self._batches.clear()
        self.lanes.reset(next_offset)


def _where(flags: Sequence[bool], wanted: bool) -> list[int]:
    return [place for place, flag in enumerate(flags) if flag is wanted]


def _key_of(run: MessageRun, place: int) -> bytes | None:
    """Return a claimed message's sharding key, as the lane map knows it; None if it has none."""
    for batch, first, count in run.segments:
        if place < count:
            positions, sizes = batch.property_columns(props.SHARDING_KEY)
            position, size = positions[first + place], sizes[first + place]
            return batch.body[position : position + size] if size else None
        place -= count
    raise IndexError(place)
