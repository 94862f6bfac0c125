"""Readings of producers and consumers: their states and durations, as of a scrape."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from ordermq.clock import SystemClock
from ordermq.consumer.call_times import CallTimes
from ordermq.consumer.hooks import ConsumeCall
from ordermq.consumer.lite_pull_consumer import LitePullConsumer
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.consumer.queue.statistics import COUNTERS, Lag
from ordermq.errors import ConfigError, OrderMQError
from ordermq.forking import own
from ordermq.metrics import instruments as of
from ordermq.metrics.instruments import Instrument
from ordermq.model.log_fields import WarnOnce
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.producer import Producer
from ordermq.producer.send_times import SendTimes
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.admin.groups import GroupState

_log = logging.getLogger("ordermq.metrics")
Values = tuple[str, ...]  # of an instrument's labels, in their order
Readings = dict[Instrument, dict[Values, float]]
_Reading = tuple[Instrument, Values, float]
_Consumer = PushConsumer | LitePullConsumer
# The number of durations in each bucket, and their sum in ns.
Durations = tuple[tuple[int, ...], int]


class ReportsLag(Protocol):
    """Reader of queues that is no client of this process, as Spark's streaming queries."""

    def lag(self) -> Mapping[str, Mapping[MessageQueue, Lag]]:
        """Return the lag of each queue, by group."""


class ReportsGroups(Protocol):
    """Reader of groups from outside: an `Admin`."""

    def group(
        self, name: str, topics: Sequence[str] = (), *, ask_members: bool = True
    ) -> GroupState:
        """Return the state of a group."""


class WatchedClients:
    """The producers and consumers of a process that are read; base of what exports them."""

    def __init__(self) -> None:
        self._lock = Lock()  # of the sets: a scrape may come at any moment
        # Weakly: a program that makes clients again and again keeps none of the closed ones.
        self._consumers: WeakSet[_Consumer] = WeakSet()
        self._producers: WeakSet[Producer] = WeakSet()
        self._queries: WeakSet[ReportsLag] = WeakSet()
        # Not weakly: who makes an Admin for this needs no name for it.
        self._groups: list[tuple[ReportsGroups, str, Sequence[str]]] = []
        self._problems = WarnOnce(_log)
        self._send_times = SendTimes()  # of all producers, so that they stay counted

    def watch_consumer(self, consumer: PushConsumer) -> None:
        """Read `consumer` at each scrape, and time its listener calls; before it starts.

        Raises: ConfigError: it is no PushConsumer. StateError: it was started.
        """
        require_client("watch_consumer", consumer, PushConsumer, remark=_WATCHED_BY)
        self._time_calls(consumer, consumer.time_calls())
        self._watch(consumer)

    def watch_poller(self, consumer: LitePullConsumer) -> None:
        """Read `consumer` at each scrape; before or after its start.

        Raises: ConfigError: it is no LitePullConsumer.
        """
        # A PushConsumer can be read, too: at any time, without the times of its listener.
        require_client("watch_poller", consumer, LitePullConsumer, PushConsumer, remark=_WATCHED_BY)
        self._watch(consumer)

    def watch_producer(self, producer: Producer) -> None:
        """Read `producer` at each scrape, and time its sends; before it starts.

        Raises: ConfigError: it is no Producer. StateError: it was started.
        """
        require_client("watch_producer", producer, Producer, remark=_WATCHED_BY)
        producer.time_sends(self._send_times)
        with self._lock:
            self._producers.add(producer)

    def watch_queries(self, listener: ReportsLag) -> None:
        """Read the lag of Spark's streaming queries at each scrape: of a `LagListener`.

        Raises: ConfigError: it is none.
        """
        is_client = isinstance(listener, _Consumer) or hasattr(listener, "blocking")
        if is_client or not callable(getattr(listener, "lag", None)):
            kind = type(listener).__name__
            raise ConfigError(
                f"watch_queries({kind}): expected a LagListener of ordermq.spark; {_WATCHED_BY}"
            )
        with self._lock:
            self._queries.add(listener)

    def watch_group(self, admin: ReportsGroups, group: str, topics: Sequence[str] = ()) -> None:
        """Read how far a group is behind at each scrape, at its brokers, also without members.

        While they do not answer, the group has no value, and a warning says why.

        Args:
            admin: an `Admin`, which stays open.
            topics: default all that its members subscribe to or that it has offsets for.
        Raises: ConfigError: it is no Admin.
        """
        if not callable(getattr(admin, "group", None)):
            kind = type(admin).__name__
            raise ConfigError(f"watch_group({kind}): expected an Admin; {_WATCHED_BY}")
        with self._lock:
            self._groups.append((admin, group, topics))

    def _time_calls(self, consumer: PushConsumer, times: CallTimes) -> None:
        """Prepare for the times of a consumer; by default they are read with the others."""

    def _watch(self, consumer: _Consumer) -> None:
        with self._lock:
            self._consumers.add(consumer)

    def watched_consumers(self) -> list[_Consumer]:
        """Return the consumers that still exist, without those of a process that has forked."""
        with self._lock:
            return own(self._consumers)

    def sends(self) -> Iterator[tuple[Values, Durations]]:
        """Return the durations of the producers' sends, by the labels of `OPERATIONS`."""
        for (topic, error), counts in self._send_times.durations().items():
            yield ("send", topic, "", error), counts.read()

    def read(self) -> Readings:
        """Return the state of all of them at this moment; takes seconds if a broker is away."""
        consumers = self.watched_consumers()
        with self._lock:
            producers, queries = own(self._producers), list(self._queries)
            groups = [*self._groups]
        found: defaultdict[Instrument, defaultdict[Values, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for consumer in consumers:
            for instrument, labels, value in _of_consumer(consumer):
                found[instrument][labels].append(value)
        for producer in producers:
            for instrument, labels, value in _of_producer(producer):
                found[instrument][labels].append(value)
        for (_, topic, _, error), (buckets, _) in self.sends():
            found[of.SENT][topic, error].append(sum(buckets))
        for listener in queries:
            for group, lags in listener.lag().items():
                for instrument, labels, value in _of_lags(lags, group):
                    found[instrument][labels].append(value)
        for admin, group, topics in groups:
            problem = ""
            try:
                state = admin.group(group, topics, ask_members=False)
            except OrderMQError as error:
                problem = str(error)
            else:
                for instrument, labels, value in _of_group(state, SystemClock().wall_ms()):
                    found[instrument][labels].append(value)
            self._problems.note(f"metrics of group {group}", problem, {"group": group})
        return {
            instrument: {labels: instrument.join(values) for labels, values in by_labels.items()}
            for instrument, by_labels in found.items()
        }


_WATCHED_BY = (
    "a PushConsumer is for watch_consumer, a LitePullConsumer for watch_poller, a Producer for "
    "watch_producer. Of an AsyncConsumer or AsyncProducer give the client inside: "
    "watch_consumer(consumer.blocking) once a listener is registered, "
    "watch_poller(consumer.blocking) of one that is iterated, watch_producer(producer.blocking)"
)


def require_client(call: str, client: object, *kinds: type, remark: str) -> None:
    """Raise ConfigError unless a client is of one of these kinds, the first of which is told.

    At the call: a scrape that fails has nothing of the other clients either.
    """
    if not isinstance(client, kinds):
        raise ConfigError(
            f"{call}({type(client).__name__}): expected a {kinds[0].__name__}; {remark}"
        )


def _of_consumer(consumer: _Consumer) -> Iterator[_Reading]:
    group, statistics = consumer.group, consumer.statistics
    for queue, counts in statistics.of_queues().items():
        labels = _labels(queue, group)
        yield of.CONSUMED, labels, counts.messages_done
        yield of.FAILED, labels, counts.messages_failed
        yield of.DEAD_LETTERS, labels, counts.dead_letters
        yield of.HAND_OFFS, labels, counts.hand_offs
        yield of.LEASES_LOST, labels, counts.leases_lost
    yield from _of_lags(consumer.lag(), group)
    held = consumer.held_queues()
    for state in held:
        labels = _labels(state.queue, group)
        yield of.BUFFERED_MESSAGES, labels, state.buffered_messages
        yield of.BUFFERED_BYTES, labels, state.buffered_bytes
        yield of.PARKED_KEYS, labels, state.parked_keys
        if state.lease_left_ms is not None:
            yield of.LEASE_LEFT, labels, state.lease_left_ms / 1_000
    for topic, count in Counter(state.queue.topic for state in held).items():
        yield of.QUEUES, (topic, group), count
    if isinstance(consumer, PushConsumer) and consumer.call_times is not None:
        for topic, count in consumer.call_times.redelivered.copy().items():
            yield of.REDELIVERED, (topic, group), count
    yield of.BLOCKED_TIME, (group,), statistics["oldest_blocked_ms"] / 1_000
    yield of.CONSUMER_READY, (group,), consumer.health().is_ready
    for name in sorted(COUNTERS):
        yield of.EVENTS, (name, group), statistics[name]


def _of_lags(lags: Mapping[MessageQueue, Lag], group: str) -> Iterator[_Reading]:
    for queue, lag in lags.items():
        yield of.LAG, _labels(queue, group), lag.messages
        if lag.seconds is not None:
            yield of.LAG_TIME, _labels(queue, group), lag.seconds


def _of_group(state: GroupState, now_ms: int) -> Iterator[_Reading]:
    yield of.GROUP_MEMBERS, (state.group,), len(state.members)
    for queue, done in state.progress.items():
        labels = _labels(queue, state.group)
        yield of.GROUP_LAG, labels, done.lag
        # Without lag the age only says how old the last message is.
        if done.lag and done.last_done_ms:
            yield of.GROUP_LAG_TIME, labels, max(now_ms - done.last_done_ms, 0) / 1_000


def _of_producer(producer: Producer) -> Iterator[_Reading]:
    group = producer.group
    yield of.PRODUCER_READY, (group,), producer.health().is_ready
    for name in ("oneway_failures", "hook_errors", "traces_dropped"):
        yield of.PRODUCER_EVENTS, (name, group), getattr(producer, name)


def _labels(queue: MessageQueue, group: str) -> Values:
    return queue.topic, partition_of(queue), group


def partition_of(queue: MessageQueue) -> str:
    """Return the name of a queue within its topic: `broker-a/3`."""
    return f"{queue.broker_name}/{queue.queue_id}"


def operations_of(consumer: _Consumer) -> Iterator[tuple[Values, Durations]]:
    """Return the durations of a consumer's pulls and commits, by the labels of `OPERATIONS`."""
    for (operation, topic), counts in consumer.statistics.durations().items():
        yield (operation, topic, consumer.group, ""), counts.read()


def calls_of(consumer: _Consumer) -> Iterator[tuple[Values, Durations]]:
    """Return the durations of a consumer's listener calls, by the labels of `PROCESS`."""
    if isinstance(consumer, PushConsumer) and consumer.call_times is not None:
        for (topic, error), counts in consumer.call_times.durations().items():
            yield (topic, consumer.group, error), counts.read()


def error_of_call(call: ConsumeCall) -> str:
    """Return the `error.type` of an ended listener call; empty if all messages are done."""
    if call.exception is not None:
        return type(call.exception).__qualname__
    return "" if call.is_success or call.outcome is None else call.outcome.value
