"""A broker in memory behind the connection a queue sender uses, failing as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from ordermq.client.broker_api import BrokerApi
from ordermq.clock import ManualClock
from ordermq.config import RemotingConfig
from ordermq.errors import ConnectFailed, ConnectionLost, RemotingError, RequestTimeout
from ordermq.model.properties import decode
from ordermq.producer.queue_sender import FailedKeys
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.headers import SendHeader, SendReplyHeader
from ordermq.remoting.response_futures import ResponseFuture

SYSTEM_ERROR, BUSY, ILLEGAL, GARBLED = 1, 2, 13, -1

# Fates of one request: (is it stored, how it ends without an answer, or the answer's
# code if it is not success).
FATES: dict[str, tuple[bool, Callable[[], RemotingError] | int | None]] = {
    "stored": (True, None),
    "stored, answer lost": (True, lambda: RequestTimeout("no answer")),
    "late": (False, lambda: RequestTimeout("no answer")),  # stored when `land` is called
    "lost": (False, lambda: RequestTimeout("no answer")),
    "stored, line cut": (True, lambda: ConnectionLost("cut")),
    "line cut": (False, lambda: ConnectionLost("cut")),
    "stored, answer garbled": (True, GARBLED),
    "unreachable": (False, lambda: ConnectFailed("away")),
    "busy": (False, BUSY),
    "refused": (False, ILLEGAL),
}


def members(header: SendHeader, body: bytes) -> list[dict[str, str]]:
    """The properties of every message of a request."""
    if not header.batch:
        return [decode(header.properties)]
    found, at = [], 0
    while at < len(body):
        size, magic, crc, _, body_size = struct.unpack_from(">iiiii", body, at)
        assert (magic, crc) == (0, 0)
        (length,) = struct.unpack_from(">h", body, at + 20 + body_size)
        start = at + 22 + body_size
        assert size == 22 + body_size + length
        found.append(decode(body[start : start + length].decode()))
        at += size
    return found


class FakeBroker:
    """Also the client session of the sender: `routes`, `runtime`, `clock` and connections.

    Args:
        fate: asked for each request; a name of `FATES`.
        is_writable: asked before each request; if it says no, the sender has to wait.
    """

    def __init__(
        self,
        fate: Callable[[], str] = lambda: "stored",
        is_writable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.api = BrokerApi(self, RemotingConfig(), "client")  # type: ignore[arg-type]
        self.routes = self.runtime = self.heartbeats = self
        self.version = 479
        self.clock = ManualClock()
        self.client_id = "me"
        self.fate = fate
        self.is_writable = is_writable
        self.stored: list[str] = []
        self.requests: list[list[str]] = []
        self.headers: list[SendHeader] = []
        self.bodies: list[bytes] = []
        self.late: list[str] = []
        self.in_flight = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.code = 0
        self.max_body_bytes = 1 << 24  # of a request, as RocketMQ's maxMessageSize
        self.acknowledged: int | None = None  # how many messages an answer names, if not all
        self.failed_keys = FailedKeys()
        self.failures: list[str] = []  # reported
        self.oneway: list[list[str]] = []
        self._serving: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(action, *arguments)

    def master_of(self, broker_name: str) -> str:
        return "127.0.0.1:10911"

    def doubt_route(self, topic: str) -> None:
        """The route stays as it is."""

    def report_failure(
        self, broker_name: str, action: str, error: Exception, *, meanwhile: str = "retrying"
    ) -> None:
        self.failures.append(f"{broker_name}: {action} failed; {meanwhile}")

    async def version_of(self, address: str) -> int:
        return self.version

    def land(self) -> None:
        """Store what was late."""
        self.stored += self.late
        self.late = []

    # Its connections, and the one of each.

    def writable_now(self, address: str) -> FakeBroker | None:
        return self if self.is_writable() else None

    async def writable(self, address: str) -> FakeBroker:
        await asyncio.sleep(0)
        return self

    def explained(self, answer: Command) -> Command:
        return answer

    def frame(self, command: Command) -> bytes:
        return encode(command)

    def send_oneway(self, command: Command) -> None:
        header = SendHeader.from_ext(command.ext)
        ids = [properties["UNIQ_KEY"] for properties in members(header, command.body)]
        assert self.in_flight == 0, "a one-way request overtakes one in flight"
        self.oneway.append(ids)
        self.headers.append(header)
        self.stored += ids

    def ask(self, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int) -> bool:
        (request,) = Framer().feed(frame)
        header, body = SendHeader.from_ext(request.ext), request.body
        assert request.opaque == opaque
        assert (request.code == RequestCode.SEND_BATCH_MESSAGE) is bool(header.batch)
        ids = [properties["UNIQ_KEY"] for properties in members(header, body)]
        self.requests.append(ids)
        self.headers.append(header)
        self.bodies.append(body)
        self.in_flight += 1
        waiting.is_asked = True
        assert self.in_flight == 1, "two requests of one queue under way"
        work = self._serve(ids, header, len(body), waiting)
        serving = asyncio.get_running_loop().create_task(work)
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        return True

    def _too_large(self, header: SendHeader) -> Command:
        # As RocketMQ 5.5.0 words it, of one message and of several.
        if not header.batch:
            return Command(ILLEGAL, remark=f"msg body length limit {self.max_body_bytes}B, msg")
        return Command(SYSTEM_ERROR, remark="RuntimeException: message body size exceeded, at")

    async def _serve(
        self, ids: list[str], header: SendHeader, size: int, waiting: ResponseFuture
    ) -> None:
        await self.gate.wait()
        await asyncio.sleep(0)
        self.in_flight -= 1
        if size > self.max_body_bytes:
            waiting.answered(self._too_large(header))
            return
        fate = self.fate()
        is_stored, ending = FATES[fate]
        if fate == "late":
            self.late += ids
        first = len(self.stored)
        if is_stored:
            self.stored += ids
        if ending == GARBLED:
            waiting.answered(Command(self.code, {"queueId": "3"}))
        elif isinstance(ending, int):
            waiting.answered(Command(ending, remark="no"))
        elif ending is not None:
            waiting.failed(ending())
        else:
            count = self.acknowledged or len(ids)
            places = ",".join(f"{first + i:032X}" for i in range(count))
            reply = SendReplyHeader(places, header.queue_id, first)
            waiting.answered(Command(self.code, reply.to_ext()))
