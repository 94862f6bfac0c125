"""Ids of pops whose answers were lost (docs/internals/semantics.md#pop)."""

from __future__ import annotations

import pytest

from ordermq.clock import ManualClock
from ordermq.consumer.pop.attempts import Attempts

POLL_MS = 5_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def attempts(clock: ManualClock) -> Attempts:
    return Attempts(clock, POLL_MS)


def test_every_pop_has_an_id_of_its_own(attempts: Attempts) -> None:
    assert len({attempts.next_id() for _ in range(100)}) == 100


def test_a_pop_without_an_answer_is_asked_for_again_when_no_server_can_hold_it(
    attempts: Attempts, clock: ManualClock
) -> None:
    asked_ms = clock.now_ms()
    lost = attempts.next_id()
    clock.advance(2_000)
    attempts.failed(lost, asked_ms)
    clock.advance(POLL_MS - 2_000)
    assert attempts.next_id() != lost
    clock.advance(1_000)  # a request may come late
    assert attempts.next_id() == lost
    assert attempts.next_id() != lost


def test_pops_without_answers_are_asked_for_again_one_after_the_other(
    attempts: Attempts, clock: ManualClock
) -> None:
    lost = [attempts.next_id() for _ in range(3)]
    for attempt_id in lost:
        attempts.failed(attempt_id, clock.now_ms())
        clock.advance(100)
    clock.advance(POLL_MS + 1_000)
    assert [attempts.next_id() for _ in lost] == lost


def test_at_the_end_all_of_them_are_taken(attempts: Attempts, clock: ManualClock) -> None:
    attempts.failed("a", clock.now_ms())
    attempts.failed("b", clock.now_ms())
    assert attempts.take_unanswered() == ["a", "b"]
    assert attempts.take_unanswered() == []


def test_breaks_without_end_leave_no_trail(attempts: Attempts, clock: ManualClock) -> None:
    for _ in range(1_000):
        attempts.failed(attempts.next_id(), clock.now_ms())
    assert len(attempts.take_unanswered()) == 32
