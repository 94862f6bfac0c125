"""Ordered sends to a RocketMQ broker: ordermq and Java's producer, alternating.

One message at a time; 8 and 256 keys in flight, each with one unacknowledged message (Java needs a
thread a key for that, ours takes them from one `send_stream`, and is measured with eight threads,
too); batches of 100 to two queues. Every row checks at the broker what it stored. Writes
bench/results/send_rocketmq.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from bench import workloads
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.end_to_end.summary import ratios, summarise
from bench.machine import command_line, run_json, save
from bench.peers.java_classes import missing
from ordermq import Message, Producer, PullConsumer

TOPIC = "sending"
OURS, JAVAS = "bench.end_to_end.ordermq_sender", "bench.peers.java_sender"
PEERS: list[tuple[str, str, list[str]]] = [("ordermq", OURS, []), ("Java client", JAVAS, [])]
MOST_IN_FLIGHT = "256 keys in flight"  # where a busy broker refuses some of Java's sends
ATTEMPTS = 3  # at a run
# Row -> (keys or batches in flight, messages a request, messages, of them before the clock).
WAYS: dict[str, tuple[int, int, int, int]] = {
    "one at a time": (1, 1, 12_000, 6_000),
    "8 keys in flight": (8, 1, 48_000, 24_000),
    MOST_IN_FLIGHT: (256, 1, 64_000, 32_000),
    "batches of 100, 2 in flight": (2, 100, 400_000, 400_000),
}


def stored(consumer: PullConsumer) -> int:
    """Return the number of messages of the topic, in all queues."""
    return sum(consumer.max_offset(q) for q in consumer.fetch_subscribe_message_queues(TOPIC))


def stored_at_last(consumer: PullConsumer, wanted: int, deadline_s: float = 20.0) -> int:
    """Wait until so many are stored: brokers build their queues after their log."""
    end = time.monotonic() + deadline_s
    while (found := stored(consumer)) < wanted and time.monotonic() < end:
        time.sleep(0.1)
    return found


def settled(consumer: PullConsumer) -> int:
    """Wait until the number of stored messages rests; a run that failed may have left some."""
    found = -1
    while (now := stored(consumer)) != found:
        found = now
        time.sleep(0.2)
    return found


class RunRejected(SystemExit):
    """A run that stored other messages than it sent; ends the program with the reason."""


def one_run(consumer: PullConsumer, module: str, work: list[object], sent: int) -> dict[str, Any]:
    """Make a run that sends so many messages; one that fails is repeated.

    Raises:
        RunRejected: the broker stored more or fewer each time.
        subprocess.CalledProcessError: the client failed each time: Java's producer does not
            send again what a busy broker refused.
    """
    attempt = 0
    while True:
        before = settled(consumer)
        try:
            row = run_json(module, work)
            found = stored_at_last(consumer, before + sent) - before
            if found != sent:
                raise RunRejected(f"{row['peer']}: {found} messages stored of {sent}")
        except (RunRejected, subprocess.CalledProcessError) as reason:
            attempt += 1
            if attempt == ATTEMPTS:
                raise
            print(f"run rejected: {reason}", flush=True)
        else:
            return row


def peers_of(keys: int) -> list[tuple[str, str, list[str]]]:
    """Return name, program and options of each client."""
    threads = [("ordermq, threads", OURS, ["--threads"])] if keys == 8 else []
    return [PEERS[0], *threads, *PEERS[1:]]


def measure(version: str, rounds: int) -> dict[str, Any]:
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {way: {} for way in WAYS}
    failed: set[tuple[str, str]] = set()
    with rocketmq(version) as address, PullConsumer("counting", name_servers=address) as consumer:
        with Producer("maker", name_servers=address,
                      default_topic_queue_nums=workloads.CATCH_UP_QUEUES) as producer:  # fmt: skip
            producer.send(Message(TOPIC, b"first"))
        for number in range(rounds):
            for way, (keys, batch, messages, warm) in WAYS.items():
                work: list[object] = [address, TOPIC, "--keys", keys, "--batch", batch]
                work += ["--messages", messages, "--warm", warm]
                work += ["--body-bytes", workloads.CATCH_UP_BODY_BYTES]
                for name, module, more in peers_of(keys):
                    if (way, name) in failed:
                        continue
                    try:
                        row = one_run(consumer, module, [*work, *more], messages + warm)
                    except (RunRejected, subprocess.CalledProcessError) as error:
                        if name == "ordermq" or way != MOST_IN_FLIGHT:
                            raise
                        print(f"ordermq: {name}, {way} LEFT OUT: {error}", file=sys.stderr)
                        failed.add((way, name))
                        rows[way].pop(name, None)
                        continue
                    assert row["messages"] == messages, row
                    rows[way].setdefault(name, []).append(row)
                    print(
                        f"round {number} {way:28} {name:18} "
                        f"{messages / row['seconds']:10,.0f} msg/s "
                        f"cpu {row['cpu_seconds'] / messages * 1e6:7.2f} us/msg",
                        flush=True,
                    )
    return {
        "ratios": {
            way: {
                name: ratios(rounds_of, found["Java client"]) for name, rounds_of in found.items()
                if name != "Java client" and "Java client" in found
            }
            for way, found in rows.items()
        },
        "rows": {
            way: {name: summarise(runs, WAYS[way][2]) for name, runs in found.items()}
            for way, found in rows.items()
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"not found: {', '.join(absent)}; Java's client needs a JDK 17 and Maven")
    result = measure(asked.version, asked.rounds)
    result["command"] = command_line("bench.end_to_end.bench_send")
    result["workload"] = {
        "rocketmq": asked.version,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
    }
    print(json.dumps(result["ratios"]))
    print(save("send_rocketmq", result))


if __name__ == "__main__":
    main()
