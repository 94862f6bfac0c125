"""The lite pull consumer's buffer beside a model that is a list of messages a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ordermq import MessageQueue
from ordermq.config.pull import LitePullConfig
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from tests.unit.consumer.batches import batch

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]
POLLERS = ["one", "two"]


@dataclass
class Held:
    """A held queue: what of it is buffered, and what was handed out and not finished."""

    pulled: PulledQueue
    position: int
    end: int  # where the next pull begins
    messages: list[tuple[int, int]] = field(default_factory=list)  # offset, where to go on
    out: list[tuple[str, int]] = field(default_factory=list)  # poller, where its batch begins
    is_paused: bool = False

    @property
    def done(self) -> int:
        return min([begin for _, begin in self.out], default=self.position)


class PollBufferMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.roomy: list[PulledQueue] = []
        config = LitePullConfig(pull_threshold_for_queue=2, pull_threshold_for_all=4)
        self.buffer = PollBuffer(config, self.roomy.append)
        self.held: dict[MessageQueue, Held] = {}
        self.lost: list[Held] = []
        self.waiter: Any = None
        self.without_room: set[MessageQueue] = set()

    @rule(queue=st.sampled_from(QUEUES), offset=st.integers(0, 5))
    def hold(self, queue: MessageQueue, offset: int) -> None:
        if queue not in self.held:
            self.held[queue] = Held(self.buffer.hold(queue, offset, None), offset, offset)

    @rule(queue=st.sampled_from(QUEUES))
    def drop(self, queue: MessageQueue) -> None:
        held = self.held.pop(queue, None)
        if held is not None:
            self.without_room.discard(queue)
            self.lost.append(held)
            assert self.buffer.drop(held.pulled) == held.done

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
        generation = held.pulled.generation - is_stale
        taken = self.buffer.accept(held.pulled, generation, batch(offsets), end)
        assert taken == (not is_stale)
        if is_stale:
            return
        held.messages += zip(offsets, [*offsets[1:], end], strict=True) if offsets else []
        held.end = end
        if not held.messages:
            held.position = end
        elif not offsets:
            held.messages[-1] = held.messages[-1][0], end
        if offsets and not held.is_paused and self.waiter is not None:
            assert self.waiter.done()
            self.waiter = None

    @precondition(lambda self: self.lost)
    @rule()
    def accept_for_a_lost_queue(self) -> None:
        pulled = self.lost[-1].pulled
        assert not self.buffer.accept(pulled, pulled.generation, batch([90]), 91)

    @rule(poller=st.sampled_from(POLLERS), most=st.integers(1, 7))
    def take(self, poller: str, most: int) -> None:
        self.finish(poller)
        found = self.buffer.take(poller, most)
        ready = [h for h in self.held.values() if h.messages and not h.is_paused]
        assert (found is None) == (not ready)
        if found is None:
            return
        held = self.held[found.message_queue]
        assert not held.is_paused
        taken, held.messages = held.messages[:most], held.messages[most:]
        assert found.offsets() == [offset for offset, _ in taken]
        held.out.append((poller, held.position))
        held.position = taken[-1][1]
        assert found.next_offset == held.position

    @rule(poller=st.sampled_from(POLLERS))
    def finish(self, poller: str) -> None:
        self.buffer.finish(poller)
        for held in self.held.values():
            held.out = [(who, begin) for who, begin in held.out if who != poller]

    @rule(queue=st.sampled_from(QUEUES), offset=st.integers(0, 5))
    def seek(self, queue: MessageQueue, offset: int) -> None:
        held = self.held.get(queue)
        if held is not None:
            self.buffer.seek(queue, offset)
            held.messages, held.out = [], []
            held.position = held.end = offset

    @rule(queue=st.sampled_from(QUEUES), pause=st.booleans())
    def pause_or_resume(self, queue: MessageQueue, pause: bool) -> None:
        held = self.held.get(queue)
        if held is None:
            return
        (self.buffer.pause if pause else self.buffer.resume)([queue])
        if held.is_paused and not pause and held.messages and self.waiter is not None:
            assert self.waiter.done()
            self.waiter = None
        held.is_paused = pause

    @rule()
    def commit_everything_polled(self) -> None:
        polled = {pulled.queue: offset for pulled, offset in self.buffer.polled()}
        for held in self.held.values():
            held.out = []
        expected = {q: h.position for q, h in self.held.items()}
        assert polled == {q: at for q, at in expected.items() if self.committed(q) != at}
        for queue, offset in polled.items():
            self.held[queue].pulled.committed = offset

    def committed(self, queue: MessageQueue) -> int | None:
        return self.held[queue].pulled.committed

    @rule()
    def wait(self) -> None:
        waiter = self.buffer.wait()
        ready = [h for h in self.held.values() if h.messages and not h.is_paused]
        assert (waiter is None) == bool(ready)
        self.waiter = waiter

    @rule(queue=st.sampled_from(QUEUES))
    def ask_for_room(self, queue: MessageQueue) -> None:
        held = self.held.get(queue)
        if held is not None:
            assert self.buffer.may_pull(held.pulled) == self.has_room(held)
            if not self.has_room(held):
                self.without_room.add(queue)

    def has_room(self, held: Held) -> bool:
        total = sum(len(each.messages) for each in self.held.values())
        return not held.is_paused and len(held.messages) <= 2 and total <= 4

    @invariant()
    def every_invariant_holds_and_positions_agree(self) -> None:
        self.buffer._check()
        assert [pulled.queue for pulled in self.buffer.held()] == sorted(self.held)
        for held in self.held.values():
            assert held.pulled.position == held.position
            assert held.pulled.pull_offset == held.end
            assert held.pulled.done == held.done
        expected = {q: h.done for q, h in self.held.items() if h.done != self.committed(q)}
        assert {pulled.queue: offset for pulled, offset in self.buffer.done()} == expected

    @invariant()
    def who_waited_for_room_and_has_it_was_told(self) -> None:
        told = {pulled.queue for pulled in self.roomy}
        self.roomy.clear()
        now = {queue for queue in self.without_room if self.has_room(self.held[queue])}
        assert told == now
        self.without_room -= now


TestPollBuffer = PollBufferMachine.TestCase
