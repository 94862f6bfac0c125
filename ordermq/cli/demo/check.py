"""The checks at the end of the demo, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ordermq.audit import AuditReport, HandOff, audit
from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.cli.demo.expected import differences, expected_logs
from ordermq.cli.demo.flights import TOPIC, flights_file
from ordermq.cli.demo.logbook import Logbook
from ordermq.cli.demo.run import Timeline


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the demo: its events, the audit, and the failed checks as sentences."""

    timeline: Timeline
    report: AuditReport
    logs: int
    unassigned_flights: int
    resent: int  # messages stored twice: their acknowledgement was lost
    refused: int  # calls of a consumer that no longer owned the queue
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def redelivered(self) -> int:
        """Messages that a listener was given again after it had written them."""
        return sum(self.report.duplicates.values())

    @property
    def hand_offs(self) -> list[HandOff]:
        """Changes of owner of the flights' queues, without the group's retry topic."""
        return [each for each in self.report.hand_offs if each.topic == TOPIC]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "ok": self.ok,
            "failures": list(self.failures),
            "flights": self.timeline.total,
            "logs": self.logs,
            "flights_without_tail_number": self.unassigned_flights,
            "sent_again_by_the_producer": self.resent,
            "redelivered": self.redelivered,
            "refused_batches": self.refused,
            "send_seconds": round(self.timeline.sent_s, 3),
            "seconds": round(self.timeline.seconds, 3),
            "audit": self.report.to_dict(),
        }


def check(timeline: Timeline, limit: int | None, say: Callable[[str], None]) -> Outcome:
    """Compare the logs with those of pandas, and audit the histories."""
    say("computing the logs with pandas")
    expected = expected_logs(flights_file(), limit)
    logbook = Logbook(timeline.logbook)
    try:
        logs, totals = logbook.logs(), logbook.totals()
    finally:
        logbook.close()
    wrong = differences(expected, logs)
    say("auditing the histories")
    # From offset 0: the group consumes from the first message, so none may be missing there.
    report = audit(timeline.histories, start_offsets=0)
    return Outcome(
        timeline=timeline,
        report=report,
        logs=len(logs),
        unassigned_flights=sum(log.events for log in logs if _is_flight_number(log)),
        resent=totals["resent"],
        refused=totals["refused"],
        failures=tuple(_failures(timeline, report, wrong, totals)),
    )


def _failures(
    timeline: Timeline, report: AuditReport, wrong: list[str], totals: dict[str, int]
) -> list[str]:
    failures = []
    if wrong:
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        failures.append(f"the logs differ from pandas: {wrong[0]}{more}")
    failures += [f"the audit found {violation}" for violation in report.violations]
    if totals["events"] != timeline.total:
        failures.append(f"{timeline.total:,} flights sent, but {totals['events']:,} written")
    # A copy was stored because the acknowledgement of the first was lost with the broker.
    copies = totals["read"] - timeline.total
    if copies != totals["resent"]:
        failures.append(
            f"{copies:,} more messages stored than flights sent, but {totals['resent']:,} copies"
        )
    # None, not even after a crash: a new owner continues where the logs end.
    failures += [
        f"{count} messages were delivered again after they had been written: {cause}"
        for cause, count in report.duplicates.items()
        if count
    ]
    return failures


def _is_flight_number(log: AircraftLog) -> bool:
    # A flight number is "carrier-number"; tail numbers have no hyphen.
    return "-" in log.key
