"""Put messages aside that never succeed, and send them again once the cause is mended.

python examples/dead_letters.py
"""

from __future__ import annotations

import threading
from typing import Any

from ordermq import Admin, DeadLetter, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker


def main() -> None:
    is_mended = threading.Event()
    all_billed = threading.Event()
    billed: list[str] = []

    def bill(messages: Any, context: Any) -> None:
        for message in messages:
            if message.text() == "malformed" and not is_mended.is_set():
                raise ValueError("no amount")
            billed.append(message.text())
        if len(billed) == 4:
            all_billed.set()

    with EmbeddedBroker() as broker:
        servers = broker.name_servers
        with Producer("shop", name_servers=servers) as producer:
            for step in ("placed", "malformed", "paid", "shipped"):
                producer.send(Message("orders", step.encode()), sharding_key="o-17")
        consumer = PushConsumer(
            "billing",
            name_servers=servers,
            consume_from_where="first_offset",
            on_failure=DeadLetter(max_attempts=2),
            suspend_current_queue_time_ms=10,
        )
        consumer.subscribe("orders")
        consumer.orderly(bill)
        with consumer, Admin(name_servers=servers) as admin:
            while not admin.dead_letters():
                all_billed.wait(0.05)
            print("given up:", [letter.text() for letter in admin.peek("%DLQ%billing")])
            is_mended.set()
            print("sent again:", admin.redrive("billing").sent)
            all_billed.wait(30)
        print("billed:", *billed)


if __name__ == "__main__":
    main()
