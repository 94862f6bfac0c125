"""A gRPC server for tests: its HTTP/2 is h2's, another one than the client's."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple, cast

import h2.config
import h2.connection
import h2.errors
import h2.events


class Asked(NamedTuple):
    """A request, as the server got it."""

    headers: dict[str, str]
    message: bytes


class Said(NamedTuple):
    """An answer: messages, then a status.

    Args:
        delay_s: how long it is held.
        goes_on: the client's next message of the call is answered, too, and the status comes never.
    """

    messages: tuple[bytes, ...] = ()
    status: int = 0
    reason: str = ""
    delay_s: float = 0.0
    goes_on: bool = False


_STREAMS = "/Telemetry"  # the one call of clients that has many messages
Answering = Callable[[Asked], Said | None]  # None: never


class GrpcServer(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, answering: Answering, connections: list[GrpcServer]) -> None:
        self.http2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.is_open = False
        self.resets: list[int] = []
        self._answering = answering
        self._connections = connections
        self._headers: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytearray] = {}
        self._unsent: dict[int, tuple[bytearray, Said]] = {}
        self._open_calls: set[int] = set()  # those whose answer goes on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.append(self)
        self.is_open = True
        self.http2.initiate_connection()
        self.write()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False

    def data_received(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._headers[event.stream_id] = cast(dict[str, str], dict(event.headers))
                self._bodies[event.stream_id] = bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._bodies[event.stream_id] += event.data
                if self._headers[event.stream_id][":path"].endswith(_STREAMS):
                    self._answer_next(event.stream_id)
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                if event.stream_id in self._open_calls:
                    continue
                self._answer(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets.append(event.stream_id)
                self._unsent.pop(event.stream_id, None)
        for stream_id in list(self._unsent):
            self._send(stream_id)
        self.write()

    def write(self) -> None:
        self.transport.write(self.http2.data_to_send())

    def _answer(self, stream_id: int) -> None:
        body = bytes(self._bodies.pop(stream_id))
        assert body[0] == 0
        assert int.from_bytes(body[1:5], "big") == len(body) - 5
        said = self._answering(Asked(self._headers.pop(stream_id), body[5:]))
        if said is None:
            return
        if said.delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(said.delay_s, self._say_late, stream_id, said)
        else:
            self._say(stream_id, said)

    def _answer_next(self, stream_id: int) -> None:
        """Answer the messages of a call that are there so far."""
        body = self._bodies[stream_id]
        while len(body) >= 5 and len(body) >= (end := 5 + int.from_bytes(body[1:5], "big")):
            asked = Asked(self._headers[stream_id], bytes(body[5:end]))
            del body[:end]
            if (said := self._answering(asked)) is not None:
                self._say(stream_id, said)

    def _say_late(self, stream_id: int, said: Said) -> None:
        if stream_id not in self.resets and not self.transport.is_closing():
            self._say(stream_id, said)
            self._send(stream_id)
            self.write()

    def _say(self, stream_id: int, said: Said) -> None:
        if stream_id not in self._open_calls:
            self.http2.send_headers(
                stream_id, [(":status", "200"), ("content-type", "application/grpc")]
            )
        if said.goes_on:
            self._open_calls.add(stream_id)
        data = bytearray()
        for message in said.messages:
            data += b"\0" + len(message).to_bytes(4, "big") + message
        self._unsent[stream_id] = data, said

    def _send(self, stream_id: int) -> None:
        data, said = self._unsent[stream_id]
        http2 = self.http2
        while data:
            size = min(
                http2.local_flow_control_window(stream_id), http2.max_outbound_frame_size, len(data)
            )
            if not size:
                return
            http2.send_data(stream_id, bytes(data[:size]))
            del data[:size]
        del self._unsent[stream_id]
        if said.goes_on:
            return
        trailers = [("grpc-status", str(said.status)), ("grpc-message", said.reason)]
        http2.send_headers(stream_id, trailers, end_stream=True)


@contextlib.asynccontextmanager
async def grpc_server(
    answering: Answering, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[GrpcServer]]]:
    """Yield the address of a server, and its connections so far."""
    connections: list[GrpcServer] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: GrpcServer(answering, connections), "127.0.0.1", 0, ssl=tls
    )
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        for connection in connections:
            connection.transport.abort()
        await server.wait_closed()


@contextlib.contextmanager
def grpc_server_thread(answering: Answering) -> Iterator[str]:
    """Yield the address of a server that runs on a thread of its own."""
    address: queue.Queue[str] = queue.Queue()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with grpc_server(answering) as (found, _):
            address.put(found)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.get(timeout=20.0)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
