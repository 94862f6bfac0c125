"""The core beside its peers, in turn: python -m bench.core. Writes bench/results/core.json.

A peer that cannot run here is named on standard error, and in the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from typing import Any

from bench import workloads
from bench.core.bench_memory import SHAPES
from bench.machine import run_json, save
from bench.peers import java_classes

WORKS = ("process_queue", "offset_map", "lock_table", "codec")
_PYTHON_PEERS = {"sortedcontainers": "sorted_dict", "BTrees": "btrees"}


def peers(missing: dict[str, str]) -> list[tuple[str, list[object]]]:
    """(module, arguments) of every peer that can run; says why of those that cannot."""
    found: list[tuple[str, list[object]]] = []
    tools = java_classes.missing()
    if tools:
        missing["Java's classes"] = f"not installed: {', '.join(tools)}"
    else:
        java_classes.class_path()
        found += [("bench.peers.java_classes", [work]) for work in WORKS]
    for library, module in _PYTHON_PEERS.items():
        if importlib.util.find_spec(library) is None:
            missing[library] = "not installed"
        else:
            found.append((f"bench.peers.{module}", []))
    for peer, reason in missing.items():
        print(f"\n*** NO FIGURES OF {peer}: {reason} ***\n", file=sys.stderr, flush=True)
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Medians of the rounds, and every round's figure behind them."""
    missing: dict[str, str] = {}
    others = peers(missing)
    runs: list[tuple[str, list[object]]] = []
    for work in WORKS:  # ours right beside the peers of the same work
        runs.append((f"bench.core.bench_{work}", []))
        runs += [(module, rest) for module, rest in others if rest == [work]]
        if work == "offset_map":
            runs += [(module, rest) for module, rest in others if not rest]
    runs += [("bench.core.bench_memory", [shape]) for shape in SHAPES]
    samples: dict[str, dict[str, dict[str, list[float]]]] = {}
    versions: dict[str, Any] = {}
    for number in range(rounds):
        for module, arguments in runs:
            line = run_json(module, arguments)
            versions[line["peer"]] = versions.get(line["peer"], {}) | line["detail"]
            cases = samples.setdefault(line["work"], {}).setdefault(line["peer"], {})
            for case, value in line["rows"].items():
                cases.setdefault(case, []).append(round(value, 2))
            print(f"round {number + 1}/{rounds}: {line['peer']}, {line['work']}", flush=True)
    return {
        "command": "ci/bench.sh core",
        "rounds": rounds,
        "versions": versions,
        "missing": missing,
        "samples": samples,
        "medians": {
            work: {
                peer: {case: round(statistics.median(values), 2) for case, values in cases.items()}
                for peer, cases in found.items()
            }
            for work, found in samples.items()
        },
        "workload": {
            name.removeprefix("CORE_").lower(): getattr(workloads, name)
            for name in dir(workloads)
            if name.startswith("CORE_") or name == "SEED"
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=workloads.CORE_ROUNDS)
    print(save("core", measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
