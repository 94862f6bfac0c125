"""A sender of requests that were encoded before the clock started; one socket, one thread.

A send costs it 1 to 2 us, so that its rate is the broker's: a producer takes longer for a send than
the broker, and would be what is measured. It takes the arguments of bench_send's senders.
"""

from __future__ import annotations

import json
import socket
import time

from bench import workloads
from bench.end_to_end.send_arguments import arguments
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_ids
from ordermq.remoting.command import SendFrames, next_opaque
from ordermq.remoting.headers import SendHeader

QUEUES = workloads.CATCH_UP_QUEUES
_SUCCESS = b'{"code":0,'  # how ordermq's broker and Java's begin the header of an answer


def frames(topic: str, keys: int, body: bytes, count: int) -> list[bytes]:
    """Return the requests, each key's messages in one queue."""
    headers = [SendHeader("bench-ready", topic, queue) for queue in range(QUEUES)]
    of_queue = list(map(SendFrames, headers))
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


def answered(received: bytes) -> tuple[int, int]:
    """Return how many whole answers there are, and how many bytes they take."""
    at = count = 0
    while len(received) - at >= 8:
        end = at + 4 + int.from_bytes(received[at : at + 4])
        if end > len(received):
            break
        if not received.startswith(_SUCCESS, at + 8):
            raise SystemExit(f"not stored as it should be: {received[at:end]!r}")
        at, count = end, count + 1
    return count, at


def send(connection: socket.socket, requests: list[bytes], in_flight: int) -> None:
    """Send all requests; each answer makes room for the next one of its key."""
    sent, done, rest = min(in_flight, len(requests)), 0, b""
    connection.sendall(b"".join(requests[:sent]))
    while done < len(requests):
        received = connection.recv(262_144)
        if not received:
            raise SystemExit("the broker closed the connection")
        count, size = answered(rest + received)
        rest = (rest + received)[size:]
        done += count
        more = requests[sent : sent + count]
        if more:
            connection.sendall(b"".join(more))
            sent += len(more)


def main() -> None:
    asked = arguments(__doc__)
    body = b"x" * asked.body_bytes
    warm = frames(asked.topic, asked.keys, body, asked.warm)
    requests = frames(asked.topic, asked.keys, body, asked.messages)
    host, port = asked.address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send(connection, warm, asked.keys)
        started = time.perf_counter(), time.process_time()
        send(connection, requests, asked.keys)
        seconds, cpu_seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    print(
        json.dumps({
            "peer": "requests that are ready",
            "messages": asked.messages,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "detail": {},
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
