"""ordermq in bench_send: one producer process."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ordermq
from bench.end_to_end.send_arguments import arguments
from ordermq import Message, Producer, SendReceipt, SendStatus
from ordermq.core import IMPLEMENTATION


def keyed(producer: Producer, topic: str, body: bytes, keys: int, count: int) -> None:
    """Send with one unacknowledged message per key, from one thread."""
    events = ((Message(topic, body), f"k{number % keys}") for number in range(count))
    if keys == 1:
        for message, key in events:
            check(producer.send(message, sharding_key=key))
        return
    # bench.compare also runs versions in which `send_many` was the lazy form.
    stream = getattr(producer, "send_stream", producer.send_many)
    for receipt in stream(events, max_in_flight=keys):
        check(receipt)


def of_key(producer: Producer, topic: str, body: bytes, key: str, count: int) -> None:
    """Send messages of one key, one after the other."""
    for _ in range(count):
        check(producer.send(Message(topic, body), sharding_key=key))


def batches(
    producer: Producer, topic: str, body: bytes, number: int, batch: int, count: int
) -> None:
    """Send batches to one queue, one after the other."""
    queues = producer.queues(topic)
    queue = queues[number % len(queues)]
    for _ in range(0, count, batch):
        # Java's producer has one result for all, its ids joined; ours makes receipts when asked.
        check(producer.send_batch([Message(topic, body) for _ in range(batch)], queue=queue)[0])


def check(receipt: SendReceipt) -> None:
    """Check each receipt, as Java's sender does."""
    if receipt.status is not SendStatus.SEND_OK:
        raise SystemExit(f"not stored as it should be: {receipt}")


def main() -> None:
    asked = arguments(__doc__)
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    body = b"x" * asked.body_bytes
    producer = Producer("bench-ordermq", name_servers=asked.address)
    producer.start()
    started: list[float] = []

    def start_clock() -> None:
        started[:] = time.perf_counter(), time.process_time()

    def both(number: int) -> None:
        """Return a thread's share of the warm-up and of the timed messages."""
        for count in (asked.warm // asked.keys, asked.messages // asked.keys):
            if asked.batch > 1:
                batches(producer, asked.topic, body, number, asked.batch, count)
            else:
                of_key(producer, asked.topic, body, f"k{number}", count)
            if not started:
                begin.wait()

    begin = threading.Barrier(asked.keys, start_clock)
    if asked.batch > 1 or asked.threads:
        with ThreadPoolExecutor(asked.keys) as pool:
            list(pool.map(both, range(asked.keys)))
    else:
        keyed(producer, asked.topic, body, asked.keys, asked.warm)
        start_clock()
        keyed(producer, asked.topic, body, asked.keys, asked.messages)
    seconds, cpu_seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    producer.close()
    detail = {
        "core": IMPLEMENTATION,
        "ordermq": ordermq.__version__,
        "python": sys.version.split()[0],
    }
    print(
        json.dumps({
            "peer": "ordermq",
            "messages": asked.messages // asked.keys * asked.keys,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "detail": detail,
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
