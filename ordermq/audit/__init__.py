"""The history checker: tests a recorded run against docs/internals/semantics.md#invariants.

| file | holds |
|---|---|
| history.py | reads JSONL files of many processes as one sequence of events |
| checker.py | calls the rules for each event, and makes the report |
| ownership.py | the owner of each queue, its lease, changes of owner: I6, I7, I9 |
| batches.py | batches given to listeners, their order, repeats: I1, I2, I3, I5 |
| commits.py | stored messages and commits: I4, I8 |
| delivered_offsets.py | what one group did with one queue: arrays of ints, no object per message |
| run.py | state that all rules share: processes, queues, violations |
| report.py | the result: violations, counts, duplicates by cause, changes of owner |

A START with a member `lane` belongs to a queue that is consumed by key
(docs/internals/semantics.md#key-lanes). Then I1 does not apply, I2 applies to each key, at most
`lane` messages of the queue may run at once, and messages above the committed offset may be
redelivered after a change of owner.

A START without an epoch belongs to a concurrent group
(docs/internals/semantics.md#concurrent-consumption). Only I4 applies: a commit covers only
messages that were finished or sent back (DIVERT), and those sent back must be consumed from the
group's retry topic. Redeliveries are counted, not forbidden.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ordermq.audit.checker import Checker
from ordermq.audit.delivered_offsets import QueueName
from ordermq.audit.history import Event, Histories, HistoryError, Path
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
    complete: bool | None = True,
    on_progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Check a history against I1-I9 and I16 (docs/internals/semantics.md#invariants).

    O(events + messages).

    Args:
        history: one file, several files of one host (broker, consumers, harness), or events.
        subscription_tags: tags the group subscribed to; None for all. Needs `tags` in STORE.
        start_offsets: the first offset that the group must consume, for every queue or by
            (group, topic, broker, queue). None: a group's first commit before its first
            START, or else the oldest message.
        complete: the run came to rest, so a message that was not finished is lost (I4). None: so
            if no process still runs, by the files that are open.
        on_progress: called with the number of events checked, every 10,000.
    Raises: HistoryError: a line is not an event; the cut last line of a killed process is
        allowed.
    """
    histories = Histories(history)
    checker = Checker(subscription_tags=subscription_tags, start_offsets=start_offsets)
    for count, (t, ref, event) in enumerate(histories, start=1):
        checker.feed(t, ref, event)
        if on_progress is not None and count % _PROGRESS_STEP == 0:
            on_progress(count)
    if complete is None:
        complete = not histories.running
    return checker.report(histories, complete=complete)
