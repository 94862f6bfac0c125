"""Take-over after kill -9: the time until the queues of a dead member are held again.

The broker's locks live for the workload's lease; nobody may take a queue earlier, because a
member that is only cut off still trusts its own lease. Duplicates are counted against their
bound: the batch in flight and what was finished and not yet committed.
Writes bench/results/take_over_embedded.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.group import TOPIC, Member, traffic
from bench.machine import broker_process, save

SETTLE_S = 1.5


def events(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a history about the topic; a kill may cut the last one."""
    lines = path.read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in found if event.get("topic") == TOPIC]


def take_over(address: str, heir: Member, heirs: Path, victims: Path) -> list[float]:
    """Kill a member that holds half of the queues; return the ms until each is held again."""
    victim = Member(address, victims, 0)
    victim.wait_for_queues(workloads.HAND_OFF_QUEUES // 2)
    time.sleep(SETTLE_S)
    killed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    victim.kill()
    heir.wait_for_queues(workloads.HAND_OFF_QUEUES // 2)
    granted: dict[int, int] = {}  # epoch -> first grant; later ones are renewals
    for event in events(heirs):
        if event["type"] == "LOCK_OK":
            granted.setdefault(event["epoch"], event["t"])
    return [(at - killed_ns) / 1e6 for at in granted.values() if at > killed_ns]


def measure(rounds: int) -> dict[str, Any]:
    lease_ms = workloads.TAKE_OVER_LEASE_MS
    waits: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder), lease_ms=lease_ms, history=Path(folder) / "broker.jsonl") as (
            _,
            address,
        ),
    ):
        histories = [Path(folder) / "heir.jsonl"]
        with traffic(address):
            heir = Member(address, histories[0], 0)
            heir.wait_for_queues(workloads.HAND_OFF_QUEUES)
            for number in range(rounds):
                histories.append(Path(folder) / f"victim-{number}.jsonl")
                waits += take_over(address, heir, histories[0], histories[-1])
        time.sleep(SETTLE_S)  # the last messages are on their way
        heir.leave()
        done: Counter[tuple[int, int]] = Counter()
        for path in histories:
            for event in events(path):
                if event["type"] == "END":
                    done.update((event["queue"], offset) for offset in event["offs"])
        stored = sum(
            len(event["offs"])
            for event in events(Path(folder) / "broker.jsonl")
            if event["type"] == "STORE"
        )
    duplicates = sum(count - 1 for count in done.values())
    return {
        "lease_ms": lease_ms,
        "kills": rounds,
        "take_overs": len(waits),
        "median_ms": round(statistics.median(waits)),
        "worst_ms": round(max(waits)),
        "stored": stored,
        "finished": len(done),
        "lost": stored - len(done),
        "duplicates_per_kill": round(duplicates / rounds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=workloads.TAKE_OVER_ROUNDS)
    row = measure(parser.parse_args().rounds)
    print(json.dumps(row))
    result = {"command": "python -m bench.end_to_end.bench_take_over", "rows": [row]}
    print(save("take_over_embedded", result))


if __name__ == "__main__":
    main()
