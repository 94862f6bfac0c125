"""ordermq in the catch-up: one consumer process with a trivial listener."""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import pstats
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import ordermq
from bench.peak_memory import peak_mib
from ordermq import ConsumeResult, MessageView, PushConsumer
from ordermq.consumer.listener import ConsumeContext
from ordermq.core import IMPLEMENTATION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    parser.add_argument("--threads", type=int, default=20)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    parser.add_argument("--concurrent", action="store_true", help="listen out of order")
    parser.add_argument("--walk", action="store_true", help="read every body's first byte")
    parser.add_argument("--read", action="store_true", help="read every body, tags and keys")
    parser.add_argument("--shape", choices=("batches", "objects", "views"), default="batches")
    parser.add_argument(
        "--event-loop", choices=("asyncio", "uvloop"), help="instead of what is best"
    )
    parser.add_argument("--profile", help="write the I/O thread's profile there")
    arguments = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    if arguments.event_loop:
        os.environ["ORDERMQ_EVENT_LOOP"] = arguments.event_loop
    shape = arguments.shape
    if shape == "batches":
        consume(arguments)
        return
    # Imported here: it knows the inside of this version, and bench.compare runs other versions.
    from bench.end_to_end.object_queue import fed_with

    with fed_with(shape):
        consume(arguments)


def consume(arguments: argparse.Namespace) -> None:
    """Catch up and print the figures."""
    done = threading.Event()
    lock = threading.Lock()
    counted = 0
    wall = cpu = pulling = 0.0

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        nonlocal counted, wall, cpu, pulling
        if arguments.walk:
            for message in messages:
                message.body[0]
        if arguments.read:
            for message in messages:
                message.body, message.tags, message.keys  # noqa: B018
        with lock:
            if counted <= arguments.warm < counted + len(messages):
                wall, cpu, pulling = time.perf_counter(), time.process_time(), pulling_s()
            counted += len(messages)
            if counted >= arguments.messages:
                done.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        arguments.group,
        name_servers=arguments.address,
        consume_from_where="first_offset",
        consume_message_batch_max_size=arguments.batch,
        pull_batch_size=arguments.pull_size,
        consume_thread_count=arguments.threads,
    )
    consumer.subscribe(arguments.topic)
    if arguments.concurrent:
        consumer.concurrently(listen)
    else:
        consumer.orderly(listen)
    consumer.start()
    profile = cProfile.Profile() if arguments.profile else None
    if profile is not None:
        loop = consumer._live()._runtime.loop
        loop.call_soon_threadsafe(profile.enable)
    if not done.wait(300):
        raise SystemExit(f"only {counted} of {arguments.messages} messages within 300 s")
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    pulling_seconds = pulling_s() - pulling
    if profile is not None:
        loop.call_soon_threadsafe(profile.disable)
    consumer.close()
    if profile is not None:
        with open(arguments.profile, "w") as out:
            pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(40)
    print(
        json.dumps(
            {
                "peer": f"{name_of(arguments)}, batch {arguments.batch}",
                "messages": counted - arguments.warm,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "pulling_user_seconds": pulling_seconds,
                "peak_mib": peak_mib(),
                "detail": {
                    "core": IMPLEMENTATION,
                    "ordermq": ordermq.__version__,
                    "python": sys.version.split()[0],
                    "threads": arguments.threads,
                    "statistics": consumer.statistics.as_dict(),
                },
            }
        )
    )


def pulling_s() -> float:
    """Return the user CPU of the pull engine's thread so far; 0.0 without one, or off Linux."""
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            if (task / "comm").read_text().strip() == "ordermq-pulls":
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
                return int(fields[11]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def name_of(arguments: argparse.Namespace) -> str:
    return "ordermq on asyncio" if arguments.event_loop == "asyncio" else "ordermq"


if __name__ == "__main__":
    main()
