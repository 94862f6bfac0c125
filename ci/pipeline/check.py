"""The checks after the pipeline, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from scenario import Scenario

from ordermq import json_text
from ordermq.audit import AuditReport, audit
from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.cli.demo.expected import differences, expected_logs
from ordermq.cli.demo.flights import flights_file


@dataclass(frozen=True, slots=True)
class Outcome:
    """The scenario, the audit of the broker's history, and the failed checks."""

    scenario: Scenario
    report: AuditReport
    logs: int
    written: int  # messages of the logs' topic, repeats left out
    failures: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "ok": not self.failures,
            "messages": scenario.total,
            "rows": scenario.rows,
            "micro_batches": len(scenario.batches),
            "logs": self.logs,
            "logs_written": self.written,
            "seconds": round(scenario.seconds, 1),
            "seconds_from_kill_to_next_batch": round(scenario.back_t - scenario.killed_t, 1),
            "failures": list(self.failures),
        }


def check(scenario: Scenario, limit: int | None) -> Outcome:
    """Compare the logs with those of pandas, check their order, and audit the broker's history."""
    written = pd.read_parquet(scenario.logs)
    logs = [AircraftLog(**json_text.loads(body)) for body in written["body"]]
    last = {log.key: log for log in logs}  # of each aircraft, because they are in order
    report = audit([scenario.history], start_offsets=0)
    failures = [*_out_of_order(logs)]
    wrong = differences(expected_logs(flights_file(), limit), list(last.values()))
    if wrong:
        failures.append(f"the logs differ from pandas: {'; '.join(wrong[:3])}")
    if not scenario.killed_t:
        failures.append("the driver was never killed: too few rows, or too large micro-batches")
    if report.violation is not None:
        failures.append(f"the audit failed: {report.violation}")
    if scenario.batches and scenario.batches[-1]["lag"]:
        failures.append(f"{scenario.batches[-1]['lag']:,} messages were not read")
    if not scenario.lags:
        failures.append("the listener never measured a lag")
    return Outcome(scenario, report, len(last), len(logs), tuple(failures))


def _out_of_order(logs: list[AircraftLog]) -> list[str]:
    """Return an error for a log that is older than the one before it, of the same aircraft."""
    events: dict[str, int] = {}
    for log in logs:
        if log.events < events.get(log.key, 0):
            return [
                f"{log.key}: a log of {log.events} events arrived after one of {events[log.key]}"
            ]
        events[log.key] = log.events
    return []
