"""Rolling restarts of groups that never committed, and topics that are deleted and made anew.

    python -m tests.interop.lives --name-servers 127.0.0.1:9876 restarts lives programs

The programs are `ordermq run` and a Spark query: a topic is made anew under them. ci/lives.sh runs
it on the embedded broker and on RocketMQ. Each line of its table is one kind of consumer; it ends
with 1 if a message is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ordermq import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from ordermq.admin.admin import Admin
from ordermq.errors import OrderMQError, StateError
from ordermq.remoting.bodies import masters_from_body
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.interop.cluster import ROOT
from tests.interop.life_programs import BODIES

KINDS = ("orderly", "by key", "concurrent", "lite", "lite, ordered")
PROGRAMS = {
    "ordermq run": ["ordermq", "run", "tests.interop.life_programs:consumer", "--processes", "2"],
    "Spark": ["tests.interop.life_programs"],
}
GAPS_MS = (-300, 0, 300)
GROUPS = 10
MESSAGES = 100  # per group
RESTARTS = 5  # per group
DEADLINE_S = 60.0
START_DEADLINE_S = 600.0  # of the first life: Spark takes minutes to start on a busy machine
LIFE_DEADLINE_S = 180.0  # over the longest time between two looks of an idle queue
POLL_MS = 100
UPDATE_BROKER_CONFIG = 25
TOPICS = 4  # that have their lives at the same time: most of a life is waiting for the next look


class Delivered:
    """Bodies that the members of a group were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[bytes, int] = {}

    def add(self, messages: Sequence[Any]) -> None:
        self.add_bodies([bytes(message.body) for message in messages])

    def add_bodies(self, bodies: Sequence[bytes]) -> None:
        with self._lock:
            for body in bodies:
                self._bodies[body] = self._bodies.get(body, 0) + 1

    def missing(self, sent: Sequence[bytes]) -> list[bytes]:
        with self._lock:
            return [body for body in sent if body not in self._bodies]

    def repeated(self) -> int:
        with self._lock:
            return sum(self._bodies.values()) - len(self._bodies)


class Member:
    """One member of a group, of any kind."""

    def __init__(
        self,
        kind: str,
        name_servers: str,
        group: str,
        topic: str,
        delivered: Delivered,
        **more: Any,
    ) -> None:
        settings = {"name_servers": name_servers, "heartbeat_interval_ms": 5_000} | more
        self._poller: threading.Thread | None = None
        if kind.startswith("lite"):
            lite = LitePullConsumer(group, ordered=kind != "lite", **settings)
            lite.subscribe(topic)
            self._consumer: LitePullConsumer | PushConsumer = lite
            self._poller = threading.Thread(target=self._poll, args=(lite, delivered), daemon=True)
            lite.start()
            self._poller.start()
            return
        push = PushConsumer(group, order_by_key=kind == "by key", **settings)
        push.subscribe(topic)
        make = push.concurrently if kind == "concurrent" else push.orderly
        make(lambda messages, context: delivered.add(messages))
        self._consumer = push
        push.start()

    def _poll(self, consumer: LitePullConsumer, delivered: Delivered) -> None:
        while True:
            try:
                delivered.add(consumer.poll(POLL_MS))
            except StateError:  # closed
                return

    def close(self) -> None:
        self._consumer.close()
        if self._poller is not None:
            self._poller.join(DEADLINE_S)


class Program:
    """A program of tests.interop.life_programs, and what its listeners wrote.

    Raises: RuntimeError: by `close`, if it ended before.
    """

    def __init__(self, kind: str, name_servers: str, topic: str, delivered: Delivered) -> None:
        self._kind = kind
        self._folder = tempfile.TemporaryDirectory(prefix="lives-")
        self._log = Path(self._folder.name) / "log"
        told = {
            "LIFE_SERVERS": name_servers,
            "LIFE_GROUP": new_name("life"),
            "LIFE_TOPIC": topic,
            "LIFE_FOLDER": self._folder.name,
            "PYTHONPATH": str(ROOT),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *PROGRAMS[kind]],
                cwd=ROOT, env=os.environ | told, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Spark's JVM ends with its process group
            )  # fmt: skip
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(delivered,))
        self._reader.start()

    def _read(self, delivered: Delivered) -> None:
        file = Path(self._folder.name) / BODIES
        at, rest = 0, b""
        while not self._over.wait(POLL_MS / 1000):
            if not file.exists():
                continue
            with file.open("rb") as lines:
                lines.seek(at)
                new = lines.read()
            at += len(new)
            *bodies, rest = (rest + new).split(b"\n")
            delivered.add_bodies(bodies)

    def close(self) -> None:
        has_ended = self._process.poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._over.set()
        self._reader.join()
        said = self._log.read_text(errors="replace")[-3_000:]
        self._folder.cleanup()
        if has_ended:
            raise RuntimeError(f"{self._kind} ended: {said}")


def waited(condition: Callable[[], bool], seconds: float = DEADLINE_S) -> bool:
    """Wait until it is so; False: it never was."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.02)
    return True


def insist(call: Callable[[], object]) -> None:
    """Call it until it succeeds: the servers of a busy machine may not answer in time.

    Raises: OrderMQError: of its last call, at the deadline.
    """
    end, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while True:
        try:
            call()
            return
        except OrderMQError:
            if time.monotonic() > end:
                raise
            pause.wait(0.1)


def told(line: str) -> str:
    """Print a line of the table as soon as it is known; returns it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return line


def new_name(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def made_topic(name_servers: str, queues: int) -> str:
    """Return a new topic that producers find."""
    topic = new_name("lives")
    with Admin(name_servers=name_servers) as admin:
        create(admin, topic, queues)
    return topic


def create(admin: Admin, topic: str, queues: int) -> None:
    """Create a topic, unless an attempt did whose answer was lost."""
    insist(lambda: is_there(admin, topic) or admin.create_topic(topic, queues=queues))


def delete(admin: Admin, topic: str) -> None:
    """Delete a topic, unless an attempt did whose answer was lost."""
    insist(lambda: not is_there(admin, topic) or admin.delete_topic(topic))


def is_there(admin: Admin, topic: str) -> bool:
    return any(each.name == topic for each in admin.topics())


def keep_messages(name_servers: str) -> None:
    """Let nothing expire any more on brokers of RocketMQ that ci/lives.sh has started.

    They would delete also what a slow member has not read yet.
    """
    with WireClient(int(name_servers.rpartition(":")[2])) as client:
        brokers = masters_from_body(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    for address in brokers.values():
        with WireClient(int(address.rpartition(":")[2])) as client:
            answer = client.call(UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=72\n")
            assert answer.code == 0, answer.remark


def expire(name_servers: str, topic: str, expired_s: float) -> bool:
    """Send to a topic until the first messages of each queue have expired; False: none did."""
    with (
        Producer(
            "filler", name_servers=name_servers, compress_msg_body_over_howmuch=1 << 22
        ) as filler,
        PullConsumer("reader", name_servers=name_servers) as reader,
    ):
        queues = reader.fetch_subscribe_message_queues(topic)
        pause, end = threading.Event(), time.monotonic() + expired_s
        while min(map(reader.min_offset, queues)) == 0:
            if time.monotonic() > end:
                return False
            for queue in queues:
                filler.send(Message(topic, random.randbytes(200_000)), queue=queue)
            pause.wait(0.5)
    return True


def roll(name_servers: str, kind: str, topic: str, gap_ms: int, seed: int) -> tuple[int, int, int]:
    """Restart the members of one new group while messages come.

    Returns: messages sent, missing, and repeated.
    """
    draw, delivered, group = random.Random(seed), Delivered(), new_name("rolling")
    sent: list[bytes] = []
    pause = threading.Event()
    with Producer(new_name("p"), name_servers=name_servers) as producer:

        def send() -> None:
            for number in range(MESSAGES):
                pause.wait(draw.random() * 0.06)
                body = b"%s %d" % (group.encode(), number)
                producer.send(Message(topic, body), sharding_key=f"k{number % 16}")
                sent.append(body)

        member = Member(kind, name_servers, group, topic, delivered)
        sender = threading.Thread(target=send)
        if draw.random() < 0.5:  # else the first messages find the first member
            member.close()
        sender.start()
        for _ in range(RESTARTS):
            if gap_ms < 0:
                following = Member(kind, name_servers, group, topic, delivered)
                pause.wait(-gap_ms / 1000)
                member.close()
                member = following
            else:
                member.close()
                pause.wait(gap_ms / 1000)
                member = Member(kind, name_servers, group, topic, delivered)
            pause.wait(draw.random() * 0.5)
        sender.join()
        waited(lambda: not delivered.missing(sent))
        member.close()
    return len(sent), len(delivered.missing(sent)), delivered.repeated()


def restarts(name_servers: str, expired_s: float, *, is_rocketmq: bool) -> list[str]:
    """Roll groups of every kind, all at once; a line per kind and gap."""

    def filled(kind: str) -> tuple[str, str, bool]:
        topic = made_topic(name_servers, 4)
        return kind, topic, expired_s > 0 and expire(name_servers, topic, expired_s)

    def of_kind(kind: str, topic: str, is_expired: bool) -> list[str]:
        with Producer(new_name("p"), name_servers=name_servers) as producer:
            for number in range(20):
                producer.send(Message(topic, b"before"), sharding_key=f"k{number}")
        lines = []
        for gap_ms in GAPS_MS:
            runs = [roll(name_servers, kind, topic, gap_ms, seed) for seed in range(GROUPS)]
            sent, missing, repeated = (sum(column) for column in zip(*runs, strict=True))
            first = "expired" if is_expired else "there"
            line = (
                f"restarts\t{kind}\tgap {gap_ms} ms\tfirst messages {first}\tsent {sent}\t"
                f"repeated {repeated}\tmissing {missing}"
            )
            lines.append(told(line))
        return lines

    with ThreadPoolExecutor(len(KINDS)) as pool:
        topics = list(pool.map(filled, KINDS))
        if is_rocketmq:
            keep_messages(name_servers)
        return [line for lines in pool.map(of_kind, *zip(*topics, strict=True)) for line in lines]


def not_delivered(delivered: Delivered, sent: Sequence[bytes], life: int) -> int:
    """Wait for the messages of a life; return how many never came."""
    own = [body for body in sent if body.startswith(b"%d " % life)]
    waited(lambda: not delivered.missing(own), LIFE_DEADLINE_S if life else START_DEADLINE_S)
    return len(delivered.missing(own))


def lives(name_servers: str, count: int) -> list[str]:
    """Let some topics have so many lives together, each under its own members; a line per kind."""
    shares = [share for n in range(TOPICS) if (share := len(range(n, count, TOPICS)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        topics = [LivesOfTopic(name_servers, seed, share) for seed, share in enumerate(shares)]
        runs = list(pool.map(LivesOfTopic.with_members, topics))
    lines = []
    for kind in KINDS:
        sent, repeated, missing = (
            sum(column) for column in zip(*(run[kind] for run in runs), strict=True)
        )
        line = (
            f"lives\t{kind}\t{count} times, {len(shares)} topics\tsent {sent}\t"
            f"repeated {repeated}\tmissing {missing}"
        )
        lines.append(told(line))
    return lines


def programs(name_servers: str, count: int) -> list[str]:
    """Let a topic have so many lives under `ordermq run` and a Spark query; a line for each."""
    found = LivesOfTopic(name_servers, TOPICS, count).with_programs()
    return [
        told(f"lives\t{kind}\t{count} times\tsent {sent}\trepeated {repeated}\tmissing {missing}")
        for kind, (sent, repeated, missing) in found.items()
    ]


class LivesOfTopic:
    """A topic that is deleted and made anew under live consumers and a producer.

    Args:
        seed: of the numbers of messages, and of the pauses between two lives.
        count: how many lives.
    """

    def __init__(self, name_servers: str, seed: int, count: int) -> None:
        self._name_servers = name_servers
        self._draw = random.Random(seed)
        self._count = count
        self._topic = made_topic(name_servers, 2)

    def with_members(self) -> dict[str, tuple[int, int, int]]:
        """Let it live under a member of each kind.

        Returns: messages sent, repeated and missing, by kind of consumer.
        """

        def joined(kind: str, delivered: Delivered) -> Member:
            return Member(
                kind,
                self._name_servers,
                new_name("life"),
                self._topic,
                delivered,
                consume_from_where="first_offset",
                route_interval_ms=300,
                **{("auto_" if kind.startswith("lite") else "") + "commit_interval_ms": 1_000},
            )

        return self._played(KINDS, joined)

    def with_programs(self) -> dict[str, tuple[int, int, int]]:
        """Let it live under the programs; returns the same."""

        def started(kind: str, delivered: Delivered) -> Program:
            return Program(kind, self._name_servers, self._topic, delivered)

        return self._played(tuple(PROGRAMS), started)

    def _played(
        self,
        kinds: Sequence[str],
        start: Callable[[str, Delivered], Member | Program],
    ) -> dict[str, tuple[int, int, int]]:
        delivered = {kind: Delivered() for kind in kinds}
        sent: list[bytes] = []
        missing = dict.fromkeys(kinds, 0)
        pause, began = threading.Event(), time.monotonic()
        with (
            ExitStack() as joined,  # an error must not leave their threads running
            Admin(name_servers=self._name_servers) as admin,
            Producer(
                new_name("p"),
                name_servers=self._name_servers,
                allow_queue_change=True,
                route_interval_ms=300,
            ) as producer,
        ):
            for kind, its_own in delivered.items():
                joined.callback(start(kind, its_own).close)
            for life in range(self._count):
                for number in range(self._draw.choice((1, 3, 40, 80))):
                    body = b"%d %d" % (life, number)
                    # Again while the new topic is not known yet.
                    insist(partial(producer.send, Message(self._topic, body)))
                    sent.append(body)
                for kind, its_own in delivered.items():
                    missing[kind] += not_delivered(its_own, sent, life)
                sys.stderr.write(
                    f"{self._topic}: life {life + 1} of {self._count}: {len(sent)} sent so far, "
                    f"missing {missing}, {time.monotonic() - began:.0f} s\n"
                )
                delete(admin, self._topic)
                pause.wait(self._draw.choice((0.0, 0.1, 1.0)))
                create(admin, self._topic, 2)
        return {kind: (len(sent), delivered[kind].repeated(), missing[kind]) for kind in kinds}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name-servers", default="", help="default: an embedded broker")
    parser.add_argument("--lives", type=int, default=100, help="times that a topic is made anew")
    parser.add_argument(
        "--expired-s",
        type=float,
        default=0,
        help="wait until first messages have expired, at most so long; 0: let none expire",
    )
    parser.add_argument("what", nargs="*", default=["restarts", "lives", "programs"])
    options = parser.parse_args()
    lines: list[str] = []
    is_rocketmq = bool(options.name_servers)
    with Servers(options.name_servers) as name_servers:
        if "restarts" in options.what:
            lines += restarts(name_servers, options.expired_s, is_rocketmq=is_rocketmq)
        elif is_rocketmq:
            keep_messages(name_servers)
        if "lives" in options.what:
            lines += lives(name_servers, options.lives)
        if "programs" in options.what:  # one topic alone: a quarter of the lives of the four
            lines += programs(name_servers, -(-options.lives // TOPICS))
    return 0 if all(line.endswith("missing 0") for line in lines) else 1


class Servers:
    """The name servers that were given, or those of an embedded broker for the time of a block."""

    def __init__(self, name_servers: str) -> None:
        self._given = name_servers
        self._broker: Any = None

    def __enter__(self) -> str:
        if self._given:
            return self._given
        from ordermq.broker import EmbeddedBroker
        from ordermq.config import BrokerConfig

        self._broker = EmbeddedBroker(
            config=BrokerConfig(
                durability="os",
                new_groups_start_at_zero=False,
                retention_bytes=4_000_000,
                retention_interval_ms=500,
            )
        )
        return str(self._broker.start().name_servers)

    def __exit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.close()


if __name__ == "__main__":
    raise SystemExit(main())
