"""Show what a consumer does on a page that Prometheus scrapes.

pip install 'ordermq[metrics]'
python examples/metrics_page.py
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Sequence

from prometheus_client import start_http_server

from ordermq import ConsumeContext, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.metrics.prometheus import PrometheusMetrics


def bill(messages: Sequence[MessageView], context: ConsumeContext) -> None:
    """Do nothing: the page tells how often and how fast."""


def consumed(port: int) -> list[str]:
    """Scrape the page, as Prometheus would, and return the counters of consumed messages."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    name = "messaging_client_consumed_messages_total{"
    return [line for line in page.splitlines() if line.startswith(name)]


def main() -> None:
    with EmbeddedBroker() as broker:
        producer = Producer("shop", name_servers=broker.name_servers, default_topic_queue_nums=1)
        consumer = PushConsumer(
            "billing", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        consumer.orderly(bill)

        metrics = PrometheusMetrics()
        metrics.watch_producer(producer)
        metrics.watch_consumer(consumer)
        # A service has a fixed port, which prometheus.yml names under `scrape_configs`.
        server, thread = start_http_server(0, addr="127.0.0.1")

        with producer:
            for number in range(100):
                producer.send(Message("orders", b"paid"), sharding_key=f"o-{number % 10}")
        with consumer:
            pause = threading.Event()
            while not (lines := consumed(server.server_port)) or not lines[0].endswith(" 100.0"):
                pause.wait(0.02)
            print(*lines)
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    main()
