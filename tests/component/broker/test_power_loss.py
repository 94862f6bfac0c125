"""Power loss: a disk that has only what was synced has everything acknowledged
(docs/embedded-broker.md#durability)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, epochs, records

ROUNDS, QUEUES = 30, 4
BODY = b"x" * 40_000  # of all rounds together over 4 MiB: SQLite empties its log on the way
SOURCE = Path(__file__).with_name("power_loss.c")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A client's knowledge when `synced` snapshots were there."""

    synced: int
    messages: int  # of each queue
    committed: int
    epoch: int


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library that copies files at each sync."""
    built = tmp_path / "power_loss.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return built


def test_after_each_sync_everything_acknowledged_is_on_disk(tmp_path: Path, library: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    preloaded = {"LD_PRELOAD": str(library), "POWER_LOSS_DIR": str(disk)}
    told: list[Acknowledged] = []
    broker = BrokerProcess(tmp_path / "broker.db", environment=preloaded)
    with WireClient(broker.port) as client:
        for number in range(1, ROUNDS + 1):
            started = [client.start_send("orders", BODY, queue_id) for queue_id in range(QUEUES)]
            assert [client.wait(one).code for one in started] == [0] * QUEUES
            assert client.commit("group", "orders", number).code == 0
            (epoch,) = epochs(client.lock("group", "orders", 0))
            client.unlock("group", "orders", 0)
            told.append(Acknowledged(synced(disk), number, number, epoch))
    broker.kill()
    snapshots = synced(disk)
    assert snapshots > 2 * ROUNDS
    sizes = {(disk / str(place) / "broker.db").stat().st_size for place in range(2, snapshots)}
    assert len(sizes) > 1, "SQLite never emptied its log: send more"
    for place in range(snapshots):
        # Everything that was acknowledged by the time of this sync, so before the next one.
        known = [each for each in told if each.synced <= place + 1]
        check(disk / str(place), known[-1] if known else Acknowledged(0, 0, 0, 0))


def synced(disk: Path) -> int:
    return sum(path.name.isdigit() for path in disk.iterdir())


def check(snapshot: Path, least: Acknowledged) -> None:
    # A copy, because its files are links to those of other snapshots.
    folder = shutil.copytree(snapshot, snapshot.with_name(f"{snapshot.name}-started"))
    with EmbeddedBroker(folder) as broker, WireClient(broker.port) as client:
        if least.messages:
            for queue_id in range(QUEUES):
                assert client.max_offset("orders", queue_id) >= least.messages
            newest = records(client.pull("orders", least.messages - 1, count=1).body)
            assert newest[0].body == BODY
            assert (client.committed("group", "orders") or 0) >= least.committed
        assert epochs(client.lock("other", "orders", 0))[0] > least.epoch
    shutil.rmtree(folder)
