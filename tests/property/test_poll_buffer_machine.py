"""The poll buffer, out of order and in order, against a model that is a list per queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ordermq import MessageQueue
from ordermq.clock import ManualClock
from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import QueueCallbacks
from ordermq.consumer.queue.poll_buffer import PollBuffer
from ordermq.consumer.queue.poll_receiver import PollReceiver
from ordermq.consumer.queue.polled_queue import PolledQueue, PollRoom
from ordermq.consumer.queue.receiver import Flow
from ordermq.leases.lease import UNLOCKED, Lease
from tests.unit.consumer.batches import batch

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]
POLLERS = ["one", "two"]
CONFIG = PullConfig(pull_threshold_for_queue=2)
THRESHOLD = 4


@dataclass
class Held:
    """A held queue: what of it is buffered, and what was handed out and not finished."""

    assigned: PolledQueue
    done: int
    end: int  # where the next pull begins
    committed: int
    messages: list[int] = field(default_factory=list)
    out: list[tuple[str, list[int]]] = field(default_factory=list)
    after_last: int = 0  # the position when a batch was last handed out
    is_paused: bool = False
    is_draining: bool = False

    @property
    def position(self) -> int:
        return self.messages[0] if self.messages else self.end

    def finish(self, poller: str) -> None:
        before = len(self.out)
        self.out = [(who, offsets) for who, offsets in self.out if who != poller]
        if len(self.out) < before:
            left = [*self.messages, *(offset for _, offsets in self.out for offset in offsets)]
            self.done = max(self.done, min(left, default=self.end))


class PollBufferMachine(RuleBasedStateMachine):
    is_ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.roomy: list[Any] = []
        self.drained: list[Any] = []
        self.clock = ManualClock()
        self.lease = Lease(7, 1 << 40, True) if self.is_ordered else UNLOCKED
        self.buffer = PollBuffer(self.clock, PollRoom(THRESHOLD), is_ordered=self.is_ordered)
        self.receiver = PollReceiver(self.clock, "G", self.buffer)
        self.held: dict[MessageQueue, Held] = {}
        self.lost: list[Held] = []
        self.waiter: Any = None
        self.without_room: set[MessageQueue] = set()

    @rule(queue=st.sampled_from(QUEUES), offset=st.integers(0, 5))
    def hold(self, queue: MessageQueue, offset: int) -> None:
        if queue not in self.held:
            callbacks = QueueCallbacks(
                lambda *_: None,
                lambda item: self.drained.append(item),
                self.has_been_notified,
                lambda: None,
            )
            made = self.receiver.make_queue(queue, self.lease, offset, callbacks)
            self.held[queue] = Held(made, offset, offset, offset)

    def has_been_notified(self, assigned: Any) -> None:
        self.roomy.append(assigned)

    @rule(queue=st.sampled_from(QUEUES))
    def revoke(self, queue: MessageQueue) -> None:
        held = self.held.get(queue)
        if held is not None:
            is_drained = held.assigned.revoke()
            assert is_drained == (not self.is_ordered or not held.out)
            held.is_draining = True

    @rule(queue=st.sampled_from(QUEUES))
    def drop(self, queue: MessageQueue) -> None:
        held = self.held.pop(queue, None)
        if held is not None:
            self.without_room.discard(queue)
            self.lost.append(held)
            assert held.assigned.done_offset == held.done
            held.assigned.discard()

    @rule(
        queue=st.sampled_from(QUEUES),
        gaps=st.lists(st.integers(0, 3), max_size=5),
        tail=st.integers(0, 3),
        is_stale=st.booleans(),
    )
    def accept(self, queue: MessageQueue, gaps: list[int], tail: int, is_stale: bool) -> None:
        held = self.held.get(queue)
        if held is None:
            return
        offsets, offset = [], held.end
        for gap in gaps:
            offset += gap
            offsets.append(offset)
            offset += 1
        end = offset + tail
        assigned = held.assigned
        generation = assigned.generation - is_stale
        if not offsets:
            assigned.skip_to(generation, end)
        elif assigned.accept(generation, batch(offsets), end):
            self.buffer.submit(assigned)
        if is_stale or held.is_draining:
            return
        held.end = end
        held.messages += offsets
        if not offsets and not held.messages and not held.out:
            held.done = max(held.done, end)
        if offsets and not held.is_paused and self.waiter is not None and not self.is_held_up(held):
            assert self.waiter.is_set
            self.waiter = None

    @precondition(lambda self: self.lost)
    @rule()
    def accept_for_a_lost_queue(self) -> None:
        assigned = self.lost[-1].assigned
        assert not assigned.accept(assigned.generation, batch([90]), 91)
        assert assigned.process_queue.message_count == 0

    def is_held_up(self, held: Held) -> bool:
        """True if nothing of a queue may be handed out, whatever is buffered."""
        return held.is_paused or held.is_draining or (self.is_ordered and bool(held.out))

    def ready(self) -> list[Held]:
        return [h for h in self.held.values() if h.messages and not self.is_held_up(h)]

    @rule(poller=st.sampled_from(POLLERS), limit=st.integers(1, 7))
    def take(self, poller: str, limit: int) -> None:
        self.finish(poller)
        found = self.buffer.take(poller, limit)
        assert (found is None) == (not self.ready())
        if found is None:
            return
        held = self.held[found.message_queue]
        assert not self.is_held_up(held)
        taken, held.messages = held.messages[:limit], held.messages[limit:]
        assert found.offsets() == taken
        held.out.append((poller, taken))
        held.after_last = held.position
        assert found.next_offset == held.after_last

    @rule(poller=st.sampled_from(POLLERS))
    def finish(self, poller: str) -> None:
        self.buffer.finish(poller)
        for held in self.held.values():
            was_out = bool(held.out)
            held.finish(poller)
            if self.is_ordered and held.is_draining and was_out and not held.out:
                assert self.drained.pop() is held.assigned
        assert self.drained == []

    @precondition(lambda self: self.is_ordered)
    @rule(poller=st.sampled_from(POLLERS), queue=st.sampled_from(QUEUES))
    def give_back(self, poller: str, queue: MessageQueue) -> None:
        self.buffer.give_back(poller, queue)
        held = self.held.get(queue)
        for who, offsets in held.out if held is not None else ():
            if held is not None and who == poller:
                held.messages = offsets + held.messages
                held.out = []
                if held.is_draining:
                    assert self.drained.pop() is held.assigned
        assert self.drained == []

    @rule(queue=st.sampled_from(QUEUES), offset=st.integers(0, 5))
    def seek(self, queue: MessageQueue, offset: int) -> None:
        held = self.held.get(queue)
        if held is None:
            return
        moved = held.assigned.reposition(held.assigned.generation, offset)
        assert moved == (not held.is_draining and not (self.is_ordered and held.out))
        if moved:
            held.messages, held.out = [], []
            held.done = held.end = offset

    @rule(queue=st.sampled_from(QUEUES), pause=st.booleans())
    def pause_or_resume(self, queue: MessageQueue, pause: bool) -> None:
        held = self.held.get(queue)
        if held is None:
            return
        if pause:
            held.assigned.pause()
        elif held.assigned.resume():
            self.buffer.submit(held.assigned)
        was_paused, held.is_paused = held.is_paused, pause
        if was_paused and held in self.ready() and self.waiter is not None:
            assert self.waiter.is_set
            self.waiter = None

    @rule(poller=st.sampled_from(POLLERS))
    def commit_everything_polled(self, poller: str) -> None:
        polled = self.buffer.polled(poller)
        expected = {}
        for queue, held in self.held.items():
            if self.is_ordered:
                mine = any(who == poller for who, _ in held.out)
                # A later pull may have passed over more offsets: a commit when the batch ends.
                expected[queue] = held.after_last if mine else held.done
            elif not held.is_draining:
                expected[queue] = held.position
        expected = {q: at for q, at in expected.items() if at != self.held[q].committed}
        assert {assigned.queue: offset for assigned, offset in polled.items()} == expected
        for assigned, offset in polled.items():
            held = self.held[assigned.queue]
            assigned.set_done_offset(assigned.generation, offset)
            assigned.committed(offset, self.lease)
            held.committed = held.done = offset
        self.buffer.finish_up_to(polled)
        for assigned in polled:
            held = self.held[assigned.queue]
            was_out = bool(held.out)
            for who in POLLERS if not self.is_ordered else [poller]:
                held.finish(who)
            if self.is_ordered and held.is_draining and was_out and not held.out:
                assert self.drained.pop() is assigned
        assert self.drained == []

    @rule()
    def wait(self) -> None:
        if not self.ready():
            # Queues that were paused meanwhile leave the line with the next look.
            assert self.buffer.take("nobody", 1) is None
        waiter = self.buffer.wait()
        assert (waiter is None) == bool(self.ready())
        self.waiter = waiter

    @rule(queue=st.sampled_from(QUEUES))
    def ask_for_room(self, queue: MessageQueue) -> None:
        held = self.held.get(queue)
        if held is not None:
            flow = self.receiver.flow(held.assigned, CONFIG)
            assert (flow is Flow.PULL) == self.has_room(held)
            if self.has_room(held):
                self.without_room.discard(queue)
            else:
                self.without_room.add(queue)

    def has_room(self, held: Held) -> bool:
        total = sum(len(each.messages) for each in self.held.values())
        return not held.is_paused and len(held.messages) <= 2 and total <= THRESHOLD

    @invariant()
    def every_invariant_holds_and_positions_agree(self) -> None:
        self.buffer._check()
        assert {assigned.queue for assigned in self.buffer.room.queues} == set(self.held)
        for held in self.held.values():
            assert held.assigned.position == held.position
            assert held.assigned.next_pull_offset == held.end
            assert held.assigned.done_offset == held.done
            assert held.assigned.committed_offset == held.committed

    @invariant()
    def who_waited_for_room_and_has_it_was_notified(self) -> None:
        notified = {assigned.queue for assigned in self.roomy}
        self.roomy.clear()
        now = {queue for queue in self.without_room if self.has_room(self.held[queue])}
        assert notified == now
        self.without_room -= now


class OrderedPollBufferMachine(PollBufferMachine):
    is_ordered = True


TestPollBuffer = PollBufferMachine.TestCase
TestOrderedPollBuffer = OrderedPollBufferMachine.TestCase
