"""One group on RocketMQ: its senders, members, deliveries and histories."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.boot_time import to_boot_time_ns
from ordermq import Message, Producer, PushConsumer
from ordermq.audit import AuditReport, Violation, audit
from ordermq.errors import OrderMQError
from ordermq.events import EventType, History
from ordermq.model.message_queue import MessageQueue
from tests.interop.cluster import (
    DEADLINE_S,
    LOCK_INTERVAL_MS,
    LOCK_MAX_LIVE_MS,
    ROOT,
    Cluster,
    eventually,
)
from tests.interop.java_process import JavaProcess
from tests.interop.line_process import LineProcess

MEMBER_SETTINGS: dict[str, Any] = {
    "consume_from_where": "first_offset",
    "consume_message_batch_max_size": 4,
    "commit_interval_ms": 200,
    "route_interval_ms": 500,
    "lock_max_live_ms": LOCK_MAX_LIVE_MS,
    "lock_interval_ms": LOCK_INTERVAL_MS,
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a listener saw it."""

    member: str
    queue: MessageQueue
    offset: int
    key: str | None
    body: bytes


class Run:
    """A topic and a group of one test, on the shared cluster.

    What was sent is recorded as the brokers' history, from the receipts: a real broker keeps
    none. `audit` then checks the members' histories against it.
    """

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.topic = f"orders-{name}"
        self.group = f"group-{name}"
        self.deliveries: list[Delivery] = []
        self.members: dict[str, PushConsumer] = {}
        self.histories: list[Path] = []
        self.sent = 0
        self.producer_settings: dict[str, Any] = {}
        self.producers_name_servers = ""  # if they are not those of the cluster
        self.members_name_servers = ""  # likewise
        self._changed = threading.Condition()
        self._processes: list[LineProcess] = []
        self._javas: list[tuple[JavaProcess, Path]] = []  # with their histories
        self._brokers: dict[str, History] = {}
        self._producer: Producer | None = None

    # Sending.

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            settings = {"retry_times": 200} | self.producer_settings
            self._producer = Producer(
                f"producer-{self.group}",
                name_servers=self.producers_name_servers or self.cluster.name_servers,
                **settings,
            )
            self._producer.start()
        return self._producer

    def renew_producer(self) -> None:
        """Go on with a new producer, which pins the queues of then."""
        self.producer.close()
        self._producer = None

    def send(self, count: int, keys: int = 16, tags: str | None = None) -> None:
        """Send `count` messages numbered through, of `keys` sharding keys in turn."""
        numbers = range(self.sent, self.sent + count)
        events = [
            (Message(self.topic, str(number).encode(), tags=tags), f"k{number % keys}")
            for number in numbers
        ]
        keys_of = iter(key for _, key in events)
        for receipt in self.producer.send_stream(events):
            self.sent += 1
            self.stored(receipt.message_queue, receipt.queue_offset, next(keys_of))

    def stored(self, queue: MessageQueue, offset: int, key: str | None) -> None:
        """Record that a broker acknowledged a message."""
        broker = self._brokers.get(queue.broker_name)
        if broker is None:
            broker = self._begin_broker(queue.broker_name)
        broker.record(
            EventType.STORE,
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            offs=[offset],
            keys=[key],
        )

    def broker_died(
        self, name: str, route: dict[str, tuple[int, int, int]], part: str | None = None
    ) -> None:
        """Record what a killed broker lost: its locks, and the commits since its last save.

        It saves offsets every five seconds, so what it acknowledged after that is taken back
        when it starts again. The audit is told so as a RESET; call this before the start.

        Args:
            route: the topic's, as it was.
            part: the replica that goes on as this broker, with the offsets that it had saved.
        """
        broker = self._begin_broker(name)
        saved = self.cluster.saved_offsets(part or name, self.group).get(self.topic, {})
        for queue_id in range(route[name][0]):
            broker.record(
                EventType.RESET,
                group=self.group,
                topic=self.topic,
                broker=name,
                queue=queue_id,
                off=saved.get(queue_id, 0),
            )

    def _begin_broker(self, name: str) -> History:
        path = self.folder / f"{name}.jsonl"
        if path not in self.histories:
            self.histories.append(path)
        self._brokers[name] = History(path, name)
        return self._brokers[name]

    @contextlib.contextmanager
    def flow(self, pause_s: float = 0.01) -> Iterator[None]:
        """Send continuously, also during an outage, until the end of the block."""
        stop = threading.Event()
        failures: list[OrderMQError] = []

        def work() -> None:
            try:
                while not stop.wait(pause_s):
                    self.send(16)
            except OrderMQError as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        except BaseException as error:
            # What the test waited for did not come; what we send may never be taken either.
            for failure in failures:
                error.add_note(f"sending had ended: {failure!r}")
            stop.set()
            self.producer.close(1.0)
            thread.join()
            raise
        stop.set()
        thread.join()
        if failures:
            raise failures[0]

    # Consuming.

    @property
    def _members_name_servers(self) -> str:
        return self.members_name_servers or self.cluster.name_servers

    def member(self, name: str, tags: str = "*", **settings: Any) -> PushConsumer:
        """Start a member of the group that records its history."""
        settings = MEMBER_SETTINGS | settings
        history = self.folder / f"{name}.jsonl"
        consumer = PushConsumer(
            self.group, name_servers=self._members_name_servers, history=history, **settings
        )
        consumer.subscribe(self.topic, tags)
        consumer.orderly(self.listener(name))
        consumer.start()
        self.members[name] = consumer
        self.histories.append(history)
        return consumer

    def member_process(
        self,
        name: str,
        module: str = "tests.interop.member",
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> LineProcess:
        """Start a member as a process, which may be killed.

        Args: settings: that are JSON, besides MEMBER_SETTINGS.
        """
        history = self.folder / f"{name}.jsonl"
        self.histories.append(history)
        process = LineProcess(
            [
                sys.executable, "-m", module, self._members_name_servers,
                self.group, self.topic, str(history), json.dumps(settings),
            ],
            self.folder,
            working_directory=ROOT,
            environment=environment,
            on_line=lambda line: self.deliver(name, line),
        )  # fmt: skip
        self._processes.append(process)
        return process

    def java(
        self,
        history: str = "java.jsonl",
        *,
        options: Sequence[str] = (),
        on_line: Callable[[dict[str, Any]], None] | None = None,
        **arguments: object,
    ) -> JavaProcess:
        """Start a member of Java's client, orderly by default; the caller stops it."""
        given: dict[str, object] = {"mode": "orderly", "group": self.group, "topic": self.topic}
        return JavaProcess(
            self.cluster.version,
            "Member",
            self.folder,
            options=options,
            on_line=on_line,
            name_servers=self.cluster.name_servers,
            history=self.folder / history,
            to_boot_time_ns=to_boot_time_ns(),
            **given | arguments,
        )

    def java_member(self, name: str, **arguments: object) -> JavaProcess:
        """Start an orderly member of Java's client, ended with the run at the latest."""
        history = self.folder / f"{name}.jsonl"
        self.histories.append(history)
        process = self.java(
            history.name, on_line=lambda line: self.deliver(name, line), **arguments
        )
        self._processes.append(process)
        self._javas.append((process, history))
        return process

    def deliver(self, name: str, line: dict[str, Any]) -> None:
        """Record the deliveries that a member process reports."""
        if "body" in line:
            queue = MessageQueue(line["topic"], line["broker"], line["queue"])
            self._add(
                [Delivery(name, queue, line["offset"], line["key"], line["body"].encode("latin-1"))]
            )

    def _add(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            self.deliveries += deliveries
            self._changed.notify_all()

    def listener(self, name: str) -> Callable[[Sequence[Any], Any], None]:
        def listen(messages: Sequence[Any], context: Any) -> None:
            queue = context.message_queue
            self._add(
                [
                    Delivery(name, queue, m.queue_offset, m.sharding_key, bytes(m.body))
                    for m in messages
                ]
            )

        return listen

    def leave(self, name: str) -> None:
        assert self.members.pop(name).close(DEADLINE_S)

    def wait_for(
        self,
        condition: Callable[[list[Delivery]], bool],
        what: str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.deliveries), deadline_s):
                pytest.fail(f"not within {deadline_s} s: {what}; saw {len(self.deliveries)}")

    def wait_for_more(self, count: int, member: str) -> None:
        """Wait until a member got `count` messages from now on."""
        before = self.count_of(member)
        self.wait_for(
            lambda seen: sum(d.member == member for d in seen) >= before + count,
            f"{count} more messages of {member}",
        )

    def count_of(self, member: str) -> int:
        with self._changed:
            return sum(delivery.member == member for delivery in self.deliveries)

    def wait_for_all(self, deadline_s: float = DEADLINE_S) -> None:
        # By number: a batch whose answer died with the broker is sent again, and is twice in
        # its queue (docs/internals/semantics.md#ordered-sends).
        self.wait_for(
            lambda seen: len({delivery.body for delivery in seen}) >= self.sent,
            f"all {self.sent} messages",
            deadline_s,
        )

    def wait_for_shares(self, **counts: int) -> None:
        """Wait until the members hold these numbers of queues of the topic."""

        def shares() -> dict[str, int]:
            return {
                name: sum(q.topic == self.topic for q in self.members[name].assigned_queues())
                for name in counts
            }

        eventually(lambda: shares() == counts, f"shares of {counts}")

    # Judging.

    def duplicates(self) -> int:
        counts = Counter((delivery.queue, delivery.offset) for delivery in self.deliveries)
        return sum(count - 1 for count in counts.values())

    def finish(self) -> AuditReport:
        """Let all members leave, and audit all histories."""
        for name in list(self.members):
            self.leave(name)
        # Not between a call's START and its END: what was delivered last would be lost.
        eventually(
            lambda: all(not java.is_running or _is_at_rest(told) for java, told in self._javas),
            "the END of every call of Java's members",
        )
        self.close()
        return audit(self.histories)

    def assert_sound(self) -> AuditReport:
        """Assert that everything arrived in order and that the audit finds nothing."""
        self.wait_for_all()
        report = self.finish()
        assert report.ok, "\n".join(map(str, report.violations))
        self.assert_keys_in_order()
        return report

    def assert_keys_in_order(self) -> None:
        """Assert that first copies of each key, by offset, are numbered without gaps."""
        places = {(d.queue, d.offset): d for d in self.deliveries}
        numbers: dict[str | None, list[int]] = {}
        for place in sorted(places):
            delivery = places[place]
            own = numbers.setdefault(delivery.key, [])
            if int(delivery.body) not in own:
                own.append(int(delivery.body))
        for key, own in numbers.items():
            assert own == sorted(own), f"key {key} is out of order: {own[:50]}"

    def close(self) -> None:
        """Stop everything that a failed test left behind."""
        for member in self.members.values():
            member.close(1.0)
        self.members.clear()
        for process in self._processes:
            process.kill()
        if self._producer is not None:
            self._producer.close(5.0)
            self._producer = None
        for broker in self._brokers.values():
            broker.close()


def is_javas(violation: Violation) -> bool:
    """Return True if a process of Java's client has a part in what is told."""
    return any("@java-" in str(each.event.get("p")) for each in violation.events)


def _is_at_rest(history: Path) -> bool:
    """True if every call that began has ended."""
    events = history.read_text()
    return events.count('"type":"START"') == events.count('"type":"END"')
