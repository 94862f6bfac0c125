"""PyPI's `rocketmq` 0.4.4 catching up: python -m bench.peers.rocketmq_044, see README.md here.

The C++ client in its wheel calls Python once a message, whatever the batch; in its orderly mode.
It runs twice: by us, and, with --inside, in a virtual environment that has the package.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from typing import Any

from bench.peers.environments import run_in
from bench.peers.tally import Tally

PACKAGE = "rocketmq==0.4.4"
DEADLINE_S = 600


def consume(asked: argparse.Namespace) -> None:
    """Inside of the virtual environment: catch up, and print the figures."""
    client: Any = importlib.import_module("rocketmq.client")  # not in our own environment
    tally = Tally(asked.warm, asked.messages)

    def take(message: Any) -> None:
        tally.take(lambda: (message.queue_id, message.queue_offset))

    consumer = client.PushConsumer(asked.group, orderly=True)
    consumer.set_namesrv_addr(asked.address)
    consumer.set_thread_count(20)
    consumer.set_message_batch_max_size(asked.batch)
    consumer.subscribe(asked.topic, take)
    consumer.start()
    if not tally.done.wait(DEADLINE_S):
        print(f"only {tally.counted} of {asked.messages} messages", file=sys.stderr)
        os._exit(1)
    row = {
        "peer": f"rocketmq 0.4.4, batch {asked.batch}",
        "messages": asked.messages - asked.warm,
        "seconds": tally.wall,
        "cpu_seconds": tally.cpu,
        "detail": {"package": PACKAGE, "python": sys.version.split()[0], "threads": 20},
    }
    print(json.dumps(row), flush=True)
    # Its shutdown waits for callbacks that wait for the GIL its caller holds.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True, help="not a setting it has")
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    parser.add_argument("--inside", action="store_true", help="of the virtual environment")
    if parser.parse_args().inside:
        consume(parser.parse_args())
        return
    with tempfile.TemporaryDirectory() as home:  # where its log goes
        run_in(PACKAGE, "bench.peers.rocketmq_044", sys.argv[1:], home)


if __name__ == "__main__":
    main()
