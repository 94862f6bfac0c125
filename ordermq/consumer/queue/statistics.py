"""ConsumerStatistics and EventRecorder: what a consumer counts, and what it records.

Each part of a member is given both by its `MemberContext`. Counters and throughput answer metrics
and admin tools (docs/internals/semantics.md#admin-requests); recorded events are for
`ordermq audit` (docs/internals/semantics.md#invariants).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ordermq import core
from ordermq.clock import Clock, SystemClock
from ordermq.config.checks import hint
from ordermq.consumer.queue.assigned_queue import AssignedQueue, Blocked
from ordermq.consumer.queue.copy_refusals import CopyRefusals
from ordermq.events import EventType, GuardedRecorder, Member, NoHistory, Recorder, members_of
from ordermq.model.log_fields import MemberFields
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.threads import Lock
from ordermq.value import Record, Value

if TYPE_CHECKING:
    from ordermq.client.session import ClientSession

_log = logging.getLogger("ordermq.consumer")

# Ten-second steps for an hour: 360 small objects per topic, where a list of every call would
# grow with the load.
_STEP_MS = 10_000
_MINUTE = 6  # steps
GATHER_MS = 1_000  # how long what native code counts may wait for it to be added here
_HOUR = 360


class Step:
    """Counts of one topic within ten seconds."""

    __slots__ = ("call_ms", "calls", "done", "failed", "number", "pull_ms", "pulled", "pulls")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulled = self.pulls = self.pull_ms = 0
        self.done = self.failed = 0
        self.calls = self.call_ms = 0


class TopicRates(Value):
    """Throughput of a topic: Java's ConsumeStatus, averaged over the last minute.

    Args:
        pull_rt_ms: average time of a pull that returned messages, including its long poll.
        consume_rt_ms: average time of a listener call.
        consume_failed_messages: number of failed messages in the last hour.
    """

    pull_tps: float
    pull_rt_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_rt_ms: float
    consume_failed_messages: int


class QueueCounts(Record):
    """Totals of one queue since the consumer was made, also while other members hold it.

    Args:
        messages_done, messages_failed: as the listeners' results said.
        dead_letters, diverted, parked, hand_offs, leases_lost, commits: as of
            `ConsumerStatistics`.
    """

    messages_done: int = 0
    messages_failed: int = 0
    dead_letters: int = 0
    diverted: int = 0
    parked: int = 0
    hand_offs: int = 0
    leases_lost: int = 0
    commits: int = 0


class Lag(NamedTuple):
    """The messages of one held queue that are not done.

    Args:
        messages: between what is done and the end of the queue at its broker.
        seconds: age of the oldest of them; 0.0 without any, None until it was pulled.
        is_current: False if the broker did not answer: the end is that of its last answer.
    """

    messages: int
    seconds: float | None
    is_current: bool = True


class HeldQueue(Value, kw_only=True):
    """One queue at this moment, while this member holds it.

    Args:
        buffered_messages, buffered_bytes: pulled and not done, bodies as they were stored.
        lease_left_ms: until its lease ends, 0 without a valid one; None if it needs no lock.
        is_paused: no batch begins.
        parked_keys: how many keys `ParkKey` holds back, here or in a parking topic.
    """

    queue: MessageQueue
    buffered_messages: int
    buffered_bytes: int
    lease_left_ms: int | None
    is_paused: bool
    parked_keys: int


class TopicCounts:
    """The counts behind `TopicRates`; not thread-safe.

    Args:
        now_ms: on the monotonic clock, when counting began.
    """

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._steps: deque[Step] = deque(maxlen=_HOUR)

    def step(self, now_ms: int) -> Step:
        """Return the current step, to count into."""
        number = now_ms // _STEP_MS
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(Step(number))
        return self._steps[-1]

    def rates(self, now_ms: int) -> TopicRates:
        """Return the throughput at this moment. O(hour / step)."""
        total = self._sum(now_ms, _MINUTE)
        # Divide by the time that was counted: the minute's oldest step is cut at its start, and
        # counting may have begun within the minute. At least one second, or the first message
        # of a topic would show as thousands per second.
        since_ms = max((now_ms // _STEP_MS - _MINUTE + 1) * _STEP_MS, self._began_ms)
        seconds = max(now_ms - since_ms, 1_000) / 1_000
        return TopicRates(
            pull_tps=total.pulled / seconds,
            pull_rt_ms=total.pull_ms / max(total.pulls, 1),
            consume_ok_tps=total.done / seconds,
            consume_failed_tps=total.failed / seconds,
            consume_rt_ms=total.call_ms / max(total.calls, 1),
            consume_failed_messages=self._sum(now_ms, _HOUR).failed,
        )

    def _sum(self, now_ms: int, steps: int) -> Step:
        total = Step(0)
        for step in self._steps:
            # Steps without traffic are missing, so the number decides the age, not the position.
            if step.number > now_ms // _STEP_MS - steps:
                for part in _COUNTS:
                    setattr(total, part, getattr(total, part) + getattr(step, part))
        return total


_COUNTS = tuple(name for name in Step.__slots__ if name != "number")


class ConsumerStatistics:
    """Counters of one consumer and throughput of each of its topics; any thread.

    `statistics["pulls"]` is 0 before the first one; a name that is no counter raises KeyError.

    Names: messages_done, batches, batches_failed, listener_errors, pulls, pulls_from_slaves,
    pull_errors, bad_answers, commits, commit_errors, fenced_commits, lock_errors, leases_lost,
    copies_dropped, hand_offs, dead_letters, diverted (these, and what went to a parking topic),
    dead_letter_stops (by `pause_after_dead_letters`), parked, skipped, new_lives (queues that
    began anew, as of a topic that was created again), filtered, slow_listeners, hook_errors,
    callback_errors, unpark_errors, history_errors, internal_errors; of concurrent groups also
    sent_back, send_back_errors, timed_out, dropped; of lite pull consumers also polled, in
    messages. Not counters but the state at this moment: behind, in messages of all held queues;
    oldest_blocked_ms, how long the oldest of the `blocked` messages has been failing;
    unreadable_queues, held queues whose last answer was bad.

    Args:
        clock: for the throughput.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._topics: dict[str, TopicCounts] = {}
        self._queues: dict[MessageQueue, QueueCounts] = {}
        self._durations: dict[tuple[str, str], core.contract.DurationCounts] = {}
        self._assigned: Callable[[], Sequence[AssignedQueue]] = lambda: ()
        self._gatherers: tuple[Callable[[], object], ...] = ()

    def __repr__(self) -> str:
        counted = " ".join(f"{name}={count}" for name, count in self.as_dict().items() if count)
        return f"<ConsumerStatistics {counted or 'nothing counted'}>"

    def follow(self, assigned: Callable[[], Sequence[AssignedQueue]]) -> None:
        """Ask these queues for their state, from now on."""
        self._assigned = assigned

    def gather_with(self, gather: Callable[[], object]) -> None:
        """Call this at each `gather`: it adds what native code has counted meanwhile."""
        self._gatherers += (gather,)

    def gather(self) -> None:
        """Add what native code has counted; before each reading, and every `GATHER_MS`."""
        for gather in self._gatherers:
            gather()

    def behind(self) -> dict[MessageQueue, int]:
        """Return how many messages of each held queue are not done, as of its last pull."""
        return {assigned.queue: assigned.behind for assigned in self._assigned()}

    def blocked(self) -> list[Blocked]:
        """Return a message per queue that an orderly listener keeps failing for, oldest first."""
        found = [found for each in self._assigned() if (found := each.blocked()) is not None]
        return sorted(found, key=lambda each: each.since_ms)

    def durations(self) -> dict[tuple[str, str], core.contract.DurationCounts]:
        """Return the durations by operation and topic: "receive", pulls that returned messages,
        with their wait at the broker; and "commit".
        """
        self.gather()
        with self._lock:
            return self._durations.copy()

    def add(self, name: str, count: int = 1, *, queue: MessageQueue | None = None) -> None:
        """Count, and count for `queue`, too, if `QueueCounts` has the name."""
        with self._lock:
            self._counts[name] += count
            if queue is not None:
                counts = self._of_queue(queue)
                setattr(counts, name, getattr(counts, name) + count)

    def pulled(self, queue: MessageQueue, messages: int, asked_ms: int) -> None:
        """Count one pull with its messages; it was sent at `asked_ms` (monotonic)."""
        spent_ms = self._clock.now_ms() - asked_ms
        self._pulled(queue, 1, messages, spent_ms)
        self._times("receive", queue.topic).add(spent_ms * 1_000_000)

    def pulled_many(
        self,
        queue: MessageQueue,
        pulls: int,
        messages: int,
        spent_ms: int,
        buckets: Sequence[int],
    ) -> None:
        """Count pulls with their messages; together they took `spent_ms`.

        Args: buckets: the pulls by their times, as `DurationCounts` has them.
        """
        self._pulled(queue, pulls, messages, spent_ms)
        self._times("receive", queue.topic).add_many(buckets, spent_ms * 1_000_000)

    def _pulled(self, queue: MessageQueue, pulls: int, messages: int, spent_ms: int) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            self._counts["pulls"] += pulls
            step = self._step(queue.topic, now_ms)
            step.pulls += pulls
            step.pulled += messages
            step.pull_ms += spent_ms

    def consumed(
        self, queue: MessageQueue, done: int, failed: int, calls: int, spent_ms: int
    ) -> None:
        """Count finished listener calls with their done and failed messages."""
        # Per claim, not per message: a quick listener has a few hundred messages per lock.
        now_ms = self._clock.now_ms()
        with self._lock:
            self._counts["batches"] += calls
            self._counts["messages_done"] += done
            step = self._step(queue.topic, now_ms)
            step.done += done
            step.failed += failed
            step.calls += calls
            step.call_ms += spent_ms
            counts = self._of_queue(queue)
            counts.messages_done += done
            counts.messages_failed += failed

    def committed(self, queue: MessageQueue, asked_ms: int) -> None:
        """Count one commit that the broker acknowledged; it was sent at `asked_ms` (monotonic)."""
        self.add("commits", queue=queue)
        spent_ms = self._clock.now_ms() - asked_ms
        self._times("commit", queue.topic).add(spent_ms * 1_000_000)

    def _times(self, operation: str, topic: str) -> core.contract.DurationCounts:
        with self._lock:
            found = self._durations.get((operation, topic))
            if found is None:
                found = self._durations[operation, topic] = core.DurationCounts()
            return found

    def of_queues(self) -> dict[MessageQueue, QueueCounts]:
        """Return a copy of the totals of each queue that has some."""
        self.gather()
        with self._lock:
            return {queue: replace(counts) for queue, counts in self._queues.items()}

    def rates(self, topic: str) -> TopicRates:
        """Return a topic's throughput now; zeros for one that was never consumed."""
        self.gather()
        now_ms = self._clock.now_ms()
        with self._lock:
            return self._topics.get(topic, TopicCounts(now_ms)).rates(now_ms)

    def topics(self) -> list[str]:
        """Return the topics with throughput, sorted."""
        self.gather()
        with self._lock:
            return sorted(self._topics)

    def __getitem__(self, name: str) -> int:
        if (state := _STATES.get(name)) is not None:
            return state(self)
        # Without the lock: a single read, and a Counter answers 0 for a name never counted.
        if name not in COUNTERS:
            if not isinstance(name, str):  # `dict(statistics)` and `in` ask for numbers from 0 on
                raise TypeError("counters have names: statistics['pulls'], or all by as_dict()")
            raise KeyError(f"no counter {name!r}{hint(name, [*COUNTERS, *_STATES])}")
        self.gather()
        return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        """Return a copy of the counters, and the state at this moment, sorted by name."""
        self.gather()
        states = {name: state(self) for name, state in _STATES.items()}
        with self._lock:
            return dict(sorted((dict(self._counts) | states).items()))

    def _behind(self) -> int:
        return sum(self.behind().values())

    def _unreadable_queues(self) -> int:
        return sum(assigned.bad_answer_at >= 0 for assigned in self._assigned())

    def _oldest_blocked_ms(self) -> int:
        blocked = self.blocked()
        return self._clock.now_ms() - blocked[0].since_ms if blocked else 0

    def _of_queue(self, queue: MessageQueue) -> QueueCounts:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = QueueCounts()
        return found

    def _step(self, topic: str, now_ms: int) -> Step:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicCounts(now_ms)
        return found.step(now_ms)


# Every counter, also one that has not counted yet, so that a misspelt name is told from a zero.
COUNTERS = frozenset({
    "bad_answers", "batches", "batches_failed", "callback_errors", "commit_errors", "commits",
    "copies_dropped", "dead_letter_stops", "dead_letters", "diverted", "dropped", "fenced_commits",
    "filtered", "hand_offs", "history_errors", "hook_errors", "internal_errors", "leases_lost",
    "listener_errors", "lock_errors", "messages_done", "new_lives", "parked", "polled",
    "pull_errors", "pulls", "pulls_from_slaves", "send_back_errors", "sent_back", "skipped",
    "slow_listeners", "timed_out", "unpark_errors",
})  # fmt: skip
_STATES: dict[str, Callable[[ConsumerStatistics], int]] = {
    "behind": ConsumerStatistics._behind,
    "oldest_blocked_ms": ConsumerStatistics._oldest_blocked_ms,
    "unreadable_queues": ConsumerStatistics._unreadable_queues,
}


class EventRecorder:
    """Records the events of one member's queues; any thread.

    Args:
        recorder: a history file, or one that drops everything.
        on_error: called with each event that could not be recorded; see `GuardedRecorder`.
    """

    def __init__(
        self, recorder: Recorder, group: str, on_error: Callable[[], object] = lambda: None
    ) -> None:
        # Each event names its group, because an audit merges the files of many members.
        self._guard = guard = GuardedRecorder(recorder, on_error)
        # What a signal handler raises in a recorder counts as its own error, and is not told.
        self._recorder: Recorder = recorder if isinstance(recorder, NoHistory) else guard
        self.group = group
        # Read once: callers ask before they build an event's members, so that a consumer
        # without a history decodes no key and copies no offset.
        self.enabled = recorder.enabled
        # Where native code may add lines; None: each event is given to `record`.
        self.lines = recorder.lines

    def line_head(self, queue: MessageQueue, epoch: int) -> bytes:
        """Return the members that all lines of a queue and an epoch have, as JSON."""
        return members_of(self._about(queue, epoch))

    def record(
        self, event: EventType, queue: MessageQueue, epoch: int = 0, **members: Member
    ) -> None:
        """Append one event of `queue`; `ordermq.events` lists the members."""
        self._recorder.record(event, **self._about(queue, epoch), **members)

    def _about(self, queue: MessageQueue, epoch: int) -> dict[str, Member]:
        return {
            "group": self.group,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "epoch": epoch,
        }

    def record_messages(
        self,
        event: EventType,
        queue: MessageQueue,
        epoch: int,
        messages: Sequence[MessageView],
        **members: Member,
    ) -> None:
        """Append one event about `messages`, with their offsets and keys."""
        try:
            about = self._about(queue, epoch)
            about["offs"] = [message.queue_offset for message in messages]
            about["keys"] = [message.sharding_key for message in messages]
        except Exception as error:  # noqa: BLE001 - of a message that the listener judges
            self._guard.failed(error)
            return
        about |= members
        self._recorder.record(event, **about)

    def wait_written(self) -> None:
        """Return once what was recorded is written; blocks, for at most a second."""
        self._recorder.wait_written()

    def close(self) -> None:
        """Write the last line; a second call does nothing."""
        self._recorder.close()


class MemberContext:
    """One member of a group: its client and name, and where its parts count and record.

    Attributes:
        fields: those of its log records.
        refusals: of copies of failed messages.
    """

    __slots__ = ("client", "fields", "group", "recorder", "refusals", "statistics")

    def __init__(
        self,
        client: ClientSession,
        group: str,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
    ) -> None:
        self.client = client
        self.group = group
        self.recorder = recorder
        self.statistics = statistics
        self.fields = MemberFields(group, client.client_id)
        self.refusals = CopyRefusals(client)
