"""A client of the remoting protocol as small as possible: one blocking socket, our framing."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ordermq.clock import ManualClock
from ordermq.model import properties as props
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import (
    ConsumerData,
    Heartbeat,
    LockBatch,
    client_ids_from_body,
    locked_queues_from_body,
)
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, Framer, encode
from ordermq.remoting.headers import (
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    SendHeader,
    UpdateOffsetHeader,
)

DEADLINE_S = 10.0
BROKER = "embedded"


def queue_table(body: bytes) -> dict[str, Any]:
    """A body with a table by message queue, which is no JSON: its names are objects."""
    quoted = re.sub(
        rb"([{,])(\{[^{}]*\}):", lambda m: m[1] + json.dumps(m[2].decode()).encode() + b":", body
    )
    found: dict[str, Any] = json.loads(quoted)
    return found


class WireClient:
    """Sends requests and reads what comes back; every wait has a deadline."""

    def __init__(self, port: int, name: str = "client-1") -> None:
        self.name = name
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._framer = Framer()
        self._answers: dict[int, Command] = {}
        self._requests: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Frames

    def start(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", flag: int = 0
    ) -> Command:
        """Send a request without waiting."""
        request = Command.request(code, ext, body)
        request.flag = flag
        self.socket.sendall(encode(request))
        return request

    def wait(self, request: Command, clock: ManualClock | None = None) -> Command:
        """The answer to a started request.

        Args:
            clock: ticks until the answer is there. A timer of the broker may read the clock
                just before the test moves it and lie down just after; some tick wakes it.
        """
        deadline = time.monotonic() + DEADLINE_S
        while request.opaque not in self._answers:
            self._read(deadline, clock)
        return self._answers.pop(request.opaque)

    def call(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        return self.wait(self.start(code, ext, body))

    def notice(self, clock: ManualClock | None = None) -> Command:
        """The next request the broker makes of us; `clock` as in `wait`."""
        deadline = time.monotonic() + DEADLINE_S
        while not self._requests:
            self._read(deadline, clock)
        return self._requests.pop(0)

    def notices(self) -> list[Command]:
        """Requests of the broker so far: everything sent before the answer to this call."""
        self.round_trip()
        found, self._requests = self._requests, []
        return found

    def answers(self) -> list[Command]:
        """Answers that nobody waited for."""
        found, self._answers = list(self._answers.values()), {}
        return found

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; False at the deadline."""
        with contextlib.suppress(ConnectionError):
            while True:
                try:
                    data = self.socket.recv(65_536)
                except TimeoutError:
                    return False
                if not data:
                    return True
        return True

    def has_answer(self, request: Command) -> bool:
        """True if the answer came before that of a request sent now."""
        self.round_trip()
        return request.opaque in self._answers

    def round_trip(self) -> None:
        """Wait for an answer to a request sent now: what came before it is read then."""
        self.call(RequestCode.GET_BROKER_CLUSTER_INFO)

    def _read(self, deadline: float, clock: ManualClock | None = None) -> None:
        left = max(deadline - time.monotonic(), 0.001)
        self.socket.settimeout(left if clock is None else 0.01)
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            if clock is None or time.monotonic() > deadline:
                raise
            clock.advance(100)
            return
        if not data:
            raise ConnectionError("the broker closed the connection")
        for command in self._framer.feed(data):
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self._requests.append(command)

    # Requests

    def create_topic(self, topic: str, queues: int) -> None:
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }  # fmt: skip
        assert self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0

    def start_send(
        self,
        topic: str,
        body: bytes = b"x",
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Command:
        header = SendHeader(
            "producers", topic, queue_id, properties=props.encode(properties or {}), **fields
        )
        return self.start(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)

    def send(self, topic: str, body: bytes = b"x", queue_id: int = 0, **more: Any) -> Command:
        return self.wait(self.start_send(topic, body, queue_id, **more))

    def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> Command:
        header = SendHeader("producers", topic, queue_id, batch=True)
        body = batch_body(bodies, props.encode(properties or {}).encode())
        return self.call(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), body)

    def start_pull(
        self,
        topic: str,
        offset: int,
        queue_id: int = 0,
        *,
        group: str = "group",
        count: int = 32,
        suspend_ms: int = 0,
        tags: str | None = "*",
        **fields: Any,
    ) -> Command:
        flag = (2 if suspend_ms else 0) | (4 if tags is not None else 0)
        header = PullHeader(
            group, topic, queue_id, offset, count, flag | fields.pop("flag", 0),
            suspend_timeout_ms=suspend_ms, subscription=tags, **fields,
        )  # fmt: skip
        return self.start(RequestCode.PULL_MESSAGE, header.to_ext())

    def pull(self, topic: str, offset: int, queue_id: int = 0, **more: Any) -> Command:
        return self.wait(self.start_pull(topic, offset, queue_id, **more))

    def heartbeat(
        self,
        group: str,
        topics: Mapping[str, str],
        version: int = 1,
        name: str | None = None,
        **more: Any,
    ) -> Command:
        wanted = tuple(Subscription.parse(t, tags, version) for t, tags in topics.items())
        beat = Heartbeat(name or self.name, (ConsumerData(group, wanted, **more),))
        return self.call(RequestCode.HEART_BEAT, body=beat.to_body())

    def members(self, group: str) -> list[str]:
        answer = self.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        return client_ids_from_body(answer.body) if answer.code == 0 else []

    def lock(self, group: str, topic: str, *queue_ids: int, name: str | None = None) -> Command:
        return self._locks(RequestCode.LOCK_BATCH_MQ, group, topic, queue_ids, {"omqEpochs": "1"},
                           name)  # fmt: skip

    def unlock(
        self, group: str, topic: str, *queue_ids: int, epochs: str = "", name: str | None = None
    ) -> Command:
        ext = {"omqEpochs": epochs} if epochs else {}
        return self._locks(RequestCode.UNLOCK_BATCH_MQ, group, topic, queue_ids, ext, name)

    def _locks(
        self,
        code: int,
        group: str,
        topic: str,
        queue_ids: Sequence[int],
        ext: Mapping[str, str],
        name: str | None,
    ) -> Command:
        queues = tuple(MessageQueue(topic, BROKER, number) for number in queue_ids)
        return self.call(code, ext, LockBatch(group, name or self.name, queues).to_body())

    def start_commit(
        self, group: str, topic: str, offset: int, queue_id: int = 0, *, oneway: bool = False,
        **fields: Any,
    ) -> Command:  # fmt: skip
        header = UpdateOffsetHeader(group, topic, queue_id, offset, **fields)
        flag = ONEWAY_FLAG if oneway else 0
        return self.start(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext(), flag=flag)

    def commit(
        self, group: str, topic: str, offset: int, queue_id: int = 0, **more: Any
    ) -> Command:
        return self.wait(self.start_commit(group, topic, offset, queue_id, **more))

    def committed(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        header = QueryOffsetHeader(group, topic, queue_id, set_zero_if_not_found=False)
        answer = self.call(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        return int(answer.ext["offset"]) if answer.code == 0 else None

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        answer = self.call(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue_id).to_ext())
        return int(answer.ext["offset"])

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        answer = self.call(RequestCode.GET_MIN_OFFSET, QueueHeader(topic, queue_id).to_ext())
        return int(answer.ext["offset"])


def batch_body(bodies: Sequence[bytes], properties: bytes = b"") -> bytes:
    """A batch as clients write it (docs/internals/protocol.md#batch-body)."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for body in bodies
    )


def records(body: bytes) -> list[StoredMessage]:
    """The stored records of a pull answer."""
    found, at = [], 0
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        found.append(StoredMessage.read(body[at : at + size]))
        at += size
    return found


def epochs(answer: Command) -> list[int]:
    """The epochs of a lock answer."""
    text = answer.ext.get("omqEpochs", "")
    return [int(part) for part in text.split(",")] if text else []


def locked(answer: Command) -> list[int]:
    """The queue ids of a lock answer."""
    return [queue.queue_id for queue in locked_queues_from_body(answer.body)]
