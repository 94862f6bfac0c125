"""RocketMQ's admin tool (mqadmin) on the embedded broker."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient, queue_table
from tests.component.conftest import Seen, eventually
from tests.interop.cluster import Cluster
from tests.interop.java_process import JavaProcess


class AdminTool:
    """Run commands of the tool against one broker, all in one Java process."""

    def __init__(self, process: JavaProcess, broker: EmbeddedBroker) -> None:
        self._process = process
        self._address = broker.name_servers

    def __call__(self, command: str) -> str:
        """Run the tool and return its output; adds `-b` where the tool needs it."""
        line = command.replace("BROKER", self._address)
        told: str = self._process.ask(" ".join(f"{line} -n {self._address}".split()))["told"]
        assert told.strip(), f"{command}: it printed nothing but {self._process.errors()}"
        return told


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(broker_name="embedded", durability="os")
    with EmbeddedBroker(tmp_path_factory.mktemp("admin") / "broker.db", config=config) as running:
        yield running


@pytest.fixture(scope="module")
def admin(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AdminTool]:
    folder = tmp_path_factory.mktemp("tool")
    (folder / "conf").mkdir()
    (folder / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9 asks for it
    home = [f"-Drocketmq.home.dir={folder}"]
    process = JavaProcess(cluster.version, "Admin", folder, options=home)
    yield AdminTool(process, broker)
    process.kill()


@pytest.fixture(scope="module")
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("p", name_servers=broker.name_servers) as running:
        yield running


def rows(told: str, *words: str) -> list[list[str]]:
    """Return the lines of a table that contain all of these words, split at blanks."""
    lines = [line.split() for line in told.splitlines()]
    return [line for line in lines if set(words) <= set(line)]


def running_info(broker: EmbeddedBroker, group: str, client_id: str) -> dict[str, str]:
    """Return a member's own figures, which the tool of 4.9 requests but does not print."""
    with WireClient(broker.port) as client:
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        answer = client.wait(client.start(RequestCode.GET_CONSUMER_RUNNING_INFO, ext))
    own: dict[str, str] = queue_table(answer.body)["userConsumerInfo"]
    return own


def test_topics_are_created_listed_described_and_deleted(
    admin: AdminTool, producer: Producer
) -> None:
    assert "success" in admin("updateTopic -b BROKER -t made -r 3 -w 2")
    assert "success" in admin("updateTopic -b BROKER -t kept")
    assert rows(admin("topicList"), "made")
    route = admin("topicRoute -t made")
    assert re.search(r'"readQueueNums":3\b', route)
    assert re.search(r'"writeQueueNums":2\b', route)
    producer.send_batch([Message("made", b"x")] * 5, queue=producer.queues("made")[1])
    assert rows(admin("topicStatus -t made"), "embedded", "1", "5")
    assert rows(admin("clusterList"), "DefaultCluster", "embedded", "V5_3_3")
    assert "success" in admin("deleteTopic -c DefaultCluster -t made")
    left = admin("topicList")
    assert rows(left, "kept")
    assert not rows(left, "made")


def test_a_message_is_found_by_id_by_key_and_by_offset(
    admin: AdminTool, producer: Producer, cluster: Cluster
) -> None:
    receipts = [
        producer.send(Message("found", b"body", tags="t", keys=[f"key-{number}", "all"]))
        for number in range(10)
    ]
    one = receipts[4]
    topic = "" if cluster.version.startswith("4.") else "-t found"  # which 4.9 does not take
    by_id = admin(f"queryMsgById {topic} -i {one.offset_message_id}")
    assert re.search(r"Keys:\s+\[key-4 all\]", by_id)
    assert re.search(r"Tags:\s+\[t\]", by_id)
    assert rows(admin("queryMsgByKey -t found -k key-4"), one.message_id)
    assert len(rows(admin("queryMsgByKey -t found -k all"))) == 11  # and a line of titles
    by_own_id = admin(f"queryMsgByUniqueKey -t found -i {one.message_id}")
    assert re.search(r"Keys:\s+\[key-4 all\]", by_own_id)
    queue, offset = one.message_queue, one.queue_offset
    place = f"-b {queue.broker_name} -i {queue.queue_id} -o {offset}"
    assert one.message_id in admin(f"queryMsgByOffset -t found {place}")


def test_a_group_is_described_reset_by_time_and_deleted(
    admin: AdminTool, producer: Producer, broker: EmbeddedBroker
) -> None:
    for number in range(40):
        producer.send(Message("reset", str(number).encode()), sharding_key=f"k{number % 5}")
    seen = Seen()
    consumer = PushConsumer(
        "members",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        commit_interval_ms=20,
    )
    consumer.subscribe("reset")
    consumer.orderly(seen.take)

    def lag() -> str:
        return re.findall(r"Diff Total: (\d+)", admin("consumerProgress -g members"))[0]

    with consumer:
        seen.wait_for_count(40)
        connected = admin("consumerConnection -g members")
        assert rows(connected, consumer.client_id, "PYTHON")
        assert rows(connected, "reset", "*")
        eventually(lambda: lag() == "0", "all is committed")
        assert rows(admin("consumerStatus -g members"), consumer.client_id)
        told = admin(f"consumerStatus -g members -s -i {consumer.client_id}")
        assert rows(told, "PROP_CONSUMEORDERLY", "true")
        assert rows(told, "reset", "embedded", "0")
        assert running_info(broker, "members", consumer.client_id)["messages_done"] == "40"
        assert "reset" in admin("resetOffsetByTime -g members -t reset -s 0")
        seen.wait_for_count(80)
        eventually(lambda: lag() == "0", "all is committed again")
    assert seen.duplicates() == 40
    assert "success" in admin("updateSubGroup -b BROKER -g members -r 3")
    assert re.search(r"retryMaxTimes\s+=\s+3", admin("getConsumerConfig -g members"))
    assert "success" in admin("deleteSubGroup -b BROKER -g members")


def test_a_java_member_answers_the_admin_tool(
    admin: AdminTool,
    producer: Producer,
    broker: EmbeddedBroker,
    cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    producer.send(Message("asked", b"0"))
    folder = tmp_path_factory.mktemp("member")
    member = JavaProcess(
        cluster.version, "Member", folder, mode="orderly", group="asked", topic="asked",
        history=folder / "member.jsonl", to_boot_time_ns=0, name_servers=broker.name_servers,
    )  # fmt: skip
    try:
        assert member.read()["body"] == "0"
        told = admin("consumerStatus -g asked")
        assert rows(told, member.ready)
        told = admin("resetOffsetByTime -g asked -t asked -s 0")
        assert rows(told, "embedded", "0", "0")
        assert member.read()["body"] == "0"
    finally:
        member.kill()
