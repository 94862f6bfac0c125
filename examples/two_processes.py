"""Share a topic between two processes: each queue has one owner, also while one of them leaves.

python examples/two_processes.py
"""

from __future__ import annotations

import multiprocessing
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ordermq import Admin, ConsumeContext, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker

KEYS, EACH = 16, 10


def member(name_servers: str, seen: Any) -> None:
    """Consume until SIGTERM; then finish the batch, commit, and hand the queues over."""
    consumer = PushConsumer("billing", name_servers=name_servers, consume_from_where="first_offset")
    consumer.subscribe("orders")

    @consumer.orderly
    def bill(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        for message in messages:
            seen.put((message.sharding_key, int(message.text())))

    consumer.run()


def wait_for_owners(admin: Admin, count: int) -> None:
    """Return once every queue is held, by so many members together."""
    pause = threading.Event()
    while True:
        owners = [owner for owner, _ in admin.group("billing", ["orders"]).holdings.values()]
        if len(owners) == 8 and len(set(owners)) == count:
            print("owners of the 8 queues:", count)
            return
        pause.wait(0.02)


def main() -> None:
    # Spawned, not forked: a client belongs to the process that made it.
    processes = multiprocessing.get_context("spawn")
    seen = processes.SimpleQueue()
    with EmbeddedBroker() as broker, Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", 8)
        members = [
            processes.Process(target=member, args=(broker.name_servers, seen)) for _ in range(2)
        ]
        for each in members:
            each.start()
        wait_for_owners(admin, 2)
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for number in range(EACH):
                for key in range(KEYS):
                    producer.send(Message("orders", str(number).encode()), sharding_key=f"o-{key}")
                if number == EACH // 2:
                    members[0].terminate()  # in the middle of the work
        steps: dict[str, list[int]] = defaultdict(list)
        for _ in range(KEYS * EACH):
            key, number = seen.get()
            steps[key].append(number)
        wait_for_owners(admin, 1)
        members[1].terminate()
        for each in members:
            each.join()
    in_order = all(numbers == list(range(EACH)) for numbers in steps.values())
    print(f"{len(steps)} keys, each in order, nothing twice: {in_order and seen.empty()}")


if __name__ == "__main__":
    main()
