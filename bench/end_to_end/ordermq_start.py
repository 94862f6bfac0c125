"""One start in bench_start: from the construction of a consumer to its listener's first call."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

import ordermq
from bench.peak_memory import peak_mib
from ordermq import PushConsumer
from ordermq.core import IMPLEMENTATION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    asked = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    called = threading.Event()
    at = 0.0

    def listen(messages: object, context: object) -> None:
        nonlocal at
        at = time.perf_counter()
        called.set()

    began = time.perf_counter()
    consumer = PushConsumer(
        asked.group, name_servers=asked.address, consume_from_where="first_offset"
    )
    consumer.subscribe(asked.topic)
    consumer.orderly(listen)
    with consumer:
        if not called.wait(60):
            raise SystemExit("no message within 60 s")
        peak = peak_mib()
    row = {
        "peer": "ordermq",
        "first_message_ms": (at - began) * 1_000,
        "peak_mib": peak,
        "detail": {
            "core": IMPLEMENTATION,
            "ordermq": ordermq.__version__,
            "python": sys.version.split()[0],
        },
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
