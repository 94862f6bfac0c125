"""Clients with dead and silent name servers in their list: how long each call takes
(docs/internals/semantics.md#routes)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import Seen, eventually
from tests.component.name_server import NameServer
from tests.silent_addresses import blackholed, dead, stalled

TOPICS = [f"orders-{number}" for number in range(5)]
# The race takes 0.25 s. Before, each of these took one time-out of 3 s or more; what lies between
# is for a loaded machine.
ONE_RACE_S, NO_RACE_S = 2.0, 1.0


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.mark.parametrize("away", [dead, blackholed, stalled])
def test_a_name_server_that_is_away_delays_a_client_once_and_shortly(
    broker: EmbeddedBroker, seen: Seen, away: Callable[[], contextlib.AbstractContextManager[str]]
) -> None:
    names = NameServer()
    for topic in TOPICS:  # not the group's retry topic: "no such topic" is an answer, too
        names.register("b", broker, topic, 2)
    with away() as first:
        servers = [first, names.address, first]
        consumer = PushConsumer("g", name_servers=servers, consume_from_where="first_offset")
        for topic in TOPICS:
            consumer.subscribe(topic)
        consumer.orderly(seen.take)
        producer = Producer("p", name_servers=servers)
        try:
            assert seconds(consumer.start) < ONE_RACE_S
            producer.start()
            times = [
                seconds(lambda topic=topic: producer.send(Message(topic, b"x"), sharding_key="k"))  # type: ignore[misc]
                for topic in TOPICS
            ]
            assert times[0] < ONE_RACE_S
            assert max(times[1:]) < NO_RACE_S
            client = consumer._member.client  # type: ignore[union-attr]
            assert seconds(lambda: client.call(client.routes.refresh_all())) < NO_RACE_S
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
        "g", name_servers=servers, consume_from_where="first_offset", route_interval_ms=20
    )
    for topic in TOPICS:
        consumer.subscribe(topic)
    consumer.orderly(seen.take)
    slowest, sent, stop = [0.0], [0], threading.Event()
    with consumer, Producer("p", name_servers=servers, route_interval_ms=20) as producer:

        def flow() -> None:
            while not stop.is_set():
                message = Message(TOPICS[sent[0] % len(TOPICS)], str(sent[0]).encode())
                took = seconds(lambda: producer.send(message, sharding_key="k"))  # noqa: B023
                slowest[0] = max(slowest[0], took)
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
                with Producer("other", name_servers=servers) as other:
                    took = seconds(lambda: other.send(Message(TOPICS[0], b"-")))
                    assert took < ONE_RACE_S
                    sent[0] += 1
        finally:
            stop.set()
            thread.join()
        seen.wait_for_count(sent[0])
        assert len(seen.deliveries) == sent[0], "each once"
        assert slowest[0] < ONE_RACE_S
        assert consumer.statistics["leases_lost"] == 0
    for server in names:
        server.close()
