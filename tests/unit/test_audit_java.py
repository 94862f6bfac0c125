"""The checker's own test: Java's rules must fail where docs/internals/semantics.md#invariants says
so."""

from __future__ import annotations

from java_model import JavaGroup, Member

from ordermq.audit import AuditReport, audit


def hand_off(listener_ms: int, at_ms: int = 21_000) -> AuditReport:
    """Member a holds the queue; b joins and a has to let go."""
    group = JavaGroup(messages=12, listener_ms=listener_ms)
    a, b = Member(group, "a"), Member(group, "b")
    a.join()
    group.after(at_ms, a.drop)
    group.after(at_ms, b.join)
    return audit(group.play(400_000).events)


def stop(for_ms: int) -> AuditReport:
    """Member a is stopped in its second batch, b takes over when the broker's lock is old."""
    group = JavaGroup(messages=20, listener_ms=8_000)
    a, b = Member(group, "a"), Member(group, "b")
    a.join()
    group.after(1_000, b.join)
    group.after(12_000, lambda: a.stop(for_ms))
    return audit(group.play(400_000).events)


def broken(report: AuditReport) -> set[str]:
    return {violation.invariant for violation in report.violations}


def slow_hand_off() -> AuditReport:
    """The queue is taken away 19 s after the last renewal, 11 s before the listener returns."""
    return hand_off(listener_ms=25_000, at_ms=39_000)


def test_a_java_hand_off_repeats_the_running_batch_and_unlocks_without_committing_it() -> None:
    report = hand_off(listener_ms=4_000)
    assert broken(report) == {"I5", "I9"}
    assert report.duplicates["hand-off without crash"] >= 1


def test_a_java_hand_off_with_a_slow_listener_has_two_owners() -> None:
    assert {"I2", "I9"} <= broken(slow_hand_off())


def test_a_java_member_stopped_past_its_lease_commits_back() -> None:
    assert {"I7", "I8"} <= broken(stop(for_ms=65_000))


def test_the_same_stop_within_the_lease_is_sound() -> None:
    assert broken(stop(for_ms=5_000)) == set()


def test_slow_hand_off_and_stop_fail_every_invariant_java_cannot_keep() -> None:
    found = broken(hand_off(4_000)) | broken(slow_hand_off()) | broken(stop(65_000))
    assert {"I2", "I5", "I7", "I8", "I9"} <= found
