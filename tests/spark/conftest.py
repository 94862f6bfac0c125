"""Tests with a real Spark: ci/spark.sh runs them, plain pytest skips them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PullConsumer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.spark.versions import BATCHES_OF_AVAILABLE_NOW, Feature, is_before
from tests.spark.legs import LONG, OLDEST
from tests.waiting import eventually as eventually

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
MARK = "ORDERMQ_TEST_QUERY"
OWN_MARK = f"session-{os.getpid()}"

if not os.environ.get("ORDERMQ_SPARK"):
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return "Spark: " + (
        "tests/spark" if os.environ.get("ORDERMQ_SPARK") else "left out; ci/spark.sh runs it"
    )


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.spark)
            # Spark is slow on a busy machine; a time-out inside a call to the JVM also ruins the
            # session for all tests behind it.
            item.add_marker(pytest.mark.timeout(600))
            if item.originalname in LONG.get(Path(item.path).stem, ()):
                item.add_marker(pytest.mark.spark_long)
            if item.originalname in OLDEST.get(Path(item.path).stem, ()):
                item.add_marker(pytest.mark.spark_oldest)


def needs(feature: Feature) -> pytest.MarkDecorator:
    """Skip a test on a Spark that is too old for what it tests."""
    since = ".".join(map(str, feature.since))
    return pytest.mark.skipif(is_before(feature.since), reason=f"needs Spark {since}")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all: a JVM takes seconds to start and a good part of the machine."""
    # As an installed package is: found by its name. Before it ci/spark.sh may have put a Spark.
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, before), str(ROOT)])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ[MARK] = OWN_MARK  # its processes inherit it, so that tests can tell them
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("ordermq-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.task.killTimeout", "500ms")
        .config("spark.sql.warehouse.dir", f"{ROOT}/build/spark-warehouse")
        # Half the CPU time of the short leg: no method runs long enough to be worth the second
        # compiler, and one collecting thread leaves the other core to the Python workers.
        .config("spark.driver.extraJavaOptions", "-Xss4m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def large_types(spark: Any) -> Iterator[None]:
    """Texts and bytes travel between Spark and Python with 64-bit positions."""
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    yield
    spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.fixture
def zone_of_new_york(spark: Any) -> Iterator[None]:
    """Timestamps are shown, and given to functions, in another zone than UTC."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


class Broker:
    """An embedded broker that can be away for a while."""

    def __init__(self, path: Path, lock_max_live_ms: int = 12_000) -> None:
        self._path = path
        self._config = BrokerConfig(
            broker_name="b", durability="os", lock_max_live_ms=lock_max_live_ms
        )
        self._running = EmbeddedBroker(path, config=self._config).start()
        self.name_servers = self._running.name_servers

    def expire(self, queue: MessageQueue, before: int) -> None:
        """Lose the messages before an offset, as a broker does whose disk is full; a restart."""
        port = self._running.port
        self._running.close()
        with contextlib.closing(sqlite3.connect(self._path)) as database, database:
            ((row,),) = database.execute(
                "SELECT id FROM queues WHERE topic = ? AND queue_id = ?",
                (queue.topic, queue.queue_id),
            )
            database.execute(f"DELETE FROM log_{row} WHERE off < ?", (before,))
        self._running = EmbeddedBroker(self._path, port=port, config=self._config).start()

    def widen(self, topic: str, queues: int) -> None:
        """Give a topic more queues."""
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "order": "false"}
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        session = ClientSession(self.name_servers, RemotingConfig())
        answer = session.call(session.connections.request(self.name_servers, command, 3_000))
        session.close()
        assert answer.code == 0, answer.remark

    def renew(self, topic: str, queues: int = 4) -> None:
        """Delete a topic and create it again."""
        with Admin(name_servers=self.name_servers) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, queues)

    def send_to(self, topic: str, queue_id: int, body: bytes) -> None:
        """Send to this very queue."""
        with Producer("direct", name_servers=self.name_servers) as producer:
            producer.send(Message(topic, body), queue=MessageQueue(topic, "b", queue_id))

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "broker.db")
    yield running
    running.close()


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=4) as running:
        yield running


@pytest.fixture
def pull_consumer(broker: Broker) -> Iterator[PullConsumer]:
    with PullConsumer("g", name_servers=broker.name_servers) as running:
        yield running


class Stream:
    """A query of the topic `orders`; keeps what its batches brought."""

    def __init__(self, spark: Any, broker: Broker, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self.checkpoint = checkpoint
        self.batches: list[tuple[int, list[Any]]] = []
        self.queries: list[Any] = []

    def frame(self, **options: Any) -> Any:
        given = {"name_servers": self._broker.name_servers, "topic": "orders"} | options
        return self._spark.readStream.format("ordermq").options(**given).load()

    def start(
        self, *, each: Callable[[int, list[Any]], None] | None = None, now: bool = False, **o: Any
    ) -> Any:
        """Start the query; `now` ends it with what there is."""

        def take(batch: Any, number: int) -> None:
            rows = batch.collect()
            if each is not None:
                each(number, rows)
            self.batches.append((number, rows))

        writer = self.frame(**o).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = (writer.trigger(availableNow=True) if now else writer).start()
        self.queries.append(query)
        return query

    def run(self, **options: Any) -> list[Any]:
        """All rows there are, from where the checkpoint stands."""
        before = len(self.batches)
        # An older Spark ends behind a batch that it repeats, and reads the rest in another run.
        is_repeating = len(self._numbers("offsets")) > len(self._numbers("commits"))
        for _ in range(2 if is_repeating and is_before(BATCHES_OF_AVAILABLE_NOW.since) else 1):
            query = self.start(now=True, **options)
            assert query.awaitTermination(DEADLINE_S)
        return [row for _, rows in self.batches[before:] for row in rows]

    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]

    def offsets(self) -> list[str]:
        """The source's offset texts of the checkpoint, batch by batch."""
        return [path.read_text().splitlines()[-1] for path in self._numbers("offsets")]

    def _numbers(self, log: str) -> list[Path]:
        """The files of one of the checkpoint's logs, batch by batch."""
        return sorted((self.checkpoint / log).glob("[0-9]*"), key=lambda p: int(p.name))

    def close(self) -> None:
        for query in self.queries:
            query.stop()


@pytest.fixture
def stream(spark: Any, broker: Broker, tmp_path: Path) -> Iterator[Stream]:
    running = Stream(spark, broker, tmp_path / "checkpoint")
    yield running
    running.close()


def owners(broker: Broker, group: str = "etl") -> dict[int, str]:
    """Holder of each queue of `orders`, as the broker says; unheld queues are left out."""
    with Admin(name_servers=broker.name_servers) as admin:
        held = admin.group(group, ("orders",)).locks
    return {queue.queue_id: lock.owner for queue, lock in (held or {}).items()}


def send(producer: Producer, count: int, *, first: int = 0, topic: str = "orders") -> None:
    """Numbered messages of ten keys; the odd ones are tagged a, the even ones b."""
    events = (
        (Message(topic, b"%d" % n, tags="ba"[n % 2], keys=[f"n{n}"]), f"k{n % 10}")
        for n in range(first, first + count)
    )
    sent = producer.send_many(events, max_in_flight=64)
    assert len(sent) == count


def numbers(rows: Any) -> list[int]:
    """The numbers `send` gave, of rows with a body, ascending."""
    return sorted(int(bytes(row.body)) for row in rows)


def assert_in_order(rows: Any) -> None:
    """Each key's numbers rise in the order the rows come in."""
    last: dict[str, int] = {}
    for row in rows:
        number = int(bytes(row.body))
        assert last.get(row.sharding_key, -1) < number, (row.sharding_key, last, number)
        last[row.sharding_key] = number
