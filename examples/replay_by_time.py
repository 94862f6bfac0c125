"""Consume everything again that was stored from a point in time on.

python examples/replay_by_time.py
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from ordermq import Admin, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker


def main() -> None:
    seen: list[str] = []
    changed = threading.Condition()

    def note(messages: Any, context: Any) -> None:
        with changed:
            seen.extend(message.text() for message in messages)
            changed.notify_all()

    def wait_for(count: int) -> None:
        with changed:
            changed.wait_for(lambda: len(seen) >= count, 30)

    with EmbeddedBroker() as broker, Producer("shop", name_servers=broker.name_servers) as producer:
        for number in range(3):
            producer.send(Message("orders", f"yesterday {number}".encode()), sharding_key="o-17")
        threading.Event().wait(0.02)  # the broker's clock has milliseconds
        midnight = datetime.now(UTC)
        for number in range(3):
            producer.send(Message("orders", f"today {number}".encode()), sharding_key="o-17")
        consumer = PushConsumer(
            "reports", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        consumer.orderly(note)
        with consumer, Admin(name_servers=broker.name_servers) as admin:
            wait_for(6)
            # The running member finishes its batch and goes there; nothing is stopped by hand.
            admin.reset("reports", "orders", midnight)
            wait_for(9)
    print(*seen[6:], sep="\n")


if __name__ == "__main__":
    main()
