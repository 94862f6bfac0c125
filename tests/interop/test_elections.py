"""Replicas that choose their master: it is killed or frozen under load, and another one goes on.

RocketMQ acknowledges a message here when a majority has it (ci/rocketmq/elections.py), so no
acknowledged one may be missing, in whatever group, and keys stay in order. Slaves ask for offsets
of groups now and then: what was consumed last may come again (docs/reliability.md).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ordermq import Admin
from ordermq.remoting.bodies import TopicRoute
from ordermq.remoting.codes import RequestCode
from tests.interop.cluster import Cluster, eventually
from tests.interop.lives import KINDS, Delivered, Member
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

pytestmark = pytest.mark.restarts
BROKER = "broker-a"


@pytest.fixture(scope="module")
def replicas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start three replicas, which vote in 4.9 and have a controller in 5."""
    folder = tmp_path_factory.mktemp("elections") / "rocketmq"
    kind = "dledger" if cluster.version.startswith("4") else "controller"
    with own_cluster(cluster.version, folder, f"--elections={kind}") as running:
        yield running


@pytest.fixture
def run(replicas: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    running = Run(replicas, tmp_path, re.sub(r"\W+", "-", request.node.name).strip("-"))
    with Admin(name_servers=replicas.name_servers) as admin:
        admin.create_topic(running.topic, queues=4)
    for replica in set(replicas.addresses) - {"name-server"}:
        replicas.wait_for_topics(replica, [running.topic])
    yield running
    running.close()


def replicas_of(run: Run) -> dict[int, str]:
    """Return the parts that the name server names, by broker id: 0 is the master."""
    ext = {"topic": run.topic, "acceptStandardJsonOnly": "true"}
    answer = run.cluster.ask("name-server", RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
    if answer.code != 0:
        return {}
    part_of = {address: part for part, address in run.cluster.addresses.items()}
    addresses = TopicRoute.from_body(answer.body).brokers[0].addresses
    return {number: part_of[address] for number, address in addresses.items()}


def master(run: Run) -> str:
    """Return the master; "" while the name server names none."""
    return replicas_of(run).get(0, "")


def elected(run: Run, old: str) -> str:
    """Wait until another replica is the master; return it."""
    eventually(lambda: master(run) not in ("", old), f"a master after {old}", deadline_s=120)
    return master(run)


def kill(run: Run, part: str) -> Callable[[], None]:
    """Kill a replica; return what starts it again."""
    run.cluster.kill(part)
    return lambda: run.cluster.start(part)


def freeze(run: Run, part: str) -> Callable[[], None]:
    """Stop a replica in its tracks, so that it believes to be the master when it goes on."""
    pid = run.cluster.pid(part)
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


# Two elections, and before them replicas that ask for the topic once a minute.
@pytest.mark.timeout(600)
# While one of three is frozen, the new master may find no replica in sync until that one goes on.
@pytest.mark.parametrize(("breaks", "is_served_by_two"), [(kill, True), (freeze, False)])
def test_another_master_goes_on_without_loss_and_in_order(
    run: Run, breaks: Callable[[Run, str], Callable[[], None]], is_served_by_two: bool
) -> None:
    run.producer_settings = {"route_interval_ms": 200}
    others = {kind: Delivered() for kind in KINDS}
    with ExitStack() as joined:
        for number, (kind, delivered) in enumerate(others.items()):
            group = f"{run.group}-{number}"
            member = Member(
                kind, run.cluster.name_servers, group, run.topic, delivered,
                consume_from_where="first_offset", route_interval_ms=500,
            )  # fmt: skip
            joined.callback(member.close)
        run.member("one")
        run.member("two")
        run.wait_for_shares(one=2, two=2)
        with run.flow():
            for _ in range(2):
                run.wait_for_more(100, "one")
                old = master(run)
                mend = breaks(run, old)
                new = elected(run, old)
                run.broker_died(BROKER, run.cluster.route(run.topic), part=new)
                if is_served_by_two:
                    run.wait_for_more(100, "one")
                    run.wait_for_more(100, "two")
                mend()
                eventually(lambda: len(replicas_of(run)) == 3, f"{old} is back")
                run.wait_for_more(100, "one")
                run.wait_for_more(100, "two")
        run.wait_for_all()
        sent = [str(number).encode() for number in range(run.sent)]
        for kind, delivered in others.items():
            eventually(lambda each=delivered: not each.missing(sent), f"everything, {kind}")
    run.assert_sound()
