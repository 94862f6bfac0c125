"""Run the legs of ci/test.sh, several at once; tell which failed, and where its log is.

Standard library only: the first legs make the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "legs"
TAIL = 60  # lines of a failed leg's log to print
# faulthandler's words in front of the stacks of a process that hung or crashed, which may be far
# above the tail; and how many lines from there on to print.
CRASHED, STACKS = re.compile(r"Timeout \(\d|Fatal Python error"), 120
LONGEST = 3_600  # seconds of a leg, some four times what the longest needs on two cores
TO_END = 30  # seconds that a leg has to end once it is interrupted
# What a script leaves out for lack of a tool is a line of this form; it must not go unseen.
LEFT_OUT = ("SKIPPED", "LEFT OUT", "NOT TESTED")


@dataclass(frozen=True)
class Result:
    """The end of one leg."""

    name: str
    status: int
    seconds: float
    hung: bool = False

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def line(self) -> str:
        outcome = "passed" if self.status == 0 else f"FAILED (status {self.status})"
        if self.hung:
            outcome = f"FAILED: not at its end after {LONGEST} s, so it was stopped;"
        return f"{self.name:16} {outcome} in {self.seconds:.0f} s"


class Legs:
    """Processes of legs, each the leader of a group, so that all of a leg can be stopped."""

    def __init__(self, arguments: dict[str, list[str]]) -> None:
        self._arguments = arguments
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped = False

    def run(self, name: str) -> Result:
        """Run one leg to its end; its output goes to its log."""
        started = time.monotonic()
        result = Result(name, 1, 0)
        if self._stopped:
            return result
        with result.log.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "ci/test.sh", "--leg", name, *self._arguments.get(name, [])],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running[name] = process
            try:
                status, hung = process.wait(LONGEST), False
            except subprocess.TimeoutExpired:
                status, hung = _end(process), True
            del self._running[name]
        return Result(name, status, time.monotonic() - started, hung)

    def stop(self) -> list[Result]:
        """Interrupt what runs; scripts and most of pytest then stop their servers."""
        self._stopped = True
        running = dict(self._running)
        for process in running.values():
            os.killpg(process.pid, signal.SIGINT)  # pytest ends at once of a SIGTERM
        return [Result(name, 1, 0) for name in running]


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a leg that hangs; what of pytest does not end at once shows each of its threads."""
    for number in (signal.SIGINT, signal.SIGABRT):
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TO_END)
            break
    with contextlib.suppress(ProcessLookupError):  # what outlived the first process of the leg
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() or 1


def print_end(result: Result) -> None:
    """Print the end of a log, and where a process of the leg hung or crashed."""
    lines, log = result.lines(), result.log.relative_to(ROOT)
    crashed = next((at for at, line in enumerate(lines) if CRASHED.search(line)), None)
    if crashed is not None:
        print(f"--- where a process hung or crashed, from line {crashed + 1} of {log} on")
        print(*lines[crashed : crashed + STACKS], sep="\n")
    print(f"--- the last {TAIL} lines of {log}")
    print(*deque(lines, TAIL), "---", sep="\n", flush=True)


def report(result: Result) -> None:
    """Print the end of one leg: its closing line, or the tail of its log if it failed."""
    print(f"ordermq: {result.line()}", flush=True)
    lines = result.lines()
    if result.status:
        print_end(result)
        return
    closing = next((line for line in reversed(lines) if line.strip()), "")
    notes = [
        line for line in lines if line.startswith("ordermq:") and any(map(line.count, LEFT_OUT))
    ]
    for line in dict.fromkeys([*notes, closing]):
        print(f"    {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--at-once",
        type=int,
        default=0,
        help="legs at a time; 0: as many as have two cores each, and two at least",
    )
    parser.add_argument(
        "groups", nargs=2, help="names of legs; the second group waits for the first"
    )
    parser.add_argument("tests", nargs="*", help="arguments of the leg `tests`")
    options = parser.parse_args()
    # A leg keeps less than two cores busy: most tests wait for a server most of the time. On two
    # cores two legs at a time took 14 minutes, and one behind the other 21.
    at_once = options.at_once or max(2, (os.cpu_count() or 2) // 2)

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("*.log"):
        old.unlink()
    legs = Legs({"tests": options.tests})
    results = []
    started = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for group in options.groups:
                ends = [pool.submit(legs.run, name) for name in group.split()]
                for end in as_completed(ends):
                    results.append(end.result())
                    report(results[-1])
                if any(one.name == "environment" and one.status for one in results):
                    print("ordermq: no environment, so no other leg can run")
                    break
        except KeyboardInterrupt:
            for running in legs.stop():
                print(f"ordermq: interrupted in {running.name}")
                print_end(running)
            return 130
    seconds = time.monotonic() - started
    print(f"\nordermq: {len(results)} legs in {seconds:.0f} s; their logs are in build/legs")
    failed = [one for one in results if one.status]
    for one in sorted(results, key=lambda one: (one.status != 0, -one.seconds)):
        print(f"    {one.line()}{f'; see {one.log.relative_to(ROOT)}' if one.status else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
