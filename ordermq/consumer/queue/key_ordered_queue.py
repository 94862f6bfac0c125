"""KeyOrderedQueue: an assigned queue that is consumed by sharding key
(docs/internals/semantics.md#key-lanes).

Each key has a lane in the native lane map: its messages run one at a time, in order, in parallel
to those of other keys. The process queue only counts what is unfinished, for flow control; the
lane map says which messages may run and up to where everything is done (the watermark). Both
change with the state of the queue, under its mutex; which lanes a failure holds is decided here.
"""

from __future__ import annotations

from ordermq import core
from ordermq.config import ConsumeConfig
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
    RunningCall,
)
from ordermq.core import LaneMap, status
from ordermq.errors import ConfigError
from ordermq.leases.lease import Lease
from ordermq.model import properties as props
from ordermq.model.message import MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.threads import Lock


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
        lanes = LaneMap(
            str(queue),
            max_in_flight=config.max_in_flight_per_queue,
            max_ahead=config.max_ahead_per_queue,
            keyless=config.keyless.value,
        )
        super().__init__(queue, group, lease, start_offset, callbacks, lanes=lanes)
        # Guards the sets below, and with them what the lanes are told; taken before the mutex of
        # the queue and of the lanes.
        self._holds_lock = Lock()
        # Two reasons to hold a lane; it opens when neither is left.
        self._suspended: set[bytes] = set()  # keys that failed and wait for their next attempt
        self._parked: set[bytes] = set()  # keys given up until `unpark`
        # Failed messages without a key. The lane map parks by key and these have none, so until
        # their pause is over they count as in flight, which holds their common lane as well.
        self._held: set[int] = set()

    # Worker: claim one call, settle it.

    def follow(self, flags: int, reason: str = "") -> None:
        if flags & status.LEASE_OVER:
            self._forget_held()
        super().follow(flags, reason)

    def running_calls(self) -> list[RunningCall]:
        # No lane runs beside a message that is consumed directly.
        calls = self.lane_calls.copy().values()
        return [RunningCall(self, *call) for call in calls] or super().running_calls()

    def has_claim(self, claim: BatchClaim) -> bool:
        """Return True until a claim has ended."""
        call = self.lane_calls.get(claim.messages.first_offset)
        return call is not None and call[0] is claim.messages

    def claimed_ms(self, claim: BatchClaim) -> int:
        call = self.lane_calls.get(claim.messages.first_offset)
        return self.last_claim_ms if call is None else RunningCall(self, *call).since_ms

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
        is_whole = done == len(claim.messages)
        flags = self.finish_lanes(claim, done, now_ms, leaves=is_whole)
        if not is_whole:
            # Before the claim ends: until then the queue does not restart.
            if flags & status.COUNTS:
                self._suspend(claim, done)
            try:
                self.lane_calls.pop(claim.messages.first_offset, None)
            finally:  # after an exception here, too, which nobody could put right
                flags |= self.leave()
        self.follow(flags)
        return bool(flags & status.COUNTS)

    def release(self, claim: BatchClaim, first: int, end: int) -> bool:
        """Make the messages at positions `first` to `end` of a settled claim pending again.

        Returns: True if the caller must submit the queue.
        """
        with self._holds_lock:
            for place, offset in enumerate(claim.messages.offsets()[first:end], first):
                key = _key_of(claim.messages, place)
                if key is not None:
                    self._suspended.discard(key)
                    self._open_lane(key)
                # Only in its own generation: a restart has reset the lane map, and the
                # same offset may be in flight again.
                elif claim.generation == self.generation and offset in self._held:
                    self._held.remove(offset)
                    self.lanes.failed(offset)
        return self.request_next()

    def request_next(self) -> bool:
        """Set the dispatch flag for a worker that leaves; True: it must submit the queue."""
        return bool(self.begin_run())

    def abandon_batch(self, reason: str) -> None:
        """Give the lease up after an internal error; the caller has settled its claim."""
        self.lose_lease(reason)

    # Parked keys; any thread.

    def park(self, claim: BatchClaim, place: int) -> bytes | None:
        """Hold the lane of a claimed message until `unpark`; None if it has no key."""
        key = _key_of(claim.messages, place)
        if key is not None:
            with self._holds_lock:
                self._parked.add(key)
                self.lanes.park(key)
        return key

    def unpark(self, key: bytes) -> bool | None:
        """Open a parked lane; None if it was not parked.

        Returns: True if the caller must submit the queue.
        """
        with self._holds_lock:
            if key not in self._parked:
                return None
            self._parked.remove(key)
            self._open_lane(key)
        return self.request_next()

    def take_parked(self, key: bytes, most: int, now_ms: int) -> BatchClaim | None:
        """Claim messages of a parked key to move them away; settle it as any other claim."""
        claim: BatchClaim | None
        claim, flags = self.divert(key, most, now_ms)
        self.follow(flags)
        return claim

    def begin_replay(self, now_ms: int) -> BatchClaim | None:
        """Claim the queue while its parked messages are consumed from the parking topic.

        The claim is empty: those messages are in another queue. It makes a revocation wait;
        `end_alone` ends it.
        """
        claim: BatchClaim | None = self.enter(MessageRun([]), now_ms, alone=False)
        return claim

    def restore_parked(self, generation: int, keys: set[bytes]) -> None:
        """Park exactly these keys, before the first pull of a generation."""
        with self._holds_lock:
            if generation != self.generation:
                return
            gone, self._parked = self._parked - keys, set(keys)
            for key in gone:
                self._open_lane(key)
            for key in keys:
                self.lanes.park(key)

    def parked_keys(self) -> list[bytes]:
        """Return the parked keys, sorted."""
        with self._holds_lock:
            return sorted(self._parked)

    def regain(self, lease: Lease, start_offset: int) -> bool:
        regained = super().regain(lease, start_offset)
        if regained:
            self._forget_held()
        return regained

    def reposition(self, generation: int, offset: int) -> bool:
        moved = super().reposition(generation, offset)
        if moved:
            self._forget_held()
        return moved

    def discard(self) -> None:
        super().discard()
        self._forget_held()

    def _suspend(self, claim: BatchClaim, first: int) -> None:
        with self._holds_lock:
            for place, offset in enumerate(claim.messages.offsets()[first:], first):
                key = _key_of(claim.messages, place)
                if key is not None:
                    self._suspended.add(key)
                    self.lanes.park(key)
                    self.lanes.failed(offset)
                elif claim.generation == self.generation:
                    self._held.add(offset)
                else:  # the lease was lost within this call: nobody waits for its flight
                    self.lanes.failed(offset)

    def _open_lane(self, key: bytes) -> None:
        if key not in self._suspended and key not in self._parked:
            self.lanes.unpark(key)

    def _forget_held(self) -> None:
        with self._holds_lock:
            for offset in self._held:
                self.lanes.failed(offset)  # its listener has returned: no old flight to wait for
            self._held.clear()


def _key_of(run: MessageRun, place: int) -> bytes | None:
    """Return a claimed message's sharding key, as the lane map knows it; None if it has none."""
    for batch, first, count in run.segments:
        if place < count:
            positions, sizes = batch.property_columns(props.SHARDING_KEY)
            position, size = positions[first + place], sizes[first + place]
            return batch.body[position : position + size] if size else None
        place -= count
    raise IndexError(place)
