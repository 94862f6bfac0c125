"""One bad history for each invariant, and good ones that look like them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_histories import (
    BROKER_LEASE_MS,
    CLIENT_LEASE_MS,
    Run,
    close_all,
    concurrently,
    two_members,
)

from ordermq.audit import AuditReport, HistoryError, audit
from ordermq.audit.history import Histories
from ordermq.audit.report import INVARIANTS, HandOffKind
from ordermq.clock import CLOCK_ID
from ordermq.events import BY_COMMIT, EventType, History


def broken(report: AuditReport) -> list[str]:
    return [violation.invariant for violation in report.violations]


def sound(run: Run) -> AuditReport:
    report = audit(close_all(run).events)
    assert report.ok, "\n".join(map(str, report.violations))
    return report


# -- bad histories -------------------------------------------------------------------------


def an_offset_below_the_last_one_started() -> Run:
    run = two_members(stored=2)
    run.consume("a", 1)
    run.consume("a", 0)
    run.commit("a", 2)
    return run


def a_first_attempt_at_an_offset_already_attempted_first() -> Run:
    run = two_members(stored=1)
    run.start("a", 0)
    run.end("a", done=0)
    run.consume("a", 0, attempt=0)
    return run


def a_batch_that_is_not_ascending() -> Run:
    run = two_members(stored=2)
    run.consume("a", 1, 0)
    return run


def two_listener_calls_at_once_in_one_epoch() -> Run:
    run = two_members(stored=2)
    run.record("a", "START", offs=[0], keys=["k0"], attempt=0)
    run.record("a", "START", offs=[1], keys=["k1"], attempt=0)
    run.record("a", "END", offs=[0], done=1)
    run.record("a", "END", offs=[1], done=1)
    return run


def two_listener_calls_of_one_key_at_once() -> Run:
    run = two_members(stored=3, keys=["k", "other", "k"])
    run.consume("a", 0)
    run.record("a", "START", offs=[1], keys=["other"], attempt=0, lane=20)
    run.record("a", "START", offs=[2], keys=["k"], attempt=0, lane=20)
    run.record("a", "START", offs=[2], keys=["k"], attempt=1, lane=20)
    run.record("a", "END", offs=[1], done=1)
    run.record("a", "END", offs=[2], done=1)
    return run


def more_messages_at_once_than_a_queue_may_have() -> Run:
    run = two_members(stored=3)
    for offset in range(3):
        run.record("a", "START", offs=[offset], keys=[f"k{offset}"], attempt=0, lane=2)
    for offset in range(3):
        run.record("a", "END", offs=[offset], done=1)
    return run


def an_unlock_by_key_before_what_has_no_gap_is_committed() -> Run:
    run = two_members(stored=3, keys=["x", "y", "z"])
    for offset in (0, 2):
        run.start("a", offset, lane=20)
        run.end("a")
    run.unlock("a")
    run.lock("b", 2)
    for offset in range(3):
        run.start("b", offset, lane=20)
        run.end("b")
    run.commit("b", 3)
    return run


def a_member_starts_while_another_within_its_lease_still_runs() -> Run:
    # The broker let go by itself: had member a unlocked under its listener, I9 would speak too.
    run = two_members(stored=2)
    run.consume("a", 0)
    run.commit("a", 1)
    run.start("a", 1)
    run.release("a")
    run.t += 1
    run.lock("b", 2)
    run.consume("b", 1)
    return run


def a_key_overtaken_by_its_successor() -> Run:
    run = two_members(stored=2, keys=["k", "k"])
    run.start("a", 0)
    run.end("a", done=0)
    run.consume("a", 1)
    run.record("a", "RESET", off=0)
    run.consume("a", 0, 1)
    run.commit("a", 2)
    return run


def a_key_overtaken_in_another_epoch() -> Run:
    run = two_members(stored=3, keys=["k", "x", "k"])
    run.start("a", 0)
    run.crash("a")
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.consume("b", 1)
    run.consume("b", 2)
    run.record("b", "RESET", off=0)
    run.consume("b", 0, 1, 2)
    return run


def a_parked_key_overtaken_by_its_successor() -> Run:
    run = two_members(stored=3, keys=["k", "x", "k"])
    run.start("a", 0, lane=20)
    run.end("a", done=0)
    run.record("a", "DIVERT", offs=[0], keys=["k"], detail="PARKED")
    run.start("a", 2, lane=20)
    run.end("a")
    run.start("a", 1, lane=20)
    run.end("a")
    run.commit("a", 3)
    return run


def parked_messages_replayed_out_of_order() -> Run:
    run = two_members(stored=2, keys=["k", "k"])
    run.start("a", 0, lane=20)
    run.end("a", done=0)
    run.record("a", "DIVERT", offs=[0, 1], keys=["k", "k"], detail="PARKED")
    run.commit("a", 2)
    for offset in (1, 0):
        run.start("a", offset, attempt=1, lane=20)
        run.end("a")
    return run


def a_commit_beyond_an_unfinished_message() -> Run:
    run = two_members(stored=3)
    run.consume("a", 0)
    run.commit("a", 2)
    run.consume("a", 1, 2)
    run.commit("a", 3)
    return run


def a_concurrent_commit_beyond_an_unfinished_message() -> Run:
    run = concurrently(3)
    run.start("a", 1)
    run.end("a")
    run.commit("a", 2)
    for offset in (0, 2):
        run.start("a", offset)
        run.end("a")
    return run


def a_failed_message_that_was_not_sent_back() -> Run:
    run = concurrently(1)
    run.start("a", 0)
    run.end("a", done=0)
    return run


def a_message_sent_back_that_nobody_consumed_again() -> Run:
    run = concurrently(1)
    run.start("a", 0)
    run.end("a", done=0)
    run.record("a", "DIVERT", offs=[0], keys=["k0"])
    run.store(0, keys=["k0"], topic="%RETRY%billing")
    run.commit("a", 1)
    return run


def a_message_nobody_finished() -> Run:
    run = two_members(stored=3)
    run.consume("a", 0)
    run.consume("a", 1)
    run.commit("a", 2)
    return run


def a_whole_queue_nobody_held() -> Run:
    run = two_members(stored=1)
    run.store(0, keys=["k"], queue=1)
    run.consume("a", 0)
    return run


def a_finished_message_started_again_in_one_epoch() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.consume("a", 0, attempt=1)
    run.commit("a", 1)
    return run


def a_message_started_again_below_the_committed_offset() -> Run:
    run = two_members(stored=2)
    run.consume("a", 0, 1)
    run.commit("a", 2)
    run.crash("a")
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.consume("b", 1)
    return run


def a_grant_while_another_member_has_the_lease() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.commit("a", 1)
    run.grant("b", 2)
    return run


def an_epoch_that_does_not_rise() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.commit("a", 1)
    run.unlock("a")
    run.lock("b", 1)
    return run


def a_start_after_the_lease() -> Run:
    run = two_members(stored=1)
    run.wait_ms(31_000)
    run.consume("a", 0)
    return run


def a_commit_sent_after_the_lease() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.wait_ms(31_000)
    run.commit("a", 1)
    return run


def a_start_in_an_epoch_never_granted() -> Run:
    run = two_members(stored=1)
    run.epochs["a"] = 7
    run.consume("a", 0)
    return run


def a_start_after_the_unlock() -> Run:
    run = two_members(stored=1)
    run.unlock("a")
    run.consume("a", 0)
    return run


def a_committed_offset_that_goes_back() -> Run:
    run = two_members(stored=2)
    run.consume("a", 0, 1)
    run.commit("a", 2)
    run.commit("a", 1)
    return run


def a_commit_of_an_old_epoch_accepted() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.record("a", "COMMIT_SENT", off=1)
    run.record("a", "COMMIT_ACK", off=1)
    run.record("a", "UNLOCK")
    run.release("a")
    run.lock("b", 2)
    run.accept("a", 1)
    return run


def an_unlock_while_the_listener_runs() -> Run:
    run = two_members(stored=1)
    run.start("a", 0)
    run.unlock("a")
    run.end("a")
    return run


def an_unlock_before_the_commit_is_acknowledged() -> Run:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.record("a", "COMMIT_SENT", off=1)
    run.unlock("a")
    return run


def a_delivery_before_the_start_is_stored() -> Run:
    run = two_members(stored=1)
    run.start("a", 0)
    run.begin_at("a", 0)
    run.end("a")
    run.commit("a", 1)
    run.unlock("a")
    return run


BAD: list[tuple[str, Callable[[], Run]]] = [
    ("I1", an_offset_below_the_last_one_started),
    ("I1", a_first_attempt_at_an_offset_already_attempted_first),
    ("I1", a_batch_that_is_not_ascending),
    ("I2", two_listener_calls_at_once_in_one_epoch),
    ("I2", two_listener_calls_of_one_key_at_once),
    ("I2", a_member_starts_while_another_within_its_lease_still_runs),
    ("I2", more_messages_at_once_than_a_queue_may_have),
    ("I3", a_key_overtaken_by_its_successor),
    ("I3", a_key_overtaken_in_another_epoch),
    ("I3", a_parked_key_overtaken_by_its_successor),
    ("I3", parked_messages_replayed_out_of_order),
    ("I4", a_commit_beyond_an_unfinished_message),
    ("I4", a_message_nobody_finished),
    ("I4", a_concurrent_commit_beyond_an_unfinished_message),
    ("I4", a_failed_message_that_was_not_sent_back),
    ("I4", a_message_sent_back_that_nobody_consumed_again),
    ("I4", a_whole_queue_nobody_held),
    ("I5", a_finished_message_started_again_in_one_epoch),
    ("I5", a_message_started_again_below_the_committed_offset),
    ("I6", a_grant_while_another_member_has_the_lease),
    ("I6", an_epoch_that_does_not_rise),
    ("I7", a_start_after_the_lease),
    ("I7", a_commit_sent_after_the_lease),
    ("I7", a_start_in_an_epoch_never_granted),
    ("I7", a_start_after_the_unlock),
    ("I8", a_committed_offset_that_goes_back),
    ("I8", a_commit_of_an_old_epoch_accepted),
    ("I9", an_unlock_while_the_listener_runs),
    ("I9", an_unlock_before_the_commit_is_acknowledged),
    ("I9", an_unlock_by_key_before_what_has_no_gap_is_committed),
    ("I16", a_delivery_before_the_start_is_stored),
]


@pytest.mark.parametrize(
    ("invariant", "history"), BAD, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_bad_history_breaks_its_invariant_and_no_other(
    invariant: str, history: Callable[[], Run]
) -> None:
    report = audit(close_all(history()).events)
    assert broken(report) == [invariant], "\n".join(map(str, report.violations))
    assert report.violation is not None
    assert report.violation.sentence
    assert report.violation.events


def test_every_invariant_has_a_bad_history() -> None:
    assert {invariant for invariant, _ in BAD} == set(INVARIANTS)


# -- good histories ------------------------------------------------------------------------


def test_a_graceful_hand_off_is_sound_and_repeats_nothing() -> None:
    run = two_members()
    run.consume("a", 0, 1)
    run.commit("a", 2)
    run.unlock("a")
    run.lock("b", 2)
    run.consume("b", 2, 3)
    run.commit("b", 4)
    report = sound(run)
    assert sum(report.duplicates.values()) == 0
    assert (report.stored, report.delivered, report.committed) == (4, 4, 4)
    [hand_off] = report.hand_offs
    assert (hand_off.old, hand_off.new, hand_off.duplicates) == ("a", "b", 0)
    assert hand_off.unlock_to_lock_ms == 3
    assert hand_off.silence_ms == 8


def released_by_its_commit() -> Run:
    """Member a sends the commit that gives its popped batch's queue away; no broker tells."""
    run = Run(broker=None)
    for offset in range(4):
        run.keys[offset] = f"k{offset}"
    run.open("a")
    run.open("b")
    run.lock("a", 1)
    run.consume("a", 0, 1)
    run.record("a", "COMMIT_SENT", off=2)
    run.record("a", "UNLOCK", detail=BY_COMMIT)
    return run


def test_a_commit_that_releases_the_queue_may_be_told_after_the_next_owners() -> None:
    run = released_by_its_commit()
    run.lock("b", 2)
    run.consume("b", 2, 3)
    run.commit("b", 4)
    run.record("a", "COMMIT_ACK", off=2)
    assert sum(sound(run).duplicates.values()) == 0


def test_a_commit_that_should_release_and_was_lost_may_bring_messages_twice() -> None:
    run = released_by_its_commit()
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.consume("b", 0, 1)
    run.consume("b", 2, 3)
    run.commit("b", 4)
    assert {cause: n for cause, n in sound(run).duplicates.items() if n} == {"lease lost": 2}


def test_a_queue_released_by_a_commit_of_less_than_was_done_is_a_violation() -> None:
    run = released_by_its_commit()
    run.lock("a", 2)
    run.consume("a", 2, 3)
    run.record("a", "COMMIT_SENT", off=3)
    run.record("a", "UNLOCK", detail=BY_COMMIT)
    assert broken(audit(close_all(run).events)) == ["I9"]


def test_a_member_that_closes_left_and_one_that_goes_on_was_joined() -> None:
    left = two_members(stored=1)
    left.consume("a", 0)
    left.commit("a", 1)
    left.unlock("a")
    left.lock("b", 2)
    assert sound(left).hand_offs[0].kind is HandOffKind.LEAVE

    joined = two_members(stored=1)
    joined.consume("a", 0)
    joined.commit("a", 1)
    joined.unlock("a")
    joined.lock("b", 2)
    joined.record("a", "LOCK_OK", queue=1, sent=joined.t, lease_ms=30_000, epoch=9)
    assert sound(joined).hand_offs[0].kind is HandOffKind.JOIN


def test_messages_of_a_crashed_member_may_come_twice() -> None:
    run = two_members()
    run.consume("a", 0)
    run.commit("a", 1)
    run.consume("a", 1)
    run.start("a", 2)
    run.crash("a")
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.consume("b", 1, 2)
    run.consume("b", 3)
    run.commit("b", 4)
    report = sound(run)
    assert report.duplicates["crash of a member"] == 1
    assert report.crashes == 1
    [hand_off] = report.hand_offs
    assert (hand_off.kind, hand_off.duplicates) == (HandOffKind.CRASH, 1)


def database_take_over(told: int) -> Run:
    """A member killed between its transaction's commit and its last line; b asks the database."""
    run = two_members()
    run.consume("a", 0)
    run.start("a", 1)
    run.crash("a")
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.record("b", "TAKE_OVER", off=told)
    run.accept("b", told)  # the broker is told what the database has
    run.record("b", "COMMIT_ACK", off=told)
    return run


def test_what_the_database_has_is_done_though_its_owner_could_not_say_so() -> None:
    run = database_take_over(2)
    run.consume("b", 2)
    run.consume("b", 3)
    run.commit("b", 4)
    report = sound(run)
    assert (report.delivered, report.deliveries) == (4, 4)
    assert sum(report.duplicates.values()) == 0


def test_an_owner_that_was_only_frozen_may_record_its_end_later() -> None:
    run = two_members()
    run.start("a", 0)
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.record("b", "TAKE_OVER", off=1)
    run.consume("b", 1, 2)
    run.end("a")
    run.consume("b", 3)
    run.commit("b", 4)
    report = sound(run)
    assert (report.delivered, report.deliveries) == (4, 4)
    assert sum(report.duplicates.values()) == 0


def test_what_nobody_had_begun_is_not_done_by_a_take_over() -> None:
    run = database_take_over(3)
    run.consume("b", 3)
    run.commit("b", 4)
    assert broken(audit(close_all(run).events)) == ["I4"], "offset 2 was given to no listener"


def test_what_the_database_has_must_not_be_done_again() -> None:
    run = database_take_over(2)
    run.consume("b", 1)
    assert "I5" in broken(audit(close_all(run).events))


def test_a_history_that_is_being_written_is_of_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "broker.jsonl"
    history = History(path, "broker")
    about = {"group": "g", "topic": "orders", "broker": "b", "queue": 0}
    history.record(EventType.STORE, **about, offs=[0, 1], keys=[None, None])
    member = History(tmp_path / "member.jsonl", "member")
    sent = time.clock_gettime_ns(CLOCK_ID)
    member.record(EventType.LOCK_OK, **about, epoch=1, sent=sent, lease_ms=60_000)
    member.record(EventType.START, **about, epoch=1, offs=[0])
    member.record(EventType.END, **about, epoch=1, offs=[0], done=1)
    files = [path, tmp_path / "member.jsonl"]
    report = audit(files, complete=None)
    assert (report.processes, report.crashes, report.running) == (2, 0, 2)
    assert report.ok, "offset 1 may still be consumed"
    assert report.to_dict()["running"] == 2
    asked = audit(files)
    assert asked.violation is not None, "the caller knows that the run has come to rest"
    assert asked.violation.invariant == "I4"
    member.close()
    history._leave_to_parent()  # as a killed process: no CLOSE, and the file is let go of
    report = audit(files, complete=None)
    assert (report.processes, report.crashes, report.running) == (2, 1, 0)
    assert not report.ok, "nobody is left who could consume offset 1"


def test_what_is_written_during_an_audit_is_left_for_the_next(tmp_path: Path) -> None:
    """The broker's file is read after the member's, and has a commit of what that did then."""
    about = {"group": "g", "topic": "orders", "broker": "b", "queue": 0, "epoch": 1}
    with History(tmp_path / "a.jsonl", "a") as member, History(tmp_path / "b", "b") as broker:
        broker.record(EventType.STORE, **about, offs=[0], keys=[None])
        member.record(EventType.START, **about, offs=[0])

        def go_on(count: int) -> None:
            if count == 1:
                member.record(EventType.END, **about, offs=[0], done=1)
                broker.record(EventType.COMMIT_ACK, **about, off=1, client="a")

        events = Histories([tmp_path / "a.jsonl", tmp_path / "b"])
        types = []
        for count, (_, _, event) in enumerate(events, start=1):
            types.append(event["type"])
            go_on(count)
        assert types == ["OPEN", "OPEN", "STORE", "START"]
        assert events.running == 2


def test_a_history_without_close_is_a_crash(tmp_path: Path) -> None:
    run = two_members()
    run.consume("a", 0, 1)
    run.start("a", 2)
    run.wait_ms(60_000)
    run.lock("b", 2)
    run.consume("b", 0, 1, 2, 3)
    run.close("b")
    files = write(run, tmp_path)
    report = audit(files)
    assert report.ok, report.violation
    assert report.crashes == 2  # a, and the broker
    assert report.duplicates["crash of a member"] == 2
    assert report.hand_offs[0].kind is HandOffKind.CRASH


def test_a_history_that_lost_its_first_line_is_no_proof(tmp_path: Path) -> None:
    # As on a disk that was full at the start. A kill of this process would go unnoticed, and the
    # next owner of its queues be taken for a second one.
    path = tmp_path / "member.jsonl"
    with History(path, "a") as history:
        history.record(EventType.LOCK_OK, group="g", topic="t", broker="b", queue=0, epoch=1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(HistoryError, match=r"jsonl:1: 1 events of a before this one were not rec"):
        audit([path])


def test_a_member_stopped_past_its_lease_may_end_its_batch_but_not_commit_it() -> None:
    run = two_members()
    run.consume("a", 0)
    run.commit("a", 1)
    run.start("a", 1)
    run.wait_ms(61_000)  # SIGSTOP
    run.lock("b", 2)
    run.start("b", 1, 2)
    run.end("a")
    run.record("a", "LOCK_LOST")
    run.end("b")
    run.consume("b", 3)
    run.commit("b", 4)
    report = sound(run)
    assert report.duplicates["lease lost"] == 1
    assert report.hand_offs[0].kind is HandOffKind.EXPIRY


def test_a_commit_of_an_old_epoch_may_be_sent_back_fenced() -> None:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.record("a", "COMMIT_SENT", off=1)  # no ACK: the broker refused it
    run.wait_ms(60_000)
    run.record("a", "LOCK_LOST")
    run.lock("b", 2)
    run.consume("b", 0)
    run.commit("b", 1)
    sound(run)


def test_a_restarted_broker_forgets_locks_and_grants_them_at_once() -> None:
    run = two_members()
    run.consume("a", 0)
    run.commit("a", 1)
    run.consume("a", 1)
    run.restart_broker("broker-2")
    run.lock("b", 2)
    run.consume("b", 1, 2, 3)
    run.commit("b", 4)
    run.record("a", "LOCK_LOST")
    report = sound(run)
    assert report.duplicates["broker restart"] == 1
    assert report.hand_offs[0].kind is HandOffKind.BROKER


def test_the_same_member_may_repeat_after_a_broker_restart_under_a_new_epoch() -> None:
    run = two_members(stored=2)
    run.consume("a", 0)
    run.restart_broker("broker-2")
    run.record("a", "LOCK_LOST")
    run.lock("a", 2)
    run.consume("a", 0, 1)
    report = sound(run)
    assert report.duplicates["broker restart"] == 1
    assert report.hand_offs == ()


def test_a_broker_that_keeps_its_locks_over_a_restart_renews_them() -> None:
    run = two_members(stored=2)
    run.consume("a", 0)
    run.restart_broker("broker-2")
    run.lock("a", 1)
    run.consume("a", 1)
    run.commit("a", 2)
    run.unlock("a")
    run.lock("b", 2)
    report = sound(run)
    assert report.hand_offs[0].kind is HandOffKind.LEAVE


def test_a_member_that_records_no_renewals_is_believed_the_brokers() -> None:
    run = two_members(stored=1)
    run.wait_ms(29_000)
    run.grant("a", 1)
    run.wait_ms(29_000)
    run.consume("a", 0)
    run.commit("a", 1)
    sound(run)


def test_a_member_that_regains_a_lock_nobody_took_begins_again_in_the_same_epoch() -> None:
    run = two_members(stored=2)
    run.consume("a", 0)
    run.record("a", "LOCK_LOST", epoch=0)
    run.lock("a", 1)
    run.consume("a", 0, 1)
    run.commit("a", 2)
    assert sound(run).duplicates["lease lost"] == 1


def test_a_partial_end_lets_the_rest_come_again() -> None:
    run = two_members()
    run.start("a", 0, 1, 2)
    run.end("a", done=1)
    run.consume("a", 1, 2, 3, attempt=1)
    run.commit("a", 4)
    sound(run)


def test_a_suspended_batch_may_come_in_smaller_pieces() -> None:
    run = two_members()
    for attempt in range(3):
        run.start("a", 0, 1, 2, attempt=attempt)
        run.end("a", done=0)
    run.consume("a", 0, 1, attempt=3)
    run.consume("a", 2, attempt=3)
    run.consume("a", 3)
    run.commit("a", 4)
    sound(run)


def test_a_member_may_leave_with_a_failing_message_uncommitted() -> None:
    run = two_members(stored=2)
    run.consume("a", 0)
    run.start("a", 1)
    run.end("a", done=0)
    run.commit("a", 1)
    run.unlock("a")
    run.lock("b", 2)
    run.consume("b", 1)
    run.commit("b", 2)
    sound(run)


def test_messages_of_other_tags_are_nobodys_loss() -> None:
    run = Run()
    run.store(0, 1, 2, 3, keys=["k"] * 4, tags=["paid", "lost", "paid", None])
    run.open("a")
    run.lock("a", 1)
    run.consume("a", 0)
    run.consume("a", 2)
    run.commit("a", 4)
    close_all(run)
    assert audit(run.events, subscription_tags=["paid"]).ok
    assert broken(audit(run.events)) == ["I3", "I4"]


def test_a_rollback_repeats_finished_messages_with_a_reason() -> None:
    run = two_members(stored=2)
    run.consume("a", 0)
    run.consume("a", 1)
    run.record("a", "ROLLBACK")
    run.consume("a", 0, 1)
    run.commit("a", 2)
    assert sound(run).duplicates["rollback"] == 2


def test_batches_held_for_a_manual_commit_may_come_again_at_the_next_holder() -> None:
    run = two_members(stored=3)
    run.start("a", 0)
    run.end("a", detail="COMMIT")
    run.commit("a", 1)
    run.start("a", 1)
    run.end("a", detail="HOLD")
    run.unlock("a")
    run.lock("b", 2)
    run.consume("b", 1, 2)
    run.commit("b", 3)
    assert sound(run).duplicates["rollback"] == 1


def test_an_unlock_after_the_lease_has_ended_owes_no_commit() -> None:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.wait_ms(31_000)
    run.unlock("a")
    run.lock("b", 2)
    run.consume("b", 0)
    run.commit("b", 1)
    assert sound(run).duplicates["lease lost"] == 1


def test_a_reset_may_go_back_and_forth() -> None:
    run = two_members()
    run.consume("a", 0, 1)
    run.commit("a", 2)
    run.record("a", "RESET", off=0)
    run.consume("a", 0)
    run.commit("a", 1)
    run.record("a", "RESET", off=3)
    run.consume("a", 3)
    run.commit("a", 4)
    report = sound(run)
    assert report.duplicates["reset"] == 1


def test_a_repeat_counts_at_the_change_of_owner_only_if_that_caused_it() -> None:
    run = two_members()
    run.consume("a", 0, 1)
    run.commit("a", 2)
    run.unlock("a")
    run.lock("b", 2)
    run.record("b", "RESET", epoch=2, off=0)
    run.consume("b", 0, 1)
    run.commit("b", 2)
    run.consume("b", 2, 3)
    run.commit("b", 4)
    report = sound(run)
    assert report.duplicates["reset"] == 2
    [hand_off] = report.hand_offs
    assert hand_off.duplicates == 0


def test_a_group_that_begins_at_the_end_owes_nothing_before() -> None:
    run = two_members()
    run.commit("a", 2)
    run.consume("a", 2, 3)
    run.commit("a", 4)
    sound(run)
    assert broken(audit(run.events, start_offsets=0)) == ["I4"]


def test_a_diverted_message_is_settled_and_lets_its_key_go_on() -> None:
    run = two_members(stored=2, keys=["k", "k"])
    run.start("a", 0)
    run.end("a", done=0)
    run.record("a", "DIVERT", offs=[0], keys=["k"])
    run.consume("a", 1)
    run.commit("a", 2)
    report = sound(run)
    assert (report.delivered, report.diverted) == (1, 1)


def test_parked_messages_hold_no_commit_and_are_replayed_in_order_even_twice() -> None:
    run = two_members(stored=3, keys=["k", "k", "k"])
    run.start("a", 0, lane=20)
    run.end("a", done=0)
    run.record("a", "DIVERT", offs=[0, 1], keys=["k", "k"], detail="PARKED")
    run.commit("a", 2)
    for offset in (0, 1, 0, 1, 2):  # the second time, the mark of the first was lost
        run.start("a", offset, attempt=1, lane=20)
        run.end("a")
    run.commit("a", 3)
    report = sound(run)
    assert (report.delivered, report.diverted) == (3, 2)


def test_keys_run_beside_each_other_in_key_mode() -> None:
    run = two_members(stored=3, keys=["x", "y", "x"])
    run.record("a", "START", offs=[0], keys=["x"], attempt=0, lane=20)
    run.record("a", "START", offs=[1], keys=["y"], attempt=0, lane=20)
    run.record("a", "END", offs=[0], done=1)
    run.record("a", "START", offs=[2], keys=["x"], attempt=0, lane=20)
    run.record("a", "END", offs=[2], done=1)
    run.record("a", "END", offs=[1], done=1)
    run.commit("a", 3)
    sound(run)


def a_lane_ahead_of_another(committed: int) -> Run:
    run = two_members(stored=3, keys=["x", "y", "y"])
    for offset in (1, 2):
        run.start("a", offset, lane=20)
        run.end("a")
    run.start("a", 0, lane=20)
    run.end("a", done=0)
    run.commit("a", committed)
    run.unlock("a")
    run.lock("b", 2)
    for offset in range(committed, 3):
        run.start("b", offset, lane=20)
        run.end("b")
    run.commit("b", 3)
    return run


def test_a_hand_off_in_key_mode_repeats_only_what_ran_ahead_of_a_slower_key() -> None:
    report = sound(a_lane_ahead_of_another(committed=0))
    assert report.duplicates["hand-off without crash"] == 2
    bad = audit(close_all(a_lane_ahead_of_another(committed=1)).events)
    assert broken(bad) == ["I4"]


def test_a_concurrent_group_may_overlap_overtake_and_repeat_but_not_lose() -> None:
    run = concurrently(4)
    for offset in (1, 0, 2):
        run.record("a", "START", offs=[offset], keys=["same"], attempt=0)
    run.record("a", "END", offs=[2], done=1)
    run.record("a", "END", offs=[0], done=0)
    run.record("a", "DIVERT", offs=[0], keys=["same"])
    run.store(0, keys=["same"], topic="%RETRY%billing")
    run.record("a", "END", offs=[1], done=1)
    run.commit("a", 3)
    run.start("b", 2)  # the queue moves, before that commit was read
    run.end("b")
    run.start("b", 3)
    run.end("b")
    run.commit("b", 4)
    run.commit("a", 3)  # late
    run.start("b", 0, topic="%RETRY%billing")
    run.end("b", topic="%RETRY%billing")
    report = sound(run)
    assert (report.delivered, report.sent_back, report.diverted) == (4, 1, 0)
    assert report.duplicates["group without locks"] == 1


def test_a_late_commit_of_a_concurrent_group_is_allowed_whose_first_start_comes_after_it() -> None:
    run = concurrently(4)
    # On a queue whose messages a third member had, whose history is not there.
    run.commit("a", 3)
    run.commit("b", 1)
    run.start("b", 3)
    run.end("b")
    found = broken(audit(close_all(run).events, start_offsets=0))
    assert found == ["I4"], "only what is not told is missing"


def test_a_message_may_start_before_the_broker_has_written_its_line() -> None:
    run = two_members(stored=1)
    run.consume("a", 0)
    run.consume("a", 1)
    run.commit("a", 2)
    run.store(1, keys=["k0"])
    sound(run)


def test_a_lease_at_the_broker_runs_from_its_decision_and_not_from_its_write() -> None:
    run = Run()
    run.store(0)
    run.open("a")
    run.open("b")
    run.grant("a", 1, write_ms=500)
    run.wait_ms(BROKER_LEASE_MS - 300)
    run.grant("b", 2)  # 201 ms behind the end of the lease, and 300 before it by the lines
    assert audit(run.events, complete=False).ok
    run.wait_ms(BROKER_LEASE_MS - 500)
    run.grant("a", 3, write_ms=600)  # decided too early, and written late enough
    assert broken(audit(run.events, complete=False)) == ["I6"]


def test_a_run_cut_short_is_not_asked_for_its_last_messages() -> None:
    run = two_members()
    run.consume("a", 0)
    assert broken(audit(run.events)) == ["I4"]
    assert audit(run.events, complete=False).ok


def test_a_history_without_a_broker_is_checked_by_the_clients_leases() -> None:
    run = Run(broker=None)
    run.open("a")
    run.open("b")
    run.lock("a", 1)
    run.consume("a", 0)
    run.lock("b", 2)
    assert broken(audit(run.events)) == ["I6"]


def test_a_member_whose_unlock_was_lost_with_the_broker_gets_its_own_epoch_again() -> None:
    run = Run(broker=None)
    run.open("a")
    run.lock("a", 1)
    run.consume("a", 0)
    run.commit("a", 1)
    run.unlock("a")
    run.lock("a", 1)
    run.consume("a", 1)
    run.commit("a", 2)
    sound(run)


def a_late_grant(*, taken_over_after_ms: int = CLIENT_LEASE_MS + 10) -> Run:
    """Member a is stopped between its grant and the record of it, until its lease is over."""
    run = Run(broker=None)
    run.open("a")
    run.open("b")
    sent = run.t
    run.wait_ms(taken_over_after_ms)
    run.lock("b", 2)
    run.wait_ms(CLIENT_LEASE_MS + 10 - taken_over_after_ms)
    run.epochs["a"] = 1
    run.record("a", "LOCK_OK", sent=sent, lease_ms=CLIENT_LEASE_MS)
    return run


def test_a_grant_that_was_over_when_it_was_recorded_overlaps_with_none() -> None:
    run = a_late_grant()
    run.begin_at("a", 0)
    run.unlock("a")
    run.consume("b", 0)
    run.commit("b", 1)
    run.unlock("b")
    sound(run)


def test_a_late_grant_may_show_that_the_next_one_came_too_early() -> None:
    run = a_late_grant(taken_over_after_ms=CLIENT_LEASE_MS - 100)
    assert broken(audit(run.events, complete=False)) == ["I6"]


def test_what_is_done_under_a_late_grant_is_done_after_its_lease() -> None:
    run = a_late_grant()
    run.consume("a", 0)
    assert "I7" in broken(audit(run.events, complete=False))


# -- files ---------------------------------------------------------------------------------


def write(run: Run, folder: Path) -> list[Path]:
    """A file for each process, as `History` would have written it."""
    files: dict[str, list[str]] = {}
    for event in run.events:
        files.setdefault(event["p"], []).append(json.dumps(event) + "\n")
    paths = []
    for process, lines in files.items():
        path = folder / f"{process}.jsonl"
        path.write_text("".join(lines))
        paths.append(path)
    return paths


def test_files_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    run = a_commit_beyond_an_unfinished_message()
    report = audit(write(run, tmp_path))
    assert broken(report) == ["I4"]
    assert report.violation is not None
    store, sent, acknowledged = report.violation.events
    assert Path(store.file).name == "broker-1.jsonl"
    assert store.event["type"] == "STORE"
    assert (Path(sent.file).name, sent.line, sent.event["type"]) == ("a.jsonl", 5, "COMMIT_SENT")
    assert acknowledged.event["client"] == "a"


def test_the_cut_last_line_of_a_killed_process_is_passed_over(tmp_path: Path) -> None:
    run = two_members(stored=1)
    run.consume("a", 0)
    files = write(run, tmp_path)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole + b'{"p":"a","seq":9,"t":12')
    assert audit(files).ok
    cut_by_a_kill = whole + b'{"p":"a","seq":9,"t":12' + whole.splitlines(keepends=True)[0]
    files[1].write_bytes(cut_by_a_kill)
    assert audit(files).ok


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{]", "not a JSON line"),
        ("[1]", "expected an object"),
        ('{"p":"a","t":1,"type":"STRAT"}', "unknown event type 'STRAT'"),
        ('{"p":"a","type":"OPEN"}', "without the time t"),
        ('{"p":"a","t":1,"type":"START"}', "START without a queue"),
        ('{"p":"a","t":1,"type":"START","queue":0,"offs":3}', "START without offs"),
        ('{"p":"a","t":1,"type":"COMMIT_ACK","queue":0}', "COMMIT_ACK without off"),
        ('{"p":"a","t":1,"type":"END","queue":0,"offs":[1]}', "END without done"),
    ],
)
def test_any_other_bad_line_is_an_error_that_names_it(
    tmp_path: Path, line: str, fault: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"p":"a","seq":0,"t":1,"type":"OPEN"}\n' + line + "\n")
    with pytest.raises(HistoryError, match=r"bad\.jsonl:2: ") as caught:
        audit(path)
    assert fault in str(caught.value)


def test_what_history_records_audit_reads(tmp_path: Path) -> None:
    queue = {"group": "g", "topic": "t", "broker": "b", "queue": 3, "epoch": 5}
    with History(tmp_path / "broker.jsonl", "broker") as broker:
        broker.record(EventType.STORE, topic="t", broker="b", queue=3, offs=[7], keys=["k"])
        broker.record(EventType.LOCK_OK, **queue, client="c", lease_ms=1_000)
        with History(tmp_path / "c.jsonl", "c") as client:
            now = int(json.loads((tmp_path / "c.jsonl").read_text())["t"])
            client.record(EventType.LOCK_OK, **queue, sent=now, lease_ms=60_000)
            client.record(EventType.START, **queue, offs=[7], keys=["k"], attempt=0)
            client.record(EventType.END, **queue, offs=[7], done=1)
            client.record(EventType.COMMIT_SENT, **queue, off=8)
            broker.record(EventType.COMMIT_ACK, **queue, client="c", off=8)
            client.record(EventType.COMMIT_ACK, **queue, off=8)
            client.record(EventType.UNLOCK, **queue)
    report = audit([tmp_path / "broker.jsonl", tmp_path / "c.jsonl"])
    assert report.ok, report.violation
    assert (report.stored, report.delivered, report.committed) == (1, 1, 1)
    assert report.to_dict()["messages"]["deliveries"] == 1


def test_offsets_far_from_zero_and_below_the_first_seen_cost_no_more() -> None:
    run = Run(broker=None)
    run.open("a")
    run.lock("a", 1)
    far = 10**12
    run.record("a", "RESET", off=far + 50_000)
    run.consume("a", far + 50_000)
    run.record("a", "RESET", off=far)
    run.consume("a", far)
    report = audit(run.events)
    assert report.ok, report.violation
    assert report.delivered == 2
