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
    """An answer: messages, then a status."""

    messages: tuple[bytes, ...] = ()
    status: int = 0
    reason: str = ""


Answering = Callable[[Asked], Said | None]  # None: never


class GrpcServer(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, answering: Answering, connections: list[GrpcServer]) -> None:
        self.http2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.resets: list[int] = []
        self._answering = answering
        self._connections = connections
        self._headers: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytearray] = {}
        self._unsent: dict[int, tuple[bytearray, Said]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connections.append(self)
        self.http2.initiate_connection()
        self.write()

    def data_received(self, data: bytes) -> None:
        for event in self.http2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._headers[event.stream_id] = cast(dict[str, str], dict(event.headers))
                self._bodies[event.stream_id] = bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._bodies[event.stream_id] += event.data
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
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
        self.http2.send_headers(
            stream_id, [(":status", "200"), ("content-type", "application/grpc")]
        )
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
