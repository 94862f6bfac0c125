"""OpenTelemetryMetrics: the instruments of producers and consumers, for any OpenTelemetry SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import ordermq
from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    BOUNDARIES,
    READ,
    RECORDED,
    SYSTEM,
    SYSTEM_LABEL,
    Instrument,
    Kind,
)
from ordermq.metrics.readings import Readings, Values, WatchedClients

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


class OpenTelemetryMetrics(WatchedClients):
    """The metrics of producers and consumers of this process (docs/metrics.md).

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
            return self._readings

    # Sink

    def record(self, instrument: Instrument, value: float, labels: Values) -> None:
        """Record one value of a histogram."""
        self._histograms[instrument].record(value, _attributes(instrument, labels))

    def add(self, instrument: Instrument, count: int, labels: Values) -> None:
        """Count something."""
        self._counters[instrument].add(count, _attributes(instrument, labels))


@lru_cache(maxsize=4096)  # else a dictionary per listener call
def _attributes(instrument: Instrument, labels: Values) -> Mapping[str, str]:
    named = zip(instrument.labels, labels, strict=True)
    return {SYSTEM_LABEL: SYSTEM} | {name: value for name, value in named if value}
