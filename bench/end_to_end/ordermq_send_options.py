"""Sends by one producer process with one option, as programs in production use it."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ordermq import AsyncProducer, Message, Producer
from ordermq.core import IMPLEMENTATION

IN_FLIGHT = 256


def nothing() -> None: ...


def with_prometheus(producer: Producer) -> Callable[[], object]:
    """Watch it as a program does that is scraped."""
    from prometheus_client import CollectorRegistry

    from ordermq.metrics.prometheus import PrometheusMetrics

    registry = CollectorRegistry()
    PrometheusMetrics(registry).watch_producer(producer)
    return lambda: list(registry.collect())


def with_opentelemetry(producer: Producer) -> Callable[[], object]:
    """Watch it as a program does that has an SDK of OpenTelemetry."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from ordermq.metrics.opentelemetry import OpenTelemetryMetrics

    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader]))
    metrics.watch_producer(producer)
    return reader.get_metrics_data


def with_spans(producer: Producer) -> Callable[[], object]:
    """Trace it with an SDK that samples and keeps no span: what the client does is measured."""
    from opentelemetry.sdk.trace import TracerProvider

    from ordermq.metrics.tracing import Tracing

    Tracing(TracerProvider()).trace_producer(producer)
    return nothing


@dataclass(frozen=True, kw_only=True)
class SendOption:
    """One row of the table.

    Args:
        way: how messages are sent.
        settings: of the producer's constructor.
        prepare: called with the producer before it starts; what it returns is called, and timed,
            at the end.
        base: the row that it is compared with.
    """

    way: str
    base: str
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Producer], Callable[[], object]] = lambda producer: nothing


_TLS: dict[str, Any] = {"tls": True, "tls_verify": "none"}
_ACCOUNT: dict[str, Any] = {"access_key": "bench", "secret_key": "secret-of-bench"}
STREAM, ONE = f"stream of {IN_FLIGHT}", "one at a time"
SEND_OPTIONS = {
    STREAM: SendOption(way="stream", base=STREAM),
    f"{STREAM}, TLS": SendOption(way="stream", base=STREAM, settings=_TLS),
    f"{STREAM}, account": SendOption(way="stream", base=STREAM, settings=_ACCOUNT),
    f"{STREAM}, Prometheus": SendOption(way="stream", base=STREAM, prepare=with_prometheus),
    f"{STREAM}, OpenTelemetry metrics": SendOption(
        way="stream", base=STREAM, prepare=with_opentelemetry
    ),
    f"{STREAM}, message trace": SendOption(
        way="stream", base=STREAM, settings={"enable_msg_trace": True}
    ),
    f"{STREAM}, spans": SendOption(way="stream", base=STREAM, prepare=with_spans),
    f"{IN_FLIGHT} tasks of AsyncProducer": SendOption(way="tasks", base=STREAM),
    ONE: SendOption(way="one", base=ONE),
    f"{ONE}, TLS": SendOption(way="one", base=ONE, settings=_TLS),
    f"{ONE}, account": SendOption(way="one", base=ONE, settings=_ACCOUNT),
    f"{ONE}, Prometheus": SendOption(way="one", base=ONE, prepare=with_prometheus),
}


class Timed:
    """The time and CPU of what is sent behind the first `warm` messages."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def begin(self) -> None:
        self.seconds, self.cpu_seconds = -time.perf_counter(), -time.process_time()

    def end(self) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()


def events(topic: str, body: bytes, count: int) -> Iterator[tuple[Message, str]]:
    """Return messages of as many keys as are in flight."""
    return ((Message(topic, body), f"k{number % IN_FLIGHT}") for number in range(count))


def streamed(producer: Producer, topic: str, body: bytes, count: int) -> None:
    for _ in producer.send_stream(events(topic, body, count), max_in_flight=IN_FLIGHT):
        pass


def one_by_one(producer: Producer, topic: str, body: bytes, count: int) -> None:
    for _ in range(count):
        producer.send(Message(topic, body), sharding_key="k")


def blocking(given: argparse.Namespace, option: SendOption, timed: Timed) -> None:
    send = streamed if option.way == "stream" else one_by_one
    producer = Producer("bench-options", name_servers=given.address, **option.settings)
    finish = option.prepare(producer)
    body = b"x" * given.body_bytes
    with producer:
        send(producer, given.topic, body, given.warm)
        timed.begin()
        send(producer, given.topic, body, given.messages)
        finish()
    timed.end()  # traces are sent until the producer is closed


def in_tasks(given: argparse.Namespace, option: SendOption, timed: Timed) -> None:
    body = b"x" * given.body_bytes

    async def of_key(producer: AsyncProducer, key: str, count: int) -> None:
        for _ in range(count):
            await producer.send(Message(given.topic, body), sharding_key=key)

    async def send(producer: AsyncProducer, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(IN_FLIGHT):
                group.create_task(of_key(producer, f"k{number}", count // IN_FLIGHT))

    async def work() -> None:
        producer = AsyncProducer("bench-options", name_servers=given.address, **option.settings)
        finish = option.prepare(producer.blocking)
        async with producer:
            await send(producer, given.warm)
            timed.begin()
            await send(producer, given.messages)
            finish()
        timed.end()

    asyncio.run(work())


_WAYS: dict[str, Callable[[argparse.Namespace, SendOption, Timed], None]] = {
    "stream": blocking,
    "one": blocking,
    "tasks": in_tasks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--option", choices=list(SEND_OPTIONS), required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True, help="sent before the clock starts")
    parser.add_argument("--body-bytes", type=int, required=True)
    given = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    option, timed = SEND_OPTIONS[given.option], Timed()
    _WAYS[option.way](given, option, timed)
    print(
        json.dumps({
            "peer": given.option,
            "messages": given.messages,
            "seconds": timed.seconds,
            "cpu_seconds": timed.cpu_seconds,
            "detail": {"core": IMPLEMENTATION},
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
