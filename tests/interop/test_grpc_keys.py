"""Message groups of gRPC clients and sharding keys of this producer meet in the same queues."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer, PullConsumer, PullStatus
from tests.interop.cluster import ROOT, Cluster
from tests.interop.own_cluster import own_cluster

# A first test has its cluster made, which takes a minute and a half on a busy machine.
pytestmark = pytest.mark.timeout(300)

KEYS = [f"customer-{number}" for number in range(64)] + ["käse", "鍵", "🔑", "a b"]
SENDER = Path(__file__).parent / "java" / "grpc" / "GrpcSender.java"


@pytest.fixture
def behind_proxy(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    if cluster.version.startswith("4."):
        pytest.skip("the proxy came with RocketMQ 5")
    mixed = {"enableMixedMessageType": "true"}
    place = tmp_path / "rocketmq"
    with own_cluster(cluster.version, place, "--proxy=cluster", "--brokers=2", **mixed) as running:
        yield running


def send_by_grpc(cluster: Cluster, topic: str, keys: list[str]) -> None:
    """Send a message of each message group to the proxy."""
    script = ["ci/rocketmq.sh", "jars", cluster.version, "--proxy"]
    jars = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    port = cluster.grpc.rpartition(":")[2]
    java = ["java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
    line = [*java, "-cp", jars.strip(), str(SENDER), port, topic]
    done = subprocess.run(line, input="\n".join(keys).encode(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


def queues_of_keys(cluster: Cluster, topic: str) -> dict[str, set[tuple[str, int]]]:
    """Return the queues that hold messages of each key."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    with PullConsumer("probe", name_servers=cluster.name_servers) as consumer:
        for queue in consumer.fetch_subscribe_message_queues(topic):
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                answer = consumer.pull(queue, "*", offset, 32)
                assert answer.status is PullStatus.FOUND
                for message in answer.messages:
                    place = (queue.broker_name, queue.queue_id)
                    found[message.sharding_key or ""].add(place)
                offset = answer.next_begin_offset
    return found


def test_a_message_group_and_the_same_sharding_key_go_to_one_queue(behind_proxy: Cluster) -> None:
    topic = "orders-of-both"
    behind_proxy.put_topic(topic, {"broker-a": 5, "broker-b": 3}, message_type="MIXED")
    send_by_grpc(behind_proxy, topic, KEYS)
    at = {"name_servers": behind_proxy.name_servers, "selector": "grpc"}
    with Producer("shop", **at) as producer:
        for key in KEYS:
            producer.send(Message(topic, key.encode()), sharding_key=key)
    found = queues_of_keys(behind_proxy, topic)
    assert found.keys() == set(KEYS)
    assert {key: places for key, places in found.items() if len(places) != 1} == {}
    assert len(set().union(*found.values())) == 8, "all queues are used"
