"""Members of Java and ordermq in one orderly group on RocketMQ, under injected faults.

python -m tests.interop.chaos FOLDER [--messages N] [--faults N] [--seed S] [--ours-only]: keyed
messages flow while members join, leave, are killed and are stopped for longer than their locks
live, and one broker is killed and started again. Every history goes to `ordermq.audit`. FOLDER
is an instance of ci/rocketmq.sh; ci/chaos.sh starts one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ordermq.audit import AuditReport
from ordermq.clock import CLOCK_ID
from ordermq.events import BY_COMMIT
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.line_process import LineProcess
from tests.interop.run import Run, is_javas

KEYS = 64
BLOCK = 200  # messages handed to the producer at once, at most
BETWEEN_FAULTS_S = 20.0  # the sender takes its time, or all would be over before the second fault
BACKLOG = 20_000  # the sender waits when so many are on their way
STOPPED_S = 25.0  # longer than a broker keeps the locks of who does not renew them (20 s)
JOIN_ATTEMPTS = 3
WOKEN_NS = 1_000_000_000
STALLED_S = 150.0  # without any delivery: something is lost or stuck
# What Java's own rules allow (docs/internals/semantics.md#leases-and-renewal,
# docs/internals/semantics.md#listener-results): its repeats and early unlocks; and what it
# does when it wakes up after its locks have run out, for it looks at the clock only between
# batches, and its commits are one-way.
JAVAS_OWN = frozenset({"I5", "I9"})
JAVAS_OWN_AFTER_A_STOP = JAVAS_OWN | {"I1", "I2", "I6", "I7", "I8"}


@dataclass
class Outcome:
    """The outcome of a run."""

    messages: int
    seconds: float
    repeats: int
    faults: Counter[str]
    report: AuditReport
    allowed: frozenset[str]
    woken_starts: int = 0  # of ours, frozen right between their check and their call
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 1),
            "repeats": self.repeats,
            "faults": dict(sorted(self.faults.items())),
            "processes": self.report.processes,
            "crashes": self.report.crashes,
            "events": sum(self.report.events.values()),
            "hand_offs": dict(Counter(str(h.kind.value) for h in self.report.hand_offs)),
            "repeats_by_cause": {k: v for k, v in self.report.duplicates.items() if v},
            "violations": sorted({v.invariant for v in self.report.violations}),
            "woken_starts": self.woken_starts,
            "problems": self.problems,
        }


class CountingRun(Run):
    """A run that keeps of each message only that it came."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, messages: int) -> None:
        super().__init__(cluster, folder, name)
        self.seen = bytearray(messages)
        self.arrived = 0
        self.repeats = 0
        self.moved = threading.Condition()

    def deliver(self, name: str, line: dict[str, Any]) -> None:
        if "body" not in line:
            return
        number = int(line["body"])
        with self.moved:
            if self.seen[number]:
                self.repeats += 1
            else:
                self.seen[number] = 1
                self.arrived += 1
            self.moved.notify_all()


class Chaos:
    """One run, from the first member to the audit.

    Args:
        say: told of progress, a line at a time.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        messages: int,
        faults: int,
        seed: int,
        ours_only: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.messages = messages
        self.run = CountingRun(cluster, folder, f"chaos-{time.time_ns():x}", messages)
        self.random = random.Random(seed)
        self.kinds = ("ours",) if ours_only else ("ours", "java")
        self.alive: dict[str, LineProcess] = {}
        self.faults: Counter[str] = Counter()
        self.woken: dict[int, list[int]] = defaultdict(list)  # pid -> boot times of its SIGCONTs
        self.plan = self._plan(faults)
        self._step = messages // (len(self.plan) + 1)
        self._may_send = 2 * self._step  # grows with the faults: each finds messages on their way
        self._numbers = itertools.count(1)
        self._say = say
        self._failure: BaseException | None = None

    def play(self) -> Outcome:
        """Send everything through all faults, let all leave, and audit.

        Raises: AssertionError: messages did not come, or a process did not do as told.
        """
        began = time.monotonic()
        self.run.cluster.put_topic(self.run.topic, {"broker-a": 8, "broker-b": 8})
        sender = threading.Thread(target=self._send, daemon=True)
        try:
            for kind in self.kinds * (2 // len(self.kinds)):
                self._join(kind)
            sender.start()
            for at, fault in self.plan:
                self._wait(lambda at=at: self.run.sent >= at, f"{at} sent")
                self._do(fault)
                self._may_send += self._step
            self._may_send = self.messages
            self._wait(lambda: self.run.arrived >= self.messages, "all delivered")
            sender.join(DEADLINE_S)
            for name in list(self.alive):
                self.alive.pop(name).leave()
            self._say("all have left; auditing")
            report = self.run.finish()
        finally:
            for process in self.alive.values():
                process.process.send_signal(signal.SIGCONT)
                process.kill()
            self.run.close()
        return self._judged(report, time.monotonic() - began)

    def _plan(self, faults: int) -> list[tuple[int, str]]:
        """Return (messages sent before, fault); every kind occurs, that of the broker once."""
        actions = [f"{what} {kind}" for kind in self.kinds for what in ("kill", "stop", "leave")]
        actions += [f"join {kind}" for kind in self.kinds]
        deck: list[str] = []
        while len(deck) < faults - 1:
            deck += self.random.sample(actions, len(actions))
        deck = deck[: max(faults - 1, 0)]
        deck.insert(len(deck) // 2, "broker")
        step = self.messages // (len(deck) + 1)
        return [(step * (number + 1), fault) for number, fault in enumerate(deck)]

    def _send(self) -> None:
        rate = self.messages / (len(self.plan) + 1) / BETWEEN_FAULTS_S
        block = max(min(BLOCK, int(rate / 10)), 1)
        began, pause = time.monotonic(), threading.Event()
        try:
            while (left := self.messages - self.run.sent) > 0:
                pause.wait(max(began + self.run.sent / rate - time.monotonic(), 0.0))
                if not self._has_leave_to_send():
                    pause.wait(0.05)
                    continue
                self.run.send(min(block, left), keys=KEYS)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self._failure = error

    def _has_leave_to_send(self) -> bool:
        run = self.run
        return run.sent < self._may_send and run.sent - run.arrived < BACKLOG

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it is so, for as long as messages still come."""
        arrived, since, told = self.run.arrived, time.monotonic(), time.monotonic()
        while not condition():
            if self._failure is not None:
                raise AssertionError(f"sending failed: {self._failure}") from self._failure
            with self.run.moved:
                self.run.moved.wait(1.0)
            now = time.monotonic()
            if self.run.arrived != arrived:
                arrived, since = self.run.arrived, now
            if now - told > 5.0:
                told = now
                self._progress()
            assert now - since < STALLED_S, (
                f"nothing came for {STALLED_S} s while waiting for {what}: {self.run.sent} sent, "
                f"{self.run.arrived} came, first missing {self.run.seen.find(0)}"
            )

    def _progress(self, what: str = "") -> None:
        run = self.run
        self._say(
            f"{run.sent:,} sent, {run.arrived:,} came, {run.repeats:,} again; "
            f"{', '.join(sorted(self.alive))} {what}"
        )

    # Faults.

    def _do(self, fault: str) -> None:
        self._progress(f"<- {fault}")
        self.faults[fault] += 1
        if fault == "broker":
            self._kill_broker("broker-b")
            return
        what, kind = fault.split()
        if what == "join":
            self._join(kind)
            return
        if len(self.alive) < 3:
            self._join(self.random.choice(self.kinds))
        name = self._one_of(kind)
        if what == "stop":
            self._stop(name)
            return
        process = self.alive.pop(name)
        process.kill() if what == "kill" else process.leave()

    def _join(self, kind: str) -> None:
        if len(self.alive) >= 4:
            # Another of its kind makes room, if there is one: else of the other kind.
            leaving = [name for name in self.alive if name.startswith(kind)] or list(self.alive)
            self.alive.pop(self.random.choice(sorted(leaving))).leave()
        for attempt in range(JOIN_ATTEMPTS):
            name = f"{kind}-{next(self._numbers)}"
            try:
                self.alive[name] = (
                    self.run.java_member(name) if kind == "java" else self.run.member_process(name)
                )
                return
            except pytest.fail.Exception as error:  # a machine too busy for a client's time-outs
                self._say(f"{name} did not start: {error}"[:500])
                if attempt == JOIN_ATTEMPTS - 1:
                    raise

    def _one_of(self, kind: str) -> str:
        """A live member of this kind, a new one if there is none."""
        if not (found := sorted(name for name in self.alive if name.startswith(kind))):
            self._join(kind)
            return self._one_of(kind)
        return self.random.choice(found)

    def _stop(self, name: str) -> None:
        """Freeze a member until its locks have run out, and another has come for its queues."""
        process = self.alive.pop(name)
        process.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + STOPPED_S
        try:
            self._join(self.random.choice(self.kinds))
            self._wait(lambda: time.monotonic() > until, f"{name} stopped long enough")
        finally:
            self.woken[process.process.pid].append(time.clock_gettime_ns(CLOCK_ID))
            process.process.send_signal(signal.SIGCONT)
            self.alive[name] = process

    def _kill_broker(self, name: str) -> None:
        route = self.run.cluster.route(self.run.topic)
        self.run.cluster.kill(name)
        self.run.broker_died(name, route)
        self.run.cluster.start(name)
        eventually(lambda: self.run.cluster.route(self.run.topic) == route, "it is registered")

    # Judging.

    def _judged(self, report: AuditReport, seconds: float) -> Outcome:
        was_stopped = self.faults["stop java"] > 0
        allowed = JAVAS_OWN_AFTER_A_STOP if was_stopped else JAVAS_OWN
        outcome = Outcome(self.messages, seconds, self.run.repeats, self.faults, report, allowed)
        events = list(events_of(self.run.histories))
        late = list(late_starts(events))
        outcome.woken_starts = sum(self._is_woken(event) for event in late)
        for violation in report.violations:
            is_of_java = is_javas(violation)
            is_judged_below = violation.invariant == "I7" or "moved the" in violation.sentence
            if is_judged_below and not is_of_java:
                continue  # the first of those that are all judged
            evidence = [each.event for each in violation.events]
            if violation.invariant == "I5" and is_set_back_by_java(evidence, events):
                continue
            if not is_of_java or violation.invariant not in allowed:
                outcome.problems.append(str(violation))
        outcome.problems += [
            f"started outside of its lease: {event}" for event in late if not self._is_woken(event)
        ]
        outcome.problems += set_back_by_ours(events)
        return outcome

    def _is_woken(self, event: dict[str, Any]) -> bool:
        return is_woken(event, self.woken)


def is_woken(event: dict[str, Any], woken: dict[int, list[int]]) -> bool:
    """True if a late start is that of a member frozen right between its check and its call.

    No check can prevent that; what it did is not committed
    (docs/internals/semantics.md#fencing).

    Args: woken: process id -> boot times of its SIGCONTs.
    """
    pid = int(event["p"].split("@")[1].split("#")[0])
    return any(0 <= event["t"] - at < WOKEN_NS for at in woken[pid])


def events_of(histories: list[Path]) -> Iterator[dict[str, Any]]:
    """The events the checks below need, by time."""
    wanted = ("START", "COMMIT_SENT", "COMMIT_ACK", "RESET", "LOCK_OK", "UNLOCK")
    found = [
        event
        for path in histories
        for event in map(json.loads, path.read_text().splitlines())
        if event["type"] in wanted
    ]
    return iter(sorted(found, key=lambda event: int(event["t"])))


def is_of_ours(event: dict[str, Any]) -> bool:
    return "@java-" not in event["p"]


def late_starts(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Listeners of ours that were called after the lease of their epoch had ended.

    The audit keeps the first violation of each invariant only. Each event gets `late_ms`, by how
    much; None without any lease of its epoch.
    """
    ends: dict[tuple[Any, ...], int] = {}
    for event in events:
        if not is_of_ours(event) or "epoch" not in event:
            continue
        tenure = (event["p"], event["topic"], event["broker"], event["queue"], event["epoch"])
        if event["type"] == "LOCK_OK":
            until = event["sent"] + event["lease_ms"] * 1_000_000
            ends[tenure] = max(ends.get(tenure, 0), until)
        elif event["type"] == "START" and event["t"] > (end := ends.get(tenure, 0)):
            yield event | {"late_ms": round((event["t"] - end) / 1e6, 3) if end else None}


def is_set_back_by_java(repeat: Sequence[Mapping[str, Any]], events: list[dict[str, Any]]) -> bool:
    """True if Java's one-way commit of a member that woke up moved a queue back before a repeat.

    RocketMQ takes the commit of a member that is no owner any more; who takes the queue next goes
    on from there. `set_back_by_ours` judges every message that was committed.

    Args: repeat: the end of the first call, and the start of the second.
    """
    done, again = sorted(repeat, key=lambda event: int(event["t"]))
    return any(
        event["type"] == "COMMIT_SENT"
        and not is_of_ours(event)
        and done["t"] < event["t"] < again["t"]
        and event["off"] <= again["offs"][0]
        and all(event[name] == again[name] for name in ("topic", "broker", "queue"))
        for event in events
    )


def set_back_by_ours(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Messages that the group had committed through us, and that one of ours was given again or
    committed again from before.

    The audit keeps the first violation of each invariant only, and Java's may come first. A
    broker that died takes back what it had not saved; Java's one-way commits, as those of a
    member that wakes up, may move back, and who takes the queue next goes on from there.
    """
    committed: dict[tuple[str, str, int], int] = {}
    # By commits that no answer was read to yet: what was committed as they were sent. A member that
    # froze reads the answer when it wakes, and others have gone on meanwhile.
    before: dict[tuple[object, ...], int] = {}
    released: set[tuple[object, ...]] = set()  # epochs of popped batches, by their last commit
    for event in events:
        place = (event["topic"], event["broker"], event["queue"])
        known = committed.get(place, 0)
        if event["type"] == "UNLOCK" and event.get("detail") == BY_COMMIT:
            released.add((event["p"], place, event["epoch"]))
        if event["type"] == "RESET":
            committed.pop(place, None)
        elif event["type"] == "COMMIT_ACK":
            # That commit was taken before anybody else got the queue, whenever it is told.
            is_late = (event["p"], place, event["epoch"]) in released
            known_then = before.pop((event["p"], place, event["epoch"], event["off"]), known)
            if event["off"] < min(known, known_then) and not is_late:
                yield f"{event['p']} moved the commit of {place} from {known} to {event['off']}"
            committed[place] = max(known, event["off"])
        elif event["type"] == "COMMIT_SENT" and is_of_ours(event):
            before[event["p"], place, event["epoch"], event["off"]] = known
        elif event["type"] == "COMMIT_SENT":
            committed[place] = min(committed.get(place, event["off"]), event["off"])
        elif event["type"] == "START" and is_of_ours(event) and event["offs"][0] < known:
            yield (
                f"{event['p']} was given offset {event['offs'][0]} of {place}, of which "
                f"{known} was committed"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/chaos.sh", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--ours-only", action="store_true", help="no Java members: a control")
    asked = parser.parse_args()

    began = time.monotonic()

    def say(text: str) -> None:
        print(f"ordermq: {time.monotonic() - began:6.1f} s: {text}", file=sys.stderr, flush=True)

    # A line for each try to reach a broker that is dead on purpose.
    logging.getLogger("ordermq").setLevel(logging.CRITICAL)
    say(f"{asked.messages:,} messages, {asked.faults} faults, seed {asked.seed}")
    folder = Path(tempfile.mkdtemp(prefix="chaos-histories-"))
    say(f"histories in {folder}, until all is found well")
    outcome = Chaos(
        Cluster(asked.folder),
        folder,
        messages=asked.messages,
        faults=asked.faults,
        seed=asked.seed,
        ours_only=asked.ours_only,
        say=say,
    ).play()
    print(json.dumps(outcome.summary() | {"seed": asked.seed}, indent=1))
    if outcome.problems:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
