"""LagListener on a running query: lag as JSON, in the log and for Prometheus."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ordermq.metrics.prometheus import PrometheusMetrics
from ordermq.spark import LagListener
from ordermq.spark.versions import PROGRESS_ENDS, is_before
from tests.spark.conftest import Broker, eventually, send


@pytest.fixture
def listener(spark: Any, broker: Broker) -> Iterator[LagListener]:
    made = LagListener(name_servers=broker.name_servers, log_interval_ms=0)
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)
    made.close()
    assert made.report() == []


def test_the_lag_of_a_query_is_live_while_a_long_batch_runs(stream, producer, listener, caplog):
    caplog.set_level(logging.INFO, "ordermq.spark")
    registry = CollectorRegistry()
    PrometheusMetrics(registry).watch_queries(listener)
    is_in_batch, may_end = threading.Event(), threading.Event()

    def each(number, rows):
        if number:
            is_in_batch.set()
            may_end.wait(60)

    def messages():
        return [sum(one.messages for one in lags.values()) for lags in listener.lag().values()]

    def scraped():
        return sum(
            sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "ordermq_consumer_lag"
            and sample.labels["messaging_consumer_group_name"] == title
        )

    send(producer, 40)
    query = stream.start(group="etl", each=each)
    # Before Spark 4.2 a query does not report the ends of its queues, nor the group with them.
    group = None if is_before(PROGRESS_ENDS.since) else "etl"
    title = group or str(query.id)
    try:
        # Spark reports a finished batch to its listeners some time later.
        # Two Python workers start for it: 45 s on two busy cores.
        eventually(lambda: messages() == [0], "the first batch is done and reported", 180.0)
        send(producer, 60, first=40)
        assert is_in_batch.wait(60)
        assert messages() == [60], "the batch under way is not done"
        assert scraped() == 60
        (report,) = json.loads(json.dumps(listener.report()))
    finally:
        may_end.set()
    assert report["id"] == str(query.id)
    assert report["group"] == group
    assert report["lag"]["messages"] == report["topics"]["orders"]["messages"] == 60
    assert report["lag"]["seconds"] >= 0
    assert sum(one["endOffset"] for one in report["queues"]) == 40
    eventually(lambda: messages() == [0], "all is done and reported")
    eventually(lambda: f"lag: query={title} topic=orders" in caplog.text, "a line in the log")
    query.stop()
    eventually(lambda: listener.lag() == {}, "the query is forgotten")
    assert scraped() == 0
