"""Delay messages and take one back, ask for a reply, send a batch, and broadcast.

python examples/delays_and_replies.py
"""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ordermq import (
    ConcurrentContext,
    ConsumeContext,
    Message,
    MessageView,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker


def delay(servers: str, producer: Producer) -> None:
    """Send messages that consumers see later; nothing comes early."""
    consumer = PushConsumer("reminders", name_servers=servers, consume_from_where="first_offset")
    consumer.subscribe("later")
    seen: dict[str, datetime] = {}
    done = threading.Event()

    @consumer.orderly
    def note(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        seen.update((message.text(), datetime.now(UTC)) for message in messages)
        if len(seen) == 3:
            done.set()

    now = datetime.now(UTC)
    at = now + timedelta(seconds=0.8)
    due = {
        "by span": now + timedelta(seconds=0.7),
        "at a time": at,
        "by level": now + timedelta(seconds=1),
    }
    producer.send(Message("later", b"by level", delay_level=1), sharding_key="r")  # 1 s
    producer.send(Message("later", b"at a time", deliver_at_ms=at), sharding_key="r")
    producer.send(Message("later", b"by span", delay_ms="700ms"), sharding_key="r")
    receipt = producer.send(Message("later", b"cancelled", delay_ms="900ms"), sharding_key="r")
    assert receipt.recall_handle is not None
    producer.recall("later", receipt.recall_handle)
    with consumer:
        done.wait(60)
    is_early = any(seen[text] < due[text] - timedelta(milliseconds=1) for text in seen)
    print(f"delayed: {', '.join(sorted(seen))}; early: {is_early}")


def ask(servers: str, producer: Producer) -> None:
    """Wait for the answer to a message."""
    consumer = PushConsumer("pricing", name_servers=servers, consume_from_where="first_offset")
    consumer.subscribe("prices")

    @consumer.concurrently
    def answer(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
        for message in messages:
            if message.wants_reply:
                producer.reply(message, f"{message.text()}: 12.50".encode())

    with consumer:
        print(producer.request(Message("prices", b"tea"), timeout_ms="30s").text())


def broadcast(servers: str, producer: Producer, folder: str) -> None:
    """Send a batch to every member of a group; each has its own offsets, in a file."""
    got: dict[str, list[str]] = defaultdict(list)
    all_got = threading.Semaphore(0)

    def member(name: str) -> PushConsumer:
        consumer = PushConsumer(
            "caches",
            name_servers=servers,
            message_model="broadcasting",
            instance_name=name,
            local_offset_store_dir=folder,
            consume_from_where="first_offset",
        )
        consumer.subscribe("changes")

        @consumer.concurrently
        def forget(messages: Sequence[MessageView], context: ConcurrentContext) -> None:
            for message in messages:
                got[name].append(message.text())
                all_got.release()

        return consumer

    receipts = producer.send_batch([Message("changes", b"%d" % n) for n in range(3)])
    print("places of the batch:", *(receipt.queue_offset for receipt in receipts))
    with member("a"), member("b"):
        for _ in range(6):
            all_got.acquire(timeout=60)
    print("broadcast:", *(f"{name}={sorted(got[name])}" for name in sorted(got)))


def main() -> None:
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        servers = broker.name_servers
        with Producer("shop", name_servers=servers) as producer:
            delay(servers, producer)
            ask(servers, producer)
            broadcast(servers, producer, folder)


if __name__ == "__main__":
    main()
