"""The history checker: did a run keep the promises of docs/internals/semantics.md#invariants?

| file | holds |
|---|---|
| history.py | reading JSONL files of many processes as one sequence of events |
| ledger.py | what is remembered of a queue: arrays of ints, never an object a message |
| checker.py | events in, report out: which rule follows which event |
| tenures.py | who holds a queue: I6, I7, I9 |
| batches.py | what listeners are given: I1, I2, I3, I5 |
| commits.py | what is stored and committed: I4, I8 |
| run.py | what all rules know of the run |

| report.py | what came out: violations, counts, duplicates by cause, hand-offs |

A START with a member `lane` says that its queue is consumed by key
(docs/internals/semantics.md#key-lanes): I1 then
falls away, I2 holds for each key, at most `lane` messages of the queue run at once, and what
a lane did ahead of another may come twice.

A START without an epoch is of a concurrent group
(docs/internals/semantics.md#concurrent-consumption). What holds there is I4: a commit
covers only what was finished or sent back (a DIVERT), and what was sent back is owed in the
group's retry topic. Repeats are counted, not forbidden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ordermq.audit.checker import Checker
from ordermq.audit.history import Event, Histories, HistoryError, Path
from ordermq.audit.ledger import QueueName
from ordermq.audit.report import AuditReport, Evidence, HandOff, Holding, Violation

__all__ = [
    "AuditReport",
    "Evidence",
    "HandOff",
    "HistoryError",
    "Holding",
    "QueueName",
    "Violation",
    "audit",
]

_PROGRESS_STEP = 10_000  # events


def audit(
    history: Path | Iterable[Path] | Iterable[Event],
    *,
    subscription_tags: Collection[str] | None = None,
    start_offsets: int | Mapping[QueueName, int] | None = None,
    complete: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Check a history against I1-I9 (docs/internals/semantics.md#invariants). O(events + messages).

    Args:
        history: one file, several files of one host (broker, consumers, harness), or events.
        subscription_tags: tags the group asked for; None for all. Needs `tags` in STORE.
        start_offsets: the first offset a group owes, for every queue or by
            (group, topic, broker, queue); None takes a group's first commit before its
            first START, else the oldest message.
        complete: the run came to rest, so a message nobody finished is a loss (I4).
        on_progress: called with the number of events checked, every 10,000.
    Raises: HistoryError: a line that is no event, other than the cut last line of a killed
        process.
    """
    histories = Histories(history)
    checker = Checker(
        subscription_tags=subscription_tags, start_offsets=start_offsets, complete=complete
    )
    for count, (t, ref, event) in enumerate(histories, start=1):
        checker.feed(t, ref, event)
        if on_progress is not None and count % _PROGRESS_STEP == 0:
            on_progress(count)
    return checker.report(histories)
