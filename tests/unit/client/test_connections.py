"""Connections that are opened when needed and come back (against a server of the test)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from remoting.test_connection import Wire
from remoting.test_shared_tasks import is_waiting
from remoting.wire_server import Line, WireServer, run, until

from ordermq.client.connections import Connections, is_closed_for_reads
from ordermq.clock import Clock, ManualClock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ConnectFailed, ConnectionLost, StateError
from ordermq.remoting.command import Command
from ordermq.remoting.connection import Connection
from ordermq.remoting.dialer import Dialer


def echo(line: Line, command: Command) -> None:
    line.send(command.reply(0, dict(command.ext)))


def connections_of(
    lost: list[str] | None = None, clock: Clock | None = None, answer: Any = None
) -> Connections:
    return Connections(
        clock or SystemClock(),
        RemotingConfig(),
        lambda *asked: answer(*asked) if answer else None,
        lambda address: lost.append(address) if lost is not None else None,
    )


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_callers_at_the_same_time_share_one_connection() -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            connections = connections_of()
            answers = await asyncio.gather(
                *(
                    connections.request(server.address, Command.request(1, {"n": str(n)}), 5_000)
                    for n in range(10)
                )
            )
            assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(10)]
            assert len(server.lines) == 1
            await connections.close()

    run(work())


def test_own_addresses_are_known_after_another_broker_was_the_master_for_a_while() -> None:
    """A broker that was frozen meanwhile still lists the connection that was dropped."""

    async def work() -> None:
        async with WireServer(echo) as server:
            connections = connections_of()
            await connections.request(server.address, Command.request(1), 5_000)
            before = list(connections.own(server.address))
            connections.drop(server.address, "another broker is the master")
            await connections.request(server.address, Command.request(1), 5_000)
            assert len(before) == 1
            assert list(connections.own(server.address))[:-1] == before
            assert connections.own("127.0.0.1:1") == ()
            await connections.close()

    run(work())


def test_a_connection_that_ends_as_it_opens_is_not_given_out_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sender asks until it has an open one: the loop would never go on."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        connections = connections_of()
        open_one, waits = connections._open_one, list[bool]()

        def ends(opened: Connection) -> None:
            opened.abort(ConnectionError("a damaged record"))
            again = connections.get(opened.address)
            waits.append(is_waiting(again))
            again.close()

        async def opened(address: str, tls: Any) -> Connection:
            connection = await open_one(address, tls)
            if not waits:  # the first one; before the callbacks of the task that opens it
                loop.call_soon(ends, connection)
            return connection

        monkeypatch.setattr(connections, "_open_one", opened)
        async with WireServer(echo) as server:
            await connections.get(server.address)
            assert waits == [True]
            assert (await connections.request(server.address, Command.request(1), 5_000)).code == 0
            await connections.close()

    run(work())


def test_an_address_that_is_dropped_in_the_pause_before_a_connect_is_not_connected_to() -> None:
    """Somebody else's server may listen there by then."""

    async def work() -> None:
        clock, port = ManualClock(), closed_port()
        address = f"127.0.0.1:{port}"
        connections = connections_of(clock=clock)
        with pytest.raises(ConnectFailed):
            await connections.get(address)
        waiting = [
            asyncio.create_task(connections.get(address)),
            asyncio.create_task(connections.open_socket(address)),
        ]
        await asyncio.sleep(0)
        connections.drop(address, "no route has it")
        server = WireServer(echo)
        await server.listen(port)
        for each in waiting:
            with pytest.raises(ConnectFailed, match="no broker has this address any more"):
                await each
        clock.advance(60_000)
        assert not server.lines
        # Its broker came back: nothing is left of the failures before.
        assert (await connections.get(address)).is_open
        await connections.close()
        await server.stop()

    run(work())


@pytest.mark.parametrize("opens_socket", [False, True])
def test_a_connect_on_its_way_to_an_address_that_is_dropped_ends(
    opens_socket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, goes_on = Dialer.open, asyncio.Event()
    dialed: list[socket.socket] = []

    async def held_up(self: Dialer, host: str, port: int) -> socket.socket:
        dialed.append(await connect(self, host, port))
        await goes_on.wait()
        return dialed[-1]

    async def work() -> None:
        async with WireServer(echo) as server:
            connections = connections_of()
            if opens_socket:
                await connections.get(server.address)
            monkeypatch.setattr(Dialer, "open", held_up)
            opening = connections.open_socket if opens_socket else connections.get
            waiting = asyncio.create_task(opening(server.address))  # type: ignore[arg-type]
            await until(lambda: bool(dialed))
            connections.drop(server.address, "no route has it")
            goes_on.set()
            with pytest.raises(ConnectFailed, match="no broker has this address any more"):
                await waiting
            await until(lambda: dialed[0].fileno() == -1)
            assert not connections.is_open(server.address)
            await connections.close()

    run(work())


def test_a_broken_connection_is_reported_and_the_next_request_opens_another() -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            lost: list[str] = []
            connections = connections_of(lost)
            await connections.request(server.address, Command.request(1), 5_000)
            server.lines[0].cut()
            await until(lambda: bool(lost))
            assert (await connections.request(server.address, Command.request(1), 5_000)).code == 0
            assert lost == [server.address]
            assert len(server.lines) == 2
            await connections.close()
            assert lost == [server.address], "our own close is no loss"

    run(work())


def test_a_failed_connect_is_retried_only_after_its_pause() -> None:
    async def work() -> None:
        clock, port = ManualClock(), closed_port()
        address = f"127.0.0.1:{port}"
        connections = connections_of(clock=clock)
        with pytest.raises(ConnectFailed):
            await connections.get(address)
        server = WireServer(echo)
        await server.listen(port)
        second = asyncio.create_task(connections.get(address))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not second.done()
        clock.advance(RemotingConfig().reconnect_delay_ms)
        assert (await second).is_open
        await connections.close()
        await server.stop()

    run(work())


def test_a_cancelled_caller_does_not_cancel_the_connect_of_the_others() -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            connections = connections_of()
            impatient = asyncio.create_task(connections.get(server.address))
            patient = asyncio.create_task(connections.get(server.address))
            await asyncio.sleep(0)
            impatient.cancel()
            assert (await patient).is_open
            await connections.close()

    run(work())


def test_a_request_of_the_broker_is_answered_and_an_unknown_one_refused() -> None:
    async def work() -> None:
        answers: list[Command] = []

        def ask(line: Line, command: Command) -> None:
            if command.is_response:
                answers.append(command)
            else:
                line.send(Command(40, opaque=1))
                line.send(Command(9_999, opaque=2))
                line.send(Command(40, opaque=3, flag=2))
                echo(line, command)

        def answer(address: str, command: Command) -> Command | None:
            assert address == server.address
            return command.reply(0) if command.code == 40 else None

        async with WireServer(ask) as server:
            connections = connections_of(answer=answer)
            await connections.request(server.address, Command.request(1), 5_000)
            await until(lambda: len(answers) == 2)
            assert [(command.opaque, command.code) for command in answers] == [(1, 0), (2, 3)]
            assert "9999" in (answers[1].remark or "")
            await connections.close()

    run(work())


def test_a_closed_client_opens_no_connection() -> None:
    async def work() -> None:
        async with WireServer(echo) as server:
            connections = connections_of()
            await connections.get(server.address)
            await connections.close()
            with pytest.raises(StateError, match="closed"):
                await connections.get(server.address)

    run(work())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (RemotingConfig(), "not signed: give access_key and secret_key"),
        (
            RemotingConfig(access_key="ak", secret_key="sk"),
            "signed as access_key='ak': check that key",
        ),
    ],
)
@pytest.mark.parametrize(
    ("code", "remark"),
    [(16, "User:ak is not found."), (1, "org.x.AclException: Wrong"), (16, None)],
)
def test_a_denied_request_names_the_access_key_and_the_remedy(
    config: RemotingConfig, told: str, code: int, remark: str | None
) -> None:
    async def work() -> None:
        deny = lambda line, command: line.send(command.reply(code, remark=remark))  # noqa: E731
        async with WireServer(deny) as server:
            connections = Connections(SystemClock(), config, lambda *_: None, lambda _: None)
            answer = await connections.request(server.address, Command.request(34), 5_000)
            assert answer.code == code
            assert (remark or "no permission") in str(answer.remark)
            assert told in str(answer.remark)
            await connections.close()

    run(work())


@pytest.mark.parametrize(
    ("remark", "told"),
    [
        ("the broker[127.0.0.1] pulling message is forbidden", "closed for reads"),
        ("the topic[T] pulling message is forbidden", "closed for reads"),
        ("the broker[127.0.0.1] pop message is forbidden", "closed for reads"),
        ("the topic[T] peeking message is forbidden", "closed for reads"),
        ("topic 'T' has no read permission", "closed for reads"),
        ("the broker[127.0.0.1] sending message is forbidden", "closed for sends"),
        ("the topic[T] sending message is forbidden", "closed for sends"),
        (
            "the broker[127.0.0.1] sending transaction message is forbidden",
            "rejectTransactionMessage",
        ),
        ("the consumer group[G] is forbidden for topic[T]", "closed this topic to the group"),
        ("recall failed, operation is forbidden", "recallMessageEnable=true"),
        ("subscription group no permission, G", "consumeEnable=false"),
        ("the consumer group[G] can not consume by broadcast way", "consumeBroadcastEnable=false"),
    ],
)
def test_a_refusal_that_is_about_no_account_names_what_is_closed_and_suspects_none(
    remark: str, told: str
) -> None:
    # The remarks of RocketMQ 5.5.0 with NO_PERMISSION, and the embedded broker's.
    connections = connections_of()
    answer = connections.explained(Command(16, remark=remark))
    assert told in str(answer.remark)
    assert "access_key" not in str(answer.remark)
    error = BrokerError(str(answer.remark), response_code=16)
    assert is_closed_for_reads(error) is (told == "closed for reads")


def test_a_topic_that_is_not_created_is_told_with_the_remedy() -> None:
    # RocketMQ 5.5.0 with autoCreateTopicEnable=false.
    remark = (
        "topic[orders] not exist, apply first please!\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )
    told = connections_of().explained(Command(17, remark=remark)).remark or ""
    assert told.startswith("topic[orders] does not exist; the broker does not create it")
    assert "autoCreateTopicEnable=false" in told
    assert "updateTopic" in told
    assert connections_of().explained(Command(17, remark="no route")).remark == "no route"


def test_joined_requests_are_sent_in_one_write_per_connection_even_after_an_exception() -> None:
    async def work() -> None:
        connections, told = connections_of(), dict[str, list[str]](x=[], y=[])
        for name, writes in told.items():
            one = Connection(f"{name}:1", ManualClock(), RemotingConfig(), connections)
            one.connection_made(Wire(writes))
            connections._open[one.address] = one
        asked = []

        def ask(address: str) -> None:
            asked.append(connections._open[address].begin_request(Command.request(1), 5_000))

        with connections.joined():
            for address in ("x:1", "y:1", "x:1"):
                ask(address)
            assert told == {"x": [], "y": []}
        assert told == {"x": ["write"], "y": ["write"]}
        with pytest.raises(KeyError), connections.joined():
            ask("x:1")
            raise KeyError
        assert told == {"x": ["write"] * 2, "y": ["write"]}
        ask("x:1")
        assert told == {"x": ["write"] * 3, "y": ["write"]}  # each leaves where it is asked again
        with connections.joined():
            ask("y:1")
            for one in list(connections._open.values()):
                one.connection_lost(None)
        for answer in asked:
            with pytest.raises(ConnectionLost):
                await answer

    run(work())
