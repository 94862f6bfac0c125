"""ordermq and the official clients over gRPC, at one proxy in the same minutes.

Starts RocketMQ with a proxy in cluster mode (Java 17 and Maven). *Rates*: a consumer in order and
one without, a producer with message groups and one without, each client in turn, Java's as a
consumer; the clock starts when a third is done. *Faults*: two members of each client, and two of
ordermq that pop from the brokers, consume one topic, and one of each is killed, frozen, or leaves,
at the same time. How long keys wait is told by the time from a message's send to its first
delivery. *Leaves*: members of ordermq leave one after the other, to tell the distribution of that
wait. Writes bench/results/grpc_rocketmq.json; a run with --only or --fate leaves its other figures
as they are, and each part of it names the command that made it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.end_to_end.bench_rocketmq import Part, rocketmq_processes, running_parts
from bench.end_to_end.summary import ratios, summarise
from bench.machine import RESULTS, ROOT, command_line, cpu_seconds, run_json, save
from bench.peers.environments import python_with
from bench.peers.grpc_client import PACKAGE
from bench.peers.grpc_programs import BY_POP, JAVA, OFFICIAL, OURS, body_of
from ordermq import Admin, Message, Producer
from ordermq.errors import OrderMQError

RESULT = "grpc_rocketmq"
CLIENTS = (OURS, OFFICIAL)
QUEUES = 8
KEYS = 64
IN_FLIGHT = 64
FLOW_PER_S = 96  # what a busy machine bears for six members
FLOW_BEFORE_S = 4.0
CAUGHT_UP_S = 90.0  # at most: what is not delivered by then is lost, and not only late
WAITS_MS = 1_000  # of a key that counts as one that waited
AFTER_LEAVE_S = 3.0  # so long what is sent belongs to a leave
FATES = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "leave": None}
MODULE = "bench.peers.grpc_programs"


@dataclass(frozen=True)
class Work:
    """A kind of program that is timed."""

    program: str
    fifo: bool
    in_flight: int = 1

    @property
    def name(self) -> str:
        order = "in order" if self.fifo else "without order"
        if self.program == "consume":
            return f"consumer, {order}"
        pace = f"{self.in_flight} in flight" if self.in_flight > 1 else "one by one"
        return f"producer, {'message groups' if self.fifo else 'no groups'}, {pace}"

    @property
    def waits(self) -> bool:
        """It sends a message after the answer to the last one."""
        return self.program == "send" and self.in_flight == 1

    @property
    def clients(self) -> tuple[str, ...]:
        return (*CLIENTS, JAVA) if self.program == "consume" else CLIENTS


WORKS = (
    Work("consume", fifo=True),
    Work("consume", fifo=False),
    Work("send", fifo=True),
    Work("send", fifo=True, in_flight=IN_FLIGHT),
    Work("send", fifo=False, in_flight=IN_FLIGHT),
)


class Servers:
    """RocketMQ with a proxy, and topics and groups on it."""

    def __init__(self, parts: dict[str, Part]) -> None:
        self.parts = parts
        self.proxy = parts["proxy"].address
        self.name_server = parts["name-server"].address
        self.admin = Admin(self.name_server)
        self._number = time.time_ns() // 1_000_000  # names are new on a RocketMQ that runs already

    def topic(self, name: str, kind: str) -> str:
        name = f"{name}-{self._number}"
        self.admin.create_topic(name, QUEUES, message_type=kind)
        return name

    def group(self, name: str, *, fifo: bool) -> str:
        name = f"{name}-{self._number}"
        self.admin.create_group(name, is_orderly=fifo)
        return name

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(part.pid) for part in self.parts.values())


def python_of(client: str) -> str:
    """Return the interpreter that has a client."""
    return str(python_with(PACKAGE)) if client == OFFICIAL else sys.executable


def variables_of(home: str) -> dict[str, str]:
    """Return variables of a client's process; the official one logs into its home."""
    return {"HOME": home, "PYTHONPATH": str(ROOT)}


# Rates.


def measure_rates(
    servers: Servers, works: Sequence[Work], rounds: int, messages: int, home: str
) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind of program, for each client, and the ratios to ours."""
    waiting = {
        fifo: servers.topic(f"waiting-{'fifo' if fifo else 'normal'}", "FIFO" if fifo else "NORMAL")
        for fifo in (True, False)
    }
    for fifo, topic in waiting.items():
        fill(servers, topic, messages, keyed=fifo)
    rows: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    # The first round is not counted: in it the servers' compiler is at work.
    for number in range(rounds + 1):
        for work in works:
            for client in work.clients:
                row = run_one(servers, work, client, messages, number, waiting[work.fifo], home)
                if number:
                    rows[work.name][client].append(row)
                print(
                    f"round {number} {work.name:42} {client:16} "
                    f"{row['messages'] / row['seconds']:9,.0f} messages/s "
                    f"cpu {row['cpu_seconds'] / row['messages'] * 1e6:6.1f} us, servers "
                    f"{row['broker_cpu_seconds'] / row['messages'] * 1e6:6.1f} us, load "
                    f"{os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    return {
        name: {client: summarise(found, found[0]["messages"]) for client, found in own.items()}
        | {"ratio": ratios(own[OURS], own[OFFICIAL])}
        | ({f"ratio to {JAVA}": ratios(own[OURS], own[JAVA])} if JAVA in own else {})
        for name, own in rows.items()
    }


def run_one(
    servers: Servers, work: Work, client: str, messages: int, number: int, topic: str, home: str
) -> dict[str, Any]:
    """Run one program, a third of its messages untimed."""
    if client != OURS or work.waits:
        messages //= 4  # the slower ones
    warm = messages // 3
    asked: list[object] = [work.program, servers.proxy, topic, "--client", client]
    asked += ["--messages", messages - warm, "--warm", warm, "--in-flight", work.in_flight]
    if work.fifo:
        asked.append("--fifo")
    if work.program == "consume":
        group = f"{work.name}-{client}-{number}".replace(" ", "-").replace(",", "")
        group = servers.group(group, fifo=work.fifo)
        asked += ["--group", group]
        servers.admin.reset(group, topic, "first")
    before = servers.cpu_seconds()
    row = run_json(MODULE, asked, python=python_of(client), variables=variables_of(home))
    # That of all its messages: the servers do not know which ones are timed.
    row["broker_cpu_seconds"] = (servers.cpu_seconds() - before) * row["messages"] / messages
    return row


def fill(servers: Servers, topic: str, messages: int, *, keyed: bool) -> None:
    """Store what the consumers read, over the brokers' own protocol."""
    with Producer("fill", name_servers=servers.name_server, selector="grpc") as producer:
        events = (
            (Message(topic, body_of(number)), f"k{number % KEYS}" if keyed else None)
            for number in range(messages)
        )
        for _ in producer.send_stream(events, max_in_flight=64):
            pass


# Faults.


class Member:
    """A member as a process; notes when each number arrived first, and how often it arrived."""

    def __init__(self, servers: Servers, client: str, group: str, topic: str, home: str) -> None:
        self.arrivals: list[tuple[int, float]] = []
        self._ready = threading.Event()
        address = servers.name_server if client == BY_POP else servers.proxy
        line = [python_of(client), "-m", MODULE, "member", address, topic]
        line += ["--client", client, "--group", group, "--fifo"]
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env=os.environ | variables_of(home),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Return when it has started."""
        if not self._ready.wait(120):
            raise SystemExit(f"a member did not start: {self.process.args!r}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[0].isdigit():
                self.arrivals.append((int(words[0]), float(words[1])))
            else:
                self._ready.set()

    def meet(self, fate: str) -> None:
        """Kill it, freeze it, or have it leave."""
        number = FATES[fate]
        assert self.process.stdin is not None
        if number is None:
            self.process.stdin.close()
        else:
            self.process.send_signal(number)

    def end(self) -> None:
        """End the process, whatever state it is in."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


@dataclass
class Flow:
    """Times of what was sent, by number."""

    sent: list[float]

    @contextlib.contextmanager
    def running(self, servers: Servers, topic: str) -> Iterator[None]:
        """Send at a fixed rate during the block, which over gRPC would cost the servers more."""
        stop = threading.Event()
        failures: list[OrderMQError] = []

        def work() -> None:
            began = time.monotonic()
            try:
                with Producer(
                    "flow", name_servers=servers.name_server, selector="grpc", retry_times=100
                ) as producer:
                    while not stop.wait(0.005):
                        due = int((time.monotonic() - began) * FLOW_PER_S)
                        for number in range(len(self.sent), due):
                            self.sent.append(time.monotonic())
                            message = Message(topic, body_of(number))
                            producer.send_nowait(message, sharding_key=f"k{number % KEYS}")
                    producer.flush(60.0)
            except OrderMQError as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]


def measure_fate(servers: Servers, fate: str, watch_s: float, home: str) -> dict[str, Any]:
    """Have a member of each client meet its fate, and watch the others."""
    topic = servers.topic(f"faults-{fate}", "FIFO")
    members: dict[str, list[Member]] = {}
    flow = Flow([])
    try:
        for client in (*CLIENTS, BY_POP):
            group = servers.group(f"faults-{fate}-{client}".replace(" ", "-"), fifo=True)
            members[client] = [Member(servers, client, group, topic, home) for _ in range(2)]
        for each in (member for both in members.values() for member in both):
            each.wait_until_ready()
        with flow.running(servers, topic):
            time.sleep(FLOW_BEFORE_S)  # so long the group is at work before
            met = time.monotonic()
            for client in (*CLIENTS, BY_POP):
                members[client][0].meet(fate)
            time.sleep(watch_s)
        wait_for_rest(flow, members)
    finally:
        for each in (member for both in members.values() for member in both):
            each.end()
    found = {client: figures(flow.sent, both, met) for client, both in members.items()}
    print(fate, json.dumps(found), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found | {"watched_s": watch_s, "load": round(os.getloadavg()[0], 1)}


def wait_for_rest(flow: Flow, members: dict[str, list[Member]]) -> None:
    """Wait until members of each client have everything, for as long as it may be only late."""
    end = time.monotonic() + CAUGHT_UP_S
    wanted = set(range(len(flow.sent)))
    while time.monotonic() < end and any(
        wanted - {number for each in both for number, _ in each.arrivals[:]}
        for both in members.values()
    ):
        time.sleep(0.1)  # between two looks


def figures(sent: Sequence[float], members: Sequence[Member], met: float) -> dict[str, Any]:
    """Return how long keys waited for messages sent around the fate and after it."""
    arrivals = sorted((at, number) for member in members for number, at in member.arrivals)
    first: dict[int, float] = {}
    breaks, last = 0, [-1] * KEYS
    for at, number in arrivals:
        if number not in first:
            first[number] = at
            breaks += number < last[number % KEYS]
            last[number % KEYS] = number
    before: list[float] = []
    by_key = [0.0] * KEYS
    for number, at in first.items():
        wait_ms = (at - sent[number]) * 1_000
        if sent[number] < met - 1.0:
            before.append(wait_ms)
        else:
            by_key[number % KEYS] = max(by_key[number % KEYS], wait_ms)
    waited = [wait_ms for wait_ms in by_key if wait_ms > WAITS_MS]
    return {
        "messages": len(sent),
        "lost": len(sent) - len(first),
        "repeats": len(arrivals) - len(first),
        "order_breaks": breaks,
        "p99_before_ms": round(statistics.quantiles(before, n=100)[98]) if before else None,
        "keys_that_waited": len(waited),
        "median_wait_ms": round(statistics.median(by_key)),
        "worst_wait_ms": round(max(by_key)),
    }


# Leaves.


def measure_leaves(servers: Servers, times: int, home: str) -> dict[str, Any]:
    """Have members of ordermq leave one after the other; return the longest wait at each leave."""
    topic = servers.topic("leaves", "FIFO")
    ways = (OURS, BY_POP)
    groups = {way: servers.group(f"leaves-{way}".replace(" ", "-"), fifo=True) for way in ways}
    members: dict[str, list[Member]] = {way: [] for way in ways}
    flow, left = Flow([]), []

    def join() -> None:
        joined = [Member(servers, way, groups[way], topic, home) for way in ways]
        for way, member in zip(ways, joined, strict=True):
            member.wait_until_ready()
            members[way].append(member)

    try:
        join()
        join()
        with flow.running(servers, topic):
            for number in range(times):
                join()  # before, so that a start of Python is no part of the wait
                time.sleep(AFTER_LEAVE_S)
                left.append(time.monotonic())
                for way in ways:
                    members[way][number].meet("leave")
                time.sleep(AFTER_LEAVE_S)
        wait_for_rest(flow, members)
    finally:
        for each in (member for both in members.values() for member in both):
            each.end()
    found = {way: waits_of(flow.sent, members[way], left) for way in ways}
    print("leaves", json.dumps(found), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found | {"load": round(os.getloadavg()[0], 1)}


def waits_of(
    sent: Sequence[float], members: Sequence[Member], left: Sequence[float]
) -> dict[str, Any]:
    """Return the longest wait of a message around each leave, and in the time before it, in ms."""
    first: dict[int, float] = {}
    arrivals = sorted((at, number) for member in members for number, at in member.arrivals)
    for at, number in arrivals:
        first.setdefault(number, at)

    def worst(begin: float, end: float) -> int:
        waits = [first[n] - sent[n] for n in first if begin <= sent[n] < end]
        return round(max(waits, default=0.0) * 1_000)

    return {
        "messages": len(sent),
        "lost": len(sent) - len(first),
        # In the order of sends: the first of all were sent before the group's first receive.
        "lost_numbers": sorted(set(range(len(sent))) - set(first))[:20],
        "repeats": len(arrivals) - len(first),
        "worst_wait_ms": [worst(at - 0.1, at + AFTER_LEAVE_S) for at in left],
        "worst_wait_before_ms": [worst(at - AFTER_LEAVE_S, at - 0.1) for at in left],
    }


def parts_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a result, each of one run."""
    parts = [*result.get("workloads", {}).values(), *result.get("faults", {}).values()]
    parts.append(result.get("leaves"))
    return [part for part in parts if part is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--at", type=Path, help="of ci/rocketmq.sh --proxy, which runs already")
    parser.add_argument(
        "--proxy-set", action="append", default=[], metavar="KEY=VALUE",
        help="of the proxy, as in ci/rocketmq.sh; figures with it are printed only",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=16_000, help="of the quicker client")
    parser.add_argument("--program", choices=["consume", "send"], help="rates of these only")
    parser.add_argument("--watch-s", type=float, default=70.0, help="how long after a fault")
    parser.add_argument("--only", choices=["rates", "faults", "leaves"])
    parser.add_argument("--times", type=int, default=12, help="leaves")
    parser.add_argument("--fate", choices=list(FATES), action="append", help="these faults only")
    asked = parser.parse_args()
    fates = asked.fate or list(FATES)
    command = command_line("bench.end_to_end.bench_grpc")
    if asked.at is not None:  # of this machine
        command = command.replace(shlex.quote(str(asked.at)), "FOLDER")
    path = RESULTS / f"{RESULT}.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        if asked.at is not None:
            parts = running_parts(asked.version, asked.at)
        else:
            given = [f"--proxy-set={each}" for each in asked.proxy_set]
            parts = stack.enter_context(
                rocketmq_processes(asked.version, "--proxy=cluster", *given)
            )
        servers = Servers(parts)
        if asked.only in (None, "rates") and not asked.fate:
            works = [work for work in WORKS if asked.program in (None, work.program)]
            found = measure_rates(servers, works, asked.rounds, asked.messages, home)
            result.setdefault("rates", {}).update(found)
            workload = {
                "rocketmq": asked.version, "messages": asked.messages, "queues": QUEUES,
                "keys": KEYS, "package": PACKAGE, "load": round(os.getloadavg()[0], 1),
                "command": command,
            }  # fmt: skip
            for program in {work.program for work in works}:  # the others are of an older run
                result.setdefault("workloads", {})[program] = workload
        if asked.only in (None, "faults"):
            faults = result.setdefault("faults", {})
            for fate in fates:
                faults[fate] = measure_fate(servers, fate, asked.watch_s, home)
                faults[fate]["command"] = command
        if asked.only in (None, "leaves") and not asked.fate:
            result["leaves"] = measure_leaves(servers, asked.times, home) | {"command": command}
        servers.admin.close()
    # The command of each part: they may come from several runs. A part of an older record has none.
    commands = (part.get("command", result.get("command", "")) for part in parts_of(result))
    result["command"] = "; ".join(dict.fromkeys(filter(None, commands)))
    # Figures of other settings than those of RocketMQ stay out of the record.
    print(json.dumps(result) if asked.proxy_set else save(RESULT, result))


if __name__ == "__main__":
    main()
