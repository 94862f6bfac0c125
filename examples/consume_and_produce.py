"""Payments in, receipts out, on an event loop: each customer's in order, malformed ones put aside.

    python examples/consume_and_produce.py

A receipt follows each payment. A batch that fails comes again, message by message, and what was
counted of it is not counted twice. The sums live as long as the process: exactly_once.py has those
that outlive it.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from ordermq import (
    AsyncConsumer,
    AsyncProducer,
    DeadLetter,
    JsonCodec,
    LitePullConsumer,
    Message,
    Retry,
)
from ordermq.broker import EmbeddedBroker


@dataclass
class Payment:
    customer: str
    number: int
    cents: int


@dataclass
class Receipt:
    customer: str
    number: int
    total_cents: int


POLICY = DeadLetter(
    retry=Retry(backoff_ms=20, factor=2, max_ms=1_000),
    retry_on=ConnectionError,  # no fault of the message: again, without end
    dead_letter_on=ValueError,  # no retry will mend it
)


async def transform(consumer: AsyncConsumer, producer: AsyncProducer) -> None:
    done: dict[str, Receipt] = {}
    async for batch in consumer:
        with batch:  # an exception in it: POLICY decides, and the loop goes on
            for message in batch:
                payment: Payment = message.value()
                if payment.cents <= 0:
                    raise ValueError(f"a payment of {payment.cents} cents")
                last = done.get(payment.customer, Receipt(payment.customer, 0, 0))
                if payment.number > last.number:  # not counted again when it is repeated
                    total = last.total_cents + payment.cents
                    last = Receipt(payment.customer, payment.number, total)
                    receipt = producer.message("receipts", last)
                    await producer.send(receipt, sharding_key=payment.customer)
                    done[payment.customer] = last  # only now: after a failed send it comes again


def payments(producer: AsyncProducer) -> Iterator[tuple[Message, str]]:
    for number in range(1, 21):
        for customer in ("ann", "bob"):
            cents = -1 if (customer, number) == ("bob", 7) else number
            yield producer.message("payments", Payment(customer, number, cents)), customer


async def main(name_servers: str) -> None:
    async with AsyncProducer("desk", name_servers=name_servers, codec=JsonCodec(Payment)) as desk:
        await desk.send_many(payments(desk))
    async with (
        AsyncProducer("till", name_servers=name_servers, codec=JsonCodec(Receipt)) as producer,
        AsyncConsumer(
            "till",
            "payments",
            name_servers=name_servers,
            consume_from_where="first_offset",
            codec=JsonCodec(Payment),
            on_failure=POLICY,
        ) as consumer,
    ):
        worker = asyncio.create_task(transform(consumer, producer))
        latest = await asyncio.to_thread(last_receipts, name_servers)
        await consumer.close()  # the present batch is finished, and the loop of `worker` ends
        await worker
    for customer, receipt in sorted(latest.items()):
        print(f"{customer}: {receipt.total_cents} cents in {receipt.number}")


def last_receipts(name_servers: str) -> dict[str, Receipt]:
    """Read receipts until those of both customers' last payments are there."""
    latest: dict[str, Receipt] = {}
    with LitePullConsumer(
        "reader",
        name_servers=name_servers,
        consume_from_where="first_offset",
        codec=JsonCodec(Receipt),
    ) as reader:
        reader.subscribe("receipts")
        for batch in reader.batches():
            for message in batch:
                receipt: Receipt = message.value()
                latest[receipt.customer] = receipt
            if [each.number for each in latest.values()] == [20, 20]:
                break
    return latest


if __name__ == "__main__":
    logging.getLogger("ordermq").setLevel(logging.CRITICAL)  # the failure is wanted here
    with EmbeddedBroker() as broker:
        asyncio.run(main(broker.name_servers))
