"""One consumer in bench_queues: it catches up, is left alone, and is closed."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence

import ordermq
from bench.peak_memory import peak_mib
from ordermq import MessageQueue, MessageView, PushConsumer
from ordermq.core import IMPLEMENTATION

_SETTLE_S = 6.0  # the last commits are sent by then, and every queue's pull waits at the broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True, help="messages before the clock starts")
    parser.add_argument(
        "--idle-seconds", type=float, default=0.0, help="watch it so long; 0: not at all"
    )
    asked = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    done, lock = threading.Event(), threading.Lock()
    counted = 0
    began = ended = (0.0, 0.0)
    assigned: set[MessageQueue] = set()

    def listen(messages: Sequence[MessageView], context: object) -> None:
        nonlocal counted, began, ended
        with lock:
            if counted <= asked.warm < counted + len(messages):
                began = time.perf_counter(), time.process_time()
            counted += len(messages)
            if counted == asked.messages:
                ended = time.perf_counter(), time.process_time()
                done.set()

    consumer = PushConsumer(
        asked.group,
        name_servers=asked.address,
        consume_from_where="first_offset",
        consume_message_batch_max_size=32,
        on_assigned=assigned.add,
    )
    consumer.subscribe(asked.topic)
    consumer.orderly(listen)
    consumer.start()
    if not done.wait(300):
        raise SystemExit(f"only {counted} of {asked.messages} messages within 300 s")
    # There is one more, of the group's retry topic.
    of_topic = sum(queue.topic == asked.topic for queue in assigned)
    if of_topic != asked.queues:
        raise SystemExit(f"{of_topic} of {asked.queues} queues were assigned")
    idle_share = share_of_a_core(asked.idle_seconds) if asked.idle_seconds else None
    closing = time.perf_counter()
    consumer.close()
    close_s = time.perf_counter() - closing
    row = {
        "peer": f"ordermq, {asked.queues} queues",
        "messages": asked.messages - asked.warm,
        "seconds": ended[0] - began[0],
        "cpu_seconds": ended[1] - began[1],
        "idle_share": idle_share,
        "close_seconds": close_s,
        "peak_mib": peak_mib(),
        "detail": {
            "core": IMPLEMENTATION,
            "ordermq": ordermq.__version__,
            "python": sys.version.split()[0],
        },
    }
    print(json.dumps(row))


def share_of_a_core(seconds: float) -> float:
    """Return the share of a core that this process takes while nothing comes."""
    time.sleep(_SETTLE_S)
    before, cpu_before = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu_before) / (time.perf_counter() - before)


if __name__ == "__main__":
    main()
