"""A connection against a server whose answers the test decides."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from typing import NoReturn

import pytest

from ordermq.clock import ManualClock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.config.checks import join_address, split_address
from ordermq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
)
from ordermq.remoting.command import Command, Serialization, encode
from ordermq.remoting.connecting import connect_failed
from ordermq.remoting.connection import Connection
from ordermq.remoting.dialer import Dialer
from ordermq.remoting.response_futures import ResponseFuture

from .wire_server import Line, WireServer, run, until

CONFIG = RemotingConfig()


class Owner:
    """Keeps what a connection tells its owner."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.closed: list[Exception | None] = []

    def on_request(self, connection: Connection, command: Command) -> None:
        self.requests.append(command)
        if not command.is_oneway:
            connection.respond(command, command.reply(0, {"told": "yes"}))

    def on_closed(self, connection: Connection, error: Exception | None) -> None:
        self.closed.append(error)


def silent(line: Line, command: Command) -> None:
    """A server that never answers."""


def echo(line: Line, command: Command) -> None:
    line.send(command.reply(0, dict(command.ext), command.body))


async def connect(server: WireServer, owner: Owner | None = None) -> Connection:
    return await Connection.open(server.address, SystemClock(), CONFIG, owner or Owner())


def test_answers_out_of_order_reach_their_own_requests() -> None:
    async def work() -> None:
        held: list[Command] = []

        def in_reverse(line: Line, command: Command) -> None:
            held.append(command)
            if len(held) == 3:
                for request in reversed(held):
                    line.send(request.reply(0, dict(request.ext)))

        async with WireServer(in_reverse) as server:
            connection = await connect(server)
            answers = await asyncio.gather(
                *(connection.request(Command.request(1, {"n": str(n)}), 5_000) for n in range(3))
            )
            assert [answer.ext["n"] for answer in answers] == ["0", "1", "2"]
            await connection.close()

    run(work())


def test_a_request_without_response_times_out_and_an_active_connection_is_kept() -> None:
    async def work() -> None:
        def answer_only_pings(line: Line, command: Command) -> None:
            if command.code == 2:
                echo(line, command)

        clock = ManualClock()
        async with WireServer(answer_only_pings) as server:
            owner = Owner()
            connection = await Connection.open(server.address, clock, CONFIG, owner)
            lost = connection.begin_request(Command.request(1), 1_000)
            await connection.request(Command.request(2), 5_000)
            clock.advance(999)
            await until(lambda: not lost.done())
            for _ in range(5):
                await asyncio.sleep(0)
            assert not lost.done()
            clock.advance(1_100)
            with pytest.raises(RequestTimeout, match="outcome is unknown"):
                await lost
            assert connection.is_open
            assert (await connection.request(Command.request(2, body=b"x"), 5_000)).body == b"x"
            await connection.close()
            assert owner.closed == [None]

    run(work())


def test_a_connection_silent_until_a_time_out_is_cut_for_all_its_requests() -> None:
    async def work() -> None:
        clock, owner = ManualClock(), Owner()
        async with WireServer(silent) as server:
            connection = await Connection.open(server.address, clock, CONFIG, owner)
            short = connection.begin_request(Command.request(1), 1_000)
            long = connection.begin_request(Command.request(11), 30_000)
            await until(lambda: len(server.requests) == 2)
            clock.advance(1_001)
            with pytest.raises(RequestTimeout):
                await short
            with pytest.raises(ConnectionLost, match="no response in time"):
                await long
            assert not connection.is_open
            assert len(owner.closed) == 1
            assert isinstance(owner.closed[0], RequestTimeout)

    run(work())


async def let_pass(clock: ManualClock, seconds: int) -> None:
    """So long, a tick of the expiry after the other."""
    for _ in range(10 * seconds):
        clock.advance(100)
        for _ in range(5):
            await asyncio.sleep(0)


def test_a_frame_that_never_completes_ends_the_connection_despite_other_bytes() -> None:
    """Its length is wrong: every later answer is swallowed as a part of it."""

    async def work() -> None:
        def answer_into_a_large_frame(line: Line, command: Command) -> None:
            if command.code == 1:
                line.send_bytes((8_000_000).to_bytes(4, "big") + bytes(4))
            line.send(command.reply(0))

        clock, owner = ManualClock(), Owner()
        async with WireServer(answer_into_a_large_frame) as server:
            connection = await Connection.open(server.address, clock, CONFIG, owner)
            asked = [connection.begin_request(Command.request(1), 600_000)]
            for _ in range(3):
                await let_pass(clock, 9)
                asked.append(connection.begin_request(Command.request(2), 600_000))
                await until(lambda: len(server.requests) == len(asked))
            assert connection.is_open
            await let_pass(clock, 14)
            for waiting in asked:
                with pytest.raises(ConnectionLost, match="frame is incomplete after 30 s"):
                    await waiting
            assert not connection.is_open

    run(work())


def test_such_a_frame_ends_the_connection_of_requests_that_time_out_one_by_one() -> None:
    async def work() -> None:
        def answer_into_a_large_frame(line: Line, command: Command) -> None:
            line.send_bytes((8_000_000).to_bytes(4, "big") + bytes(4))
            line.send(command.reply(0))

        clock, owner = ManualClock(), Owner()
        async with WireServer(answer_into_a_large_frame) as server:
            connection = await Connection.open(server.address, clock, CONFIG, owner)
            deadline_ms = clock.now_ms() + 60_000
            while connection.is_open and clock.now_ms() < deadline_ms:
                before = connection._heard_bytes
                asked = connection.begin_request(Command.request(1), 2_000)
                await until(lambda before=before: connection._heard_bytes > before)
                await let_pass(clock, 4)  # from the second on nobody looks at the connection
                with pytest.raises((RequestTimeout, ConnectionLost)):
                    await asked
            await until(lambda: bool(owner.closed))
            (cause,) = owner.closed
            assert "frame is incomplete after 30 s" in str(cause)
            assert len(server.requests) > 2

    run(work())


@pytest.mark.parametrize(
    ("before_halves_s", "rest_s"),
    [
        pytest.param((25, 25), 0, id="each half in time"),
        pytest.param((0, 1), 60, id="after a rest in which nothing was looked at"),
    ],
)
def test_a_slow_frame_is_awaited(before_halves_s: tuple[int, int], rest_s: int) -> None:
    async def work() -> None:
        def nothing_yet(line: Line, command: Command) -> None:
            frames.append(encode(command.reply(0, {}, b"x" * 100)))

        frames: list[bytes] = []
        clock, owner = ManualClock(), Owner()
        async with WireServer(nothing_yet) as server:
            connection = await Connection.open(server.address, clock, CONFIG, owner)
            for _ in range(2):
                asked = connection.begin_request(Command.request(1), 600_000)
                await until(lambda: bool(frames))
                frame = frames.pop()
                halves = frame[:50], frame[50:]
                for before_s, half in zip(before_halves_s, halves, strict=True):
                    await let_pass(clock, before_s)
                    assert connection.is_open
                    server.lines[0].send_bytes(half)
                assert len((await asked).body) == 100
                await let_pass(clock, rest_s)
            await connection.close()

    run(work())


def test_a_late_response_is_dropped() -> None:
    async def work() -> None:
        clock = ManualClock()
        async with WireServer(silent) as server:
            connection = await Connection.open(server.address, clock, CONFIG, Owner())
            late = connection.begin_request(Command.request(1), 1_000)
            await until(lambda: len(server.requests) == 1)
            # A byte of something else keeps the line from being taken for dead.
            server.lines[0].send(Command(40, flag=2, opaque=99))
            await until(lambda: connection._heard_bytes > 0)
            clock.advance(1_100)
            with pytest.raises(RequestTimeout):
                await late
            server.lines[0].send(server.requests[0].reply(0))
            next_one = connection.begin_request(Command.request(2), 1_000)
            await until(lambda: len(server.requests) == 2)
            server.lines[0].send(server.requests[1].reply(7))
            assert (await next_one).code == 7
            await connection.close()

    run(work())


def test_malformed_bytes_close_the_connection_and_are_the_cause_pending_requests_see() -> None:
    async def work() -> None:
        def garbage(line: Line, command: Command) -> None:
            line.send_bytes(b"\x00\x00\x00\x08\x07\x00\x00\x00oops")

        async with WireServer(garbage) as server:
            owner = Owner()
            connection = await connect(server, owner)
            with pytest.raises(ConnectionLost, match="serialization 7") as caught:
                await connection.request(Command.request(1), 5_000)
            assert isinstance(caught.value.__cause__, ProtocolError)
            assert [type(error) for error in owner.closed] == [ProtocolError]

    run(work())


def test_a_response_before_malformed_bytes_in_one_read_is_delivered() -> None:
    async def work() -> None:
        def answer(line: Line, command: Command) -> None:
            if command.code == 2:
                garbage = b"\x00\x00\x00\x08\x07\x00\x00\x00oops"
                line.send_bytes(encode(command.reply(7)) + garbage)

        async with WireServer(answer) as server:
            connection = await connect(server)
            lost = connection.begin_request(Command.request(1), 5_000)
            answered = connection.begin_request(Command.request(2), 5_000)
            assert (await answered).code == 7
            with pytest.raises(ConnectionLost, match="serialization 7"):
                await lost

    run(work())


def test_a_connection_closed_by_the_peer_fails_the_pending_requests() -> None:
    async def work() -> None:
        async with WireServer(lambda line, command: line.cut()) as server:
            connection = await connect(server)
            with pytest.raises(ConnectionLost) as caught:
                await connection.request(Command.request(1), 5_000)
            assert caught.value.address == server.address
            with pytest.raises(ConnectFailed, match="connection is closed"):
                await connection.request(Command.request(1), 5_000)
            with pytest.raises(ConnectFailed, match="connection is closed"):
                connection.send_oneway(Command.request(1))

    run(work())


def test_closing_fails_the_pending_requests() -> None:
    async def work() -> None:
        async with WireServer(silent) as server:
            connection = await connect(server)
            waiting = connection.begin_request(Command.request(1), 5_000)
            await connection.close()
            await connection.close()
            with pytest.raises(ConnectionLost):
                await waiting

    run(work())


def test_a_oneway_request_goes_out_marked_and_awaits_nothing() -> None:
    async def work() -> None:
        async with WireServer(silent) as server:
            connection = await connect(server)
            connection.send_oneway(Command.request(15, {"topic": "T"}))
            await until(lambda: bool(server.requests))
            assert server.requests[0].is_oneway
            await connection.close()

    run(work())


def test_a_request_of_the_peer_is_passed_on_and_answered() -> None:
    async def work() -> None:
        answers: list[Command] = []

        def notify_first(line: Line, command: Command) -> None:
            if command.is_response:
                answers.append(command)
            else:
                # The peer's numbers are its own: the same opaque is another request.
                line.send(Command(40, {"consumerGroup": "G"}, opaque=command.opaque))
                echo(line, command)

        async with WireServer(notify_first) as server:
            owner = Owner()
            connection = await connect(server, owner)
            request = Command.request(1, body=b"mine")
            assert (await connection.request(request, 5_000)).body == b"mine"
            await until(lambda: bool(answers))
            assert [command.code for command in owner.requests] == [40]
            assert (answers[0].opaque, answers[0].ext) == (request.opaque, {"told": "yes"})
            await connection.close()

    run(work())


def test_a_request_that_cannot_be_encoded_leaves_nothing_pending() -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            connection = await connect(server)
            with pytest.raises(TypeError):
                connection.begin_request(Command.request(1, {"key": "\ud800"}), 5_000)
            assert connection._pending.end() == []
            await connection.close()

    run(work())


def test_a_cancelled_caller_does_not_disturb_the_others() -> None:
    async def work() -> None:
        async with WireServer(silent) as server:
            connection = await connect(server)
            given_up = asyncio.ensure_future(connection.request(Command.request(1), 5_000))
            kept = connection.begin_request(Command.request(2), 5_000)
            await until(lambda: len(server.requests) == 2)
            given_up.cancel()
            await asyncio.sleep(0)
            for request in server.requests:
                server.lines[0].send(request.reply(0))
            assert (await kept).code == 0
            await connection.close()

    run(work())


class Chain(ResponseFuture):
    """Asks again as it is answered, and wants to be called when that is out."""

    def __init__(self, connection: Connection, told: list[str]) -> None:
        self.code = 11
        self._connection = connection
        self._told = told

    @property
    def is_over(self) -> bool:
        return False

    def answered(self, command: Command) -> None:
        self._told.append("answer")
        request = Command.request(11)
        self._connection.ask(request.opaque, encode(request), self, 5_000)
        self._connection.after_read(lambda: self._told.append("after"))

    def failed(self, error: Exception) -> None:
        self._told.append("failed")


class Wire(asyncio.Transport):
    """Notes what is written."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        self._told.append("write")


def test_requests_caused_by_responses_of_one_read_are_sent_in_one_write_first() -> None:
    async def work() -> None:
        told: list[str] = []
        connection = Connection("x:1", ManualClock(), CONFIG, Owner())
        connection.connection_made(Wire(told))
        requests = [Command.request(11), Command.request(11)]
        for request in requests:
            connection.ask(request.opaque, encode(request), Chain(connection, told), 5_000)
        assert told == ["write", "write"]  # each left where it was asked
        told.clear()
        connection.data_received(b"".join(encode(request.reply(0)) for request in requests))
        assert told == ["answer", "answer", "write", "after", "after"]
        connection.connection_lost(None)

    run(work())


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_process_without_descriptors_is_told_so_and_no_server_accused(is_tls: bool) -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    dialer = Dialer(SystemClock())
    told = str(connect_failed(error, "127.0.0.1:9876", dialer, is_tls=is_tls))
    assert "Too many open files" in told
    assert "ulimit -n" in told
    assert "server" not in told


def test_a_refused_connect_names_the_address_and_the_remedy() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        async def work() -> None:
            await Connection.open(address, SystemClock(), CONFIG, Owner())

        with pytest.raises(
            ConnectFailed, match=r"cannot connect: .*check that the server is running"
        ) as it:
            run(work())
        assert it.value.address == address
        assert isinstance(it.value, ConnectionError)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        ("[::1]:1", "::1", 1),
        ("::1:10911", "::1", 10911),  # as Java prints it
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        (" broker-a:65535 ", "broker-a", 65535),
        ("broker-a.local.:1", "broker-a.local.", 1),
        ("bröker:1", "bröker", 1),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":9876",
        "host:0",
        "host:-1",
        "host:65536",
        "host:x",
        f"host:{'9' * 5_000}",
        "null:null",
        "[]:1",
        "[::1:1",
        "fe80::1",
        "[host:1",
        "a b:1",
        "a..b:1",
        "a..:1",
        ".:1",
        "ö..b:1",
        f"{'a' * 64}:1",
        f"b.{'a' * 64}:1",
        f"{'ö' * 64}:1",
        "a\0b:1",
        "http://host:1",
    ],
)
def test_any_other_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        split_address(text)


def test_headers_are_binary_where_the_settings_say_so_and_the_code_fits() -> None:
    async def work() -> None:
        heard: list[Command] = []

        def keep(line: Line, command: Command) -> None:
            heard.append(command)
            line.send(command.reply(0, dict(command.ext)))

        config = RemotingConfig(serialize_type="rocketmq", namespace="shop")
        async with WireServer(keep) as server:
            connection = await Connection.open(server.address, SystemClock(), config, Owner())
            for code in (105, 200_050):
                answer = await connection.request(Command.request(code, {"topic": "订单"}), 5_000)
                assert answer.ext == {"topic": "shop%订单"}
            await connection.close()
        assert [(command.code, command.serialization) for command in heard] == [
            (105, Serialization.ROCKETMQ),
            (200_050, Serialization.JSON),
        ]

    run(work())


def test_a_server_that_hangs_up_as_soon_as_it_has_accepted_is_not_connected_to() -> None:
    class Reset(Dialer):
        async def open(self, host: str, port: int) -> socket.socket:
            opened = await super().open(host, port)
            accepted, _ = server.accept()
            # Reset, not ended: as of a process that is killed with what it has not read.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            sockets.append(opened)
            return opened

    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = join_address(*server.getsockname())
        clock = SystemClock()

        async def work() -> None:
            with pytest.raises(ConnectFailed, match="cannot connect: "):
                await Connection.open(address, clock, CONFIG, Owner(), dialer=Reset(clock))

        run(work())
    assert sockets[0].fileno() == -1  # closed, and not left to whoever collects it


def test_a_connection_that_finds_no_file_descriptor_is_not_made() -> None:
    def none_left(connection: object, transport: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def work() -> None:
        owner = Owner()
        async with WireServer(echo) as server:
            with pytest.raises(ConnectFailed, match=r"cannot connect: .*Too many open files"):
                await Connection.open(
                    server.address, SystemClock(), CONFIG, owner, reading_of=none_left
                )
            connection = await connect(server, owner)  # as soon as there is one
            assert (await connection.request(Command.request(1), 5_000)).code == 0
            await connection.close()
        assert owner.closed == [None]  # nobody was told of the end of what never began

    run(work())
