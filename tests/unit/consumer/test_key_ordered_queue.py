"""KeyOrderedQueue: keys that may run, the done offset, a lost lease
(docs/internals/semantics.md#key-lanes)."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ordermq.config import ConsumeConfig
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
)
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch
from tests.component.interruption import InterruptedCall

from .batches import QUEUE, batch
from .claims import NotClaimed, begin_batch

LEASE = Lease(7, 50_000, True)
KEYS = ["a", "b", "c", None]


class Notified:
    """Notices of a queue to its surroundings."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.drained: list[AssignedQueue] = []
        self.room: list[AssignedQueue] = []


def key_ordered_queue(notified: Notified | None = None, **config: Any) -> KeyOrderedQueue:
    notified = notified or Notified()
    return KeyOrderedQueue(
        QUEUE,
        "G",
        LEASE,
        0,
        ConsumeConfig(order_by_key=True, **config),
        QueueCallbacks(
            on_lease_lost=lambda _, reason: notified.lost.append(reason),
            on_drained=notified.drained.append,
            on_room=notified.room.append,
            on_idle=lambda: None,
        ),
    )


def filled(
    keys: list[str | None], notified: Notified | None = None, **config: Any
) -> KeyOrderedQueue:
    assigned = key_ordered_queue(notified, **config)
    assert assigned.accept(0, batch(range(len(keys)), keys), len(keys))
    assigned.process_queue.end_dispatch()
    return assigned


def claim(assigned: KeyOrderedQueue, size: int = 1) -> BatchClaim:
    found = begin_batch(assigned, size, 0)
    assert isinstance(found, BatchClaim)
    return found


def test_a_key_runs_one_message_at_a_time_in_parallel_to_other_keys() -> None:
    assigned = filled(["a", "a", "b"])
    first = claim(assigned)
    second = claim(assigned)
    assert (first.messages.offsets(), second.messages.offsets()) == ([0], [2])
    assert begin_batch(assigned, 1, 0) is NotClaimed.EMPTY
    assert not assigned.begin_run(only_startable=True)
    assert assigned.end_batch(second, 1, 0)
    assert assigned.done_offset == 0
    assert assigned.end_batch(first, 1, 0)
    assert assigned.done_offset == 1
    assert claim(assigned).messages.offsets() == [1]


def test_one_call_gets_one_message_of_each_of_several_keys() -> None:
    assigned = filled(["a", "b", "a", "c"])
    assert claim(assigned, size=4).messages.offsets() == [0, 1, 3]


@pytest.mark.parametrize("is_outage", [False, True])
def test_a_message_that_failed_before_is_claimed_alone(is_outage: bool) -> None:
    assigned = filled(["a", "b", "c"])
    whole = claim(assigned, size=4)
    assigned.count_failures(whole.messages, range(1, 2), 0, is_outage=is_outage)
    assert assigned.end_batch(whole, 0, 0)
    assigned.release(whole, 0, 3)
    assert claim(assigned, size=4).messages.offsets() == [0, 2]
    assert claim(assigned, size=4).messages.offsets() == [1]


def test_a_partial_result_finishes_its_part_and_holds_only_the_keys_of_the_rest() -> None:
    assigned = filled(["a", "b", "c", "a", "c"])
    whole = claim(assigned, size=3)
    assert assigned.end_batch(whole, 2, 0)
    assert assigned.done_offset == 2
    assert claim(assigned, size=4).messages.offsets() == [3]
    assert begin_batch(assigned, 1, 0) is NotClaimed.EMPTY
    assert assigned.release(whole, 2, 3), "a request must be submitted"
    assert claim(assigned).messages.offsets() == [2]


def test_a_lost_lease_counts_nothing_and_a_running_key_is_waited_for() -> None:
    notified = Notified()
    assigned = filled(["a", "b"], notified)
    first, second = claim(assigned), claim(assigned)
    assert not assigned.end_batch(first, 1, LEASE.deadline_ms)
    assert notified.lost == ["the lease ended while a batch ran"]
    assert assigned.done_offset == 0
    assert not assigned.regain(Lease(8, 90_000, True), 0), "a listener still runs"
    assert not assigned.end_batch(second, 1, 0)
    assert assigned.regain(Lease(8, 90_000, True), 0)
    assert assigned.accept(assigned.generation, batch([0, 1], ["a", "b"]), 2)
    assert claim(assigned, size=2).messages.offsets() == [0, 1]


def test_a_failed_message_without_a_key_is_forgotten_with_the_lease() -> None:
    assigned = filled([None, None])
    first = claim(assigned)
    assert assigned.end_batch(first, 0, 0)
    assigned.lose_lease("a test")
    assert assigned.regain(LEASE, 0)
    assigned.accept(assigned.generation, batch([0, 1], [None, None]), 2)
    again = claim(assigned)
    assert again.messages.offsets() == [0]
    assigned.release(first, 0, 1)  # the old pause ends: it is not about the new flight
    assert begin_batch(assigned, 1, 0) is NotClaimed.EMPTY
    assert assigned.end_batch(again, 1, 0)
    assert assigned.done_offset == 1


def test_the_end_of_a_pause_does_not_release_a_parked_key() -> None:
    assigned = filled(["a", "b"])
    first = claim(assigned)
    assert assigned.park(first, 0) == b"a"
    assert assigned.end_batch(first, 0, 0)
    assert assigned.release(first, 0, 1), "a request must be submitted"
    assigned.process_queue.end_dispatch()
    assert claim(assigned).messages.offsets() == [1]
    assert begin_batch(assigned, 1, 0) is NotClaimed.EMPTY
    assert assigned.parked_keys() == [b"a"]
    assert assigned.unpark(b"b") is None
    assert assigned.unpark(b"a")
    assert claim(assigned).messages.offsets() == [0]


def test_a_revoked_queue_is_drained_when_its_last_call_ends() -> None:
    notified = Notified()
    assigned = filled(["a", "b", "a"], notified)
    first, second = claim(assigned), claim(assigned)
    assert not assigned.revoke()
    assert begin_batch(assigned, 1, 0) is NotClaimed.REVOKED
    assert assigned.end_batch(second, 1, 0)
    assert notified.drained == []
    assert assigned.end_batch(first, 1, 0)
    assert notified.drained == [assigned]
    assert assigned.uncommitted(0) == (2, LEASE), "offset 2 never ran"


def batches_alive() -> list[MessageBatch]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, MessageBatch)]


def test_the_bytes_of_done_messages_are_released() -> None:
    assigned = key_ordered_queue()
    before = batches_alive()  # kept: those of other tests must not end meanwhile
    for first in range(0, 12, 4):
        assigned.accept(0, batch(range(first, first + 4), ["a", "b", "c", "d"]), first + 4)
    assert len(batches_alive()) == len(before) + 3
    while isinstance(found := begin_batch(assigned, 4, 0), BatchClaim):
        assigned.end_batch(found, len(found.messages), 0)
    assert assigned.oldest_stored_ms() is None  # which forgets what is done
    assert len(batches_alive()) == len(before)
    assert assigned.process_queue.message_count == 0
    assert assigned.done_offset == 12


@pytest.mark.parametrize("size", [1, 3])
def test_nothing_is_claimed_further_ahead_than_configured(size: int) -> None:
    assigned = filled(["slow", *"bcdefghij"], max_ahead_per_queue=4)
    slow = claim(assigned)
    while isinstance(found := begin_batch(assigned, size, 0), BatchClaim):
        assigned.end_batch(found, len(found.messages), 0)
    assert assigned.process_queue.message_count == 6  # slow, and 5..9
    assigned.end_batch(slow, 1, 0)
    assert assigned.done_offset == 5


class KeyOrderedQueueMachine(RuleBasedStateMachine):
    """Calls start, end, fail and pause at random; a dict holds each message's expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned = key_ordered_queue(max_in_flight_per_queue=4)
        self.generation = 0
        self.keys: dict[int, str | None] = {}
        self.done: set[int] = set()
        self.running: list[BatchClaim] = []
        self.landed: list[tuple[BatchClaim, int]] = []
        self.waiting: set[str | None] = set()
        self.next = 0

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def deliver(self, keys: list[str | None]) -> None:
        offsets = range(self.next, self.next + len(keys))
        self.assigned.accept(self.assigned.generation, batch(offsets, keys), offsets.stop)
        self.keys |= dict(zip(offsets, keys, strict=True))
        self.next = offsets.stop

    @rule(size=st.integers(1, 3))
    def take(self, size: int) -> None:
        found = begin_batch(self.assigned, size, 0)
        busy = {self.keys[o] for each in self.running for o in each.messages.offsets()}
        busy |= self.waiting
        open_ = [o for o in self.keys if o not in self.done]
        heads = {key: o for o in reversed(open_) if (key := self.keys[o]) not in busy}
        if isinstance(found, BatchClaim):
            for offset in found.messages.offsets():
                assert heads.pop(self.keys[offset]) == offset
            self.running.append(found)
        else:
            held = len(self.waiting & {None})
            flights = sum(len(each.messages) for each in self.running) + held
            assert not heads or flights == 4, (heads, busy)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        done = data.draw(st.integers(0, len(ended.messages)))
        counts = ended.generation == self.assigned.generation
        assert self.assigned.end_batch(ended, done, 0) is counts
        if counts:
            offsets = ended.messages.offsets()
            self.done.update(offsets[:done])
            if done < len(offsets):
                self.landed.append((ended, done))
                self.waiting |= {self.keys[offset] for offset in offsets[done:]}

    @precondition(lambda self: self.landed)
    @rule()
    def pause_ends(self) -> None:
        ended, done = self.landed.pop(0)
        self.assigned.release(ended, done, len(ended.messages))
        if ended.generation == self.assigned.generation:
            self.waiting -= {self.keys[o] for o in ended.messages.offsets()[done:]}

    @precondition(lambda self: not self.running and not self.landed)
    @rule()
    def lose_the_lease_and_get_it_back(self) -> None:
        start = self.assigned.committed_offset
        self.assigned.lose_lease("a test")
        assert self.assigned.regain(LEASE, start)
        self.keys.clear()
        self.done = set(range(start))
        self.next = start

    @rule()
    def commit(self) -> None:
        if (found := self.assigned.uncommitted(0)) is not None:
            self.assigned.committed(*found)

    @invariant()
    def the_watermark_is_the_oldest_unfinished(self) -> None:
        unfinished = [offset for offset in self.keys if offset not in self.done]
        assert self.assigned.done_offset == min(unfinished, default=self.next)
        assert self.assigned.process_queue.message_count == len(unfinished)
        self.assigned.lanes._check()
        self.assigned.process_queue._check()


TestKeyOrderedQueueMachine = KeyOrderedQueueMachine.TestCase
TestKeyOrderedQueueMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


def test_a_settlement_that_an_exception_ends_lets_the_queue_drain() -> None:
    """One that is sent to the listener's thread; the I/O thread gives the claim back then."""
    at, raised_at = 1, "begun"
    while raised_at:
        notified = Notified()
        assigned = filled(["a", "b"], notified)
        failed = claim(assigned)
        assert not assigned.revoke()
        interruption = InterruptedCall(at)
        with contextlib.suppress(KeyboardInterrupt), interruption:
            assigned.end_batch(failed, 0, 1)
        raised_at = interruption.raised_at
        at += 1
        if "/ordermq/core/" in raised_at:
            continue  # in Python: an exception comes before or behind a call of the native core
        if assigned.has_claim(failed):
            assigned.end_batch(failed, 0, 1)
        assigned.abandon_batch("internal error")
        assigned.tell_drained()
        assert notified.drained, raised_at
    assert at > 10
