"""What must hold after the pipeline, and the figures it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pandas as pd  # type: ignore[import-untyped]
from course import Course

from ordermq.audit import AuditReport, audit
from ordermq.cli.demo.expected import differences, expected_logs
from ordermq.cli.demo.flights import flights_file
from ordermq.cli.demo.logbook import AircraftLog


@dataclass(frozen=True, slots=True)
class Outcome:
    """The course, the audit of the broker's history, and what failed in plain words."""

    course: Course
    report: AuditReport
    logs: int
    written: int  # messages of the logs' topic, repeats left out
    failures: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        course = self.course
        return {
            "ok": not self.failures,
            "messages": course.total,
            "rows": course.rows,
            "micro_batches": len(course.batches),
            "logs": self.logs,
            "logs_written": self.written,
            "seconds": round(course.seconds, 1),
            "seconds_from_kill_to_next_batch": round(course.back_t - course.killed_t, 1),
            "failures": list(self.failures),
        }


def check(course: Course, limit: int | None) -> Outcome:
    """Hold the logs against pandas', their order and the broker's history against the rules."""
    written = pd.read_parquet(course.logs)
    logs = [AircraftLog(**orjson.loads(body)) for body in written["body"]]
    last = {log.key: log for log in logs}  # of each aircraft: they come in order
    report = audit([course.history], start_offsets=0)
    failures = [*_out_of_order(logs)]
    wrong = differences(expected_logs(flights_file(), limit), list(last.values()))
    if wrong:
        failures.append(f"the logs differ from pandas: {'; '.join(wrong[:3])}")
    if not course.killed_t:
        failures.append("the driver was never killed: too few rows, or too large micro-batches")
    if report.violation is not None:
        failures.append(f"the audit found {report.violation}")
    if course.batches and course.batches[-1]["lag"]:
        failures.append(f"{course.batches[-1]['lag']:,} messages were left behind")
    return Outcome(course, report, len(last), len(logs), tuple(failures))


def _out_of_order(logs: list[AircraftLog]) -> list[str]:
    """Each aircraft's logs grow: one that does not is old, or there twice."""
    events: dict[str, int] = {}
    for log in logs:
        if log.events < events.get(log.key, 0):
            return [f"{log.key}: a log of {log.events} events comes after {events[log.key]}"]
        events[log.key] = log.events
    return []
