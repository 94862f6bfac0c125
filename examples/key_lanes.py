"""Work on the keys of one queue in parallel, each in order: for listeners that wait.

python examples/key_lanes.py
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker

KEYS, EACH, WORK_S = 20, 5, 0.02


def main() -> None:
    steps: dict[str, list[int]] = defaultdict(list)
    lock, done = threading.Lock(), threading.Event()

    def work(messages: Any, context: Any) -> None:
        time.sleep(WORK_S)  # a request to some other service
        with lock:
            for message in messages:
                steps[message.sharding_key].append(int(message.text()))
            if sum(map(len, steps.values())) == KEYS * EACH:
                done.set()

    with EmbeddedBroker() as broker:
        with Producer(
            "shop", name_servers=broker.name_servers, default_topic_queue_nums=1
        ) as producer:
            for number in range(EACH):
                for key in range(KEYS):
                    producer.send(Message("orders", str(number).encode()), sharding_key=f"o-{key}")
        consumer = PushConsumer(
            "billing",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            order_by_key=True,
            consume_thread_count=KEYS,
        )
        consumer.subscribe("orders")
        consumer.orderly(work)
        with consumer:
            done.wait(60)
    in_order = all(numbers == list(range(EACH)) for numbers in steps.values())
    print(f"{len(steps)} keys of one queue, each in order: {in_order}")


if __name__ == "__main__":
    main()
