"""Fence tokens on RocketMQ: owners on two hosts change by hand-off, kill -9, freeze, and with
their broker; Java's member is in between. ORDERMQ_FENCE_CHANGES says how often; ci/fences.sh runs
it long.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import PushConsumer
from ordermq.admin.admin import Admin
from ordermq.errors import StateError
from ordermq.leases.lock_epochs import queue_of_epoch
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import RequestCode
from tests.interop.cluster import DEADLINE_S, ROOT, Cluster, eventually
from tests.interop.fence_member import LOCK_MS
from tests.interop.fenced_table import open_table
from tests.interop.java_process import JavaProcess
from tests.interop.line_process import LineProcess
from tests.interop.own_cluster import own_cluster
from tests.interop.run import MEMBER_SETTINGS, Run
from tests.postgresql import PostgreSql

CHANGES = int(os.environ.get("ORDERMQ_FENCE_CHANGES", "60"))
QUEUES = 8
BROKER_BACK_S = 3 * DEADLINE_S  # one that was killed takes a minute to start on a busy machine
TEN_DAYS_MS = 864_000_000
# Uptime and wall clock of each host, from this machine's.
HOSTS = {"old": (TEN_DAYS_MS, 2_500), "young": (0, -2_500)}
JAVA_LEASE = (
    f"-Drocketmq.client.rebalance.lockMaxLiveTime={LOCK_MS // 2}",
    f"-Drocketmq.client.rebalance.lockInterval={LOCK_MS // 4}",
)

pytestmark = [pytest.mark.restarts, pytest.mark.timeout(300 + 3 * CHANGES)]


class Owners:
    """Two members of one group on two hosts, and everything they were granted and wrote."""

    def __init__(self, run: Run, place: str) -> None:
        self.run = run
        self.place = place
        self.histories: list[Path] = []
        self.refused: list[dict[str, Any]] = []
        self.java_bodies: set[int] = set()
        self.java_count = 0
        self.done: Counter[str] = Counter()
        open_table(place).close()
        self.members = {host: self._start(host) for host in HOSTS}
        self._answers: dict[str, int] = {}

    def _start(self, host: str) -> LineProcess:
        uptime_ms, wall_ms = HOSTS[host]
        history = self.run.folder / f"{host}-{len(self.histories)}.jsonl"
        self.histories.append(history)
        run = self.run
        return LineProcess(
            [
                sys.executable, "-m", "tests.interop.fence_member", run.cluster.name_servers,
                run.group, run.topic, str(history), self.place, str(uptime_ms),
                str(wall_ms),
            ],
            run.folder,
            working_directory=ROOT,
        )  # fmt: skip

    def count(self, host: str) -> int:
        """Number of queues a member holds."""
        answer = self.members[host].ask("count")
        while "count" not in answer:
            self.refused.append(answer)
            answer = self.members[host].read()
        return int(answer["count"])

    def wait_until(self, host: str, least: int) -> None:
        wanted = f"{least} queues of {host}"
        try:
            eventually(lambda: self.count(host) >= least, wanted, BROKER_BACK_S)
        except AssertionError as failure:
            ext = {"consumerGroup": self.run.group}
            listed = self.run.cluster.ask("broker-a", RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
            failure.add_note(f"members that the broker lists: {listed.body!r}")
            for name, member in self.members.items():
                failure.add_note(f"{name} holds {self.count(name)}: {member.errors()}")
            raise

    def hand_off(self, host: str, other: str) -> None:
        self.members[host].tell("rest")
        self.wait_until(other, QUEUES)
        self.members[host].tell("work")
        self.wait_until(host, QUEUES // 2)

    def kill(self, host: str, other: str) -> None:
        self.members[host].kill()
        self.wait_until(other, QUEUES)
        self.members[host] = self._start(host)
        self.wait_until(host, QUEUES // 2)

    def freeze(self, host: str, other: str) -> None:
        """Longer than its locks live."""
        self.members[host].process.send_signal(signal.SIGSTOP)
        self.members[other].tell("all")
        self.wait_until(other, QUEUES)
        self.members[host].process.send_signal(signal.SIGCONT)
        self.members[other].tell("share")
        self.wait_until(host, QUEUES // 2)

    def restart_broker(self, host: str, other: str) -> None:
        self._restart(self.run.cluster.stop)

    def kill_broker(self, host: str, other: str) -> None:
        self._restart(self.run.cluster.kill)

    def _restart(self, end: Any) -> None:
        end("broker-a")
        self.run.cluster.start("broker-a")
        for host in HOSTS:
            self.wait_until(host, QUEUES // 2)

    def java_in_between(self, host: str, other: str) -> None:
        """Java's member holds some of the queues, and returns them."""
        got: list[int] = []
        java = self._start_java(
            lambda line: got.append(int(line["body"])) if "body" in line else None
        )
        try:
            eventually(lambda: len(got) > 20, "messages of Java's member")
            self.members[host].tell("rest")
            before = len(got)
            eventually(lambda: len(got) > before + 20, "more of them")
            self.members[host].tell("work")
        finally:
            java.leave()
        self.java_bodies.update(got)
        # Java's client may send a heartbeat while it unregisters. A broker that works it last
        # lists the member for two more minutes.
        for member in (host, other):
            self.wait_until(member, QUEUES // 2)

    def _start_java(self, on_line: Callable[[dict[str, Any]], None]) -> JavaProcess:
        # Java's client gives up at the first request that fails, as on a busy machine.
        for last in [False] * 7 + [True]:
            self.java_count += 1
            history = f"java-{self.java_count}.jsonl"
            try:
                return self.run.java(history, options=JAVA_LEASE, on_line=on_line)
            except pytest.fail.Exception:
                if last:
                    raise
        raise AssertionError

    def grants(self) -> dict[int, list[tuple[int, str, int]]]:
        """(time, member, epoch) of every grant by queue, in order of time; renewals left out."""
        found: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        for path in self.histories:
            told: set[tuple[int, int]] = set()
            for line in path.read_text().splitlines():
                if '"LOCK_OK"' not in line or not line.endswith("}"):
                    continue
                event = json.loads(line)
                place = event["queue"], event["epoch"]
                if event["topic"] == self.run.topic and place not in told:
                    told.add(place)
                    found[event["queue"]].append((event["t"], event["p"], event["epoch"]))
        return {queue: sorted(each) for queue, each in found.items()}

    def changes(self) -> int:
        """Number of times a queue went to another member."""
        return sum(
            before[1] != after[1]
            for each in self.grants().values()
            for before, after in itertools.pairwise(each)
        )

    def close(self) -> None:
        for member in self.members.values():
            member.kill()


@pytest.fixture
def table_place(tmp_path: Path) -> Iterator[str]:
    """The database that owners write to: SQLite, or ORDERMQ_FENCE_DATABASE."""
    if os.environ.get("ORDERMQ_FENCE_DATABASE", "sqlite") == "sqlite":
        yield str(tmp_path / "orders.sqlite")
        return
    with contextlib.closing(PostgreSql()) as database:
        yield database.url.replace("+psycopg", "")


@pytest.fixture
def owners(cluster: Cluster, tmp_path: Path, table_place: str) -> Any:
    locks = f"--java=-Drocketmq.broker.rebalance.lockMaxLiveTime={LOCK_MS}"
    with (
        # ci/fences.sh starts one with such locks.
        contextlib.nullcontext(cluster)
        if "ORDERMQ_FENCE_CHANGES" in os.environ
        else own_cluster(cluster.version, tmp_path / "rocketmq", locks)
    ) as own:
        run = Run(own, tmp_path, f"fences-{os.getpid()}")
        own.put_topic(run.topic, {"broker-a": QUEUES})
        found = Owners(run, table_place)
        try:
            yield found
        finally:
            found.close()
            run.close()


def test_epochs_grow_through_every_change_of_owner_and_the_recipe_writes_once(
    owners: Owners, capsys: pytest.CaptureFixture[str]
) -> None:
    run = owners.run
    ways = [owners.hand_off] * 20 + [
        owners.kill, owners.kill, owners.freeze, owners.freeze, owners.restart_broker,
        owners.kill_broker, owners.java_in_between,
    ]  # fmt: skip
    chance = random.Random(16)
    first = [*dict.fromkeys(ways)]  # each way once, however short the run
    with run.flow(pause_s=0.1):
        for host in HOSTS:
            owners.wait_until(host, QUEUES // 2)
        while first or owners.changes() < CHANGES:
            way = first.pop(0) if first else chance.choice(ways)
            host, other = chance.sample(sorted(HOSTS), 2)
            way(host, other)
            owners.done[way.__name__] += 1
    reader = open_table(owners.place)
    eventually(
        lambda: len(reader.bodies() | owners.java_bodies) == run.sent, "everything is written", 120
    )
    for host in HOSTS:
        owners.count(host)  # reads what they still had to tell
    grants = owners.grants()
    for queue, each in grants.items():
        epochs = [epoch for _, _, epoch in each]
        assert epochs == sorted(set(epochs)), f"queue {queue}"
    # Nobody was refused while it was the newest owner.
    for refusal in owners.refused:
        newer = [t for t, _, epoch in grants[refusal["queue"]] if epoch > refusal["refused"]]
        assert newer, refusal
        assert min(newer) < refusal["t"], refusal
    # And no write of an older owner was accepted, nor any offset written twice.
    last: dict[str, tuple[int, int]] = {}
    for queue, epoch, next_offset in reader.journal():
        before = last.get(queue, (0, 0))
        assert epoch >= before[0], f"queue {queue}: {epoch} after {before}"
        assert next_offset >= before[1], f"queue {queue}: {next_offset} after {before}"
        last[queue] = epoch, next_offset
    reader.close()
    grown = sum(map(len, grants.values()))
    with capsys.disabled():
        sys.stdout.write(
            f"\nRocketMQ {run.cluster.version}: {owners.changes()} changes of owner, {grown} "
            f"epochs, {dict(owners.done)}; {run.sent} messages, {len(owners.java_bodies)} of them "
            f"by Java; {len(owners.refused)} stale writes refused, 0 accepted, 0 rightful owners "
            "refused\n"
        )


def test_stored_epochs_show_in_no_tool_and_are_saved_with_the_offsets(
    run: Run,
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4})
    member = run.member("one")
    run.send(40)
    run.wait_for_all()
    queue = MessageQueue(run.topic, "broker-a", 0)
    eventually(lambda: len(member.assigned_queues()) >= 4, "all queues")
    # RocketMQ counts a group's progress by the queues that its topic has.
    ext = {"consumerGroup": run.group, "topic": run.topic}
    answer = run.cluster.ask("broker-a", RequestCode.GET_CONSUME_STATS, ext)
    assert answer.code == 0, answer.remark
    assert b"100000" not in answer.body
    with Admin(name_servers=run.cluster.name_servers) as admin:
        rows = admin.group(run.group, (run.topic,), ask_members=False)
    assert "100000" not in repr(rows)
    run.leave("one")

    def stored(group: str) -> int:
        place = queue_of_epoch(queue)
        ext = {"consumerGroup": group, "topic": run.topic, "queueId": str(place.queue_id)}
        answer = run.cluster.ask("broker-a", RequestCode.QUERY_CONSUMER_OFFSET, ext)
        assert answer.code == 0, answer.remark
        return int(answer.ext["offset"])

    epoch = stored(run.group)
    assert epoch > 1_700_000_000_000
    eventually(
        lambda: (
            run.cluster.saved_offsets("broker-a", run.group).get(run.topic, {}).get(1_000_000)
            == epoch
        ),
        "the broker saves it with the group's offsets",
    )
    stored_queues = run.cluster.folder / "broker-a" / "store" / "consumequeue" / run.topic
    assert {path.name for path in stored_queues.iterdir()} <= {"0", "1", "2", "3"}


def test_a_reset_of_the_groups_offsets_leaves_its_epochs(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    epochs: dict[int, list[int]] = defaultdict(list)

    def member() -> None:
        consumer = PushConsumer(run.group, name_servers=run.cluster.name_servers, **MEMBER_SETTINGS)
        consumer.subscribe(run.topic)
        seen = 0

        def listen(messages: Any, context: Any) -> None:
            nonlocal seen
            seen += len(messages)
            epoch, _ = context.fence_token
            epochs[context.message_queue.queue_id].append(epoch)

        consumer.orderly(listen)
        with consumer:
            eventually(lambda: seen >= 20, "20 messages")

    run.send(20)
    member()
    ext = {
        "topic": run.topic, "group": run.group, "timestamp": "0", "isForce": "true",
        "offset": "-1", "queueId": "-1",
    }  # fmt: skip
    # Without members the broker has nobody to tell; 5.x keeps the target itself.
    run.cluster.ask("broker-a", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    run.send(20)
    member()
    for each in epochs.values():
        assert each == sorted(each)
        assert len(set(each)) == 2


def test_a_member_without_stored_epochs_says_so(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    problems: list[str] = []

    def listen(messages: Any, context: Any) -> None:
        try:
            _ = context.fence_token
        except StateError as problem:
            problems.append(str(problem))

    consumer = PushConsumer(
        run.group, name_servers=run.cluster.name_servers, store_epochs=False, **MEMBER_SETTINGS
    )
    consumer.subscribe(run.topic)
    consumer.orderly(listen)
    with consumer:
        run.send(1)
        eventually(lambda: bool(problems), "a call")
    assert "store_epochs=False" in problems[0]
