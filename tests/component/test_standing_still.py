"""A process that stands still for a time: what came meanwhile is read before anything is late
(docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.client import runtime
from ordermq.clock import Clock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import ConnectFailed, RequestTimeout
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.connection import Connection
from ordermq.remoting.event_loop import new_event_loop
from ordermq.remoting.time_limit import sleep_and_read, time_limit
from tests.silent_addresses import blackholed, stalled

NewLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("new_loop", [new_event_loop, asyncio.new_event_loop])


def stand_still(seconds: float) -> None:
    """Block the thread: this is the fault, no wait for a state."""
    threading.Event().wait(seconds)


def run(new_loop: NewLoop, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work, 20))


class Owner:
    """Owner of a connection on which nothing is told."""

    def on_request(self, connection: Connection, command: Command) -> None: ...

    def on_closed(self, connection: Connection, error: Exception | None) -> None: ...


async def open_connection(address: str, clock: Clock | None = None) -> Connection:
    config = RemotingConfig(connect_timeout_ms=200)
    return await Connection.open(address, clock or SystemClock(), config, Owner())


class SleptClock(SystemClock):
    """The system's time, with that for which the machine has slept."""

    slept_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.slept_ms


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_request_whose_loop_stood_still_is_no_time_out(
    broker: EmbeddedBroker, loop: str, waits: bool, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if loop != "uvloop":
        monkeypatch.setattr(runtime, "new_event_loop", asyncio.new_event_loop)
    clock, is_standing, asked = SleptClock(), threading.Event(), Connection.ask

    def stand() -> None:
        is_standing.set()
        stand_still(0.5)
        clock.slept_ms += 3_600_000

    def ask(self: Connection, opaque: int, frame: bytes, *more: Any) -> bool:
        result = asked(self, opaque, frame, *more)
        if b"the second" in frame and not is_standing.is_set():
            if producer._live().runtime.is_io_thread:
                stand()
            else:
                producer._live().runtime.post(stand)
                assert is_standing.wait(20)
        return result

    monkeypatch.setattr(Connection, "ask", ask)
    with Producer("p", name_servers=broker.name_servers, clock=clock) as producer:
        producer.send(Message("orders", b"the first"), sharding_key="a")
        second = Message("orders", b"the second")
        if waits:
            receipt = producer.send(second, sharding_key="a")
        else:
            receipt = producer.send_nowait(second, sharding_key="a").result(20)
        assert receipt.queue_offset == 1
        assert is_standing.is_set()
    assert "no response in time" not in caplog.text


class JumpingClock(SleptClock):
    """The machine goes to sleep as soon as anybody waits."""

    async def sleep_ms(self, delay_ms: int) -> None:
        await asyncio.sleep(0)
        self.slept_ms += 3_600_000


def answer_requests(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    framer = Framer()
    with connection:
        while data := connection.recv(65_536):
            for request in framer.feed(data):
                connection.sendall(encode(request.reply(0)))


@LOOPS
def test_an_answer_on_its_way_while_the_machine_slept_is_awaited(new_loop: NewLoop) -> None:
    async def work(address: str) -> None:
        connection = await open_connection(address, JumpingClock())
        assert (await connection.request(Command.request(1), 1_000)).code == 0
        await connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:
        answering = threads.submit(answer_requests, listening)
        run(new_loop, work(f"127.0.0.1:{listening.getsockname()[1]}"))
        answering.result(20)


@LOOPS
def test_a_late_sleep_ends_behind_what_came_meanwhile(new_loop: NewLoop) -> None:
    """As that of the requester who waits for a reply, and of a broker that asks a client."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        reply = loop.create_future()
        loop.call_later(0.05, reply.set_result, None)
        await sleep_and_read(JumpingClock(), 1_000)
        assert reply.done()

    run(new_loop, work())


@LOOPS
def test_a_request_that_nobody_answers_is_a_time_out_after_the_sleep(new_loop: NewLoop) -> None:
    async def work(address: str) -> None:
        connection = await open_connection(address, JumpingClock())
        with pytest.raises(RequestTimeout):
            await connection.request(Command.request(1), 1_000)
        await connection.close()

    with stalled() as address:
        run(new_loop, work(address))


@LOOPS
@pytest.mark.parametrize("turns", range(4))
def test_a_connect_whose_loop_stood_still_is_made(new_loop: NewLoop, turns: int) -> None:
    async def work(address: str) -> None:
        opening = asyncio.create_task(open_connection(address))
        for _ in range(turns):
            await asyncio.sleep(0)
        stand_still(0.5)
        await (await opening).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        run(new_loop, work(f"127.0.0.1:{listening.getsockname()[1]}"))


@LOOPS
def test_a_connect_that_nobody_answers_fails(new_loop: NewLoop) -> None:
    async def work() -> None:
        with blackholed() as address, pytest.raises(ConnectFailed, match="cannot connect"):
            await open_connection(address)

    run(new_loop, work())


@LOOPS
def test_a_loop_that_always_stands_still_ends_what_has_a_limit(new_loop: NewLoop) -> None:
    async def work() -> None:
        loop, is_over = asyncio.get_running_loop(), False

        def stand() -> None:
            stand_still(0.15)
            if not is_over:
                loop.call_soon(stand)

        loop.call_soon(stand)
        with pytest.raises(TimeoutError):
            async with time_limit(0.3):
                await loop.create_future()
        is_over = True

    run(new_loop, work())
