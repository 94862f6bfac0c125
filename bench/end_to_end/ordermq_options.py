"""A catch-up by one consumer process with one option, as programs in production use it."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ordermq import AsyncConsumer, ConsumeResult, LitePullConsumer, PushConsumer
from ordermq.core import IMPLEMENTATION

NAMESPACE = "bench"


class Counted:
    """Counts messages; the clock runs from `warm` to `messages` of them."""

    def __init__(self, warm: int, messages: int) -> None:
        self.done = threading.Event()
        self.seconds = self.cpu_seconds = 0.0
        self._lock = threading.Lock()
        self._count = 0
        self._warm = warm
        self._messages = messages

    def add(self, count: int) -> None:
        with self._lock:
            before, self._count = self._count, self._count + count
            if before <= self._warm < self._count:
                self.seconds, self.cpu_seconds = -time.perf_counter(), -time.process_time()
            if before < self._messages <= self._count:
                self.seconds += time.perf_counter()
                self.cpu_seconds += time.process_time()
                self.done.set()


def count(messages: Any) -> int:
    """Be a listener's work: none."""
    return len(messages)


def read(messages: Any) -> int:
    """Read what most listeners read."""
    for message in messages:
        message.body, message.tags, message.keys, message.properties  # noqa: B018
        message.sharding_key  # noqa: B018
    return len(messages)


class EmptyHook:
    """A hook that does nothing."""

    def before(self, call: object) -> None:
        return None

    def after(self, call: object) -> None:
        return None


def with_prometheus(consumer: PushConsumer) -> None:
    """Watch it as a program does that is scraped."""
    from prometheus_client import CollectorRegistry

    from ordermq.metrics.prometheus import PrometheusMetrics

    PrometheusMetrics(CollectorRegistry()).watch_consumer(consumer)


def with_opentelemetry(consumer: PushConsumer) -> None:
    """Watch it as a program does that has an SDK of OpenTelemetry."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from ordermq.metrics.opentelemetry import OpenTelemetryMetrics

    OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()])).watch_consumer(consumer)


def with_spans(consumer: PushConsumer) -> None:
    """Trace it with an SDK that samples and keeps no span: what the client does is measured."""
    from opentelemetry.sdk.trace import TracerProvider

    from ordermq.metrics.tracing import Tracing

    Tracing(TracerProvider()).trace_consumer(consumer)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row of the table.

    Args:
        settings: of the consumer's constructor.
        prepare: called with the consumer before it starts.
        listener: what the listener does with its messages.
        way: how messages are taken.
        expression: of the subscription.
        is_rich: messages have tags, keys and sharding keys.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[PushConsumer], object] = lambda consumer: None
    listener: Callable[[Any], int] = count
    way: str = "orderly"
    expression: str = "*"
    is_rich: bool = False


_TLS = {"tls": True, "tls_verify": "none"}
_ACCOUNT = {"access_key": "bench", "secret_key": "secret-of-bench"}

OPTIONS = {
    "base": Option(),
    "rich messages": Option(is_rich=True),
    "tags": Option(expression="paid || shipped", is_rich=True),
    "Prometheus": Option(prepare=with_prometheus),
    "OpenTelemetry metrics": Option(prepare=with_opentelemetry),
    "OpenTelemetry spans": Option(prepare=with_spans),
    "account": Option(settings=_ACCOUNT),
    "TLS": Option(settings=_TLS),
    "TLS and account": Option(settings=_TLS | _ACCOUNT),
    "TLS, account, Prometheus": Option(settings=_TLS | _ACCOUNT, prepare=with_prometheus),
    "TLS, account, Prometheus, reading": Option(
        settings=_TLS | _ACCOUNT, prepare=with_prometheus, listener=read, is_rich=True
    ),
    "namespace": Option(settings={"namespace": NAMESPACE}),
    "binary headers": Option(settings={"serialize_type": "rocketmq"}),
    "deduplicate=1000": Option(settings={"deduplicate": 1_000}),
    "by key": Option(settings={"order_by_key": True}, is_rich=True),
    "by key, async listener": Option(settings={"order_by_key": True}, way="async", is_rich=True),
    "lite poll": Option(way="poll"),
    "lite poll, ordered": Option(way="poll", settings={"ordered": True}),
    "lite batches": Option(way="batches"),
    "async for": Option(way="async for"),
    "async listener": Option(way="async"),
    "concurrent": Option(way="concurrent"),
    "concurrent, async listener": Option(way="async concurrent"),
    "empty hook": Option(prepare=lambda consumer: consumer.add_hook(EmptyHook())),
    "Python filter": Option(prepare=lambda consumer: consumer.add_filter(lambda message: True)),
    "message trace": Option(settings={"enable_msg_trace": True}),
    "history": Option(settings={"history": True}),
    "reading": Option(listener=read, is_rich=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--option", choices=list(OPTIONS), required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True, help="messages before the clock starts")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    given = parser.parse_args()
    if IMPLEMENTATION == "reference":
        raise SystemExit("the reference core is an oracle: benchmarks refuse it")
    option, counted = OPTIONS[given.option], Counted(given.warm, given.messages)
    settings = {
        "name_servers": given.address,
        "consume_from_where": "first_offset",
        "pull_batch_size": given.pull_size,
        **option.settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        if "history" in settings:
            settings["history"] = f"{folder}/member.jsonl"
        _WAYS[option.way](given, option, settings, counted)
    print(
        json.dumps({
            "peer": f"{given.option}, batch {given.batch}",
            "messages": given.messages - given.warm,
            "seconds": counted.seconds,
            "cpu_seconds": counted.cpu_seconds,
            "detail": {"core": IMPLEMENTATION},
        })
    )  # fmt: skip


def wait(given: argparse.Namespace, counted: Counted) -> None:
    if not counted.done.wait(300):
        raise SystemExit(f"{given.option}: not {given.messages} messages within 300 s")


def pushed(
    given: argparse.Namespace, option: Option, settings: dict[str, Any], counted: Counted
) -> None:
    consumer = PushConsumer(given.group, consume_message_batch_max_size=given.batch, **settings)
    consumer.subscribe(given.topic, option.expression)
    option.prepare(consumer)
    work = option.listener

    def listen(messages: Any, context: Any) -> ConsumeResult:
        counted.add(work(messages))
        return ConsumeResult.SUCCESS

    async def listen_async(messages: Any, context: Any) -> ConsumeResult:
        counted.add(work(messages))
        return ConsumeResult.SUCCESS

    chosen = listen_async if "async" in option.way else listen
    if "concurrent" in option.way:
        consumer.concurrently(chosen)
    else:
        consumer.orderly(chosen)
    with consumer:
        wait(given, counted)


def polled(
    given: argparse.Namespace, option: Option, settings: dict[str, Any], counted: Counted
) -> None:
    consumer = LitePullConsumer(given.group, poll_batch_size=given.batch, **settings)
    consumer.subscribe(given.topic, option.expression)
    with consumer:
        if option.way == "batches":
            for batch in consumer.batches():
                counted.add(option.listener(batch))
                if counted.done.is_set():
                    return
        while not counted.done.is_set():
            counted.add(option.listener(consumer.poll(1_000)))


def iterated(
    given: argparse.Namespace, option: Option, settings: dict[str, Any], counted: Counted
) -> None:
    async def work() -> None:
        consumer = AsyncConsumer(given.group, poll_batch_size=given.batch, **settings)
        consumer.subscribe(given.topic, option.expression)
        async with consumer:
            async for batch in consumer:
                counted.add(option.listener(batch))
                if counted.done.is_set():
                    return

    asyncio.run(work())


_Way = Callable[[argparse.Namespace, Option, dict[str, Any], Counted], object]
_WAYS: dict[str, _Way] = {
    "orderly": pushed,
    "concurrent": pushed,
    "async": pushed,
    "async concurrent": pushed,
    "poll": polled,
    "batches": polled,
    "async for": iterated,
}


if __name__ == "__main__":
    main()
