"""Compare this ordermq with the one of another checkout, alternating the two in one run.

    python -m bench.compare ../before            everything, medians of five rounds
    python -m bench.compare ../before --rounds 3 --only catch-up --only sends

The other checkout must have built its extension (`ci/venv.sh` there). Both versions run the
benchmark programs of this checkout, under this interpreter, on the same brokers: catch-up, sends
and latency on one RocketMQ (Java 17 and Maven), then catch-up and hand-off on an embedded broker
of each version. Each ratio is the median of the rounds' own ratios, this version / the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bench import workloads
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.bench_hand_off import group_moves, row_of
from bench.end_to_end.bench_latency import KEYS, make, summary
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.end_to_end.bench_send import OURS, WAYS
from bench.end_to_end.group import ordermq_member, traffic
from bench.machine import broker_process, run_json
from ordermq import Message, Producer

_CATCH_UP = "bench.end_to_end.ordermq_consumer"
_LATENCY = "bench.end_to_end.ordermq_latency"
_LATENCY_RATE = 1_000
_LATENCY_SECONDS = 8

# The figures of one run of one version, by name; less is better for all of them.
Figures: TypeAlias = dict[str, float]
Runs: TypeAlias = list[tuple[str, Callable[[Path | None, str], Figures]]]


@contextlib.contextmanager
def package_of(checkout: Path) -> Iterator[Path]:
    """Yield a folder that holds the other checkout's `ordermq` and nothing else."""
    other = checkout.resolve() / "ordermq"
    if not list((other / "core").glob("_cython.*")):
        raise SystemExit(f"{checkout}: no built extension there: run ci/venv.sh in it first")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ordermq").symlink_to(other)
        yield Path(folder)


def per_message(row: dict[str, Any]) -> Figures:
    """Wall and processor time of a run, in us per message."""
    count = row["messages"]
    return {"us": row["seconds"] / count * 1e6, "CPU us": row["cpu_seconds"] / count * 1e6}


def catch_up(address: str, messages: int, batch: int, package: Path | None, run: str) -> Figures:
    """Read the whole topic with a new group; its second half is timed."""
    sizes = ["--batch", batch, "--pull-size", workloads.PULL_SIZE, "--messages", messages]
    work = [address, TOPIC, "--group", f"g-{batch}-{run}", *sizes, "--warm", messages // 2]
    return per_message(run_json(_CATCH_UP, work, package=package))


def send(address: str, way: str, package: Path | None, run: str) -> Figures:
    """Send in one of bench_send's ways."""
    keys, batch, messages, warm = WAYS[way]
    sizes = ["--keys", keys, "--batch", batch, "--messages", messages, "--warm", warm]
    work = [address, "sending", *sizes, "--body-bytes", workloads.CATCH_UP_BODY_BYTES]
    return per_message(run_json(OURS, work, package=package))


def latency(address: str, package: Path | None, run: str) -> Figures:
    """Send and listen at a fixed rate."""
    topic, count = f"latency-{run}", _LATENCY_RATE * _LATENCY_SECONDS
    make(address, topic)
    sizes = ["--rate", _LATENCY_RATE, "--keys", KEYS, "--messages", count, "--warm", count // 2]
    work = [address, topic, "--group", f"listening-{run}", *sizes]
    row = run_json(
        _LATENCY, [*work, "--body-bytes", workloads.CATCH_UP_BODY_BYTES], package=package
    )
    found = summary(row, _LATENCY_SECONDS)
    return {
        "p50 us": found["p50_us"],
        "p99 us": found["p99_us"],
        "CPU us": found["cpu_us_per_message"],
    }


def embedded_catch_up(messages: int, batch: int, package: Path | None, run: str) -> Figures:
    """Read a topic of this version's own embedded broker."""
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder), package=package) as (_, address),
    ):
        fill(address, messages)
        return catch_up(address, messages, batch, package, run)


def hand_off(package: Path | None, run: str) -> Figures:
    """Let a third member join and leave a group on this version's own embedded broker."""
    way = {"rounds": 3, "listener_ms": 0, "program": ordermq_member(), "package": package}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder), package=package) as (_, address),
        traffic(address),
    ):
        row = row_of([group_moves(address, Path(folder), f"movers-{run}", way)])
    if row["duplicates"]:
        raise SystemExit(f"hand-off: {row['duplicates']} messages were consumed twice")
    return {f"{kind} ms": row[kind]["median_ms"] for kind in ("join", "leave")}


def on_rocketmq(address: str, messages: int, wanted: set[str]) -> Runs:
    """List the runs that share one RocketMQ."""
    runs: Runs = []
    if "catch-up" in wanted:
        fill(address, messages)
        for size in workloads.LISTENER_BATCHES:
            runs.append(
                (
                    f"catch-up on RocketMQ, batch {size}",
                    partial(catch_up, address, messages, size),
                )
            )
    if "sends" in wanted:
        queues = workloads.CATCH_UP_QUEUES
        with Producer("maker", name_servers=address, default_topic_queue_nums=queues) as producer:
            producer.send(Message("sending", b"first"))
        for way in WAYS:
            runs.append((f"send, {way}", partial(send, address, way)))
    if "latency" in wanted:
        name = f"latency at {_LATENCY_RATE:,} messages/s"
        runs.append((name, partial(latency, address)))
    return runs


def on_embedded(messages: int, wanted: set[str]) -> Runs:
    """List the runs with an embedded broker of their own."""
    runs: Runs = []
    if "catch-up" in wanted:
        for size in workloads.LISTENER_BATCHES:
            runs.append(
                (
                    f"catch-up on the embedded broker, batch {size}",
                    partial(embedded_catch_up, messages, size),
                )
            )
    if "hand-off" in wanted:
        runs.append(("hand-off on the embedded broker", hand_off))
    return runs


def alternate(runs: Runs, other: Path, rounds: int) -> None:
    """Run both versions in turn, and print each figure's medians and its ratio."""
    for name, run in runs:
        ours: list[Figures] = []
        theirs: list[Figures] = []
        for number in range(-1, rounds):  # the first round warms the page cache and is dropped
            # Which version goes first changes each round, so that neither gains by its place.
            order = [(ours, None, "new"), (theirs, other, "old")]
            for found, package, version in order if number % 2 else order[::-1]:
                figures = run(package, f"{version}-{number + 1}")
                if number >= 0:
                    found.append(figures)
        for figure in ours[0]:
            ratios = [new[figure] / old[figure] for new, old in zip(ours, theirs, strict=True)]
            new, old = (statistics.median(row[figure] for row in rows) for rows in (ours, theirs))
            print(
                json.dumps(
                    {
                        "run": name,
                        "figure": figure,
                        "this": round(new, 2),
                        "other": round(old, 2),
                        "ratio": round(statistics.median(ratios), 3),
                        "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
                    }
                ),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other checkout, its extension built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=workloads.CATCH_UP_MESSAGES)
    parser.add_argument("--version", default="5.3.3", help="of RocketMQ")
    works = ("catch-up", "sends", "latency", "hand-off")
    parser.add_argument("--only", choices=works, action="append", help="these; default all")
    parser.add_argument("--on", choices=("rocketmq", "embedded"), help="default both")
    asked = parser.parse_args()
    wanted = set(asked.only or works)
    with package_of(asked.checkout) as other:
        if asked.on != "embedded" and wanted != {"hand-off"}:
            with rocketmq(asked.version) as address:
                runs = on_rocketmq(address, asked.messages, wanted)
                alternate(runs, other, asked.rounds)
        if asked.on != "rocketmq":
            alternate(on_embedded(asked.messages, wanted), other, asked.rounds)


if __name__ == "__main__":
    main()
