"""ChangeMetrics: a collector of what `ApplyChanges` has applied, for `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator

from ordermq.cdc.apply import ApplyChanges
from ordermq.lazy_imports import needed_from

with needed_from("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector


class ChangeMetrics(Collector):
    """Changes, rows and lag by table (docs/cdc.md).

    Args: registry: has room for one of these.
    Raises: ValueError: the registry has one already.
    """

    def __init__(self, apply: ApplyChanges, registry: CollectorRegistry = REGISTRY) -> None:
        self._apply = apply
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read the counts of this moment."""
        changes = CounterMetricFamily(
            "ordermq_cdc_changes", "Changes applied.", labels=["table", "operation"]
        )
        rows = CounterMetricFamily(
            "ordermq_cdc_rows",
            "Rows upserted and deleted: of a call, one per key.",
            labels=["table", "written"],
        )
        lag = GaugeMetricFamily(
            "ordermq_cdc_age_seconds",
            "Time since the source committed the newest applied change.",
            labels=["table"],
        )
        for table, counts in sorted(self._apply.statistics.copy().items()):
            for operation, count in sorted(counts.changes.copy().items()):
                changes.add_metric([table, operation], count)
            rows.add_metric([table, "upserted"], counts.upserted)
            rows.add_metric([table, "deleted"], counts.deleted)
            lag_ms = counts.lag_ms()
            if lag_ms is not None:
                lag.add_metric([table], lag_ms / 1_000)
        yield from (changes, rows, lag)
        yield CounterMetricFamily(
            "ordermq_cdc_repeats",
            "Messages dropped because their changes were applied before.",
            value=self._apply.repeats,
        )
