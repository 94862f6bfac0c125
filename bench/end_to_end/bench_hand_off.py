"""Hand-off under load: how long a moved queue is silent when a member joins or leaves.

Two members hold eight queues at 400 messages a second; a third joins and leaves, again and
again. Silence is the time from the old owner's last listener call on a queue to the new
owner's first; the pace alone makes a queue silent for 20 ms between two messages.
Writes bench/results/hand_off_embedded.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.group import TOPIC, Member, traffic
from bench.machine import broker_process, save

SETTLE_S = 1.0  # of traffic between two moves


def moves(histories: list[Path]) -> tuple[dict[str, list[float]], int]:
    """Silences in ms by kind of move, and how many messages were finished twice."""
    calls: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    finished: dict[tuple[int, int], int] = defaultdict(int)
    members: dict[str, str] = {}
    for path in histories:
        for line in path.read_text().splitlines():
            event = json.loads(line)
            members[event["p"]] = path.stem
            if event.get("topic") != TOPIC:
                continue
            if event["type"] in ("START", "END"):
                calls[event["queue"]].append((event["t"], event["seq"], event["p"]))
            if event["type"] == "END":
                for offset in event["offs"][: event["done"]]:
                    finished[event["queue"], offset] += 1
    silences: dict[str, list[float]] = {"join": [], "leave": []}
    for found in calls.values():
        found.sort()
        for (before, _, old), (after, _, new) in itertools.pairwise(found):
            if old != new:
                kind = "join" if members[new].startswith("guest") else "leave"
                silences[kind].append((after - before) / 1e6)
    return silences, sum(count - 1 for count in finished.values())


def measure(rounds: int, listener_ms: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder)) as (_, address),
        traffic(address),
    ):
        histories: list[Path] = []

        def member(name: str) -> Member:
            histories.append(Path(folder) / f"{name}.jsonl")
            return Member(address, histories[-1], listener_ms)

        residents = [member("resident-0")]
        residents[0].wait_for_queues(workloads.HAND_OFF_QUEUES)
        residents.append(member("resident-1"))
        residents[1].wait_for_queues(workloads.HAND_OFF_QUEUES // 2)
        for number in range(rounds):
            time.sleep(SETTLE_S)
            guest = member(f"guest-{number}")
            guest.wait_for_queues(workloads.HAND_OFF_QUEUES // 3)
            time.sleep(SETTLE_S)
            guest.leave()
        time.sleep(SETTLE_S)
        for resident in residents:
            resident.leave()
        silences, duplicates = moves(histories)
    result: dict[str, Any] = {"duplicates": duplicates, "listener_ms": listener_ms}
    for kind, found in silences.items():
        result[kind] = {
            "moves": len(found),
            "median_ms": round(statistics.median(found), 1),
            "p95_ms": round(sorted(found)[int(len(found) * 0.95)], 1),
            "worst_ms": round(max(found), 1),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=workloads.HAND_OFF_ROUNDS)
    arguments = parser.parse_args()
    rows = [measure(arguments.rounds, listener_ms) for listener_ms in (0, 20)]
    for row in rows:
        print(json.dumps(row))
    result = {
        "command": "python -m bench.end_to_end.bench_hand_off",
        "workload": {
            "messages_per_second": workloads.HAND_OFF_RATE,
            "queues": workloads.HAND_OFF_QUEUES,
            "members": "2, a third joins and leaves",
        },
        "rows": rows,
    }
    print(save("hand_off_embedded", result))


if __name__ == "__main__":
    main()
