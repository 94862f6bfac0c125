"""Message routing: the log that a message is appended to, and the append itself.

A message goes to its queue, or first to the log where delayed messages, timed messages or
half messages wait. Sends, retries, and messages that have waited all pass through here. Whether a
message is for a retry or a dead-letter topic is decided before, in
`ordermq/broker/processors/send.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ordermq import core
from ordermq.broker.connection import RequestRefused
from ordermq.broker.consumer_offsets import ConsumerOffsets
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append, Done, QueueLog, Statement, Store, Write
from ordermq.broker.topics import Topic, TopicTable, is_internal_name
from ordermq.clock import Clock, SteadyWall
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, StoreError
from ordermq.events import EventType, GuardedRecorder
from ordermq.model import properties as props
from ordermq.model.delay_levels import DELAY_LEVELS_MS
from ordermq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

log = logging.getLogger("ordermq.broker")


class RoutedMessage(NamedTuple):
    """The log to append a message to, and the fields of its record that depend on it."""

    log: QueueLog
    properties: bytes
    due_ms: int | None  # of a message that waits: stored in its tag column
    stored_ms: int
    is_delay: bool = False  # due after a span of time, not at a time of the wall clock


class DeliveryParts(Value):
    """Parts by which stored messages go on to other queues, each in one write, at their time.

    Args:
        offsets: cursors, too, of what was delivered.
    """

    store: Store
    routing: MessageRouting
    offsets: ConsumerOffsets
    clock: Clock
    steady: SteadyWall


class MessageRouting:
    """Chooses where messages are stored, and appends them; on the loop thread."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        config: BrokerConfig,
        clock: Clock,
        steady: SteadyWall,
        history: GuardedRecorder,
        statistics: BrokerStatistics,
    ) -> None:
        self._store = store
        self._topics = topics
        self._config = config
        self._clock = clock
        self._steady = steady
        self._history = history
        self._statistics = statistics
        self.half_log = store.log(HALF_TOPIC, 0)
        self.timer_log = store.log(TIMER_TOPIC, 0)

    def route(self, topic: str, queue_id: int, properties: str) -> RoutedMessage:
        """Return where a message for a queue is stored now, honouring its delay or time.

        Raises: RequestRefused: its time is too far ahead or malformed, or its properties are
            too long.
        """
        # Two substring searches spare almost every send the parsing of its properties. A body
        # or value that contains the words only costs that parsing.
        if "DELAY" in properties or "TIMER_DELIVER" in properties:  # also finds TIMER_DELAY_*
            parsed = props.decode(properties)
            level = delay_level(parsed.get(props.DELAY))
            if level:
                # As in Java: a level wins over a time.
                for name in props.TIMERS:
                    parsed.pop(name, None)
                return self._route_delayed(topic, queue_id, parsed, level)
            timer = next((each for each in props.TIMERS if each in parsed), None)
            # Set when it was stored as timed: a retry of a timed message keeps the property.
            if timer is not None and props.TIMER_OUT_MS not in parsed:
                is_delay = timer != props.TIMER_DELIVER_MS
                due_ms = self._due_ms(topic, parsed, timer, is_delay=is_delay)
                if due_ms is not None:
                    return self._route_timed(topic, queue_id, parsed, due_ms, is_delay=is_delay)
        raw = _encoded(properties)
        log = self._store.log(topic, queue_id)
        return RoutedMessage(log, raw, None, self.stored_now(log))

    def route_half(self, topic: str, queue_id: int, properties: dict[str, str]) -> RoutedMessage:
        """Return where a half message waits; its properties name its real queue.

        Raises: RequestRefused: it is delayed, or its properties are too long.
        """
        # Java's producer removes the delay silently; a refusal tells the caller.
        for name in props.DELAYS:
            if name in properties:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"half of a transaction cannot be delayed ({name}): send it when it is due",
                )
        waiting = _with_real_queue(topic, queue_id, properties)
        if props.UNIQ_KEY in properties:
            waiting[props.TRANSACTION_ID] = properties[props.UNIQ_KEY]
        log = self.half_log
        return RoutedMessage(log, _encoded(props.encode(waiting)), None, self.stored_now(log))

    def restored(
        self,
        message: StoredMessage,
        topic: str,
        queue_id: int,
        *,
        properties: bytes,
        sys_flag: int,
    ) -> Append | None:
        """Return the append of a waiting message to its real queue; None if its topic is gone.

        A queue that has left the topic meanwhile has no readers: its messages go to one that stays.
        """
        found = self._topic_now(topic, queue_id)
        if found is None:
            log.warning(
                "not storing a message that has waited, its topic was deleted: topic=%s queue=%d",
                topic, queue_id,
            )  # fmt: skip
            return None
        if queue_id >= found.read_queues:
            queue_id %= min(found.read_queues, found.write_queues)
        target = self._store.log(topic, queue_id)
        # The hosts and the born time of the first send stay: the message keeps its origin.
        writer = core.RecordWriter(topic, queue_id, message.born_host, message.store_host)
        record = writer.write(
            message.body,
            properties,
            flag=message.flag,
            sys_flag=sys_flag,
            born_ms=message.born_ms,
            stored_ms=self.stored_now(target),
            reconsume_times=message.reconsume_times,
        )
        return Append(target, record)

    def append(
        self, appends: Sequence[Append], done: Done, statements: Sequence[Statement] = ()
    ) -> None:
        """Store messages, if the changes of their topics that are under way are stored, too."""
        needs: list[Write] = []
        if self._topics.has_changes:
            for topic in {append.log.topic for append in appends}:
                needs += self._topics.builds_on(topic)

        def finish(error: StoreError | None) -> None:
            if error is None:
                for append in appends:
                    self._statistics.messages_stored += len(append.records)
                    # Checked here, not inside: the arguments of an event are costly to build.
                    if self._history.enabled:
                        self._record_store(append)
            done(error)

        self._store.submit(Write(finish, appends, statements, needs=needs))

    def stored_now(self, log: QueueLog) -> int:
        """Return the store time of a new record: the wall clock, but never decreasing per queue."""
        # Searches by time are binary searches and rely on that order; a clock set back would
        # break it.
        now_ms = self._clock.wall_ms()
        if now_ms < log.last_stored_ms:
            return log.last_stored_ms
        log.last_stored_ms = now_ms
        return now_ms

    def _route_delayed(
        self, topic: str, queue_id: int, properties: dict[str, str], level: int
    ) -> RoutedMessage:
        raw = _encoded(props.encode(_with_real_queue(topic, queue_id, properties)))
        # As in Java: the schedule topic has one queue per level, so each is ordered by due time.
        log = self._store.log(SCHEDULE_TOPIC, level - 1)
        # Not from the store time: that never decreases, and after a moment in which the clock was
        # ahead, all later messages would wait for as long.
        due_ms = self._steady.ms() + DELAY_LEVELS_MS[level - 1]
        return RoutedMessage(log, raw, due_ms, self.stored_now(log), is_delay=True)

    def _route_timed(
        self,
        topic: str,
        queue_id: int,
        properties: dict[str, str],
        due_ms: int,
        *,
        is_delay: bool,
    ) -> RoutedMessage:
        properties[props.TIMER_OUT_MS] = str(due_ms)
        raw = _encoded(props.encode(_with_real_queue(topic, queue_id, properties)))
        log = self.timer_log
        return RoutedMessage(log, raw, due_ms, self.stored_now(log), is_delay)

    def _due_ms(
        self, topic: str, properties: dict[str, str], name: str, *, is_delay: bool
    ) -> int | None:
        """Return the due time of a timed message; None if it is due now.

        Args:
            name: of the property with its time.
        Raises: RequestRefused: its time is not a number, or too far ahead.
        """
        now_ms = self._steady.ms() if is_delay else self._clock.wall_ms()
        max_delay_ms = self._config.timer_max_delay_ms
        try:
            delay_ms = timer_delay_ms(properties)
            due_ms = int(properties[name]) if delay_ms is None else now_ms + delay_ms
        except ValueError:
            due_ms = now_ms + max_delay_ms + 1  # refused below, with the property in the text
        if due_ms > now_ms + max_delay_ms:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message for topic {topic!r} with {name}={properties[name]!r}: expected a time at "
                f"most {max_delay_ms} ms ahead",
            )
        return due_ms if due_ms > now_ms else None

    def _topic_now(self, topic: str, queue_id: int) -> Topic | None:
        """Return a topic; if there is none, create it as a send would, or return None."""
        # A retry or dead-letter topic may be created by the delivery of its first message.
        topics = self._topics
        found = topics.sendable(topic)
        if found is not None:
            return found
        if is_internal_name(topic):
            found = topics.internal(topic)
        else:
            found = topics.of_first_send(topic, queue_id + 1)
        if found is None:
            return None
        try:
            topics.keep(found)
        except ConfigError:
            return None
        return found

    def _record_store(self, append: Append) -> None:
        try:
            found = [
                props.decode_bytes(StoredMessage.read(bytes(record)).properties)
                for _, _, record in append.rows()
            ]
        except Exception as error:  # noqa: BLE001 - the sender waits for its answer
            self._history.failed(error)
            return
        first = append.first_offset
        self._history.record(
            EventType.STORE,
            topic=append.log.topic,
            broker=self._config.broker_name,
            queue=append.log.queue_id,
            offs=list(range(first, first + len(found))),
            keys=[properties.get(props.SHARDING_KEY) for properties in found],
            tags=[properties.get(props.TAGS) for properties in found],
        )


def delay_level(text: str | None) -> int:
    """Return the level of a DELAY property: 0 for none or malformed, at most the last level."""
    if not text:
        return 0
    try:
        return min(max(int(text), 0), len(DELAY_LEVELS_MS))
    except ValueError:
        return 0


def timer_delay_ms(properties: Mapping[str, str]) -> int | None:
    """Return the delay of a timed message; None if it is due at a time, or has none.

    Raises: ValueError: it is malformed.
    """
    timer = next((each for each in props.TIMERS if each in properties), None)
    if timer is None or timer == props.TIMER_DELIVER_MS:
        return None
    return int(properties[timer]) * (1_000 if timer == props.TIMER_DELAY_S else 1)


def _with_real_queue(topic: str, queue_id: int, properties: dict[str, str]) -> dict[str, str]:
    # RocketMQ's own names, so that its tools show the real topic of a waiting message.
    return properties | {props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}


def _encoded(properties: str) -> bytes:
    raw = properties.encode()
    if len(raw) > props.MAX_BYTES:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message properties take {len(raw)} bytes: expected at most {props.MAX_BYTES}",
        )
    return raw
