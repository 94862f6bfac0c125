"""Copy a shop's tables through a broker while readers, appliers and servers are killed.

A shop's tables in a PostgreSQL are changed by random transactions: inserts, updates, deletes,
changed keys. A reader sends its log, appliers keep a copy in another database. They are killed with
-9 and frozen beyond their leases, broker and database are restarted. At the end the copy must equal
the shop, with each change applied once, in the order of its key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from cdc_picture import draw
from cdc_process import PLAIN_SLOT, SLOT, TOPIC, Settings, engine_of
from cdc_shop import create, faults, tables
from psycopg import sql
from sqlalchemy.exc import SQLAlchemyError

from ordermq import Admin
from tests.exactly_once.run import Embedded, Postgres, Rocketmq, Server
from tests.interop.own_cluster import own_cluster

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = 3
QUEUES = 8
QUIET_S = 180.0  # nothing applied for so long: the run has failed
_SAMPLE_S = 0.5


class Process:
    """A process of the demo, whose CPU time is known when it has ended."""

    def __init__(self, role: str, settings: Settings, folder: Path) -> None:
        self.role = role
        self.cpu_s = 0.0
        self.frozen_until = 0.0
        self.code: int | None = None
        with (folder / f"{role}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "ci/cdc/cdc_process.py"), role, settings.to_json()],
                stdout=subprocess.PIPE, stderr=log, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        if self.code is None:
            os.kill(self._process.pid, number)

    def has_ended(self) -> bool:
        return self.code is not None or self._reap(os.WNOHANG)

    def end(self, number: signal.Signals) -> str:
        """End it by a signal, if it has not ended; wait, and return what it printed."""
        if self.frozen_until:
            self.send(signal.SIGCONT)
        self.send(number)
        return self.wait()

    def wait(self) -> str:
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return ""
        with self._process.stdout as output:
            printed = output.read().decode()
        if self.code is None:
            self._reap(0)
        return printed

    def _reap(self, options: int) -> bool:
        # wait4 tells the CPU time of this child; Popen is told, so that it does not wait for it.
        pid, status, usage = os.wait4(self._process.pid, options)
        if not pid:
            return False
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return True


@dataclass
class Timeline:
    """Samples and marks of a run, in seconds since its begin."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)  # committed, applied
    marks: list[tuple[float, str]] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)


class Demo:
    """One run."""

    def __init__(
        self,
        given: argparse.Namespace,
        settings: Settings,
        servers: dict[str, Server],
        folder: Path,
    ) -> None:
        self._given, self._settings, self._servers, self._folder = given, settings, servers, folder
        self._dice = random.Random(given.seed)
        self._source, self._copy = engine_of(settings.source), engine_of(settings.copy)
        self._processes: list[Process] = []
        self._begun = time.monotonic()
        self._sampled_s = 0.0
        self.timeline = Timeline()

    def play(self) -> list[str]:
        """Run it; return what is wrong at the end."""
        self._start("read")
        # The log counts a row that is changed twice twice, a snapshot counts it once: so the shop
        # opens when the log is read.
        self._wait_for_slot()
        writer = self._start("write")
        for _ in range(MEMBERS - 1):
            self._start("apply")
        try:
            plan = self._plan()
            for number, fault in enumerate(plan, 1):
                # Spread over the run by what is applied, so that a slow machine breaks no less.
                self._wait_until_applied(self._settings.changes * number // (len(plan) + 2))
                self._break(fault)
            self._wait_until_applied(self._settings.changes)
            writer.wait()
            self._wait_until_applied(self._committed())
        finally:
            writer.end(signal.SIGKILL)  # it has ended, unless something failed
            for process in self._processes:
                process.end(signal.SIGTERM)
        for process in [*self._processes, writer]:
            self._count_cpu(process)
        # One that has just been started ends by the signal itself; or as it is told to, while a
        # server is away.
        codes = [
            f"{each.role} ended with {each.code}"
            for each in self._processes
            if each.code not in (0, 1, -signal.SIGTERM)
        ]
        return codes + faults(self._source, self._copy, self._settings.tables)

    def _plan(self) -> list[str]:
        given = self._given
        plan = ["kill"] * given.kills + ["freeze"] * given.freezes
        plan += ["broker restart", "database restart"] * given.restarts
        self._dice.shuffle(plan)
        return ["join", *plan]

    def _break(self, fault: str) -> None:
        if fault.endswith("restart"):
            self._mark(fault)
            self._servers[fault.partition(" ")[0]].restart()
            return
        if fault == "join":
            self._start("apply")
            self._mark("an applier joins")
            return
        awake = [each for each in self._processes if not each.frozen_until]
        process = self._dice.choice(awake)
        if fault == "kill":
            self._mark(f"kill -9: {process.role}")
            process.end(signal.SIGKILL)
            self._count_cpu(process)
            self._processes.remove(process)
            self._start(process.role)
        else:
            self._mark(f"freeze: {process.role}")
            process.send(signal.SIGSTOP)
            beyond = self._dice.uniform(1.2, 2.0)
            process.frozen_until = time.monotonic() + beyond * self._settings.lease_ms / 1_000

    def _start(self, role: str) -> Process:
        process = Process(role, self._settings, self._folder)
        if role != "write":
            self._processes.append(process)
        return process

    def _wait_for_slot(self) -> None:
        end = time.monotonic() + QUIET_S
        query = sa.text("SELECT count(*) FROM pg_replication_slots WHERE slot_name = :slot")
        while True:
            with self._source.connect() as connection:
                if connection.scalar(query, {"slot": SLOT}):
                    return
            if time.monotonic() > end:
                raise SystemExit(f"FAILED: no reader of the log within {QUIET_S:g} s")
            time.sleep(_SAMPLE_S)

    def _wait_until_applied(self, wanted: int) -> None:
        last, since = -1, time.monotonic()
        while (now := self._sample()) < wanted:
            for process in list(self._processes):
                if process.frozen_until and time.monotonic() >= process.frozen_until:
                    process.send(signal.SIGCONT)
                    process.frozen_until = 0.0
                if process.has_ended():
                    # A database that is away at its start ends a process, as it is told to.
                    self._mark(f"{process.role} ended with {process.code}, started again")
                    self._count_cpu(process)
                    self._processes.remove(process)
                    self._start(process.role)
            if now > last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > QUIET_S:
                raise SystemExit(f"FAILED: nothing applied for {QUIET_S:g} s, at {now:,}")

    def _sample(self) -> int:
        """Return how many changes are applied; -1 while the database is away."""
        time.sleep(max(0.0, self._sampled_s + _SAMPLE_S - time.monotonic()))
        self._sampled_s = time.monotonic()
        try:
            committed = self._committed()
            with self._copy.connect() as connection:
                applied = connection.scalar(sa.text("SELECT count(*) FROM applied"))
        except SQLAlchemyError:
            return -1
        self.timeline.samples.append((self._sampled_s - self._begun, committed, int(applied or 0)))
        return int(applied or 0)

    def _committed(self) -> int:
        with self._source.connect() as connection:
            return int(connection.scalar(sa.text("SELECT changes FROM done")) or 0)

    def _mark(self, text: str) -> None:
        at = time.monotonic() - self._begun
        self.timeline.marks.append((at, text))
        print(f"{at:6.1f} s  {text}", flush=True)

    def _count_cpu(self, process: Process) -> None:
        total = self.timeline.cpu_s
        total[process.role] = total.get(process.role, 0.0) + process.cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="ci/demo.sh cdc", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="1,000,000 changes, 20 tables, 1,000 rows, 10 kills, 5 freezes",
    )
    parser.add_argument(
        "--rocketmq", nargs="?", const="5.3.3", help="through RocketMQ, 5.3.3 by default"
    )
    parser.add_argument("--form", choices=("debezium", "canal"), default="debezium")
    parser.add_argument("--changes", type=int, help="20,000 by default")
    parser.add_argument("--tables", type=int, help="5 by default, 20 at most")
    parser.add_argument("--rows", type=int, help="of a statement; below 10 by default")
    parser.add_argument("--kills", type=int, help="of reader and appliers; 3 by default")
    parser.add_argument("--freezes", type=int, help="beyond the lease; 1 by default")
    parser.add_argument("--restarts", type=int, default=1, help="of broker and database, each")
    parser.add_argument("--rate", type=float, help="changes per second; 1,500 by default")
    parser.add_argument("--lease-ms", type=int, default=0, help="life of a queue's lock")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--out", type=Path, default=Path("demo-output/cdc"))
    given = parser.parse_args()
    names = ("changes", "tables", "rows", "kills", "freezes", "rate")
    full, small = (1_000_000, 20, 1_000, 10, 5, 10_000.0), (20_000, 5, 10, 3, 1, 1_500.0)
    for name, size in zip(names, full if given.full else small, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, size)
    if not given.lease_ms:
        given.lease_ms = 20_000 if given.rocketmq else 10_000 if given.full else 3_000
    broker = f"RocketMQ {given.rocketmq}" if given.rocketmq else "the embedded broker"
    print(
        f"ordermq: {given.changes:,} changes of a shop's {given.tables} tables, as {given.form} "
        f"writes them, through {broker}: {given.kills} kills, {given.freezes} freezes, "
        f"{given.restarts} restarts of broker and database each; --seed {given.seed}",
        flush=True,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    for log in given.out.glob("*.log"):
        log.unlink()
    with contextlib.ExitStack() as stack:
        wrong = _run(given, stack)
    if wrong:
        raise SystemExit("FAILED: " + "; ".join(wrong))
    print("OK: the copy equals the shop; each change applied once, in the order of its key")


def _run(given: argparse.Namespace, stack: contextlib.ExitStack) -> list[str]:
    database = Postgres()
    stack.callback(database.close)
    source = database.address.replace("+psycopg", "")
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_level = logical")
        connection.execute("CREATE DATABASE copy")
        connection.execute("CREATE DATABASE plain")
    database.restart()
    broker: Server
    if given.rocketmq:
        cluster = own_cluster(given.rocketmq, ROOT / "build" / f"cdc-{os.getpid()}")
        broker = Rocketmq(stack.enter_context(cluster))
    else:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ordermq-cdc-")))
        embedded = broker = Embedded(folder, given.lease_ms)
        stack.callback(lambda: embedded.close())
    with Admin(broker.address) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    settings = Settings(
        source=source, copy=_database(source, "copy"), name_servers=broker.address,
        form=given.form, tables=given.tables, changes=given.changes, rows=given.rows,
        rate=given.rate, seed=given.seed, lease_ms=given.lease_ms,
    )  # fmt: skip
    create(engine_of(settings.source), given.tables, is_copy=False)
    create(engine_of(settings.copy), given.tables, is_copy=True)
    create(engine_of(_database(source, "plain")), given.tables, is_copy=True)
    with psycopg.connect(source, autocommit=True) as connection:
        # A slot that is older than the publication does not find it.
        names = [sql.Identifier(table.name) for table in tables(given.tables)]
        connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                sql.Identifier(SLOT), sql.SQL(", ").join(names)
            )
        )
        connection.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (PLAIN_SLOT,)
        )
    demo = Demo(given, settings, {"broker": broker, "database": database}, given.out)
    wrong = demo.play()
    if given.rocketmq:
        broker_s = None  # Java's CPU time is not this program's
    else:
        embedded.process.kill()
        _, _, usage = os.wait4(embedded.process.pid, 0)
        embedded.process.returncode = 0
        broker_s = usage.ru_utime + usage.ru_stime
    plain = Process("plain", replace(settings, copy=_database(source, "plain")), given.out)
    printed = plain.wait()
    if plain.code:
        raise SystemExit(f"FAILED: the plain applier ended with {plain.code}; see plain.log")
    told = json.loads(printed)
    _report(demo.timeline, told, plain.cpu_s, broker_s)
    draw(demo.timeline, given.out / "lag.png")
    print(f"picture: {given.out / 'lag.png'}")
    return wrong


def _database(conninfo: str, name: str) -> str:
    return f"{conninfo.rpartition('/')[0]}/{name}"


def _report(
    timeline: Timeline, plain: dict[str, Any], plain_s: float, broker_s: float | None
) -> None:
    begun, _, _ = timeline.samples[0]
    ended, _, applied = timeline.samples[-1]
    lags = sorted(committed - done for _, committed, done in timeline.samples)
    cpu = timeline.cpu_s | ({} if broker_s is None else {"broker since its restart": broker_s})
    print(
        f"applied: {applied:,} changes in {ended - begun:.1f} s, {applied / (ended - begun):,.0f}/s"
    )
    print(f"lag: median {lags[len(lags) // 2]:,}, most {lags[-1]:,} changes")
    for role, seconds in sorted(cpu.items()):
        print(f"CPU: {role}: {seconds:.1f} s, {seconds / applied * 1e6:,.0f} us per change")
    rate = plain["changes"] / plain["seconds"]
    print(
        f"without a broker: {plain['changes']:,} in {plain['seconds']:.1f} s, {rate:,.0f}/s; "
        f"CPU {plain_s:.1f} s, {plain_s / max(plain['changes'], 1) * 1e6:,.0f} us per change"
    )


if __name__ == "__main__":
    main()
