"""The batch source with filters: queues and offsets that a query's filter excludes are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source.batch import BatchReader

_QUEUE_FIELDS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker_name,
    "queue_id": lambda queue: queue.queue_id,
}
# Filters of other kinds (or, like, null tests) go back to Spark, which applies them to the rows.
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda own, wanted: own == wanted,
    In: lambda own, wanted: own in wanted,
    GreaterThan: lambda own, wanted: own > wanted,
    GreaterThanOrEqual: lambda own, wanted: own >= wanted,
    LessThan: lambda own, wanted: own < wanted,
    LessThanOrEqual: lambda own, wanted: own <= wanted,
}


class PushdownReader(BatchReader):
    """A batch reader that skips the queues and offsets which a filter excludes.

    A class of its own: Spark refuses any reader that has `pushFilters` while
    spark.sql.python.filterPushdown.enabled is false, its default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on topic, broker, queue_id and offset; return the others to Spark."""
        # Spark does not check a filter again which is not returned, so `_apply` must be exact.
        return [one for one in filters if not self._apply(one)]

    def _apply(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else None
        if name not in (*_QUEUE_FIELDS, "offset"):
            return False
        if isinstance(one, IsNotNull):
            return True  # these columns are never null
        compare = _COMPARISONS.get(type(one))
        wanted = one.value if hasattr(one, "value") else None
        if compare is None or wanted is None:
            return False
        if name in _QUEUE_FIELDS:
            field_of = _QUEUE_FIELDS[name]
            self.ranges = {
                queue: span
                for queue, span in self.ranges.items()
                if compare(field_of(queue), wanted)
            }
            return True
        span = _offset_range(one)
        if span is None:
            return False
        # Ranges only shrink, so the order in which Spark pushes filters does not matter.
        self.ranges = {
            queue: part
            for queue, (start, end) in self.ranges.items()
            if (part := (max(start, span[0]), min(end, span[1])))[0] < part[1]
        }
        return True


def _offset_range(one: Filter) -> tuple[int, int] | None:
    """Return the offsets that a filter selects, end exclusive; None if not one range."""
    everything, value = 1 << 62, getattr(one, "value", None)
    if not isinstance(value, int):
        return None
    return {
        EqualTo: (value, value + 1),
        GreaterThan: (value + 1, everything),
        GreaterThanOrEqual: (value, everything),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }.get(type(one))
