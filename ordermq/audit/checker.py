"""The checker: applies I1-I9 and I16 of docs/internals/semantics.md#invariants to each event.

The first violation of each invariant is kept, and checking continues, so one defect that
breaks several invariants shows all of them. Events of different processes are compared only
if one caused the other, or if a lease lies between them: the time stamps of a broker event and
of its effect at a client are not taken at the same instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ordermq.audit.batches import BatchRules
from ordermq.audit.commits import CommitRules
from ordermq.audit.delivered_offsets import QueueName
from ordermq.audit.history import Event, Histories
from ordermq.audit.ownership import OwnershipRules
from ordermq.audit.report import AuditReport, Cause, Violation
from ordermq.audit.run import Process, Run
from ordermq.events import EventType


class Checker:
    """Checks one history; `ordermq.audit.audit` describes the arguments."""

    def __init__(
        self,
        *,
        subscription_tags: Collection[str] | None = None,
        start_offsets: int | Mapping[QueueName, int] | None = None,
    ) -> None:
        self._run = run = Run(subscription_tags, start_offsets)
        self._ownership = ownership = OwnershipRules(run)
        self._batches = batches = BatchRules(run, ownership)
        self._commits = commits = CommitRules(run, ownership)
        self._events: Counter[str] = Counter()
        self._incarnations = 0
        self._crashes = 0
        self._handlers: dict[str, Callable[[int, int, Event], None]] = {
            EventType.OPEN: self._on_open,
            EventType.CLOSE: self._on_close,
            EventType.CRASH: self._on_crash,
            EventType.LOCK_OK: ownership.on_lock_ok,
            EventType.LOCK_LOST: ownership.on_lock_lost,
            EventType.UNLOCK: ownership.on_unlock,
            EventType.TAKE_OVER: batches.on_take_over,
            EventType.POSITION: commits.on_position,
            EventType.START: batches.on_start,
            EventType.END: batches.on_end,
            EventType.ROLLBACK: batches.on_rollback,
            EventType.DIVERT: batches.on_divert,
            EventType.DROP: batches.on_drop,
            EventType.STORE: commits.on_store,
            EventType.COMMIT_SENT: commits.on_commit_sent,
            EventType.COMMIT_ACK: commits.on_commit_ack,
            EventType.RESET: commits.on_reset,
        }

    def feed(self, t: int, ref: int, event: Event) -> None:
        """Check the next event of the merged history."""
        self._run.last = max(self._run.last, t)
        if "derived" not in event:
            self._events[event["type"]] += 1
        self._handlers[event["type"]](t, ref, event)

    def report(self, histories: Histories, *, complete: bool) -> AuditReport:
        """Return the report of everything fed so far. O(messages)."""
        self._commits.check_commits_only_grow()
        self._commits.check_starts_are_stored()
        if complete:
            self._commits.check_nothing_is_left()
        found = self._run.found
        refs = {ref for _, concerned in found.values() for ref in concerned if ref >= 0}
        evidence = histories.evidence(refs)
        progress_by_queue = self._run.progress_by_queue.values()
        return AuditReport(
            violations=tuple(
                Violation(invariant, text, tuple(evidence[ref] for ref in concerned if ref >= 0))
                for invariant, (text, concerned) in found.items()
            ),
            files=tuple(histories.paths),
            lines=histories.lines,
            processes=self._incarnations,
            crashes=self._crashes,
            running=histories.running,
            events=dict(self._events),
            stored=sum(stored.stored for stored in self._run.stored.values()),
            delivered=sum(progress.delivered for progress in progress_by_queue),
            deliveries=sum(progress.deliveries for progress in progress_by_queue),
            diverted=sum(
                progress.diverted for progress in progress_by_queue if not progress.is_unlocked
            ),
            sent_back=sum(
                progress.diverted for progress in progress_by_queue if progress.is_unlocked
            ),
            dropped=sum(progress.dropped for progress in progress_by_queue),
            committed=sum(self._commits.committed(progress) for progress in progress_by_queue),
            duplicates={cause.value: self._batches.duplicates[cause] for cause in Cause},
            hand_offs=self._ownership.hand_offs(),
            holdings=self._ownership.holdings(),
        )

    def _on_open(self, t: int, ref: int, event: Event) -> None:
        process = self._run.process(event)
        self._incarnations += 1
        process.incarnation += 1
        process.closed = process.crashed = False
        self._commits.check_starts_are_stored_by(process)

    def _on_close(self, t: int, ref: int, event: Event) -> None:
        self._run.process(event).closed = True

    def _on_crash(self, t: int, ref: int, event: Event) -> None:
        client = event.get("client", "")
        process = self._run.processes.setdefault(client, Process())
        if process.crashed:
            return  # recorded by the harness, and implied by the missing CLOSE
        process.crashed = True
        self._crashes += 1
        self._ownership.crash(t, client, ref)
