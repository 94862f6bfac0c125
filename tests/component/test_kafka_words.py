"""Calls of asynchronous clients that stand for words of Kafka, as a newcomer tries them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from ordermq import Admin, AsyncConsumer, AsyncProducer, Message, MessageQueue
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main as command
from tests.component.conftest import eventually

QUEUES = 6


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", queues=QUEUES)
    return broker.name_servers


async def send(producer: AsyncProducer, count: int, word: str = "order") -> None:
    await producer.send_many(
        (Message("orders", f"{word} {number}".encode()), f"c-{number % 20}")
        for number in range(count)
    )


async def take(consumer: AsyncConsumer, count: int) -> list[str]:
    """Return the texts of so many messages, and commit them."""
    texts: list[str] = []
    async for batch in consumer:
        texts += [message.text() for message in batch]
        await batch.commit()
        if len(texts) >= count:
            break
    return texts


def another_millisecond() -> datetime:
    """Return a time later than that of all messages: the broker's clock has milliseconds."""
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    eventually(lambda: datetime.now(UTC).timestamp() * 1_000 > now_ms + 2, "later")
    return datetime.now(UTC)


def test_a_rebalance_listener_pause_resume_and_seek_of_an_async_consumer(servers: str) -> None:
    events: list[tuple[str, int]] = []

    async def run() -> None:
        consumer = AsyncConsumer(
            "g",
            "orders",
            name_servers=servers,
            consume_from_where="first_offset",  # auto.offset.reset=earliest
            on_assigned=lambda queue: events.append(("assigned", queue.queue_id)),
            on_revoked=lambda queue: events.append(("revoked", queue.queue_id)),
        )
        async with AsyncProducer("shop", name_servers=servers) as producer, consumer:
            await send(producer, 100)
            assert len(await take(consumer, 100)) == 100
            queues = consumer.assigned_queues()
            for queue in queues:
                await consumer.pause(queue)
            await send(producer, 100, "later")
            async for _ in consumer.batches(timeout_ms="300ms"):
                pytest.fail("a paused queue was read")
            await consumer.resume()
            assert sorted(await take(consumer, 100)) == sorted(f"later {n}" for n in range(100))
            for queue in queues:
                await consumer.seek(queue, 0)  # seek_to_beginning
            assert len(await take(consumer, 200)) == 200
            assert len(queues) == QUEUES

    asyncio.run(run())
    everything = {(what, queue) for what in ("assigned", "revoked") for queue in range(QUEUES)}
    assert set(events) == everything
    assert len(events) == len(everything)


def test_a_partitioner_chooses_the_queue_of_each_message(servers: str) -> None:
    def first(queues: Any, message: Message, key: str | int) -> MessageQueue:
        return queues[0]

    async def run() -> set[int]:
        async with AsyncProducer("shop", name_servers=servers, selector=first) as producer:
            messages = [(Message("orders", b"x"), f"c-{number}") for number in range(9)]
            receipts = await producer.send_many(messages)
        return {receipt.message_queue.queue_id for receipt in receipts}

    assert len(asyncio.run(run())) == 1


@pytest.mark.parametrize("way", ["setting", "admin", "command"])
def test_another_group_replays_from_a_time_and_the_first_keeps_its_offsets(
    servers: str, way: str
) -> None:
    def committed() -> dict[MessageQueue, int]:
        with Admin(servers) as admin:
            progress = admin.group("billing", ["orders"]).progress
        return {queue: each.committed for queue, each in progress.items()}

    async def run() -> None:
        async with AsyncProducer("shop", name_servers=servers) as producer:
            await send(producer, 40, "old")
            moment = await asyncio.to_thread(another_millisecond)
            await send(producer, 60, "new")
        start = {"consume_from_where": "first_offset"}
        async with AsyncConsumer("billing", "orders", name_servers=servers, **start) as consumer:
            await take(consumer, 100)
        before = await asyncio.to_thread(committed)
        settings: dict[str, Any] = {}
        if way == "setting":
            settings = {"consume_from_where": "timestamp", "consume_timestamp_ms": moment}
        elif way == "admin":
            await asyncio.to_thread(reset, moment)
        else:
            line = (
                f"reset replay orders --to-time {moment.isoformat()} --yes --name-servers {servers}"
            )
            done = await asyncio.to_thread(CliRunner().invoke, command, line.split())
            assert done.exit_code == 0, done.output
        async with AsyncConsumer("replay", "orders", name_servers=servers, **settings) as consumer:
            assert sorted(await take(consumer, 60)) == sorted(f"new {n}" for n in range(60))
        assert await asyncio.to_thread(committed) == before
        assert sum(before.values()) == 100

    def reset(moment: datetime) -> None:
        with Admin(servers) as admin:
            admin.reset("replay", "orders", moment)

    asyncio.run(run())
