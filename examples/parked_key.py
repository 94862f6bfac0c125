"""Put a poisoned message aside with the later messages of its key, mend the cause, and go on.

python examples/parked_key.py

The listener is asked again with growing pauses, then the key is parked: its messages wait in a
topic of their own, in their order, and all other keys go on. The commands are those of the shell.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence

from ordermq import (
    AsyncConsumer,
    AsyncProducer,
    ConsumeContext,
    Message,
    MessageView,
    ParkKey,
    Retry,
)
from ordermq.broker import EmbeddedBroker


async def ordermq(name_servers: str, *words: str) -> str:
    """Run a command of ordermq, and return what it prints."""
    command = [sys.executable, "-m", "ordermq", *words, "--name-servers", name_servers]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


async def main(servers: str) -> None:
    is_mended = False
    attempts = 0
    booked: dict[str | None, list[str]] = defaultdict(list)
    consumer = AsyncConsumer(
        "billing",
        "orders",
        name_servers=servers,
        consume_from_where="first_offset",
        order_by_key=True,
        on_failure=ParkKey("parked-orders", max_attempts=4, retry=Retry(backoff_ms=20, factor=2)),
    )

    @consumer.orderly
    async def book(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        nonlocal attempts
        for message in messages:
            if message.text() == "poison" and not is_mended:
                attempts += 1
                raise ValueError("no amount in it")
            booked[message.sharding_key].append(message.text())

    async def until(customer: str, count: int) -> None:
        while len(booked[customer]) < count:
            await asyncio.sleep(0.02)

    async with AsyncProducer("shop", name_servers=servers) as producer:
        for step in ("placed", "paid", "shipped"):
            for customer in ("ann", "bob"):
                text = "poison" if (customer, step) == ("ann", "paid") else step
                await producer.send(Message("orders", text.encode()), sharding_key=customer)
    async with consumer:
        await until("bob", 3)
        while consumer.statistics["diverted"] < 2:  # the poison, and what followed it
            await asyncio.sleep(0.02)
        print(f"asked {attempts} times; ann: {booked['ann']}, bob: {booked['bob']}")
        parked = await ordermq(servers, "parked", "show", "parked-orders", "billing", "ann")
        print("parked:", *(text for text in ("poison", "shipped") if text in parked))
        is_mended = True
        await ordermq(servers, "parked", "redrive", "parked-orders", "billing", "ann", "--yes")
        await until("ann", 3)
    print("ann:", *booked["ann"])


if __name__ == "__main__":
    with EmbeddedBroker() as broker:
        asyncio.run(main(broker.name_servers))
