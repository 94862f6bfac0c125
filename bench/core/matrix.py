"""Every case of test_matrix.py on both native cores: python -m bench.core.matrix.

Writes bench/results/core_matrix.json: medians in nanoseconds per item. pytest's options may
follow, to see some cases without writing anything: python -m bench.core.matrix -k codec.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import ROOT, save

CORES = ("cython", "cffi")


def measure(core: str, options: list[str]) -> dict[str, float]:
    """Return nanoseconds per item by case, of one core in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "benchmarks.json"
        command = [sys.executable, "-m", "pytest", "-q", "bench/core", "--benchmark-only"]
        command += [
            "--benchmark-timer=time.thread_time",
            # Ten million standing messages make a collection cost more than what is timed.
            "--benchmark-disable-gc",
            "--benchmark-columns=median",
            f"--benchmark-json={found}",
            *options,
        ]
        if not options:
            command.append("--benchmark-quiet")
        subprocess.run(command, cwd=ROOT, env=os.environ | {"ORDERMQ_CORE": core}, check=True)
        benchmarks = json.loads(found.read_text())["benchmarks"]
    return {
        one["param"]: round(one["stats"]["median"] * 1e9 / one["extra_info"]["items"], 2)
        for one in benchmarks
    }


def main() -> None:
    options = sys.argv[1:]
    medians = {}
    started = time.monotonic()
    for core in CORES:
        print(f"every case on {core}", flush=True)
        medians[core] = measure(core, options)
    if not options:
        minutes = round((time.monotonic() - started) / 60, 1)
        result = {"command": "ci/bench.sh core", "minutes": minutes, "medians": medians}
        print(save("core_matrix", result))


if __name__ == "__main__":
    main()
