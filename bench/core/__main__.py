"""Measure the core and its peers in turn: python -m bench.core. Writes bench/results/core.json.

A peer that cannot run here is named on standard error, and in the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Collection, Iterator
from typing import Any

from bench import workloads
from bench.core import bench_memory
from bench.machine import run_json, save
from bench.peers import java_classes, pyrocketmq

WORKS = ("process_queue", "offset_map", "lane_map", "lock_table", "codec", "id_window", "memory")
_PYTHON_PEERS = {"sortedcontainers": "sorted_dict", "BTrees": "btrees"}
_CONDITIONS = (
    "Times are processor time of the one working thread, in every peer: other work of the machine "
    "does not count, nor does Java's garbage collection, which has threads of its own.",
    "Messages put into a process queue stay referenced until the timing ends, in every peer: "
    "freeing messages is not timed.",
)
Run = tuple[str, list[object]]  # a module and its arguments


def peers(missing: dict[str, str]) -> dict[str, list[Run]]:
    """Return the peers that can run, by work; print why the others cannot."""
    found: dict[str, list[Run]] = {work: [] for work in WORKS}
    tools = java_classes.missing()
    if tools:
        missing["Java's classes"] = f"not installed: {', '.join(tools)}"
    else:
        print("Java's classes: fetched and compiled once, which takes a minute", flush=True)
        java_classes.class_path()
        for work in java_classes.WORKS:
            found[work].append(("bench.peers.java_classes", [work]))
    reason = pyrocketmq.missing()
    if reason:
        missing["pyrocketmq"] = reason
    else:
        found["process_queue"].append(("bench.peers.pyrocketmq", []))
    for library, module in _PYTHON_PEERS.items():
        if importlib.util.find_spec(library) is None:
            missing[library] = "not installed"
        else:
            found["offset_map"].append((f"bench.peers.{module}", []))
    for peer, reason in missing.items():
        print(f"\n*** NO FIGURES OF {peer}: {reason} ***\n", file=sys.stderr, flush=True)
    return found


def runs(works: Collection[str], missing: dict[str, str]) -> list[Run]:
    """Return one round: ordermq, then the peers of the same work."""
    others = peers(missing)
    found: list[Run] = []
    for work in works:
        if work == "memory":
            found += [("bench.core.bench_memory", list(case)) for case in bench_memory.cases()]
        else:
            found += [(f"bench.core.bench_{work}", []), *others[work]]
    return found


def measure(rounds: int, works: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield after each round the medians so far, and the figures of every round."""
    missing: dict[str, str] = {}
    samples: dict[str, dict[str, dict[str, list[float]]]] = {}
    versions: dict[str, Any] = {}
    wanted = runs(works, missing)
    started = time.monotonic()
    for number in range(rounds):
        for module, arguments in wanted:
            before = time.monotonic()
            line = run_json(module, arguments)
            versions[line["peer"]] = versions.get(line["peer"], {}) | line["detail"]
            cases = samples.setdefault(line["work"], {}).setdefault(line["peer"], {})
            for case, value in line["rows"].items():
                cases.setdefault(case, []).append(round(value, 2))
            spent = time.monotonic() - before
            said = " ".join([line["work"], *map(str, arguments[1:])])
            print(
                f"round {number + 1}/{rounds}: {line['peer']}, {said} ({spent:.0f} s)", flush=True
            )
        yield {
            "command": "ci/bench.sh core",
            "rounds": number + 1,
            "minutes": round((time.monotonic() - started) / 60, 1),
            "conditions": list(_CONDITIONS),
            "versions": versions,
            "missing": missing,
            "samples": samples,
            "medians": medians(samples),
            "workload": {
                name.removeprefix("CORE_").lower(): getattr(workloads, name)
                for name in dir(workloads)
                if name.startswith("CORE_") or name == "SEED"
            },
        }


def medians(
    samples: dict[str, dict[str, dict[str, list[float]]]],
) -> dict[str, dict[str, dict[str, float]]]:
    return {
        work: {
            peer: {case: round(statistics.median(values), 2) for case, values in cases.items()}
            for peer, cases in found.items()
        }
        for work, found in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=workloads.CORE_ROUNDS)
    parser.add_argument(
        "--only", nargs="+", choices=WORKS, metavar="WORK",
        help=f"print the medians of these and write nothing: {', '.join(WORKS)}",
    )  # fmt: skip
    arguments = parser.parse_args()
    is_kept = not arguments.only and not workloads.IS_QUICK
    for result in measure(arguments.rounds, arguments.only or WORKS):
        if is_kept:  # after every round: an interrupted run leaves its whole rounds
            print(save("core", result), flush=True)
    if not is_kept:
        for work, found in result["medians"].items():
            for peer, cases in found.items():
                for case, value in cases.items():
                    print(f"{work:14} {peer:26} {case:40} {value:12,.1f}")


if __name__ == "__main__":
    main()
