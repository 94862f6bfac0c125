"""The checks that ci/chaos.sh adds to the audit find what they are for."""

from __future__ import annotations

from typing import Any

from tests.interop.chaos import is_set_back_by_java, late_starts, set_back_by_ours

OURS, JAVAS = "127.0.0.1@17#a", "127.0.0.1@java-18"
MS = 1_000_000


def event(kind: str, t_ms: int, p: str = OURS, **members: Any) -> dict[str, Any]:
    place = {"topic": "orders", "broker": "b", "queue": 0, "epoch": 1}
    return {"type": kind, "t": t_ms * MS, "p": p} | place | members


def lock(t_ms: int, p: str = OURS, **members: Any) -> dict[str, Any]:
    return event("LOCK_OK", t_ms, p, sent=t_ms * MS, lease_ms=100, **members)


def test_a_start_after_the_last_grant_of_its_epoch_ran_out_is_late() -> None:
    late = event("START", 251, offs=[3])
    events = [lock(0), event("START", 99, offs=[1]), lock(150), event("START", 249, offs=[2]), late]
    assert list(late_starts(events)) == [late | {"late_ms": 1.0}]
    without_lock = event("START", 10, offs=[1], epoch=2)
    assert list(late_starts([lock(0), without_lock])) == [without_lock | {"late_ms": None}]
    assert list(late_starts([event("START", 10, JAVAS, offs=[1])])) == []


def test_what_was_committed_and_comes_again_to_ours_is_found_unless_it_was_taken_back() -> None:
    committed, again = event("COMMIT_ACK", 1, off=5), event("START", 3, offs=[4])
    assert len(list(set_back_by_ours([committed, again]))) == 1
    assert list(set_back_by_ours([committed, event("START", 3, offs=[5])])) == []
    assert list(set_back_by_ours([committed, event("START", 3, JAVAS, offs=[4])])) == []
    for excuse in (event("RESET", 2, off=0), event("COMMIT_SENT", 2, JAVAS, off=2)):
        assert list(set_back_by_ours([committed, excuse, again])) == []


def test_a_commit_of_ours_behind_one_of_ours_is_found_unless_javas_came_between() -> None:
    first, second = event("COMMIT_ACK", 1, off=7), event("COMMIT_ACK", 3, off=5)
    (found,) = set_back_by_ours([first, second])
    assert "from 7 to 5" in found
    assert list(set_back_by_ours([second, first])) == []
    for excuse in (event("RESET", 2, off=0), event("COMMIT_SENT", 2, JAVAS, off=4)):
        assert list(set_back_by_ours([first, excuse, second])) == []


def test_a_commit_whose_answer_is_read_late_moves_nothing_back() -> None:
    sent, answered = event("COMMIT_SENT", 1, off=5), event("COMMIT_ACK", 4, off=5)
    others = event("COMMIT_ACK", 2, "127.0.0.1@19#b", off=7, epoch=2)
    assert list(set_back_by_ours([sent, others, answered])) == []
    (found,) = set_back_by_ours([others, sent, answered])
    assert "from 7 to 5" in found


def test_a_repeat_behind_a_commit_of_a_woken_java_member_is_javas() -> None:
    repeat = [event("START", 9, offs=[4, 5]), event("END", 2, offs=[4, 5])]
    javas = event("COMMIT_SENT", 5, JAVAS, off=4)
    assert is_set_back_by_java(repeat, [javas])
    for no_reason in ({"t": MS}, {"t": 10 * MS}, {"off": 5}, {"queue": 7}, {"p": repeat[0]["p"]}):
        assert not is_set_back_by_java(repeat, [javas | no_reason])
