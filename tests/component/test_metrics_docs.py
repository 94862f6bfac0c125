"""The OpenTelemetry example of docs/metrics.md runs as it stands, with a producer and consumer."""

from __future__ import annotations

from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example

BEFORE = """
import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
broker = EmbeddedBroker().start()
producer = Producer("shop", name_servers=broker.name_servers)
consumer = PushConsumer("billing", name_servers=broker.name_servers)
consumer.subscribe("orders")
done = threading.Event()
consumer.orderly(lambda messages, context: done.set())
"""
AFTER = """
with producer, consumer:
    producer.send(Message("orders", b"paid"), sharding_key="ann")
    assert done.wait(30)
broker.close()
for span in exporter.get_finished_spans():
    print(span.name, span.kind.name, span.attributes["messaging.system"])
"""


def test_the_example_traces_a_message_from_its_send_to_the_listener(tmp_path: Path) -> None:
    (example,) = [
        code for code in examples((DOCS / "metrics.md").read_text()) if "Tracing()" in code
    ]
    done = run_example(BEFORE + example + AFTER, tmp_path)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["process orders CONSUMER rocketmq", "send orders PRODUCER rocketmq"],
    ), done.stderr
