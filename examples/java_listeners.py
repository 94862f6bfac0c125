"""Listeners as Java's client has them: a MessageQueueSelector, tags, SUSPEND and RECONSUME_LATER.

python examples/java_listeners.py

The orderly listener suspends its queue at one order, at most five times; the concurrent one gets a
mail again after a second, as with `setDelayLevelWhenNextConsume(1)`. What never succeeds is a dead
letter, which is sent again once its cause is mended.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ordermq import (
    Admin,
    ConcurrentContext,
    ConsumeContext,
    ConsumeResult,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker

ORDERS = 40


def by_number(queues: Sequence[MessageQueue], message: Message, key: str | int) -> MessageQueue:
    """MessageQueueSelector: the queue of an order, by its number."""
    return queues[int(str(key).removeprefix("o-")) % len(queues)]


def send(servers: str) -> None:
    with Producer("shop", name_servers=servers, selector=by_number) as producer:
        used = set()
        for step in ("created", "paid", "shipped"):
            for number in range(ORDERS):
                message = Message(
                    "orders",
                    step.encode(),
                    tags=step,
                    keys=f"o-{number}",
                    properties={"amount": str(number)},
                )
                receipt = producer.send(message, sharding_key=f"o-{number}")
                used.add((number % 8, receipt.message_queue.queue_id))
        print("queues used:", len(used))
        for name in ("ann", "bob"):
            producer.send(Message("mails", name.encode(), keys=name))


def bill(servers: str) -> None:
    """MessageListenerOrderly with a tag expression."""
    consumer = PushConsumer(
        "billing",
        name_servers=servers,
        consume_from_where="first_offset",
        max_reconsume_times=5,  # without a limit by default, as in Java
    )
    consumer.subscribe("orders", "paid || shipped")
    billed: list[str] = []
    attempts = 0
    done = threading.Event()

    @consumer.orderly
    def book(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        nonlocal attempts
        (message,) = messages  # consumeMessageBatchMaxSize is 1
        if (message.sharding_key, message.tags) == ("o-7", "paid"):
            attempts += 1
            if message.reconsume_times < 3:
                context.suspend_ms = 20
                return ConsumeResult.SUSPEND  # SUSPEND_CURRENT_QUEUE_A_MOMENT
        billed.append(f"{message.sharding_key} {message.tags}")
        if len(billed) == 2 * ORDERS:
            done.set()
        return ConsumeResult.SUCCESS

    with consumer:
        done.wait(60)
    of_seven = [each for each in billed if each.startswith("o-7 ")]
    print(f"billed {len(billed)} of {2 * ORDERS}; {of_seven}, the first at attempt {attempts}")


def report(servers: str) -> None:
    """A condition on a property, in the member; `subscribe(sql=...)` asks RocketMQ's brokers."""
    consumer = PushConsumer("reports", name_servers=servers, consume_from_where="first_offset")
    consumer.subscribe("orders", "created")
    consumer.add_filter(lambda message: int(message.get_property("amount") or 0) > 36)
    amounts: list[str | None] = []
    done = threading.Event()

    @consumer.orderly
    def note(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        amounts.extend(message.get_property("amount") for message in messages)
        if len(amounts) == 3:
            done.set()

    with consumer:
        done.wait(60)
    print("large orders:", *sorted(amounts, key=str))


def mail(servers: str) -> None:
    """MessageListenerConcurrently, and its dead letter."""
    consumer = PushConsumer(
        "mailing", name_servers=servers, consume_from_where="first_offset", max_reconsume_times=1
    )
    consumer.subscribe("mails")
    is_mended = threading.Event()
    delivered = threading.Semaphore(0)
    sent: list[str] = []

    @consumer.concurrently
    def deliver(messages: Sequence[MessageView], context: ConcurrentContext) -> ConsumeResult:
        for message in messages:
            if message.text() == "bob" and not is_mended.is_set():
                context.delay_level = 1  # a second
                return ConsumeResult.SUSPEND  # RECONSUME_LATER
            sent.append(message.text())
            delivered.release()
        return ConsumeResult.SUCCESS

    with consumer, Admin(servers) as admin:
        delivered.acquire(timeout=60)
        pause = threading.Event()
        while not admin.dead_letters():
            pause.wait(0.05)
        (letter,) = admin.peek("%DLQ%mailing")
        print("dead letter:", letter.text(), letter.keys)
        is_mended.set()
        print("sent again:", admin.redrive("mailing").sent)
        delivered.acquire(timeout=60)
    print("mails:", *sent)


def main() -> None:
    with EmbeddedBroker() as broker:
        with Admin(broker.name_servers) as admin:
            admin.create_topic("orders", queues=8)
        send(broker.name_servers)
        bill(broker.name_servers)
        report(broker.name_servers)
        mail(broker.name_servers)


if __name__ == "__main__":
    main()
