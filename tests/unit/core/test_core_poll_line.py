"""The line of pollers: what it hands out, ends and counts, and what follows for the queues."""

from __future__ import annotations

import importlib
from collections import deque
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.core import reference, status
from tests.unit.core.stored_records import record

ME, OTHER = "me", "another"


class Lease(NamedTuple):
    epoch: int
    deadline_ms: int


class Line:
    """A line of a core, with two queues."""

    def __init__(self, core: ModuleType, *, is_ordered: bool) -> None:
        self.core = core
        self.ready: deque[Any] = deque()
        self.out: dict[str, Any] = {}
        self.line = core.PollLine(self.ready, self.out, is_ordered=is_ordered, settle="settles")
        self.queues = [
            core.AssignedQueue(
                name,
                Lease(1, 100),
                0,
                claim=core.Claim,
                run=core.MessageRun,
                counts_running=is_ordered,
            )
            for name in ("a", "b")
        ]

    def put(self, which: int, count: int) -> None:
        queue = self.queues[which]
        first = queue.process_queue.next_pull_offset
        body = b"".join(record(offset=first + number, body=b"m") for number in range(count))
        flags = queue.accept_batch(queue.generation, self.core.MessageIndex(body), first + count)
        if flags & status.DISPATCH:
            self.ready.append(queue)

    def take(self, poller: str, limit: int, now_ms: int = 0) -> Any:
        return self.line.take(self.core.PolledRun, poller, limit, now_ms)

    def seen(self) -> list[object]:
        """Return all that can be seen of it, in words that do not name the core."""
        places = {queue: place for place, queue in enumerate(self.queues)}
        follows = [(places[queue], flags) for queue, flags in self.line.follows]
        self.line.follows.clear()
        polled, finished = self.line.take_counts()
        out = {
            poller: (batch.offsets(), batch.next_offset, places[batch.assigned], batch.settle)
            for poller, batch in self.out.items()
        }
        counts = [(places[queue], batches, count) for queue, batches, count in finished]
        states = [(queue.done_offset, queue.running_count, queue.position) for queue in self.queues]
        return [follows, polled, counts, out, [places[each] for each in self.ready], states]


def test_a_batch_knows_its_queue_and_its_claim_and_is_of_the_class_asked_for(
    core: ModuleType,
) -> None:
    class Kind(core.PolledRun):  # type: ignore[misc, name-defined]
        __slots__ = ()

    line = Line(core, is_ordered=True)
    line.put(0, 3)
    batch = line.line.take(Kind, ME, 2, 0)
    assert type(batch) is Kind
    assert batch.assigned is line.queues[0]
    assert batch.claim.messages.offsets() == batch.offsets() == [0, 1]
    assert (batch.next_offset, batch.settle, len(batch)) == (2, "settles", 2)
    assert line.out == {ME: batch}


def test_in_order_the_next_batch_of_a_queue_waits_for_the_end_of_the_last(
    core: ModuleType,
) -> None:
    line = Line(core, is_ordered=True)
    line.put(0, 3)
    assert line.take(ME, 2).offsets() == [0, 1]
    assert line.take(OTHER, 2) is None
    assert line.take(ME, 2).offsets() == [2]
    line.line.end(ME, 0)
    assert line.line.follows == [(line.queues[0], status.IDLE)]
    assert line.line.take_counts() == (3, [(line.queues[0], 2, 3)])
    assert line.line.take_counts() == (0, [])
    assert line.out == {}


def test_in_order_what_ends_without_its_lease_is_not_counted(core: ModuleType) -> None:
    line = Line(core, is_ordered=True)
    line.put(0, 3)
    line.take(ME, 2)
    line.line.end(ME, 100)
    assert line.line.follows == [(line.queues[0], status.LEASE_OVER | status.WHILE_CLAIMED)]
    assert line.line.take_counts() == (2, [])
    assert not line.ready


def test_a_limit_below_one_is_refused(core: ModuleType) -> None:
    line = Line(core, is_ordered=True)
    line.put(0, 1)
    with pytest.raises(ValueError, match="0"):
        line.take(ME, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("take"), st.sampled_from([ME, OTHER]), st.integers(1, 5)),
        st.tuples(st.just("end"), st.sampled_from([ME, OTHER]), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 1), st.just(1)),
        st.tuples(st.just("resume"), st.integers(0, 1), st.just(1)),
        st.tuples(st.just("revoke"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.just(0)),
    ),
    max_size=30,
)


def follow(line: Line, step: tuple[str, Any, int]) -> object:
    name, which, number = step
    if name == "put":
        line.put(which, number)
    elif name == "take":
        found = line.take(which, number)
        return None if found is None else found.offsets()
    elif name == "end":
        line.line.end(which, number)
    elif name == "pause":
        line.queues[which].pause_for(number)
    elif name == "resume":
        if line.queues[which].resume_from(number):
            line.ready.append(line.queues[which])
    elif name == "revoke":
        return line.queues[which].revoke()
    else:
        line.queues[which].lose()
    return None


@pytest.mark.parametrize("is_ordered", [True, False])
@given(steps=STEPS)
def test_the_native_line_does_what_the_reference_does(
    is_ordered: bool, steps: list[tuple[str, Any, int]]
) -> None:
    native = importlib.import_module("ordermq.core._cython")
    lines = [Line(each, is_ordered=is_ordered) for each in (native, reference)]
    for step in steps:
        found, expected = (follow(line, step) for line in lines)
        assert found == expected, step
        assert lines[0].seen() == lines[1].seen(), step
