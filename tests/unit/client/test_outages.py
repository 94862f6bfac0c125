"""One outage of one broker is one WARNING, then one summary per 30 s."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from remoting.wire_server import Line, WireServer, run, until

from ordermq.client.outages import Outages
from ordermq.client.session import ClientSession
from ordermq.clock import ManualClock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

BROKER = "127.0.0.1:10911"
TOPICS = [f"T{number}" for number in range(20)]


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def ticking(clock: ManualClock, work: Coroutine[Any, Any, None]) -> None:
    """Let the clock run while `work` does: a failed connect is followed by a pause."""
    task = asyncio.ensure_future(work)
    while not task.done():
        clock.advance(100)
        await asyncio.sleep(0)
    await task


def test_an_outage_is_one_warning_then_a_summary_each_30_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    for _ in range(61):
        for action in ("pull", "pull", "heartbeat"):
            outages.failed(BROKER, action, "connection refused")
        clock.advance(1_000)
    assert lines(caplog) == [
        f"{BROKER}: pull failed: connection refused; retrying, further failures are reported "
        "every 30 s",
        f"{BROKER}: still failing after 30 s: 90 failures (heartbeat 30, pull 60); last error: "
        "connection refused",
        f"{BROKER}: still failing after 60 s: 90 failures (heartbeat 30, pull 60); last error: "
        "connection refused",
    ]
    assert {vars(record)["broker"] for record in caplog.records} == {BROKER}


def test_a_failure_says_what_is_done_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    Outages(ManualClock()).failed(BROKER, "send", "busy", meanwhile="others take the messages")
    assert lines(caplog) == [
        f"{BROKER}: send failed: busy; others take the messages, further failures are reported "
        "every 30 s"
    ]


def test_the_end_of_an_outage_is_logged_once_and_the_next_one_warns_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ordermq.client")
    clock = ManualClock()
    outages = Outages(clock)
    outages.answered(BROKER)
    outages.failed(BROKER, "pull", "x")
    clock.advance(31_000)
    outages.answered(BROKER)
    outages.answered(BROKER)
    outages.failed(BROKER, "pull", "x")
    texts = lines(caplog, logging.INFO)
    assert texts[1:2] == [f"{BROKER}: answers again after 31 s and 1 failures"]
    assert texts[2] == texts[0]
    assert len(texts) == 3


def test_a_broker_that_answers_now_and_then_does_not_warn_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    for _ in range(29):
        outages.failed(BROKER, "heartbeat", "no answer")
        clock.advance(1_000)
        outages.answered(BROKER)
    assert len(lines(caplog)) == 1


def test_each_address_has_its_own_outage(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(ManualClock())
    outages.failed(BROKER, "pull", "x")
    outages.failed("127.0.0.1:10912", "pull", "x")
    assert len(lines(caplog)) == 2


def test_a_session_warns_once_of_a_dead_server_whatever_it_asks_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(session: ClientSession, server: WireServer, clock: ManualClock) -> None:
        for topic in TOPICS:
            await session.routes.get(topic)
        await session.heartbeats.register()
        assert lines(caplog) == []
        await server.stop()
        await until(lambda: session.connections.writable_now(server.address) is None)
        began_ms = clock.now_ms()
        for _ in range(20):
            await ticking(clock, session.heartbeats.beat())
            await ticking(clock, session.routes.refresh_all())
        first, *summaries = lines(caplog)
        assert first.startswith(f"{server.address}: heartbeat failed: cannot connect")
        assert all("still failing after" in summary for summary in summaries)
        assert 0 < len(summaries) <= (clock.now_ms() - began_ms) // 30_000
        await session.disconnect()

    async def work() -> None:
        clock = ManualClock()

        def answer(line: Line, command: Command) -> None:
            body = b""
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                brokers = (BrokerData("b", {0: server.address}),)
                body = TopicRoute(brokers, (QueueData("b", 4, 4),)).to_body()
            line.send(command.reply(0, body=body))

        async with WireServer(answer) as server:
            session = ClientSession(server.address, RemotingConfig(), "me", clock=clock)
            try:
                await serve(session, server, clock)
            finally:
                session.runtime.release(session)

    run(work())


def test_a_refused_request_is_reported_apart_and_does_not_end_with_other_responses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ordermq.client")
    clock = ManualClock()
    outages = Outages(clock)
    for _ in range(60):
        outages.failed(BROKER, "heartbeat", BrokerError("no permission", response_code=16))
        outages.answered(BROKER)
        clock.advance(1_000)
    first, summary = lines(caplog, logging.INFO)
    assert first.startswith(f"{BROKER}: heartbeat failed: no permission")
    assert "still failing after 30 s: 30 failures (heartbeat 30)" in summary


def test_a_failure_long_after_the_last_one_begins_another_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    outages.failed(BROKER, "send", "x")
    clock.advance(600_000)
    outages.failed(BROKER, "send", "x")
    first, second = lines(caplog)
    assert first == second
