"""Metrics of real clients, as Prometheus and an OpenTelemetry SDK get them (docs/metrics.md)."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable
from typing import Any, cast
from weakref import ref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    ConsumeResult,
    DeadLetter,
    LitePullConsumer,
    Message,
    ParkKey,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import ProducerConfig
from ordermq.errors import BrokerError, ConfigError, StateError
from ordermq.metrics.instruments import READ, TIMED
from ordermq.metrics.opentelemetry import OpenTelemetryMetrics
from ordermq.metrics.prometheus import PrometheusMetrics
from ordermq.metrics.tracing import Tracing
from tests.component.conftest import DEADLINE_S, Seen, eventually, numbered

MakeConsumer = Callable[..., PushConsumer]
Point = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scrape(registry: CollectorRegistry) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample by its name, read from the text that Prometheus gets."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def total(registry: CollectorRegistry, name: str, /, **labels: str) -> float:
    """The sum of the samples with these labels."""
    samples = scrape(registry).get(name, [])
    return sum(value for found, value in samples if labels.items() <= found.items())


def failing_once() -> Callable[[Any, Any], None]:
    """A listener that fails at each message's first delivery."""
    tried: set[int] = set()

    def listen(messages: Any, context: Any) -> None:
        offset = messages[0].queue_offset
        if offset not in tried:
            tried.add(offset)
            raise ValueError("a test's own failure")

    return listen


def test_what_happens_to_messages_is_counted_by_queue(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry)
    producer = Producer("p", name_servers=broker.name_servers)
    metrics.watch_producer(producer)
    consumer = make_consumer(failing_once(), suspend_current_queue_time_ms=10)
    metrics.watch_consumer(consumer)
    with producer, consumer:
        with pytest.raises(StateError, match="before the consumer starts"):
            metrics.watch_consumer(consumer)
        producer.send_batch([Message("orders", b"paid")] * 3, sharding_key="k")
        consumed = "messaging_client_consumed_messages_total"
        eventually(lambda: total(registry, consumed) == 3, "all are consumed")
        eventually(lambda: total(registry, "ordermq_consumer_lag") == 0, "and counted as done")
        assert total(registry, "ordermq_consumer_failed_messages_total") == 3
        assert total(registry, "ordermq_consumer_redelivered_messages_total") == 3
        assert total(registry, "messaging_client_sent_messages_total") == 3
        (labels,) = [labels for labels, value in scrape(registry)[consumed] if value]
        assert labels.pop("messaging_destination_partition_id").startswith("b/")
        assert labels == {
            "messaging_system": "rocketmq",
            "messaging_operation_name": "process",
            "messaging_destination_name": "orders",
            "messaging_consumer_group_name": "g",
        }
        calls = "messaging_process_duration_seconds_count"
        assert total(registry, calls, error_type="ValueError") == 3
        assert total(registry, calls, error_type="") == 3

        def operations(name: str) -> float:
            count = "messaging_client_operation_duration_seconds_count"
            return total(registry, count, messaging_operation_name=name)

        assert operations("send") == 3
        assert operations("receive") > 0
        eventually(lambda: operations("commit") > 0, "it is committed")
        assert (
            total(registry, "ordermq_consumer_events_total", ordermq_event="listener_errors") == 3
        )
        eventually(lambda: total(registry, "ordermq_consumer_ready") == 1, "it is ready")
        queues = "ordermq_consumer_queues"
        assert total(registry, queues, messaging_destination_name="orders") > 0
        leases = [
            value for _, value in scrape(registry)["ordermq_consumer_lease_remaining_seconds"]
        ]
        assert all(0 < left <= 6 for left in leases)
    found = scrape(registry)
    assert total(registry, "ordermq_consumer_hand_offs_total") > 0
    assert "ordermq_consumer_lag" not in found, "a closed consumer holds nothing"
    assert total(registry, consumed) == 3, "what it has done stays counted"


def test_a_slow_listener_shows_its_lag_and_its_buffer(
    producer: Producer, make_consumer: MakeConsumer, registry: CollectorRegistry, seen: Seen
) -> None:
    free = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        free.wait(60)
        seen.take(messages, context)

    metrics = PrometheusMetrics(registry)
    consumer = make_consumer(listen)
    metrics.watch_consumer(consumer)
    producer.send_batch([Message("orders", b"12345")] * 4, sharding_key="k")
    try:
        with consumer:
            bytes_waiting = "ordermq_consumer_buffered_size_bytes"
            eventually(lambda: total(registry, bytes_waiting) == 20, "all are buffered")
            assert total(registry, "ordermq_consumer_buffered_messages") == 4
            assert total(registry, "ordermq_consumer_lag") == 4
            lag_time = "ordermq_consumer_lag_time_seconds"
            eventually(lambda: total(registry, lag_time) > 0.05, "the oldest grows older")
            free.set()
            seen.wait_for_count(4)
    finally:
        free.set()


def test_dead_letters_of_both_kinds_of_groups_are_counted(
    producer: Producer, make_consumer: MakeConsumer, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry)
    consumer = make_consumer(
        lambda messages, context: ConsumeResult.SUSPEND,
        on_failure=DeadLetter(max_attempts=2),
        suspend_current_queue_time_ms=10,
    )
    metrics.watch_consumer(consumer)
    producer.send(Message("orders", b"poison"), sharding_key="k")
    dead = "ordermq_consumer_dead_letters_total"
    with consumer:
        eventually(lambda: total(registry, dead) == 1, "the message is given up")
    assert total(registry, "messaging_process_duration_seconds_count", error_type="FAILED") == 2
    concurrent = make_consumer(
        lambda messages, context: ConsumeResult.SUSPEND, concurrent=True, max_reconsume_times=0
    )
    metrics.watch_consumer(concurrent)
    producer.send(Message("orders", b"poison"), sharding_key="k")
    with concurrent:
        eventually(lambda: total(registry, dead) == 2, "so is the other one")


def test_parked_keys_are_counted_until_they_are_unparked(
    producer: Producer, make_consumer: MakeConsumer, registry: CollectorRegistry
) -> None:
    is_mended = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if not is_mended.is_set():
            raise ValueError("a test's own failure")

    consumer = make_consumer(
        listen,
        order_by_key=True,
        on_failure=ParkKey("parked", max_attempts=1),
        suspend_current_queue_time_ms=10,
    )
    PrometheusMetrics(registry).watch_consumer(consumer)
    parked = "ordermq_consumer_parked_keys"
    producer.send_batch([Message("orders", b"x")] * 3, sharding_key="k")
    with consumer:
        eventually(lambda: total(registry, parked) == 1, "the key is parked")
        eventually(lambda: total(registry, "ordermq_consumer_lag") == 0, "no lag tells of it")
        is_mended.set()
        assert consumer.unpark("k")
        eventually(lambda: total(registry, parked) == 0, "the key goes on")


def test_a_group_without_members_has_its_lag_at_the_brokers(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    registry: CollectorRegistry,
    seen: Seen,
) -> None:
    metrics = PrometheusMetrics(registry)
    with Admin(broker.name_servers) as admin:
        metrics.watch_group(admin, "g")
        with make_consumer(seen.take):
            producer.send_many(numbered(20))
            seen.wait_for_count(20)
            eventually(lambda: total(registry, "ordermq_group_members") == 1, "one is online")
        eventually(lambda: total(registry, "ordermq_group_members") == 0, "none is online")
        assert total(registry, "ordermq_group_lag") == 0
        assert "ordermq_group_lag_time_seconds" not in scrape(registry)
        producer.send_many(numbered(5))
        assert total(registry, "ordermq_group_lag") == 5
        ages = scrape(registry)["ordermq_group_lag_time_seconds"]
        assert all(0 <= age < DEADLINE_S for _, age in ages)


def test_a_group_whose_brokers_are_away_has_no_lag_and_one_warning(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = PrometheusMetrics(registry)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with Admin(nobody) as admin:
        metrics.watch_group(admin, "g")
        for _ in range(2):
            assert "ordermq_group_lag" not in scrape(registry)
    warnings = [each.message for each in caplog.records if "metrics of group g" in each.message]
    assert len(warnings) == 1
    with pytest.raises(ConfigError, match="expected an Admin"):
        metrics.watch_group(Producer("p", name_servers=nobody), "g")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [PrometheusMetrics, OpenTelemetryMetrics])
def test_what_cannot_be_read_is_refused_at_the_call(kind: Any, broker: EmbeddedBroker) -> None:
    metrics = PrometheusMetrics(CollectorRegistry()) if kind is PrometheusMetrics else kind()
    servers = {"name_servers": broker.name_servers}
    iterated, poller = AsyncConsumer("g", **servers), LitePullConsumer("g", **servers)
    producer, sender = Producer("p", **servers), AsyncProducer("p", **servers)
    pulled = PullConsumer("g", **servers)
    for refused in (iterated, iterated.blocking, poller, pulled, producer, None):
        with pytest.raises(ConfigError, match=r"watch_poller\(consumer.blocking\)"):
            metrics.watch_consumer(refused)
        with pytest.raises(ConfigError, match="expected a PushConsumer"):
            Tracing().trace_consumer(cast("Any", refused))
    for refused in (iterated, pulled, producer, None):
        with pytest.raises(ConfigError, match="expected a LitePullConsumer"):
            metrics.watch_poller(refused)
    for refused in (sender, poller, None):
        with pytest.raises(ConfigError, match=r"watch_producer\(producer.blocking\)"):
            metrics.watch_producer(refused)
        with pytest.raises(ConfigError, match="AsyncProducer"):
            Tracing().trace_producer(cast("Any", refused))
    for refused in (iterated, poller, sender, None):
        with pytest.raises(ConfigError, match="expected a LagListener"):
            metrics.watch_queries(refused)
    metrics.watch_poller(iterated.blocking)
    metrics.watch_producer(sender.blocking)
    assert metrics.read()


def test_clients_of_one_group_are_added_up_and_forgotten(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry)
    pollers = [LitePullConsumer("g", name_servers=broker.name_servers) for _ in range(2)]
    for poller in pollers:
        metrics.watch_poller(poller)
        poller.statistics.add("polled", 5)
    events = "ordermq_consumer_events_total"
    assert total(registry, events, ordermq_event="polled") == 10
    pollers.clear()
    del poller
    gc.collect()
    assert total(registry, events) == 0
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusMetrics(registry)


def test_a_send_that_fails_has_its_error(
    broker: EmbeddedBroker, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry)
    producer = Producer("p", name_servers=broker.name_servers)
    metrics.watch_producer(producer)
    with producer:
        queue = producer.send(Message("orders", b"x")).message_queue
        with pytest.raises(BrokerError):
            producer.send(Message("orders", b"x"), queue=queue._replace(queue_id=4_000))
        sent = "messaging_client_sent_messages_total"
        assert total(registry, sent, error_type="") == 1
        assert total(registry, sent, error_type="BrokerError") == 1
        assert total(registry, "ordermq_producer_ready") == 1


def test_every_way_to_send_counts_its_messages_for_each_observer(
    broker: EmbeddedBroker, registry: CollectorRegistry
) -> None:
    reader = InMemoryMetricReader()
    first, second = PrometheusMetrics(registry), OpenTelemetryMetrics(MeterProvider([reader]))
    producers = [Producer(group, name_servers=broker.name_servers) for group in ("p", "q")]
    for producer in producers:
        first.watch_producer(producer)
        second.watch_producer(producer)
    message = Message("orders", b"x")
    with producers[0] as producer, producers[1] as other:
        with pytest.raises(StateError, match="time_sends\\(\\) before start"):
            first.watch_producer(producer)
        queue = producer.send(message).message_queue
        producer.send(Message("orders", b"x", tags="t"), sharding_key="k")
        producer.send_batch([message] * 3, sharding_key="k")
        producer.send_many([(message, "k")] * 4)
        producer.send_nowait(message).result(10)
        producer.send_oneway(message)
        other.send(message)
        with pytest.raises(BrokerError):
            producer.send(message, queue=queue._replace(queue_id=4_000))
        producer.flush()
        sent = "messaging_client_sent_messages_total"
        timed = "messaging_client_operation_duration_seconds_count"
        for name in sent, timed:
            assert total(registry, name, error_type="") == 12
            assert total(registry, name, error_type="BrokerError") == 1
        counted = {
            (metric.name, point.attributes.get("error.type")): getattr(point, kind)
            for resource in reader.get_metrics_data().resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            for kind in ("value", "count")
            if hasattr(point, kind)
        }
    for name in "messaging.client.sent.messages", "messaging.client.operation.duration":
        assert counted[name, None] == 12
        assert counted[name, "BrokerError"] == 1


def test_sends_of_a_producer_that_is_gone_stay_counted(
    broker: EmbeddedBroker, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry)
    producer = Producer("p", name_servers=broker.name_servers)
    metrics.watch_producer(producer)
    with producer:
        producer.send(Message("orders", b"x"))
    del producer
    gc.collect()
    assert total(registry, "messaging_client_sent_messages_total") == 1


def test_opentelemetry_gets_sends_before_it_collects(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordermq.metrics.opentelemetry._KEPT_S", 0.01)
    metrics = OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()]))
    producer = Producer("p", name_servers=broker.name_servers)
    metrics.watch_producer(producer)
    with producer:
        producer.send(Message("orders", b"x"))
        recorded = metrics._recorded_sends
        eventually(
            lambda: sum(sum(buckets) for buckets, _ in [*recorded.values()]) == 1, "it is recorded"
        )
    recorder = metrics._send_recorder
    assert recorder is not None
    del producer
    gc.collect()
    recorder.join(10)
    assert not recorder.is_alive(), "without producers there is nothing to record"


def test_opentelemetry_gets_the_same_instruments(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider)
    producer = Producer("p", name_servers=broker.name_servers)
    consumer = make_consumer(seen.take)
    metrics.watch_producer(producer)
    metrics.watch_consumer(consumer)
    admin = Admin(broker.name_servers)
    metrics.watch_group(admin, "g")

    def points() -> dict[str, list[Any]]:
        data = reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    with admin, producer, consumer:
        producer.send(Message("orders", b"paid"), sharding_key="k")
        seen.wait_for_count(1)
        consumed = "messaging.client.consumed.messages"
        eventually(
            lambda: sum(point.value for point in points().get(consumed, ())) == 1, "it is consumed"
        )
        found = points()
        (timed,) = found["messaging.process.duration"]
        assert timed.count == 1
        assert timed.explicit_bounds[0] == 0.005
        assert dict(timed.attributes) == {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "process",
            "messaging.destination.name": "orders",
            "messaging.consumer.group.name": "g",
        }
        # Whatever has not happened has no point.
        names = {instrument.name for instrument in (*READ, *TIMED)}
        assert names - found.keys() == {
            "ordermq.consumer.redelivered.messages",
            "ordermq.group.lag.time",
        }
        assert found.keys() <= names
    provider.shutdown()


def process_points(reader: InMemoryMetricReader) -> list[Any]:
    """Return the histograms of listener calls."""
    data = reader.get_metrics_data()
    return [
        point
        for resource in ([] if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "messaging.process.duration"
        for point in metric.data.data_points
    ]


def test_opentelemetry_gets_calls_of_a_consumer_that_is_gone(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader]))
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    metrics.watch_consumer(consumer)
    gone = ref(consumer)
    with Producer("p", name_servers=broker.name_servers) as producer, consumer:
        for number in range(20):
            producer.send(Message("orders", b"%d" % number))
        seen.wait_for_count(20)
    del consumer
    eventually(lambda: gc.collect() >= 0 and gone() is None, "the consumer is gone")
    (calls,) = process_points(reader)
    assert calls.count == 20
    (calls,) = process_points(reader)
    assert calls.count == 20, "each call is recorded once"


def test_calls_within_spans_are_exemplars_of_their_histogram(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader]))
    consumer = make_consumer(seen.take)
    metrics.watch_consumer(consumer)
    Tracing(TracerProvider()).trace_consumer(consumer)
    found: list[list[Any]] = []
    with Producer("p", name_servers=broker.name_servers) as producer, consumer:
        producer.send(Message("orders", b"x"))
        # A collection takes the exemplars with it.
        eventually(lambda: found.append(process_points(reader)) or found[-1], "it is recorded")
    found = [points for points in found if points]
    (calls,) = found[0]
    assert calls.count == 1
    (exemplar,) = calls.exemplars
    assert exemplar.trace_id


def test_a_producer_without_metrics_has_no_hook() -> None:
    producer = Producer("p", name_servers="127.0.0.1:1", config=ProducerConfig())
    consumer = PushConsumer("g", name_servers="127.0.0.1:1")
    assert not producer._hooks.hooks
    assert not consumer._hooks
