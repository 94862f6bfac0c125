"""Catch-up: a consumer group reads 500,000 waiting messages from the embedded broker.

It alternates with two baselines that pull and discard: a loop in Python and one in C.
Writes bench/results/catch_up_embedded.json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.summary import ratios, summarise
from bench.machine import broker_process, command_line, cpu_seconds, run_json, save
from bench.peers.pull_floor import FLOOR
from ordermq import Message, Producer

TOPIC = "catch_up"


def fill(address: str, messages: int, *, tags: str | None = None, keys: Sequence[str] = ()) -> None:
    """Store the messages, the same number in each queue."""
    body = bytes(range(32, 32 + workloads.CATCH_UP_BODY_BYTES % 90)) * 2
    body = body.ljust(workloads.CATCH_UP_BODY_BYTES, b".")[: workloads.CATCH_UP_BODY_BYTES]
    message = Message(TOPIC, body, tags=tags, keys=keys)
    queues = workloads.CATCH_UP_QUEUES
    with Producer(
        "bench", name_servers=address, default_topic_queue_nums=queues, max_batch_bytes=1_000_000
    ) as producer:
        producer.send(message, queue=None)
        targets = producer.queues(TOPIC)
        assert len(targets) == queues, targets
        for target in targets:
            left = messages // queues - (1 if target.queue_id == 0 else 0)
            while left:
                size = min(left, 1_000)
                producer.send_batch([message] * size, queue=target)
                left -= size


def measure(rounds: int, messages: int, durability: str) -> dict[str, Any]:
    per_queue = messages // workloads.CATCH_UP_QUEUES
    rows: dict[str, list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder), durability=durability) as (process, address),
    ):
        fill(address, messages)
        size = ["--pull-size", workloads.PULL_SIZE]
        queues = ["--queues", workloads.CATCH_UP_QUEUES]
        all_of, per_queue_of = ["--messages", messages], ["--per-queue", per_queue]
        for number in range(rounds + 1):
            work = [
                ("bench.peers.bare_pull", [address, TOPIC, *queues, *per_queue_of, *size]),
                ("bench.peers.pull_floor", [address, TOPIC, *queues, *all_of, *size]),
            ]
            for batch in workloads.LISTENER_BATCHES:
                group = ["--group", f"g{number}b{batch}", "--batch", batch]
                arguments = [address, TOPIC, *group, *all_of, *size]
                work.append(("bench.end_to_end.ordermq_consumer", arguments))
            for module, arguments in work:
                before = cpu_seconds(process.pid)
                row = run_json(module, arguments)
                row["broker_cpu_seconds"] = cpu_seconds(process.pid) - before
                assert row["messages"] == messages, row
                if number:  # the first round warms the page cache and is not counted
                    rows.setdefault(row["peer"], []).append(row)
                rate = messages / row["seconds"]
                print(
                    f"round {number} {row['peer']:18} {rate:10,.0f} msg/s "
                    f"cpu {row['cpu_seconds'] / messages * 1e6:5.2f} us/msg "
                    f"broker {row['broker_cpu_seconds'] / messages * 1e6:5.2f} us/msg",
                    flush=True,
                )
    return {
        "rows": {peer: summarise(found, messages) for peer, found in rows.items()},
        "ratios": {
            str(batch): ratios(rows[f"ordermq, batch {batch}"], rows[FLOOR])
            for batch in workloads.LISTENER_BATCHES
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=workloads.CATCH_UP_MESSAGES)
    arguments = parser.parse_args()
    result = measure(arguments.rounds, arguments.messages, "fsync")
    result["command"] = command_line("bench.end_to_end.bench_catch_up")
    result["workload"] = {
        "messages": arguments.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
        "pull_size": workloads.PULL_SIZE,
    }
    bare = result["rows"]["bare pull loop"]["messages_per_second"]
    for row in result["rows"].values():
        row["share_of_bare"] = round(row["messages_per_second"] / bare, 3)
    print(save("catch_up_embedded", result))


if __name__ == "__main__":
    main()
