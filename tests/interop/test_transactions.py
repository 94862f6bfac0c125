"""Transactions: ordermq's producer on RocketMQ, Java's producer on the embedded broker.

ci/interop.sh lets the brokers check after one second, and every second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordermq import Message, MessageView, TransactionProducer, TransactionState
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from tests.component.broker.wire_client import WireClient, records
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

COMMIT, ROLLBACK, UNKNOWN = TransactionState
BROKERS = {"broker-a": 2, "broker-b": 2}  # b speaks binary headers


class Books:
    """Executes as the argument says; checks as `states` says by body, else as it executed.

    What was executed as UNKNOWN, or by another process, turns out to be committed.
    """

    def __init__(self) -> None:
        self.executed: dict[str | None, TransactionState] = {}
        self.states: dict[bytes, list[TransactionState]] = {}
        self.checked: list[tuple[str, bytes]] = []

    def execute(self, message: Message, argument: TransactionState) -> TransactionState:
        self.executed[message.transaction_id] = argument
        return argument

    def check(self, message: MessageView) -> TransactionState:
        body = bytes(message.body)
        self.checked.append((message.message_id, body))
        states = self.states.get(body, [])
        if states:
            return states.pop(0)
        executed = self.executed.get(message.message_id, UNKNOWN)
        return COMMIT if executed is UNKNOWN else executed


Start = Callable[..., TransactionProducer]


@pytest.fixture
def start(run: Run) -> Iterator[Start]:
    """Start transaction producers of one group; they are closed after the test."""
    started: list[TransactionProducer] = []

    def make(books: Books, **settings: object) -> TransactionProducer:
        producer = TransactionProducer(
            f"transactions-{run.group}", books, name_servers=run.cluster.name_servers, **settings
        )
        producer.start()
        started.append(producer)
        return producer

    yield make
    for producer in started:
        producer.close(5.0)


def bodies(run: Run) -> list[bytes]:
    return [delivery.body for delivery in run.deliveries]


def wait_for(run: Run, *wanted: bytes) -> None:
    run.wait_for(lambda seen: {d.body for d in seen} >= set(wanted), f"messages {wanted}")


def test_rocketmq_delivers_committed_messages_and_no_others(run: Run, start: Start) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    producer = start(Books())
    run.member("m")
    for number in range(40):
        state = ROLLBACK if number % 4 == 0 else COMMIT
        message = Message(run.topic, str(number).encode(), tags="t", keys=[f"o-{number}"])
        receipt = producer.send_in_transaction(message, state)
        assert receipt.state is state
    committed = [str(number).encode() for number in range(40) if number % 4]
    wait_for(run, *committed)
    # One whose one-way end was told late is asked about too, and RocketMQ commits it twice then.
    assert set(bodies(run)) == set(committed)


def test_rocketmq_keeps_the_order_of_a_keys_commits(run: Run, start: Start) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    producer = start(Books())
    run.member("m")
    for number in range(60):
        message = Message(run.topic, str(number).encode())
        producer.send_in_transaction(message, COMMIT, sharding_key=f"k{number % 3}")
    wait_for(run, *(str(number).encode() for number in range(60)))
    run.assert_keys_in_order()


def test_rocketmq_checks_a_transaction_until_the_producer_knows(run: Run, start: Start) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    books = Books()
    books.states = {b"kept": [UNKNOWN, UNKNOWN, COMMIT], b"dropped": [ROLLBACK] * 100}
    producer = start(books)
    run.member("m")
    large = b"large " * 2_000  # goes compressed
    sent = {
        body: producer.send_in_transaction(Message(run.topic, body), UNKNOWN)
        for body in (b"kept", b"dropped", large)
    }
    wait_for(run, b"kept", large)
    checked = [body for _, body in books.checked]
    assert checked.count(b"kept") >= 3
    assert checked.count(b"dropped") >= 1
    assert all(sent[body].transaction_id == id_ for id_, body in books.checked)
    assert b"dropped" not in bodies(run)


def test_rocketmq_checks_with_another_producer_of_the_group_when_the_first_is_gone(
    run: Run, start: Start
) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    first_books, second_books = Books(), Books()
    first_books.states = {b"left behind": [UNKNOWN] * 100}
    first = start(first_books)
    run.member("m")
    receipt = first.send_in_transaction(Message(run.topic, b"left behind"), UNKNOWN)
    first.close()
    start(second_books, topics=[run.topic])
    wait_for(run, b"left behind")
    assert (receipt.transaction_id, b"left behind") in second_books.checked


# -- RocketMQ's producer on the embedded broker --------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(
        broker_name="embedded", durability="os", transaction_timeout_ms=500,
        transaction_check_interval_ms=500,
    )  # fmt: skip
    with EmbeddedBroker(tmp_path / "broker.db", config=config) as running:
        yield running


@pytest.fixture
def transactor(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path
) -> Iterator[Callable[[], JavaProcess]]:
    started: list[JavaProcess] = []

    def start() -> JavaProcess:
        started.append(
            JavaProcess(
                cluster.version, "Transactor", tmp_path, group="jg",
                name_servers=broker.name_servers,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()


def in_topic(broker: EmbeddedBroker, topic: str) -> list[str]:
    with WireClient(broker.port) as client:
        answers = [client.pull(topic, 0, queue_id) for queue_id in range(4)]
    return sorted(m.body.decode() for a in answers if a.code == 0 for m in records(a.body))


def test_javas_transactions_commit_and_roll_back_on_the_embedded_broker(
    broker: EmbeddedBroker, transactor: Callable[[], JavaProcess]
) -> None:
    java = transactor()
    for number in range(12):
        state = "ROLLBACK_MESSAGE" if number % 3 == 0 else "COMMIT_MESSAGE"
        sent = java.ask(f"T {number} {state} COMMIT_MESSAGE")
        assert sent["state"] == state
        assert sent["transaction"] == sent["id"]
    eventually(lambda: broker.statistics.half_messages == 0, "every transaction has ended")
    assert in_topic(broker, "T") == sorted(str(number) for number in range(12) if number % 3)


def test_the_embedded_broker_checks_transactions_with_javas_producer(
    broker: EmbeddedBroker, transactor: Callable[[], JavaProcess]
) -> None:
    java = transactor()
    sent = java.ask("T kept UNKNOW COMMIT_MESSAGE")
    checked = java.read()
    assert checked == {
        "checked": "kept", "topic": "T", "queue": sent["queue"], "transaction": sent["id"],
    }  # fmt: skip
    eventually(lambda: in_topic(broker, "T") == ["kept"], "it is committed")
    java.ask("T dropped UNKNOW ROLLBACK_MESSAGE")
    assert java.read()["checked"] == "dropped"
    eventually(lambda: broker.statistics.half_messages == 0, "it is rolled back")
    java.ask("T left UNKNOW COMMIT_MESSAGE")
    java.kill()
    other = transactor()
    other.ask("T own COMMIT_MESSAGE COMMIT_MESSAGE")  # from now on the broker knows it
    assert other.read()["checked"] == "left"
    eventually(lambda: in_topic(broker, "T") == ["kept", "left", "own"], "both are committed")
