"""Cost of a listener call, and of a pass of the loop that makes the calls.

    python -m bench.core.call_cost

From runs of bench_consume_loop with 32 and with 256 messages in batches of one: their difference
is the cost of the calls, an empty listener included, and the rest is that of the pass. Writes
bench/results/call_cost.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from bench.machine import command_line, run_json, save

FEW, MANY = 32, 256  # messages of a pass


def split(rows: dict[str, float]) -> dict[str, float]:
    """Return the ns per call and per pass, from the ns per message of passes of both sizes."""
    few, many = (rows[f"{size} messages in batches of 1"] * size for size in (FEW, MANY))
    call = (many - few) / (MANY - FEW)
    return {"call_ns": call, "pass_ns": few - FEW * call}


def measure(rounds: int) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    for number in range(rounds):
        found.append(split(run_json("bench.core.bench_consume_loop", [])["rows"]))
        print(f"round {number} {json.dumps(found[-1])}")
    return {name: round(statistics.median(row[name] for row in found)) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    result = {"rows": measure(asked.rounds), "command": command_line("bench.core.call_cost")}
    print(save("call_cost", result | {"rounds": asked.rounds}))


if __name__ == "__main__":
    main()
