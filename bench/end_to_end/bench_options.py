"""Cost of options: a catch-up from a RocketMQ broker, and sends to it, with one option at a time.

Starts a name server and a broker of RocketMQ (ci/rocketmq.sh; Java 17 and Maven), fills topics of 8
queues, plain, with tags, keys and sharding keys, and in a namespace, and lets a new group at a time
read one of them. Options take turns, with a run without any before every third of them: ratios are
to the nearest such run. A third of what is read is not timed: it has the start of the process. Then
producers send to a fourth topic, with the options and the ways of sending in turn, in the same
manner; a third of what they send is not timed. Brokers of RocketMQ verify no signature by default,
so an account costs what the client does for it. Java's client reads a topic of its own with the
options that it has here; half of that is not timed, for its compiler needs as long. It needs a JDK,
and is left out without one. Writes bench/results/options_rocketmq.json; a run with --only leaves
the other rows there as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bench import workloads
from bench.end_to_end.bench_rocketmq import rocketmq
from bench.end_to_end.ordermq_options import NAMESPACE, OPTIONS
from bench.end_to_end.ordermq_send_options import IN_FLIGHT, ONE, SEND_OPTIONS, STREAM
from bench.machine import RESULTS, both_commands, command_line, run_json, save
from bench.peers import java_classes, java_client
from ordermq import Message, Producer

BASE = "base"
_RESULT = "options_rocketmq"
_PARTS = ("rows", "sends", "java")
_BETWEEN_BASES = 3
_BODY = b"." * workloads.CATCH_UP_BODY_BYTES
_PLAIN, _RICH, _SENT = "options-plain", "options-rich", "options-sent"
JAVA = "Java client"
_JAVA_PLAIN, _JAVA_RICH, _JAVA_MESSAGES = "options-java", "options-java-rich", 1_000_000
_KEYS = 512
_SENDS = {STREAM: 60_000, ONE: 6_000}  # messages of a run, by what it is compared with


def store(address: str, message: Message, messages: int, **settings: Any) -> None:
    """Store the messages, the same number in each queue."""
    queues = workloads.CATCH_UP_QUEUES
    with producer_of(address, **settings) as producer:
        producer.send(message)
        for queue in producer.queues(message.topic):
            for first in range(0, messages // queues, 1_000):
                size = min(1_000, messages // queues - first)
                producer.send_batch([message] * size, queue=queue)


def store_keyed(address: str, message: Message, messages: int) -> None:
    """Store the messages, with one of some hundred sharding keys after the other."""
    keys = (f"key-{number % _KEYS}" for number in range(messages))
    with producer_of(address) as producer:
        producer.send_many(((message, key) for key in keys), max_in_flight=4_096)


def producer_of(address: str, **settings: Any) -> Producer:
    queues = workloads.CATCH_UP_QUEUES
    return Producer(
        "bench",
        name_servers=address,
        default_topic_queue_nums=queues,
        max_batch_bytes=1_000_000,
        **settings,
    )


def turns(names: list[str], base: str = BASE) -> list[str]:
    """Return the runs of a round: the options, and a base before every third one and at the end."""
    found = []
    for place, name in enumerate(name for name in names if name != base):
        found += [base] * (place % _BETWEEN_BASES == 0) + [name]
    return [*found, base]


@dataclass(frozen=True, slots=True)
class Run:
    """The CPU of one run, in us per message, and its throughput, in messages/s."""

    cpu_us: float
    rate: float


def run_of(row: dict[str, Any]) -> Run:
    """Return what a process printed of its run."""
    messages = row["messages"]
    return Run(row["cpu_seconds"] / messages * 1e6, messages / row["seconds"])


def beside_nearest(ran: list[tuple[str, Run]], base: str) -> list[tuple[str, Run, float]]:
    """Return a round's runs with the ratio of the CPU of each to that of the nearest base."""
    bases = [(place, each.cpu_us) for place, (name, each) in enumerate(ran) if name == base]
    found = []
    for place, (name, each) in enumerate(ran):
        _, near_us = min(bases, key=lambda base: abs(base[0] - place))
        found.append((name, each, each.cpu_us / near_us))
    return found


def measure(
    version: str, rounds: int, messages: int, names: list[str], sends: list[str], java: list[str]
) -> dict[str, Any]:
    rows: dict[str, list[tuple[Run, float]]] = {}
    of_java: dict[str, list[Run]] = {}
    sent: dict[str, list[tuple[Run, float]]] = {}
    with rocketmq(version) as address:
        if names:
            store_all(address, messages)
        if java:
            print(f"storing {_JAVA_MESSAGES:,} messages twice for Java's client", flush=True)
            store(address, Message(_JAVA_PLAIN, _BODY), _JAVA_MESSAGES)
            store_keyed(address, rich(_JAVA_RICH), _JAVA_MESSAGES)
        store(address, Message(_SENT, b"makes the topic"), 0)
        for number in range(rounds + 1):  # the first one warms the page cache and Java's compiler
            for batch in workloads.LISTENER_BATCHES if names else ():
                ran = [
                    (name, run(address, name, f"{number}-{batch}-{place}", batch, messages))
                    for place, name in enumerate(turns(names))
                ]
                add(rows, number, [(f"{name}, batch {batch}", each) for name, each in ran],
                    f"{BASE}, batch {batch}")  # fmt: skip
            for batch in workloads.LISTENER_BATCHES:
                for name in java:
                    each = run_java(address, name, f"{number}-{batch}", batch)
                    row = f"{name}, batch {batch}"
                    print(f"round {number} {JAVA}, {row}: {each.cpu_us:.2f} us", flush=True)
                    if number:
                        of_java.setdefault(row, []).append(each)
            for base in _SENDS:
                of_base = [name for name in sends if SEND_OPTIONS[name].base == base]
                if of_base:
                    ran = [(name, run_sends(address, name)) for name in turns(of_base, base)]
                    add(sent, number, ran, base)
    return {
        "rows": medians(rows),
        "sends": medians(sent),
        "java": {name: medians_of(found) for name, found in of_java.items()},
    }


def store_all(address: str, messages: int) -> None:
    """Store what consumers read."""
    print(f"storing {messages:,} messages three times", flush=True)
    store(address, Message(_PLAIN, _BODY), messages)
    store(address, Message(_PLAIN, _BODY), messages, namespace=NAMESPACE)
    store_keyed(address, rich(_RICH), messages)


def rich(topic: str) -> Message:
    return Message(topic, _BODY, tags="paid", keys=["order-1"])


def add(
    rows: dict[str, list[tuple[Run, float]]], number: int, ran: list[tuple[str, Run]], base: str
) -> None:
    """Add the runs of a round, unless it is the first one."""
    for name, each, ratio in beside_nearest(ran, base):
        print(f"round {number} {name:40} {each.cpu_us:7.2f} us {ratio:5.2f}x", flush=True)
        if number:
            rows.setdefault(name, []).append((each, ratio))


def medians(rows: dict[str, list[tuple[Run, float]]]) -> dict[str, dict[str, float]]:
    """Return the medians of each row's rounds."""
    return {
        name: {
            **medians_of([run for run, _ in found]),
            "ratio": round(statistics.median(ratio for _, ratio in found), 2),
        }
        for name, found in rows.items()
    }


def medians_of(runs: list[Run]) -> dict[str, float]:
    return {
        "cpu_us_per_message": round(statistics.median(run.cpu_us for run in runs), 3),
        "messages_per_second": round(statistics.median(run.rate for run in runs)),
        "rounds": len(runs),
    }


def run(address: str, name: str, group: str, batch: int, messages: int) -> Run:
    topic = _RICH if OPTIONS[name].is_rich else _PLAIN
    work: list[object] = [address, topic, "--option", name, "--group", f"options-{group}"]
    work += ["--messages", messages, "--warm", messages // 3, "--batch", batch]
    work += ["--pull-size", workloads.PULL_SIZE]
    return run_of(run_json("bench.end_to_end.ordermq_options", work))


def run_java(address: str, name: str, group: str, batch: int) -> Run:
    topic = _JAVA_RICH if OPTIONS[name].is_rich else _JAVA_PLAIN
    work: list[object] = [address, topic, "--option", name]
    work += ["--group", f"options-java-{group}-{[*OPTIONS].index(name)}", "--batch", batch]
    work += ["--messages", _JAVA_MESSAGES, "--warm", _JAVA_MESSAGES // 2]
    return run_of(run_json("bench.peers.java_client", [*work, "--pull-size", workloads.PULL_SIZE]))


def java_options() -> list[str]:
    """Return the options to measure Java's client with; none, and say why, if it cannot run."""
    if absent := java_classes.missing():
        print(f"ordermq: {JAVA} LEFT OUT: {', '.join(absent)} not found", file=sys.stderr)
        return []
    return list(java_client.OPTIONS)


def run_sends(address: str, name: str) -> Run:
    messages = _SENDS[SEND_OPTIONS[name].base]
    work: list[object] = [address, _SENT, "--option", name, "--messages", messages]
    work += ["--warm", messages // 2, "--body-bytes", workloads.CATCH_UP_BODY_BYTES]
    return run_of(run_json("bench.end_to_end.ordermq_send_options", work))


def updated(before: dict[str, Any], found: dict[str, Any], only: Collection[str]) -> dict[str, Any]:
    """Return the rows of before, with those that were asked for as they were found."""
    asked = {name: row for name, row in found.items() if name.partition(", batch")[0] in only}
    return before | asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default="5.3.3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=240_000)
    parser.add_argument(
        "--only",
        choices=[*OPTIONS, *SEND_OPTIONS, JAVA],
        action="append",
        help="these rows; each with the runs that it is compared with",
    )
    asked = parser.parse_args()
    only = asked.only or [*OPTIONS, *SEND_OPTIONS, JAVA]
    result = measure(
        asked.version,
        asked.rounds,
        asked.messages,
        [name for name in OPTIONS if name in only],
        [name for name in SEND_OPTIONS if name in only],
        java_options() if JAVA in only else [],
    )
    command = command_line("bench.end_to_end.bench_options")
    print(json.dumps({name: result[name] for name in _PARTS}, indent=1))
    saved = RESULTS / f"{_RESULT}.json"
    if asked.only and saved.exists():
        before = json.loads(saved.read_text())
        for part in ("rows", "sends"):
            result[part] = updated(before[part], result[part], only)
        result["java"] = result["java"] or before["java"]
        command = both_commands(before["command"], command)
    result["command"] = command
    result["workload"] = {
        "rocketmq": asked.version,
        "messages": asked.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "queues": workloads.CATCH_UP_QUEUES,
        "pull_size": workloads.PULL_SIZE,
        "in_flight": IN_FLIGHT,
        "sent": _SENDS,
        "java_messages": _JAVA_MESSAGES,
    }
    print(save(_RESULT, result))


if __name__ == "__main__":
    main()
