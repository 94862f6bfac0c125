"""Forks: no child uses what belongs to its parent, and what it makes itself works
(docs/processes.md)."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ordermq import (
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    forking,
)
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.store import Store
from ordermq.client.pull_connections import PullConnections
from ordermq.config import BrokerConfig
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.errors import OrderMQError, StoreError, UsedAfterFork
from ordermq.events import EventType, History
from ordermq.metrics.prometheus import PrometheusMetrics
from tests.component.certificates import Authority
from tests.component.conftest import Seen, eventually, numbered
from tests.component.forked import Child, in_child

FORKS = 60
# Python 3.12 and later say so at each fork of a process with threads; here it is the subject.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ORDERMQ_EVENT_LOOP", request.param)
    return str(request.param)


class Traffic:
    """A thread that sends with its parent's producer; each receipt must be its own message's."""

    def __init__(self, producer: Producer, keys: int = 4) -> None:
        self._producer = producer
        self._keys = keys
        self._is_over = threading.Event()
        self.places: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        eventually(lambda: len(self.places) > 20, "the parent sends")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over.is_set():
            key = f"k{len(self.places) % self._keys}"
            body = str(len(self.places)).encode()
            receipt = self._producer.send(Message("orders", body), sharding_key=key)
            self.places.append((receipt.message_queue.queue_id, receipt.queue_offset))

    def assert_its_own(self, name_servers: str) -> None:
        """Read back what each receipt says, and that nobody else sent here."""
        with PullConsumer("reader", name_servers=name_servers) as reader:
            found: dict[tuple[int, int], bytes] = {}
            for queue in reader.fetch_subscribe_message_queues("orders"):
                at, end = reader.min_offset(queue), reader.max_offset(queue)
                while at < end:
                    pulled = reader.pull(queue, "*", at, 32)
                    for message in pulled.messages:
                        found[queue.queue_id, message.queue_offset] = bytes(message.body)
                    at = pulled.next_begin_offset
        assert [found[place] for place in self.places] == [
            str(number).encode() for number in range(len(self.places))
        ]
        assert len(found) == len(self.places)


def refusals(*things: object) -> int:
    """Call every public method of inherited objects; return how many refused."""
    count = 0
    for thing in things:
        for name, _ in inspect.getmembers(type(thing), inspect.isfunction):
            if name.startswith("_") or name == "close":
                continue
            with pytest.raises(UsedAfterFork) as raised:
                getattr(thing, name)()
            text = str(raised.value)
            assert f"was created in process {os.getppid()} and is used in process" in text, name
            assert f"{os.getpid()}: create one after the fork" in text
            count += 1
        close = getattr(thing, "close", None)
        assert close is None or close() is None
    return count


def test_sixty_forks_beside_traffic_leave_every_receipt_its_own(
    broker: EmbeddedBroker, loop_kind: str
) -> None:
    def child() -> None:
        with pytest.raises(UsedAfterFork, match="Producer shop was created in process"):
            producer.send(Message("orders", b"the child's"), sharding_key="k0")
        with Producer("shop", name_servers=broker.name_servers) as own:
            own.send(Message("of-children", b"one"), sharding_key="k0")

    with Producer("shop", name_servers=broker.name_servers) as producer:
        with Traffic(producer) as traffic:
            for _ in range(FORKS):
                in_child(child)
            before = len(traffic.places)
            eventually(lambda: len(traffic.places) > before + 20, "the parent still sends")
        traffic.assert_its_own(broker.name_servers)
        with PullConsumer("reader", name_servers=broker.name_servers) as reader:
            queues = reader.fetch_subscribe_message_queues("of-children")
            assert sum(map(reader.max_offset, queues)) == FORKS


@pytest.fixture
def inherited(broker: EmbeddedBroker, tmp_path: Path, seen: Seen) -> Iterator[list[object]]:
    """One of each public kind, started, except two that never were."""
    at: dict[str, Any] = {"name_servers": broker.name_servers}
    started: list[Any] = [
        Producer("shop", **at),
        TransactionProducer("banks", check=lambda _: None, **at),
        PushConsumer("push", history=tmp_path / "push.jsonl", **at),
        LitePullConsumer("lite", **at),
        LitePullConsumer(
            "casts", message_model="broadcasting", local_offset_store_dir=str(tmp_path), **at
        ),
        PullConsumer("pull", **at),
    ]
    started[2].subscribe("orders")
    started[2].orderly(seen.take)
    started[3].subscribe("orders")
    started[4].subscribe("orders")
    for each in started:
        each.start()
    started[0].send(Message("orders", b"x"))
    admin = Admin(broker.name_servers)
    history = History(tmp_path / "own.jsonl", "own")
    idle = [Producer("later", **at), EmbeddedBroker()]
    yield [*started, admin, history, broker, *idle]
    for each in started:
        assert each.close() in (None, True)
    admin.close()
    history.close()


def test_every_method_of_every_object_refuses_and_close_does_nothing(
    inherited: list[Any], broker: EmbeddedBroker, loop_kind: str
) -> None:
    def child() -> None:
        assert refusals(*inherited) > 80
        batches = inherited[3].batches  # an instance attribute by now
        with pytest.raises(UsedAfterFork, match="LitePullConsumer lite"):
            batches()
        with pytest.raises(UsedAfterFork), inherited[0]:
            pass
        with inherited[6]:  # an admin has no start: its block ends quietly
            pass

    in_child(child)
    # The parent's are as they were.
    inherited[0].send(Message("orders", b"y"))
    assert inherited[5].fetch_subscribe_message_queues("orders")
    eventually(lambda: len(inherited[2].assigned_queues()) == 4, "its queues are its own")
    inherited[7].record(EventType.OPEN)


def test_an_iterator_over_batches_that_was_inherited_refuses(
    broker: EmbeddedBroker,
) -> None:
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
        consumer = LitePullConsumer(
            "g", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        with consumer:
            batches = consumer.batches()
            assert next(batches)

            def child() -> None:
                with pytest.raises(UsedAfterFork):
                    next(batches)

            in_child(child)


def test_a_child_holds_no_socket_of_its_parent(broker: EmbeddedBroker, loop_kind: str) -> None:
    def child() -> None:
        assert numbers
        for number in numbers:
            assert stat.S_ISCHR(os.fstat(number).st_mode)
            assert os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev

    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
        in_the_middle = threading.Thread(target=producer.send, args=(Message("orders", b"y"),))
        in_the_middle.start()
        in_the_middle.join()
        numbers = set(forking._descriptors)
        assert len(numbers) >= 3  # both ends of the connection, and the broker's port
        in_child(child)
        assert numbers == set(forking._descriptors)
    eventually(lambda: len(forking._descriptors) == 1, "only the listening socket is left")


def test_a_child_that_outlives_a_broker_holds_neither_its_port_nor_its_file(
    tmp_path: Path, loop_kind: str
) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path) as broker:
        port = broker.port
        stranger = socket.create_connection(("127.0.0.1", port))
        with Producer("shop", name_servers=broker.name_servers) as producer:
            producer.send(Message("orders", b"x"))
        reader, writer = os.pipe()

        def child() -> None:
            with pytest.raises(StoreError, match="is open in another broker"):
                EmbeddedBroker(path).start()
            os.write(writer, b"!")
            threading.Event().wait()

        lives = Child(child)
        assert os.read(reader, 1) == b"!"
    try:
        with stranger:
            stranger.settimeout(20)
            assert stranger.recv(1) == b""  # the child keeps no connection open
        with (
            EmbeddedBroker(path, port=port) as again,
            PullConsumer("reader", name_servers=again.name_servers) as pulling,
        ):
            queues = pulling.fetch_subscribe_message_queues("orders")
            assert sum(map(pulling.max_offset, queues)) == 1
    finally:
        lives.kill()
        os.close(reader)
        os.close(writer)


def test_a_broker_that_a_child_starts_beside_a_busy_one_works(
    broker: EmbeddedBroker, tmp_path: Path, loop_kind: str
) -> None:
    def child() -> None:
        # SQLite's locks are of the process: one that was held at the fork would hang this.
        with (
            EmbeddedBroker(tmp_path / f"{os.getpid()}.db") as own,
            Producer("shop", name_servers=own.name_servers) as sends,
        ):
            assert sends.send(Message("orders", b"x")).queue_offset == 0

    with Producer("shop", name_servers=broker.name_servers) as producer:
        with Traffic(producer, keys=8) as traffic:
            for _ in range(20):
                in_child(child)
        traffic.assert_its_own(broker.name_servers)


def test_a_consumer_goes_on_beside_its_forks_and_a_child_has_its_own(
    broker: EmbeddedBroker, tmp_path: Path, seen: Seen, loop_kind: str
) -> None:
    history = tmp_path / "consumer.jsonl"
    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        history=history,
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)

    def child() -> None:
        assert not consumer.close()
        with pytest.raises(UsedAfterFork, match="PushConsumer g"):
            consumer.seek(queue, 0)
        own = PushConsumer(
            f"child-{os.getpid()}",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
        )
        mine = Seen()
        own.subscribe("orders")
        own.orderly(mine.take)
        with own:
            mine.wait_for_count(20)

    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send_many(numbered(20))
        with consumer:
            seen.wait_for_count(20)
            queue = consumer.assigned_queues()[0]
            sent = 20
            for _ in range(6):
                child_runs = Child(child)
                producer.send_many(numbered(200, start=sent))
                sent += 200
                child_runs.join()
            seen.wait_for_count(sent)
            assert seen.duplicates() == 0
            assert len(consumer.assigned_queues()) == 4
            assert consumer.statistics["leases_lost"] == 0
    lines = history.read_text().splitlines()
    assert sum('"OPEN"' in line for line in lines) == 1
    assert '"CLOSE"' in lines[-1]


def test_a_member_of_the_child_with_the_parents_name_is_another_one(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    def make() -> PushConsumer:
        made = PushConsumer("g", name_servers=broker.name_servers, instance_name="one")
        made.subscribe("orders")
        made.orderly(seen.take)
        return made

    def child(parents: PushConsumer) -> None:
        with make() as own:
            assert own.client_id != parents.client_id
            eventually(lambda: own.assigned_queues(), "a share of the queues")

    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
        with make() as parents:
            in_child(lambda: child(parents))
            eventually(lambda: len(parents.assigned_queues()) == 4, "every queue again")


def test_a_fork_in_a_listener_does_not_consume_on(broker: EmbeddedBroker, seen: Seen) -> None:
    reader, writer = os.pipe()
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"0":
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
        os.write(writer, b"%d\n" % os.getpid())
        seen.take(messages, context)

    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send_many(numbered(10, keys=1))
        with consumer:
            seen.wait_for_count(10)
    os.close(writer)
    with os.fdopen(reader) as calls:
        pids = [int(line) for line in calls]
    assert pids.count(os.getpid()) == 10
    assert len(pids) <= 12  # the child's own return, and what it had claimed with it


@pytest.fixture
def tls_config(tmp_path: Path) -> tuple[BrokerConfig, dict[str, Any]]:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")
    return (
        BrokerConfig(tls_certificate=server.certificate, tls_key=server.key),
        {"tls": True, "tls_ca_file": authority.file},
    )


def test_a_connection_with_tls_survives_the_end_of_a_child(
    tls_config: tuple[BrokerConfig, dict[str, Any]], loop_kind: str
) -> None:
    config, settings = tls_config

    def child() -> None:
        producer.close()

    with (
        EmbeddedBroker(config=config) as broker,
        Producer("shop", name_servers=broker.name_servers, **settings) as producer,
    ):
        first = producer.send(Message("orders", b"x"), sharding_key="k")
        connected = broker.statistics.connections
        for _ in range(5):
            in_child(child)
        second = producer.send(Message("orders", b"x"), sharding_key="k")
        assert second.queue_offset == first.queue_offset + 1
        assert broker.statistics.connections == connected


def test_forks_while_the_pull_engine_speaks_tls_stop_nothing(
    tls_config: tuple[BrokerConfig, dict[str, Any]], loop_kind: str, seen: Seen
) -> None:
    # The engine's thread asks for the interpreter's lock, which a fork holds while it waits for it.
    config, settings = tls_config
    with EmbeddedBroker(config=config) as broker:
        consumer = PushConsumer(
            "g", name_servers=broker.name_servers, consume_from_where="first_offset", **settings
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with Producer("shop", name_servers=broker.name_servers, **settings) as producer, consumer:
            with Traffic(producer) as traffic:
                for _ in range(FORKS):
                    in_child(lambda: None)
            seen.wait_for_count(len(traffic.places))


def test_a_grandchild_is_told_which_process_made_it(broker: EmbeddedBroker) -> None:
    def grandchild() -> None:
        assert refusals(own) > 5
        with pytest.raises(UsedAfterFork, match=f"created in process {oldest}"):
            producer.send(Message("orders", b"x"))

    def child() -> None:
        nonlocal own
        with Producer("child", name_servers=broker.name_servers) as own:
            own.send(Message("orders", b"x"))
            in_child(grandchild)
            own.send(Message("orders", b"x"))

    oldest, own = os.getpid(), None
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
        in_child(child)


def send_one(name_servers: str, results: Any) -> None:
    with Producer("child", name_servers=name_servers) as own:
        results.put(own.send(Message("orders", b"child"), sharding_key="k").queue_offset)


def test_multiprocessing_by_fork(broker: EmbeddedBroker, loop_kind: str) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"), sharding_key="k")
        children = [
            context.Process(target=send_one, args=(broker.name_servers, results)) for _ in range(8)
        ]
        for process in children:
            process.start()
        assert sorted(results.get() for _ in children) == list(range(1, 9))
        for process in children:
            process.join(30)
            assert process.exitcode == 0
        assert producer.send(Message("orders", b"x"), sharding_key="k").queue_offset == 9


# A child that ends as a program does: blocks are left, exit handlers and finalizers run.
ENDS = """
import atexit, gc, os, sys
from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker

broker = EmbeddedBroker(sys.argv[1]).start()
with Producer("shop", name_servers=broker.name_servers) as producer:
    producer.send(Message("orders", b"x"), sharding_key="k")
consumer = PushConsumer("g", name_servers=broker.name_servers, history=sys.argv[1] + ".jsonl")
consumer.subscribe("orders")
consumer.orderly(lambda messages, context: None)
consumer.start()
atexit.register(consumer.close)
with Producer("shop", name_servers=broker.name_servers) as producer:
    for number in range(1, 11):
        offset = producer.send(Message("orders", b"x"), sharding_key="k").queue_offset
        assert offset == number, (offset, number)
        pid = os.fork()
        if pid == 0:
            if number % 2:
                producer = consumer = broker = None
                gc.collect()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
assert consumer.close() is True
broker.close()
broker = EmbeddedBroker(sys.argv[1]).start()
with Producer("shop", name_servers=broker.name_servers) as producer:
    assert producer.send(Message("orders", b"x"), sharding_key="k").queue_offset == 11
broker.close()
print("done")
"""


@pytest.mark.parametrize("kind", [Store, OffsetFile, History, PullConnections])
def test_an_object_that_another_thread_is_making_does_not_disturb_a_fork(
    broker: EmbeddedBroker, producer: Producer, kind: type[Any]
) -> None:
    being_made = kind.__new__(kind)
    in_child(lambda: refuses(producer.flush))  # an exception in a fork fails the test
    producer.send(Message("orders", b"the parent's"))
    del being_made


def test_objects_that_could_not_be_made_do_not_disturb_a_fork(
    tmp_path: Path, producer: Producer
) -> None:
    offsets = OffsetFile(tmp_path / "offsets.json")
    kept = []  # errors whose tracebacks have the objects, as a program may keep them
    for make in (
        lambda: History(tmp_path / "nowhere" / "history.jsonl", "p"),
        lambda: OffsetFile(tmp_path / "offsets.json"),
        lambda: Store(tmp_path / "another.db", BrokerConfig()),
    ):
        with (
            EmbeddedBroker(tmp_path / "another.db"),
            pytest.raises(OrderMQError) as caught,
        ):
            make()
        kept.append(caught.value)
    # A number that was closed belongs to whoever opens a file next: not the child's to close.
    files = [(tmp_path / str(number)).open("wb") for number in range(20)]

    def child() -> None:
        for file in files:
            file.write(b"x")
            file.flush()
        refuses(producer.flush)

    in_child(child)
    producer.send(Message("orders", b"the parent's"))
    for file in files:
        file.close()
    offsets.close()
    assert kept


def test_a_scrape_in_a_child_reads_what_the_child_made(broker: EmbeddedBroker, seen: Seen) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    poller = LitePullConsumer("of-a-poller", name_servers=broker.name_servers)
    consumer = PushConsumer("of-the-parent", name_servers=broker.name_servers)
    producer = Producer("of-a-parent", name_servers=broker.name_servers)
    metrics.watch_consumer(consumer)
    metrics.watch_poller(poller)
    metrics.watch_producer(producer)
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    poller.subscribe("orders")

    def work() -> None:
        # Also what others have registered there: an exception would hide it.
        Gauge("of_the_application", "A metric.", registry=registry).set(1)
        own = Producer("of-the-child", name_servers=broker.name_servers)
        metrics.watch_producer(own)
        with own:
            own.send(Message("orders", b"x"))
            text = generate_latest(registry).decode()
        assert "of_the_application 1.0" in text
        assert '"of-the-child"' in text
        for inherited in ("of-the-parent", "of-a-parent", "of-a-poller"):
            assert inherited not in text

    with consumer, poller, producer:
        producer.send(Message("orders", b"x"))
        in_child(work)
        text = generate_latest(registry).decode()
        for group in ("of-the-parent", "of-a-parent", "of-a-poller"):
            assert f'"{group}"' in text


def refuses(method: Callable[[], object]) -> None:
    with pytest.raises(UsedAfterFork):
        method()


def test_a_client_cannot_be_pickled_and_says_what_to_do() -> None:
    for client in (Producer("shop", name_servers="b:1"), PushConsumer("g", name_servers="b:1")):
        with pytest.raises(TypeError, match=r"r cannot be pickled: it belongs .* create one in"):
            pickle.dumps(client)


def test_a_child_that_ends_as_programs_do_ends_nothing_of_its_parent(
    tmp_path: Path, loop_kind: str
) -> None:
    path = tmp_path / "broker.db"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENDS, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "done\n", ended.stderr
    assert ended.stderr == ""
