"""Key lanes: one consumer whose listener waits, with as many keys at once as it is told.

With --bare no messages are consumed: threads, or tasks, that only wait, one call after the other.
What those reach is what this machine's interpreter allows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from ordermq import MessageView, PushConsumer
from ordermq.core import IMPLEMENTATION
from ordermq.remoting.event_loop import new_event_loop


class Count:
    """Counts calls from many threads, and takes the time between two of them."""

    def __init__(self, warm: int, last: int) -> None:
        self.warm = warm
        self.last = last
        self.done = threading.Event()
        self.next = itertools.count(1).__next__  # one C call, so no lock is needed
        self.began = self.ended = (0.0, 0.0)

    def take(self) -> bool:
        """Count a call; False from the last one on."""
        number = self.next()
        if number == self.warm:
            self.began = time.perf_counter(), time.process_time()
        elif number == self.last:
            self.ended = time.perf_counter(), time.process_time()
            self.done.set()
        return number < self.last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True, help="messages before the clock starts")
    parser.add_argument("--wait-ms", type=float, required=True, help="of each call")
    parser.add_argument("--at-once", type=int, required=True, help="calls: threads, or tasks")
    parser.add_argument("--kind", choices=("threads", "tasks"), required=True)
    parser.add_argument("--bare", action="store_true")
    asked = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    count = Count(asked.warm, asked.messages)
    if asked.bare:
        wait_only(asked, count)
    else:
        consume(asked, count)
    print(
        json.dumps(
            {
                "peer": f"{'bare' if asked.bare else 'ordermq'}, {asked.kind}",
                "messages": asked.messages - asked.warm,
                "seconds": count.ended[0] - count.began[0],
                "cpu_seconds": count.ended[1] - count.began[1],
                "detail": {"core": IMPLEMENTATION},
            }
        )
    )


def wait_only(asked: argparse.Namespace, count: Count) -> None:
    """Make the same calls without a consumer."""
    wait_s = asked.wait_ms / 1_000

    def wait_in_thread() -> None:
        while count.take():
            time.sleep(wait_s)

    async def wait_in_task() -> None:
        while count.take():
            await asyncio.sleep(wait_s)

    async def wait_in_tasks() -> None:
        await asyncio.gather(*(wait_in_task() for _ in range(asked.at_once)))

    if asked.kind == "tasks":
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(wait_in_tasks())
        return
    threads = [threading.Thread(target=wait_in_thread) for _ in range(asked.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def consume(asked: argparse.Namespace, count: Count) -> None:
    """Consume until enough messages have been counted."""
    wait_s = asked.wait_ms / 1_000

    def listen(messages: Sequence[MessageView], context: Any) -> None:
        time.sleep(wait_s)
        count.take()

    async def listen_async(messages: Sequence[MessageView], context: Any) -> None:
        await asyncio.sleep(wait_s)
        count.take()

    is_async = asked.kind == "tasks"
    consumer = PushConsumer(
        asked.group,
        name_servers=asked.address,
        consume_from_where="first_offset",
        order_by_key=True,
        consume_thread_count=asked.at_once,
        # All threads may be with one queue; the tasks have no other limit than this one.
        max_in_flight_per_queue=asked.at_once // asked.queues if is_async else asked.at_once,
    )
    consumer.subscribe(asked.topic)
    consumer.orderly(listen_async if is_async else listen)
    with consumer:
        if not count.done.wait(300):
            raise SystemExit(f"not {asked.messages} messages within 300 s")


if __name__ == "__main__":
    main()
