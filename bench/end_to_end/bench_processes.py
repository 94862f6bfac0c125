"""`ordermq run` with two processes, compared with one, for a listener that computes.

The listener does a fixed amount of work in Python, 100 us of CPU when this machine is quiet. The
messages wait on the embedded broker. Measured is the middle half of them, so that neither the
start of the processes nor an uneven end counts. Rounds alternate, each with a new group. Writes
bench/results/processes_embedded.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.processes_consumer import EVERY, work
from bench.machine import ROOT, broker_process, command_line, save

TARGET = "bench.end_to_end.processes_consumer:make"
PROCESSES = (1, 2)
LISTENER_US = 100
DEADLINE_S = 120.0


def turns_of(listener_us: int) -> int:
    """Return the turns of `work` that take this long, by the quickest of some attempts."""
    probe = 20_000
    quickest = float("inf")
    for _ in range(50):
        before = time.thread_time()
        work(probe)
        quickest = min(quickest, time.thread_time() - before)
    return round(probe * listener_us / 1e6 / quickest)


def run(address: str, group: str, processes: int, messages: int, turns: int) -> float:
    """Consume all messages; return the seconds that the middle half of them took.

    Raises: SystemExit: they did not come in time, or `ordermq run` failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        counts = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        counts.bind(f"{folder}/counts")
        counts.settimeout(DEADLINE_S)
        settings = {"ADDRESS": address, "GROUP": group, "TURNS": str(turns)}
        environment = os.environ | {f"BENCH_{name}": value for name, value in settings.items()}
        environment |= {"BENCH_COUNTS": f"{folder}/counts", "BENCH_TOPIC": TOPIC}
        command = [sys.executable, "-m", "ordermq", "run", TARGET, "--processes", str(processes)]
        with open(f"{folder}/log", "w+") as log:
            supervisor = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
            try:
                return middle(counts, messages)
            except TimeoutError:
                log.seek(0)
                raise SystemExit(
                    f"{group}: not {messages} messages in time\n{log.read()}"
                ) from None
            finally:
                stop(supervisor, counts)
                counts.close()


def stop(supervisor: subprocess.Popen[bytes], counts: socket.socket) -> None:
    """End the processes; their listeners report meanwhile, and would wait if nobody read."""
    supervisor.send_signal(signal.SIGTERM)
    counts.settimeout(0.1)
    deadline = time.monotonic() + DEADLINE_S
    while supervisor.poll() is None:
        if time.monotonic() > deadline:
            supervisor.kill()
        with contextlib.suppress(TimeoutError):
            counts.recv(1)


def middle(counts: socket.socket, messages: int) -> float:
    """Return the seconds between a quarter and three quarters of the messages.

    Raises: TimeoutError: nothing came for too long.
    """
    counted = 0
    began = ended = 0.0
    while counted < messages // 4 * 3:
        counts.recv(1)
        counted += EVERY
        if not began and counted >= messages // 4:
            began = time.perf_counter()
    ended = time.perf_counter()
    return ended - began


def measure(rounds: int, messages: int) -> dict[str, Any]:
    turns = turns_of(LISTENER_US)
    seconds: dict[int, list[float]] = {processes: [] for processes in PROCESSES}
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as (_, address):
        fill(address, messages)
        for number in range(rounds):
            for processes in PROCESSES:
                took = run(address, f"g{number}-{processes}", processes, messages, turns)
                seconds[processes].append(took)
                print(
                    f"round {number} {processes} processes {messages / 2 / took:8,.0f} msg/s",
                    flush=True,
                )
    return summary(seconds, messages) | {"turns": turns}


def summary(seconds: dict[int, list[float]], messages: int) -> dict[str, Any]:
    """Return the medians of the rounds, and the median of their ratios."""
    one, two = (seconds[processes] for processes in PROCESSES)
    return {
        "rows": {
            str(processes): {
                "messages_per_second": round(statistics.median(messages / 2 / s for s in found)),
                "rounds": len(found),
            }
            for processes, found in seconds.items()
        },
        "ratio": round(statistics.median(a / b for a, b in zip(one, two, strict=True)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=80_000)
    asked = parser.parse_args()
    result = measure(asked.rounds, asked.messages)
    print(json.dumps(result))
    result["command"] = command_line("bench.end_to_end.bench_processes")
    result["workload"] = {
        "messages": asked.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
        "listener_us": LISTENER_US,
        "rounds": asked.rounds,
    }
    print(save("processes_embedded", result))


if __name__ == "__main__":
    main()
