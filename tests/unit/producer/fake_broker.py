"""A broker in memory behind the calls a queue lane makes, failing as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from ordermq.clock import ManualClock
from ordermq.errors import BrokerError, ConnectionLost, OrderMQError, ProtocolError, RequestTimeout
from ordermq.model.properties import decode
from ordermq.remoting.headers import SendHeader, SendReplyHeader

# What may become of one request: (is it stored, what the producer sees).
FATES: dict[str, tuple[bool, Callable[[], OrderMQError] | None]] = {
    "stored": (True, None),
    "stored, answer lost": (True, lambda: RequestTimeout("no answer")),
    "late": (False, lambda: RequestTimeout("no answer")),  # stored when `land` is called
    "lost": (False, lambda: RequestTimeout("no answer")),
    "stored, line cut": (True, lambda: ConnectionLost("cut")),
    "line cut": (False, lambda: ConnectionLost("cut")),
    "stored, answer garbled": (True, lambda: ProtocolError("garbled")),
    "busy": (False, lambda: BrokerError("busy", response_code=2)),
    "refused": (False, lambda: BrokerError("illegal", response_code=13)),
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
    """Also the client instance of the lane: `api`, `routes`, `runtime` and `clock` are here.

    Args:
        fate: asked for each request; a name of `FATES`.
    """

    def __init__(self, fate: Callable[[], str] = lambda: "stored") -> None:
        self.api = self.routes = self.runtime = self.heartbeats = self
        self.version = 479
        self.clock = ManualClock()
        self.fate = fate
        self.stored: list[str] = []
        self.requests: list[list[str]] = []
        self.headers: list[SendHeader] = []
        self.bodies: list[bytes] = []
        self.late: list[str] = []
        self.in_flight = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.code = 0

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def master_of(self, broker_name: str) -> str:
        return "127.0.0.1:10911"

    async def version_of(self, address: str) -> int:
        return self.version

    def land(self) -> None:
        """Store what was late."""
        self.stored += self.late
        self.late = []

    async def send(
        self, address: str, header: SendHeader, body: bytes, timeout_ms: int
    ) -> tuple[int, SendReplyHeader]:
        ids = [properties["UNIQ_KEY"] for properties in members(header, body)]
        self.requests.append(ids)
        self.headers.append(header)
        self.bodies.append(body)
        self.in_flight += 1
        assert self.in_flight == 1, "two requests of one queue under way"
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        fate = self.fate()
        is_stored, error = FATES[fate]
        if fate == "late":
            self.late += ids
        first = len(self.stored)
        if is_stored:
            self.stored += ids
        if error is not None:
            raise error()
        places = ",".join(f"{first + i:032X}" for i in range(len(ids)))
        return self.code, SendReplyHeader(places, header.queue_id, first)
