"""The run of ci/spark.sh --faults: a query on RocketMQ and two Spark workers, broken on purpose.

query.py numbers the messages of every key by a keyed state. Keys are Zipf's: the first has a
twelfth of all messages. Each fault comes while a task is between two of its queues. At the end
every message is in the result once, with its number, which is its place among its key's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ordermq import Message, Producer, PullConsumer
from ordermq.spark import stored_states
from tests.fault_table.network import (
    TO_CLIENT,
    TO_SERVER,
    Network,
    flip_in_lengths,
    flip_in_record,
)
from tests.interop.cluster import ROOT, Cluster
from tests.interop.own_cluster import own_cluster
from tests.spark.two_hosts import two_hosts
from tests.spark_faults.query import SECOND_ATTEMPT

TOPIC = "orders"
QUEUES = {"broker-a": 32, "broker-b": 32}
TASKS = 8
BATCHES_PER_FAULT = 2
# Limits are fair, so small queues are read to their end first. In the last batches a task has one
# queue, and none is between two of them.
SHARE_WITH_FAULTS = 0.6
SILENT_S = 6.0
BATCH_DEADLINE_S = 600.0
# What a query may end with: its locks or its brokers were taken from it for longer than it waits.
EXPECTED_ENDS = ("LockLost", "RequestTimeout", "ConnectFailed", "ConnectionLost")

# Faults after which at least one task runs again.
DRIVER, EXECUTOR, STAGE = "kill -9 of the driver", "kill -9 of an executor", "kill -9 of a worker"
REPEATING = (DRIVER, EXECUTOR, STAGE, SECOND_ATTEMPT)


class Messages:
    """The messages to send: keys by Zipf's law, and the number of each among its key's."""

    def __init__(self, count: int, keys: int, seed: int) -> None:
        weights = 1 / np.arange(1, keys + 1)
        self.keys = np.random.default_rng(seed).choice(keys, count, p=weights / weights.sum())
        self.numbers = pd.Series(self.keys).groupby(self.keys).cumcount().to_numpy() + 1

    def send(self, name_servers: str) -> None:
        events = (
            (Message(TOPIC, b"%d" % number), f"k{key}")
            for key, number in zip(self.keys.tolist(), self.numbers.tolist(), strict=True)
        )
        with Producer("shop", name_servers=name_servers) as producer:
            for _ in producer.send_stream(events, max_in_flight=20_000):
                pass


class Program:
    """The driver program, with its JVM and the driver half of its stream, in a process group."""

    def __init__(self, settings: dict[str, Any], folder: Path, number: int) -> None:
        self.log = folder / f"program-{number}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_faults.query", json.dumps(settings)],
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def end(self) -> str:
        """Return what the query ended with, as Spark shows it."""
        text = self.log.read_text(errors="replace")
        found = re.findall(r"ordermq\.errors\.\w+[^\n]*|StreamingQueryException[^\n]*", text)
        return found[-1][:600] if found else text[-3_000:]


class Run:
    """One run of the query through all faults.

    Attributes: ends: how often the query ended by itself, by the error.
    """

    def __init__(
        self,
        messages: Messages,
        cluster: Cluster,
        network: Network,
        master: str,
        folder: Path,
        speculation: bool,
        rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self._messages, self._cluster, self._network = messages, cluster, network
        self._folder, self._speculation, self._say = folder, speculation, say
        self._begun = time.monotonic()
        self._breaks: dict[str, Callable[[int, Path], None]] = {
            DRIVER: self._kill_driver,
            EXECUTOR: self._kill_executor,
            STAGE: self._kill_worker,
            "kill -9 of a reading worker": self._kill_readers,
            "kill -9 of a broker": self._kill_broker,
            "connections cut": self._cut,
            "silent to the server": lambda _, passed: self._be_silent(TO_SERVER, passed),
            "silent to the client": lambda _, passed: self._be_silent(TO_CLIENT, passed),
            "delayed frames": self._delay,
            "damaged records": self._damage_records,
            "damaged lengths": self._damage_lengths,
        }
        kinds = [*self._breaks, *([SECOND_ATTEMPT] if speculation else [])] * rounds
        self.plan = {1 + BATCHES_PER_FAULT * at: kind for at, kind in enumerate(kinds)}
        self._batches = math.ceil(BATCHES_PER_FAULT * len(kinds) / SHARE_WITH_FAULTS)
        self.group = f"etl-{'with' if speculation else 'without'}-speculation"
        self._settings = {
            "master": master,
            "folder": str(folder),
            "speculation": speculation,
            "faults": self.plan,
            "source": {
                "name_servers": network.addresses[cluster.name_servers],
                "topic": TOPIC,
                "group": self.group,
                "max_rows": str(-(-len(messages.keys) // self._batches)),
                "tasks": str(TASKS),
                "release_in_flight": "afterPause",
            },
        }
        self._programs = 0
        self.ends: Counter[str] = Counter()
        self._start()

    def play(self) -> list[str]:
        """Break the query in each batch of the plan, wait for its end, and check its result."""
        try:
            for batch, fault in self.plan.items():
                passed = self._folder / f"passed-{batch}"
                if fault == SECOND_ATTEMPT:
                    self._wait(passed.exists, f"a second attempt in batch {batch}")
                else:
                    held = self._folder / f"held-{batch}"
                    self._wait(
                        lambda held=held, batch=batch: held.exists() or self._is_committed(batch),
                        f"batch {batch}, for {fault}",
                    )
                    if not held.exists():
                        raise SystemExit(f"FAILED: batch {batch} has no task of two queues")
                    self._breaks[fault](int(held.read_text()), passed)
                self._say(f"batch {batch} of about {self._batches}: {fault}")
            self._wait(lambda: self._program.code == 0, "the end of the query")
        finally:
            self._program.kill()
        return [*self._wrong_calls(), *self._wrong_rows(), *self._wrong_states(), *self._behind()]

    def report(self) -> str:
        calls = self._calls()
        again = sum(call["rows"] for call in calls) - len(self._messages.keys)
        attempts = {(call["batch"], call["task"]) for call in calls if call["attempt"] > 0}
        ends = ", ".join(f"{count} by {end}" for end, count in sorted(self.ends.items()))
        return (
            f"speculation {'on' if self._speculation else 'off'}: {len(self._messages.keys):,} "
            f"messages, {len(np.unique(self._messages.keys)):,} keys, {sum(QUEUES.values())} "
            f"queues in {TASKS} tasks, {self._committed()} micro-batches, {len(self.plan)} faults, "
            f"{self._network.faults} in the network; {again:,} rows processed again, "
            f"{len(attempts)} tasks with a second attempt, {self._programs} programs, ended by "
            f"themselves: {ends or 'none'}; {time.monotonic() - self._begun:.0f} s"
        )

    def _start(self) -> None:
        self._programs += 1
        self._program = Program(self._settings, self._folder, self._programs)

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until it is so; start the program again as an operator does."""
        end, pause = time.monotonic() + BATCH_DEADLINE_S, threading.Event()
        while not condition():
            if self._program.code not in (None, 0):
                self._start_again()
            if time.monotonic() > end:
                raise SystemExit(f"FAILED: not within {BATCH_DEADLINE_S} s: {what}")
            pause.wait(0.02)

    def _start_again(self) -> None:
        told = self._program.end()
        kind = next((each for each in EXPECTED_ENDS if each in told), None)
        if kind is None:
            raise SystemExit(f"FAILED: the query ended with {told}\n{self._program.log}")
        self.ends[kind] += 1
        self._say(f"the query ended: {told}")
        self._start()

    def _is_committed(self, batch: int) -> bool:
        return (self._folder / "checkpoint" / "commits" / str(batch)).exists()

    def _committed(self) -> int:
        return len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))

    def _until_committed(self, passed: Path, faults: int = sys.maxsize) -> None:
        """Let the batch go on and wait for its end, or for so many faults of the network."""
        most = self._network.faults + faults
        passed.touch()
        batch = int(passed.name.rpartition("-")[2])
        self._wait(
            lambda: self._is_committed(batch) or self._network.faults >= most,
            f"the end of batch {batch}",
        )

    # Faults.

    def _kill_driver(self, _: int, passed: Path) -> None:
        self._program.kill()
        passed.touch()
        self._start()

    def _kill_executor(self, worker: int, passed: Path) -> None:
        os.kill(parent(parent(worker)), signal.SIGKILL)  # above the daemon
        passed.touch()

    def _kill_worker(self, worker: int, passed: Path) -> None:
        os.kill(worker, signal.SIGKILL)
        passed.touch()

    def _kill_readers(self, worker: int, passed: Path) -> None:
        # A task has a process that reads, and one for the stage; others are idle.
        for other in children(parent(worker)) - {worker}:
            with contextlib.suppress(ProcessLookupError):  # an idle one that has just ended
                os.kill(other, signal.SIGKILL)
        passed.touch()

    def _kill_broker(self, _: int, passed: Path) -> None:
        self._cluster.kill("broker-b")
        passed.touch()
        self._cluster.start("broker-b")

    def _cut(self, _: int, passed: Path) -> None:
        self._network.cut(20)
        self._until_committed(passed, faults=20)

    def _be_silent(self, direction: str, passed: Path) -> None:
        with self._network.silent(direction):
            passed.touch()
            threading.Event().wait(SILENT_S)

    def _delay(self, _: int, passed: Path) -> None:
        with self._network.delayed(0.05):
            self._until_committed(passed)

    def _damage_records(self, _: int, passed: Path) -> None:
        with self._network.damaged(0.2, flip_in_record):
            self._until_committed(passed)

    def _damage_lengths(self, _: int, passed: Path) -> None:
        with self._network.damaged(0.01, flip_in_lengths):
            # Each may cost a time-out: what follows a wrong length is waited for.
            self._until_committed(passed, faults=5)

    # What must be so at the end.

    def _calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / "calls.jsonl").open()]

    def _wrong_calls(self) -> Iterator[str]:
        """Tasks have several queues, and what was killed was in the middle of its batch."""
        calls = pd.DataFrame(self._calls())
        queues = calls.groupby(["batch", "task"])["queue"].nunique()
        if queues.groupby("batch").size().max() > TASKS or queues.max() < 2:
            yield f"queues are not packed: {queues.to_dict()}"
        repeated = calls[calls.duplicated(["batch", "queue", "first"])]["batch"]
        for batch, fault in self.plan.items():
            if fault in REPEATING and batch not in set(repeated):
                yield f"batch {batch}: no call was repeated after {fault}"

    def _wrong_rows(self) -> Iterator[str]:
        rows = pd.read_parquet(self._folder / "result.parquet")
        if len(rows) != len(self._messages.keys):
            yield f"{len(rows):,} rows of {len(self._messages.keys):,} messages"
        if twice := int(rows.duplicated(["broker", "queue_id", "offset"]).sum()):
            yield f"{twice:,} offsets are twice in the result"
        rows["key"] = rows["sharding_key"].str[1:].astype("int64")
        rows = rows.sort_values(["key", "nth"], ignore_index=True)
        sent = pd.DataFrame({"key": self._messages.keys, "nth": self._messages.numbers})
        sent = sent.sort_values(["key", "nth"], ignore_index=True)
        if not rows[["key", "nth"]].equals(sent.astype("int64")):
            yield "the messages of the result are not those that were sent"
        if out := int((rows["seen"] != rows["nth"]).sum()):
            yield f"{out:,} messages were not processed in the order of their key"
        later = rows["key"] == rows["key"].shift()
        if (rows["offset"].diff()[later] <= 0).any():
            yield "offsets of a key do not rise with its messages"
        if (rows.groupby("key")[["broker", "queue_id"]].nunique() != 1).any(axis=None):
            yield "a key is in two queues"

    def _wrong_states(self) -> Iterator[str]:
        states = stored_states(str(self._folder / "states")).to_pandas()
        found = states.set_index("sharding_key")["seen"].to_dict()
        if found != {f"k{key}": n for key, n in Counter(self._messages.keys.tolist()).items()}:
            yield "the states are not the counts of the keys"

    def _behind(self) -> Iterator[str]:
        with PullConsumer(self.group, name_servers=self._cluster.name_servers) as puller:
            queues = puller.fetch_subscribe_message_queues(TOPIC)
            if len(queues) != sum(QUEUES.values()):
                yield f"{len(queues)} queues"
            for queue in queues:
                done = puller.fetch_consume_offset(queue, from_store=True)
                if done != puller.max_offset(queue):
                    yield f"{queue}: the group's offset is {done}"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child) for child in text.split()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/spark.sh --faults", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2, help="how often each fault comes")
    parser.add_argument("--speculation", choices=("on", "off", "both"), default="both")
    parser.add_argument("--version", default="5.3.3", help="of RocketMQ")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    given = parser.parse_args()
    print(f"ordermq: Spark under faults: {vars(given)}", flush=True)
    # A line for each try to reach a broker that is dead on purpose.
    logging.getLogger("ordermq").setLevel(logging.CRITICAL)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)

    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="spark-faults-", dir=ROOT / "build"))
    say(f"logs in {folder}, until all is found well")
    broker = own_cluster(
        given.version,
        ROOT / "build" / f"spark-faults-broker-{os.getpid()}",
        "--brokers=2",
        "--java=-Drocketmq.broker.rebalance.lockMaxLiveTime=60000",  # its default
    )
    with broker as cluster:
        cluster.put_topic(TOPIC, QUEUES)
        messages = Messages(given.messages, given.keys, given.seed)
        messages.send(cluster.name_servers)
        say(f"{given.messages:,} sent")
        for speculation in {"on": [True], "off": [False], "both": [True, False]}[given.speculation]:
            own = folder / f"speculation-{speculation}"
            own.mkdir()
            network = Network(
                [cluster.addresses[part] for part in ("name-server", *QUEUES)], given.seed
            )
            with contextlib.closing(network), two_hosts(own) as master:
                run = Run(messages, cluster, network, master, own, speculation, given.rounds, say)
                wrong = run.play()
            say(run.report())
            if wrong:
                raise SystemExit(f"FAILED: {'; '.join(wrong[:10])}; see {own}")
            say("OK: each message once, in the order of its key")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
