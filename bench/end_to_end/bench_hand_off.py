"""Hand-off under load: the pause of a moved queue when a member joins or leaves.

Two members hold eight queues at 400 messages a second; a third joins and leaves, again and
again. The pause is the time from the old owner's last listener call on a queue to the new
owner's first; the pace alone makes a queue silent for 20 ms between two messages.
Writes bench/results/hand_off_embedded.json; with --rocketmq 5.3.3 groups of ours and of Java's
client do the same in turn on a real broker, and it writes hand_off_rocketmq.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import workloads
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.end_to_end.group import TOPIC, Member, java_member, ordermq_member, traffic
from bench.end_to_end.lock_requests import file_of, most_per_second
from bench.machine import broker_process, command_line, save
from bench.peers.java_classes import missing

SETTLE_S = 1.0  # of traffic between two moves
LISTENERS_MS = (0, 20)
ATTEMPTS = 3  # at a group: on a busy machine Java's member may give up at its start


def moves(histories: list[Path]) -> tuple[dict[str, list[float]], int]:
    """Return the pauses in ms by kind of move, and the number of messages finished twice."""
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
            silence = (after - before) / 1e6
            if old == new:
                continue
            if members[new].startswith("guest"):
                silences["join"].append(silence)
            elif members[old].startswith("guest"):
                silences["leave"].append(silence)
    return silences, sum(count - 1 for count in finished.values())


def move(address: str, folder: Path, name: str, way: dict[str, Any]) -> list[Path]:
    """Let a third member join and leave `rounds` times; return the histories of all members."""
    members: list[Member] = []

    def member(kind: str) -> Member:
        history, package = folder / f"{kind}-{name}.jsonl", way.get("package")
        one = Member(address, history, way["listener_ms"], way["program"], name, package)
        members.append(one)
        return one

    try:
        residents = [member("resident-0")]
        residents[0].wait_for_queues(workloads.HAND_OFF_QUEUES)
        residents.append(member("resident-1"))
        residents[1].wait_for_queues(workloads.HAND_OFF_QUEUES // 2)
        for number in range(way["rounds"]):
            time.sleep(SETTLE_S)
            guest = member(f"guest-{number}")
            guest.wait_for_queues(workloads.HAND_OFF_QUEUES // 3)
            time.sleep(SETTLE_S)
            guest.leave()
        time.sleep(SETTLE_S)
        for resident in residents:
            resident.leave()
    except BaseException:
        for one in members:  # nobody else would end them
            one.kill()
        raise
    return [one.history for one in members]


def group_moves(address: str, folder: Path, name: str, way: dict[str, Any]) -> Moves:
    """Return the moves of a group; of another one if a member of the first gave up.

    Raises: SystemExit: so did one of each group.
    """
    attempt = 0
    while True:
        try:
            return moves_of(move(address, folder, f"{name}-{attempt}", way))
        except SystemExit as reason:
            attempt += 1
            if attempt == ATTEMPTS:
                raise
            print(f"group {name} is measured again: {reason}", flush=True)


class Moves(NamedTuple):
    """The moves of one group: pauses in ms by kind, messages finished twice, lock requests.

    The last is the most that a member sent within a second, by member; {} if it does not count.
    """

    pauses: dict[str, list[float]]
    duplicates: int
    lock_requests: dict[str, int]


def moves_of(histories: list[Path]) -> Moves:
    """Return what the members of a group recorded."""
    counts = {
        path.stem: most_per_second(json.loads(file_of(path).read_text()))
        for path in histories
        if file_of(path).exists()
    }
    return Moves(*moves(histories), counts)


def row_of(found: Sequence[Moves]) -> dict[str, Any]:
    """Return the figures of the moves of one or more groups."""
    row: dict[str, Any] = {"duplicates": sum(each.duplicates for each in found)}
    counts = [count for each in found for count in each.lock_requests.values()]
    if counts:
        row["lock_requests_per_second"] = max(counts)
    for kind in ("join", "leave"):
        silences = sorted(silence for each in found for silence in each.pauses[kind])
        row[kind] = {
            "moves": len(silences),
            "median_ms": round(statistics.median(silences), 1),
            "p95_ms": round(silences[int(len(silences) * 0.95)], 1),
            "worst_ms": round(silences[-1], 1),
        }
    return row


def measure_embedded(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for listener_ms in LISTENERS_MS:
        way = {"rounds": rounds, "listener_ms": listener_ms, "program": ordermq_member()}
        with (
            tempfile.TemporaryDirectory() as folder,
            broker_process(Path(folder)) as (_, address),
            traffic(address),
        ):
            found = group_moves(address, Path(folder), "movers", way)
        rows.append(row_of([found]) | {"listener_ms": listener_ms})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_rocketmq(version: str, rounds: int, alternations: int) -> list[dict[str, Any]]:
    """Alternate groups of ordermq and Java's client, each for `rounds` joins and leaves."""
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, rocketmq(version) as address, traffic(address):
        programs = {"ordermq": ordermq_member(), "Java client": java_member(Path(folder))}
        for turn in range(alternations):
            for listener_ms in LISTENERS_MS:
                for client, program in programs.items():
                    way = {"rounds": rounds, "listener_ms": listener_ms, "program": program}
                    name = f"{client.split()[0]}-{listener_ms}-{turn}"
                    measured = group_moves(address, Path(folder), name, way)
                    found[client, listener_ms].append(measured)
                    print(f"{name:14} {json.dumps(row_of([measured]))}", flush=True)
    return [
        row_of(measured) | {"client": client, "listener_ms": listener_ms}
        for (client, listener_ms), measured in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=workloads.HAND_OFF_ROUNDS)
    parser.add_argument(
        "--rocketmq", metavar="VERSION", help="on this broker, beside Java's client"
    )
    parser.add_argument("--alternations", type=int, default=3, help="with --rocketmq")
    asked = parser.parse_args()
    workload: dict[str, Any] = {
        "messages_per_second": workloads.HAND_OFF_RATE,
        "queues": workloads.HAND_OFF_QUEUES,
        "members": "2, a third joins and leaves",
    }
    if asked.rocketmq is None:
        rows = measure_embedded(asked.rounds)
        name = "hand_off_embedded"
    else:
        if absent := missing():
            raise SystemExit(f"not found: {', '.join(absent)}; Java's client needs them")
        rows = measure_rocketmq(asked.rocketmq, asked.rounds, asked.alternations)
        name = "hand_off_rocketmq"
        workload |= {"rocketmq": asked.rocketmq, "alternations": asked.alternations}
    print(
        save(
            name,
            {
                "command": command_line("bench.end_to_end.bench_hand_off"),
                "workload": workload,
                "rows": rows,
            },
        )
    )


if __name__ == "__main__":
    main()
