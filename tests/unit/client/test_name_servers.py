"""Several name servers, some of them dead, silent or wrong; real sockets, the clock of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from remoting.wire_server import Line, WireServer, run, until

from ordermq.client.connections import Connections
from ordermq.client.name_server_api import NameServerApi
from ordermq.clock import ManualClock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, RouteError
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute
from ordermq.remoting.command import Command
from ordermq.remoting.race import NEXT_AFTER_MS
from tests.silent_addresses import blackholed, dead

ROUTE = TopicRoute((BrokerData("b", {0: "127.0.0.1:1"}),), (QueueData("b", 4, 4),))
Handle = Callable[[Line, Command], None]


def knows(line: Line, command: Command) -> None:
    line.send(command.reply(0, body=ROUTE.to_body()))


def knows_nothing(line: Line, command: Command) -> None:
    line.send(command.reply(17, remark="no topic"))


def refuses(line: Line, command: Command) -> None:
    line.send(command.reply(16, remark="no permission"))


def sends_garbage_frames(line: Line, command: Command) -> None:
    line.send_bytes(b"\x00\x00\x00\x10" + bytes(16) + b"garbage")


def sends_a_garbage_route(line: Line, command: Command) -> None:
    line.send(command.reply(0, body=b'{"brokerDatas": 7}'))


def knows_all_but_retries(line: Line, command: Command) -> None:
    (knows_nothing if command.ext["topic"].startswith("%RETRY%") else knows)(line, command)


def lists_a_broker(line: Line, command: Command) -> None:
    brokers = {"b": {"brokerName": "b", "brokerAddrs": {"0": "127.0.0.1:1"}}}
    line.send(command.reply(0, body=json.dumps({"brokerAddrTable": brokers}).encode()))


def lists_no_broker(line: Line, command: Command) -> None:
    line.send(command.reply(0, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}'))


def is_a_broker(line: Line, command: Command) -> None:
    line.send(command.reply(3, remark=" request type 105 not supported"))


def is_silent(line: Line, command: Command) -> None:
    """Accepts, reads, and never answers."""


def is_http(line: Line, command: Command) -> None:
    line.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class Asked:
    """A client of several name servers, and the time its calls have taken on its clock."""

    def __init__(self, *addresses: str) -> None:
        self.clock = ManualClock()
        self.connections = Connections(
            self.clock, RemotingConfig(), lambda *_: None, lambda _: None
        )
        self.api = NameServerApi(self.connections, addresses, RemotingConfig(), self.clock)

    async def route(self, topic: str = "T", most_ms: int = 60_000) -> tuple[TopicRoute | None, int]:
        """Return the route and the ms that went by until it was there."""
        asking = asyncio.ensure_future(self.api.topic_route(topic))
        began_ms = self.clock.now_ms()
        while True:
            # Real time for the sockets, before the clock moves on.
            done, _ = await asyncio.wait([asking], timeout=0.15)
            if done:
                return asking.result(), self.clock.now_ms() - began_ms
            assert self.clock.now_ms() - began_ms < most_ms, "it hangs"
            self.clock.advance(NEXT_AFTER_MS)


@contextlib.asynccontextmanager
async def servers(*handles: Handle) -> AsyncIterator[list[WireServer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(WireServer(handle)) for handle in handles]


@contextlib.asynccontextmanager
async def asking(*addresses: str) -> AsyncIterator[Asked]:
    asked = Asked(*addresses)
    try:
        yield asked
    finally:
        await asked.connections.close()


def test_the_name_server_that_answered_last_is_asked_first() -> None:
    async def work() -> None:
        with dead() as away:
            async with (
                servers(knows, knows) as (one, two),
                asking(away, one.address, two.address) as asked,
            ):
                for _ in range(5):
                    assert await asked.route() == (ROUTE, 0)
                assert [len(one.requests), len(two.requests)] == [5, 0]
                await one.stop()
                await until(lambda: not asked.connections.is_open(one.address))
                for _ in range(5):
                    assert await asked.route() == (ROUTE, 0)
                assert len(two.requests) == 5

    run(work())


def test_a_server_that_falls_silent_is_not_taken_for_another_one() -> None:
    """One that answered before, and now is busy or frozen: the port is right."""

    handles = [knows]

    def answers_once(line: Line, command: Command) -> None:
        (handles.pop() if handles else is_silent)(line, command)

    async def work() -> None:
        async with servers(answers_once) as (server,), asking(server.address) as asked:
            assert await asked.route() == (ROUTE, 0)
            connection = await asked.connections.get(server.address)
            connection.abort(ConnectionError("cut"))
            await until(lambda: not asked.connections.is_open(server.address))
            with pytest.raises(RouteError, match="no response in time") as told:
                await asked.route()
            assert "never sent a byte" not in str(told.value)

    run(work())


def test_a_brokers_address_among_those_of_name_servers_is_told() -> None:
    async def work() -> None:
        async with servers(is_a_broker) as (broker,), asking(broker.address) as asked:
            with pytest.raises(BrokerError, match=r"it is no name server.*9876") as told:
                await asked.route()
            assert broker.address in str(told.value)

    run(work())


@pytest.mark.parametrize("is_stopped_before_accept", [True, False])
def test_a_silent_name_server_delays_one_call_and_once(is_stopped_before_accept: bool) -> None:
    async def work() -> None:
        with blackholed() as hole:
            async with servers(is_silent, knows) as (silent, good):
                first = hole if is_stopped_before_accept else silent.address
                async with asking(first, good.address) as asked:
                    found, took_ms = await asked.route()
                    assert found == ROUTE
                    assert NEXT_AFTER_MS <= took_ms <= 2 * NEXT_AFTER_MS
                    for _ in range(5):
                        assert await asked.route() == (ROUTE, 0)

    run(work())


def test_topics_that_are_asked_together_wait_for_a_silent_name_server_together() -> None:
    async def work() -> None:
        async with (
            servers(is_silent, knows) as (silent, good),
            asking(silent.address, good.address) as asked,
        ):
            answers = await asyncio.gather(*(asked.route(f"T{n}") for n in range(5)))
            assert [found for found, _ in answers] == [ROUTE] * 5
            # Each of the five moves the clock while it waits.
            assert max(took_ms for _, took_ms in answers) <= 2_000

    run(work())


@pytest.mark.parametrize(
    "broken",
    [sends_garbage_frames, sends_a_garbage_route, is_http, refuses],
    ids=lambda handle: handle.__name__,
)
def test_a_name_server_that_answers_wrongly_is_passed_over(broken: Handle) -> None:
    async def work() -> None:
        async with (
            servers(broken, knows) as (wrong, good),
            asking(wrong.address, good.address) as asked,
        ):
            assert (await asked.route())[0] == ROUTE
            assert (await asked.route())[0] == ROUTE
            assert len(wrong.requests) == 1

    run(work())


def test_a_name_server_that_does_not_know_the_topic_is_not_believed_alone() -> None:
    async def work() -> None:
        async with (
            servers(knows_nothing, knows) as (young, old),
            asking(young.address, old.address) as asked,
        ):
            assert await asked.route() == (ROUTE, 0)

    run(work())


def test_an_unknown_topic_waits_for_a_dead_name_server_once_and_finds_it_again() -> None:
    async def work() -> None:
        async with (
            servers(knows_nothing, is_silent) as (young, silent),
            asking(young.address, silent.address) as asked,
        ):
            found, took_ms = await asked.route()
            assert found is None
            assert took_ms >= RemotingConfig().request_timeout_ms
            assert await asked.route() == (None, 0)
            silent._handle = knows
            await asked.route()
            # It is asked without being waited for, and heard from then on.
            await until(lambda: silent.address not in asked.api._failed)
            assert (await asked.route())[0] == ROUTE

    run(work())


def test_an_unknown_topic_waits_no_longer_than_the_others_asked_together() -> None:
    async def work() -> None:
        async with (
            servers(is_silent, knows_all_but_retries) as (silent, good),
            asking(silent.address, good.address) as asked,
        ):
            # Asked first, "no such topic" is answered before the other topic's route shows that
            # the silent server need not be waited for.
            (retries, took_ms), (found, _) = await asyncio.gather(
                asked.route("%RETRY%g"), asked.route("T")
            )
            assert (retries, found) == (None, ROUTE)
            # Each of the two moves the clock while it waits.
            assert took_ms <= 4 * NEXT_AFTER_MS < RemotingConfig().request_timeout_ms

    run(work())


def test_a_refusal_is_raised_rather_than_the_silence_of_the_others() -> None:
    async def work() -> None:
        with dead() as away:
            async with servers(refuses) as (strict,), asking(strict.address, away) as asked:
                with pytest.raises(BrokerError, match="no permission"):
                    await asked.route()

    run(work())


def test_without_any_name_server_an_error_names_all_within_one_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> list[str]:
        with dead() as away:
            async with (
                servers(is_silent) as (silent,),
                asking(silent.address, away, "no.such.host.invalid:9876") as asked,
            ):
                began_ms = asked.clock.now_ms()
                with pytest.raises(RouteError, match="no name server answers") as caught:
                    await asked.route()
                assert asked.clock.now_ms() - began_ms <= 4_000
                assert all(address in str(caught.value) for address in asked.api.addresses)
                return list(asked.api.addresses)

    caplog.set_level(logging.WARNING, "ordermq.client")
    asked_of = run(work())
    lines = [record.getMessage() for record in caplog.records]
    # Each name server once; other clients of the process may tell of their own.
    told = [line for line in lines if line.startswith(tuple(asked_of))]
    assert len(told) == 3, lines
    assert any("cannot find the host no.such.host.invalid" in line for line in told)


@pytest.mark.parametrize(
    ("handles", "lists_some"),
    [
        ((lists_no_broker,), False),
        ((lists_no_broker, lists_a_broker), True),
        ((lists_no_broker, lists_no_broker), False),
        ((refuses,), True),  # it cannot be known
        ((is_a_broker,), True),
    ],
)
def test_that_no_broker_is_listed_is_believed_if_all_name_servers_say_so(
    handles: tuple[Handle, ...], lists_some: bool
) -> None:
    async def work() -> None:
        async with (
            servers(*handles) as told,
            asking(*(server.address for server in told)) as asked,
        ):
            assert await asked.api.lists_a_broker() is lists_some

    run(work())
