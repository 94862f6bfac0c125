"""ordermq in the latency benchmark: producer threads at a fixed rate, an orderly consumer."""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import ordermq
from bench.end_to_end.latency_arguments import arguments
from ordermq import Message, MessageView, Producer, PushConsumer
from ordermq.core import IMPLEMENTATION

_STAMP = struct.Struct(">q")


def main() -> None:
    asked = arguments(__doc__)
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    period_s = asked.keys / asked.rate
    taken: list[int] = []
    ready, done = threading.Event(), threading.Event()
    filler = bytes(asked.body_bytes - _STAMP.size)

    def listen(messages: Sequence[MessageView], context: object) -> None:
        now = time.perf_counter_ns()
        body = messages[0].body
        if len(body) < _STAMP.size:
            ready.set()  # what made the topic
            return
        taken.append(now - _STAMP.unpack_from(body)[0])
        if len(taken) == asked.warm + asked.messages:
            done.set()

    def send(number: int) -> None:
        first = begin + number * period_s / asked.keys
        key = f"k{number}"
        for sent in range((asked.warm + asked.messages) // asked.keys):
            due = first + sent * period_s
            sleep_until(due)
            # Not the time of this moment: a send that is late, because the one before took so
            # long, must count its wait.
            producer.send(Message(asked.topic, stamp_of(due) + filler), sharding_key=key)

    consumer = PushConsumer(
        asked.group, name_servers=asked.address, consume_from_where="first_offset"
    )
    consumer.subscribe(asked.topic)
    consumer.orderly(listen)
    with consumer:
        if not ready.wait(60):
            raise SystemExit("not one message within 60 s")
        time.sleep(2)  # the other queues, too, are locked and pulled
        with Producer("bench", name_servers=asked.address) as producer:
            begin = time.perf_counter() + 0.1
            with ThreadPoolExecutor(asked.keys) as pool:
                senders = [pool.submit(send, number) for number in range(asked.keys)]
                sleep_until(begin + asked.warm / asked.keys * period_s)
                wall, cpu = time.perf_counter(), time.process_time()
                for sender in senders:
                    sender.result()
            if not done.wait(60):
                raise SystemExit(f"only {len(taken)} messages came")
            seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    print(
        json.dumps(
            {
                "peer": "ordermq",
                "messages": asked.messages,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "latencies_us": [ns // 1_000 for ns in taken[asked.warm :]],
                "detail": {
                    "core": IMPLEMENTATION,
                    "ordermq": ordermq.__version__,
                    "python": sys.version.split()[0],
                },
            }
        )
    )


def stamp_of(due_s: float) -> bytes:
    """Return what a message carries: the time at which it was due, in ns of the perf_counter."""
    return _STAMP.pack(round(due_s * 1e9))


def sleep_until(when: float) -> None:
    if (left := when - time.perf_counter()) > 0:
        time.sleep(left)


if __name__ == "__main__":
    main()
