"""Killed, frozen and restarted processes; every history goes to the audit
(docs/internals/semantics.md#invariants)."""

from __future__ import annotations

import json
import signal

import pytest

from ordermq.audit import audit
from ordermq.events import EventType
from tests.chaos.conftest import Child, Stage, whole_lines
from tests.interop.chaos import events_of, is_woken, late_starts


def assert_nothing_lost(stage: Stage) -> None:
    stage.wait_until_all_seen()
    for child in stage.children:
        if child is not stage.broker and child.process.poll() is None:
            assert child.end() == 0
    stage.broker.end()
    stage.harness.close()
    report = audit(stage.histories)
    # The first late start is in the report; of all of them, only those of a member frozen between
    # its check and its call may be there.
    woken = {child.process.pid: child.woken for child in stage.children}
    events = list(events_of(stage.members_histories))
    late = [event for event in late_starts(events) if not is_woken(event, woken)]
    assert not late, late
    others = [violation for violation in report.violations if violation.invariant != "I7"]
    assert not others, "\n".join(map(str, others))
    # A broker killed between commit and record has stored more than its history tells.
    assert report.stored <= len({(queue, offset) for queue, offset, _, _ in stage.seen()})
    for key, numbers in first_copies(stage).items():
        assert numbers == sorted(numbers), f"key {key} stored out of order"
    for key, offsets in first_deliveries(stage).items():
        assert offsets == sorted(offsets), f"key {key} delivered out of order"


def first_copies(stage: Stage) -> dict[str, list[int]]:
    """The numbers of each key by the offset of their first copy in the queue."""
    by_place = {(queue, offset): (key, number) for queue, offset, key, number in stage.seen()}
    found: dict[str, list[int]] = {}
    for place in sorted(by_place):
        key, number = by_place[place]
        numbers = found.setdefault(key, [])
        if number not in numbers:
            numbers.append(number)
    return found


def first_deliveries(stage: Stage) -> dict[str, list[int]]:
    """The offsets of each key in the order in which they were first finished."""
    ends = [
        event
        for path in stage.histories
        for event in map(json.loads, path.read_text().splitlines())
        if event["type"] == EventType.END
    ]
    done: set[tuple[int, int]] = set()
    found: dict[str, list[int]] = {}
    for event in sorted(ends, key=lambda event: int(event["t"])):
        for offset, key in zip(event["offs"][: event["done"]], event["keys"], strict=False):
            if (event["queue"], offset) not in done:
                done.add((event["queue"], offset))
                found.setdefault(key, []).append(offset)
    return found


def accepted_commits(stage: Stage, child: Child) -> list[tuple[int, int, int]]:
    """(t, queue, epoch) of every commit that the broker accepted of a member.

    Frozen between its check and its request, a member may send one late: it is refused.
    """
    found = []
    for line in whole_lines(stage.folder / "broker.jsonl"):
        event = json.loads(line)
        if event["type"] == EventType.COMMIT_ACK and event["client"] == child.first_line:
            found.append((event["t"], event["queue"], event["epoch"]))
    return found


def grants(stage: Stage) -> list[tuple[int, int, int, str]]:
    """(t, queue, epoch, client) of every lock the broker granted on the topic."""
    found = []
    for line in whole_lines(stage.folder / "broker.jsonl"):
        event = json.loads(line)
        if event["type"] == EventType.LOCK_OK and event["topic"] == "orders":
            found.append((event["t"], event["queue"], event["epoch"], event["client"]))
    return found


def holders(stage: Stage) -> dict[int, str]:
    """The client that was granted each queue last."""
    return {queue: client for _, queue, _, client in grants(stage)}


def test_a_killed_member_causes_no_loss_and_its_queues_are_taken_over(stage: Stage) -> None:
    stage.send(16)
    victim, heir = stage.start_member("victim"), stage.start_member("heir")
    with stage.flow():
        stage.wait_until(lambda: len(stage.seen_by("victim")) > 100, "the victim at work")
        stage.wait_until(lambda: len(stage.seen_by("heir")) > 100, "the heir at work")
        stage.kill_member(victim)
        stage.wait_until(lambda: len(holders(stage)) == 8, "eight queues have holders")
        stage.wait_until(
            lambda: set(holders(stage).values()) == {heir.first_line}, "the heir holds all"
        )
    stage.wait_until_all_seen()
    # At most what ran and what was finished within the commit interval, for each queue.
    assert stage.duplicates() <= 8 * (4 + 100)
    assert_nothing_lost(stage)


def test_a_member_frozen_beyond_its_lease_commits_nothing_of_the_old_epoch_and_recovers(
    stage: Stage,
) -> None:
    stage.send(16)
    frozen = stage.start_member("frozen", listener_ms=10)
    with stage.flow():
        stage.wait_until(lambda: len(stage.seen_by("frozen")) > 50, "the member at work")
        frozen.signal(signal.SIGSTOP)
        old = {queue: epoch for _, queue, epoch, _ in grants(stage)}
        heir = stage.start_member("heir", listener_ms=10)
        stage.wait_until(
            lambda: list(holders(stage).values()).count(heir.first_line) >= 4,
            "the heir took over its share",
        )
        frozen.signal(signal.SIGCONT)
        stage.wait_until(
            lambda: any(
                epoch > old[queue] and client == frozen.first_line
                for _, queue, epoch, client in grants(stage)
            ),
            "the woken member was granted queues anew",
        )
        before = len(stage.seen_by("frozen"))
        stage.wait_until(lambda: len(stage.seen_by("frozen")) > before + 50, "it consumes again")
    accepted = accepted_commits(stage, frozen)
    assert {epoch for _, queue, epoch in accepted} & set(old.values()), "commits before the freeze"
    for queue in range(8):
        newer = [t for t, q, epoch, _ in grants(stage) if q == queue and epoch > old[queue]]
        for t, q, epoch in accepted:
            if q == queue and newer and t > newer[0]:
                assert epoch > old[queue], f"queue {queue}: commit of the old epoch {epoch}"
    assert_nothing_lost(stage)


# A lease longer than the broker may be away on a loaded machine: it is to find its locks held.
@pytest.mark.parametrize("stage", [60_000], indirect=True)
def test_a_broker_killed_and_restarted_causes_no_loss_and_no_duplicate(
    stage: Stage,
) -> None:
    stage.send(16)
    stage.start_member("one")
    stage.start_member("two")
    with stage.flow():
        stage.wait_until(lambda: len(stage.seen_by("one")) > 100, "the first at work")
        stage.wait_until(lambda: len(stage.seen_by("two")) > 100, "the second at work")
        epochs = {queue: epoch for _, queue, epoch, _ in grants(stage)}
        stage.broker.kill()
        stage.start_broker()
        before = len(stage.seen())
        stage.wait_until(lambda: len(stage.seen()) > before + 200, "the members go on")
    stage.wait_until_all_seen()
    assert {queue: epoch for _, queue, epoch, _ in grants(stage)} == epochs
    assert stage.duplicates() == 0
    assert_nothing_lost(stage)
