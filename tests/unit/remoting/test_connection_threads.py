"""Requests which other threads write themselves: whole, told once, timed (Connection.ask)."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import ConnectionLost, RequestTimeout
from ordermq.remoting.command import Command, encode
from ordermq.remoting.connection import Connection
from ordermq.remoting.reading import (
    ReadingOf,
    TransportReading,
    can_share_reads,
    shared_reading,
)
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.remoting.writing import SharedSocket

from .test_connection import Owner, echo, silent
from .wire_server import TIMEOUT_S, Handler, Line, WireServer

LONG_MS = 60_000
WHOLE = 400_000  # bytes, more than a socket takes at once


class Told(ResponseFuture):
    """Keeps what it is told; `ended` is set by the first."""

    def __init__(self) -> None:
        self.code = 1
        self.answers: list[Command] = []
        self.errors: list[Exception] = []
        self.ended = threading.Event()

    @property
    def is_over(self) -> bool:
        return False

    def answered(self, command: Command) -> None:
        self.answers.append(command)
        self.ended.set()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.ended.set()

    @property
    def times(self) -> int:
        return len(self.answers) + len(self.errors)


class Asked:
    """One request, as a thread asks it."""

    def __init__(self, connection: Connection, body: bytes, timeout_ms: int = LONG_MS) -> None:
        self._command = Command.request(1, body=body)
        self._timeout_ms = timeout_ms
        self._connection = connection
        self.body = body
        self.told = Told()

    def ask(self) -> bool:
        """Write it from this thread, if that can be."""
        frame = encode(self._command)
        return self._connection.ask(self._command.opaque, frame, self.told, self._timeout_ms)

    async def on_loop(self) -> None:
        assert self.ask()


READINGS: list[ReadingOf] = [TransportReading, *([shared_reading] if can_share_reads() else [])]
reading_of = READINGS[0]  # of the test that runs; set by `run`


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    found: Callable[[], asyncio.AbstractEventLoop]
    found = importlib.import_module(request.param).new_event_loop
    return found


@pytest.fixture(params=READINGS)
def run(
    request: pytest.FixtureRequest,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's coroutine on either loop, with either way to read and write, and a deadline."""
    monkeypatch.setattr(sys.modules[__name__], "reading_of", request.param)

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            # Each step has its own deadline; this one ends a test that hangs between them.
            runner.run(asyncio.wait_for(work, 6 * TIMEOUT_S))

    return on_loop


async def connect(server: WireServer, *, is_warm: bool = True) -> Connection:
    """Open; a warm one has been asked, so its time-outs are looked after."""
    connection = await Connection.open(
        server.address, SystemClock(), RemotingConfig(), Owner(), reading_of=reading_of
    )
    if is_warm:
        warming = connection.begin_request(Command.request(2), LONG_MS)
        warming.add_done_callback(lambda ended: ended.exception())  # lost, as the test may want
    return connection


async def in_threads(count: int, work: Callable[[int], None]) -> None:
    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(count)))


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_frames_of_several_threads_and_the_loop_do_not_mix_on_a_small_socket_buffer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    flush = SharedSocket.flush
    monkeypatch.setattr(SharedSocket, "flush", lambda self: (left.append(1), flush(self))[1])
    written: list[bool] = []

    async def work() -> None:
        async with WireServer(echo) as server:
            connection = await connect(server)
            assert connection._transport is not None
            shared = connection._transport.get_extra_info("socket")
            with socket.fromfd(shared.fileno(), shared.family, shared.type) as handle:
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            loop = asyncio.get_running_loop()

            def ask(number: int) -> None:
                for turn in range(8):
                    body = bytes([number * 16 + turn]) * (WHOLE if turn % 2 else 10)
                    asked = Asked(connection, body)
                    written.append(asked.ask())
                    if not written[-1]:
                        asyncio.run_coroutine_threadsafe(asked.on_loop(), loop).result(TIMEOUT_S)
                    assert asked.told.ended.wait(TIMEOUT_S)
                    assert [answer.body for answer in asked.told.answers] == [body]
                    assert asked.told.times == 1

            await in_threads(3, ask)
            await connection.close()

    run(work())
    assert any(written)
    assert left, "the socket took every frame whole: this test tests nothing"


def test_a_request_gets_its_outcome_once_whenever_the_connection_is_cut(run: Run) -> None:
    outcomes: list[tuple[bool, Told]] = []

    def cutting(after: int) -> Handler:
        heard = [0]

        def handle(line: Line, command: Command) -> None:
            heard[0] += 1
            if heard[0] == after:
                line.cut()
            else:
                echo(line, command)

        return handle

    async def work() -> None:
        for after in range(2, 30):
            async with WireServer(cutting(after)) as server:
                connection = await connect(server)

                def ask(number: int, connection: Connection = connection) -> None:
                    is_written = True
                    while is_written:
                        asked = Asked(connection, b"x")
                        is_written = asked.ask()
                        if is_written:
                            assert asked.told.ended.wait(TIMEOUT_S), "nobody was told"
                        outcomes.append((is_written, asked.told))
                        is_written = is_written and not asked.told.errors

                await in_threads(2, ask)

    run(work())
    for is_written, told in outcomes:
        assert told.times == (1 if is_written else 0)
        assert all(isinstance(error, ConnectionLost) for error in told.errors)
    assert any(told.answers for _, told in outcomes)
    assert any(told.errors for _, told in outcomes)


def test_a_request_of_another_thread_times_out_as_the_loops_own(run: Run) -> None:
    async def work() -> None:
        async with WireServer(silent) as server:
            connection = await connect(server)
            asked = Asked(connection, b"x", timeout_ms=50)

            def ask(number: int) -> None:
                assert asked.ask()
                assert asked.told.ended.wait(TIMEOUT_S)

            await in_threads(1, ask)
            assert isinstance(asked.told.errors[0], RequestTimeout)
            await connection.close()

    run(work())


def test_without_a_deadline_check_only_the_loop_may_send(run: Run) -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            connection = await connect(server, is_warm=False)
            asked = Asked(connection, b"x")
            assert not await asyncio.to_thread(asked.ask)
            assert asked.ask()
            assert await asyncio.to_thread(asked.told.ended.wait, TIMEOUT_S)
            await connection.close()
            assert not await asyncio.to_thread(Asked(connection, b"x").ask)

    run(work())


def test_a_partly_written_frame_is_sent_before_the_connection_closes(
    run: Run,
) -> None:
    async def work() -> None:
        async with WireServer(silent) as server:
            connection = await connect(server)
            await asyncio.sleep(0)
            asked = Asked(connection, b"y" * 12_000_000)
            thread = threading.Thread(target=asked.ask)
            thread.start()
            thread.join(TIMEOUT_S)  # the loop stands still: the server takes nothing meanwhile
            await connection.close()
            while len(server.requests) < 2:
                await asyncio.sleep(0.001)
            assert server.requests[-1].body == asked.body
            assert isinstance(asked.told.errors[0], ConnectionLost)

    run(work())
