"""The run of ci/exactly_once.sh: faults at random, and every message counted at the end."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from ordermq import Admin, Message, Producer, PullConsumer
from tests.exactly_once.member import GROUP, TOPIC
from tests.exactly_once.tables import copies, counted, create_tables, engine_of, faults
from tests.interop.cluster import Cluster
from tests.interop.own_cluster import own_cluster
from tests.postgresql import PostgreSql

ROOT = Path(__file__).resolve().parents[2]
QUIET_S = 180.0  # nothing counted for so long, with nothing broken: the run has failed


class Server(Protocol):
    """A broker or a database that may be restarted."""

    address: str

    def restart(self) -> None: ...


class Broker(Server, Protocol):
    """A broker, with the address that members are given."""

    members_address: str


class Embedded:
    """The embedded broker in a process of its own; killed with -9 to be restarted."""

    def __init__(self, folder: Path, lease_ms: int) -> None:
        self._folder, self._lease_ms, self._port = folder, lease_ms, 0
        self.start()

    def start(self) -> None:
        line = [
            sys.executable, "-m", "tests.chaos.serve", str(self._folder / "broker.db"),
            str(self._port), str(self._lease_ms), str(self._folder / "broker.jsonl"),
        ]  # fmt: skip
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.address = self.members_address = self.process.stdout.readline().strip()
        self._port = int(self.address.rpartition(":")[2])

    def restart(self) -> None:
        self.close()
        self.start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Postgres:
    """PostgreSQL; every second restart is a crash."""

    def __init__(self) -> None:
        self._server = PostgreSql()
        self._restarts = 0
        self.address = self._server.url

    def restart(self) -> None:
        self._server.stop(crash=self._restarts % 2 == 0)
        self._server.start()
        self._restarts += 1

    def close(self) -> None:
        self._server.close()


class Sqlite:
    """A SQLite file. It has no server, so a restart is somebody who locks it for a while."""

    def __init__(self, folder: Path) -> None:
        self.address = f"sqlite:///{folder / 'app.db'}"
        self._path = folder / "app.db"

    def restart(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(2.0)
            connection.execute("ROLLBACK")

    def close(self) -> None:
        """Nothing runs."""


class Rocketmq:
    """A name server and one broker of RocketMQ, whose broker is killed to be restarted."""

    def __init__(self, cluster: Cluster, mode: str = "pull") -> None:
        self._cluster = cluster
        self.address = self.members_address = cluster.name_servers
        if mode == "grpc":
            self.members_address = cluster.grpc
            cluster.put_topic(TOPIC, {"broker-a": 8}, message_type="FIFO")
            with Admin(self.address) as admin:
                admin.create_group(GROUP, is_orderly=True)
                admin.reset(GROUP, TOPIC, "first")

    def restart(self) -> None:
        self._cluster.kill("broker-a")
        self._cluster.start("broker-a")


class Member:
    """A member process."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.exactly_once.member", *arguments],
                stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT,
            )  # fmt: skip
        self.frozen_until = 0.0
        self._handles_signals = False

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float) -> int:
        if self.frozen_until:
            self.signal(signal.SIGCONT)
        if not self._handles_signals:
            # One that was frozen at its start may only be importing.
            assert self.process.stdout is not None
            self.process.stdout.readline()
            self._handles_signals = True
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Run:
    """One run: a producer thread, members, and a plan of faults."""

    def __init__(
        self, given: argparse.Namespace, broker: Broker, database: Server, folder: Path
    ) -> None:
        self._given, self._broker, self._database, self._folder = given, broker, database, folder
        self._dice = random.Random(given.seed)
        self._engine = engine_of(database.address)
        create_tables(self._engine)
        self._members: list[Member] = []
        self._started = 0
        self._done: Counter[str] = Counter()
        self._send_error: BaseException | None = None
        self.expected: dict[str, list[int]] = {}
        self._begun = time.monotonic()

    def play(self) -> list[str]:
        """Run it; return what is wrong at the end."""
        events = self._events()
        plan = self._plan()
        self._say(f"plan: {dict(Counter(plan))}")
        sender = threading.Thread(target=self._send, args=(events,))
        sender.start()
        for _ in range(self._given.members):
            self._start_member()
        try:
            self._break_things(plan)
            sender.join()
            if self._send_error is not None:
                return [f"the producer failed: {self._send_error!r}"]
            self._wait_for_all(len(events))
            self._look_after_members()  # the last fault may have met one at its start
            codes = [member.end(60.0) for member in self._members]
        finally:
            for member in self._members:
                member.end(1.0)
        wrong = [f"a member ended with {code}" for code in codes if code]
        return wrong + faults(self._engine, self.expected, self._ends())

    def report(self) -> str:
        spent = time.monotonic() - self._begun
        logs = [path.read_text() for path in self._folder.glob("*.log")]
        late = sum(log.count("a newer owner, of epoch") for log in logs)
        repeated = sum(log.count("had their effects already") for log in logs)
        done = ", ".join(f"{count} {name}" for name, count in sorted(self._done.items()))
        return (
            f"{sum(map(len, self.expected.values())):,} messages of {len(self.expected)} keys, "
            f"{done}; copies stored by the producer: {copies(self._engine)}; refused as late "
            f"owners: {late}, as repeated: {repeated}; {spent:.0f} s"
        )

    # The producer.

    def _events(self) -> list[tuple[str, int, int]]:
        # Zipf's law: the first key has a tenth of all messages, most keys a handful.
        keys = [f"a-{number}" for number in range(self._given.keys)]
        weights = [1 / (number + 1) for number in range(self._given.keys)]
        events = []
        for key in self._dice.choices(keys, weights, k=self._given.messages):
            cents = self._dice.randint(1, 10_000)
            numbers = self.expected.setdefault(key, [])
            events.append((key, len(numbers), cents))
            numbers.append(cents)
        return events

    def _send(self, events: list[tuple[str, int, int]]) -> None:
        rate = self._given.rate
        begun = time.monotonic()

        def paced() -> Iterator[tuple[Message, str]]:
            for number, (key, nth, cents) in enumerate(events):
                if number % 64 == 0:
                    time.sleep(max(0.0, number / rate - (time.monotonic() - begun)))
                yield Message(TOPIC, json.dumps([nth, cents]).encode()), key

        try:
            with Producer(
                "shop",
                name_servers=self._broker.address,
                default_topic_queue_nums=8,
                retry_times=200,
                send_timeout_ms=2_000,
            ) as producer:
                for _ in producer.send_stream(paced()):
                    pass
        except BaseException as error:
            self._send_error = error

    # Members and faults.

    def _start_member(self) -> None:
        self._started += 1
        given = self._given
        mode = "pull" if given.mode == "pull" else "pop"
        place = self._broker.members_address, self._database.address
        arguments = [*place, str(given.lease_ms), mode]
        log = self._folder / f"member-{self._started}.log"
        self._members.append(Member(arguments, log))

    def _plan(self) -> list[str]:
        given = self._given
        faults = self._dice.choices(("kill -9", "freeze"), k=given.faults)
        restarts = ["database restart"] * given.restarts + ["broker restart"] * given.restarts
        for restart in restarts:
            faults.insert(self._dice.randrange(len(faults) + 1), restart)
        return faults

    def _break_things(self, plan: list[str]) -> None:
        total = self._given.messages
        for number, fault in enumerate(plan, 1):
            # Spread over the run by what is counted, so that a slow machine breaks no less.
            self._wait_until_counted(int(total * number / (len(plan) + 2)))
            self._break(fault)
            self._done[fault] += 1
            self._say(f"{number}/{len(plan)} {fault}, {self._counted():,} counted")

    def _break(self, fault: str) -> None:
        if fault == "database restart":
            self._database.restart()
        elif fault == "broker restart":
            self._broker.restart()
        else:
            awake = [member for member in self._members if not member.frozen_until]
            member = self._dice.choice(awake)
            if fault == "kill -9":
                member.process.kill()
                member.process.wait()
                self._members.remove(member)
                self._start_member()
            else:
                member.signal(signal.SIGSTOP)
                beyond = self._dice.uniform(1.2, 2.0)
                member.frozen_until = time.monotonic() + beyond * self._given.lease_ms / 1000
                # One member must be awake: nobody else would count on.
                while sum(not each.frozen_until for each in self._members) == 0:
                    self._look_after_members()

    def _look_after_members(self) -> None:
        now = time.monotonic()
        for member in list(self._members):
            if member.frozen_until and now >= member.frozen_until:
                member.signal(signal.SIGCONT)
                member.frozen_until = 0.0
            if not member.frozen_until and (code := member.process.poll()) is not None:
                # A database or a broker that is away at its start ends a member, as it is told to.
                self._done["start that found a server away"] += 1
                self._say(f"a member ended with {code}; starting another")
                self._members.remove(member)
                self._start_member()
        time.sleep(0.05)

    def _wait_until_counted(self, wanted: int) -> None:
        last, since = -1, time.monotonic()
        while (now := self._counted()) < wanted:
            self._look_after_members()
            if self._send_error is not None:
                raise SystemExit(f"the producer failed: {self._send_error!r}")
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > QUIET_S:
                raise SystemExit(f"FAILED: nothing counted for {QUIET_S:.0f} s, at {now:,}")

    def _wait_for_all(self, total: int) -> None:
        while any(member.frozen_until for member in self._members):
            self._look_after_members()
        self._wait_until_counted(total)
        # A copy that the producer stored may be behind the last message.
        ends = self._ends()
        deadline = time.monotonic() + QUIET_S
        while self._seen() < sum(ends.values()) and time.monotonic() < deadline:
            self._look_after_members()

    def _counted(self) -> int:
        try:
            return counted(self._engine)
        except SQLAlchemyError:
            return -1  # it is being restarted, or locked

    def _seen(self) -> int:
        return self._counted() + copies(self._engine)

    def _ends(self) -> dict[str, int]:
        with PullConsumer(GROUP, name_servers=self._broker.address) as consumer:
            queues = consumer.fetch_subscribe_message_queues(TOPIC)
            return {str(queue): consumer.max_offset(queue) for queue in queues}

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  {sentence}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/exactly_once.sh")
    parser.add_argument("--broker", default="embedded", help="embedded, or a version as 5.3.3")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--mode", choices=("pull", "pop", "grpc"), default="pull")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages sent per second")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--faults", type=int, default=50, help="kills and freezes of members")
    parser.add_argument("--restarts", type=int, default=2, help="of broker and database, each")
    parser.add_argument("--lease-ms", type=int, default=0, help="life of a lock or lease")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    given = parser.parse_args()
    is_embedded = given.broker == "embedded"
    if is_embedded and given.mode == "grpc":
        parser.error("--mode grpc: the embedded broker has no proxy; give --broker 5.3.3")
    given.lease_ms = given.lease_ms or (3_000 if is_embedded else 20_000)
    print(f"ordermq: exactly once: {vars(given)}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ordermq-once-")))
        broker: Broker
        if is_embedded:
            embedded = broker = Embedded(folder, given.lease_ms)
            stack.callback(lambda: embedded.close())
        else:
            options = ["--proxy=cluster"] if given.mode == "grpc" else []
            cluster = own_cluster(given.broker, ROOT / "build" / f"once-{os.getpid()}", *options)
            broker = Rocketmq(stack.enter_context(cluster), given.mode)
        postgres = Postgres() if given.database == "postgresql" else None
        if postgres is not None:
            stack.callback(postgres.close)
        run = Run(given, broker, postgres or Sqlite(folder), folder)
        try:
            wrong = run.play()
        except BaseException:
            print(f"logs: {_keep(folder)}", flush=True)
            raise
        print(f"{given.broker}, {given.database}: {run.report()}", flush=True)
        if wrong:
            print(f"logs: {_keep(folder)}", flush=True)
            raise SystemExit("FAILED: " + "; ".join(wrong[:10]))
        print("OK: each message counted exactly once, every sequence without gap or repeat")


def _keep(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-failed")))


if __name__ == "__main__":
    main()
