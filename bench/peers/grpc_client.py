"""PyPI's gRPC client (`rocketmq-python-client` 5.x) catching up, through RocketMQ's proxy.

python -m bench.peers.grpc_client, see README.md here. Its push consumer in FIFO mode, which it is
told by the group's settings; it calls Python once a message, whatever the batch. It runs twice: by
us, and, with --inside, in a virtual environment that has the package.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from typing import Any

from bench.peers.environments import run_in
from bench.peers.message_counter import MessageCounter, parser

PACKAGE = "rocketmq-python-client==5.1.2"


def consume(asked: argparse.Namespace) -> None:
    """Inside the virtual environment: catch up and print the figures."""
    client: Any = importlib.import_module("rocketmq")  # not in our own environment
    counter = MessageCounter(asked.warm, asked.messages)

    class Listener(client.MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            counter.take(lambda: place(message.receipt_handle))
            return client.ConsumeResult.SUCCESS

    consumer = client.PushConsumer(
        client.ClientConfiguration(asked.proxy, client.Credentials()),
        asked.group,
        Listener(),
        {asked.topic: client.FilterExpression()},
    )
    consumer.startup()
    # Its shutdown would wait for its long polls.
    counter.finish(f"gRPC client, batch {asked.batch}", PACKAGE)


def place(handle: str) -> tuple[int, int]:
    """Return queue and offset: hidden from programs, but a broker's receipt ends with both."""
    words = handle.split()
    return int(words[6]), int(words[7])


def make_fifo_group(name_server: str, group: str) -> None:
    """Set the group to ordered consumption at the broker."""
    from bench.peers.java_classes import class_path  # asks for what is only in ours

    tool = ["java", "-cp", class_path(), "org.apache.rocketmq.tools.command.MQAdminStartup"]
    asked = ["updateSubGroup", "-n", name_server, "-c", "DefaultCluster", "-g", group, "-o", "true"]
    subprocess.run([*tool, *asked], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    asking = parser(__doc__)
    asking.add_argument("--proxy", required=True, help="the proxy's address")
    asked = asking.parse_args()
    if asked.inside:
        consume(asked)
        return
    make_fifo_group(asked.address, asked.group)
    with tempfile.TemporaryDirectory() as home:  # where its log goes
        run_in(PACKAGE, "bench.peers.grpc_client", sys.argv[1:], home)


if __name__ == "__main__":
    main()
