"""FailurePolicy: what follows when the listener fails for a message
(docs/internals/semantics.md#failures-and-dead-letters,
docs/internals/semantics.md#failure-policies).

Ordered groups retry in place: the queue, or the key, waits. After the policy's `max_attempts` it
decides. Concurrent groups have the broker store a failed message again for later.

An exception of a listener is caught in `consume_loop.py`. Here is decided what follows; the
dispatchers carry that out: `orderly.py`, `key_ordered.py`, `concurrent.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import field, replace
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, cast

from ordermq.callables import require_plain, require_plain_result
from ordermq.client.session import ClientSession
from ordermq.config import ConsumeConfig
from ordermq.config.checks import DAY_MS, require_range
from ordermq.consumer.dispatch.consume_loop import (
    ListenerCancelled,
    OnIoThread,
    failure_text,
)
from ordermq.consumer.listener import ConsumeContext, Verdict
from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import (
    ConfigError,
    ExcInfo,
    Fenced,
    RemotingError,
    RouteError,
    StoreError,
    error_text,
    exc_info_of,
    parts_of,
)
from ordermq.events import EventType
from ordermq.model import properties as props
from ordermq.model.delay_levels import FIRST_RETRY_LEVEL
from ordermq.model.failure_story import FailureStory
from ordermq.model.message import INNER_BATCH, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_topic, retry_topic
from ordermq.remoting.headers import SendBackHeader, SendHeader
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
MAX_RECONSUME_TIMES = 16  # where nobody says otherwise, as in Java's concurrent groups
_MIN_PAUSE_MS, _MAX_PAUSE_MS = 10, 30_000


# Exceptions of a listener: a class, several, or a predicate of the exception.
ErrorFilter = (
    type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], object]
)


class Retry(Value):
    """Retry without end, at the head of the queue: order before progress. The default.

    Also the back-off of the other policies: `DeadLetter(retry=Retry(backoff_ms=100, factor=2))`.

    Args:
        backoff_ms: pause after the first failure, up to a day; 0: `suspend_current_queue_time_ms`.
        factor: each further pause is so many times as long; 1..1000.
        max_ms: longest pause before jitter, up to a day.
        jitter: part of each pause that is left to chance, so that members do not retry at the
            same moment: 0.2 makes 1,000 ms one of 800..1,200. 0..1.
        dead_letter_on: exceptions that no retry will mend, as ValueError or a predicate: the
            message is moved to the dead-letter topic at the first such failure.
    """

    backoff_ms: int = 0
    factor: float = 1.0
    max_ms: int = 60_000
    jitter: float = 0.0
    dead_letter_on: ErrorFilter = ()

    max_attempts: ClassVar[int] = 0  # never: so that every policy has a limit to ask for
    retry_on: ClassVar[tuple[()]] = ()  # all are

    def __post_init__(self) -> None:
        require_range(self, backoff_ms=(0, DAY_MS), max_ms=(1, DAY_MS))
        for name, low, high in (("factor", 1, 1_000), ("jitter", 0, 1)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not low <= value <= high:
                raise ConfigError(f"{name}={value!r}: expected a number, {low}..{high}")
        if self.backoff_ms > self.max_ms:
            raise ConfigError(
                f"backoff_ms={self.backoff_ms}: expected at most max_ms={self.max_ms}"
            )
        _check_filters(self, "dead_letter_on")

    @property
    def retry(self) -> Retry:
        """The back-off: its own."""
        return self


class DeadLetter(Value):
    """Move the message to the group's dead-letter topic, durably, then continue.

    Args:
        max_attempts: failed attempts before that.
        retry: the pauses between the attempts.
        retry_on: exceptions that are no fault of the message, as ConnectionError or a predicate:
            retried without end, and not counted as attempts.
        dead_letter_on: exceptions that no retry will mend: moved at the first such failure.
            What matches both is retried.
    """

    max_attempts: int = MAX_RECONSUME_TIMES
    retry: Retry = field(default_factory=Retry, kw_only=True)
    retry_on: ErrorFilter = field(default=(), kw_only=True)
    dead_letter_on: ErrorFilter = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        _check_limited(self)


class Stop(Value):
    """Stop the queue, keep its lock, and log an ERROR; `resume()` continues.

    Args:
        max_attempts: failed attempts before that.
        retry, retry_on, dead_letter_on: as of `DeadLetter`.
    """

    max_attempts: int = MAX_RECONSUME_TIMES
    retry: Retry = field(default_factory=Retry, kw_only=True)
    retry_on: ErrorFilter = field(default=(), kw_only=True)
    dead_letter_on: ErrorFilter = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        _check_limited(self)


class ParkKey(Value):
    """Hold the key's messages back until `consumer.unpark`; other keys continue
    (docs/internals/semantics.md#failure-policies).

    With `order_by_key=True` only.

    Args:
        topic: where they are held.
            Set: they are moved to this topic, durably and in order, so that the queue's commits
            continue and every later owner knows. Unparked, they are consumed from there before
            newer ones, with the queue and offset that they came from. One topic may serve many
            groups; it is read whole when a queue is assigned.
            Empty: they are kept in the queue, uncommitted, so at most `max_ahead_per_queue`
            offsets behind the first of them are consumed meanwhile, and a member that takes the
            queue over tries the key again.
        max_attempts: failed attempts before that.
        retry, retry_on, dead_letter_on: as of `DeadLetter`.
    """

    topic: str = ""
    max_attempts: int = MAX_RECONSUME_TIMES
    retry: Retry = field(default_factory=Retry, kw_only=True)
    retry_on: ErrorFilter = field(default=(), kw_only=True)
    dead_letter_on: ErrorFilter = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        _check_limited(self)
        if self.topic:
            object.__setattr__(self, "topic", check_topic(self.topic))


FailurePolicy = Retry | DeadLetter | Stop | ParkKey


def _check_limited(policy: DeadLetter | Stop | ParkKey) -> None:
    kind, limit = type(policy).__name__, policy.max_attempts
    if type(limit) is not int or not 1 <= limit <= 1 << 31:
        raise ConfigError(
            f"{kind}.max_attempts={limit!r}: expected 1..2^31; for attempts without end use Retry()"
        )
    if not isinstance(policy.retry, Retry):
        raise ConfigError(
            f"{kind}.retry={policy.retry!r}: expected a back-off, as Retry(backoff_ms=100, "
            "factor=2)"
        )
    if policy.retry.dead_letter_on:
        raise ConfigError(
            f"{kind}.retry={policy.retry!r}: dead_letter_on belongs to the policy: write "
            f"{kind}(retry=Retry(...), dead_letter_on=...)"
        )
    _check_filters(policy, "retry_on", "dead_letter_on")


def _check_filters(policy: object, *names: str) -> None:
    """Make a tuple of each filter by class; raise ConfigError if it is no filter."""
    for name in names:
        given = getattr(policy, name)
        place = f"{type(policy).__name__}.{name}"
        if isinstance(given, type):
            given = (given,)
        elif callable(given):
            require_plain(place, given)
            continue
        kinds = tuple(given) if isinstance(given, (tuple, list, set, frozenset)) else (given,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(
                    f"{place}={given!r}: expected exception classes, as (ValueError, KeyError), or "
                    "a function of the exception that returns True or False"
                )
        object.__setattr__(policy, name, kinds)


def matches(errors: ErrorFilter, error: BaseException | None) -> bool:
    """Return whether a listener's exception is one of these; a result such as SUSPEND is none.

    A group of exceptions is one if any exception in it is.
    """
    if error is None or not errors:
        return False
    if isinstance(errors, tuple):
        return any(isinstance(each, errors) for each in parts_of(error))
    # No class and no tuple of them: a predicate, as the constructor has checked.
    predicate = cast("Callable[[BaseException], object]", errors)
    return bool(require_plain_result("predicate", predicate, predicate(error)))


def policy_for(given: FailurePolicy | None, config: ConsumeConfig, group: str) -> FailurePolicy:
    """Return the failure policy of an ordered group, from all that was said about it.

    A limit alone means the dead-letter topic, as in Java. One beside a policy is the policy's.

    Raises: ConfigError: two limits, or one that could not act.
    """
    attempts, times = config.max_attempts, config.max_reconsume_times
    if attempts and times >= 0:
        raise ConfigError(
            f"max_attempts={attempts} and max_reconsume_times={times}: two limits of the same "
            "thing; leave one out",
            group=group,
        )
    # Java counts repetitions, so the first attempt comes on top.
    said = f"max_attempts={attempts}" if attempts else f"max_reconsume_times={times}"
    limit = attempts or times + 1
    if not limit:
        return Retry() if given is None else given
    if given is None:
        return DeadLetter(limit)
    if isinstance(given, Retry):
        raise ConfigError(
            f"{said} with on_failure=Retry(): it retries without end, so the limit could not act; "
            "leave one out, or say what follows: DeadLetter(), Stop() or ParkKey()",
            group=group,
        )
    if given.max_attempts not in (MAX_RECONSUME_TIMES, limit):
        raise ConfigError(
            f"{said} with on_failure={given!r}: two limits of the same thing; leave {said} out",
            group=group,
        )
    return replace(given, max_attempts=limit)


class NextStep(Enum):
    """The treatment of a failed message."""

    RETRY = auto()
    SPLIT = auto()  # by key: at once, each message alone
    DEAD_LETTER = auto()
    STOP = auto()
    PARK = auto()


# By type, not by a method of the policies: they are public values and contain no behaviour.
_AT_THE_LIMIT = {
    Retry: NextStep.RETRY,
    DeadLetter: NextStep.DEAD_LETTER,
    Stop: NextStep.STOP,
    ParkKey: NextStep.PARK,
}
# No fault of the message: the database of the offset store is away, or has another owner of the
# queue, or the listener's task was cancelled. Were they counted, an hour's outage would move good
# messages to the dead-letter topic.
_OUTAGES = (StoreError, Fenced, ListenerCancelled)
_SUSPENDED = "listener suspended the queue"
_RETRIES = (NextStep.RETRY, NextStep.SPLIT)
_LOG_TEXT = {
    NextStep.RETRY: "offsets %d-%d will be retried in %d ms",
    NextStep.SPLIT: "offsets %d-%d will be retried at once, each message alone",
    NextStep.DEAD_LETTER: "offset %d will be moved to the dead-letter topic",
    NextStep.STOP: "the queue stops at offset %d",
    NextStep.PARK: "offset %d will be parked with its key",
}


def decide(policy: FailurePolicy, attempts: int, max_attempts: int) -> NextStep:
    """Return the next step for a message that failed `attempts` times; 0 = no limit."""
    if max_attempts == 0 or attempts < max_attempts:
        return NextStep.RETRY
    return _AT_THE_LIMIT[type(policy)]


def resume_delay_ms(asked_ms: int, default_ms: int) -> int:
    """Return the pause before a failed batch is retried, clamped to 10..30000
    (docs/internals/semantics.md#orderly-constants)."""
    return min(max(default_ms if asked_ms == -1 else asked_ms, _MIN_PAUSE_MS), _MAX_PAUSE_MS)


def backoff_ms(retry: Retry, failures: int, default_ms: int, chance: float) -> int:
    """Return the pause after `failures` failures of a message in a row.

    Args:
        default_ms: first pause where the policy names none.
        chance: a random number, 0 <= chance < 1.
    """
    first = retry.backoff_ms or resume_delay_ms(-1, default_ms)
    # The exponent is bounded: 1000.0 ** 200 raises OverflowError, and 2.0 ** 40 ms are 34 years.
    grown = first * retry.factor ** min(max(failures - 1, 0), 40)
    pause = min(grown, max(retry.max_ms, first))
    return max(round(pause * (1 + retry.jitter * (2 * chance - 1))), _MIN_PAUSE_MS)


def stack_of(error: BaseException | None) -> ExcInfo | None:
    """Return the stack to log with a failed call: in the listener, if the failure is its own."""
    if error is None or type(error) is ConfigError or isinstance(error, _OUTAGES):
        return None
    return exc_info_of(error)


def cause_of(error: BaseException | None) -> str:
    """Describe a failed call for the log: what the listener raised, or that it returned so."""
    return _SUSPENDED if error is None else failure_text(error)


def _random() -> float:
    import random  # here, as few have jitter

    return random.random()


class FailureHandler:
    """Counts failed attempts of an ordered group and carries its failure policy out.

    Args: chance: returns random numbers, 0 <= n < 1.
    """

    def __init__(
        self,
        member: MemberContext,
        config: ConsumeConfig,
        policy: FailurePolicy,
        guard: DeadLetterGuard,
        chance: Callable[[], float] = _random,
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._config = config
        self._policy = policy
        self._limit = policy.max_attempts
        self._guard = guard
        self._chance = chance
        self._recorder = member.recorder
        self._statistics = member.statistics
        self._refusals = member.refusals
        self.parking_topic = policy.topic if isinstance(policy, ParkKey) else ""

    def delay_ms(self, assigned: AssignedQueue, context: ConsumeContext, done: int = 0) -> int:
        """Return the pause before a call's messages are retried, all but the first `done`."""
        if context.suspend_ms != -1:  # the listener knows best
            return resume_delay_ms(context.suspend_ms, self._config.suspend_current_queue_time_ms)
        return self.delay_of(assigned, context.messages.offsets()[done])

    def delay_of(self, assigned: AssignedQueue, offset: int) -> int:
        """Return the pause that a failed message has by the policy's back-off."""
        default_ms = self._config.suspend_current_queue_time_ms
        failures = assigned.attempts.get(offset, 0) + assigned.outages.get(offset, 0)
        retry = self._policy.retry
        chance = self._chance() if retry.jitter else 0.0
        pause_ms = backoff_ms(retry, failures, default_ms, chance)
        return self._refusals.pause_ms(assigned, pause_ms, offset)

    def next_step(
        self, assigned: AssignedQueue, context: ConsumeContext, verdict: Verdict
    ) -> NextStep:
        """Count and log a failed call; return what follows for its first unfinished message."""
        self._statistics.add("batches_failed")
        done = verdict.done
        failed = context.messages.offsets()[done:]
        # After a partial result the first unfinished message failed, and those behind it were
        # not tried. Without one, any message of the batch may be the cause.
        # Attempts are counted in this process: another owner of the queue starts from zero.
        places = range(done, done + 1 if done else len(context.messages))
        is_outage, is_hopeless = self.look(verdict.error)
        is_outage = is_outage or isinstance(verdict.error, _OUTAGES)
        rule = "no limit"
        if is_hopeless:
            rule = "by dead_letter_on"
        elif self._limit and not is_outage:
            rule = f"limit {self._limit}, then {type(self._policy).__name__}"
        now_ms = self._client.clock.now_ms()
        assigned.count_failures(context.messages, places, now_ms, is_outage=is_outage)
        attempts = (assigned.outages if is_outage else assigned.attempts)[failed[0]]
        if len(places) > 1 and assigned.lanes is not None and context.suspend_ms == -1:
            # Messages of as many keys, and one of them may have failed: the other keys must not
            # wait for it. From their first failure on, messages of lanes are claimed alone.
            step = NextStep.SPLIT
        elif is_outage:
            step = NextStep.RETRY
        elif (self._limit or is_hopeless) and len(failed) > 1:
            # One by one from here on: the policy must apply only to the message that fails.
            assigned.isolate_until = failed[-1]
            step = NextStep.RETRY
        elif is_hopeless:
            step = NextStep.DEAD_LETTER
        else:
            step = decide(self._policy, attempts, self._limit)
        # A queue that hangs on a message says so at attempts 1, 2, 4, 8 .. A part of a batch that
        # is done is progress, and not worth a line. One whose dead letter is refused hangs, too.
        hangs = step in _RETRIES or self._refusals.is_refused(assigned, failed[0])
        if not hangs or (not done and attempts & (attempts - 1) == 0):
            self._log_failure(assigned, context, verdict, step, failed, attempts, rule)
        return step

    def look(self, error: BaseException | None) -> tuple[bool, bool]:
        """Return what the policy says of a failure: that it is no fault of the message
        (`retry_on`), that no retry will mend it (`dead_letter_on`).

        Args: error: what the listener raised; None: it returned that it failed.
        """
        policy = self._policy
        try:
            if matches(policy.retry_on, error):
                return True, False
            return False, matches(policy.dead_letter_on, error)
        except BaseException:  # noqa: BLE001 - the user's predicate; logged, and the message stays
            self._statistics.add("hook_errors")
            _log.exception(
                "group %s: a predicate of %s raised; the message is retried",
                self._group,
                type(policy).__name__,
                extra=self._fields(),
            )
            return True, False

    def _log_failure(
        self,
        assigned: AssignedQueue,
        context: ConsumeContext,
        verdict: Verdict,
        step: NextStep,
        failed: list[int],
        attempts: int,
        rule: str,
    ) -> None:
        error = verdict.error
        values: tuple[int, ...] = failed[0], failed[-1]
        if step is NextStep.RETRY:
            values = (*values, self.delay_ms(assigned, context, verdict.done))
        elif step is not NextStep.SPLIT:
            values = values[:1]
        _log.log(
            logging.WARNING if step in _RETRIES else logging.ERROR,
            f"%s: %s; {_LOG_TEXT[step]} (attempt %d, %s)",
            assigned.queue,
            cause_of(error),
            *values,
            attempts,
            rule,
            exc_info=stack_of(error),
            extra=self._fields(assigned.queue, offset=failed[0]),
        )

    def log_parked(self, assigned: AssignedQueue, offset: int, error: BaseException) -> None:
        """Log that a message of a parked key failed again; its key stays parked."""
        _log.error(
            "%s: %s; offset %d stays parked",
            assigned.queue,
            failure_text(error),
            offset,
            exc_info=stack_of(error),
            extra=self._fields(assigned.queue, offset=offset),
        )

    def move_to_dead_letters(
        self,
        assigned: AssignedQueue,
        claim: BatchClaim,
        message: MessageView,
        cause: BaseException | None,
    ) -> Generator[OnIoThread, Any, bool]:
        """Move a message to the dead-letter topic; False if it could not be stored for now, the
        lease of the claim is over, or the consumer is stopped.

        Args: cause: what the listener raised; None: it returned that it failed.
        """
        is_moved, error = yield OnIoThread(self.dead_letter(assigned, claim, message, cause))
        if error is not None and not isinstance(error, ListenerCancelled):
            raise error
        return bool(is_moved)

    async def dead_letter(
        self,
        assigned: AssignedQueue,
        claim: BatchClaim,
        message: MessageView,
        cause: BaseException | None,
    ) -> bool:
        """`move_to_dead_letters` on the I/O thread."""
        async with self._guard.moving(assigned.claimed_ms(claim)) as may_move:
            # If not, it waits like all others: it is of another queue or key, or was in progress.
            is_moved = may_move and await self._dead_letter(assigned, claim, message, cause)
            if is_moved:
                self._guard.note(assigned.queue, cause_of(cause))
        return is_moved

    async def _dead_letter(
        self,
        assigned: AssignedQueue,
        claim: BatchClaim,
        message: MessageView,
        cause: BaseException | None,
    ) -> bool:
        offset = message.queue_offset
        attempts = assigned.attempts[offset]
        # A listener may have come back late: the next owner has the message, and may do it.
        if not assigned.holds(claim, self._client.clock.now_ms()):
            _log.warning(
                "%s: offset %d not moved to the dead-letter topic: the lease ended while the "
                "listener ran, and the next owner decides",
                assigned.queue,
                offset,
                extra=self._fields(assigned.queue, offset=offset),
            )
            return False
        try:
            story = self.story(message, cause, attempts, assigned.first_failed_ms(offset))
            await send_dead_letter(self._client, self._group, message, attempts, story)
        except (RemotingError, RouteError) as error:
            # The message is retried like after any failure, and sent again if it fails again.
            self._refusals.failed(assigned, "storing a dead letter", error, offset)
            return False
        self._refusals.ended(assigned, offset)
        self._statistics.add("diverted", queue=assigned.queue)
        self._statistics.add("dead_letters", queue=assigned.queue)
        self._recorder.record_messages(
            EventType.DIVERT, assigned.queue, claim.lease.epoch, [message]
        )
        self.log_dead_letter(assigned.queue, offset, attempts)
        return True

    def log_dead_letter(self, queue: MessageQueue, offset: int, attempts: int) -> None:
        """Say that a message is in the dead-letter topic now."""
        _log.warning(
            "%s: offset %d moved to the dead-letter topic after %d attempts",
            queue,
            offset,
            attempts,
            extra=self._fields(queue, offset=offset),
        )

    def story(
        self, message: MessageView, cause: BaseException | None, attempts: int, first_ms: int | None
    ) -> FailureStory:
        """Return the story of a message that is about to be a dead letter.

        Args: first_ms: its first failure, on the monotonic clock; None: not known.
        """
        clock = self._client.clock
        # The wall time of now, less the time that has passed: a wall clock may have been set.
        first = 0 if first_ms is None else clock.wall_ms() - (clock.now_ms() - first_ms)
        text = _SUSPENDED if cause is None else error_text(cause)
        return FailureStory(
            text,
            attempts,
            first,
            str(message.message_queue),
            message.queue_offset,
            self._group,
            self._client.client_id,
        )

    def stop(self, assigned: AssignedQueue, offset: int) -> None:
        """Stop the queue at a message that reached the limit."""
        # Pauses and ends the run in one step; a resume() at any moment submits the queue anew.
        assigned.stop()
        _log.error(
            "%s: stopped at offset %d after %d attempts; the lock is kept, call resume() to "
            "continue",
            assigned.queue,
            offset,
            assigned.attempts.get(offset, 0),
            extra=self._fields(assigned.queue, offset=offset),
        )


async def send_dead_letter(
    client: ClientSession, group: str, message: MessageView, attempts: int, story: FailureStory
) -> None:
    """Store `message` in the group's dead-letter topic and await the acknowledgement.

    Raises: RemotingError: not stored, or the outcome is unknown; the message must stay.
    """
    # As Java's orderly consumer: a send to the retry topic with the limit exceeded, which every
    # broker turns into the dead-letter topic (docs/internals/protocol.md#sending). The broker the
    # message came from is sure to know the group
    # (docs/internals/semantics.md#failures-and-dead-letters).
    if client.proxy is not None and client.proxy.forward is not None:
        # A proxy moves it itself, by the handle of its lease, and takes no properties with it.
        await client.proxy.forward(message, group, attempts)
        return
    await _store_again(client, group, message, attempts, attempts - 1, story=story)


async def send_back(
    client: ClientSession, group: str, message: MessageView, delay_level: int, max_retries: int
) -> None:
    """Have a failed message of a concurrent group redelivered later
    (docs/internals/semantics.md#concurrent-consumption).

    Args:
        delay_level: as in `ConcurrentContext`.
        max_retries: how often it may be sent back before it goes to the dead-letter topic.
    Raises: RemotingError, RouteError: not stored, or the outcome is unknown; the message must
        stay.
    """
    times = max_retries + 1 if delay_level < 0 else message.reconsume_times + 1
    level = max(delay_level, 0) or FIRST_RETRY_LEVEL + message.reconsume_times
    copy = partial(_store_again, client, group, message, times, max_retries, level)
    if message.sys_flag & INNER_BATCH:
        await copy()  # what the broker has at this place are all messages of the record
        return
    queue = message.message_queue
    header = SendBackHeader(
        message.physical_offset,
        group,
        delay_level,
        origin_message_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_retries,
        broker_name=queue.broker_name,
    )
    # The broker that has the message copies it, so its body does not travel. If that fails, the
    # client sends a copy, as Java does. After a time-out both may happen, and the message is
    # redelivered twice.
    try:
        await client.api.send_back(client.routes.master_of(queue.broker_name), header)
        return
    except (RemotingError, RouteError) as error:
        offset = message.queue_offset
        _log.info("%s: broker refused offset %d, sending a copy instead: %s", queue, offset, error)
    await copy()


async def _store_again(
    client: ClientSession,
    group: str,
    message: MessageView,
    times: int,
    max_retries: int,
    delay_level: int = 0,
    story: FailureStory | None = None,
) -> None:
    """Send a copy to the retry topic; `times` above `max_retries` makes it a dead letter."""
    queue = message.message_queue
    # A copy of the properties: a failed send must not leave its marks on the live message
    # (docs/internals/semantics.md#failures-and-dead-letters).
    properties = dict(message.properties)
    properties[props.RETRY_TOPIC] = message.topic
    properties.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
    properties[props.RECONSUME_TIME] = str(times)
    properties[props.MAX_RECONSUME_TIMES] = str(max_retries)
    # The broker would take the copy for a half message, or delay it, by what the original was
    # stored with; the offsets were added to the pull reply.
    for name in ("TRAN_MSG", props.DELAY, "MIN_OFFSET", "MAX_OFFSET"):
        properties.pop(name, None)
    if story is not None:
        story.add_to(properties)
    if delay_level:
        properties[props.DELAY] = str(delay_level)
    header = SendHeader(
        # RocketMQ lets an account write there that has SUB of the group named here, whatever group
        # the topic is of. Java names its inner producer, to which an account has no rights.
        producer_group=group,
        topic=retry_topic(group),
        queue_id=0,  # retry topics have one queue by default
        sys_flag=message.sys_flag & ~INNER_BATCH,
        born_timestamp_ms=message.born_timestamp_ms,
        flag=message.flag,
        properties=props.encode(properties),
        reconsume_times=times,
        max_reconsume_times=max_retries,
        broker_name=queue.broker_name,
    )
    address = client.routes.master_of(queue.broker_name)
    # As stored: the copied sysFlag still says how it is compressed; a message of a batch topic's
    # record is one of its own now.
    body = bytes(message.stored_body)
    await client.api.send(address, header, body, client.config.offset_timeout_ms)
