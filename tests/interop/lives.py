"""Rolling restarts of groups that never committed, and topics that are deleted and made anew.

    python -m tests.interop.lives --name-servers 127.0.0.1:9876 restarts lives

ci/lives.sh runs it on the embedded broker and on RocketMQ. Each line of its table is one kind of
consumer; it ends with 1 if a message is missing.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from ordermq import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from ordermq.admin.admin import Admin
from ordermq.errors import OrderMQError, StateError

KINDS = ("orderly", "by key", "concurrent", "lite", "lite, ordered")
GAPS_MS = (-300, 0, 300)
GROUPS = 10
MESSAGES = 100  # per group
RESTARTS = 5  # per group
DEADLINE_S = 60.0
MARK_S = 1.0  # a member looks at the queue after the first messages of a life
LIFE_DEADLINE_S = 180.0  # over the longest time between two looks of an idle queue
POLL_MS = 100
TOPICS = 4  # that have their lives at the same time: most of a life is waiting for the next look


class Delivered:
    """Bodies that the members of a group were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[bytes, int] = {}

    def add(self, messages: Sequence[Any]) -> None:
        with self._lock:
            for message in messages:
                body = bytes(message.body)
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
            self._poller = threading.Thread(target=self._poll, args=(lite, delivered))
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


def waited(condition: Callable[[], bool], seconds: float = DEADLINE_S) -> bool:
    """Wait until it is so; False: it never was."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.02)
    return True


def new_name(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def made_topic(name_servers: str, queues: int) -> str:
    """Return a new topic that producers find."""
    topic = new_name("lives")
    with Admin(name_servers=name_servers) as admin:
        admin.create_topic(topic, queues=queues)
    return topic


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


def restarts(name_servers: str, expired_s: float) -> list[str]:
    """Roll groups of every kind, all at once; a line per kind and gap."""

    def of_kind(kind: str) -> list[str]:
        topic = made_topic(name_servers, 4)
        is_expired = expired_s > 0 and expire(name_servers, topic, expired_s)
        with Producer(new_name("p"), name_servers=name_servers) as producer:
            for number in range(20):
                producer.send(Message(topic, b"before"), sharding_key=f"k{number}")
        lines = []
        for gap_ms in GAPS_MS:
            runs = [roll(name_servers, kind, topic, gap_ms, seed) for seed in range(GROUPS)]
            sent, missing, repeated = (sum(column) for column in zip(*runs, strict=True))
            first = "expired" if is_expired else "there"
            lines.append(
                f"restarts\t{kind}\tgap {gap_ms} ms\tfirst messages {first}\tsent {sent}\t"
                f"repeated {repeated}\tmissing {missing}"
            )
        return lines

    with ThreadPoolExecutor(len(KINDS)) as pool:
        return [line for lines in pool.map(of_kind, KINDS) for line in lines]


def not_delivered(delivered: Delivered, sent: Sequence[bytes], life: int) -> int:
    """Wait for the messages of a life; return how many never came."""
    own = [body for body in sent if body.startswith(b"%d " % life)]
    waited(lambda: not delivered.missing(own), LIFE_DEADLINE_S)
    return len(delivered.missing(own))


def lives(name_servers: str, count: int) -> list[str]:
    """Let some topics have so many lives together, each under its own members; a line per kind."""
    shares = [share for n in range(TOPICS) if (share := len(range(n, count, TOPICS)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = list(pool.map(partial(lives_of_topic, name_servers), range(len(shares)), shares))
    lines = []
    for kind in KINDS:
        sent, repeated, missing = (
            sum(column) for column in zip(*(run[kind] for run in runs), strict=True)
        )
        lines.append(
            f"lives\t{kind}\t{count} times, {len(shares)} topics\tsent {sent}\t"
            f"repeated {repeated}\tmissing {missing}"
        )
    return lines


def lives_of_topic(name_servers: str, seed: int, count: int) -> dict[str, tuple[int, int, int]]:
    """Delete a topic and make it anew under live members and a producer.

    Returns: messages sent, repeated and missing, by kind of consumer.
    """
    draw, pause = random.Random(seed), threading.Event()
    topic = made_topic(name_servers, 2)
    delivered = {kind: Delivered() for kind in KINDS}
    members = [
        Member(
            kind,
            name_servers,
            new_name("life"),
            topic,
            delivered[kind],
            consume_from_where="first_offset",
            route_interval_ms=300,
            **{("auto_" if kind.startswith("lite") else "") + "commit_interval_ms": 1_000},
        )
        for kind in KINDS
    ]
    sent: list[bytes] = []
    missing = dict.fromkeys(KINDS, 0)
    started = time.monotonic()
    with (
        ExitStack() as joined,  # an error must not leave their threads running
        Admin(name_servers=name_servers) as admin,
        Producer(
            new_name("p"), name_servers=name_servers, allow_queue_change=True, route_interval_ms=300
        ) as producer,
    ):
        for member in members:
            joined.callback(member.close)
        for life in range(count):
            for number in range(draw.choice((1, 3, 40, 80))):
                body = b"%d %d" % (life, number)
                end = time.monotonic() + DEADLINE_S
                while True:
                    try:
                        producer.send(Message(topic, body))
                        break
                    except OrderMQError:
                        if time.monotonic() > end:
                            raise
                        pause.wait(0.1)
                sent.append(body)
            lost = {kind: not_delivered(each, sent, life) for kind, each in delivered.items()}
            for kind, number in lost.items():
                missing[kind] += number
            sys.stderr.write(
                f"{topic}: life {life + 1} of {count}: {len(sent)} sent so far, missing "
                f"{sum(missing.values())}, {time.monotonic() - started:.0f} s\n"
            )
            pause.wait(MARK_S)
            admin.delete_topic(topic)
            pause.wait(draw.choice((0.0, 0.1, 1.0)))
            admin.create_topic(topic, queues=2)
    return {kind: (len(sent), delivered[kind].repeated(), missing[kind]) for kind in KINDS}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name-servers", default="", help="default: an embedded broker")
    parser.add_argument("--lives", type=int, default=100, help="times that a topic is made anew")
    parser.add_argument(
        "--expired-s", type=float, default=0, help="wait so long for first messages to expire"
    )
    parser.add_argument("what", nargs="*", default=["restarts", "lives"])
    options = parser.parse_args()
    lines: list[str] = []
    with Servers(options.name_servers) as name_servers:
        if "restarts" in options.what:
            lines += restarts(name_servers, options.expired_s)
        if "lives" in options.what:
            lines += lives(name_servers, options.lives)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
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
