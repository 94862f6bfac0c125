"""OpenTelemetryMetrics: the instruments of producers and consumers, for any OpenTelemetry SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary, ref

import ordermq
from ordermq.consumer.call_times import CallTimes
from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    BOUNDARIES,
    OPERATIONS,
    PROCESS,
    READ,
    TIMED,
    Instrument,
    Kind,
)
from ordermq.metrics.readings import Durations, Readings, Values, WatchedClients, operations_of
from ordermq.producer.producer import Producer

with needed_from("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        MeterProvider,
        Observation,
    )

_KEPT_S = 1.0
_RECORDED_AT_ONCE = 128  # sends, about 1 ms; threads that want the interpreter lock wait for 5 ms
_REST_S = 0.001
_NOTHING: Durations = ((0,) * (len(BOUNDARIES) + 1), 0)


class OpenTelemetryMetrics(WatchedClients):
    """The metrics of producers and consumers of this process (docs/metrics.md).

    An SDK takes single values only. So each listener call is recorded as it happens, while sends,
    pulls and commits, which are counted natively, are recorded at each collection: with the mean of
    their bucket. Sends are so many that a thread records those of each second, too.

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
        # What was recorded of each consumer's pulls and commits, and of all sends.
        self._recorded: WeakKeyDictionary[object, dict[Values, Durations]] = WeakKeyDictionary()
        self._recorded_sends: dict[Values, Durations] = {}
        self._recording_sends = threading.Lock()
        self._send_recorder: threading.Thread | None = None
        self._histograms: dict[Instrument, Histogram] = {
            instrument: meter.create_histogram(
                instrument.name,
                instrument.unit,
                instrument.meaning,
                explicit_bucket_boundaries_advisory=BOUNDARIES,
            )
            for instrument in TIMED
        }
        makers = {
            Kind.COUNTER: meter.create_observable_counter,
            Kind.GAUGE: meter.create_observable_gauge,
        }
        for instrument in READ:
            makers[instrument.kind](
                instrument.name, [self._reader(instrument)], instrument.unit, instrument.meaning
            )

    def watch_producer(self, producer: Producer) -> None:
        super().watch_producer(producer)
        with self._lock:
            if self._send_recorder is None or not self._send_recorder.is_alive():
                self._send_recorder = threading.Thread(
                    target=_record_sends_each_second,
                    args=(ref(self),),
                    name="ordermq-send-metrics",
                    daemon=True,
                )
                self._send_recorder.start()

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
            self._record_new(recorded, operations_of(consumer))
        self._record_sends()

    def _record_sends(self, rest: Callable[[], object] | None = None) -> None:
        with self._recording_sends:
            self._record_new(self._recorded_sends, self.sends(), rest)

    def _record_new(
        self,
        recorded: dict[Values, Durations],
        durations: Iterable[tuple[Values, Durations]],
        rest: Callable[[], object] | None = None,
    ) -> None:
        """Record what is not in `recorded`; `rest` is called now and then."""
        record = self._histograms[OPERATIONS].record
        for labels, now in durations:
            before = recorded.get(labels, _NOTHING)
            recorded[labels] = now
            attributes = _attributes(OPERATIONS, labels)
            for value, count in _values_between(before, now):
                for number in range(count):
                    record(value, attributes)
                    if rest is not None and not number % _RECORDED_AT_ONCE:
                        rest()

    def _time_calls(self, group: str, times: CallTimes) -> None:
        attributes: dict[tuple[str, str], Mapping[str, str]] = {}
        histogram = self._histograms[PROCESS]

        def record(topic: str, error: str, spent_ns: int) -> None:
            found = attributes.get((topic, error))
            if found is None:
                found = attributes[topic, error] = _attributes(PROCESS, (topic, group, error))
            histogram.record(spent_ns / 1e9, found)

        times.record_with(record)


def _record_sends_each_second(found: ref[OpenTelemetryMetrics]) -> None:
    """Record until no producer is left, which its garbage collection decides."""
    pause = threading.Event()
    while True:
        pause.wait(_KEPT_S)
        metrics = found()
        if metrics is None:
            return
        # Threads that send and receive wait for the interpreter lock: it is released in between.
        metrics._record_sends(lambda: pause.wait(_REST_S))
        with metrics._lock:
            if not metrics._producers:
                metrics._send_recorder = None
                return
        del metrics  # or it would live until the next second


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
