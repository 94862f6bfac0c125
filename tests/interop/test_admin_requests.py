"""Requests of RocketMQ's admin tool to members of ordermq, through RocketMQ's brokers.

The same at the embedded broker is in test_admin_tool.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ordermq import ConsumeResult, Message, PushConsumer
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run


class AdminTool:
    """Run commands of the tool, all in one Java process."""

    def __init__(self, process: JavaProcess, name_servers: str) -> None:
        self._process = process
        self._name_servers = name_servers

    def __call__(self, command: str) -> str:
        """Run the tool and return its output, or the end of its errors if there is none."""
        told: str = self._process.ask(f"{command} -n {self._name_servers}")["told"]
        return told if told.strip() else self._process.errors()


@pytest.fixture(scope="module")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminTool]:
    folder = tmp_path_factory.mktemp("tool")
    (folder / "conf").mkdir()
    (folder / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9 asks for it
    home = [f"-Drocketmq.home.dir={folder}"]
    process = JavaProcess(cluster.version, "Admin", folder, options=home)
    yield AdminTool(process, cluster.name_servers)
    process.kill()


class Members:
    """Members of one group, and the bodies they got."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self.bodies: list[bytes] = []
        self.answer: ConsumeResult | Exception | None = None

    def take(self, messages: Sequence[Any], context: object) -> ConsumeResult | None:
        with self._lock:
            self.bodies += [bytes(message.body) for message in messages]
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    def one(self, way: str, instance_name: str) -> PushConsumer:
        consumer = PushConsumer(
            self._run.group,
            name_servers=self._run.cluster.name_servers,
            consume_from_where="first_offset",
            commit_interval_ms=100,
            instance_name=instance_name,
            broker_suspend_ms=1_000,  # 5.x tells of a reset by the next pull
        )
        consumer.subscribe(self._run.topic)
        getattr(consumer, way)(self.take)
        return consumer


def rows(told: str, *words: str) -> list[list[str]]:
    """Return the lines of a table that contain all of these words, split at blanks."""
    lines = [line.split() for line in told.splitlines()]
    return [line for line in lines if set(words) <= set(line)]


@pytest.mark.parametrize("way", ["orderly", "concurrently"])
def test_the_admin_tool_inspects_a_member_resets_it_and_has_it_consume(
    run: Run, admin: AdminTool, way: str
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    receipts = [run.producer.send(Message(run.topic, str(number).encode())) for number in range(20)]
    members = Members(run)
    with members.one(way, "till-1") as consumer:
        eventually(lambda: len(members.bodies) == 20, "everything")
        # Known under the name it was given.
        assert "@till-1#" in consumer.client_id
        eventually(
            lambda: rows(admin(f"consumerConnection -g {run.group}"), consumer.client_id, "PYTHON"),
            "the member is listed",
        )
        # Running info, with stacks.
        told = admin(f"consumerStatus -g {run.group} -s -i {consumer.client_id}")
        assert rows(told, "PROP_CONSUMEORDERLY", "true" if way == "orderly" else "false"), told
        assert rows(told, run.topic, "broker-a"), told
        assert "ordermq-io" in told, "its threads' stacks"
        # A message to consume directly.
        topic = "" if run.cluster.version < "5" else f"-t {run.topic} "
        asked = f"{topic}-i {receipts[3].offset_message_id} -g {run.group} -d {consumer.client_id}"
        told = admin(f"queryMsgById {asked}")
        assert "CR_SUCCESS" in told, told
        assert members.bodies.count(b"3") == 2
        assert f"order={'true' if way == 'orderly' else 'false'}" in told, told
        if way == "orderly":
            answers = (
                ("COMMIT", ConsumeResult.COMMIT),
                ("ROLLBACK", ConsumeResult.ROLLBACK),
                ("LATER", ConsumeResult.SUSPEND),
                ("THROW_EXCEPTION", ValueError("a test's own failure")),
            )
            for name, members.answer in answers:
                told = admin(f"queryMsgById {asked}")
                assert f"CR_{name}" in told, told
                assert "autoCommit=true" in told, told
            assert "a test's own failure" in told
            members.answer = None
            assert members.bodies.count(b"3") == 6
            # A queue that another member may be consuming.
            consumer.pause(receipts[3].message_queue, release=True)
            find = consumer._live()._rebalancer.find
            eventually(lambda: find(receipts[3].message_queue) is None, "released and let go")
            told = admin(f"queryMsgById {asked}")
            assert "this member does not hold the queue" in told, told
            assert members.bodies.count(b"3") == 6
            consumer.resume(receipts[3].message_queue)
            eventually(lambda: find(receipts[3].message_queue) is not None, "held again")
            # 5.x tells of a reset once, by any pull of the queue: the one that the broker still
            # held when the queue was released must be over.
            pulls = consumer.statistics["pulls"]
            eventually(lambda: consumer.statistics["pulls"] >= pulls + 4, "pulls go on")
        # A reset.
        eventually(lambda: consumer.statistics["commits"] >= 2, "4.x resets what was committed")
        before = len(members.bodies)
        told = admin(f"resetOffsetByTime -g {run.group} -t {run.topic} -s 0")
        assert len(rows(told, "broker-a", "0")) == 2, told
        eventually(lambda: len(members.bodies) == before + 20, "everything again")
