"""A running RocketMQ as the tests see it: its addresses, its topics, and its parts that may die."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.bodies import TopicRoute
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.waiting import eventually as eventually

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
# A third of the usual times, as ci/interop.sh tells the brokers theirs: 20 s instead of 60 s.
LOCK_MAX_LIVE_MS = 10_000
LOCK_INTERVAL_MS = 6_000


class Cluster:
    """A name server and two masters, broker-a and broker-b; b speaks binary headers.

    Args:
        folder: where ci/rocketmq.sh runs it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version: str = json.loads((folder / "cluster.json").read_text())["version"]
        self.addresses: dict[str, str] = {}
        for line in self._script("status").splitlines():
            name, address, _ = line.split("\t")
            self.addresses[name] = address
        self.name_servers = self.addresses["name-server"]

    @property
    def proxies(self) -> str:
        """The remoting ports of its proxies."""
        found = re.search(r"^ROCKETMQ_PROXIES='(.+)'$", (self.folder / "env").read_text(), re.M)
        assert found is not None, "started without --proxy"
        return found[1]

    @property
    def has_proxy(self) -> bool:
        """True if it was started with a proxy."""
        return bool(self._grpc_ports)

    @property
    def grpc(self) -> str:
        """The endpoint of its proxy, or of the one around broker-a, as clients are given it."""
        return f"grpc://127.0.0.1:{self._grpc_ports[0]}"

    @property
    def _grpc_ports(self) -> list[int]:
        plan = json.loads((self.folder / "cluster.json").read_text())
        told = (part.get("proxy", part["settings"]) for _, part in sorted(plan["parts"].items()))
        return [each["grpcServerPort"] for each in told if "grpcServerPort" in each]

    def start(self, part: str) -> None:
        """Returns once it answers, and is known to the name server."""
        self._script("start", part)

    def stop(self, part: str) -> None:
        """End it in order: a broker saves its offsets."""
        self._script("stop", part)

    def kill(self, part: str) -> None:
        self._script("kill", part)

    def pid(self, part: str) -> int:
        """The process of a part that runs."""
        return int((self.folder / part / "pid").read_text())

    def delivered_by(self, broker: str) -> int:
        """The number of messages a broker has delivered since its start, by its own count."""
        answer = self.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return int(json.loads(answer.body)["table"]["msgGetTotalTodayNow"])

    def wait_for_topics(self, slave: str, topics: Sequence[str]) -> None:
        """Wait until a slave has asked its master for these topics: once a minute, since 5.0."""

        def are_known() -> bool:
            answer = self.ask(slave, RequestCode.GET_ALL_TOPIC_CONFIG, {})
            return all(f'"{topic}"' in answer.body.decode() for topic in topics)

        eventually(are_known, "the slave has asked its master for topics", deadline_s=90)

    def ask(self, part: str, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """One request over a connection of its own."""
        port = int(self.addresses[part].rsplit(":", 1)[1])
        with contextlib.closing(WireClient(port)) as client:
            return client.wait(client.start(code, ext, body))

    def put_topic(
        self,
        topic: str,
        brokers: dict[str, int],
        perm: int = 6,
        write: int | None = None,
        message_type: str = "",
    ) -> None:
        """Create or change a topic, and wait until the name server tells it.

        Args:
            brokers: how many queues each has, as {"broker-a": 4}.
            write: how many of them take messages; all, if None.
            message_type: of RocketMQ 5, that its proxy checks.
        """
        wanted = {}
        for broker, count in brokers.items():
            wanted[broker] = (count, count if write is None else write, perm)
            ext = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(count),
                "writeQueueNums": str(wanted[broker][1]),
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            if message_type:
                ext["attributes"] = f"+message.type={message_type}"
            answer = self.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            assert answer.code == 0, answer.remark
        eventually(lambda: self.route(topic) == wanted, f"the route of {topic} is {wanted}")

    def route(self, topic: str) -> dict[str, tuple[int, int, int]]:
        """Read queues, write queues and permission on each broker; {} if there is no route."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self.ask("name-server", RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code != 0:
            return {}
        queues = TopicRoute.from_body(answer.body).queues
        return {q.broker_name: (q.read_queue_nums, q.write_queue_nums, q.perm) for q in queues}

    def saved_offsets(self, broker: str, group: str) -> dict[str, dict[int, int]]:
        """Return the group's offsets by topic and queue, as last saved to the broker's disk."""
        file = self.folder / broker / "store" / "config" / "consumerOffset.json"
        # It writes each in its place, and at its start takes the second if the first is not whole.
        for each in (file, file.with_suffix(".json.bak")):
            text = each.read_text() if each.exists() else ""
            # Java writes the queue ids bare, which is no JSON.
            text = re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text)
            with contextlib.suppress(json.JSONDecodeError):
                return _offsets_of(json.loads(text)["offsetTable"], group)
        return {}

    def stored(self, queue: MessageQueue, offset_message_id: str) -> StoredMessage:
        """Return the stored message of a broker's message id."""
        offset = str(int(offset_message_id[16:], 16))
        ext = {"topic": queue.topic, "offset": offset}
        answer = self.ask(queue.broker_name, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        assert answer.code == 0, answer.remark
        return StoredMessage.read(answer.body)

    def _script(self, command: str, *arguments: str) -> str:
        line = ["ci/rocketmq.sh", command, self.version, f"--folder={self.folder}", *arguments]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, f"{' '.join(line)}\n{done.stderr}"
        return done.stdout


def _offsets_of(table: dict[str, dict[str, int]], group: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for place, offsets in table.items():
        topic, _, of_group = place.partition("@")
        if of_group == group:
            found[topic] = {int(queue): offset for queue, offset in offsets.items()}
    return found
