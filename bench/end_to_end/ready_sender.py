"""A sender of requests that were encoded before the clock started; one socket, one thread.

It is a program in C (bench/peers/c/ready_sender.c), so that its rate is the broker's: a producer
takes longer for a send than the broker, and would be what is measured. It takes the arguments of
bench_send's senders.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from bench import workloads
from bench.end_to_end.send_arguments import arguments
from bench.peers.compiled import program
from ordermq.config import RemotingConfig
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_ids
from ordermq.remoting.command import next_opaque
from ordermq.remoting.framing import Framing, SendFrames
from ordermq.remoting.headers import SendHeader

QUEUES = workloads.CATCH_UP_QUEUES
SOURCE = Path(__file__).parents[1] / "peers" / "c" / "ready_sender.c"


def frames(topic: str, keys: int, body: bytes, count: int) -> list[bytes]:
    """Return the requests, each key's messages in one queue."""
    headers = [SendHeader("bench-ready", topic, queue) for queue in range(QUEUES)]
    framing = Framing(RemotingConfig())
    of_queue = [SendFrames(header, framing) for header in headers]
    found = []
    for number, unique_id in enumerate(unique_message_ids(count)):
        key = number % keys
        header = headers[key % QUEUES]
        header.born_timestamp_ms = time.time_ns() // 1_000_000
        header.properties = props.encode(
            {props.UNIQ_KEY: unique_id, props.WAIT: "true", props.SHARDING_KEY: f"k{key}"}
        )
        found.append(of_queue[key % QUEUES].frame(header, next_opaque(), body))
    return found


def compiled() -> Path:
    """Return the program that sends them, compiled by $CC or cc."""
    compiler = [os.environ.get("CC") or "cc", "-O2", "-Wall", "-Wextra", SOURCE.name]
    return program("ready_sender", [SOURCE], compiler)


def send(address: str, requests: list[bytes], warm: int, in_flight: int) -> str:
    """Send all requests; each answer makes room for the next one. Return the program's line.

    Args: warm: so many of them come before the clock starts.
    Raises: subprocess.CalledProcessError: an answer was no success, and the program says so.
    """
    host, port = address.split(":")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(requests))
        file.flush()
        sizes = map(str, (len(requests), warm, in_flight))
        done = subprocess.run(
            [compiled(), host, port, file.name, *sizes], check=True, stdout=subprocess.PIPE
        )
    return done.stdout.decode()


def main() -> None:
    asked = arguments(__doc__)
    count = asked.warm + asked.messages
    requests = frames(asked.topic, asked.keys, b"x" * asked.body_bytes, count)
    print(send(asked.address, requests, asked.warm, asked.keys), end="")


if __name__ == "__main__":
    main()
