"""OpenTelemetryMetrics: the instruments of producers and consumers, for any OpenTelemetry SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary

import ordermq
from ordermq.consumer.call_times import CallTimes
from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    BOUNDARIES,
    OPERATIONS,
    PROCESS,
    READ,
    RECORDED,
    Instrument,
    Kind,
)
from ordermq.metrics.readings import Durations, Readings, Values, WatchedClients, operations_of

with needed_from("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import (
        CallbackOptions,
        Counter,
        Histogram,
        MeterProvider,
        Observation,
    )

_KEPT_S = 1.0
_NOTHING: Durations = ((0,) * (len(BOUNDARIES) + 1), 0)


class OpenTelemetryMetrics(WatchedClients):
    """The metrics of producers and consumers of this process (docs/metrics.md).

    An SDK takes single values only. So each listener call is recorded as it happens, while pulls
    and commits, which are counted natively, are recorded at each collection: with the mean of
    their bucket.

    Args:
        meter_provider: default the global one.
        clock_s: for tests.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        meter = metrics.get_meter("ordermq", ordermq.__version__, meter_provider)
        self._clock_s = clock_s
        # An SDK asks for each instrument by itself, one after the other: they share a reading.
        self._reading = threading.Lock()
        self._readings: Readings = {}
        self._read_s = -_KEPT_S
        # What was recorded of each consumer's pulls and commits.
        self._recorded: WeakKeyDictionary[object, dict[Values, Durations]] = WeakKeyDictionary()
        self._histograms: dict[Instrument, Histogram] = {}
        self._counters: dict[Instrument, Counter] = {}
        for instrument in RECORDED:
            name, unit, meaning = instrument.name, instrument.unit, instrument.meaning
            if instrument.kind is Kind.HISTOGRAM:
                self._histograms[instrument] = meter.create_histogram(
                    name, unit, meaning, explicit_bucket_boundaries_advisory=BOUNDARIES
                )
            else:
                self._counters[instrument] = meter.create_counter(name, unit, meaning)
        makers = {
            Kind.COUNTER: meter.create_observable_counter,
            Kind.GAUGE: meter.create_observable_gauge,
        }
        for instrument in READ:
            makers[instrument.kind](
                instrument.name, [self._reader(instrument)], instrument.unit, instrument.meaning
            )

    def _reader(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, _attributes(instrument, labels))
                for labels, value in self._latest().get(instrument, {}).items()
            ]

        return read

    def _latest(self) -> Readings:
        with self._reading:
            now_s = self._clock_s()
            if now_s - self._read_s >= _KEPT_S:
                self._readings, self._read_s = self.read(), now_s
                self._record_operations()
            return self._readings

    def _record_operations(self) -> None:
        for consumer in self.watched_consumers():
            recorded = self._recorded.setdefault(consumer, {})
            for labels, now in operations_of(consumer):
                before = recorded.get(labels, _NOTHING)
                recorded[labels] = now
                for value, count in _values_between(before, now):
                    for _ in range(count):
                        self.record(OPERATIONS, value, labels)

    def _time_calls(self, group: str, times: CallTimes) -> None:
        attributes: dict[tuple[str, str], Mapping[str, str]] = {}
        histogram = self._histograms[PROCESS]

        def record(topic: str, error: str, spent_ns: int) -> None:
            found = attributes.get((topic, error))
            if found is None:
                found = attributes[topic, error] = _attributes(PROCESS, (topic, group, error))
            histogram.record(spent_ns / 1e9, found)

        times.record_with(record)

    # Sink

    def record(self, instrument: Instrument, value: float, labels: Values) -> None:
        """Record one value of a histogram."""
        self._histograms[instrument].record(value, _attributes(instrument, labels))

    def add(self, instrument: Instrument, count: int, labels: Values) -> None:
        """Count something."""
        self._counters[instrument].add(count, _attributes(instrument, labels))


@lru_cache(maxsize=4096)  # else a dictionary per listener call
def _attributes(instrument: Instrument, labels: Values) -> Mapping[str, str]:
    return {name: value for name, value in instrument.labelled(labels).items() if value}


def _values_between(before: Durations, now: Durations) -> Iterator[tuple[float, int]]:
    """Return a value of each bucket that has grown, with how often to record it.

    Their sum is that of the durations, as far as the buckets allow.
    """
    counts = [new - old for old, new in zip(before[0], now[0], strict=True)]
    total = sum(counts)
    if not total:
        return
    mean = (now[1] - before[1]) / total / 1e9
    bounds = [0.0, *BOUNDARIES, float("inf")]
    for place, count in enumerate(counts):
        if count:
            # Within its bucket, whose lower bound belongs to the one before.
            low, high = bounds[place], bounds[place + 1]
            yield mean if low < mean <= high else high if mean > high else low * 1.001, count
