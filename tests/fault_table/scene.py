"""One row of the fault table while it runs: servers, network, producer, members, and the judgement
of what they did."""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ordermq.audit import AuditReport
from ordermq.clock import CLOCK_ID
from ordermq.model.message_queue import MessageQueue
from tests.fault_table.network import Network
from tests.fault_table.servers import QUEUES, Servers
from tests.interop.chaos import events_of, is_woken, late_starts, set_back_by_ours
from tests.interop.cluster import DEADLINE_S, ROOT, eventually
from tests.interop.line_process import LineProcess
from tests.interop.run import Run

OVERLAPS = frozenset({"I2", "I6"})
ORDER = frozenset({"I1", "I3"})
SENDER_STEP = 1_000_000  # the numbers of one sender process
Place = tuple[str, int, int]  # broker, queue, offset


@dataclass
class Figures:
    """The outcome of a row; sound if there are no problems."""

    messages: int = 0
    faults: int = 0
    lost: int = 0
    repeats: dict[str, int] = field(default_factory=dict)
    overlaps: int = 0
    order_breaks: int = 0
    silence_s: float = 0.0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Clients:
    """The servers as a `Run` asks for them: those that its clients are told of."""

    name_servers: str
    saved_offsets: Callable[[str, str], dict[str, dict[int, int]]]


class TableRun(Run):
    """A run whose messages may be acknowledged to other processes, too.

    Args: is_told: the servers record themselves what they store.
    """

    def __init__(self, clients: Clients, folder: Path, name: str, *, is_told: bool) -> None:
        super().__init__(clients, folder, name)  # type: ignore[arg-type]
        self.is_told = is_told
        self.acknowledged: set[int] = set()  # of sender processes
        self.forks: list[int] = []  # how each child of a sender ended
        self.times: list[float] = []

    def stored(self, queue: MessageQueue, offset: int, key: str | None) -> None:
        if not self.is_told:
            super().stored(queue, offset, key)

    def deliver(self, name: str, line: dict[str, Any]) -> None:
        if "acknowledged" in line:
            queue = MessageQueue(line["topic"], line["broker"], line["queue"])
            self.acknowledged.add(line["acknowledged"])
            self.stored(queue, line["offset"], line["key"])
        elif "forked" in line:
            self.forks.append(line["forked"])
        else:
            self.times.append(time.monotonic())
            super().deliver(name, line)

    def all_acknowledged(self) -> set[int]:
        return self.acknowledged.union(range(self.sent))


class Scene:
    """A topic, a group and its processes.

    Args:
        network: between them and the servers; None: direct.
        name_servers: for clients, if they are not those of servers or network.
        settings: of all members, besides the servers'.
        is_ordered: the group consumes in order, and its members record histories.

    Attributes:
        faults: so far; of the network, too, once judged.
        promises_order: overlaps and order breaks are problems; else they are figures only.
        is_once: no listener may get a message twice, whatever copies are stored.
        times: how often a row repeats its fault, if each one takes a lease's time.
    """

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        *,
        network: Network | None = None,
        name_servers: str = "",
        seed: int = 1,
        is_told: bool = True,
        settings: Mapping[str, object] | None = None,
        is_ordered: bool = True,
    ) -> None:
        self.servers = servers
        self._settings = dict(settings or {})
        self.is_ordered = self.promises_order = is_ordered
        if not is_ordered:
            self._settings["concurrent"] = True
            is_told = False  # nobody's history says what its messages became
        self.network = network
        self.draw = random.Random(seed)
        self.faults = 0
        self.is_once = False
        self.times = 3 if servers.histories else 2
        told = name_servers or servers.name_servers
        if network is not None and not name_servers:
            told = network.addresses[told]
        cluster = getattr(servers, "cluster", None)
        clients = Clients(told, cluster.saved_offsets if cluster else no_offsets)
        is_told = is_told and bool(servers.histories)
        self.run = TableRun(clients, folder, f"table-{time.time_ns():x}", is_told=is_told)
        # Seconds, so that a row does not wait for a time-out of minutes.
        self.run.producer_settings = {
            "send_timeout_ms": 2_000,
            "retry_times": 200,
            **servers.client_settings,
        }
        self.brokers_histories: list[Path] = []
        if is_told:
            self.add_histories(servers)
        self.members: dict[str, LineProcess] = {}
        self._numbers = itertools.count(1)
        self._woken: dict[int, list[int]] = defaultdict(list)
        self._senders: list[LineProcess] = []

    def add_histories(self, servers: Servers) -> None:
        """Audit what these servers recorded, too."""
        self.brokers_histories += servers.histories
        self.run.histories += servers.histories

    # Members.

    def join(
        self,
        count: int = 1,
        odd: str = "",
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> str:
        """Start members; return the name of the last one.

        Args: odd: a kind of `odd_member.py`. settings: of these members, besides the servers'.
        """
        module = "tests.interop.member"
        if odd:
            module = "tests.fault_table.odd_member"
            environment = {**(environment or {}), "ORDERMQ_ODD": odd}
        for _ in range(count):
            name = f"member-{next(self._numbers)}"
            self.members[name] = self.run.member_process(
                name,
                module,
                environment,
                **(
                    self.servers.member_settings
                    | self.servers.client_settings
                    | self._settings
                    | settings
                ),
            )
            if not self.is_ordered:
                self.run.histories.pop()  # such members record none
        return name

    def one(self) -> str:
        """A member by chance."""
        return self.draw.choice(sorted(self.members))

    def freeze(self, process: LineProcess, seconds: float, meanwhile: Callable[[], None]) -> None:
        """Stop a process (SIGSTOP), and let it go on after this time."""
        self.faults += 1
        process.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        meanwhile()
        threading.Event().wait(max(seconds - (time.monotonic() - began), 0.0))
        self._woken[process.process.pid].append(time.clock_gettime_ns(CLOCK_ID))
        process.process.send_signal(signal.SIGCONT)

    # Producers.

    def sender(self, forks: int = 0) -> LineProcess:
        """Start a producer process; its numbers are above those of all others."""
        first = SENDER_STEP * (len(self._senders) + 1)
        name = f"sender-{len(self._senders)}"
        line = [
            sys.executable, "-m", "tests.fault_table.sender", self.run.cluster.name_servers,
            self.run.topic, str(first), "16", str(forks),
            json.dumps(self.servers.client_settings),
        ]  # fmt: skip
        process = LineProcess(
            line,
            self.run.folder,
            working_directory=ROOT,
            on_line=lambda told: self.run.deliver(name, told),
        )
        self._senders.append(process)
        return process

    # Progress.

    def let_flow(self, count: int = 300) -> None:
        """Wait for so many more deliveries."""
        before = len(self.run.deliveries)
        self.run.wait_for(lambda seen: len(seen) >= before + count, f"{count} more deliveries")

    def wait_for_every_queue(self, queues: int = QUEUES, deadline_s: float = DEADLINE_S) -> None:
        """Wait until each queue delivers something from now on: none is orphaned."""
        before, topic = len(self.run.deliveries), self.run.topic
        self.run.wait_for(
            lambda seen: (
                len({each.queue for each in seen[before:] if each.queue.topic == topic}) >= queues
            ),
            f"deliveries of all {queues} queues",
            deadline_s,
        )

    def is_all_delivered(self) -> bool:
        """Return True if everything acknowledged so far was delivered."""
        return self.run.all_acknowledged() <= numbers_of(self.run)

    # The end.

    def close(self) -> None:
        """End every process that is left."""
        for process in (*self._senders, *self.members.values()):
            if process.is_running:
                process.process.send_signal(signal.SIGCONT)
            process.kill()
        self.run.close()

    def judged(self) -> Figures:
        """Wait for all messages, let all leave, and judge."""
        run = self.run
        wanted = run.all_acknowledged()
        lost = sorted(wanted)
        try:
            eventually(self.is_all_delivered, "everything acknowledged is delivered")
            lost = []
        except BaseException:  # pytest's failure: how many is what the row tells
            lost = sorted(wanted - numbers_of(run))
        for name in list(self.members):
            self.members.pop(name).leave()
        report = run.finish()
        if self.network is not None:
            self.faults += self.network.faults
        figures = self._judged(report)
        figures.messages, figures.lost = len(wanted), len(lost)
        if self.is_once and (again := len(run.deliveries) - len(numbers_of(run))):
            figures.problems.append(f"{again} deliveries of messages that a listener had before")
        if lost:
            figures.problems.append(f"{len(lost)} lost: {lost[:10]}")
        return figures

    def _judged(self, report: AuditReport) -> Figures:
        run, figures = self.run, Figures(faults=self.faults)
        # The members' alone: a broker's grants do not say when they were asked for.
        told = [path for path in run.histories if path not in self.brokers_histories]
        events = list(events_of(told))
        late = list(late_starts(events))
        # No check can prevent these; what they do is not committed.
        woken = {(event["p"], event["seq"]) for event in late if is_woken(event, self._woken)}
        for violation in report.violations:
            started = violation.events[-1].event
            if (
                violation.invariant == "I7"
                or "moved the" in violation.sentence
                or (violation.invariant == "I5" and (started["p"], started["seq"]) in woken)
            ):
                continue  # the first of those that are all judged below
            figures.problems.append(str(violation))
            figures.overlaps += violation.invariant in OVERLAPS
            figures.order_breaks += violation.invariant in ORDER
        late = [event for event in late if (event["p"], event["seq"]) not in woken]
        figures.overlaps += len(late)
        figures.problems += [f"started outside of its lease: {event}" for event in late]
        figures.problems += set_back_by_ours(
            event for event in events if (event["p"], event["seq"]) not in woken
        )
        breaks = list(order_breaks(run))
        figures.order_breaks += len(breaks)
        if self.promises_order:
            figures.problems += breaks[:3]
        places = {(d.queue, d.offset): d.body for d in run.deliveries}
        figures.repeats = {cause: n for cause, n in report.duplicates.items() if n}
        again = len(places) - len(set(places.values()))
        if again and self.is_ordered:
            figures.repeats["copy sent again"] = again
        elif again:  # a message that comes again has another place, as a copy has
            figures.repeats["redelivered or sent again"] = again
        altered = [body for body in places.values() if not body.removeprefix(b"-").isdigit()]
        figures.problems += [f"a body that nobody sent: {body!r}" for body in altered[:3]]
        times = sorted(run.times)
        figures.silence_s = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
        return figures


def no_offsets(broker: str, group: str) -> dict[str, dict[int, int]]:
    """Return what a broker that synced everything takes back: nothing."""
    return {}


def numbers_of(run: Run) -> set[int]:
    """The numbers that were delivered."""
    return {int(d.body) for d in run.deliveries[:] if d.body.isdigit()}


def order_breaks(run: Run) -> Iterator[str]:
    """First deliveries of a key, as its listeners ended, whose numbers do not ascend."""
    known: dict[Place, tuple[str | None, int]] = {}
    for d in run.deliveries:
        if d.body.isdigit():
            known[d.queue.broker_name, d.queue.queue_id, d.offset] = d.key, int(d.body)
    ends = [
        event
        for path in run.histories
        for event in map(json.loads, path.read_text().splitlines())
        if event["type"] == "END"
    ]
    seen: set[int] = set()
    last: dict[str | None, int] = {}
    for event in sorted(ends, key=lambda event: int(event["t"])):
        for offset in event["offs"][: event["done"]]:
            place = event["broker"], event["queue"], offset
            if place not in known:
                yield f"{place} ended and was not delivered"
                continue
            key, number = known[place]
            if number in seen:
                continue
            seen.add(number)
            if number < last.get(key, -1):
                yield f"key {key}: {number} after {last[key]}"
            last[key] = number
