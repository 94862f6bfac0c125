"""State that a restart keeps, after an orderly end and after kill -9 under load."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ordermq import json_text
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.errors import ConnectFailed, StateError, StoreError
from ordermq.remoting.codes import RequestCode
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import DEADLINE_S, WireClient, epochs, locked, records

QUEUES = 4


class Load(threading.Thread):
    """Sends, commits and locks without pause; notes only what was acknowledged."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name)
        self._port = port
        self.stored: dict[tuple[int, int], bytes] = {}
        self.committed = 0
        self.epochs: set[int] = set()
        self.is_warm = threading.Event()

    def run(self) -> None:
        number = 0
        try:
            with WireClient(self._port, self.name) as client:
                while True:
                    bodies = [f"{self.name}-{number + i}".encode() for i in range(32)]
                    started = [client.start_send("orders", b, n % QUEUES) for n, b in
                               enumerate(bodies)]  # fmt: skip
                    for body, one in zip(bodies, started, strict=True):
                        answer = client.wait(one)
                        assert answer.code == 0
                        place = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
                        assert place not in self.stored
                        self.stored[place] = body
                    number += len(bodies)
                    offset = number // QUEUES
                    assert client.commit(self.name, "orders", offset).code == 0
                    self.committed = offset
                    self.epochs.update(epochs(client.lock(self.name, "orders", 0)))
                    client.unlock(self.name, "orders", 0)
                    if number >= 320:
                        self.is_warm.set()
        except OSError:
            return  # the broker was killed


def test_kill_under_load_loses_nothing_acknowledged_and_moves_no_offset_back(
    tmp_path: Path,
) -> None:
    stored: dict[tuple[int, int], bytes] = {}
    seen_epochs: set[int] = set()
    for round_number in range(3):
        broker = BrokerProcess(tmp_path / "broker.db")
        loads = [Load(broker.port, f"load-{round_number}-{n}") for n in range(2)]
        for load in loads:
            load.start()
        for load in loads:
            assert load.is_warm.wait(DEADLINE_S)
        broker.kill()
        for load in loads:
            load.join(DEADLINE_S)
            assert not load.stored.keys() & stored.keys(), "an offset was given twice"
            stored |= load.stored
            assert not load.epochs & seen_epochs, "an epoch was given twice"
            seen_epochs |= load.epochs
        with BrokerProcess(tmp_path / "broker.db") as again, WireClient(again.port) as client:
            for queue_id in range(QUEUES):
                kept = read_all(client, queue_id)
                for (queue, offset), body in stored.items():
                    if queue == queue_id:
                        assert kept[offset] == body
                assert client.max_offset("orders", queue_id) == len(kept)
            for load in loads:
                committed = client.committed(load.name, "orders")
                assert committed is not None
                assert committed >= load.committed
            (epoch,) = epochs(client.lock(f"after-{round_number}", "orders", 0))
            assert epoch > max(seen_epochs)
            seen_epochs.add(epoch)


def read_all(client: WireClient, queue_id: int) -> list[bytes]:
    """Every body of a queue; checks that offsets have no gap."""
    bodies: list[bytes] = []
    while (answer := client.pull("orders", len(bodies), queue_id, count=1_000)).code == 0:
        found = records(answer.body)
        start = len(bodies)
        assert [m.queue_offset for m in found] == list(range(start, start + len(found)))
        bodies += [m.body for m in found]
    return bodies


def test_delayed_messages_are_delivered_once_across_kills(tmp_path: Path) -> None:
    count, killed_at = 400, (1, 150)
    with BrokerProcess(tmp_path / "broker.db") as broker, WireClient(broker.port) as client:
        for number in range(count):
            client.start_send("orders", str(number).encode(), properties={"DELAY": "1"})
        client.send("other")
    for least in killed_at:
        broker = BrokerProcess(tmp_path / "broker.db")
        with WireClient(broker.port) as client:
            wait_until(client, least)
            broker.kill()
    with BrokerProcess(tmp_path / "broker.db") as broker, WireClient(broker.port) as client:
        wait_until(client, count)
        bodies = read_all(client, 0)
    assert bodies == [str(number).encode() for number in range(count)]


def wait_until(client: WireClient, max_offset: int) -> None:
    """Wait, with the broker's own long poll, until so many messages are there."""
    while client.max_offset("orders") < max_offset:
        offset = client.max_offset("orders")
        client.pull("orders", offset, suspend_ms=5_000, count=1)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., EmbeddedBroker]:
    """Brokers on one path, one after the other."""

    def make(clock: ManualClock | None = None) -> EmbeddedBroker:
        return EmbeddedBroker(tmp_path / "broker.db", clock=clock)

    return make


def test_a_graceful_restart_keeps_everything(start: Callable[..., EmbeddedBroker]) -> None:
    with start() as broker, WireClient(broker.port) as client:
        client.send("orders", b"kept", 3, default_topic_queue_nums=6)
        client.commit("group", "orders", 1, 3)
        body = json_text.dumps({"groupName": "group", "retryMaxTimes": 3})
        client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        message_id = client.send("orders", b"by id").ext["msgId"]
        store_id = client.lock("group", "orders", 0).ext["omqBrokerId"]
    with start() as broker, WireClient(broker.port) as client:
        (message,) = records(client.pull("orders", 0, 3).body)
        assert message.body == b"kept"
        assert client.committed("group", "orders", 3) == 1
        topic = client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
        assert json_text.loads(topic.body)["readQueueNums"] == 6
        groups = json_text.loads(client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
        assert groups["subscriptionGroupTable"]["group"]["retryMaxTimes"] == 3
        ext = {"offset": str(int(message_id[16:], 16))}
        assert b"by id" in client.call(RequestCode.VIEW_MESSAGE_BY_ID, ext).body
        assert client.lock("group", "orders", 0).ext["omqBrokerId"] == store_id


def test_locks_survive_a_restart_with_a_full_lease(start: Callable[..., EmbeddedBroker]) -> None:
    clock = ManualClock()
    with start(clock) as broker, WireClient(broker.port, "holder") as holder:
        (epoch,) = epochs(holder.lock("group", "orders", 0))
        clock.advance(50_000)
    clock.advance(100_000)
    with (
        start(clock) as broker,
        WireClient(broker.port, "holder") as holder,
        WireClient(broker.port, "other") as other,
    ):
        clock.advance(50_000)
        assert locked(other.lock("group", "orders", 0)) == []
        assert epochs(holder.lock("group", "orders", 0)) == [epoch]
        answer = holder.commit("group", "orders", 1, epoch=epoch, client_id="holder")
        assert answer.code != 0, "there is no such topic yet"
        holder.send("orders")
        assert holder.commit("group", "orders", 1, epoch=epoch, client_id="holder").code == 0
        holder.unlock("group", "orders", 0)
        assert epochs(other.lock("group", "orders", 0)) > [epoch]


def test_an_unlock_survives_a_restart(start: Callable[..., EmbeddedBroker]) -> None:
    with start() as broker, WireClient(broker.port, "holder") as holder:
        holder.lock("group", "orders", 0)
        holder.unlock("group", "orders", 0)
    with start() as broker, WireClient(broker.port, "other") as other:
        assert locked(other.lock("group", "orders", 0)) == [0]


def test_a_deleted_topic_stays_deleted_and_its_ids_are_not_used_again(
    start: Callable[..., EmbeddedBroker],
) -> None:
    with start() as broker, WireClient(broker.port) as client:
        message_id = client.send("orders", b"old").ext["msgId"]
        client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    with start() as broker, WireClient(broker.port) as client:
        assert client.send("orders", b"new").ext["queueOffset"] == "0"
        ext = {"offset": str(int(message_id[16:], 16))}
        assert client.call(RequestCode.VIEW_MESSAGE_BY_ID, ext).code != 0


def test_a_path_is_open_in_one_broker_only(start: Callable[..., EmbeddedBroker]) -> None:
    with start(), pytest.raises(StoreError, match="is open in another broker"):
        start().start()
    with start():
        pass


def test_a_path_that_is_not_a_database_of_the_broker_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"no database" * 1_000)
    with pytest.raises(StoreError, match="give another path"):
        EmbeddedBroker(junk).start()
    with pytest.raises(StoreError, match="directory must exist"):
        EmbeddedBroker(tmp_path / "missing" / "broker.db").start()
    assert junk.read_bytes() == b"no database" * 1_000


def test_a_directory_is_accepted_as_a_path(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, WireClient(broker.port) as client:
        client.send("orders")
    assert (tmp_path / "broker.db").exists()


def test_a_broker_without_a_path_keeps_everything_in_memory() -> None:
    with EmbeddedBroker() as broker, WireClient(broker.port) as client:
        client.send_batch("orders", [b"x"] * 100)
        assert len(records(client.pull("orders", 0, count=100).body)) == 100
        client.commit("group", "orders", 5)
        assert client.committed("group", "orders") == 5


def test_a_port_in_use_is_refused_with_the_address() -> None:
    with EmbeddedBroker() as broker, pytest.raises(ConnectFailed, match=str(broker.port)):
        EmbeddedBroker(port=broker.port).start()


def test_a_broker_starts_once_and_may_be_closed_often() -> None:
    broker = EmbeddedBroker()
    with pytest.raises(StateError):
        _ = broker.port
    broker.close()
    broker.start()
    broker.close()
    broker.close()
    with pytest.raises(StateError):
        broker.start()


def test_closing_answers_what_was_written(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker.db").start()
    with WireClient(broker.port) as client:
        started = [client.start_send("orders") for _ in range(50)]
        client.wait(started[0])
        broker.close()
        acknowledged = 1
        try:
            for one in started[1:]:
                assert client.wait(one).code == 0
                acknowledged += 1
        except ConnectionError:
            pass  # what was not read yet was not written either, or was: unknown to the client
    with EmbeddedBroker(tmp_path / "broker.db") as again, WireClient(again.port) as client:
        assert client.max_offset("orders") >= acknowledged


def test_a_broker_starts_on_a_full_disk_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        client.send("orders", b"kept")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)  # of the process id into the lock file
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        assert [message.body for message in records(client.pull("orders", 0).body)] == [b"kept"]


_NEW_ON_A_FULL_DISK = """
import resource, signal, sys
from ordermq.broker import EmbeddedBroker
from ordermq.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    EmbeddedBroker(sys.argv[1]).start()
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize("bytes_left", [0, 100, 5_000, 20_000])
def test_a_new_broker_on_a_full_disk_says_so(tmp_path: Path, bytes_left: int) -> None:
    path = tmp_path / "broker.db"
    command = [sys.executable, "-c", _NEW_ON_A_FULL_DISK, str(path), str(bytes_left)]
    got = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "free space on its disk" in got.stdout, got.stderr
    # What was begun is in nobody's way.
    with EmbeddedBroker(path) as broker, WireClient(broker.port) as client:
        assert client.send("orders").code == 0
