"""The brokers of the fault table: what a row may do to them, embedded or of RocketMQ."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from ordermq import Admin
from tests.chaos.conftest import Child
from tests.component.certificates import Authority, Certificate
from tests.fault_table.network import TlsEnds
from tests.interop.cluster import Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

QUEUES = 8
EMBEDDED = "embedded"
ROCKETMQ = "RocketMQ"
SLAVE = "broker-a-slave"
LOCAL_PROXY = "5.3.3-local"  # brokers that run in the process of a proxy each
FOR_LEASES = ("5.4.0", "5.5.0", LOCAL_PROXY)  # only for rows of members with leases
ACCOUNT = {"access_key": "shop", "secret_key": "the secret"}
BROKERS = (EMBEDDED, "5.3.3", "4.9.7", *FOR_LEASES)


def locks_of_members(is_guarded: bool) -> dict[str, object]:
    """Settings of members: locks that are asked for often, and whether metrics are read."""
    return {"lock_max_live_ms": 6_000, "lock_interval_ms": 2_000, "prometheus": is_guarded}


class Servers(Protocol):
    """A name server and a broker, which may be the same process.

    Attributes:
        name: "embedded", or the version of RocketMQ.
        lease_s: how long a broker keeps a lock that nobody renews.
        member_settings: of members.
        client_settings: of every client, to be let in.
        name_servers: for clients.
        addresses: of every server that clients talk to, but for a proxy.
        proxy: the address of one for gRPC; empty without one.
        histories: what the broker recorded itself; RocketMQ's records nothing.
        is_guarded: clients speak TLS, sign as an account and have their metrics read. The embedded
            broker refuses all others; RocketMQ answers them in kind.
    """

    name: str
    lease_s: float
    member_settings: dict[str, object]
    client_settings: dict[str, object]
    name_servers: str
    addresses: list[str]
    proxy: str
    histories: list[Path]
    is_guarded: bool

    def tls_ends(self, folder: Path) -> TlsEnds | None:
        """The ends of a network between guarded clients and these servers.

        Args: folder: for a certificate.
        """

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
        is_guarded: it serves an account alone, over TLS alone.
    """

    lease_s = 6.0
    proxy = ""

    def __init__(
        self,
        folder: Path,
        name: str = EMBEDDED,
        environment: Mapping[str, str] | None = None,
        *,
        is_guarded: bool = False,
    ) -> None:
        self.name = name
        self.is_guarded = is_guarded
        self.member_settings = locks_of_members(is_guarded)
        self.client_settings: dict[str, object] = {}
        self._certificate: Certificate | None = None
        self._settings: dict[str, object] = {}
        if is_guarded:
            authority = Authority(folder, "authority")
            self._certificate = authority.sign("server")
            self.client_settings = {**ACCOUNT, "tls": True, "tls_ca_file": authority.file}
            self._settings = {
                "accounts": {ACCOUNT["access_key"]: ACCOUNT["secret_key"]},
                "tls_certificate": self._certificate.certificate,
                "tls_key": self._certificate.key,
            }
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
            json.dumps(self._settings),
            environment=self.environment, errors=self.database.with_suffix(".err"),
        )  # fmt: skip
        self.name_servers = self._child.first_line
        self._port = int(self.name_servers.rpartition(":")[2])
        self.addresses = [self.name_servers]

    def put_topic(self, topic: str, queues: int = QUEUES, *, message_type: str = "") -> None:
        with Admin(self.name_servers, **self.client_settings) as admin:
            admin.create_topic(topic, queues)

    def kill_broker(self, run: Run) -> None:
        self._child.kill()

    def start_broker(self, run: Run) -> None:
        self.start()

    def signal_broker(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def tls_ends(self, folder: Path) -> TlsEnds | None:
        if self._certificate is None:
            return None
        return TlsEnds.of(self._certificate, str(self.client_settings["tls_ca_file"]))

    def beside(
        self, folder: Path, name: str = EMBEDDED, environment: Mapping[str, str] | None = None
    ) -> Embedded:
        """Start another one, guarded as this is, with a process's environment of its own."""
        return Embedded(folder, name, environment, is_guarded=self.is_guarded)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal_broker(signal.SIGCONT)
        self._child.kill()


class Rocketmq:
    """A name server and two brokers of RocketMQ; rows use the first, until one is added."""

    lease_s = 8.0

    def __init__(self, cluster: Cluster, *, is_guarded: bool = False) -> None:
        self.cluster = cluster
        self.is_guarded = is_guarded
        # The locks live shorter than the broker's, which does not tell it.
        self.member_settings = locks_of_members(is_guarded)
        # Its certificate is its own, made at each start.
        self.client_settings: dict[str, object] = (
            {**ACCOUNT, "tls": True, "tls_verify": "none"} if is_guarded else {}
        )
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

    def tls_ends(self, folder: Path) -> TlsEnds | None:
        if not self.is_guarded:
            return None
        return TlsEnds.of(Authority(folder, "authority").sign("network"), "")


@contextlib.contextmanager
def rocketmq(
    version: str, folder: Path, *options: str, is_guarded: bool = False, **settings: str
) -> Iterator[Rocketmq]:
    """Start RocketMQ, and stop it after the block. Needs a JDK 17 and Maven.

    Args: as of `own_cluster` and `Rocketmq`.
    """
    lease = f"--java=-Drocketmq.broker.rebalance.lockMaxLiveTime={int(Rocketmq.lease_s * 1000)}"
    # Quick registration after a restart of the name server, as in ci/interop.sh.
    settings["registerNameServerPeriod"] = "10000"
    with own_cluster(version, folder, lease, *options, **settings) as cluster:
        yield Rocketmq(cluster, is_guarded=is_guarded)
