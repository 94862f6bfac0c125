"""PyPI's gRPC client (`rocketmq-python-client` 5.x) catching up, through RocketMQ's proxy.

python -m bench.peers.grpc_client, see README.md here. Its push consumer in FIFO mode, which it is
told by the group's settings; it calls Python once a message, whatever the batch. It runs twice: by
us, and, with --inside, in a virtual environment that has the package.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from bench.peers.environments import run_in
from bench.peers.tally import Tally

PACKAGE = "rocketmq-python-client==5.1.2"
DEADLINE_S = 600


def consume(asked: argparse.Namespace) -> None:
    """Inside of the virtual environment: catch up, and print the figures."""
    client: Any = importlib.import_module("rocketmq")  # not in our own environment
    tally = Tally(asked.warm, asked.messages)

    class Listener(client.MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            tally.take(lambda: place(message.receipt_handle))
            return client.ConsumeResult.SUCCESS

    consumer = client.PushConsumer(
        client.ClientConfiguration(asked.proxy, client.Credentials()),
        asked.group,
        Listener(),
        {asked.topic: client.FilterExpression()},
    )
    consumer.startup()
    if not tally.done.wait(DEADLINE_S):
        print(f"only {tally.counted} of {asked.messages} messages", file=sys.stderr)
        os._exit(1)
    row = {
        "peer": f"gRPC client, batch {asked.batch}",
        "messages": asked.messages - asked.warm,
        "seconds": tally.wall,
        "cpu_seconds": tally.cpu,
        "detail": {"package": PACKAGE, "python": sys.version.split()[0], "threads": 20},
    }
    print(json.dumps(row), flush=True)
    os._exit(0)  # a shutdown would wait for its long polls


def place(handle: str) -> tuple[int, int]:
    """Queue and offset; programs are not shown them, but a broker's receipt ends with both."""
    words = handle.split()
    return int(words[6]), int(words[7])


def make_fifo_group(name_server: str, group: str) -> None:
    """Have the broker tell the group's members that they consume in order."""
    from bench.peers.java_classes import class_path  # asks for what is only in ours

    tool = ["java", "-cp", class_path(), "org.apache.rocketmq.tools.command.MQAdminStartup"]
    asked = ["updateSubGroup", "-n", name_server, "-c", "DefaultCluster", "-g", group, "-o", "true"]
    subprocess.run([*tool, *asked], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the name server's")
    parser.add_argument("topic")
    parser.add_argument("--proxy", required=True, help="the proxy's address")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True, help="not a setting it has")
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    parser.add_argument("--inside", action="store_true", help="of the virtual environment")
    asked = parser.parse_args()
    if asked.inside:
        consume(asked)
        return
    make_fifo_group(asked.address, asked.group)
    with tempfile.TemporaryDirectory() as home:  # where its log goes
        run_in(PACKAGE, "bench.peers.grpc_client", sys.argv[1:], home)


if __name__ == "__main__":
    main()
