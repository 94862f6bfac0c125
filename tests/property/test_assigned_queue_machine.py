"""Any order of calls on an assigned queue, by two workers and an I/O thread: the native core does
what the reference does, and both hold what docs/internals/semantics.md promises.

Nothing is left out because no dispatcher does it: claims are settled twice and out of order, late
answers and renewals come, keys fail and are parked. Three kinds of queue: in order, polled (where
nothing waits for claims), and by key.
"""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ordermq.consumer.queue.receiver import FillLimits
from ordermq.core import reference, status
from ordermq.core.streams import StreamPlan
from tests.unit.core.stored_records import record

LEASE_MS = 100
KEYS = [None, "a", "b", "c"]
STATE = (
    "stage", "generation", "done_offset", "committed_offset", "position", "running_count",
    "is_paused", "begins_life", "should_end_claim", "isolate_until", "last_claim_ms",
    "first_read", "last_read",
)  # fmt: skip
BUFFERED = (
    "pending_count", "consuming_count", "size_bytes", "first_pending", "last_pending",
    "first_consuming", "last_consuming", "next_pull_offset", "next_uncommitted", "is_dispatched",
)  # fmt: skip
IN_LANES = ("watermark", "in_flight_count", "old_flight_count", "ready_count", "parked_count")


class Lease(NamedTuple):
    epoch: int
    deadline_ms: int


def bodies(offsets: list[int], keys: list[str | None]) -> bytes:
    return b"".join(
        record(
            offset=offset,
            body=b"m%d" % offset,
            properties=b"" if key is None else f"__SHARDINGKEY\1{key}\2".encode(),
        )
        for offset, key in zip(offsets, keys, strict=True)
    )


class AssignedQueueMachine(RuleBasedStateMachine):
    """Drives one queue of a core beside one of the reference.

    A stream that is never started makes the first one share a room, which counts its messages.
    """

    core: ModuleType
    kind: str
    connection: Any

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.epoch = 1
        self.queues = [self.made(core) for core in (self.core, reference)]
        self.cores = [self.core, reference]
        self.room = self.core.SharedRoom(7)
        plan = StreamPlan(
            self.core.RequestTemplate((b"",), (), False, None), b"0", (), True, False, 0, 0, 1, 0,
            False, FillLimits(False, 1, 1, room=self.room), self.core.MessageIndex, 0,
        )  # fmt: skip
        self.core.PullStream(self.connection, self.queues[0].process_queue, None, plan)
        self.claims: list[list[Any]] = []  # each of both queues
        self.generations = [0]
        self.is_faithful = True  # no caller has said more than what it did
        self.commits: list[tuple[int, Lease]] = []

    def made(self, core: ModuleType) -> Any:
        lanes = None
        if self.kind == "by key":
            lanes = core.LaneMap("q", max_in_flight=3, max_ahead=100, keyless="lane")
        return core.AssignedQueue(
            "q",
            self.lease(),
            0,
            claim=core.Claim,
            run=core.MessageRun,
            lanes=lanes,
            counts_running=self.kind != "polled",
        )

    def lease(self) -> Lease:
        return Lease(self.epoch, self.now_ms + LEASE_MS)

    def both(self, call: Any) -> Any:
        native, expected = (call(queue) for queue in self.queues)
        assert native == expected
        return native

    def claimed(self, found: list[tuple[Any, int]]) -> None:
        """Compare two claims, or two refusals, and keep the claims."""
        (native, flags), (expected, expected_flags) = found
        assert flags == expected_flags
        if expected is None or isinstance(expected, int):
            assert native == expected
            return
        for name in "generation", "lease":
            assert getattr(native, name) == getattr(expected, name)
        assert native.messages.offsets() == expected.messages.offsets()
        self.claims.append([native, expected])

    def pick(self, which: int, *, keep: bool = False) -> list[Any]:
        place = which % len(self.claims)
        return self.claims[place] if keep else self.claims.pop(place)

    def settled(self, pair: list[Any], call: Any) -> int:
        native, expected = (
            call(queue, claim) for queue, claim in zip(self.queues, pair, strict=True)
        )
        assert native == expected
        return int(native)

    # The puller.

    @rule(
        repeated=st.integers(0, 3),
        gaps=st.lists(st.integers(0, 2), max_size=5),
        tail=st.integers(0, 2),
        keys=st.lists(st.sampled_from(KEYS), min_size=5, max_size=5),
        is_stale=st.booleans(),
    )
    def answer(
        self,
        repeated: int,
        gaps: list[int],
        tail: int,
        keys: list[str | None],
        is_stale: bool,
    ) -> None:
        offset = max(self.queues[1].process_queue.next_pull_offset - repeated, 0)
        offsets = []
        for gap in gaps:
            offsets.append(offset + gap)
            offset += gap + 1
        body = bodies(offsets, keys[: len(offsets)])
        generation = self.queues[1].generation - is_stale
        native, expected = (
            queue.accept_batch(generation, core.MessageIndex(body), offset + tail)
            for queue, core in zip(self.queues, self.cores, strict=True)
        )
        assert native == expected
        assert not (native and is_stale), "an answer of an old generation counts"

    @rule(ahead=st.integers(0, 4), is_stale=st.booleans())
    def skip(self, ahead: int, is_stale: bool) -> None:
        offset = self.queues[1].process_queue.next_pull_offset + ahead
        generation = self.queues[1].generation - is_stale
        self.both(lambda queue: queue.skip(generation, offset))

    @rule(below=st.integers(1, 6))
    def wait_for_room(self, below: int) -> None:
        self.both(lambda queue: queue.wait_for_room(below))

    # Two workers, or more.

    @rule(
        limit=st.integers(1, 4),
        kind=st.sampled_from([status.CLAIM_ALONE, status.CLAIM_SHARED, status.CLAIM_FURTHER]),
    )
    def claim(self, limit: int, kind: int) -> None:
        queue = self.queues[1]
        may = (
            queue.stage == status.STAGE_ACTIVE
            and queue.lease is not None
            and self.now_ms < queue.lease.deadline_ms
            and not queue.is_paused
        )
        count = len(self.claims)
        self.claimed([queue.claim(limit, self.now_ms, kind=kind) for queue in self.queues])
        assert may or len(self.claims) == count, "claimed outside of the lease"

    @precondition(lambda self: self.claims and self.kind != "by key")
    @rule(which=st.integers(0, 9), share=st.integers(0, 4), hold=st.integers(0, 4))
    def settle(self, which: int, share: int, hold: int) -> None:
        pair = self.pick(which)
        done = min(share, len(pair[1].messages))
        held = min(hold, done)
        self.is_faithful &= len(self.claims) == 0  # it commits what other claims have, too
        done_before = self.queues[1].done_offset
        counts = self.holds(pair)
        flags = self.settled(
            pair, lambda queue, claim: queue.settle(claim, done, self.now_ms, held=held)
        )
        assert bool(flags & status.COUNTS) == counts
        if not counts:
            assert self.queues[1].done_offset <= done_before

    def holds(self, pair: list[Any]) -> bool:
        return bool(self.settled(pair, lambda queue, claim: queue.holds(claim, self.now_ms)))

    @precondition(lambda self: self.claims and self.kind != "by key")
    @rule(which=st.integers(0, 9), share=st.integers(0, 4))
    def roll_back(self, which: int, share: int) -> None:
        pair = self.pick(which)
        before = min(share, len(pair[1].messages) - 1)
        self.is_faithful &= len(self.claims) == 0
        self.settled(pair, lambda queue, claim: queue.roll_back(claim, before))

    @precondition(lambda self: self.claims and self.kind != "by key")
    @rule(which=st.integers(0, 9), places=st.sets(st.integers(0, 4)), leaves=st.booleans())
    def finish(self, which: int, places: set[int], leaves: bool) -> None:
        pair = self.pick(which, keep=not leaves)
        offsets = [
            offset for place, offset in enumerate(pair[1].messages.offsets()) if place in places
        ]
        for queue in self.queues:  # as they may have failed before
            for offset in pair[1].messages.offsets():
                counts = queue.attempts if offset % 2 else queue.outages
                counts[offset] = counts.get(offset, 0) + 1
        self.settled(pair, lambda queue, claim: queue.finish_offsets(claim, offsets, leaves=leaves))

    @precondition(lambda self: self.claims and self.kind != "by key")
    @rule(which=st.integers(0, 9))
    def make_again(self, which: int) -> None:
        pair = self.pick(which)
        offsets = pair[1].messages.offsets()
        self.settled(pair, lambda queue, claim: queue.make_again(claim, offsets))

    @precondition(lambda self: self.claims and self.kind == "by key")
    @rule(which=st.integers(0, 9), share=st.integers(0, 3), is_parked=st.booleans())
    def finish_by_key(self, which: int, share: int, is_parked: bool) -> None:
        pair = self.pick(which)
        offsets = pair[1].messages.offsets()
        done = min(share, len(offsets))
        counts = self.holds(pair)
        flags = self.settled(
            pair,
            lambda queue, claim: queue.finish_lanes(
                claim, done, self.now_ms, leaves=done == len(offsets)
            ),
        )
        assert bool(flags & status.COUNTS) == counts
        if done == len(offsets):
            return
        if flags & status.COUNTS:
            for queue in self.queues:
                if is_parked:
                    queue.lanes.park("a")
                for offset in offsets[done:]:
                    queue.attempts[offset] = queue.attempts.get(offset, 0) + 1
                    queue.failed_ms.setdefault(offset, self.now_ms)
                    queue.lanes.failed(offset)
        self.both(lambda queue: queue.leave())

    @precondition(lambda self: self.kind == "by key")
    @rule(most=st.integers(1, 2))
    def divert(self, most: int) -> None:
        self.claimed([queue.divert(b"a", most, self.now_ms) for queue in self.queues])

    @precondition(lambda self: self.kind == "by key")
    @rule()
    def unpark(self) -> None:
        self.both(lambda queue: queue.lanes.unpark("a"))
        self.both(lambda queue: queue.begin_run())

    @rule()
    def abandon(self) -> None:
        self.both(lambda queue: queue.abandon())

    @rule(running=st.integers(0, 2))
    def recount(self, running: int) -> None:
        self.both(lambda queue: queue.recount(running))

    @rule()
    def end_run(self) -> None:
        self.both(lambda queue: queue.end_run())

    @rule(only_startable=st.booleans())
    def begin_run(self, only_startable: bool) -> None:
        self.both(lambda queue: queue.begin_run(only_startable=only_startable))

    @rule(alone=st.booleans())
    def enter(self, alone: bool) -> None:
        found = [
            queue.enter(core.MessageRun([]), self.now_ms, alone=alone)
            for queue, core in zip(self.queues, self.cores, strict=True)
        ]
        assert (found[0] is None) == (found[1] is None)
        assert (self.queues[0].calling is None) == (self.queues[1].calling is None)
        if found[0] is not None:
            assert found[0].lease == found[1].lease
            assert not alone or self.queues[1].running_count == 1

    @rule()
    def leave(self) -> None:
        self.both(lambda queue: queue.leave())

    @rule(offset=st.integers(-1, 30))
    def isolate(self, offset: int) -> None:
        for queue in self.queues:
            queue.isolate_until = offset

    # The I/O thread.

    @rule(delta_ms=st.sampled_from([1, 40, LEASE_MS]))
    def time_passes(self, delta_ms: int) -> None:
        self.now_ms += delta_ms

    @rule(is_stale=st.booleans(), is_other=st.booleans())
    def renew(self, is_stale: bool, is_other: bool) -> None:
        lease = Lease(self.epoch + is_other, self.now_ms + LEASE_MS)
        generation = self.queues[1].generation - is_stale
        renewed = self.both(lambda queue: queue.renew_lease(generation, lease))
        assert not (renewed and (is_stale or is_other))

    @rule(generation=st.sampled_from([None, 0, 1]))
    def lose(self, generation: int | None) -> None:
        wanted = None if generation is None else self.queues[1].generation - generation
        self.both(lambda queue: queue.lose(wanted))

    @rule(offset=st.integers(0, 20))
    def regain(self, offset: int) -> None:
        self.epoch += 1
        lease = self.lease()
        running = self.queues[1].running_count
        if self.both(lambda queue: queue.regain(lease, offset)):
            assert running == 0, "the same message may run twice at once"
            self.is_faithful = not self.claims
        else:
            self.epoch = max(self.epoch - 1, 1)

    @rule(is_lock=st.booleans(), is_other=st.booleans())
    def rest(self, is_lock: bool, is_other: bool) -> None:
        lease = Lease(self.epoch if is_lock else 0, self.now_ms + LEASE_MS)
        if self.both(lambda queue: queue.rest(lease, self.epoch + is_other)):
            assert self.queues[1].process_queue.message_count == 0
            self.epoch = lease.epoch

    @rule(offset=st.integers(0, 20), is_stale=st.booleans())
    def reposition(self, offset: int, is_stale: bool) -> None:
        generation = self.queues[1].generation - is_stale
        if self.both(lambda queue: queue.reposition(generation, offset)):
            self.is_faithful = not self.claims

    @rule()
    def send_commit(self) -> None:
        found = self.both(lambda queue: queue.uncommitted(self.now_ms))
        if found is not None:
            assert self.now_ms < found[1].deadline_ms, "a commit outside of the lease"
            self.commits.append(found)

    @precondition(lambda self: self.commits)
    @rule(which=st.integers(0, 3))
    def commit_answered(self, which: int) -> None:
        offset, lease = self.commits.pop(which % len(self.commits))
        self.both(lambda queue: queue.committed(offset, lease))

    @rule(offset=st.integers(0, 30), is_stale=st.booleans())
    def set_done(self, offset: int, is_stale: bool) -> None:
        generation = self.queues[1].generation - is_stale
        self.is_faithful &= is_stale
        self.both(lambda queue: queue.set_done_offset(generation, offset))

    @rule(offset=st.integers(0, 30))
    def begin_life(self, offset: int) -> None:
        self.both(lambda queue: queue.begin_life(offset))

    @rule(reasons=st.integers(1, 7), ends_run=st.booleans())
    def pause(self, reasons: int, ends_run: bool) -> None:
        self.both(lambda queue: queue.pause_for(reasons, ends_run=ends_run))

    @rule(reasons=st.integers(1, 7))
    def resume(self, reasons: int) -> None:
        self.both(lambda queue: queue.resume_from(reasons))

    @rule()
    def end_claim(self) -> None:
        self.both(lambda queue: queue.end_claim())

    @precondition(lambda self: self.steps > 25)
    @rule()
    def revoke(self) -> None:
        is_drained = self.both(lambda queue: queue.revoke())
        assert is_drained == (self.queues[1].running_count == 0)

    @precondition(lambda self: self.steps > 25)
    @rule()
    def discard(self) -> None:
        self.both(lambda queue: queue.discard())

    # What holds at any time.

    steps = 0

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        self.steps += 1
        native, expected = self.queues
        for name in STATE:
            assert getattr(native, name) == getattr(expected, name), name
        assert native.lease == expected.lease
        for name in "attempts", "outages", "failed_ms":
            assert getattr(native, name) == getattr(expected, name), name
        assert native.lane_calls.keys() == expected.lane_calls.keys()
        for name in BUFFERED:
            found = getattr(native.process_queue, name)
            assert found == getattr(expected.process_queue, name), name
        for name in IN_LANES if native.lanes is not None else ():
            assert getattr(native.lanes, name) == getattr(expected.lanes, name), name
        assert self.room.pending == expected.process_queue.pending_count

    @invariant()
    def each_is_consistent(self) -> None:
        for queue in self.queues:
            queue.process_queue._check()
            if queue.lanes is not None:
                queue.lanes._check()
            assert queue.stage != status.STAGE_GONE or queue.lease is None

    @invariant()
    def generations_grow(self) -> None:
        generation = self.queues[1].generation
        assert generation >= self.generations[-1]
        self.generations.append(generation)

    @invariant()
    def everything_below_the_done_offset_is_finished(self) -> None:
        # Without a lease nothing is claimed or committed, and the next one begins with the stored
        # offset. A queue that was moved back and lost its lease may have older messages until then.
        queue = self.queues[1]
        buffered = queue.process_queue
        oldest = [at for at in (buffered.first_pending, buffered.first_consuming) if at >= 0]
        if self.is_faithful and oldest and queue.lease is not None:
            assert queue.done_offset <= min(oldest)


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """One of a pull engine, for streams."""
    core = importlib.import_module("ordermq.core._cython")
    sockets = [each for _ in range(3) for each in socket.socketpair()]
    for each in sockets:
        each.setblocking(False)
    wake_read, wake_write, tell_write = (each.fileno() for each in sockets[:3])
    engine = core.PullEngine(wake_read, wake_write, tell_write, time.CLOCK_MONOTONIC, 1 << 16)
    yield core.PullConnection(engine, sockets[4].fileno(), None)
    engine.close()
    engine.collect()
    for each in sockets:
        each.close()


@pytest.mark.parametrize("kind", ["in order", "polled", "by key"])
def test_the_native_queue_does_what_the_reference_does(kind: str, connection: Any) -> None:
    core = importlib.import_module("ordermq.core._cython")
    machine = type(
        "Machine",
        (AssignedQueueMachine,),
        {"core": core, "kind": kind, "connection": connection},
    )
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
