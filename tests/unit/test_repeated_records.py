"""One value recorded many times into a histogram of OpenTelemetry, as by as many `record`s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from ordermq.metrics import repeated_records
from ordermq.metrics.repeated_records import record_repeatedly, takes_many

Record = Callable[[Histogram, float, int, dict[str, str]], None]
VALUES = ((0.003, 7), (0.005, 1), (20.0, 2), (0.003, 1))


def of_timed(**settings: Any) -> View:
    return View(instrument_name="timed", **settings)


VIEWS = {
    "none": [],
    "boundaries": [of_timed(aggregation=ExplicitBucketHistogramAggregation([0.004, 1.0]))],
    "no extremes": [
        of_timed(aggregation=ExplicitBucketHistogramAggregation(record_min_max=False))
    ],
    "attributes": [of_timed(attribute_keys={"topic"})],
    "no attributes": [of_timed(attribute_keys=set())],
    "two": [of_timed(), of_timed(name="other", attribute_keys={"group"})],
    "dropped": [of_timed(aggregation=DropAggregation())],
    "exponential": [of_timed(aggregation=ExponentialBucketHistogramAggregation())],
}  # fmt: skip


def one_by_one(histogram: Histogram, value: float, count: int, attributes: dict[str, str]) -> None:
    for _ in range(count):
        histogram.record(value, attributes)


def histogram_of(provider: MeterProvider) -> Histogram:
    return provider.get_meter("test").create_histogram(
        "timed", "s", explicit_bucket_boundaries_advisory=[0.005, 0.01, 10.0]
    )


def points(reader: InMemoryMetricReader) -> list[dict[str, Any]]:
    """Return what a collection finds, without its times."""
    data: Any = reader.get_metrics_data()
    return [
        {
            name: round(value, 9) if isinstance(value, float) else value
            for name, value in vars(point).items()
            if "time" not in name and name != "exemplars"
        }
        for resource in ([] if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


def collected(record: Record, views: Sequence[View]) -> list[list[dict[str, Any]]]:
    """Return what readers of sums and of changes get behind each of several recordings."""
    deltas = {SdkHistogram: AggregationTemporality.DELTA}
    readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=deltas)]
    histogram = histogram_of(MeterProvider(readers, views=views, shutdown_on_exit=False))
    found = []
    for topic in ("orders", "bills", "orders"):
        for value, count in VALUES:
            record(histogram, value, count, {"topic": topic, "group": "g"})
        found += [points(reader) for reader in readers]
    return found


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_every_view_gets_what_single_records_give_it(views: Sequence[View]) -> None:
    assert collected(record_repeatedly, views) == collected(one_by_one, views)


def test_attributes_beyond_the_limit_of_an_sdk_are_counted_with_the_others() -> None:
    reader = InMemoryMetricReader()
    histogram = histogram_of(MeterProvider([reader], shutdown_on_exit=False))
    for number in range(2_100):
        record_repeatedly(histogram, 0.003, 3, {"topic": f"t{number}"})
    assert sum(point["count"] for point in points(reader)) == 3 * 2_100


@pytest.mark.parametrize(
    ("views", "is_quick"),
    [(VIEWS["none"], True), (VIEWS["dropped"], True), (VIEWS["exponential"], False)],
    ids=["none", "dropped", "exponential"],
)
def test_the_sdk_that_is_installed_is_known(views: Sequence[View], is_quick: bool) -> None:
    provider = MeterProvider([InMemoryMetricReader()], views=views, shutdown_on_exit=False)
    assert takes_many(histogram_of(provider)) is is_quick


def test_an_unknown_sdk_gets_single_records_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_records, "_known_class", lambda: None)
    reader = InMemoryMetricReader()
    histogram = histogram_of(MeterProvider([reader], shutdown_on_exit=False))
    rests: list[None] = []
    record_repeatedly(histogram, 0.003, 300, {}, lambda: rests.append(None))
    (point,) = points(reader)
    assert point["count"] == 300
    assert len(rests) == 2
    assert not takes_many(histogram)


def test_an_sdk_that_counts_in_another_way_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_records, "_add", lambda counts, value, count: None)
    assert repeated_records._known_class.__wrapped__() is None
    monkeypatch.setattr(repeated_records, "_add", lambda counts, value, count: counts.renamed)
    assert repeated_records._known_class.__wrapped__() is None


def test_counts_that_were_collected_meanwhile_are_not_raised() -> None:
    deltas = {SdkHistogram: AggregationTemporality.DELTA}
    reader = InMemoryMetricReader(preferred_temporality=deltas)
    histogram = histogram_of(MeterProvider([reader], shutdown_on_exit=False))

    class Collected:
        """A histogram whose reader comes behind the first record."""

        _real_instrument = histogram
        _found = 0

        def record(self, value: float, attributes: dict[str, str]) -> None:
            histogram.record(value, attributes)
            self._found += sum(point["count"] for point in points(reader))

    seen: Any = Collected()
    record_repeatedly(seen, 0.003, 5, {"topic": "orders"})
    assert seen._found + sum(point["count"] for point in points(reader)) == 5


class Api:
    """A histogram of the API alone, which records nothing."""

    def __init__(self) -> None:
        self.recorded: list[float] = []

    def record(self, value: float, attributes: dict[str, str]) -> None:
        self.recorded.append(value)


def test_another_implementation_of_the_api_gets_single_records() -> None:
    api: Any = Api()
    record_repeatedly(api, 0.003, 4, {})
    assert api.recorded == [0.003] * 4
    assert not takes_many(api)
