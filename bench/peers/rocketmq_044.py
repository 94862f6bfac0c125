"""PyPI's `rocketmq` 0.4.4 catching up: python -m bench.peers.rocketmq_044, see README.md here.

The C++ client in its wheel calls Python once per message, whatever the batch size; in orderly mode.
It runs twice: by us, and, with --inside, in a virtual environment that has the package.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from typing import Any

from bench.peers.environments import run_in
from bench.peers.message_counter import THREADS, MessageCounter, parser

PACKAGE = "rocketmq==0.4.4"


def consume(asked: argparse.Namespace) -> None:
    """Inside the virtual environment: catch up and print the figures."""
    client: Any = importlib.import_module("rocketmq.client")  # not in our own environment
    counter = MessageCounter(asked.warm, asked.messages)

    def take(message: Any) -> None:
        counter.take(lambda: (message.queue_id, message.queue_offset))

    consumer = client.PushConsumer(asked.group, orderly=True)
    consumer.set_namesrv_addr(asked.address)
    consumer.set_thread_count(THREADS)
    consumer.set_message_batch_max_size(asked.batch)
    consumer.subscribe(asked.topic, take)
    consumer.start()
    # Its shutdown waits for callbacks that wait for the GIL its caller holds.
    counter.finish(f"rocketmq 0.4.4, batch {asked.batch}", PACKAGE)


def main() -> None:
    asked = parser(__doc__).parse_args()
    if asked.inside:
        consume(asked)
        return
    with tempfile.TemporaryDirectory() as home:  # where its log goes
        run_in(PACKAGE, "bench.peers.rocketmq_044", sys.argv[1:], home)


if __name__ == "__main__":
    main()
