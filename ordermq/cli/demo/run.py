"""The sequence of the demo: starts, joins, leaves and kills."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID
from sqlalchemy.exc import OperationalError

from ordermq.cli.demo.logbook import Logbook
from ordermq.cli.demo.processes import DemoFailed, Process
from ordermq.cli.demo.sender import QUEUES
from ordermq.clock import CLOCK_ID
from ordermq.events import EventType, History

# Short, so that the queues of a killed member move within the demo; the default is 60 s.
LEASE_MS = 5_000
MEMBERS = "Ada", "Blaise", "Carl"
NEWCOMER = "Dora"
BROKER_BACK = "broker restarted"
TIME_LIMIT_S = 170.0
_LOOK_S = 0.05
_LOOK_AT_LOGS_S = 0.25
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Mark:
    """An intervention in the run; `t` as in histories."""

    t: int
    text: str
    member: str = ""


@dataclass(slots=True)
class Timeline:
    """Marks, names and times of the run; the rest is in the histories."""

    folder: Path
    total: int = 0
    marks: list[Mark] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # client id -> member's name
    sent_s: float = 0.0
    seconds: float = 0.0

    @property
    def histories(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    @property
    def logbook(self) -> Path:
        return self.folder / "logs.db"


class Run:
    """The processes of one demo.

    Args:
        folder: empty; gets histories, logs, the logbook and the broker's data.
        seconds: time over which the producer sends all flights.
        limit: read only the first rows of the file.
    """

    def __init__(self, folder: Path, seconds: float, limit: int | None, progress: Progress) -> None:
        self.timeline = Timeline(folder)
        self._folder = folder
        self._seconds = seconds
        self._limit = limit
        self._progress = progress
        self._harness = History(folder / "harness.jsonl", "demo")
        self._address = ""
        self._broker: Process | None = None
        self._members: dict[str, Process] = {}
        self._clients: dict[str, str] = {}
        self._started = time.monotonic()
        self._written = self._read = 0  # flights in the logs; messages read for them
        self._quiet_since = self._next_look = self._started
        self._owning: set[str] = set()  # members that are to own queues
        self._owners: dict[int, str] = {}  # queue id -> the member that told last
        self._logbook = Logbook(self.timeline.logbook)

    def play(self) -> Timeline:
        """Run the demo from start to end.

        Raises: DemoFailed: a process exited unexpectedly, or the time limit is reached.
        """
        try:
            self._play()
        finally:
            for process in [*self._members.values(), *([self._broker] if self._broker else [])]:
                process.end()
            self._harness.close()
            self._logbook.close()
        self.timeline.seconds = time.monotonic() - self._started
        return self.timeline

    def _play(self) -> None:
        self._start_broker()
        for name in MEMBERS:
            self._start_member(name)
        sender = self._python(
            "the producer", "sender", "--seconds", self._seconds, *self._limit_option()
        )
        try:
            self.timeline.total = int(sender.first_line()["total"])
            sending = self._bar("sent by the producer")
            writing = self._bar("written by the consumers")
            steps = self._steps()
            while steps or not (sender.is_over and sender.lines.empty() and self._is_quiet()):
                self._look_at_sender(sender, sending)
                self._look_at_logs(writing)
                done = self._progress.tasks[sending].completed / self.timeline.total
                if steps and done >= steps[0][0] and self._is_settled():
                    steps.pop(0)[1]()
                self._check_time(sender)
            sender.wait(5.0)
        finally:
            sender.end()
        self._progress.update(sending, completed=self.timeline.total)
        self._progress.update(writing, completed=self.timeline.total)
        # All at once, then wait: one by one, each would first take over the queues of the last.
        for process in self._members.values():
            process.ask_to_leave()
        for process in self._members.values():
            process.wait(20.0)
        # Last, because members commit and unlock while they leave.
        if self._broker is not None:
            self._broker.ask_to_leave()
            self._broker.wait(20.0)

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        ada, blaise, _ = MEMBERS
        # At shares of the sent flights, far enough apart that each change has settled.
        return [
            (0.15, lambda: self._start_member(NEWCOMER)),
            (0.35, lambda: self._ask_to_leave(ada)),
            (0.55, lambda: self._kill_member(blaise)),
            (0.78, self._kill_broker),
        ]

    def _is_settled(self) -> bool:
        """Return True if each member owns queues, and each queue has one of them as its owner."""
        # On a busy machine a change may take longer than the flights until the next step.
        for name, member in self._members.items():
            with contextlib.suppress(queue.Empty):
                while True:
                    self._note_owner(name, member.lines.get_nowait())
        owners = list(self._owners.values())
        return len(owners) == QUEUES and set(owners) == self._owning

    def _note_owner(self, name: str, line: dict[str, Any]) -> None:
        if line["assigned"] is not None:
            self._owners[line["assigned"]] = name

    def _start_broker(self) -> None:
        # The same port after a restart: clients know this address only.
        port = self._address.rpartition(":")[2] or "0"
        self._broker = Process(
            "the broker",
            "ordermq",
            [
                *("broker", "--json", "--data", self._folder / "broker", "--port", port),
                *("--lease-ms", LEASE_MS, "--queues", QUEUES),
                *("--history", self._folder / "broker.jsonl"),
            ],
            self._folder / "broker.log",
        )
        self._address = str(self._broker.first_line()["name_servers"])

    def _start_member(self, name: str) -> None:
        path = self._folder / f"{name.lower()}.jsonl"
        member = self._python(
            f"member {name}", "member", "--logbook", self.timeline.logbook, "--history", path
        )
        first = member.first_line()
        self._note_owner(name, first)
        client = str(first["client"])
        self._owning.add(name)
        self._members[name] = member
        self._clients[name] = client
        self.timeline.names[client] = name
        self._mark(f"{name} joins", name)

    def _ask_to_leave(self, name: str) -> None:
        self._mark(f"{name} leaves (SIGTERM)", name)
        self._owning.remove(name)
        self._members[name].ask_to_leave()

    def _kill_member(self, name: str) -> None:
        # Recorded after the kill: until then the member may still have written its history.
        self._members[name].kill()
        self._owning.remove(name)
        self._mark(f"{name} killed (SIGKILL)", name)
        self._harness.record(EventType.CRASH, client=self._clients[name])

    def _kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._mark("broker killed (SIGKILL)")
        self._start_broker()
        self._mark(BROKER_BACK)

    def _mark(self, text: str, member: str = "") -> None:
        self.timeline.marks.append(Mark(time.clock_gettime_ns(CLOCK_ID), text, member))
        self._progress.console.print(f"  {time.monotonic() - self._started:5.1f} s  {text}")

    def _look_at_sender(self, sender: Process, bar: TaskID) -> None:
        try:
            # The only wait in the loop of `_play`.
            progress = sender.lines.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        self._progress.update(bar, completed=progress["sent"])
        self.timeline.sent_s = float(progress.get("seconds", 0.0))

    def _look_at_logs(self, bar: TaskID) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_AT_LOGS_S
        try:
            totals = self._logbook.totals()
        except OperationalError:  # locked by a consumer for longer than the timeout
            return
        if totals["read"] != self._read:
            self._read, self._quiet_since = totals["read"], now
        self._written = totals["events"]
        self._progress.update(bar, completed=self._written)

    def _is_quiet(self) -> bool:
        """Return True if all flights are in the logs, and nothing was read for a second."""
        # A copy that the producer sent again may follow the last flight.
        quiet_s = time.monotonic() - self._quiet_since
        return self._written >= self.timeline.total and quiet_s > _QUIET_S

    def _check_time(self, sender: Process) -> None:
        for process in (sender, self._broker, *self._members.values()):
            if process is not None:
                process.check_alive()
        if time.monotonic() - self._started > TIME_LIMIT_S:
            raise DemoFailed(
                f"not finished after {TIME_LIMIT_S:.0f} s: {self._written:,} of "
                f"{self.timeline.total:,} flights are in the logs; see {self._folder}"
            )

    def _bar(self, text: str) -> TaskID:
        return self._progress.add_task(text, total=self.timeline.total, note="")

    def _python(self, name: str, module: str, *arguments: object) -> Process:
        return Process(
            name,
            f"ordermq.cli.demo.{module}",
            ["--name-servers", self._address, *arguments],
            self._folder / f"{name.split()[-1].lower()}.log",
        )

    def _limit_option(self) -> list[object]:
        return [] if self._limit is None else ["--limit", self._limit]
