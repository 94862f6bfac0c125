"""A group member as a process: python -m tests.interop.member NAME_SERVERS GROUP TOPIC HISTORY
[SETTINGS as JSON; "concurrent" for a concurrent listener, "prometheus" for metrics].

Prints what it got as JSON lines, as java/Member.java does; leaves when its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ordermq import MessageView, PushConsumer
from ordermq.consumer.listener import ConsumeContext
from tests.interop.run import MEMBER_SETTINGS


def main(prepare: Callable[[PushConsumer], None] = lambda consumer: None, **more: Any) -> None:
    """Run it.

    Args:
        prepare: told of the consumer before its start.
        more: settings that are no JSON.
    """
    name_servers, group, topic, history, *given = sys.argv[1:]
    settings = MEMBER_SETTINGS | (json.loads(given[0]) if given else {}) | more
    is_concurrent = settings.pop("concurrent", False)
    has_metrics = settings.pop("prometheus", False)

    def say(**members: object) -> None:
        os.write(1, json.dumps(members).encode() + b"\n")

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        queue = context.message_queue
        for message in messages:
            say(
                topic=queue.topic,
                broker=queue.broker_name,
                queue=queue.queue_id,
                offset=message.queue_offset,
                key=message.sharding_key,
                body=bytes(message.body).decode("latin-1"),
            )

    consumer = PushConsumer(
        group,
        name_servers=name_servers,
        history=None if is_concurrent else history,
        **settings,
    )
    consumer.subscribe(topic)
    (consumer.concurrently if is_concurrent else consumer.orderly)(listen)
    prepare(consumer)
    with scraped(consumer) if has_metrics else contextlib.nullcontext(), consumer:
        say(ready=consumer.client_id)
        sys.stdin.read()


@contextlib.contextmanager
def scraped(consumer: PushConsumer) -> Iterator[None]:
    """Read a consumer's metrics twice a second during the block, as a Prometheus does."""
    from prometheus_client import CollectorRegistry, generate_latest

    from ordermq.metrics.prometheus import PrometheusMetrics

    registry, over = CollectorRegistry(), threading.Event()
    PrometheusMetrics(registry).watch_consumer(consumer)

    def scrape() -> None:
        while not over.wait(0.5):
            generate_latest(registry)

    # A thread that may wait for a broker that is gone must not keep the process.
    threading.Thread(target=scrape, daemon=True).start()
    yield
    over.set()


if __name__ == "__main__":
    main()
