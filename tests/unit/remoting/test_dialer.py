"""Host names with several addresses, and a DNS server that is away; real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ordermq.client.connections import Connections
from ordermq.client.session import new_client_id
from ordermq.clock import ManualClock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import ConnectFailed, RequestTimeout
from ordermq.remoting import dialer
from ordermq.remoting.command import Command
from remoting.wire_server import Line, WireServer, run, until
from tests.silent_addresses import blackholed

HOST = "brokers.example"


class Dns:
    """The addresses of `HOST`, as this process looks them up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.is_away = False
        self.gate = threading.Event()  # while it is not set, no look-up ends
        self.gate.set()
        self.asked = 0
        self.threads: set[str] = set()
        self._plain = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != HOST.encode():
            return self._plain(host, port, *arguments, **options)
        if options.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "numbers only")
        self.asked += 1
        self.threads.add(threading.current_thread().name)
        self.gate.wait()
        if self.is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in self.addresses]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    known = Dns(monkeypatch)
    yield known
    known.gate.set()


def echo(line: Line, command: Command) -> None:
    line.send(command.reply(0))


def is_silent(line: Line, command: Command) -> None:
    """Accepts, reads, and never answers."""


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def connections(config: RemotingConfig | None = None, **clocks: Any) -> Connections:
    clock = clocks.get("clock") or SystemClock()
    return Connections(clock, config or RemotingConfig(), lambda *_: None, lambda _: None)


async def ask(client: Connections, timeout_ms: int = 5_000) -> int:
    return (await client.request(f"{HOST}:9876", Command.request(1), timeout_ms)).code


def test_every_address_of_a_host_is_tried_and_a_bad_one_last_the_next_time(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    connect = dialer._connect

    async def noting(opened: socket.socket, address: dialer.SocketAddress) -> None:
        tried.append(address.place)
        await connect(opened, address)

    monkeypatch.setattr(dialer, "_connect", noting)

    async def work() -> None:
        with blackholed() as hole:
            async with WireServer(echo) as server:
                dns.addresses = [place(hole), place(server.address)]
                client = connections()
                assert await ask(client) == 0
                assert tried == [place(hole), place(server.address)]
                server.lines[0].cut()
                await until(lambda: not client.is_open(f"{HOST}:9876"))
                assert await ask(client) == 0
                assert tried[2] == place(server.address)
                assert dns.asked == 2, "looked up for each connect"
                await client.close()

    run(work())


def test_an_address_that_accepts_and_never_answers_is_tried_last_the_next_time(dns: Dns) -> None:
    async def work() -> None:
        async with WireServer(is_silent) as silent, WireServer(echo) as server:
            dns.addresses = [place(silent.address), place(server.address)]
            client = connections()
            with pytest.raises(RequestTimeout):
                await ask(client, timeout_ms=100)
            assert await ask(client) == 0
            await client.close()

    run(work())


def test_a_host_that_moved_is_found_at_its_new_address(dns: Dns) -> None:
    async def work() -> None:
        async with WireServer(echo) as old, WireServer(echo) as new:
            dns.addresses = [place(old.address)]
            client = connections()
            await ask(client)
            dns.addresses = [place(new.address)]
            await old.stop()
            await until(lambda: not client.is_open(f"{HOST}:9876"))
            await ask(client)
            assert len(new.requests) == 1
            await client.close()

    run(work())


def test_without_dns_the_last_known_addresses_are_used(dns: Dns) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with WireServer(echo) as server:
            dns.addresses = [place(server.address)]
            client = connections(clock=clock)
            await ask(client)
            for is_hanging in (False, True):
                dns.is_away = True
                if is_hanging:
                    dns.gate.clear()
                server.lines[-1].cut()
                await until(lambda: not client.is_open(f"{HOST}:9876"))
                asking = asyncio.ensure_future(ask(client))
                while not asking.done():
                    clock.advance(100)
                    await asyncio.sleep(0.01)
                assert asking.result() == 0
            await client.close()

    run(work())


def test_a_look_up_that_hangs_stops_neither_the_loop_nor_a_caller_and_runs_once(dns: Dns) -> None:
    async def work() -> None:
        dns.gate.clear()
        client = connections(RemotingConfig(connect_timeout_ms=200, reconnect_delay_ms=1))
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        turning = asyncio.ensure_future(turn())
        for _ in range(3):
            with pytest.raises(ConnectFailed, match=f"cannot find the host {HOST}: no answer"):
                await ask(client)
        assert turns > 50
        assert dns.asked == 1
        assert dns.threads == {f"ordermq-dns-{HOST}"}
        turning.cancel()
        await client.close()

    run(work())


def test_a_name_that_nobody_knows_is_an_error_that_says_so(dns: Dns) -> None:
    async def work() -> None:
        dns.is_away = True
        client = connections()
        with pytest.raises(ConnectFailed, match=f"cannot find the host {HOST}: Temporary failure"):
            await ask(client)
        await client.close()

    run(work())


def test_a_client_is_made_in_a_bounded_time_while_dns_hangs(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.client.session._LOOK_UP_S", 0.05)
    dns.gate.clear()
    made = new_client_id(RemotingConfig(), [f"{HOST}:9876"], "one")
    assert made.startswith("127.0.0.1@one#")
