"""Members of Java and ordermq in one orderly group on RocketMQ.

Java's own rules (docs/internals/semantics.md#leases-and-renewal,
docs/internals/semantics.md#listener-results) let it repeat the batch that ran while a queue left
it, and
unlock without an acknowledged commit; what we hand over is never repeated. Nothing may be lost,
overtaken, or held by two.
"""

from __future__ import annotations

import json

import pytest

from ordermq import Message, Producer
from ordermq.audit import AuditReport
from ordermq.audit.report import Cause
from ordermq.core.compression import COMPRESSED
from ordermq.events import EventType
from tests.interop.cluster import DEADLINE_S
from tests.interop.run import Run, is_javas

JAVAS_OWN = {"I5", "I9"}


def finished(run: Run, deadline_s: float = DEADLINE_S) -> AuditReport:
    """Audit after everything arrived; only violations that Java's rules allow may be found."""
    run.wait_for_all(deadline_s)
    report = run.finish()
    for violation in report.violations:
        assert violation.invariant in JAVAS_OWN, str(violation)
        assert is_javas(violation), str(violation)
    run.assert_keys_in_order()
    return report


def repeated_of_ours(run: Run) -> set[tuple[str, int, int]]:
    """Return (broker, queue, offset) of redelivered messages that ordermq had finished."""
    events = [
        event
        for path in run.histories
        for event in map(json.loads, path.read_text().splitlines())
        if event["type"] in (EventType.START, EventType.END)
    ]
    done: set[tuple[str, int, int]] = set()
    again: set[tuple[str, int, int]] = set()
    for event in sorted(events, key=lambda event: int(event["t"])):
        places = [(event["broker"], event["queue"], offset) for offset in event["offs"]]
        if event["type"] == EventType.START:
            again |= done.intersection(places)
        elif "@java-" not in event["p"]:
            done |= set(places[: event["done"]])
    return again


def test_a_java_member_joins_a_group_of_ordermq_and_leaves_again(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.member("ours")
    with run.flow():
        run.wait_for_more(50, "ours")
        theirs = run.java_member("theirs")
        run.wait_for_shares(ours=4)
        run.wait_for_more(100, "theirs")
        theirs.leave()
        run.wait_for_shares(ours=8)
        run.wait_for_more(100, "ours")
    finished(run)
    assert repeated_of_ours(run) == set()


def test_java_reads_bodies_compressed_by_ordermq(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    body = b"all work and no play " * 1_000
    kinds = ["zlib", "lz4", "zstd"] if run.cluster.version >= "5" else ["zlib"]
    for kind in kinds:
        with Producer(
            f"producer-{run.group}", name_servers=run.cluster.name_servers, compress_type=kind
        ) as producer:
            receipt = producer.send(Message(run.topic, kind.encode() + body), sharding_key="k")
        stored = run.cluster.stored(receipt.message_queue, receipt.offset_message_id)
        assert stored.sys_flag & COMPRESSED
        assert len(stored.body) < len(body) / 10
    run.java_member("theirs")
    run.wait_for(lambda seen: len(seen) == len(kinds), "what was sent compressed")
    assert [d.body for d in run.deliveries] == [kind.encode() + body for kind in kinds]


def test_a_member_of_ordermq_joins_a_group_of_java_and_leaves_again(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.send(16)
    theirs = run.java_member("theirs", listener_ms=2)
    with run.flow():
        run.wait_for_more(50, "theirs")
        run.member("ours")
        run.wait_for_shares(ours=4)
        run.wait_for_more(100, "ours")
        run.leave("ours")
        before = len(run.deliveries)
        run.wait_for(
            lambda seen: len({d.queue for d in seen[before:] if d.member == "theirs"}) == 8,
            "Java has all queues again",
        )
    run.wait_for_all()
    theirs.leave()
    finished(run)
    assert repeated_of_ours(run) == set()


@pytest.mark.restarts
def test_queues_of_a_killed_java_member_move_to_ordermq_when_its_locks_expire(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.send(16)
    run.member("ours")
    theirs = run.java_member("theirs")
    with run.flow(pause_s=0.1):
        run.wait_for_shares(ours=2)
        run.wait_for_more(50, "theirs")
        theirs.kill()
        run.wait_for_shares(ours=4)
        run.wait_for_more(50, "ours")
    finished(run)


@pytest.mark.restarts
@pytest.mark.timeout(400)
def test_queues_of_a_killed_member_of_ordermq_move_to_java_when_its_locks_expire(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.send(16)
    run.java_member("theirs")
    ours = run.member_process("ours")
    with run.flow(pause_s=0.1):
        run.wait_for_more(50, "ours")
        run.wait_for_more(50, "theirs")
        ours.kill()
        before = len(run.deliveries)
        # RocketMQ's broker lists a client twice that reconnected after a time-out, until the old
        # connection is found dead, and Java shares with itself: on a busy machine this takes long.
        run.wait_for(
            lambda seen: len({d.queue for d in seen[before:] if d.member == "theirs"}) == 4,
            "Java has all queues",
            deadline_s=180,
        )
    report = finished(run, deadline_s=120)
    assert {cause for cause, count in report.duplicates.items() if count} <= {
        Cause.CRASH.value,
        Cause.HAND_OFF.value,  # when Java gave its half to us
    }
