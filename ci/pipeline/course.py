"""The course of the pipeline: a broker with the demo's flights, a Spark job that is killed once."""

from __future__ import annotations

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
TIME_LIMIT_S = 400.0
_LOOK_S = 0.2
_MAX_ROWS = 45_000

Say = Callable[[int, str], None]


@dataclass(slots=True)
class Course:
    """What happened; `batches` are the job's lines, times in seconds since 1970."""

    folder: Path
    total: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    killed_t: float = 0.0
    back_t: float = 0.0  # the first micro-batch after that was done
    seconds: float = 0.0

    @property
    def history(self) -> Path:
        return self.folder / "broker.jsonl"

    @property
    def logs(self) -> Path:
        return self.folder / "logs.parquet"

    @property
    def rows(self) -> int:
        return sum(int(line["rows"]) for line in self.batches)


def play(data: Path, folder: Path, say: Say) -> Course:
    """Run the job over the topic of `ordermq demo`, kill it in the middle, let it go on.

    Args:
        data: the broker's, as the demo left it.
        folder: empty; gets checkpoint, history, logs.
        say: told how many rows are done, and a note.
    Raises: DemoFailed: a process ended unasked, or time is up.
    """
    course, started = Course(folder), time.monotonic()
    broker = Process(
        "the broker",
        "ordermq",
        ["broker", "--json", "--data", data, "--port", "0", "--lease-ms", LEASE_MS,
         "--queues", "8", "--history", course.history],
        folder / "broker.log",
    )  # fmt: skip
    job: Process | None = None
    try:
        address = str(broker.first_line()["name_servers"])
        course.total = _stored(address)
        logs = f"aircraft-logs-{time.time_ns() // 1_000_000}"  # an earlier run's are there yet
        job = _job(address, folder, logs)
        while not (job.is_over and job.lines.empty()):
            _look(course, job, say)
            is_due = not course.killed_t and course.rows >= KILL_AT * course.total
            if is_due and _in_mid_batch(folder):
                say(course.rows, "the driver is killed (-9) in the middle of a micro-batch")
                job.kill()
                course.killed_t = time.time()
                job = _job(address, folder, logs)
            broker.check_alive()
            job.check_alive()
            if time.monotonic() - started > TIME_LIMIT_S:
                raise DemoFailed(
                    f"not done after {TIME_LIMIT_S:.0f} s: {course.rows:,} of {course.total:,} "
                    f"rows; see {job.log}"
                )
        job.wait(10.0)
        broker.ask_to_leave()
        broker.wait(20.0)
    finally:
        if job is not None:
            job.end()
        broker.end()
    course.seconds = time.monotonic() - started
    return course


def _in_mid_batch(folder: Path) -> bool:
    """Whether the checkpoint has a micro-batch that was begun and is not done."""
    begun, done = (
        {path.name for path in (folder / "checkpoint" / kind).glob("[0-9]*")}
        for kind in ("offsets", "commits")
    )
    return bool(begun - done)


def _job(address: str, folder: Path, logs: str) -> Process:
    options = ["--name-servers", address, "--folder", folder, "--max-rows", _MAX_ROWS]
    options += ["--logs", logs]
    return Process("the Spark job", JOB, options, folder / "spark.log", is_tree=True)


def _look(course: Course, job: Process, say: Say) -> None:
    try:
        line = job.lines.get(timeout=_LOOK_S)
    except queue.Empty:
        return
    if line["lag"] is None:  # right after a restart Spark has not asked the brokers yet
        line["lag"] = course.total - line["read"]
    course.batches.append(line)
    if course.killed_t and not course.back_t:
        course.back_t = float(line["t"])
    rate = f"{line['rows_per_second']:,.0f} rows/s"
    say(course.rows, f"micro-batch {line['batch']}: {rate}, {line['lag']:,} behind")


def _stored(address: str) -> int:
    with PullConsumer("counting", name_servers=address) as consumer:
        queues = consumer.fetch_subscribe_message_queues("flights")
        return sum(consumer.max_offset(queue) for queue in queues)
