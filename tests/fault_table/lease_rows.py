"""Rows of members with leases: what may break, for each way to pop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ordermq import Admin
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import OrderMQError
from tests.fault_table.network import TO_CLIENT, TO_SERVER, Network
from tests.fault_table.rows import Missing, Row, kill_one, pause, scene_on, silence
from tests.fault_table.scene import Scene
from tests.fault_table.servers import EMBEDDED, ROCKETMQ, Servers
from tests.interop.cluster import eventually


@dataclass(frozen=True)
class Way:
    """A way to pop.

    Attributes:
        members: for the descriptions of its rows.
        lease_s: of a batch that nobody renews.
        settings: of the members.
    """

    name: str
    members: str
    lease_s: float
    settings: dict[str, Any] = field(hash=False)
    is_ordered: bool = True
    is_grpc: bool = False


_POP = {"consume_mode": "pop", "pop_invisible_ms": 4_000, "pop_poll_ms": 500}
# A proxy starts every group at the end, and leases for ten seconds at least.
_GRPC = {"consume_from_where": "last_offset", "pop_invisible_ms": 10_000}
WAYS = (
    Way("pop", "members that pop", 4.0, _POP),
    Way("concurrent-pop", "members that pop without order", 4.0, _POP, is_ordered=False),
    Way("grpc", "members over gRPC", 10.0, _GRPC, is_grpc=True),
    Way("grpc-concurrent", "members over gRPC without order", 10.0, _GRPC, is_ordered=False,
        is_grpc=True),
)  # fmt: skip


@contextlib.contextmanager
def leasing(
    way: Way, servers: Servers, folder: Path, *, behind_network: bool = False
) -> Iterator[Scene]:
    """A scene of two members that pop in this way."""
    if way.is_grpc and not servers.proxy:
        raise Missing("there is no proxy")
    if way.is_grpc and servers.is_guarded:
        raise Missing("the proxy is started without TLS and accounts")
    with contextlib.ExitStack() as stack:
        network = None
        if behind_network:
            those = [servers.proxy] if way.is_grpc else servers.addresses
            network = Network(those, 1, is_remoting=not way.is_grpc, tls=servers.tls_ends(folder))
            stack.callback(network.close)
        told = servers.name_servers
        if way.is_grpc:
            told = (
                f"grpc://{servers.proxy if network is None else network.addresses[servers.proxy]}"
            )
        elif network is not None:
            told = network.addresses[told]
        scene = stack.enter_context(
            scene_on(
                servers, folder, network=network, name_servers=told, settings=way.settings,
                is_ordered=way.is_ordered,
            )
        )  # fmt: skip
        servers.put_topic(scene.run.topic, message_type="FIFO" if way.is_grpc else "")
        if way.is_grpc:
            with Admin(servers.name_servers) as admin:
                admin.create_group(scene.run.group, is_orderly=way.is_ordered)
            eventually(lambda: knows_topic(told, scene.run.topic), "the proxy knows the topic")
        scene.join(2)
        yield scene


def knows_topic(endpoint: str, topic: str) -> bool:
    """Return whether a proxy gives a route: the first one takes it seconds on a busy machine."""
    session = ClientSession(endpoint, RemotingConfig())
    try:
        session.call(session.routes.get(topic))
    except OrderMQError:
        return False
    finally:
        session.close()
    return True


def freeze_member(way: Way, scene: Scene) -> None:
    scene.freeze(scene.members[scene.one()], 1.5 * way.lease_s, lambda: None)


def leave_member(scene: Scene) -> None:
    scene.members.pop(scene.one()).leave()
    scene.faults += 1
    scene.join()


def kill_broker(scene: Scene) -> None:
    # RocketMQ's brokers forget leases of the last seconds.
    scene.promises_order = scene.is_ordered and scene.servers.name == EMBEDDED
    scene.servers.kill_broker(scene.run)
    scene.faults += 1
    scene.servers.start_broker(scene.run)


def lose_answers(scene: Scene) -> None:
    assert scene.network is not None
    with scene.network.silent(TO_CLIENT, loses=True):
        pause(1.0)


FAULTS: dict[str, tuple[str, Callable[[Way, Scene], None], bool]] = {
    # name: words, what is done, whether through a network
    "kill-member": ("one is killed with -9; another joins", lambda _, s: kill_one(s), False),
    "freeze-member": (
        "one is stopped (SIGSTOP) for longer than its leases live, and goes on",
        freeze_member,
        False,
    ),
    "leave-member": ("one leaves; another joins", lambda _, s: leave_member(s), False),
    "kill-broker": (
        "the broker is killed with -9 and started again",
        lambda _, s: kill_broker(s),
        False,
    ),
    "silent-to-server": (
        "half-open: requests come 6 s late",
        lambda _, s: silence(s, TO_SERVER),
        True,
    ),
    "silent-to-client": (
        "half-open: answers come 6 s late",
        lambda _, s: silence(s, TO_CLIENT),
        True,
    ),
    "lost-answers": (
        "the answers of a second are lost, with their connections",
        lambda _, s: lose_answers(s),
        True,
    ),
}


def play_fault(
    way: Way,
    act: Callable[[Way, Scene], None],
    behind_network: bool,
    servers: Servers,
    folder: Path,
) -> Iterator[Scene]:
    """Do one thing under load, a few times."""
    with leasing(way, servers, folder, behind_network=behind_network) as scene:
        with scene.run.flow():
            for _ in range(scene.times):
                scene.let_flow()
                act(way, scene)
                scene.wait_for_every_queue()
        yield scene


def kill_proxy(way: Way, servers: Servers, folder: Path) -> Iterator[Scene]:
    """Kill the proxy under load, and while its members wait for messages."""
    if servers.proxy and "proxy" not in servers.cluster.addresses:  # type: ignore[attr-defined]
        raise Missing("it is the broker's process, see kill-broker")
    with leasing(way, servers, folder) as scene:
        cluster = servers.cluster  # type: ignore[attr-defined]
        for is_idle in (False, True):
            with contextlib.ExitStack() as stack:
                if not is_idle:
                    stack.enter_context(scene.run.flow())
                    scene.let_flow()
                cluster.kill("proxy")
                scene.faults += 1
                cluster.start("proxy")
                if is_idle:
                    stack.enter_context(scene.run.flow())
                scene.wait_for_every_queue()
            eventually(scene.is_all_delivered, "all that was sent is delivered")
        yield scene


def _rows() -> Iterator[Row]:
    for way in WAYS:
        only = ROCKETMQ if way.is_grpc else ""
        for name, (words, act, behind_network) in FAULTS.items():
            if name == "kill-broker" and way.is_ordered:
                words += "; RocketMQ then promises no order"
            play = contextlib.contextmanager(partial(play_fault, way, act, behind_network))
            yield Row(f"{way.name}-{name}", f"{way.members}: {words}", play, only, has_leases=True)
        if way.is_grpc:
            words = "the proxy is killed with -9 and started again, under load and without"
            play = contextlib.contextmanager(partial(kill_proxy, way))
            yield Row(
                f"{way.name}-kill-proxy", f"{way.members}: {words}", play, only, has_leases=True
            )


LEASE_ROWS = {row.name: row for row in _rows()}
