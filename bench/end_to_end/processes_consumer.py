"""The consumer that bench_processes gives to `ordermq run`: its listener computes.

Each process reports to the benchmark through a datagram socket whenever it has done so many
messages.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence

from ordermq import MessageView, PushConsumer
from ordermq.core import IMPLEMENTATION

EVERY = 50  # messages per report


def work(turns: int) -> int:
    """Do a fixed amount of work in Python."""
    total = 0
    for number in range(turns):
        total ^= number
    return total


def make() -> PushConsumer:
    """Return the consumer; its settings are in the environment."""
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    counts = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    counts.connect(os.environ["BENCH_COUNTS"])
    turns = int(os.environ["BENCH_TURNS"])
    count = itertools.count(1).__next__  # one C call, so no lock is needed

    def listen(messages: Sequence[MessageView], context: object) -> None:
        for _ in messages:
            work(turns)
            if count() % EVERY == 0:
                counts.send(b".")

    consumer = PushConsumer(
        os.environ["BENCH_GROUP"],
        name_servers=os.environ["BENCH_ADDRESS"],
        consume_from_where="first_offset",
    )
    consumer.subscribe(os.environ["BENCH_TOPIC"])
    consumer.orderly(listen)
    return consumer
