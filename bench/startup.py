"""Measure how long ordermq takes to import, beside the standard library that it needs anyway.

    python -m bench.startup
    python -m bench.startup --runs 50

Each statement runs in new interpreters, in turn, so that a busy machine slows all alike. Shown is
the median of the processor time of a process, without that of an empty one; the factor is to
`import asyncio, ssl, logging, json`. The interpreters start without site, which loads modules for a
package in its checkout that an installed one pays for. Clients are started at an embedded broker of
this process: what is not imported at once must not be missing from their time. Unset
PYTHONDONTWRITEBYTECODE, or every run compiles. tests/architecture/test_import_cost.py holds which
modules are loaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import sysconfig
from collections.abc import Sequence

from bench.machine import ROOT
from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker

EMPTY = "pass"
BASE = "import asyncio, ssl, logging, json"
STATEMENTS = (
    EMPTY,
    BASE,
    "import ordermq",
    "from ordermq import Message",
    "from ordermq import Producer",
    "from ordermq import PushConsumer",
    "from ordermq import Producer, PushConsumer, LitePullConsumer",
)
# By what is shown; ended without a close, which is no part of it.
TOPIC = "startup"
STARTED = {
    "a started Producer": (
        "import os; from ordermq import Producer; "
        "Producer('startup', name_servers='{address}').start(); os._exit(0)"
    ),
    "a started PushConsumer": (
        "import os; from ordermq import PushConsumer; "
        "consumer = PushConsumer('startup', name_servers='{address}'); "
        f"consumer.subscribe('{TOPIC}'); consumer.orderly(print); consumer.start(); os._exit(0)"
    ),
}


def processor_ms(statement: str) -> float:
    """Run a statement in a new interpreter; return the processor time of the process."""
    places = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    command, environment = [sys.executable, "-S", "-c", statement], os.environ
    child = os.posix_spawn(sys.executable, command, {**environment, "PYTHONPATH": places})
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"ordermq: {statement!r} failed")
    return (used.ru_utime + used.ru_stime) * 1_000


def medians(runs: int, statements: Sequence[str] = STATEMENTS) -> dict[str, float]:
    """Return the median of each statement."""
    for statement in statements:
        processor_ms(statement)  # not counted: it may compile what was changed
    times: dict[str, list[float]] = {statement: [] for statement in statements}
    for _ in range(runs):
        for statement in statements:
            times[statement].append(processor_ms(statement))
    return {statement: statistics.median(each) for statement, each in times.items()}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args(arguments).runs
    with EmbeddedBroker() as broker:
        with Producer("startup", name_servers=broker.address) as producer:
            producer.send(Message(TOPIC, b"makes the topic"))
        names = {each.format(address=broker.address): name for name, each in STARTED.items()}
        found = medians(runs, (*STATEMENTS, *names))
    empty, base = found[EMPTY], found[BASE] - found[EMPTY]
    print(f"{'ms':>7}  {'factor':>6}  statement (an empty process: {empty:.1f} ms)")
    for statement in (*STATEMENTS[1:], *names):
        took = found[statement] - empty
        print(f"{took:7.1f}  {took / base:6.2f}  {names.get(statement, statement)}")


if __name__ == "__main__":
    main(sys.argv[1:])
