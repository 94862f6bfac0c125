"""New topics: the time from the first send of a topic to its listener, in a started consumer.

    python -m bench.end_to_end.new_topics --runs 200                on an embedded broker
    python -m bench.end_to_end.new_topics --name-servers HOST:PORT  on one that creates topics

Each run has a topic and a group of its own, which the broker creates. The consumer, of one kind
after the other, is started first and the first message is sent right behind it, while processes
that only count keep the machine busy. Prints the times; fails if the slowest is above the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from bench.machine import broker_process
from ordermq import AsyncConsumer, LitePullConsumer, Message, Producer, PushConsumer

_DEADLINE_S = 60.0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep the machine busy with so many processes that only count."""
    spawned = [
        multiprocessing.get_context("spawn").Process(target=_count, daemon=True)
        for _ in range(count)
    ]
    for process in spawned:
        process.start()
    try:
        yield
    finally:
        for process in spawned:
            process.kill()
            process.join()


def _count() -> None:
    while True:
        sum(range(10_000))


def pushed(servers: str, topic: str, send: Callable[[], object], *, orderly: bool = True) -> float:
    """Return the seconds from the send to a listener."""
    came = threading.Event()
    consumer = PushConsumer(f"g-{topic}", name_servers=servers)
    consumer.subscribe(topic)
    (consumer.orderly if orderly else consumer.concurrently)(lambda messages, context: came.set())
    with consumer:
        begun = time.monotonic()
        send()
        came.wait(_DEADLINE_S)
        return time.monotonic() - begun


def pushed_beside(servers: str, topic: str, send: Callable[[], object]) -> float:
    """Return the seconds from the send to a concurrent listener."""
    return pushed(servers, topic, send, orderly=False)


def polled(servers: str, topic: str, send: Callable[[], object], *, ordered: bool = True) -> float:
    """Return the seconds from the send to a poll."""
    consumer = LitePullConsumer(f"g-{topic}", name_servers=servers, ordered=ordered)
    consumer.subscribe(topic)
    with consumer:
        begun = time.monotonic()
        send()
        consumer.poll(int(_DEADLINE_S * 1000))
        return time.monotonic() - begun


def polled_late(servers: str, topic: str, send: Callable[[], object]) -> float:
    """Return the seconds from the send to a poll of a topic subscribed while it runs."""
    consumer = LitePullConsumer(f"g-{topic}", name_servers=servers)
    with consumer:
        consumer.subscribe(topic)
        begun = time.monotonic()
        send()
        consumer.poll(int(_DEADLINE_S * 1000))
        return time.monotonic() - begun


def iterated(servers: str, topic: str, send: Callable[[], object]) -> float:
    """Return the seconds from the send to an `async for`."""

    async def main() -> float:
        async with AsyncConsumer(f"g-{topic}", topic, name_servers=servers) as consumer:
            begun = time.monotonic()
            await asyncio.to_thread(send)
            async for _ in consumer.batches(int(_DEADLINE_S * 1000)):
                break
            return time.monotonic() - begun

    return asyncio.run(main())


KINDS = (pushed, pushed_beside, polled, polled_late, iterated)


def measure(servers: str, runs: int) -> dict[str, list[float]]:
    """Return the seconds of each run, by the kind of its consumer."""
    found: dict[str, list[float]] = {kind.__name__: [] for kind in KINDS}
    with Producer("new-topics", name_servers=servers) as producer:
        for number in range(runs):
            kind = KINDS[number % len(KINDS)]
            topic = f"new-{uuid4().hex}"
            send = partial(producer.send, Message(topic, b"x"), sharding_key="k")
            taken = kind(servers, topic, send)
            found[kind.__name__].append(taken)
            if taken > 1:
                print(f"run {number}: {kind.__name__} took {taken:.2f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--name-servers", help="a cluster; default an embedded broker")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--busy", type=int, default=4, help="processes that only count (4)")
    parser.add_argument("--limit-s", type=float, default=1.0, help="of the slowest run (1.0)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy(given.busy):
        if given.name_servers:
            found = measure(given.name_servers, given.runs)
        else:
            with broker_process(Path(folder), lease_ms=60_000) as (_, address):
                found = measure(address, given.runs)
    for kind, times in found.items():
        if times:
            print(
                f"{kind:14} {len(times):4} runs, median {statistics.median(times):.3f} s, "
                f"slowest {max(times):.3f} s"
            )
    slowest = max(time for times in found.values() for time in times)
    sys.exit(
        f"slowest {slowest:.3f} s: more than {given.limit_s} s" if slowest > given.limit_s else 0
    )


if __name__ == "__main__":
    main()
