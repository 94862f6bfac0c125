"""PrometheusMetrics: a collector of producers and consumers for `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from ordermq import core
from ordermq.lazy_imports import needed_from
from ordermq.metrics import instruments as of
from ordermq.metrics.instruments import (
    BOUNDARIES,
    READ,
    TIMED,
    Instrument,
    Kind,
    label_of_prometheus,
)
from ordermq.metrics.readings import Durations, Values, WatchedClients, calls_of, operations_of

with needed_from("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

_FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}
_BOUNDS = [*map(str, BOUNDARIES), "+Inf"]
_Counts = dict[Values, core.contract.DurationCounts]


class PrometheusMetrics(WatchedClients, Collector):
    """The metrics of producers and consumers of this process (docs/metrics.md).

    States and durations are read when Prometheus asks; durations are counted natively until then.

    Args: registry: each has room for one of these.
    Raises: ValueError: the registry has one already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        registry.register(self)

    # Collector

    def describe(self) -> list[Metric]:
        """Return the names alone: a registration must not wait for brokers."""
        return [HistogramMetricFamily(of.PROCESS.prometheus_name, of.PROCESS.meaning)]

    def collect(self) -> Iterator[Metric]:
        """Read every watched client now."""
        readings = self.read()
        for instrument in READ:
            found = readings.get(instrument)
            if not found:
                continue
            family = _FAMILIES[instrument.kind](
                instrument.prometheus_name, instrument.meaning, labels=_label_names(instrument)
            )
            for labels, value in found.items():
                family.add_metric(list(instrument.labelled(labels).values()), value)
            yield family
        durations = self._durations()
        for instrument in TIMED:
            histogram = HistogramMetricFamily(
                instrument.prometheus_name, instrument.meaning, labels=_label_names(instrument)
            )
            for labels, counts in durations[instrument].items():
                buckets, spent_ns = counts.read()
                histogram.add_metric(
                    list(instrument.labelled(labels).values()),
                    list(zip(_BOUNDS, map(float, accumulate(buckets)), strict=True)),
                    spent_ns / 1e9,
                )
            yield histogram

    def _durations(self) -> dict[Instrument, _Counts]:
        found: dict[Instrument, _Counts] = {of.PROCESS: {}, of.OPERATIONS: {}}
        self._add(found[of.OPERATIONS], self.sends())
        for consumer in self.watched_consumers():
            self._add(found[of.PROCESS], calls_of(consumer))
            self._add(found[of.OPERATIONS], operations_of(consumer))
        return found

    def _add(self, found: _Counts, durations: Iterable[tuple[Values, Durations]]) -> None:
        for labels, (buckets, spent_ns) in durations:
            # Added up: a process may have several clients of a group.
            found.setdefault(labels, core.DurationCounts()).add_many(buckets, spent_ns)


def _label_names(instrument: Instrument) -> list[str]:
    return [label_of_prometheus(label) for label in instrument.all_labels]
