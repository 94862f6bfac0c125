"""The floor of a catch-up: a pull loop in C, python -m bench.peers.pull_floor, see README.md here.

On one blocking socket it pulls, scans the headers, walks the records and drops them. Its address
is the broker's own: of a cluster, not the name server's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from bench.peers.compiled import program

FLOOR = "pull loop in C"  # its name in results
SOURCE = Path(__file__).parent / "c" / "pull_floor.c"


def compiled() -> Path:
    """Return the program, compiled by $CC or cc."""
    compiler = [os.environ.get("CC") or "cc", "-O2", "-Wall", "-Wextra", SOURCE.name]
    return program("pull_floor", [SOURCE], compiler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the broker")
    parser.add_argument("topic")
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    asked = parser.parse_args()
    host, _, port = asked.address.rpartition(":")
    sizes = [asked.queues, asked.pull_size, asked.messages, asked.warm]
    subprocess.run([compiled(), host, port, asked.topic, *map(str, sizes)], check=True)


if __name__ == "__main__":
    main()
