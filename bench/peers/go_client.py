"""RocketMQ's Go client in the catch-up: python -m bench.peers.go_client, see README.md here.

The module github.com/apache/rocketmq-client-go/v2 comes through Go's module proxy, once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from bench.peers.compiled import program

FOLDER = Path(__file__).parent / "go"


def compiled() -> Path:
    """Return the program, compiled by Go."""
    sources = [FOLDER / name for name in ("main.go", "go.mod", "go.sum")]
    # The version of a checkout is not needed in it, and git may not be there.
    return program("go_catch_up", sources, ["go", "build", "-buildvcs=false"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the name server")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    asked = parser.parse_args()
    sizes = [asked.batch, asked.pull_size, asked.messages, asked.warm]
    work = [asked.address, asked.topic, asked.group, *map(str, sizes)]
    # It logs to standard error, by default every step.
    quiet = os.environ | {"ROCKETMQ_GO_LOG_LEVEL": "error"}
    subprocess.run([compiled(), *work], check=True, env=quiet)


if __name__ == "__main__":
    main()
