"""Count the instructions per message of this ordermq and of another checkout's, by Valgrind.

    python -m bench.instructions ../before                 sends, catch-up and the codec
    python -m bench.instructions ../before --only sends

Times on a shared machine vary by more than a change of a few per cent; instruction counts do not.
Each client process runs twice under Valgrind's cachegrind, with few and with many messages: the
difference, divided by the messages between, leaves start and import out. The broker runs beside
it without Valgrind. What the count misses is what waits: system calls, caches and locks, so
`python -m bench.compare` stays the measure of speed. The other checkout must have built its
extension (`ci/venv.sh` there); Debian's package is `valgrind`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench import workloads
from bench.compare import package_of
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.bench_send import OURS as PRODUCER
from bench.end_to_end.bench_send import WAYS
from bench.machine import ROOT, broker_process, environment
from ordermq import Message, Producer

_CONSUMER = "bench.end_to_end.ordermq_consumer"
_LISTENERS = {"orderly": (), "concurrent": ("--concurrent",)}
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_COUNT = re.compile(r"I\s+refs:\s+([\d,]+)")
_SHARE = 12  # of a benchmark's messages: Valgrind takes some fifty times as long
_CODEC = """
import sys
from bench import workloads
from bench.core import bench_codec
workloads.CORE_CODEC_TIMED = int(sys.argv[4])
getattr(bench_codec, sys.argv[1])(int(sys.argv[2]), int(sys.argv[3])).run()
"""

# The arguments of a client process that handles so many messages; the name tells runs apart.
Work: TypeAlias = Callable[[int, str], Sequence[object]]
Cases: TypeAlias = Iterator[tuple[str, int, int, Work]]  # name, few and many messages, arguments


def instructions(arguments: Sequence[object], package: Path | None) -> int:
    """Run a client process under Valgrind; return how many instructions it executed."""
    ran = subprocess.run(
        [*_VALGRIND, sys.executable, *map(str, arguments)],
        cwd=package or ROOT,
        # Without it the order of sets and dicts of strings, and so the path taken, varies.
        env=environment(package) | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    found = _COUNT.search(ran.stderr)
    if ran.returncode or found is None:
        raise SystemExit(f"{' '.join(map(str, arguments))}: failed\n{ran.stdout}{ran.stderr}")
    return int(found[1].replace(",", ""))


def sends(address: str) -> Cases:
    """List bench_send's ways of sending."""
    queues = workloads.CATCH_UP_QUEUES
    with Producer("maker", name_servers=address, default_topic_queue_nums=queues) as producer:
        producer.send(Message("sending", b"first"))
    for way, (keys, batch, messages, _) in WAYS.items():

        def work(count: int, run: str, keys: int = keys, batch: int = batch) -> Sequence[object]:
            sizes = ["--keys", keys, "--batch", batch, "--messages", count, "--warm", 2 * batch]
            bodies = ["--body-bytes", workloads.CATCH_UP_BODY_BYTES]
            return ["-m", PRODUCER, address, "sending", *sizes, *bodies]

        many = messages // _SHARE * 4
        yield f"send, {way}", many // 4, many, work


def catch_up(address: str) -> Cases:
    """List the catch-up with each batch size, in order and concurrently."""
    # Whole queues: `fill` stores the same number in each.
    many = workloads.CATCH_UP_MESSAGES // _SHARE // workloads.CATCH_UP_QUEUES
    many *= workloads.CATCH_UP_QUEUES
    fill(address, many)
    for kind, batch in itertools.product(_LISTENERS, workloads.LISTENER_BATCHES):

        def work(count: int, run: str, kind: str = kind, batch: int = batch) -> Sequence[object]:
            group = ["--group", f"{kind}-{batch}-{run}", *_LISTENERS[kind]]
            sizes = ["--batch", batch, "--pull-size", workloads.PULL_SIZE]
            stop = ["--messages", count, "--warm", many // 20]
            return ["-m", _CONSUMER, address, TOPIC, *group, *sizes, *stop]

        yield f"catch-up, {kind}, batch {batch}", many // 6, many, work


def codec() -> Cases:
    """List bench_codec's operations on pull bodies."""
    for operation in ("columns", "objects"):
        for messages in (1, 32, 1_024):

            def work(
                count: int, run: str, operation: str = operation, messages: int = messages
            ) -> Sequence[object]:
                size = workloads.CORE_CODEC_BODY_BYTES[0]
                return ["-c", _CODEC, operation, messages, size, count]

            yield f"codec, {operation} of {messages}", 20_480, 61_440, work


def compare(cases: Cases, other: Path, rounds: int) -> None:
    """Count each case in both versions, and print the counts per message and their ratio."""
    for name, few, many, work in cases:
        for number in range(rounds):
            per_message: dict[str, float] = {}
            for version, package in (("this", None), ("other", other)):
                counts = [
                    instructions(work(count, f"{version}-{number}-{count}"), package)
                    for count in (few, many)
                ]
                per_message[version] = (counts[1] - counts[0]) / (many - few)
            row = {key: round(value, 1) for key, value in per_message.items()}
            ratio = round(per_message["this"] / per_message["other"], 3)
            print(json.dumps({"run": name} | row | {"ratio": ratio}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other checkout, its extension built")
    parser.add_argument("--rounds", type=int, default=2, help="of each figure; default 2")
    works = ("sends", "catch-up", "codec")
    parser.add_argument("--only", choices=works, action="append", help="these; default all")
    asked = parser.parse_args()
    if shutil.which(_VALGRIND[0]) is None:
        raise SystemExit("valgrind not found: install it (Debian: apt install valgrind)")
    wanted = asked.only or works
    with (
        package_of(asked.checkout) as other,
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder)) as (_, address),
    ):
        makers = {"sends": partial(sends, address), "catch-up": partial(catch_up, address)}
        for name in wanted:
            compare(makers.get(name, codec)(), other, asked.rounds)


if __name__ == "__main__":
    main()
