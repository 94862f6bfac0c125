"""OpenTelemetryMetrics: the instruments of producers and consumers, for any OpenTelemetry SDK."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from weakref import WeakKeyDictionary, finalize, ref

import ordermq
from ordermq.consumer.call_times import CallTimes
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.core.contract import DurationCounts
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
from ordermq.metrics.repeated_records import record_repeatedly, takes_many
from ordermq.producer.producer import Producer
from ordermq.threads import Lock, start_thread

with needed_from("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        MeterProvider,
        Observation,
    )

_KEPT_S = 1.0
_REST_S = 0.001
_NOTHING: Durations = ((0,) * (len(BOUNDARIES) + 1), 0)


class OpenTelemetryMetrics(WatchedClients):
    """The metrics of producers and consumers of this process (docs/metrics.md).

    Durations are counted natively, and recorded at each collection with the mean of their bucket.
    An API that takes single values makes that slow where an SDK is not known
    (`repeated_records.py`): so a thread records the sends of each second, too, and a listener call
    may be recorded as it happens (`_CallRecorder`).

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
        self._reading = Lock()
        self._readings: Readings = {}
        self._read_s = -_KEPT_S
        # What was recorded of each consumer's pulls and commits, and of all sends.
        self._recorded: WeakKeyDictionary[object, dict[Values, Durations]] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[object, _CallRecorder] = WeakKeyDictionary()
        self._calls_left: deque[_CallRecorder] = deque()  # of consumers that are gone
        self._recorded_sends: dict[Values, Durations] = {}
        self._recording_sends = Lock()
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
                start_thread(self._send_recorder)

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
                self._record_durations()
            return self._readings

    def _record_durations(self) -> None:
        for consumer in self.watched_consumers():
            recorded = self._recorded.setdefault(consumer, {})
            self._record_operations(recorded, operations_of(consumer))
        with self._lock:
            calls = [*self._calls.values()]
        while self._calls_left:
            calls.append(self._calls_left.popleft())
        for each in calls:
            each.record_new()
        self._record_sends()

    def _record_sends(self, rest: Callable[[], object] | None = None) -> None:
        with self._recording_sends:
            self._record_operations(self._recorded_sends, self.sends(), rest)

    def _record_operations(
        self,
        recorded: dict[Values, Durations],
        durations: Iterable[tuple[Values, Durations]],
        rest: Callable[[], object] | None = None,
    ) -> None:
        _record_new(OPERATIONS, self._histograms[OPERATIONS], recorded, durations, rest)

    def _time_calls(self, consumer: PushConsumer, times: CallTimes) -> None:
        recorder = _CallRecorder(self._histograms[PROCESS], consumer.group, times.counts)
        times.record_with(recorder)
        with self._lock:
            self._calls[consumer] = recorder
        # Not recorded there: a collection of garbage may come while the SDK holds its locks.
        finalize(consumer, self._calls_left.append, recorder).atexit = False


class _CallRecorder:
    """Records the listener calls of one consumer.

    They are counted natively. Within hooks, which make spans, each is recorded as it happens: the
    SDK offers exemplars the span that is current. So is each for an SDK that is slow with many.
    """

    def __init__(
        self, histogram: Histogram, group: str, counts: Mapping[tuple[str, str], DurationCounts]
    ) -> None:
        self._histogram = histogram
        self._group = group
        self._counts = counts
        self._recorded: dict[Values, Durations] = {}
        self._is_told = False

    def wants_each(self, *, has_hooks: bool) -> bool:
        self._is_told = has_hooks or not takes_many(self._histogram)
        return self._is_told

    def __call__(self, topic: str, error: str, spent_ns: int) -> None:
        self._histogram.record(spent_ns / 1e9, _attributes(PROCESS, (topic, self._group, error)))

    def record_new(self) -> None:
        """Record what was counted since."""
        if not self._is_told:
            counted = {
                (topic, self._group, error): counts.read()
                for (topic, error), counts in {**self._counts}.items()
            }
            _record_new(PROCESS, self._histogram, self._recorded, counted.items())


def _record_new(
    instrument: Instrument,
    histogram: Histogram,
    recorded: dict[Values, Durations],
    durations: Iterable[tuple[Values, Durations]],
    rest: Callable[[], object] | None = None,
) -> None:
    """Record what is not in `recorded`; `rest` is called now and then, if it takes long."""
    for labels, now in durations:
        before = recorded.get(labels, _NOTHING)
        recorded[labels] = now
        attributes = _attributes(instrument, labels)
        for value, count in _values_between(before, now):
            record_repeatedly(histogram, value, count, attributes, rest)


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
