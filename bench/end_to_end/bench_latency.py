"""Latency from send to listener at fixed rates, on RocketMQ: ordermq and Java's client.

Each client sends and listens in one process: one thread per sharding key, each with its own
schedule and one unacknowledged message, and an orderly consumer. A message carries the time at
which it was due to be sent, so that a stall counts for each message that it delays; the listener,
called with one message, takes the difference. Rounds alternate, each on its own topic; a round in
which a client did not reach the rate is rejected, and repeated; a rate that one of them does not
reach at all is left out, and the page says which client.
Writes bench/results/latency_rocketmq.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from typing import Any

from bench import workloads
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.machine import command_line, run_json, save
from bench.peers.java_classes import missing
from ordermq import Message, Producer

CLIENTS = {
    "ordermq": "bench.end_to_end.ordermq_latency",
    "Java client": "bench.peers.java_latency",
}
RATES = (200, 1_000, 4_000)  # messages a second
KEYS = 8
KEPT = 0.98  # of the rate, at least
ATTEMPTS = 3  # at a round
QUANTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}


def measure(version: str, rounds: int, seconds: int, warm_seconds: int) -> dict[str, Any]:
    found: dict[int, dict[str, list[dict[str, Any]]]] = {
        rate: {name: [] for name in CLIENTS} for rate in RATES
    }
    left_out: dict[str, str] = {}
    with rocketmq(version) as address:
        for number, rate in itertools.product(range(rounds), RATES):
            if rate not in found:
                continue
            sizes = ["--rate", rate, "--keys", KEYS, "--messages", rate * seconds]
            sizes += ["--warm", rate * warm_seconds]
            sizes += ["--body-bytes", workloads.CATCH_UP_BODY_BYTES]
            for name in CLIENTS:
                round_of = f"{name.split()[0]}-{rate}-{number}"
                try:
                    row = one_round(address, name, round_of, sizes, seconds)
                except RoundRejected as reason:
                    left_out[str(rate)] = str(reason)
                    del found[rate]
                    print(f"{rate}/s LEFT OUT: {reason}", flush=True)
                    break
                found[rate][name].append(row)
                print(f"round {number} {rate:5}/s {name:12} {json.dumps(row)}", flush=True)
    rates = {str(rate): beside(rows) for rate, rows in found.items()}
    return {"rates": rates, "left_out": left_out}


def one_round(
    address: str, name: str, round_of: str, sizes: list[object], seconds: int
) -> dict[str, Any]:
    """Return the figures of one round of a client; one that is rejected is repeated.

    Raises: RoundRejected: so were all.
    """
    attempt = 0
    while True:
        topic = f"latency-{round_of}-{attempt}"
        make(address, topic)
        row = run_json(CLIENTS[name], [address, topic, "--group", f"of-{topic}", *sizes])
        try:
            return summary(row, seconds)
        except RoundRejected as reason:
            attempt += 1
            if attempt == ATTEMPTS:
                raise
            print(f"round {round_of} rejected: {reason}", flush=True)


class RoundRejected(SystemExit):
    """A round of another load than was asked for; ends the program with the reason."""


def beside(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the rounds of one rate, their medians, and the medians of their ratios."""
    return {
        "rows": {name: middle(found) for name, found in rows.items()},
        "rounds": rows,
        "ratios": {
            of: round(
                statistics.median(
                    ours[of] / theirs[of]
                    for ours, theirs in zip(rows["ordermq"], rows["Java client"], strict=True)
                ),
                3,
            )
            for of in (*QUANTILES, "cpu_us_per_message")
        },
    }


def make(address: str, topic: str) -> None:
    """Create the topic with one message that carries no time."""
    queues = workloads.CATCH_UP_QUEUES
    with Producer("maker", name_servers=address, default_topic_queue_nums=queues) as producer:
        producer.send(Message(topic, b"-"))


def summary(row: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Return the figures of one round.

    Raises: RoundRejected: messages are missing, or the rate was not reached.
    """
    latencies = sorted(row["latencies_us"])
    if len(latencies) != row["messages"]:
        raise RoundRejected(f"{row['peer']}: {len(latencies)} times of {row['messages']} messages")
    if seconds / row["seconds"] < KEPT:
        raise RoundRejected(
            f"{row['peer']}: {row['messages']} messages took {row['seconds']:.2f} s, not "
            f"{seconds}: the rate was not kept; is the machine busy?"
        )
    found: dict[str, Any] = {
        name: latencies[int(len(latencies) * part)] for name, part in QUANTILES.items()
    }
    found["worst_us"] = latencies[-1]
    found["cpu_us_per_message"] = round(row["cpu_seconds"] / row["messages"] * 1e6, 1)
    return found


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the rounds."""
    return {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--warm-seconds", type=int, default=15)
    asked = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"not found: {', '.join(absent)}; Java's client needs a JDK 17 and Maven")
    result = measure(asked.version, asked.rounds, asked.seconds, asked.warm_seconds)
    result["command"] = command_line("bench.end_to_end.bench_latency")
    result["workload"] = {
        "rocketmq": asked.version,
        "keys": KEYS,
        "queues": workloads.CATCH_UP_QUEUES,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "seconds": asked.seconds,
        "warm_seconds": asked.warm_seconds,
        "rounds": asked.rounds,
        "from": "the time at which a message was due to be sent",
    }
    for rate, found in result["rates"].items():
        print(f"{rate}/s {json.dumps(found['ratios'])}")
    print(save("latency_rocketmq", result))


if __name__ == "__main__":
    main()
