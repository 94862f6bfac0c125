"""The targets of docs/benchmarks.md: what is aimed at, and what was measured.

Each row takes its figures from a result in bench/results. A row whose program has not run, or ran
without the peer, is shown as not measured. A miss stays, with its reason where one is recorded:
from the result itself, or in the row. Check a reason again after a change of what it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.core.call_cost import FEW
from bench.markdown import table, verdict
from bench.peers.pull_floor import FLOOR

Result = dict[str, Any]
_HEAD = ["what", "ordermq", "compared with", "its figure", "ratio", "target", "met", "program"]
_PROGRAMS = {  # by result
    "call_cost": "core.call_cost",
    "catch_up_embedded": "end_to_end.bench_catch_up",
    "catch_up_rocketmq": "end_to_end.bench_rocketmq",
    "hand_off_rocketmq": "end_to_end.bench_hand_off",
    "lanes_embedded": "end_to_end.bench_lanes",
    "latency_rocketmq": "end_to_end.bench_latency",
    "processes_embedded": "end_to_end.bench_processes",
    "produce_embedded": "end_to_end.bench_produce",
    "queues_embedded": "end_to_end.bench_queues",
    "send_rocketmq": "end_to_end.bench_send",
    "start_embedded": "end_to_end.bench_start",
}


@dataclass(frozen=True)
class Measured:
    """A figure of ordermq, that of what it is compared with, and the one the target is about.

    Args:
        value: the ratio, or ordermq's figure where there is no peer.
        ours, theirs: figures with their units.
        reason: why a target is missed, as far as the result itself says so.
    """

    value: float
    ours: str
    theirs: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One target.

    Args:
        what: the work and the figure.
        result: the name of the file in bench/results.
        figure: takes the figures from that; KeyError means that they were not measured.
        peer: what ordermq is compared with; "" for a figure that stands alone.
        at_least, at_most: the target; without both the row only informs.
        unit: of a target without a peer.
        why: the reason of a miss.
    """

    what: str
    result: str
    figure: Callable[[Result], Measured]
    peer: str = ""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    why: str = ""

    @property
    def target(self) -> str:
        suffix = "x" if self.peer else f" {self.unit}".rstrip()
        if self.at_least is not None:
            return f">= {self.at_least:g}{suffix}"
        return f"<= {self.at_most:g}{suffix}" if self.at_most is not None else ""

    def is_met(self, value: float) -> bool | None:
        """Return whether a figure meets the target; None without one."""
        if self.at_least is not None:
            return value >= self.at_least
        return value <= self.at_most if self.at_most is not None else None


def rows() -> Iterator[Row]:
    """Yield every target, in the order of the page."""
    yield from _catch_up()
    yield from _loops()
    yield from _sends()
    yield from _hand_off()
    yield from _latency()
    yield from _lanes()
    yield from _queues()
    yield from _start()
    yield Row(
        "`ordermq run --processes 2`, a listener of 100 us of CPU: throughput",
        "processes_embedded", _processes, "one process", at_least=1.8,
    )  # fmt: skip


def _catch_up() -> Iterator[Row]:
    for where, result, bounds in (
        ("RocketMQ", "catch_up_rocketmq", {32: (0.8, 2.5), 1: (0.7, 5)}),
        ("the embedded broker", "catch_up_embedded", {32: (0.8, 4), 1: (0.65, 8)}),
    ):
        for batch, (rate, cpu) in bounds.items():
            what = f"catch-up from {where}, batch {batch}"
            yield Row(f"{what}: throughput", result, _beside(batch, FLOOR, "rate"),
                      FLOOR, at_least=rate, why=_OF_CALLS)  # fmt: skip
            yield Row(f"{what}: CPU per message", result, _beside(batch, FLOOR, "cpu"),
                      FLOOR, at_most=cpu, why=_OF_CALLS)  # fmt: skip
    for peer, by_batch in (
        ("Java client", {32: (2.0, 0.35), 1: (3.0, 0.15)}),
        ("Go client", {32: (None, None), 1: (None, None)}),
        ("Rust client", {32: (None, None), 1: (None, None)}),
    ):
        for batch, (least, most) in by_batch.items():
            what = f"catch-up from RocketMQ, batch {batch}"
            yield Row(f"{what}: throughput", "catch_up_rocketmq", _beside(batch, peer, "rate"),
                      peer, at_least=least, why=_OF_CALLS)  # fmt: skip
            yield Row(f"{what}: CPU per message", "catch_up_rocketmq", _beside(batch, peer, "cpu"),
                      peer, at_most=most, why=_OF_CALLS)  # fmt: skip


_OF_CALLS = (
    "What pulls is native; what is called is Python. In a profile of a catch-up from the embedded "
    "broker, the start of the process included, the interpreter takes 44 % at batch 32 and 53 % at "
    "batch 1, the system 36 and 23 %, the native module 10 %."
)


def _beside(batch: int, peer: str, figure: str) -> Callable[[Result], Measured]:
    """Compare the catch-up with a peer's, by `rate` or `cpu`."""

    def measured(result: Result) -> Measured:
        found = result["ratios"][str(batch)]
        # The embedded broker's has one peer only.
        ratio = found[figure] if figure in found else found[peer][figure]
        ours = result["rows"][f"ordermq, batch {batch}"]
        theirs = result["rows"][peer if peer == FLOOR else f"{peer}, batch {batch}"]
        return Measured(ratio, _shown(ours, figure), _shown(theirs, figure))

    return measured


def _shown(row: dict[str, Any], figure: str) -> str:
    if figure == "rate":
        return f"{row['messages_per_second']:,}/s"
    return f"{row['cpu_us_per_message']:.2f} us"


def _loops() -> Iterator[Row]:
    yield Row(
        "a pull of 32 messages: user CPU of the engine's thread, which makes all of it",
        "catch_up_rocketmq", _user_cpu_of_a_pull, at_most=3, unit="us",
    )  # fmt: skip
    for name, what, most, why in (
        ("call", "a listener call at batch 1, an empty listener included", 0.25, _OF_LISTENER),
        ("pass", "a pass of the consume loop", 2, _OF_PASS),
    ):
        yield Row(what, "call_cost", _cost(f"{name}_ns"), at_most=most, unit="us", why=why)


_OF_LISTENER = (
    "Half of it is the listener, which does nothing but `return ConsumeResult.SUCCESS`: of 2,600 "
    "instructions 1,350 are this call of a Python function, with the look-up of an enum's member. "
    "Its two arguments are made (370) and freed (490); what is left, 400, is the loop itself."
)
_OF_PASS = (
    "It is a claim and a commit under the lock of the queue, the claim that finds nothing and ends "
    "the pass, and the two generators in Python that would decide about a failure."
)


def _user_cpu_of_a_pull(result: Result) -> Measured:
    value = result["rows"]["ordermq, batch 32"]["pulling_user_us_per_message"] * FEW
    return Measured(value, f"{value:.1f} us")


def _cost(name: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        value = result["rows"][name] / 1_000
        return Measured(value, f"{value:.2f} us")

    return measured


def _sends() -> Iterator[Row]:
    for what, way, name, least, why in (
        ("8 keys, a thread each", "8 keys in flight", "ordermq, threads", 1.3, _OF_THREADS),
        ("one at a time", "one at a time", "ordermq", 1.1, _OF_ONE),
    ):
        yield Row(f"sends to RocketMQ, {what}: throughput", "send_rocketmq", _send(way, name),
                  "Java client", at_least=least, why=why)  # fmt: skip
    yield Row("sends to RocketMQ, 256 in flight: CPU per message", "send_rocketmq", _send_cpu,
              at_most=10, unit="us", why=_OF_MANY)  # fmt: skip
    yield Row("sends to the embedded broker, 64 in flight, fsync before each answer: throughput",
              "produce_embedded", _produce, "bare SQLite, the same rows per commit",
              at_least=0.5,
              why="The stages follow each other: 64 sends are read, stored and answered before the "
              "next 64 come, and two threads take turns at it; bare SQLite has one.")  # fmt: skip


def _send(way: str, name: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        found = result["rows"][way]
        ours, theirs = (f"{found[each]['messages_per_second']:,}/s" for each in (name, _JAVA))
        return Measured(result["ratios"][way][name]["rate"], ours, theirs)

    return measured


_OF_THREADS = (
    "A send is some 110 function calls under the interpreter lock, at which eight threads take "
    "turns: of the CPU per message 45 % is the interpreter, and as much the system, for a write, a "
    "sleep and thread switches. The broker has the same two cores."
)
_OF_ONE = (
    "Most of the time of a message is the broker's; the client's CPU is some 110 function calls, "
    "and five system calls: write, sleep, read, and two for the gate."
)
_OF_MANY = (
    "Each message passes two threads: its caller's, which makes it and chooses its queue, and the "
    "one that sends; system calls are few, for the messages of a queue share a request."
)
_JAVA = "Java client"


def _send_cpu(result: Result) -> Measured:
    found = result["rows"]["256 keys in flight"]
    ours = found["ordermq"]["cpu_us_per_message"]
    java = f"{found[_JAVA]['cpu_us_per_message']:.1f} us" if _JAVA in found else "failed"
    return Measured(ours, f"{ours:.1f} us", f"Java client: {java}")


def _produce(result: Result) -> Measured:
    found = result["figures"]
    return Measured(
        found["share_of_bare"],
        f"{found['messages_per_second']:,.0f}/s",
        f"{found['bare_rows_per_second']:,.0f}/s",
    )


def _hand_off() -> Iterator[Row]:
    for listener_ms in (0, 20):
        what = f"a member joins on RocketMQ, listener of {listener_ms} ms"
        for said, figure, most, unit in (
            ("silence of a moved queue, median", _silence("median_ms"), 60, "ms"),
            ("silence of a moved queue, worst", _silence("worst_ms"), 120, "ms"),
            ("messages done twice", _counted("duplicates"), 0, ""),
            ("lock requests of a member in any second", _counted("lock_requests_per_second"), 20,
             ""),
        ):  # fmt: skip
            yield Row(f"{what}: {said}", "hand_off_rocketmq", figure(listener_ms),
                      at_most=most, unit=unit)  # fmt: skip


def _silence(name: str) -> Callable[[int], Callable[[Result], Measured]]:
    def of_listener(listener_ms: int) -> Callable[[Result], Measured]:
        def measured(result: Result) -> Measured:
            ours, java = (
                _hand_off_row(result, client, listener_ms)["join"][name]
                for client in ("ordermq", _JAVA)
            )
            return Measured(ours, f"{ours:.0f} ms", f"Java client: {java:.0f} ms")

        return measured

    return of_listener


def _counted(name: str) -> Callable[[int], Callable[[Result], Measured]]:
    def of_listener(listener_ms: int) -> Callable[[Result], Measured]:
        def measured(result: Result) -> Measured:
            ours = _hand_off_row(result, "ordermq", listener_ms)[name]
            java = _hand_off_row(result, _JAVA, listener_ms).get(name)
            return Measured(ours, f"{ours}", "" if java is None else f"Java client: {java}")

        return measured

    return of_listener


def _hand_off_row(result: Result, client: str, listener_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        row
        for row in result["rows"]
        if (row["client"], row["listener_ms"]) == (client, listener_ms)
    )
    return found


def _latency() -> Iterator[Row]:
    for rate in (200, 1_000, 4_000):
        for name, most, why in (("p50", 0.95, _OF_BROKER), ("p99", 0.9, "")):
            yield Row(f"latency at {rate:,} messages/s, from the time a send was due: {name}",
                      "latency_rocketmq", _percentile(rate, f"{name}_us"), _JAVA,
                      at_most=most, why=why)  # fmt: skip


_OF_BROKER = (
    "Both clients wait for the same broker: it looks once a millisecond for what was stored, and "
    "answers waiting pulls then. A client has little share in the median of a load this light, "
    "and more in its tail, and in CPU per message."
)


def _percentile(rate: int, name: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        if "from" not in result["workload"]:
            raise KeyError("stamped at the call of send: a stall did not count")
        found = result["rates"][str(rate)]
        ours, java = (f"{found['rows'][each][name] / 1_000:.2f} ms" for each in ("ordermq", _JAVA))
        return Measured(found["ratios"][name], ours, java)

    return measured


def _lanes() -> Iterator[Row]:
    for case, least, most in (
        ("32 threads, 1 ms", 0.75, None),
        ("100 threads, 10 ms", 0.95, None),
        ("1000 tasks, 10 ms", 0.6, 15),
        ("1000 tasks, 100 ms", 0.97, 15),
    ):
        keys = "Zipf(0.5)" if "threads" in case else "even"
        what = f"key lanes, {keys} keys, {case} each"
        yield Row(f"{what}: share of the ceiling", "lanes_embedded", _lane(case, "share", ""),
                  at_least=least)  # fmt: skip
        if most is not None:
            yield Row(f"{what}: CPU per message", "lanes_embedded", _lane(case, "cpu_us", " us"),
                      at_most=most, unit="us", why=_OF_TASKS)  # fmt: skip


_OF_TASKS = (
    "With calls of 100 ms a turn of the event loop ends 15 of them, with calls of 10 ms 83: what "
    "is done once a turn is shared by fewer."
)


def _lane(case: str, name: str, unit: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        ours, bare = (result["rows"][case][each][name] for each in ("native", "bare"))
        kind = case.split()[1].rstrip(",")
        shown = f"{kind} that only wait: {bare:.2f}{unit}"
        return Measured(
            ours, f"{ours:.2f}{unit}", shown,
            reason=f"In the same run {shown}." if name == "share" else "",
        )  # fmt: skip

    return measured


def _queues() -> Iterator[Row]:
    yield Row("1,000 queues, one consumer: throughput of a catch-up", "queues_embedded",
              _queues_rate, "8 queues", at_least=0.8)  # fmt: skip
    for what, name, shown, most, unit in (
        ("CPU while nothing comes", "idle_cpu_percent", "{:.2f} % of a core", 1, "% of a core"),
        ("close", "close_s", "{:.2f} s", 0.3, "s"),
    ):
        yield Row(f"1,000 queues, one consumer: {what}", "queues_embedded",
                  _of_many_queues(name, shown), at_most=most, unit=unit)  # fmt: skip


def _queues_rate(result: Result) -> Measured:
    many, few = (f"{result['rows'][n]['messages_per_second']:,.0f}/s" for n in ("1000", "8"))
    return Measured(result["ratios"]["rate"], many, few)


def _of_many_queues(name: str, shown: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        value = result["rows"]["1000"][name]
        return Measured(value, shown.format(value))

    return measured


def _start() -> Iterator[Row]:
    for statement in ("import ordermq", "from ordermq import PushConsumer"):
        yield Row(f"`{statement}`: CPU", "start_embedded", _import(statement),
                  "`import asyncio, ssl, logging, json`", at_most=2)  # fmt: skip
    for what, name, unit, most in (
        ("from a consumer's construction to its first message", "first_message_ms", "ms", 20),
        ("peak memory of that process", "peak_mib", "MiB", 36),
    ):
        yield Row(what, "start_embedded", _of_start(name, unit), at_most=most, unit=unit)


def _import(statement: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        return Measured(result["import"][statement], "")

    return measured


def _of_start(name: str, unit: str) -> Callable[[Result], Measured]:
    def measured(result: Result) -> Measured:
        return Measured(result[name], f"{result[name]:.1f} {unit}")

    return measured


def _processes(result: Result) -> Measured:
    one, two = (f"{result['rows'][n]['messages_per_second']:,}/s" for n in ("1", "2"))
    return Measured(result["ratio"], two, one)


def section(load: Callable[[str], Result | None]) -> str:
    """Return the section of the page.

    Args:
        load: returns a result by its name, or None.
    """
    lines: list[list[str]] = []
    reasons: dict[str, None] = {}
    commands: dict[str, str] = {}
    for row in rows():
        result, program = load(row.result), f"`{_PROGRAMS[row.result].rpartition('.')[2]}`"
        found = None
        if result is not None:
            try:
                found = row.figure(result)
            except KeyError:
                found = None  # an older result, or one without this peer
        if result is None or found is None:
            lines.append([row.what, "", row.peer, "", "", row.target, "not measured", program])
            continue
        commands[row.result] = result["command"]
        met = row.is_met(found.value)
        said = "" if met is None else verdict(met)
        if met is False:
            for reason in filter(None, (row.why, found.reason)):
                reasons.setdefault(reason)
                said += f" [{list(reasons).index(reason) + 1}]"
        ratio = f"{found.value:.2f}x" if row.peer else ""
        lines.append(
            [row.what, found.ours, row.peer, found.theirs, ratio, row.target, said, program]
        )
    return (
        "## Targets\n\n"
        "What is aimed at, and where it stands; a ratio is ordermq's figure divided by the other, "
        "the median of those of each round. A miss stays here, with its reason where one is "
        "known. Those of the core and of the Spark bridge are in their own sections.\n\n"
        + table(_HEAD, lines)
        + "".join(f"\n{number}. {reason}" for number, reason in enumerate(reasons, 1))
        + ("\n" if reasons else "")
        + "\nThe programs are those of the sections below. The figures shown were taken by "
        + ", ".join(f"`{command}`" for command in commands.values())
        + "; `ci/bench.sh targets` runs them all.\n"
        + _PARALLEL_CONSUMER
    )


_PARALLEL_CONSUMER = (
    "\n**Confluent's Parallel Consumer**, as published in its "
    "[README](https://github.com/confluentinc/parallel-consumer#illustrative-performance-example), "
    "not measured here: 10,000 messages of one partition, `KEY` ordering, 16 threads, a listener "
    "that waits for 0 to 5 ms (2.5 ms in the mean) take 2.056 s with 1,000 keys and 2.128 s with "
    "10,000. Sixteen threads that only wait would take 1.563 s, so that is 0.76 and 0.73 of the "
    "ceiling. It is another load, language and machine than those of the key lanes above.\n"
)
