"""The brokers of the fault table: what a row may do to them, embedded or of RocketMQ."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tests.chaos.conftest import Child
from tests.component.broker.wire_client import WireClient
from tests.interop.cluster import Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

QUEUES = 8
EMBEDDED = "embedded"
ROCKETMQ = "RocketMQ"
SLAVE = "broker-a-slave"
LOCAL_PROXY = "5.3.3-local"  # brokers that run in the process of a proxy each
FOR_LEASES = ("5.4.0", "5.5.0", LOCAL_PROXY)  # only for rows of members with leases
BROKERS = (EMBEDDED, "5.3.3", "4.9.7", *FOR_LEASES)


class Servers(Protocol):
    """A name server and a broker, which may be the same process.

    Attributes:
        name: "embedded", or the version of RocketMQ.
        lease_s: how long a broker keeps a lock that nobody renews.
        member_settings: of members' locks.
        name_servers: for clients.
        addresses: of every server that clients talk to, but for a proxy.
        proxy: the address of one for gRPC; empty without one.
        histories: what the broker recorded itself; RocketMQ's records nothing.
    """

    name: str
    lease_s: float
    member_settings: dict[str, int]
    name_servers: str
    addresses: list[str]
    proxy: str
    histories: list[Path]

    def put_topic(self, topic: str, *, message_type: str = "") -> None:
        """Create a topic of `QUEUES` queues."""

    def kill_broker(self, run: Run) -> None:
        """End it with -9; the run's audit is told what that takes back."""

    def start_broker(self, run: Run) -> None:
        """Start it again, with its address and its data."""

    def signal_broker(self, number: signal.Signals) -> None: ...


class Embedded:
    """The embedded broker in a process of its own, which syncs every write.

    Args:
        environment: variables of the process, for example LD_PRELOAD.
    """

    lease_s = 6.0
    member_settings = {"lock_max_live_ms": 6_000, "lock_interval_ms": 2_000}  # noqa: RUF012
    proxy = ""

    def __init__(
        self, folder: Path, name: str = EMBEDDED, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.database = folder / "broker.db"
        self.histories = [folder / f"{name}-itself.jsonl"]
        self.environment = environment
        self._port = 0
        self.start()

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def start(self) -> None:
        """Start it, on the port that it had."""
        self._child = Child(
            "-m", "tests.chaos.serve", str(self.database), str(self._port),
            str(int(self.lease_s * 1000)), str(self.histories[0]), self.name,
            environment=self.environment, errors=self.database.with_suffix(".err"),
        )  # fmt: skip
        self.name_servers = self._child.first_line
        self._port = int(self.name_servers.rpartition(":")[2])
        self.addresses = [self.name_servers]

    def put_topic(self, topic: str, queues: int = QUEUES, *, message_type: str = "") -> None:
        with contextlib.closing(WireClient(self._port)) as client:
            client.create_topic(topic, queues)

    def kill_broker(self, run: Run) -> None:
        self._child.kill()

    def start_broker(self, run: Run) -> None:
        self.start()

    def signal_broker(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal_broker(signal.SIGCONT)
        self._child.kill()


class Rocketmq:
    """A name server and two brokers of RocketMQ; rows use the first, until one is added."""

    lease_s = 8.0
    # Less than the broker's, which does not tell it.
    member_settings = {"lock_max_live_ms": 6_000, "lock_interval_ms": 2_000}  # noqa: RUF012

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = cluster.version
        self.name_servers = cluster.name_servers
        self.addresses = [cluster.addresses[part] for part in ("name-server", "broker-a")]
        self.proxy = cluster.grpc.removeprefix("grpc://") if cluster.has_proxy else ""
        self.histories: list[Path] = []

    def put_topic(self, topic: str, *, message_type: str = "") -> None:
        self.cluster.put_topic(topic, {"broker-a": QUEUES}, message_type=message_type)

    def kill_broker(self, run: Run) -> None:
        self._route = self.cluster.route(run.topic)
        self.cluster.kill("broker-a")
        run.broker_died("broker-a", self._route)

    def start_broker(self, run: Run) -> None:
        self.cluster.start("broker-a")
        eventually(lambda: self.cluster.route(run.topic) == self._route, "it is registered")

    def signal_broker(self, number: signal.Signals) -> None:
        os.kill(self.cluster.pid("broker-a"), number)


@contextlib.contextmanager
def rocketmq(version: str, folder: Path, *options: str, **settings: str) -> Iterator[Rocketmq]:
    """Start RocketMQ, and stop it after the block. Needs a JDK 17 and Maven.

    Args: as of `own_cluster`.
    """
    lease = f"--java=-Drocketmq.broker.rebalance.lockMaxLiveTime={int(Rocketmq.lease_s * 1000)}"
    # Quick registration after a restart of the name server, as in ci/interop.sh.
    settings["registerNameServerPeriod"] = "10000"
    with own_cluster(version, folder, lease, *options, **settings) as cluster:
        yield Rocketmq(cluster)
