"""The scenario of the pipeline: a broker with the demo's flights, a Spark job killed once."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ordermq import PullConsumer
from ordermq.cli.demo.processes import DemoFailed, Process

JOB = "examples.flights_on_spark"
LEASE_MS = 5_000
KILL_AT = 0.4  # of all rows
STALL_LIMIT_S = 200.0  # on a busy machine a micro-batch may take more than a minute
_POLL_S = 0.2
_MAX_ROWS = 45_000
# Spark lives twice for less than half a minute. The JVM's second compiler would take as much of the
# few cores as the rows do, and its code would be used for seconds only.
_SHORT_LIVED = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}

Report = Callable[[int, str], None]


@dataclass(slots=True)
class Scenario:
    """The record of a run; times in seconds since 1970.

    Args:
        batches: the lines of the job.
        lags: what its `LagListener` measured, in between, too.
    """

    folder: Path
    total: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    lags: list[dict[str, Any]] = field(default_factory=list)
    killed_t: float = 0.0
    back_t: float = 0.0  # end of the first micro-batch after that
    seconds: float = 0.0

    @property
    def history(self) -> Path:
        return self.folder / "broker.jsonl"

    @property
    def logs(self) -> Path:
        return self.folder / "logs.parquet"

    @property
    def lag_file(self) -> Path:
        return self.folder / "lag.jsonl"

    @property
    def rows(self) -> int:
        return sum(int(line["rows"]) for line in self.batches)


def run_scenario(data: Path, folder: Path, report: Report) -> Scenario:
    """Run the job over the topic of `ordermq demo`, kill it once, and start it again.

    Args:
        data: the broker's data folder after the demo.
        folder: empty; for checkpoint, history and logs.
        report: called with the number of rows done and a note.
    Raises: DemoFailed: a process ended by itself, or none of them got on for `STALL_LIMIT_S`.
    """
    scenario, started = Scenario(folder), time.monotonic()
    broker = Process(
        "the broker",
        "ordermq",
        ["broker", "--json", "--data", data, "--port", "0", "--lease-ms", LEASE_MS,
         "--queues", "8", "--history", scenario.history],
        folder / "broker.log",
    )  # fmt: skip
    job: Process | None = None
    try:
        address = str(broker.first_line()["name_servers"])
        scenario.total = _stored(address)
        # A topic of its own: an earlier run's logs may still be in the broker.
        logs = f"aircraft-logs-{time.time_ns() // 1_000_000}"
        job = _job(address, scenario, logs)
        moved, done = started, 0
        while not (job.is_over and job.lines.empty()):
            _read_line(scenario, job, report)
            if len(scenario.batches) > done:
                moved, done = time.monotonic(), len(scenario.batches)
            is_due = not scenario.killed_t and scenario.rows >= KILL_AT * scenario.total
            if is_due and _in_mid_batch(folder):
                report(scenario.rows, "the driver is killed (-9) in the middle of a micro-batch")
                job.kill()
                scenario.killed_t = time.time()
                job = _job(address, scenario, logs)
            broker.check_alive()
            job.check_alive()
            if time.monotonic() - moved > STALL_LIMIT_S:
                raise DemoFailed(
                    f"no micro-batch ended for {STALL_LIMIT_S:.0f} s: {scenario.rows:,} of "
                    f"{scenario.total:,} rows; see {job.log}"
                )
        job.wait(10.0)
        broker.ask_to_leave()
        broker.wait(20.0)
        scenario.lags = _lines(scenario.lag_file)
    finally:
        if job is not None:
            job.end()
        broker.end()
    scenario.seconds = time.monotonic() - started
    return scenario


def _in_mid_batch(folder: Path) -> bool:
    """Return whether the checkpoint has a micro-batch that was begun and is not done."""
    begun, done = (
        {path.name for path in (folder / "checkpoint" / kind).glob("[0-9]*")}
        for kind in ("offsets", "commits")
    )
    return bool(begun - done)


def _job(address: str, scenario: Scenario, logs: str) -> Process:
    options = ["--name-servers", address, "--folder", scenario.folder, "--max-rows", _MAX_ROWS]
    options += ["--logs", logs, "--lag", scenario.lag_file]
    log = scenario.folder / "spark.log"
    return Process("the Spark job", JOB, options, log, is_tree=True, environment=_SHORT_LIVED)


def _lines(path: Path) -> list[dict[str, Any]]:
    # Each was one write, so that the kill has left none in part.
    return [json.loads(line) for line in path.read_text().splitlines()]


def _read_line(scenario: Scenario, job: Process, report: Report) -> None:
    try:
        line = job.lines.get(timeout=_POLL_S)
    except queue.Empty:
        return
    # Right after a restart Spark has not asked the brokers yet.
    if line["lag"] is None:
        line["lag"] = scenario.total - line["read"]
    scenario.batches.append(line)
    if scenario.killed_t and not scenario.back_t:
        scenario.back_t = float(line["t"])
    rate = f"{line['rows_per_second']:,.0f} rows/s"
    report(scenario.rows, f"micro-batch {line['batch']}: {rate}, {line['lag']:,} behind")


def _stored(address: str) -> int:
    with PullConsumer("counting", name_servers=address) as consumer:
        queues = consumer.fetch_subscribe_message_queues("flights")
        return sum(consumer.max_offset(queue) for queue in queues)
