"""Start offsets of a group on RocketMQ's brokers: those of Java's client, or the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ordermq import Message, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.client.store_times import broker_wall_ms
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.interop.cluster import eventually
from tests.interop.run import Run

WAYS = ("orderly", "concurrently")


def consumer_of(run: Run, group: str, way: str, bodies: list[int], **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        group, name_servers=run.cluster.name_servers, commit_interval_ms=100, **settings
    )
    consumer.subscribe(run.topic)
    lock = threading.Lock()

    def take(messages: Sequence[Any], context: object) -> None:
        with lock:
            bodies.extend(int(bytes(message.body)) for message in messages)

    getattr(consumer, way)(take)
    return consumer


def send(run: Run, *numbers: int) -> None:
    for number in numbers:
        run.producer.send(Message(run.topic, str(number).encode()), sharding_key="k")


def test_a_broker_tells_the_clock_that_its_store_times_are_of(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    client = run.producer._client
    assert client is not None
    send(run, 0)
    before_ms = client.clock.wall_ms()
    told_ms = client.call(broker_wall_ms(client, "broker-a"))
    after_ms = client.clock.wall_ms()
    assert told_ms is not None
    assert before_ms - 1_000 <= told_ms <= after_ms


@pytest.mark.parametrize("where", ["first_offset", "last_offset", "timestamp"])
def test_a_new_group_starts_where_javas_does_but_for_a_time_that_it_asks_for(
    run: Run, where: str
) -> None:
    """In a young queue Java's client starts at 0, whatever time it was given."""
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    send(run, 0, 1, 2)
    # Java's setting has seconds.
    middle_s = int(time.time()) + 1
    eventually(lambda: time.time() > middle_s, "the second between both halves")
    send(run, 3, 4)
    java = run.java(
        group=f"{run.group}-java",
        where=f"CONSUME_FROM_{where.upper()}",
        timestamp=time.strftime("%Y%m%d%H%M%S", time.localtime(middle_s)),
    )
    ours: list[int] = []
    try:
        with consumer_of(
            run, run.group, "orderly", ours,
            consume_from_where=where,
            consume_timestamp_ms=middle_s * 1_000 if where == "timestamp" else 0,
        ) as consumer:  # fmt: skip
            eventually(
                lambda: any(q.topic == run.topic for q in consumer.assigned_queues()), "its queue"
            )
            eventually(lambda: javas_offset(run) is not None, "Java's begins")
            send(run, 5)
            eventually(lambda: 5 in ours, "what came last")
        theirs = [int(java.read()["body"])]
        while theirs[-1] != 5:
            theirs.append(int(java.read()["body"]))
    finally:
        java.kill()
    if where == "timestamp" and run.cluster.version != "4.9.7":  # which says 0 in any case
        theirs = [number for number in theirs if number >= 3]
    assert ours == theirs


def javas_offset(run: Run) -> int | None:
    """Wait for the first commit of Java's group and return it."""
    ext = {"consumerGroup": f"{run.group}-java", "topic": run.topic, "queueId": "0"}
    ext |= {"setZeroIfNotFound": "false"}
    answer = run.cluster.ask("broker-a", RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(answer.ext["offset"]) if answer.code == 0 else None


@pytest.mark.parametrize("way", WAYS)
def test_an_offset_beyond_the_end_of_a_queue_becomes_its_first(
    run: Run, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulate a topic that was made anew while the group was away."""
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    send(run, 0, 1, 2)
    bodies: list[int] = []
    settings = {"consume_from_where": "first_offset"}
    with consumer_of(run, run.group, way, bodies, **settings):
        eventually(lambda: bodies == [0, 1, 2], "all there is")
    ext = {"consumerGroup": run.group, "topic": run.topic, "queueId": "0", "commitOffset": "500"}
    assert run.cluster.ask("broker-a", RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0
    with consumer_of(run, run.group, way, bodies, **settings):
        eventually(
            lambda: any("offset 0 of 0-3, not 500" in text for text in caplog.messages),
            "the log says what is there, and what is not",
        )
        send(run, 3, 4)
        eventually(lambda: len(bodies) >= 8, "all there is, and what came after")
    assert bodies == [0, 1, 2, 0, 1, 2, 3, 4]
    ext = {"consumerGroup": run.group, "topic": run.topic, "queueId": "0"}
    answer = run.cluster.ask("broker-a", RequestCode.QUERY_CONSUMER_OFFSET, ext)
    assert answer.ext["offset"] == "5"


def answers(
    ask: Callable[[dict[str, str]], Command], group: str, topic: str
) -> list[tuple[int, str | None]]:
    """A broker's answers to a new group of a queue: to one that starts, and of what is stored."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return [
        (answer.code, answer.ext.get("offset"))
        for answer in (ask(ext), ask(ext | {"setZeroIfNotFound": "false"}))
    ]


def test_the_embedded_broker_answers_a_new_group_as_rocketmq_does(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    send(run, 0, 1, 2)
    theirs = answers(
        lambda ext: run.cluster.ask("broker-a", RequestCode.QUERY_CONSUMER_OFFSET, ext),
        run.group,
        run.topic,
    )
    with EmbeddedBroker() as broker, WireClient(broker.port, "client") as client:
        for number in range(3):
            client.send(run.topic, str(number).encode())
        ours = answers(
            lambda ext: client.call(RequestCode.QUERY_CONSUMER_OFFSET, ext), run.group, run.topic
        )
    assert ours[0] == theirs[0] == (0, "0"), "a young queue: the group starts at its first message"
    if run.cluster.version != "4.9.7":  # which does not know the field, and says 0
        assert ours[1][0] == theirs[1][0] == ResponseCode.QUERY_NOT_FOUND
