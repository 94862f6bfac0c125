"""Catch-up from a RocketMQ broker: ordermq and other clients, alternating.

Starts a name server and a broker of RocketMQ (ci/rocketmq.sh; Java 17 and Maven), and the proxy
that the gRPC client needs; fills a topic of 8 queues, and lets a new consumer group at a time
read it. The clock starts when half is read, for Java's compiler needs that long. The slower
clients read less of the topic (workloads.py). A pull loop in C, which drops what it pulls, reads
it once per round: the floor. Writes bench/results/catch_up_rocketmq.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.summary import ratios, summarise
from bench.machine import ROOT, command_line, run_json, save
from bench.peers import grpc_client, rocketmq_044, rust_client
from bench.peers.environments import is_there
from bench.peers.java_classes import missing
from bench.peers.pull_floor import FLOOR

CONSUMERS = {
    "ordermq": "bench.end_to_end.ordermq_consumer",
    "ordermq on asyncio": "bench.end_to_end.ordermq_consumer",
    "Java client": "bench.peers.java_client",
    "Go client": "bench.peers.go_client",
    "Rust client": "bench.peers.rust_client",
    FLOOR: "bench.peers.pull_floor",
    "rocketmq 0.4.4": "bench.peers.rocketmq_044",
    "gRPC client": "bench.peers.grpc_client",
}
NEEDED = ("ordermq", "Java client")  # without the others the rest is still of use
WITHOUT_BATCHES = ("gRPC client", FLOOR)
PACKAGES = {"rocketmq 0.4.4": rocketmq_044.PACKAGE, "gRPC client": grpc_client.PACKAGE}


@contextlib.contextmanager
def rocketmq(version: str) -> Iterator[str]:
    """Run RocketMQ; yields the name server's address."""
    with rocketmq_parts(version) as addresses:
        yield addresses["name-server"]


@dataclass(frozen=True, slots=True)
class Part:
    """A running process of RocketMQ: its address and process id."""

    address: str
    pid: int


@contextlib.contextmanager
def rocketmq_parts(version: str, *options: str) -> Iterator[dict[str, str]]:
    """Run RocketMQ; yields the addresses of its parts."""
    with rocketmq_processes(version, *options) as parts:
        yield {name: part.address for name, part in parts.items()}


@contextlib.contextmanager
def rocketmq_processes(version: str, *options: str) -> Iterator[dict[str, Part]]:
    """Run RocketMQ; yields its parts by name."""
    script = str(ROOT / "ci" / "rocketmq.sh")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes must not outlive this
    with tempfile.TemporaryDirectory() as folder:
        where = [version, "--folder", str(Path(folder) / "rocketmq")]
        subprocess.run([script, "up", *where, "--heap", "1024", *options], check=True)
        try:
            yield running_parts(version, Path(folder) / "rocketmq")
        finally:
            subprocess.run([script, "down", *where], check=True)


def running_parts(version: str, folder: Path) -> dict[str, Part]:
    """Return the parts of a RocketMQ that runs in a folder of ci/rocketmq.sh."""
    command = [str(ROOT / "ci" / "rocketmq.sh"), "status", version, "--folder", str(folder)]
    status = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = (line.split("\t") for line in status.stdout.splitlines())
    # The last column begins "pid 123, ready".
    return {name: Part(address, int(told[4:].split(",")[0])) for name, address, told in rows}


def measure(version: str, rounds: int, messages: int, clients: Sequence[str]) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}
    failed: set[str] = set()
    proxy = ["--proxy"] if "gRPC client" in clients else []
    with rocketmq_parts(version, *proxy) as addresses:
        print(f"storing {messages:,} messages", flush=True)
        fill(addresses["name-server"], messages)
        for number in range(rounds + 1):
            for batch in workloads.LISTENER_BATCHES:
                for name in clients:
                    if name in failed or (name in WITHOUT_BATCHES and batch != 1):
                        continue
                    try:
                        row = run_json(
                            CONSUMERS[name], work_of(name, addresses, number, batch, messages)
                        )
                    except subprocess.CalledProcessError as error:
                        if name in NEEDED:
                            raise
                        print(f"ordermq: {name} LEFT OUT: {error}", file=sys.stderr)
                        failed.add(name)
                        continue
                    timed = row["messages"]
                    assert timed == min(messages, workloads.PEER_MESSAGES.get(name, messages)) // 2
                    if number:  # the first round warms the page cache and is not counted
                        rows.setdefault(row["peer"], []).append(row)
                    print(
                        f"round {number} {row['peer']:24} {timed / row['seconds']:10,.0f} msg/s "
                        f"cpu {row['cpu_seconds'] / timed * 1e6:5.2f} us/msg",
                        flush=True,
                    )
    rows = {peer: found for peer, found in rows.items() if peer_of(peer) not in failed}
    return {
        "rows": {peer: summarise(found, found[0]["messages"]) for peer, found in rows.items()},
        "ratios": {
            str(batch): {
                peer_of(peer): ratios(rows[f"ordermq, batch {batch}"], found)
                for peer, found in rows.items()
                if peer_of(peer) != "ordermq" and peer in (FLOOR, f"{peer_of(peer)}, batch {batch}")
            }
            for batch in workloads.LISTENER_BATCHES
        },
    }


def peer_of(row: str) -> str:
    """Return the client's name in that of a row."""
    return row.rsplit(", batch ", 1)[0]


def work_of(
    name: str, addresses: dict[str, str], number: int, batch: int, messages: int
) -> list[object]:
    """Return the command line of a run: a new group, half of its messages timed."""
    share = min(messages, workloads.PEER_MESSAGES.get(name, messages))
    sizes: list[object] = ["--pull-size", workloads.PULL_SIZE]
    sizes += ["--messages", share, "--warm", share - share // 2]
    if name == FLOOR:
        return [addresses["broker-a"], TOPIC, "--queues", workloads.CATCH_UP_QUEUES, *sizes]
    group = f"{name.replace(' ', '-').replace('.', '_')}-{number}-{batch}"
    work: list[object] = [addresses["name-server"], TOPIC, "--group", group, "--batch", batch]
    work += sizes
    if name == "gRPC client":
        work += ["--proxy", addresses["proxy"]]
    elif name.startswith("ordermq"):
        work += ["--event-loop", "asyncio" if name.endswith("asyncio") else "uvloop"]
    return work


def is_available(name: str) -> bool:
    """Return whether a client can be measured here; if not, say why."""
    if name == "Go client" and shutil.which("go") is None:
        print("ordermq: the Go client LEFT OUT: go not found", file=sys.stderr)
        return False
    if name == "Rust client":
        if shutil.which("cargo") is None:
            print("ordermq: the Rust client LEFT OUT: cargo not found", file=sys.stderr)
            return False
        try:
            rust_client.compiled()  # here: it takes longer than a run may
        except subprocess.CalledProcessError as error:
            print(f"ordermq: the Rust client LEFT OUT: {error}", file=sys.stderr)
            return False
    return name not in PACKAGES or is_there(PACKAGES[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=workloads.CATCH_UP_MESSAGES * 4)
    parser.add_argument("--only", choices=list(CONSUMERS), action="append", help="these clients")
    asked = parser.parse_args()
    if absent := missing():
        raise SystemExit(f"not found: {', '.join(absent)}; Java's client needs a JDK 17 and Maven")
    wanted = asked.only or list(CONSUMERS)
    clients = [name for name in wanted if is_available(name)]
    result = measure(asked.version, asked.rounds, asked.messages, clients)
    result["command"] = command_line("bench.end_to_end.bench_rocketmq")
    result["workload"] = {
        "rocketmq": asked.version,
        "messages": asked.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
        "pull_size": workloads.PULL_SIZE,
    }
    print(json.dumps(result["ratios"]))
    print(save("catch_up_rocketmq", result))


if __name__ == "__main__":
    main()
