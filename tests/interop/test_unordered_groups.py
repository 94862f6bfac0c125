"""Concurrent and broadcasting groups on RocketMQ."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import ConsumeResult, PushConsumer
from ordermq.client.broker_api import BrokerApi
from ordermq.errors import BrokerError
from ordermq.model.names import dead_letter_topic
from tests.interop.cluster import eventually
from tests.interop.run import Run

Make = Callable[..., PushConsumer]


class Seen:
    """Bodies that listeners got, as numbers, with the topic they were stored in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken: list[tuple[int, str]] = []

    def take(self, messages: Any, context: Any) -> None:
        with self._lock:
            self.taken += [(int(bytes(m.body)), m.stored_topic) for m in messages]

    def counts(self) -> Counter[int]:
        with self._lock:
            return Counter(number for number, _ in self.taken)


@pytest.fixture
def make(run: Run) -> Iterator[Make]:
    made: list[PushConsumer] = []

    def start(listener: Any, group: str = "", topic: str = "", **settings: Any) -> PushConsumer:
        consumer = PushConsumer(
            group or run.group,
            name_servers=run.cluster.name_servers,
            **({"consume_from_where": "first_offset", "commit_interval_ms": 200} | settings),
        )
        consumer.subscribe(topic or run.topic)
        consumer.concurrently(listener)
        consumer.start()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close(10.0)


@pytest.mark.parametrize("way", ["given back", "sent again", "popped"])
def test_failed_messages_are_redelivered_or_become_dead_letters_and_none_is_lost(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    settings, retries = {}, f"%RETRY%{run.group}"
    if way == "popped":
        if run.cluster.version.startswith("4."):
            pytest.skip("brokers before 5.0 have no POP")
        settings, retries = {"consume_mode": "pop", "pop_poll_ms": 500}, f"{retries}_{run.topic}"
    if way == "sent again":

        async def refuse(*arguments: Any) -> None:
            raise BrokerError("a test's own refusal", response_code=1)

        monkeypatch.setattr(BrokerApi, "send_back", refuse)
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.send(60)
    seen, dead = Seen(), Seen()
    attempts: list[tuple[int, int]] = []

    def listen(messages: Any, context: Any) -> ConsumeResult:
        number = int(bytes(messages[0].body))
        assert messages[0].topic == run.topic
        if number in (7, 8):
            attempts.append((number, context.attempt))
            context.delay_level = 1 if number == 7 else -1
            if number == 8 or context.attempt < 2:
                return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    make(listen, **settings)
    eventually(lambda: len(seen.counts()) == 59, "all but the buried one")
    make(dead.take, group=f"{run.group}-dead", topic=dead_letter_topic(run.group))
    eventually(lambda: dead.counts() == Counter([8]), "the buried one")
    assert seen.counts() == Counter(n for n in range(60) if n != 8)
    assert (7, retries) in seen.taken
    assert sorted(attempts) == [(7, 0), (7, 1), (7, 2), (8, 0)]


def test_every_broadcasting_member_gets_everything_and_continues_from_its_offset(
    run: Run, make: Make
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.send(60)
    settings = {
        "message_model": "broadcasting",
        "local_offset_store_dir": str(run.folder / "offsets"),
    }
    seen = {name: Seen() for name in ("a", "b")}
    members = {name: make(seen[name].take, instance_name=name, **settings) for name in seen}
    for name in seen:
        eventually(lambda name=name: seen[name].counts() == Counter(range(60)), f"all at {name}")
    assert members["a"].close(10)
    run.send(60)
    make(seen["a"].take, instance_name="a", **settings)
    for name in seen:
        eventually(lambda name=name: seen[name].counts() == Counter(range(120)), f"all at {name}")


def test_broadcasting_members_of_java_and_ordermq_continue_from_each_others_offset_file(
    run: Run, make: Make
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    folder = run.folder / "offsets"

    def java_takes(count: int) -> str:
        """Let a Java member consume so many messages and leave; return its client id."""
        process = run.java(
            options=[f"-Drocketmq.client.localOffsetStoreDir={folder}"],
            mode="concurrent",
            broadcasting="true",
            instance="till-1",
        )
        try:
            taken = [int(process.read()["body"]) for _ in range(count)]
            client_id: str = process.ready
            process.leave()
            assert process.read() == {"left": True}, "it took more than that"
        finally:
            process.kill()
        assert sorted(taken) == list(range(run.sent - count, run.sent))
        return client_id

    run.send(60)
    client_id = java_takes(60)
    run.send(40)
    seen = Seen()
    member = make(
        seen.take,
        message_model="broadcasting",
        local_offset_store_dir=str(folder),
        instance_name="till-1",
        client_ip=client_id.partition("@")[0],
    )
    assert member.client_id == client_id
    eventually(lambda: seen.counts() == Counter(range(60, 100)), "what Java had not taken")
    assert member.close(10)
    run.send(20)
    java_takes(20)
