"""The assigned queue as plain fields under one lock (docs/internals/semantics.md#three-locks)."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ordermq.core.reference.arguments import out_of_range
from ordermq.core.reference.process_queue import ProcessQueue
from ordermq.core.status import (
    CLAIM_ALONE,
    CLAIM_EMPTY,
    CLAIM_FURTHER,
    CLAIM_LEASE_LOST,
    CLAIM_PAUSED,
    CLAIM_REVOKED,
    CLAIM_SHARED,
    COUNTS,
    DISPATCH,
    DRAINED,
    HAS_ROOM,
    IDLE,
    LEASE_OVER,
    NO_KEY,
    STAGE_ACTIVE,
    STAGE_DRAINING,
    STAGE_GONE,
    WHILE_CLAIMED,
)
from ordermq.threads import RLock

_ROW_BITS = 32  # a token of the lanes: number of a batch << 32 | row
_SHARDING_KEY = "__SHARDINGKEY"
_READ = "offsets", "store_timestamps", "physical_offsets", "born_timestamps"  # of `first_read`


class Claim:
    """See contract.Claim."""

    __slots__ = ("generation", "lease", "messages")

    def __init__(self, messages: Any, lease: Any, generation: int) -> None:
        self.messages = messages
        self.lease = lease
        self.generation = generation


class AssignedQueue:
    """See contract.AssignedQueue."""

    def __init__(
        self,
        name: str,
        lease: Any,
        start_offset: int,
        *,
        claim: type,
        run: type,
        lanes: Any = None,
        counts_running: bool = True,
    ) -> None:
        if start_offset < 0:
            raise out_of_range(f"{name}: start at {start_offset}")
        # Reentrant, because methods call others that take it, too.
        self._lock = RLock()
        self._buffer: Any = ProcessQueue(name)
        self._lanes = lanes
        self._claim_kind = claim
        self._run_kind = run
        self._counts_running = counts_running
        self._stage = STAGE_ACTIVE
        self._lease: Any = lease
        self._generation = 0
        self._running = 0
        self._pauses = 0
        self._done = self._committed = start_offset
        self._life_start = -1
        self._first_read: Any = None
        self._last_read: Any = None
        self._isolate_until = -1
        self._room_below = 0
        self._is_ending = False
        self._batches: dict[int, Any] = {}  # in lanes: batches by the number in tokens
        self._next_number = 0
        self._attempts: dict[int, int] = {}
        self._outages: dict[int, int] = {}
        self._failed_ms: dict[int, int] = {}
        self._lane_calls: dict[int, tuple[Any, int, int]] = {}
        self._last_claim_ms = -1
        self._worker = 0
        self._fields: dict[str, Any] = {
            "calling": None,
            "batches_per_claim": 1,
            "internal_errors": 0,
            "auto_commit": True,
        }
        self._buffer.reset(start_offset)
        self._buffer.advance(start_offset, start_offset)
        if lanes is not None:
            lanes.reset(start_offset)

    @property
    def process_queue(self) -> Any:
        return self._buffer

    @property
    def lanes(self) -> Any:
        return self._lanes

    @property
    def stage(self) -> int:
        return self._stage

    @property
    def lease(self) -> Any:
        return self._lease

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def done_offset(self) -> int:
        return self._done

    @property
    def committed_offset(self) -> int:
        return self._committed

    @property
    def position(self) -> int:
        with self._lock:
            return self._position()

    @property
    def running_count(self) -> int:
        return self._running

    @property
    def is_paused(self) -> bool:
        return self._pauses != 0

    @property
    def begins_life(self) -> bool:
        return self._life_start >= 0

    @property
    def should_end_claim(self) -> bool:
        return self._is_ending

    @property
    def isolate_until(self) -> int:
        return self._isolate_until

    @isolate_until.setter
    def isolate_until(self, offset: int) -> None:
        self._isolate_until = offset

    @property
    def calling(self) -> Any:
        return self._fields["calling"]

    @calling.setter
    def calling(self, run: Any) -> None:
        self._fields["calling"] = run

    @property
    def attempts(self) -> dict[int, int]:
        return self._attempts

    @property
    def outages(self) -> dict[int, int]:
        return self._outages

    @property
    def failed_ms(self) -> dict[int, int]:
        return self._failed_ms

    @property
    def lane_calls(self) -> dict[int, tuple[Any, int, int]]:
        return self._lane_calls

    @property
    def last_claim_ms(self) -> int:
        return self._last_claim_ms

    @last_claim_ms.setter
    def last_claim_ms(self, time_ms: int) -> None:
        self._last_claim_ms = time_ms

    @property
    def worker(self) -> int:
        return self._worker

    @property
    def batches_per_claim(self) -> int:
        return int(self._fields["batches_per_claim"])

    @batches_per_claim.setter
    def batches_per_claim(self, count: int) -> None:
        self._fields["batches_per_claim"] = count

    @property
    def internal_errors(self) -> int:
        return int(self._fields["internal_errors"])

    @internal_errors.setter
    def internal_errors(self, count: int) -> None:
        self._fields["internal_errors"] = count

    @property
    def auto_commit(self) -> bool:
        return bool(self._fields["auto_commit"])

    @auto_commit.setter
    def auto_commit(self, is_on: bool) -> None:
        self._fields["auto_commit"] = is_on

    def oldest_filled_ms(self) -> int | None:
        return None  # no engine fills this core

    @property
    def first_read(self) -> tuple[int, int, int, int] | None:
        with self._lock:
            return self._first_read if self._life_start < 0 else None

    @property
    def last_read(self) -> tuple[int, int, int, int] | None:
        with self._lock:
            return self._last_read if self._life_start < 0 else None

    def follow(self, flags: int) -> None:
        raise NotImplementedError

    # Claims.

    def claim(self, limit: int, now_ms: int, *, kind: int = CLAIM_ALONE) -> tuple[Any, int]:
        if limit < 1:
            raise out_of_range(f"{self._buffer.name}: claim of {limit}")
        with self._lock:
            refusal, flags = self._may_claim(now_ms)
            if refusal and self._lanes is None and kind != CLAIM_FURTHER:
                self._buffer.end_dispatch()
            if refusal:
                return refusal, flags
            claim = self._take if self._lanes is None else self._fly
            return claim(limit, now_ms, kind)

    def _may_claim(self, now_ms: int) -> tuple[int, int]:
        if self._stage != STAGE_ACTIVE:
            return CLAIM_REVOKED, 0
        if self._lease is None:
            return CLAIM_LEASE_LOST, 0
        if not self._is_valid(now_ms):
            self._drop_lease()
            return CLAIM_LEASE_LOST, LEASE_OVER
        return (CLAIM_PAUSED if self._pauses else 0), 0

    def _take(self, limit: int, now_ms: int, kind: int) -> tuple[Any, int]:
        if kind == CLAIM_FURTHER and not self._buffer.pending_count:
            return CLAIM_EMPTY, 0
        if self._isolate_until >= 0:
            if self._position() <= self._isolate_until:
                limit = 1
            else:
                self._isolate_until = -1
        segments = self._buffer.take_segments(limit)
        if not segments:
            return CLAIM_EMPTY, 0
        flags = self.end_run() if kind == CLAIM_SHARED else 0
        return self._claimed(self._run_kind(segments), now_ms), flags

    def _fly(self, limit: int, now_ms: int, kind: int) -> tuple[Any, int]:
        offsets, tokens = (list(column) for column in self._lanes.take_columns(limit))
        if not offsets:
            return CLAIM_EMPTY, 0
        failed = self._attempts.keys() | self._outages.keys()
        if len(offsets) > 1 and failed:
            # Attempts are counted per message, so one that failed before gets a call of its own:
            # in a mixed call its next failure could not be attributed to one of them, and the keys
            # of the others would wait for it. An outage may be of one key alone, too.
            is_alone = offsets[0] in failed
            kept = [
                place
                for place, offset in enumerate(offsets)
                if place == 0 or not (is_alone or offset in failed)
            ]
            for place in set(range(len(offsets))).difference(kept):
                self._lanes.failed(offsets[place])
            tokens = [tokens[place] for place in kept]
        claim = self._claimed(self._run_kind(list(self._segments(tokens))), now_ms)
        self._lane_calls[offsets[0]] = claim.messages, now_ms, self._worker
        return claim, self.begin_run(only_startable=True) if kind == CLAIM_SHARED else 0

    def _claimed(self, messages: Any, now_ms: int) -> Any:
        self._running += self._counts_running
        self._is_ending = False
        self._last_claim_ms = now_ms
        self._worker = threading.get_ident()
        return self._claim_kind(messages, self._lease, self._generation)

    def _segments(self, tokens: Sequence[int]) -> Iterator[tuple[Any, int, int]]:
        begin = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or tokens[end] != tokens[end - 1] + 1:
                token = tokens[begin]
                batch = self._batches[token >> _ROW_BITS]
                yield batch, token & ((1 << _ROW_BITS) - 1), end - begin
                begin = end

    def divert(self, key: bytes, most: int, now_ms: int) -> tuple[Any, int]:
        with self._lock:
            is_on = self._stage == STAGE_ACTIVE and not self._pauses and self._is_valid(now_ms)
            if not is_on:
                return None, 0
            _, tokens = self._lanes.divert_columns(key, most)
            if not tokens:
                return None, 0
            self._running += 1
            run = self._run_kind(list(self._segments(list(tokens))))
            return self._claim_kind(run, self._lease, self._generation), 0

    def enter(self, messages: Any, now_ms: int, *, alone: bool) -> Any:
        with self._lock:
            if self._stage != STAGE_ACTIVE or not self._is_valid(now_ms):
                return None
            if self._running if alone else self._pauses:
                return None
            self._running += 1
            if alone:
                self.calling = messages
            self._last_claim_ms = now_ms
            self._worker = threading.get_ident()
            return self._claim_kind(messages, self._lease, self._generation)

    def leave(self) -> int:
        with self._lock:
            self.calling = None
            return self._leave()

    def holds(self, claim: Any, now_ms: int) -> bool:
        with self._lock:
            return bool(claim.generation == self._generation and self._is_valid(now_ms))

    # Settlements.

    def settle(self, claim: Any, done: int, now_ms: int, *, held: int = 0) -> int:
        with self._lock:
            flags = self._judge(claim.generation, now_ms)
            if flags & COUNTS:
                offsets = claim.messages.offsets()
                if done < len(offsets):
                    self._buffer.make_again_from(offsets[done])
                if done > held:
                    # The process queue commits all that is consuming, so the held part is put back
                    # for that moment. It is the smallest of what is pending.
                    if held:
                        self._buffer.make_again_from(offsets[done - held])
                    self._done = self._done_after(self._buffer.commit())
                    if held:
                        self._buffer.take_segments(held)
                self._forget_failures(offsets[:done])
            else:
                self._buffer.end_dispatch()  # this run ends here and submits no other
            return flags | self._leave() | self._told_room()

    def _forget_failures(self, finished: Iterable[int]) -> None:
        for offset in finished:
            self._failed_ms.pop(offset, None)
            self._outages.pop(offset, None)
        # The attempts of held messages are kept: a rollback delivers them again.
        for offset in [each for each in self._attempts if each < self._done]:
            del self._attempts[offset]

    def roll_back(self, claim: Any, before: int) -> int:
        with self._lock:
            counts = claim.generation == self._generation and self._lease is not None
            if counts and before:
                self._buffer.make_again_from(claim.messages.offsets()[before])
                self._done = self._done_after(self._buffer.commit())
            elif counts:
                self._buffer.rollback()
            else:
                self._buffer.end_dispatch()
            return (COUNTS if counts else 0) | self._leave()

    def finish_offsets(self, claim: Any, offsets: Iterable[int], *, leaves: bool = True) -> int:
        with self._lock:
            flags = COUNTS if claim.generation == self._generation else 0
            return self._finish(flags, list(offsets), leaves)

    def finish_lanes(self, claim: Any, done: int, now_ms: int, *, leaves: bool) -> int:
        offsets = claim.messages.offsets()
        with self._lock:
            flags = self._judge(claim.generation, now_ms)
            if flags & COUNTS:
                self._lanes.done_columns(array("q", offsets[:done]))
            else:
                # The lanes were reset while this call ran. They remember it as an old flight, and
                # start no message of its keys before it is reported as ended.
                for offset in offsets:
                    self._lanes.failed(offset)
            if leaves:
                self._lane_calls.pop(offsets[0], None)
            flags = self._finish(flags, offsets[:done], leaves)
            while self._batches:
                number = next(iter(self._batches))
                if self._batches[number].last_offset >= self._lanes.watermark:
                    break
                del self._batches[number]
            return flags

    def _finish(self, flags: int, offsets: Sequence[int], leaves: bool) -> int:
        if flags & COUNTS:
            watermark = self._buffer.remove(offsets)
            self._done = max(self._done, self._done_after(watermark))
            for offset in offsets:
                self._attempts.pop(offset, None)
                self._outages.pop(offset, None)
                self._failed_ms.pop(offset, None)
        flags |= self._leave() if leaves else 0
        left = self._buffer.pending_count if self._lanes is None else self._running
        return flags | self._told_room() | (0 if left else IDLE)

    def make_again(self, claim: Any, offsets: Iterable[int]) -> int:
        with self._lock:
            if claim.generation != self._generation or self._stage != STAGE_ACTIVE:
                return 0
            self._buffer.make_again(offsets)
            return self._begin_dispatch()

    def abandon(self) -> int:
        with self._lock:
            flags = self.lose()
            self._buffer.end_dispatch()
            return flags | self._leave()

    def recount(self, running: int) -> int:
        with self._lock:
            is_over = self._stage == STAGE_DRAINING and self._running and not running
            flags = DRAINED if is_over else 0
            self._running = running
            if not running:  # else its turn comes when that claim has ended
                self._buffer.end_dispatch()
                flags |= self._begin_dispatch()
            return flags

    def end_run(self) -> int:
        with self._lock:
            self._buffer.end_dispatch()
            return DISPATCH if self._buffer.begin_dispatch() else IDLE

    def begin_run(self, *, only_startable: bool = False) -> int:
        with self._lock:
            may_begin = not only_startable or self._lanes is None or self._can_start()
            return self._begin_dispatch() if may_begin else 0

    def _can_start(self) -> bool:
        lanes = self._lanes
        return bool(lanes.ready_count and lanes.in_flight_count < lanes.max_in_flight)

    # Answers.

    def accept_batch(self, generation: int, batch: Any, next_offset: int) -> int:
        if next_offset < 0:
            raise out_of_range(f"{self._buffer.name}: next pull at {next_offset}")
        with self._lock:
            if generation != self._generation or self._stage != STAGE_ACTIVE:
                return 0
            submits = False
            if len(batch):
                if self._lanes is not None:
                    self._add_to_lanes(batch)
                submits = self._buffer.put_batch(batch)
                self._last_read = tuple(each[-1] for each in batch.columns(*_READ).values())
                self._first_read = self._first_read or self._last_read
            self._buffer.advance(next_offset)
            if submits and self._pauses:
                self._buffer.end_dispatch()  # resume_from sets it again
                submits = False
            return COUNTS | (DISPATCH if submits else 0)

    def _add_to_lanes(self, batch: Any) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        positions, sizes = batch.property_columns(_SHARDING_KEY)
        first = number << _ROW_BITS
        self._batches[number] = batch
        self._lanes.add_columns(
            batch.offsets,
            array("Q", range(first, first + len(batch))),
            batch.body,
            positions,
            array("I", [size or NO_KEY for size in sizes]),
        )

    def skip(self, generation: int, next_offset: int) -> None:
        with self._lock:
            if generation != self._generation or self._stage != STAGE_ACTIVE or next_offset < 0:
                return
            self._buffer.advance(next_offset)
            # With nothing buffered the skipped offsets are done. Without this, a queue whose tail
            # is filtered out would show a lag that never shrinks.
            if self._buffer.message_count == 0:
                self._done = max(self._done, next_offset)
                self._buffer.reset(self._done)  # empty: this only raises its lowest offset

    def wait_for_room(self, below: int) -> bool:
        with self._lock:
            if self._buffer.message_count < below:
                return False
            self._room_below = below
            return True

    # Leases and offsets.

    def renew_lease(self, generation: int, lease: Any) -> bool:
        with self._lock:
            if generation != self._generation or self._lease is None:
                return False
            if self._lease.epoch != lease.epoch:
                return False
            # Answers may overtake each other; an older grant must not shorten the lease.
            if lease.deadline_ms > self._lease.deadline_ms:
                self._lease = lease
            return True

    def lose(self, generation: int | None = None) -> int:
        with self._lock:
            if self._lease is None or self._stage == STAGE_GONE:
                return 0
            if generation is not None and generation != self._generation:
                return 0
            self._drop_lease()
            return LEASE_OVER

    def regain(self, lease: Any, start_offset: int) -> bool:
        with self._lock:
            is_locked = self._lease is not None and self._lease.epoch > 0
            if self._stage != STAGE_ACTIVE or is_locked or self._running:
                return False
            self._lease = lease
            self._restart(start_offset)
            self._committed = start_offset
            return True

    def rest(self, lease: Any, epoch: int) -> bool:
        with self._lock:
            is_held = self._lease is not None and self._lease.epoch == epoch
            if not is_held or self._done != self._committed:
                return False
            if self._running or self._buffer.message_count:
                return False
            self._lease = lease
            return True

    def reposition(self, generation: int, offset: int) -> bool:
        with self._lock:
            if generation != self._generation or self._stage != STAGE_ACTIVE or self._running:
                return False
            self._restart(offset)
            return True

    def uncommitted(self, now_ms: int) -> tuple[int, Any] | None:
        with self._lock:
            # What is done is of a life that is over, until the queue is moved to its new one.
            offset = self._done if self._life_start < 0 else self._life_start
            if not self._is_valid(now_ms) or offset == self._committed:
                return None
            return offset, self._lease

    def committed(self, offset: int, lease: Any) -> None:
        with self._lock:
            if self._lease is not None and self._lease.epoch == lease.epoch:
                self._committed = offset

    def set_done_offset(self, generation: int, offset: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._done = offset

    def begin_life(self, offset: int) -> bool:
        with self._lock:
            if self._lease is not None and self._life_start < 0:
                self._life_start = offset
            return self._lease is not None and self._stage == STAGE_ACTIVE

    # Pauses, revocation.

    def pause_for(self, reasons: int, *, ends_run: bool = False) -> None:
        with self._lock:
            self._pauses |= reasons
            self._is_ending = True
            if ends_run:
                self._buffer.end_dispatch()

    def resume_from(self, reasons: int) -> int:
        with self._lock:
            self._pauses &= ~reasons
            return self._begin_dispatch()

    def end_claim(self) -> None:
        self._is_ending = True

    def revoke(self) -> bool:
        with self._lock:
            if self._stage == STAGE_ACTIVE:
                self._stage = STAGE_DRAINING
                self._is_ending = True
            return self._running == 0

    def discard(self) -> None:
        with self._lock:
            self._stage = STAGE_GONE
            self._drop_lease()

    # Under the lock.

    def _is_valid(self, now_ms: int) -> bool:
        return self._lease is not None and now_ms < self._lease.deadline_ms

    def _position(self) -> int:
        first = self._buffer.first_pending
        return int(self._buffer.next_pull_offset if first < 0 else first)

    def _done_after(self, watermark: int) -> int:
        # What a filter left out behind the last message is done with it, up to the next one.
        return watermark if self._buffer.consuming_count else self._position()

    def _begin_dispatch(self) -> int:
        is_on = self._stage == STAGE_ACTIVE and not self._pauses
        return DISPATCH if is_on and self._buffer.begin_dispatch() else 0

    def _judge(self, generation: int, now_ms: int) -> int:
        # Generations are compared, not leases: a renewal replaces the lease, and only a lost one
        # ends the generation.
        if generation != self._generation or self._lease is None:
            return 0
        if self._is_valid(now_ms):
            return COUNTS
        self._drop_lease()
        return LEASE_OVER | WHILE_CLAIMED

    def _leave(self) -> int:
        # Never below 0: a run may also be abandoned before it has claimed anything.
        self._running = max(self._running - 1, 0)
        is_drained = self._stage == STAGE_DRAINING and self._running == 0
        return DRAINED if is_drained else 0

    def _told_room(self) -> int:
        if self._room_below and self._buffer.message_count < self._room_below:
            self._room_below = 0
            return HAS_ROOM
        return 0

    def _drop_lease(self) -> None:
        # Another owner may have continued from the committed offset, so neither the buffered
        # messages nor the running claims may count any more
        # (docs/internals/semantics.md#stale-buffers). The dispatch flag stays: a request that waits
        # or runs clears it itself. Clearing it here would let a second worker run in parallel once
        # the lease is regained.
        self._lease = None
        self._is_ending = True
        self._generation += 1
        self._done = self._committed
        self._buffer.clear()
        self._batches.clear()
        if self._lanes is not None:
            self._lanes.reset(self._done)

    def _restart(self, offset: int) -> None:
        if self._life_start >= 0:
            self._first_read = self._last_read = None
        self._generation += 1
        self._done = offset
        self._life_start = self._isolate_until = -1
        self._room_below = 0
        self._buffer.reset(offset)
        self._buffer.advance(offset)
        self._batches.clear()
        if self._lanes is not None:
            self._lanes.reset(offset)
        # Another member may have had the queue in between, so attempts start again, as after any
        # take-over. No call runs: nothing of the old generation is counted any more.
        self._attempts.clear()
        self._outages.clear()
        self._failed_ms.clear()

    def _check(self) -> None:
        with self._lock:
            self._buffer._check()
            assert self._stage != STAGE_GONE or self._lease is None
            assert self._lease is not None or self._buffer.message_count == 0
