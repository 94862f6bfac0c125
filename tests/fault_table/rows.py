"""The rows of the fault table: each breaks one thing, again and again, under load."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ordermq import PullConsumer
from ordermq.errors import BrokerError
from tests.component.name_server import NameServer
from tests.fault_table.network import (
    TO_CLIENT,
    TO_SERVER,
    Network,
    flip_in_lengths,
    flip_in_record,
)
from tests.fault_table.scene import Scene
from tests.fault_table.servers import (
    EMBEDDED,
    FOR_LEASES,
    QUEUES,
    ROCKETMQ,
    SLAVE,
    Embedded,
    Servers,
    rocketmq,
)
from tests.interop.cluster import Cluster, eventually
from tests.interop.ordered_flow import OrderedFlow

Play = Callable[[Servers, Path], contextlib.AbstractContextManager[Scene]]
HERE = Path(__file__).parent
FAKETIME = Path("/usr/lib", f"{os.uname().machine}-linux-gnu", "faketime", "libfaketimeMT.so.1")
WIPE_WRITE_PERM_OF_BROKER = 205  # of a name server: mqadmin wipeWritePerm
MORE_QUEUES = 4  # of a broker that is added
MIB = 1 << 20


class Missing(Exception):
    """A row lacks something that it needs."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        play: yields its scene when the faults are over; what is left is to judge.
        only: the one kind of broker it is for, EMBEDDED or ROCKETMQ; empty: both.
        has_leases: its members pop, over the protocol of brokers or over gRPC.
    """

    name: str
    fault: str
    play: Play
    only: str = ""
    has_leases: bool = False

    def is_for(self, broker: str) -> bool:
        """Return True if it is played on this broker, one of `servers.BROKERS`."""
        if self.has_leases:
            if broker.startswith("4."):
                return False  # POP came with RocketMQ 5
        elif broker in FOR_LEASES:
            return False
        return not self.only or (self.only == EMBEDDED) == (broker == EMBEDDED)


ROWS: dict[str, Row] = {}


def row(fault: str, *, only: str = "") -> Callable[[Callable[..., Iterator[Scene]]], Play]:
    """Add a row to the table, named as its function."""

    def add(play: Callable[..., Iterator[Scene]]) -> Play:
        name = play.__name__.replace("_", "-")
        ROWS[name] = Row(name, fault, contextlib.contextmanager(play), only)
        return ROWS[name].play

    return add


def repeated(
    fault: str, around: Play | None = None, *, only: str = ""
) -> Callable[[Callable[[Scene], None]], Play]:
    """Add a row that does one thing under load, a few times: what this decorates.

    Args: around: opens the scene; by default `direct`.
    """

    def add(act: Callable[[Scene], None]) -> Play:
        def play(servers: Servers, folder: Path) -> Iterator[Scene]:
            with (around or direct)(servers, folder) as scene:
                with scene.run.flow():
                    for _ in range(scene.times):
                        scene.let_flow()
                        act(scene)
                        scene.wait_for_every_queue()
                yield scene

        play.__name__ = act.__name__
        return row(fault, only=only)(play)

    return add


@contextlib.contextmanager
def scene_on(servers: Servers, folder: Path, **more: object) -> Iterator[Scene]:
    """A topic, its group of two members, and messages that flow."""
    scene = Scene(servers, folder, **more)  # type: ignore[arg-type]
    try:
        yield scene
    finally:
        scene.close()


@contextlib.contextmanager
def direct(
    servers: Servers,
    folder: Path,
    odd: str = "",
    environment: Mapping[str, str] | None = None,
    **more: object,
) -> Iterator[Scene]:
    """A scene with its topic and two members."""
    with scene_on(servers, folder, **more) as scene:
        servers.put_topic(scene.run.topic)
        scene.join(2, odd, environment)
        yield scene


def with_odd(odd: str) -> Play:
    """A scene whose members are of this kind (`odd_member.py`)."""
    return partial(direct, odd=odd)


@contextlib.contextmanager
def behind_network(
    servers: Servers, folder: Path, seed: int = 1, **more: object
) -> Iterator[Scene]:
    """A scene whose clients reach the servers through a network."""
    network = Network(servers.addresses, seed, tls=servers.tls_ends(folder))
    try:
        with direct(servers, folder, network=network, **more) as scene:  # type: ignore[arg-type]
            yield scene
    finally:
        network.close()


def need_plain(servers: Servers, why: str = "name servers of the tests speak no TLS") -> None:
    """Leave a row out that cannot be had with TLS."""
    if servers.is_guarded:
        raise Missing(why)


def pause(seconds: float) -> None:
    """Let a fault last."""
    threading.Event().wait(seconds)


# Processes that are killed and frozen.


@repeated("a member is killed with -9; another joins")
def kill_member(scene: Scene) -> None:
    kill_one(scene)


def kill_one(scene: Scene) -> None:
    """Kill a member, and let another one join."""
    scene.members.pop(scene.one()).kill()
    scene.faults += 1
    scene.join()


@repeated("a member is stopped (SIGSTOP) for longer than its locks live, and goes on")
def freeze_member(scene: Scene) -> None:
    name = scene.one()
    # One more member: else the share of the frozen one, which is still in the group, would wait
    # for it.
    scene.freeze(scene.members[name], 1.5 * scene.servers.lease_s, scene.join)
    scene.wait_for_every_queue()
    scene.members.pop(name).leave()


@repeated("Ctrl-C twice at a member, 0 to 300 ms apart; another joins")
def interrupt_member(scene: Scene) -> None:
    victim = scene.members.pop(scene.one())
    victim.process.send_signal(signal.SIGINT)
    pause(scene.draw.uniform(0, 0.3))
    victim.process.send_signal(signal.SIGINT)
    scene.faults += 1
    eventually(lambda: not victim.is_running, "it ends")
    scene.join()


@repeated(
    "KeyboardInterrupt at a line of a member's close(), by chance; another joins",
    with_odd("interrupts"),
)
def interrupt_close(scene: Scene) -> None:
    for _ in range(5):
        scene.members.pop(scene.one()).leave()
        scene.faults += 1
        scene.join(odd="interrupts")


@repeated(
    "a member that needs memory for each call gets none (RLIMIT_AS) for 3 s", with_odd("hungry")
)
def memory(scene: Scene) -> None:
    name = scene.one()
    pid = scene.members[name].process.pid
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    scene.faults += 1
    pause(3.0)
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@row("a producer is killed with -9; another goes on")
def kill_producer(servers: Servers, folder: Path) -> Iterator[Scene]:
    with direct(servers, folder) as scene:
        for _ in range(scene.times):
            victim = scene.sender()
            scene.let_flow()
            victim.kill()
            scene.faults += 1
        last = scene.sender()
        scene.let_flow()
        last.leave()
        yield scene


@row("a producer is stopped (SIGSTOP) for 3 s, with requests on their way, and goes on")
def freeze_producer(servers: Servers, folder: Path) -> Iterator[Scene]:
    with direct(servers, folder) as scene:
        sender = scene.sender()
        for _ in range(scene.times):
            scene.let_flow()
            scene.freeze(sender, 3.0, lambda: None)
        scene.let_flow()
        sender.leave()
        yield scene


@row("a producer forks children that use its connections and are refused, then their own")
def fork(servers: Servers, folder: Path) -> Iterator[Scene]:
    with direct(servers, folder) as scene:
        sender = scene.sender(forks=4)
        eventually(lambda: len(scene.run.forks) >= 5 * scene.times, "children")
        sender.leave()
        scene.faults = len(scene.run.forks)
        assert set(scene.run.forks) == {0}, f"ends of children: {scene.run.forks}"
        yield scene


@repeated("the broker is killed with -9 and started again")
def kill_broker(scene: Scene) -> None:
    scene.servers.kill_broker(scene.run)
    scene.faults += 1
    scene.servers.start_broker(scene.run)


@repeated("the broker is stopped (SIGSTOP) for longer than its locks live, and goes on")
def freeze_broker(scene: Scene) -> None:
    scene.servers.signal_broker(signal.SIGSTOP)
    pause(1.5 * scene.servers.lease_s)
    scene.servers.signal_broker(signal.SIGCONT)
    scene.faults += 1


# The slave of RocketMQ.


@contextlib.contextmanager
def beside_slave(servers: Servers, folder: Path) -> Iterator[Scene]:
    """A scene on a master and a slave of its own; whoever lags behind is sent to the slave."""
    settings = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
    with (
        rocketmq(
            servers.name,
            folder / "cluster",
            "--slave",
            is_guarded=servers.is_guarded,
            **settings,
        ) as replicas,
        scene_on(replicas, folder) as scene,
    ):
        replicas.put_topic(scene.run.topic)
        replicas.cluster.wait_for_topics(SLAVE, [scene.run.topic])
        scene.join(2)
        yield scene


def while_it_serves(scene: Scene) -> Cluster:
    """Wait until members read from the slave."""
    cluster: Cluster = scene.servers.cluster  # type: ignore[attr-defined]
    before = cluster.delivered_by(SLAVE)
    eventually(lambda: cluster.delivered_by(SLAVE) > before, "members read from the slave")
    scene.faults += 1
    return cluster


@row("the slave that serves members is killed with -9 and started again", only=ROCKETMQ)
def kill_slave(servers: Servers, folder: Path) -> Iterator[Scene]:
    with beside_slave(servers, folder) as scene:
        with scene.run.flow():
            cluster = while_it_serves(scene)
            cluster.kill(SLAVE)
            scene.let_flow(600)
            cluster.start(SLAVE)
            scene.wait_for_every_queue()
        yield scene


@row("the slave that serves members is stopped (SIGSTOP) for 12 s and goes on", only=ROCKETMQ)
def freeze_slave(servers: Servers, folder: Path) -> Iterator[Scene]:
    with beside_slave(servers, folder) as scene:
        with scene.run.flow():
            slave = while_it_serves(scene).pid(SLAVE)
            os.kill(slave, signal.SIGSTOP)
            pause(12.0)
            os.kill(slave, signal.SIGCONT)
            scene.wait_for_every_queue()
        yield scene


# The network.


@row("connections are reset in the middle of a frame, in either direction")
def cut(servers: Servers, folder: Path) -> Iterator[Scene]:
    with behind_network(servers, folder) as scene:
        assert scene.network is not None
        with scene.run.flow():
            for _ in range(5 * scene.times):
                scene.let_flow(100)
                scene.network.cut(2)
                scene.let_flow(100)
        yield scene


@repeated(
    "half-open: what clients send stays in a middlebox, which delivers it 6 s late", behind_network
)
def silent_to_server(scene: Scene) -> None:
    silence(scene, TO_SERVER)


@repeated(
    "half-open: what servers answer stays in a middlebox, which delivers it 6 s late",
    behind_network,
)
def silent_to_client(scene: Scene) -> None:
    silence(scene, TO_CLIENT)


def silence(scene: Scene, direction: str) -> None:
    """Let one direction of all connections be silent."""
    assert scene.network is not None
    with scene.network.silent(direction):
        pause(6.0)


@row(
    "a middlebox delivers a producer's requests 6 s late, after their retries; members with "
    "deduplicate=1,000 restart"
)
def late_copies(servers: Servers, folder: Path) -> Iterator[Scene]:
    network = Network(servers.addresses, 1, tls=servers.tls_ends(folder))
    with contextlib.closing(network), scene_on(servers, folder) as scene:
        servers.put_topic(scene.run.topic)
        scene.run.producers_name_servers = network.addresses[servers.name_servers]
        scene.is_once = True
        scene.join(2, deduplicate=1_000)
        with scene.run.flow():
            for _ in range(3):
                scene.let_flow()
                with network.silent(TO_SERVER):
                    pause(6.0)
                # The copies come while queues change their owners.
                scene.join(deduplicate=1_000)
                scene.members.pop(scene.one()).leave()
                scene.wait_for_every_queue()
        scene.faults += network.faults
        copies = stored(scene) - scene.run.sent
        if not servers.histories and not copies:  # the embedded broker drops them itself
            pytest.fail("no copy was stored")
        yield scene


def stored(scene: Scene) -> int:
    """The number of messages in the topic."""
    told = {"name_servers": scene.servers.name_servers} | scene.servers.client_settings
    with PullConsumer(f"probe-{scene.run.group}", **told) as consumer:
        queues = consumer.fetch_subscribe_message_queues(scene.run.topic)
        return sum(map(consumer.max_offset, queues))


@row("each frame is held back for 0 to 100 ms, one after the other")
def delay(servers: Servers, folder: Path) -> Iterator[Scene]:
    with behind_network(servers, folder) as scene:
        assert scene.network is not None
        with scene.run.flow():
            scene.let_flow()
            with scene.network.delayed(0.1):
                scene.let_flow(100 * scene.times)
            scene.wait_for_every_queue()
        yield scene


@row("a bit flips in the records of every fifth answer to a pull")
def damaged_records(servers: Servers, folder: Path) -> Iterator[Scene]:
    with behind_network(servers, folder) as scene:
        assert scene.network is not None
        with scene.run.flow():
            scene.let_flow()
            with scene.network.damaged(0.2, flip_in_record):
                eventually(lambda: scene.network.faults >= 20 * scene.times, "damaged answers")
            scene.wait_for_every_queue()
        yield scene


@row("a bit flips in the lengths of a hundredth of the frames to clients")
def damaged_lengths(servers: Servers, folder: Path) -> Iterator[Scene]:
    with behind_network(servers, folder) as scene:
        assert scene.network is not None
        with scene.run.flow():
            scene.let_flow()
            with scene.network.damaged(0.01, flip_in_lengths):
                eventually(lambda: scene.network.faults >= 3 * scene.times, "damaged frames")
            # A length that is wrong and possible swallows what follows, for a minute at most.
            scene.wait_for_every_queue(deadline_s=150.0)
        yield scene


# Servers that come and go.


@row("one of two name servers goes, then both, then both come back (RocketMQ: its only one)")
def name_servers(servers: Servers, folder: Path) -> Iterator[Scene]:
    cluster = getattr(servers, "cluster", None)
    if cluster is not None:
        with direct(servers, folder) as scene:
            with scene.run.flow():
                for _ in range(scene.times):
                    scene.let_flow()
                    cluster.kill("name-server")
                    scene.faults += 1
                    try:
                        scene.wait_for_every_queue()
                    finally:  # the other rows need it, too
                        cluster.start("name-server")
                    # Before the next fault, for brokers register again only every few seconds.
                    scene.run.wait_for_more(1, scene.join())
                    scene.wait_for_every_queue()
            yield scene
        return
    need_plain(servers)
    with contextlib.ExitStack() as stack:
        two = [NameServer(), NameServer()]
        stack.callback(lambda: [each.close() for each in two])
        told = ";".join(each.address for each in two)
        scene = stack.enter_context(scene_on(servers, folder, name_servers=told))

        def register(each: NameServer) -> None:
            each.register_address(servers.name, servers.name_servers, scene.run.topic, QUEUES)

        for each in two:
            register(each)
        scene.join(2)
        with scene.run.flow():
            for round_ in range(scene.times):
                away = [0, 1] if round_ % 2 else [round_ // 2 % 2]
                ports = [int(each.address.rpartition(":")[2]) for each in two]
                scene.let_flow()
                for number in away:
                    two[number].close()
                    scene.faults += 1
                pause(2.0)
                scene.let_flow()
                for number in away:
                    two[number] = NameServer(ports[number])
                    register(two[number])
                scene.run.wait_for_more(1, scene.join())
                scene.wait_for_every_queue()
        yield scene


@row("a broker is added under load; another stops taking messages, is read empty and removed")
def brokers_change(servers: Servers, folder: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        cluster = getattr(servers, "cluster", None)
        if cluster is not None:
            scene = stack.enter_context(direct(servers, folder))
            topic = scene.run.topic

            def add() -> None:
                cluster.put_topic(topic, {"broker-a": QUEUES, "broker-b": MORE_QUEUES})

            def drain() -> None:
                told = {"brokerName": "broker-b"}
                answer = cluster.ask("name-server", WIPE_WRITE_PERM_OF_BROKER, told)
                assert answer.code == 0, answer.remark

            def remove() -> None:
                cluster.stop("broker-b")
                stack.callback(cluster.start, "broker-b")

        else:
            need_plain(servers)
            names = NameServer()
            stack.callback(names.close)
            (folder / "other").mkdir()
            other = Embedded(folder / "other", "other")
            stack.callback(other.close)
            scene = stack.enter_context(scene_on(servers, folder, name_servers=names.address))
            topic = scene.run.topic
            scene.add_histories(other)
            names.register_address(servers.name, servers.name_servers, topic, QUEUES)
            scene.join(2)

            def add() -> None:
                names.register_address("other", other.name_servers, topic, MORE_QUEUES)

            def drain() -> None:
                names.register_address(
                    "other", other.name_servers, topic, MORE_QUEUES, writable=False
                )

            def remove() -> None:
                names.forget("other")
                other.close()

        scene.run.producer_settings["route_interval_ms"] = 500
        with OrderedFlow(scene.run) as flow:
            scene.let_flow()
            add()
            eventually(lambda: flow.changes == 1 or flow.failures, "a producer with new queues")
            scene.wait_for_every_queue(QUEUES + MORE_QUEUES)
            drain()
            eventually(lambda: flow.changes == 2 or flow.failures, "a producer with fewer queues")
            remove()
            scene.wait_for_every_queue()
            scene.faults = 2
        assert not flow.failures, flow.failures
        yield scene


# Clocks and observers.


@repeated(
    "the wall clock of every member jumps by up to an hour at each look; the host seems to sleep",
    with_odd("clock"),
)
def clock_jumps(scene: Scene) -> None:
    scene.let_flow(200)
    scene.members.pop(scene.one()).kill()
    scene.faults += 1
    scene.join(odd="clock")


class FakedClock:
    """A wall clock of processes that goes ahead of the real one, or behind it (faketime).

    Args: path: of a file that tells it; its folder must exist.
    Attributes: environment: of these processes.
    Raises: Missing: the library is not installed.
    """

    def __init__(self, path: Path) -> None:
        if not FAKETIME.exists():
            raise Missing("faketime is not installed (Debian: apt install faketime)")
        self._path = path
        self.environment = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # no jump of a wall clock moves that one
        }
        self.set(0)

    def set(self, hours: int) -> None:
        """Let it jump, to so many hours ahead of the real one."""
        # Replaced at once: the library exits on a file without a time.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{hours * 3_600:+d}\n")
        fresh.replace(self._path)


@row("the system's wall clock jumps by hours, for members and embedded broker (faketime)")
def wall_clock(servers: Servers, folder: Path) -> Iterator[Scene]:
    need_plain(servers, "the clock leaves the time in which a certificate is valid")
    clock = FakedClock(folder / "time")
    environment = clock.environment | {"FAKETIME_NO_CACHE": "1"}
    with contextlib.ExitStack() as stack:
        if isinstance(servers, Embedded):
            (folder / "faked").mkdir()
            faked = servers.beside(folder / "faked", environment=environment)
            stack.callback(faked.close)
            servers = faked
        scene = stack.enter_context(direct(servers, folder, environment=environment))
        with scene.run.flow():
            for hours in (1, -1, 48, 0)[: scene.times + 1]:
                scene.let_flow()
                clock.set(hours)
                scene.faults += 1
                scene.members.pop(scene.one()).leave()
                scene.join(environment=environment)
                scene.wait_for_every_queue()
        yield scene


@row("the wall clock of name server and brokers jumps by hours (faketime)", only=ROCKETMQ)
def brokers_clock(servers: Servers, folder: Path) -> Iterator[Scene]:
    need_plain(servers, "Java does not answer a handshake of TLS under faketime")
    clock = FakedClock(folder / "time")
    # Java reads it all the time, and would read the file as often.
    environment = clock.environment | {"FAKETIME_CACHE_DURATION": "1"}
    told = [f"--env={name}={value}" for name, value in environment.items()]
    with (
        rocketmq(servers.name, folder / "cluster", *told, is_guarded=servers.is_guarded) as faked,
        direct(faked, folder) as scene,
    ):
        with scene.run.flow():
            for hours in (1, -1, 48, 0):
                scene.let_flow()
                clock.set(hours)
                scene.faults += 1
                pause(2.0)  # until it is read
                scene.wait_for_every_queue(deadline_s=120.0)
        yield scene


@row("hooks of every member raise before and after each call")
def hooks(servers: Servers, folder: Path) -> Iterator[Scene]:
    with direct(servers, folder, odd="hooks") as scene:
        with scene.run.flow():
            scene.let_flow(300 * scene.times)
        scene.faults += len(scene.run.deliveries)
        yield scene


# Disk, power and connections of the embedded broker.


def built(source: str, folder: Path) -> Path:
    """Compile a library that is preloaded."""
    library = folder / f"{Path(source).stem}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / source), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


@contextlib.contextmanager
def own_broker(servers: Servers, folder: Path, **environment: str) -> Iterator[Embedded]:
    """An embedded broker with an environment of its own."""
    assert isinstance(servers, Embedded)
    (folder / "own").mkdir()
    own = servers.beside(folder / "own", environment=environment)
    try:
        yield own
    finally:
        own.close()


@row("the broker's disk is full for 2 s", only=EMBEDDED)
def disk_full(servers: Servers, folder: Path) -> Iterator[Scene]:
    assert isinstance(servers, Embedded)
    # Its own history is on the full disk, too, so the audit gets the producer's receipts.
    with direct(servers, folder, is_told=False) as scene:
        with stubborn_flow(scene):
            for _ in range(scene.times):
                scene.let_flow()
                limit(servers.pid, 0)
                scene.faults += 1
                pause(2.0)
                limit(servers.pid, resource.RLIM_INFINITY)
                scene.wait_for_every_queue()
        yield scene


@contextlib.contextmanager
def stubborn_flow(scene: Scene) -> Iterator[None]:
    """Send again what a broker refuses, during the block."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.01):
            with contextlib.suppress(BrokerError):  # nothing of the request was kept
                scene.run.send(16)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def limit(pid: int, size: int) -> None:
    """Let no file of a process grow beyond this size."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@row("every sync of the broker's disk takes 200 ms longer", only=EMBEDDED)
def slow_disk(servers: Servers, folder: Path) -> Iterator[Scene]:
    library = built("slow_sync.c", folder)
    with (
        own_broker(servers, folder, LD_PRELOAD=str(library), SLOW_SYNC_US="200000") as slow,
        direct(slow, folder) as scene,
    ):
        with scene.run.flow():
            scene.let_flow(300 * scene.times)
            scene.faults += 1
        yield scene


@row("power loss: the broker starts again from what was synced, and nothing else", only=EMBEDDED)
def power_loss(servers: Servers, folder: Path) -> Iterator[Scene]:
    library = built("../component/broker/power_loss.c", folder)
    disks = iter(folder / f"disk-{number}" for number in range(1_000))
    disk = next(disks)
    disk.mkdir()
    with (
        own_broker(servers, folder, LD_PRELOAD=str(library), POWER_LOSS_DIR=str(disk)) as broken,
        direct(broken, folder) as scene,
    ):
        with scene.run.flow(0.05):
            for _ in range(scene.times):
                scene.let_flow()
                broken.kill_broker(scene.run)
                scene.faults += 1
                newest = max(
                    (path for path in disk.iterdir() if path.name.isdigit()), key=number_of
                )
                for path in broken.database.parent.glob("broker.db*"):
                    path.unlink()
                disk = next(disks)
                disk.mkdir()
                for path in newest.iterdir():
                    shutil.copy(path, broken.database.parent)
                    shutil.copy(path, disk)  # synced already, by the process before
                assert broken.environment is not None
                broken.environment = {**broken.environment, "POWER_LOSS_DIR": str(disk)}
                broken.start_broker(scene.run)
                scene.wait_for_every_queue()
        yield scene


def number_of(path: Path) -> int:
    return int(path.name)


@row("10,000 connections are opened, half with an unfinished frame of 15 MiB", only=EMBEDDED)
def connections(servers: Servers, folder: Path) -> Iterator[Scene]:
    host, port = servers.name_servers.split(":")
    with contextlib.ExitStack() as stack, direct(servers, folder) as scene:
        with scene.run.flow():
            scene.let_flow()
            for number in range(10_000):
                # The broker serves 1,024 of an address, and 4,096 in all.
                source = f"127.0.1.{1 + number // 1_000}"
                opened = stack.enter_context(
                    socket.create_connection((host, int(port)), source_address=(source, 0))
                )
                if number % 2:
                    with contextlib.suppress(OSError):  # closed by the broker
                        opened.sendall((15 * MIB).to_bytes(4) + bytes(1000))
                scene.faults += 1
            scene.let_flow(300 * scene.times)
        yield scene
