"""What a lite pull consumer buffers, hands out, and may commit."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from ordermq import MessageQueue
from ordermq.config.pull import LitePullConfig
from ordermq.consumer.polled_batch import NOTHING, PolledBatch
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from ordermq.errors import StateError
from tests.unit.consumer.batches import batch

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
ME, OTHER = "this thread", "another thread"


def buffer(**settings: int) -> PollBuffer:
    return PollBuffer(LitePullConfig(**settings), lambda _: None)


def put(held: PollBuffer, pulled: PulledQueue, offsets: Iterable[int], end: int) -> None:
    assert held.accept(pulled, pulled.generation, batch(offsets), end)
    held._check()


def took(found: PolledBatch | None) -> list[int] | None:
    return None if found is None else found.offsets()


def commits(pairs: list[tuple[PulledQueue, int]]) -> dict[MessageQueue, int]:
    return {pulled.queue: offset for pulled, offset in pairs}


def test_queues_take_turns() -> None:
    held = buffer()
    queues = [held.hold(queue, 0, 0) for queue in (A, B, C)]
    for pulled in queues:
        put(held, pulled, range(4), 4)
    turns = [held.take(ME, 2) for _ in range(6)]
    assert [turn.message_queue for turn in turns if turn] == [A, B, C, A, B, C]
    assert [took(turn) for turn in turns] == [[0, 1]] * 3 + [[2, 3]] * 3
    assert held.take(ME, 2) is None


def test_several_pulls_are_handed_out_together() -> None:
    held = buffer()
    pulled = held.hold(A, 5, None)
    put(held, pulled, (5, 6), 7)
    put(held, pulled, (8, 9), 12)
    found = held.take(ME, 100)
    assert took(found) == [5, 6, 8, 9]
    assert found is not None
    assert found.next_offset == 12  # 10 and 11 have other tags


def test_a_batch_may_end_within_a_pull() -> None:
    held = buffer()
    pulled = held.hold(A, 0, None)
    put(held, pulled, (0, 3, 6), 9)
    found = held.take(ME, 2)
    assert (took(found), found and found.next_offset, pulled.position) == ([0, 3], 6, 6)
    assert took(held.take(ME, 2)) == [6]
    assert pulled.position == 9


def test_a_batch_is_done_when_its_poller_comes_back() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    put(held, pulled, range(4), 4)
    assert took(held.take(ME, 2)) == [0, 1]
    assert commits(held.done()) == {}
    assert took(held.take(OTHER, 2)) == [2, 3]
    assert held.take(OTHER, 2) is None  # done with 2 and 3, but the first half is still out
    assert commits(held.done()) == {}
    assert held.unfinished() == [(ME, A)]
    assert held.take(ME, 2) is None
    assert commits(held.done()) == {A: 4}


def test_a_commit_of_everything_polled_vouches_for_what_is_handed_out() -> None:
    held = buffer()
    one, two = held.hold(A, 0, 0), held.hold(B, 7, 7)
    put(held, one, range(4), 4)
    put(held, two, range(7, 9), 9)
    held.take(ME, 2)
    assert commits(held.polled()) == {A: 2}
    assert commits(held.done()) == {A: 2}
    one.committed = 2
    assert commits(held.polled()) == {}


def test_offsets_that_were_filtered_out_are_committed_without_a_message() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    put(held, pulled, (), 800)
    assert commits(held.done()) == {A: 800}
    put(held, pulled, (805,), 810)
    assert commits(held.done()) == {A: 800}
    put(held, pulled, (), 900)  # behind a message that is buffered: only with it
    assert commits(held.done()) == {A: 800}
    held.take(ME, 9)
    held.finish(ME)
    assert commits(held.done()) == {A: 900}


def test_a_seek_forgets_what_was_buffered_handed_out_and_under_way() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    put(held, pulled, range(4), 4)
    before = pulled.generation
    held.take(ME, 2)
    held.seek(A, 100)
    held._check()
    assert held.take(ME, 2) is None
    assert not held.accept(pulled, before, batch((4, 5)), 6)
    assert commits(held.done()) == {A: 100}
    put(held, pulled, (100,), 101)
    assert took(held.take(OTHER, 2)) == [100]
    held.finish(ME)  # comes back with a batch from before the seek
    assert commits(held.done()) == {A: 100}
    held.finish(OTHER)
    assert commits(held.done()) == {A: 101}


def test_a_batch_from_before_a_seek_finishes_none_that_begins_where_it_did() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    put(held, pulled, range(4), 4)
    held.take(ME, 2)
    held.seek(A, 0)
    put(held, pulled, range(4), 4)
    held.take(OTHER, 2)
    held.finish(ME)
    assert commits(held.done()) == {}


def test_a_queue_that_is_lost_is_neither_handed_out_nor_committed() -> None:
    held = buffer()
    pulled, other = held.hold(A, 0, 0), held.hold(B, 0, 0)
    put(held, pulled, range(4), 4)
    put(held, other, range(4), 4)
    held.take(ME, 2)
    held.drop(pulled)
    held._check()
    assert not held.accept(pulled, pulled.generation, batch((4,)), 5)
    assert held.take(ME, 9).message_queue == B  # type: ignore[union-attr]
    assert commits(held.polled()) == {B: 4}
    with pytest.raises(StateError, match="not ours now"):
        held.find(A)
    again = held.hold(A, 0, 0)
    held.drop(pulled)  # the end of the old one takes nothing from the new one
    assert held.find(A) is again


def test_a_paused_queue_keeps_its_messages() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    put(held, pulled, (0, 1), 2)
    held.pause([A])
    held._check()
    assert held.take(ME, 9) is None
    assert not held.may_pull(pulled)
    put(held, pulled, (2,), 3)  # was under way
    assert held.take(ME, 9) is None
    held.resume([A])
    held._check()
    assert took(held.take(ME, 9)) == [0, 1, 2]
    with pytest.raises(StateError):
        held.pause([A, B])
    assert held.may_pull(pulled)


def test_pulling_pauses_strictly_above_each_threshold() -> None:
    size = len(batch((0,)).body)
    held = buffer(pull_threshold_for_queue=3, pull_threshold_for_all=5)
    one, two = held.hold(A, 0, 0), held.hold(B, 0, 0)
    put(held, one, range(3), 3)
    assert held.may_pull(one)
    put(held, one, (3,), 4)
    assert not held.may_pull(one)
    assert held.may_pull(two)
    put(held, two, range(2), 2)
    assert not held.may_pull(two)  # six in all
    held.take(ME, 1)
    assert held.may_pull(two)
    full = buffer(
        pull_threshold_size_for_queue_mib=1,
        pull_threshold_for_queue=65_535,
        pull_threshold_for_all=65_535,
    )
    big = full.hold(A, 0, 0)
    most = (1 << 20) // size
    put(full, big, range(most), most)
    assert full.may_pull(big)
    put(full, big, (most,), most + 1)
    assert not full.may_pull(big)


def test_who_waits_for_room_is_told() -> None:
    told: list[PulledQueue] = []
    held = PollBuffer(LitePullConfig(pull_threshold_for_all=1), told.append)
    pulled, other = held.hold(A, 0, 0), held.hold(B, 0, 0)
    put(held, pulled, (0, 1, 2), 3)
    put(held, other, (0,), 1)
    held.take(ME, 1)
    assert told == []  # nobody waited
    assert not held.may_pull(pulled)
    assert not held.may_pull(other)
    held.take(ME, 9)
    assert told == []  # two are still too many in all
    held.take(ME, 1)
    assert sorted(item.queue for item in told) == [A, B]
    put(held, pulled, (3, 4, 5), 6)
    assert not held.may_pull(other)
    held.seek(A, 0)
    assert told[2:] == [other]
    put(held, other, (1, 2), 3)
    assert not held.may_pull(other)
    held.drop(other)
    assert told[3:] == []


def test_a_waiting_poller_wakes_for_a_message_a_resume_and_the_end() -> None:
    held = buffer()
    pulled = held.hold(A, 0, 0)
    first = held.wait()
    assert first is not None
    put(held, pulled, (), 5)
    assert not first.done()
    put(held, pulled, (5,), 6)
    assert first.done()
    assert held.wait() is None
    held.pause([A])
    second = held.wait()
    assert second is not None
    held.resume([A])
    assert second.done()
    held.take(ME, 9)
    cancelled, third = held.wait(), held.wait()
    assert cancelled is not None
    assert third is not None
    cancelled.cancel()
    held.close()
    assert third.done()
    assert held.wait() is None
    assert held.take(ME, 9) is None


def test_takers_on_many_threads_get_every_message_once() -> None:
    held = buffer()
    queues = [held.hold(queue, 0, 0) for queue in (A, B, C)]
    for start in range(0, 900, 30):
        for pulled in queues:
            put(held, pulled, range(start, start + 30), start + 30)
    taken: list[tuple[MessageQueue, int]] = []

    def work() -> None:
        while (found := held.take(threading.current_thread(), 7)) is not None:
            taken.extend((found.message_queue, offset) for offset in found.offsets())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(pulled.queue, n) for pulled in queues for n in range(900)]
    held._check()
    assert commits(held.done()) == dict.fromkeys((A, B, C), 900)


def test_an_empty_batch_has_no_queue() -> None:
    assert not NOTHING
    assert list(NOTHING) == []
    assert repr(NOTHING) == "<PolledBatch, empty>"
    with pytest.raises(StateError, match="of no queue"):
        _ = NOTHING.message_queue
