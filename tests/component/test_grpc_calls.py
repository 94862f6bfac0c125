"""Calls of gRPC, at a server whose HTTP/2 is another implementation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import h2.config
import h2.connection
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RemotingError,
    RequestTimeout,
)
from ordermq.grpc.connection import GrpcConnection
from ordermq.grpc.http2 import Headers, Http2, header_block, request_head
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.dialer import Dialer
from tests.component.grpc_server import Asked, GrpcServer, Said, grpc_server

CONFIG = RemotingConfig(max_frame_bytes=4 << 20)


class Ends:
    """The ends of connections."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def on_closed(self, connection: GrpcConnection, error: Exception | None) -> None:
        self.errors.append(error)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[GrpcConnection, Ends]]:
    clock, ends = SystemClock(), Ends()
    connection = await GrpcConnection.open(address, clock, CONFIG, ends, None, Dialer(clock))
    try:
        yield connection, ends
    finally:
        await connection.close()


def run(
    answering: Callable[[Asked], Said | None],
    work: Callable[[GrpcConnection, list[GrpcServer]], Awaitable[None]],
) -> None:
    """Run `work` with a connection to a server that answers so."""

    async def begin() -> None:
        async with grpc_server(answering) as (address, servers), connected(address) as (each, _):
            await work(each, servers)

    asyncio.run(begin())


def echo(asked: Asked) -> Said:
    return Said((asked.message,))


def test_a_call_carries_its_method_metadata_and_time_and_brings_the_answer() -> None:
    seen: list[Asked] = []

    def answering(asked: Asked) -> Said:
        seen.append(asked)
        return echo(asked)

    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        metadata = header_block([("x-mq-client-id", "me"), ("long", "v" * 40_000)])
        assert await connection.unary("Heartbeat", b"ping", metadata, 30_000) == b"ping"
        assert await connection.unary("Heartbeat", b"", metadata, 30_000) == b""
        headers = seen[0].headers
        assert headers[":path"] == "/apache.rocketmq.v2.MessagingService/Heartbeat"
        assert headers[":authority"] == connection.address
        assert headers["x-mq-client-id"] == "me"
        assert headers["long"] == "v" * 40_000
        assert headers["grpc-timeout"] == "30000m"
        assert headers["content-type"] == "application/grpc"

    run(answering, work)


def test_messages_larger_than_every_window_pass_in_both_directions() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        large = bytes(range(256)) * 12_000  # 3 MB
        for _ in range(4):  # more than the window of a connection, together
            assert await connection.unary("SendMessage", large, b"", 60_000) == large

    run(echo, work)


def test_calls_at_the_same_time_get_their_own_answers() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        texts = [str(number).encode() * (number * 50) for number in range(200)]
        answers = await asyncio.gather(
            *(connection.unary("AckMessage", text, b"", 60_000) for text in texts)
        )
        assert answers == texts

    run(echo, work)


def test_a_stream_of_messages_is_read_one_by_one() -> None:
    parts = (b"a", b"", b"b" * 100_000)

    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        call = connection.call("ReceiveMessage", b"", 30_000)
        call.send(b"", is_last=True)
        found = []
        while (part := await call.receive()) is not None:
            found.append(part)
        assert tuple(found) == parts

    run(lambda asked: Said(parts), work)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (7, BrokerError, ResponseCode.NO_PERMISSION),
        (16, BrokerError, ResponseCode.NO_PERMISSION),
        (12, BrokerError, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (13, BrokerError, ResponseCode.SYSTEM_ERROR),
        (4, RequestTimeout, None),
        (14, ConnectionLost, None),
    ],
)
def test_a_status_other_than_ok_is_an_error_with_the_servers_words(
    status: int, kind: type[RemotingError], code: ResponseCode | None
) -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        with pytest.raises(kind, match="not you") as caught:
            await connection.unary("Heartbeat", b"", b"", 30_000)
        assert getattr(caught.value, "response_code", None) == code
        assert connection.is_open

    run(lambda asked: Said((), status, "not%20you"), work)


def test_a_server_that_says_nothing_loses_the_connection_and_a_slow_one_keeps_it() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        slow = asyncio.ensure_future(connection.unary("Slow", b"", b"", 1_500))
        while not slow.done():
            await connection.unary("Heartbeat", b"", b"", 30_000)
        with pytest.raises(RequestTimeout):
            await slow
        assert connection.is_open
        with pytest.raises(RequestTimeout):
            await connection.unary("Slow", b"", b"", 200)
        assert not connection.is_open
        with pytest.raises(ConnectFailed):
            await connection.unary("Heartbeat", b"", b"", 200)

    run(lambda asked: None if asked.headers[":path"].endswith("Slow") else Said((b"",)), work)


def test_a_call_that_is_cancelled_is_reset_and_the_others_go_on() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        call = connection.call("Slow", b"", None)
        call.send(b"", is_last=True)
        assert await connection.unary("Heartbeat", b"x", b"", 30_000) == b"x"
        call.cancel()
        assert await call.receive() is None
        assert await connection.unary("Heartbeat", b"y", b"", 30_000) == b"y"
        assert servers[0].resets == [call.stream_id]

    run(lambda asked: None if asked.headers[":path"].endswith("Slow") else echo(asked), work)


def test_a_server_that_goes_away_finishes_what_it_has_and_gets_nothing_new() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        call = connection.call("Heartbeat", b"", None)
        call.send(b"late")
        assert await connection.unary("Heartbeat", b"x", b"", 30_000) == b"x"
        servers[0].http2.close_connection(last_stream_id=call.stream_id)
        goaway = servers[0].http2.data_to_send()
        servers[0].transport.write(goaway)
        late = asyncio.ensure_future(call.receive())
        servers[0].transport.close()
        with pytest.raises(ConnectionLost):
            await late
        assert not connection.is_open

    run(echo, work)


def test_a_connection_that_breaks_fails_its_calls_and_tells_its_owner() -> None:
    async def begin() -> None:
        async with (
            grpc_server(lambda asked: Said() if asked.message else None) as (address, servers),
            connected(address) as (connection, ends),
        ):
            asking = asyncio.ensure_future(connection.unary("Slow", b"", b"", 30_000))
            with pytest.raises(ProtocolError):  # of an answer without a message
                await connection.unary("Empty", b"x", b"", 30_000)
            servers[0].transport.abort()
            with pytest.raises(ConnectionLost):
                await asking
            assert len(ends.errors) == 1

    asyncio.run(begin())


def test_a_message_over_the_limit_ends_its_call_only() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        with pytest.raises(ProtocolError, match="max_frame_bytes"):
            await connection.unary("Large", b"", b"", 30_000)
        assert await connection.unary("Heartbeat", b"x", b"", 30_000) == b"x"

    large = Said((bytes((4 << 20) + 1),))
    run(lambda asked: large if asked.headers[":path"].endswith("Large") else echo(asked), work)


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\0\x02\x02\x46", b""]
)
def test_a_server_of_another_protocol_is_named(greeting: bytes) -> None:
    async def begin() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            await reader.read(-1 if greeting else 1)  # name servers and brokers say nothing
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(f"127.0.0.1:{port}") as (connection, _):
            # It may have come before the call begins.
            with pytest.raises((ConnectionLost, ConnectFailed), match="8081"):
                await connection.unary("Heartbeat", b"", b"", 30_000)

    asyncio.run(begin())


class Writes(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, at: socket.socket) -> None:
        super().__init__({"socket": at})
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False


class Outcomes:
    """The outcomes of unary calls, in their order."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.errors: list[RemotingError] = []

    def answered(self, data: bytes) -> None:
        self.answers.append(data)

    def failed(self, error: RemotingError) -> None:
        self.errors.append(error)


def test_calls_that_begin_together_or_behind_answers_leave_in_one_write() -> None:
    async def work() -> None:
        clock, outcomes = SystemClock(), Outcomes()
        connection = GrpcConnection("127.0.0.1:1", clock, CONFIG, Ends())
        with socket.socket() as at:
            transport = Writes(at)
            connection.connection_made(transport)
            transport.written.clear()
            connection.cork()
            calls = [connection.ask("SendMessage", b"a", b"", 30_000, outcomes) for _ in range(3)]
            assert transport.written == []
            connection.uncork()
            assert len(transport.written) == 1
            for call in calls:
                call.cancel()
            assert (outcomes.answers, outcomes.errors) == ([], [])  # nobody is told
            # Otherwise its descriptor would stay one of those that children of a fork do not get.
            connection.connection_lost(None)

    asyncio.run(work())


def test_an_asked_message_fails_at_its_deadline_and_is_reset() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        outcomes = Outcomes()
        connection.ask("Slow", b"", b"", 50, outcomes)
        beside = connection.call("Heartbeat", b"", None)
        beside.send(b"x", is_last=True)
        assert await beside.receive() == b"x"
        while not outcomes.errors:
            assert await connection.unary("Heartbeat", b"y", b"", 30_000) == b"y"
        [error] = outcomes.errors
        assert isinstance(error, RequestTimeout)
        assert await connection.unary("Heartbeat", b"z", b"", 30_000) == b"z"
        assert len(servers[0].resets) == 1

    run(lambda asked: None if asked.headers[":path"].endswith("Slow") else echo(asked), work)


def test_a_call_waits_for_room_at_a_server_that_takes_one_at_a_time() -> None:
    async def work(connection: GrpcConnection, servers: list[GrpcServer]) -> None:
        while not servers:
            await asyncio.sleep(0)
        one = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1}
        servers[0].http2.update_settings(one)
        servers[0].write()
        assert await connection.unary("Heartbeat", b"x", b"", 30_000) == b"x"
        held = connection.call("Slow", b"", None)
        held.send(b"", is_last=True)
        assert not connection.has_room
        waiting = asyncio.ensure_future(connection.unary("Heartbeat", b"y", b"", 30_000))
        ready = asyncio.ensure_future(connection.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not ready.done()
        held.cancel()
        await ready
        assert await waiting == b"y"
        late = connection.call("Slow", b"", None)
        late.send(b"", is_last=True)
        with pytest.raises(RequestTimeout):
            await connection.unary("Heartbeat", b"z", b"", 50)

    run(lambda asked: None if asked.headers[":path"].endswith("Slow") else echo(asked), work)


class Log:
    """Events of an `Http2`."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def on_headers(self, stream_id: int, headers: Headers) -> None:
        self.events.append(("headers", stream_id, sorted(headers.items())))

    def on_data(self, stream_id: int, data: bytes) -> None:
        self.events.append(("data", stream_id, data))

    def on_stream_end(self, stream_id: int, error: str) -> None:
        self.events.append(("end", stream_id, error))

    def on_window(self, stream_id: int) -> None:
        pass

    def on_goaway(self, last_stream_id: int, reason: str) -> None:
        self.events.append(("goaway", last_stream_id, reason))


def begun() -> tuple[Http2, Log]:
    log = Log()
    http2 = Http2(log)
    for _ in range(3):
        http2.begin(request_head("/x", "host:1", is_tls=False) + header_block([("te", "trailers")]))
    return http2, log


def answers() -> bytes:
    """Return what a server sends to the calls of `begun`."""
    http2, _ = begun()
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(http2.data_to_send())
    for stream_id in (1, 3, 5):
        server.send_headers(stream_id, [(":status", "200"), ("number", str(stream_id))])
        server.send_data(stream_id, b"x" * stream_id, pad_length=stream_id)
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    server.reset_stream(3, 7)
    server.close_connection(additional_data=b"bye", last_stream_id=5)
    return bytes(server.data_to_send())


WHOLE = answers()


@given(st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_frames_are_read_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    http2, log = begun()
    edges = [0, *sorted(cuts), len(WHOLE)]
    for begin, end in itertools.pairwise(edges):
        http2.receive(WHOLE[begin:end])
    assert log.events == [
        ("headers", 1, [(":status", "200"), ("number", "1")]),
        ("data", 1, b"x"),
        ("headers", 3, [(":status", "200"), ("number", "3")]),
        ("data", 3, b"xxx"),
        ("headers", 5, [(":status", "200"), ("number", "5")]),
        ("data", 5, b"xxxxx"),
        ("headers", 1, [("grpc-status", "0")]),
        ("end", 1, ""),
        ("end", 3, "the server cut it (error 7 of HTTP/2)"),
        ("goaway", 5, "bye"),
    ]


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.binary(max_size=40))
def test_damaged_frames_are_read_or_refused_with_a_protocol_error(
    at: int, byte: int, tail: bytes
) -> None:
    http2, _ = begun()
    damaged = WHOLE[:at] + bytes((byte,)) + WHOLE[at + 1 :] + tail
    with contextlib.suppress(ProtocolError):
        http2.receive(damaged)
