"""The rules I1-I9 of docs/internals/semantics.md#invariants, fed one event after another.

A violation is kept once for each invariant, the first time it happens; checking goes on,
so one defect that breaks several promises names them all. Events of different processes
are compared only where one caused the other or where a lease lies between them: the time
stamp of a broker event and of its effect at a client are not taken at the same instant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ordermq.audit.batches import BatchRules
from ordermq.audit.commits import CommitRules
from ordermq.audit.history import Event, Histories
from ordermq.audit.ledger import QueueName
from ordermq.audit.report import AuditReport, Cause, Violation
from ordermq.audit.run import Process, Run
from ordermq.audit.tenures import TenureRules
from ordermq.events import EventType


class Checker:
    """See `ordermq.audit.audit` for the arguments."""

    def __init__(
        self,
        *,
        subscription_tags: Collection[str] | None = None,
        start_offsets: int | Mapping[QueueName, int] | None = None,
        complete: bool = True,
    ) -> None:
        self._complete = complete
        self._run = run = Run(subscription_tags, start_offsets)
        self._tenures = tenures = TenureRules(run)
        self._batches = batches = BatchRules(run, tenures)
        self._commits = commits = CommitRules(run, tenures)
        self._events: Counter[str] = Counter()
        self._incarnations = 0
        self._crashes = 0
        self._handlers: dict[str, Callable[[int, int, Event], None]] = {
            EventType.OPEN: self._on_open,
            EventType.CLOSE: self._on_close,
            EventType.CRASH: self._on_crash,
            EventType.LOCK_OK: tenures.on_lock_ok,
            EventType.LOCK_LOST: tenures.on_lock_lost,
            EventType.UNLOCK: tenures.on_unlock,
            EventType.START: batches.on_start,
            EventType.END: batches.on_end,
            EventType.ROLLBACK: batches.on_rollback,
            EventType.DIVERT: batches.on_divert,
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

    def report(self, histories: Histories) -> AuditReport:
        """What the whole history amounts to. O(messages)."""
        if self._complete:
            self._commits.check_nothing_is_left()
        found = self._run.found
        refs = {ref for _, concerned in found.values() for ref in concerned if ref >= 0}
        evidence = histories.evidence(refs)
        ledgers = self._run.ledgers.values()
        return AuditReport(
            violations=tuple(
                Violation(invariant, text, tuple(evidence[ref] for ref in concerned if ref >= 0))
                for invariant, (text, concerned) in found.items()
            ),
            files=tuple(histories.paths),
            lines=histories.lines,
            processes=self._incarnations,
            crashes=self._crashes,
            events=dict(self._events),
            stored=sum(stored.stored for stored in self._run.stored.values()),
            delivered=sum(ledger.delivered for ledger in ledgers),
            deliveries=sum(ledger.deliveries for ledger in ledgers),
            diverted=sum(ledger.diverted for ledger in ledgers if not ledger.is_unlocked),
            sent_back=sum(ledger.diverted for ledger in ledgers if ledger.is_unlocked),
            committed=sum(self._commits.committed(ledger) for ledger in ledgers),
            duplicates={cause.value: self._batches.duplicates[cause] for cause in Cause},
            hand_offs=self._tenures.hand_offs(),
            holdings=self._tenures.holdings(),
        )

    def _on_open(self, t: int, ref: int, event: Event) -> None:
        process = self._run.process(event)
        self._incarnations += 1
        process.incarnation += 1
        process.closed = process.crashed = False

    def _on_close(self, t: int, ref: int, event: Event) -> None:
        self._run.process(event).closed = True

    def _on_crash(self, t: int, ref: int, event: Event) -> None:
        client = event.get("client", "")
        process = self._run.processes.setdefault(client, Process())
        if process.crashed:
            return  # told twice: by the missing CLOSE and by the harness
        process.crashed = True
        self._crashes += 1
        self._tenures.crash(t, client, ref)
