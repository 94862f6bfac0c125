"""PrometheusMetrics: a collector of producers and consumers for `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator

from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    BOUNDARIES,
    READ,
    RECORDED,
    SYSTEM,
    SYSTEM_LABEL,
    Instrument,
    Kind,
    label_of_prometheus,
)
from ordermq.metrics.readings import Values, WatchedClients

with needed_from("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

_FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class PrometheusMetrics(WatchedClients, Collector):
    """The metrics of producers and consumers of this process (docs/metrics.md).

    States are read when Prometheus asks. Durations are recorded as they happen, which is what a
    watched client costs.

    Args: registry: each has room for one of these.
    Raises: ValueError: the registry has one already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._histograms: dict[Instrument, Histogram] = {}
        self._counters: dict[Instrument, Counter] = {}
        for instrument in RECORDED:
            labels = _label_names(instrument)
            if instrument.kind is Kind.HISTOGRAM:
                self._histograms[instrument] = Histogram(
                    instrument.prometheus_name,
                    instrument.meaning,
                    labels,
                    registry=registry,
                    buckets=BOUNDARIES,
                )
            else:
                self._counters[instrument] = Counter(
                    instrument.prometheus_name, instrument.meaning, labels, registry=registry
                )
        # Found by their labels at each call: the library's own look-up takes longer than the rest.
        self._timed: dict[tuple[Instrument, Values], Histogram] = {}
        self._counted: dict[tuple[Instrument, Values], Counter] = {}
        registry.register(self)

    # Collector

    def describe(self) -> list[Metric]:
        """Return nothing: a registration must not wait for brokers."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read every watched client now."""
        readings = self.read()
        for instrument in READ:
            if not (found := readings.get(instrument)):
                continue
            family = _FAMILIES[instrument.kind](
                instrument.prometheus_name, instrument.meaning, labels=_label_names(instrument)
            )
            for labels, value in found.items():
                family.add_metric([SYSTEM, *labels], value)
            yield family

    # Sink

    def record(self, instrument: Instrument, value: float, labels: Values) -> None:
        """Record one value of a histogram."""
        place = instrument, labels
        timed = self._timed.get(place)
        if timed is None:
            timed = self._histograms[instrument].labels(SYSTEM, *labels)
            self._timed[place] = timed
        timed.observe(value)

    def add(self, instrument: Instrument, count: int, labels: Values) -> None:
        """Count something."""
        place = instrument, labels
        counted = self._counted.get(place)
        if counted is None:
            counted = self._counters[instrument].labels(SYSTEM, *labels)
            self._counted[place] = counted
        counted.inc(count)


def _label_names(instrument: Instrument) -> list[str]:
    return [label_of_prometheus(label) for label in (SYSTEM_LABEL, *instrument.labels)]
