"""Clients with dead and silent name servers in their list, which no call waits for
(docs/internals/semantics.md#routes)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import Seen, eventually
from tests.component.name_server import NameServer
from tests.silent_addresses import blackholed, dead, stalled

TOPICS = [f"orders-{number}" for number in range(5)]
# Who waits for a server that is away waits so long. Nobody does: the next is asked after 0.25 s.
WAITS: dict[str, Any] = {"connect_timeout_ms": 300_000, "request_timeout_ms": 300_000}
IN_TIME_S = 60.0


def in_time(work: Callable[[], object]) -> None:
    began = time.monotonic()
    work()
    assert time.monotonic() - began < IN_TIME_S, "it waited for a server that is away"


@pytest.mark.parametrize("away", [dead, blackholed, stalled])
def test_a_name_server_that_is_away_is_not_waited_for(
    broker: EmbeddedBroker, seen: Seen, away: Callable[[], contextlib.AbstractContextManager[str]]
) -> None:
    names = NameServer()
    for topic in TOPICS:  # not the group's retry topic: "no such topic" is an answer, too
        names.register("b", broker, topic, 2)
    with away() as first:
        servers = [first, names.address, first]
        consumer = PushConsumer(
            "g", name_servers=servers, consume_from_where="first_offset", **WAITS
        )
        for topic in TOPICS:
            consumer.subscribe(topic)
        consumer.orderly(seen.take)
        producer = Producer("p", name_servers=servers, **WAITS)
        try:
            in_time(consumer.start)
            producer.start()
            for topic in TOPICS:
                in_time(lambda topic=topic: producer.send(Message(topic, b"x"), sharding_key="k"))  # type: ignore[misc]
            client = consumer._member.client  # type: ignore[union-attr]
            in_time(lambda: client.call(client.routes.refresh_all()))
            seen.wait_for_count(len(TOPICS))
        finally:
            producer.close()
            consumer.close(5.0)
    names.close()


def test_name_servers_killed_in_turn_under_load_stop_nothing(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    ports: list[int] = []
    names: list[NameServer] = []

    def start(port: int = 0) -> NameServer:
        server = NameServer(port)
        for topic in [*TOPICS, "%RETRY%g"]:
            server.register("b", broker, topic, 2)
        return server

    for _ in range(3):
        names.append(start())
        ports.append(int(names[-1].address.rpartition(":")[2]))
    servers = [server.address for server in names]
    consumer = PushConsumer(
        "g", name_servers=servers, consume_from_where="first_offset", route_interval_ms=20, **WAITS
    )
    for topic in TOPICS:
        consumer.subscribe(topic)
    consumer.orderly(seen.take)
    sent, stop = [0], threading.Event()
    late: list[AssertionError] = []
    with consumer, Producer("p", name_servers=servers, route_interval_ms=20, **WAITS) as producer:

        def flow() -> None:
            while not stop.is_set():
                message = Message(TOPICS[sent[0] % len(TOPICS)], str(sent[0]).encode())
                try:
                    in_time(lambda: producer.send(message, sharding_key="k"))  # noqa: B023
                except AssertionError as error:
                    late.append(error)
                sent[0] += 1

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            for turn in range(6):
                victim = turn % 3
                names[victim].close()
                survivors = [one for place, one in enumerate(names) if place != victim]
                asked = sum(one.asked for one in survivors)
                eventually(
                    lambda: sum(one.asked for one in survivors) > asked + 20,  # noqa: B023
                    "the others are asked",
                )
                names[victim] = start(ports[victim])
                # A new client, too, starts at once.
                with Producer("other", name_servers=servers, **WAITS) as other:
                    in_time(lambda: other.send(Message(TOPICS[0], b"-")))
                    sent[0] += 1
        finally:
            stop.set()
            thread.join()
        seen.wait_for_count(sent[0])
        assert len(seen.deliveries) == sent[0], "each once"
        assert not late
        assert consumer.statistics["leases_lost"] == 0
    for server in names:
        server.close()
