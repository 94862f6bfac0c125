"""Recording one value many times into a histogram of OpenTelemetry, whose API takes one at a time.

A `record` of the Python SDK takes 7 us, nearly all of it for the attributes: a stream of sends took
longer to be recorded than to be sent. So behind one `record` the counts of the SDK's own histogram
are raised. They are private: whether they still mean what they meant is tried once per process,
and any other SDK, aggregation or state gets each value by `record`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram

_log = logging.getLogger("ordermq.metrics")
_DROPPED = "_DropAggregation"
_COUNTED = {"_ExplicitBucketHistogramAggregation", _DROPPED}
_RECORDED_AT_ONCE = 128  # about 1 ms; threads that want the interpreter lock wait for 5 ms


def record_repeatedly(
    histogram: Histogram,
    value: float,
    count: int,
    attributes: Mapping[str, str],
    rest: Callable[[], object] | None = None,
) -> None:
    """Record `value` `count` times.

    Args: rest: called now and then where each value has to be recorded.
    """
    # The first one also makes the counts, and is the one that exemplars are offered.
    histogram.record(value, attributes)
    real = _real(histogram)
    is_known = count > 1 and type(real) is _known_class()
    if is_known and _raise_counts(real, value, count - 1, attributes):
        return
    for number in range(1, count):
        histogram.record(value, attributes)
        if rest is not None and not number % _RECORDED_AT_ONCE:
            rest()


def takes_many(histogram: Histogram) -> bool:
    """Tell whether `record_repeatedly` takes no longer for many values than for one."""
    real = _real(histogram)
    return type(real) is _known_class() and all(
        type(view._aggregation).__name__ in _COUNTED for view in _views(real)
    )


def _real(histogram: Histogram) -> Any:
    # The global provider's, which may be set after the histogram was made.
    return getattr(histogram, "_real_instrument", None) or histogram


@cache
def _known_class() -> type | None:
    """Return the class of an SDK's histograms if they count as the known ones do; one is tried."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], shutdown_on_exit=False)
        tried: Any = provider.get_meter("ordermq").create_histogram(
            "tried", explicit_bucket_boundaries_advisory=[1.0, 2.0]
        )
        tried.record(1.5, {"a": "b"})
        is_raised = _raise_counts(tried, 1.5, 2, {"a": "b"})
        data: Any = reader.get_metrics_data()
        (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
        provider.shutdown()
    except Exception:  # noqa: BLE001 - a later SDK may be made otherwise in any way
        _log.debug("each value is recorded: this SDK of OpenTelemetry is not known", exc_info=True)
        return None
    if not is_raised or (*point.bucket_counts, point.sum) != (0, 3, 0, 4.5):
        return None
    kind: type = type(tried)
    return kind


def _views(histogram: Any) -> list[Any]:
    return [
        view
        for storage in [*histogram._measurement_consumer._reader_storages.values()]
        for view in storage._get_or_init_view_instrument_match(histogram)
    ]


def _raise_counts(histogram: Any, value: float, count: int, attributes: Mapping[str, str]) -> bool:
    """Raise the counts of what `value` was recorded in; return False if none was raised."""
    views = _views(histogram)
    with ExitStack() as held:
        for view in views:  # a collection of deltas discards what it has read
            held.enter_context(view._lock)
        found = [_counts_of(view, attributes) for view in views]
        if None in found:
            return False
        for counts in found:
            _add(counts, value, count)
    return True


def _counts_of(view: Any, attributes: Mapping[str, str]) -> Any:
    """Return a view's histogram of these attributes; None if it has none that is known."""
    names = view._view._attribute_keys
    kept = attributes
    if names is not None:
        kept = {name: value for name, value in attributes.items() if name in names}
    for counts in view._attributes_aggregation.values():
        if counts._attributes == kept and type(counts).__name__ in _COUNTED:
            return counts
    return None


def _add(counts: Any, value: float, count: int) -> None:
    if type(counts).__name__ == _DROPPED:
        return
    with counts._lock:
        if counts._value is None:  # collected since
            counts._value = counts._get_empty_bucket_counts()
        counts._value[bisect_left(counts._boundaries, value)] += count
        counts._sum += value * count
        if counts._record_min_max:
            counts._min, counts._max = min(counts._min, value), max(counts._max, value)
