"""Cost of options: a catch-up from a RocketMQ broker with one option at a time.

Starts a name server and a broker of RocketMQ (ci/rocketmq.sh; Java 17 and Maven), fills topics of 8
queues, plain, with tags and keys, and in a namespace, and lets a new group at a time read one of
them. Options take turns, with a run without any before every third of them: ratios are to the
nearest such run. A third of what is read is not timed: it has the start of the process. Brokers of
RocketMQ verify no signature by default, so an account costs what the client does for it. Writes
bench/results/options_rocketmq.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from bench import workloads
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.end_to_end.ordermq_options import NAMESPACE, OPTIONS
from bench.machine import command_line, run_json, save
from ordermq import Message, Producer

BASE = "base"
_BETWEEN_BASES = 3
_PLAIN, _RICH = "options-plain", "options-rich"


def store(address: str, message: Message, messages: int, **settings: Any) -> None:
    """Store the messages, the same number in each queue."""
    queues = workloads.CATCH_UP_QUEUES
    with Producer(
        "bench",
        name_servers=address,
        default_topic_queue_nums=queues,
        max_batch_bytes=1_000_000,
        **settings,
    ) as producer:
        producer.send(message)
        for queue in producer.queues(message.topic):
            for first in range(0, messages // queues, 1_000):
                size = min(1_000, messages // queues - first)
                producer.send_batch([message] * size, queue=queue)


def turns(names: list[str]) -> list[str]:
    """Return the runs of a round: the options, and a base before every third one and at the end."""
    found = []
    for place, name in enumerate(name for name in names if name != BASE):
        found += [BASE] * (place % _BETWEEN_BASES == 0) + [name]
    return [*found, BASE]


def measure(version: str, rounds: int, messages: int, names: list[str]) -> dict[str, Any]:
    body = b"." * workloads.CATCH_UP_BODY_BYTES
    rows: dict[str, list[dict[str, float]]] = {}
    with rocketmq(version) as address:
        print(f"storing {messages:,} messages three times", flush=True)
        store(address, Message(_PLAIN, body), messages)
        store(address, Message(_PLAIN, body), messages, namespace=NAMESPACE)
        store(address, Message(_RICH, body, tags="paid", keys=["order-1"]), messages)
        for number in range(rounds + 1):
            for batch in workloads.LISTENER_BATCHES:
                ran = [
                    (name, run(address, name, f"{number}-{batch}-{place}", batch, messages))
                    for place, name in enumerate(turns(names))
                ]
                if number == 0:
                    continue  # it warms the page cache and Java's compiler
                for place, (name, cpu_us) in enumerate(ran):
                    near = min(
                        (each for each in enumerate(ran) if each[1][0] == BASE),
                        key=lambda each: abs(each[0] - place),
                    )
                    row = {"cpu_us": cpu_us, "ratio": cpu_us / near[1][1]}
                    rows.setdefault(f"{name}, batch {batch}", []).append(row)
                    print(f"round {number} {name:24} batch {batch:2} {cpu_us:6.2f} us", flush=True)
    return {
        "rows": {
            name: {
                "cpu_us_per_message": round(statistics.median(r["cpu_us"] for r in found), 3),
                "ratio": round(statistics.median(r["ratio"] for r in found), 2),
                "rounds": len(found),
            }
            for name, found in rows.items()
        }
    }


def run(address: str, name: str, group: str, batch: int, messages: int) -> float:
    """Return the CPU of one run, in us per message."""
    topic = _RICH if OPTIONS[name].is_rich else _PLAIN
    work: list[object] = [address, topic, "--option", name, "--group", f"options-{group}"]
    work += ["--messages", messages, "--warm", messages // 3, "--batch", batch]
    row = run_json("bench.end_to_end.ordermq_options", [*work, "--pull-size", workloads.PULL_SIZE])
    return float(row["cpu_seconds"] / row["messages"] * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=240_000)
    parser.add_argument("--only", choices=list(OPTIONS), action="append", help="these options")
    asked = parser.parse_args()
    result = measure(asked.version, asked.rounds, asked.messages, asked.only or list(OPTIONS))
    result["command"] = command_line("bench.end_to_end.bench_options")
    result["workload"] = {
        "rocketmq": asked.version,
        "messages": asked.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
        "pull_size": workloads.PULL_SIZE,
    }
    print(json.dumps(result["rows"], indent=1))
    print(save("options_rocketmq", result))


if __name__ == "__main__":
    main()
