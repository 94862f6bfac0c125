"""Listeners: the context of a call, and the results a listener may return.

Listeners are called in `ordermq/consumer/dispatch/consume_loop.py`, which also catches what they
raise; `ordermq/consumer/dispatch/failure_policy.py` decides what follows.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ordermq import core
from ordermq.callables import is_async
from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim
from ordermq.errors import ConfigError, StateError
from ordermq.model.delay_levels import DELAY_LEVELS_MS
from ordermq.model.foreign_attributes import OF_CONTEXTS, explain_attributes
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult
from ordermq.value import Value
from ordermq.wall_time import span_ms

if TYPE_CHECKING:
    from ordermq.model.codec import Codec
    from ordermq.wall_time import Span

_log = logging.getLogger("ordermq.consumer")


class ConsumeContext(core.CallContext):
    """A listener's second argument: its queue, the attempt, and whether to stop early.

    Attributes:
        attempt: failed attempts of the first message in this process; 0 at first, and again
            after the queue has moved. `message.reconsume_times` counts them for each message.
    """

    # One is made per listener call, so it has slots, its fields are set natively and nothing is
    # computed ahead. `_begin` is set by `offer_transaction` only.
    __slots__ = ("_begin",)

    _assigned: AssignedQueue
    claim: BatchClaim
    messages: MessageRun
    attempt: int
    _suspend_ms: int

    def __repr__(self) -> str:
        run = self.messages
        return (
            f"<{type(self).__name__} {self._assigned.queue} offsets={run.first_offset}.."
            f"{run.last_offset} attempt={self.attempt}{' revoked' * self.is_revoked()}>"
        )

    @property
    def message_queue(self) -> MessageQueue:
        return self._assigned.source

    @property
    def consumer_group(self) -> str:
        return self._assigned.group

    @property
    def suspend_ms(self) -> int:
        """The pause before a failed batch is retried, in ms; a listener may set it.

        Clamped to 10..30000; -1, the default, is the consumer's `suspend_current_queue_time_ms`.

        Raises: ConfigError: set to what is no length of time.
        """
        return self._suspend_ms

    @suspend_ms.setter
    def suspend_ms(self, pause: Span) -> None:
        self._suspend_ms = -1 if pause == -1 else span_ms("context.suspend_ms", pause)

    @property
    def auto_commit(self) -> bool:
        """True if this call's result commits; a listener may set it, for this call alone.

        Java's `setAutoCommit`: if False, SUCCESS holds the batch back until a call commits, COMMIT
        and ROLLBACK act. It begins as the consumer's `auto_commit`.

        Raises: ConfigError: set to False with `order_by_key=True`, or where the offset store has
            transactions.
        """
        return self._assigned.auto_commit

    @auto_commit.setter
    def auto_commit(self, is_on: bool) -> None:
        if not is_on and self._may_begin:
            raise ConfigError(
                "context.auto_commit=False is not for an offset store with transactions: a call's "
                "transaction commits what the call has done; return SUSPEND to undo it",
                topic=self.message_queue.topic,
            )
        self._assigned.set_auto_commit(bool(is_on))

    def transaction(self) -> Any:
        """Return the connection of this call's transaction in the database of the offsets.

        The first call begins it; what it returns is the store's: an `sqlalchemy.Connection` with
        `ordermq.sql.SqlOffsetStore`. With an `AsyncSqlOffsetStore` it is to be awaited, and an
        `AsyncConnection`. The library commits it together with the queue's new offset
        after the listener returned successfully, and rolls it back otherwise
        (docs/exactly-once.md). Do not commit, roll back or close it yourself.

        Raises:
            StateError: the consumer has no offset store with transactions.
            StaleOwner: another member owns the queue by now, or the messages had their effects
                already; let it pass.
            StoreError: the database cannot be reached; let it pass: the call is repeated.
        """
        if not self._may_begin:
            raise StateError(
                "context.transaction() needs a consumer with an offset store that has "
                "transactions: offset_store=ordermq.sql.SqlOffsetStore(engine)",
                topic=self.message_queue.topic,
            )
        return self._begin()

    @property
    def _may_begin(self) -> bool:
        return hasattr(self, "_begin")

    def offer_transaction(self, begin: Callable[[], Any]) -> None:
        """Have `transaction()` return what `begin()` returns."""
        self._begin = begin

    def give_up(self, reason: str) -> None:
        """Give the lease up under which this call was made, if it still stands."""
        self._assigned.lose_lease(reason, self.claim.generation)

    @property
    def behind(self) -> int:
        """Return how far the queue's end is from the first message; 1 = it is the newest.

        Java's msgAccCnt: the broker's max offset, as of its last answer, minus this offset. With a
        filter by tag it counts the others' messages, too.
        """
        return max(self._assigned.max_offset - self.messages.first_offset, 0)

    def is_revoked(self) -> bool:
        """Return True once the queue is being revoked or its lease is lost.

        A long-running listener should then stop and return how many messages it finished. After a
        lost lease, the results of this batch are discarded.
        """
        # A queue that lost its lease and regained it looks held again. The generation tells this
        # batch apart: another member may have had the queue in between.
        return self._assigned.is_revoked() or self._assigned.generation != self.claim.generation

    @property
    def fence_token(self) -> tuple[int, int]:
        """Return (lock epoch, first offset of the batch), for the caller's conditional writes.

        The epoch of a queue grows with each change of owner
        (docs/internals/semantics.md#fencing). A store that remembers the greatest epoch can
        refuse late writes of a paused former owner.

        Raises: StateError: the group holds no queue locks, or the broker did not store the epoch.
        """
        return self.claim.lease.fence_epoch(self._assigned.queue), self.messages.first_offset

    def judge(self, result: object, results: ListenerResults, size: int | None = None) -> Verdict:
        """Decide what a listener's result means for this call's batch.

        Args: size: of the part of it that the listener got; default the whole batch.
        Raises: ConfigError: it is none of the results that this kind of listener may return.
        """
        return judge(result, len(self.messages) if size is None else size, results)

    def count_dropped(self, ends: Sequence[int]) -> None:
        """Translate positions the listener has set, after filters dropped messages.

        Args:
            ends: at n, the number of messages of the batch before the n-th kept one.
        """


# What the dispatchers call is no business of a listener.
_INTERNALS = "claim", "count_dropped", "give_up", "judge", "offer_transaction"
explain_attributes(ConsumeContext, OF_CONTEXTS, _INTERNALS)


class ConcurrentContext(ConsumeContext):
    """The context in a concurrent group (docs/internals/semantics.md#concurrent-consumption).

    Attributes, which a listener may set before it returns:
        ack_index: position of the last finished message of the batch, counted from 0; -1 for
            none; None, the default, for all. A result of SUSPEND or an int overrides it.
        delay_level: the pause before the others are redelivered: 0 = longer with each attempt,
            1..18 = the broker's levels, 1 s to 2 h, negative = to the dead-letter topic now.
            Setting it to anything else raises ConfigError.
    """

    # Both are native fields: one of them is read after each call.
    __slots__ = ()

    _ack_index: int | None
    _delay_level: int

    @property
    def ack_index(self) -> int | None:
        return self._ack_index

    @ack_index.setter
    def ack_index(self, position: int | None) -> None:
        self._ack_index = position

    @property
    def delay_level(self) -> int:
        return self._delay_level

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        if type(level) is not int or level > len(DELAY_LEVELS_MS):
            raise ConfigError(
                f"context.delay_level={level!r}: expected 0 (longer with each attempt), 1 to "
                f"{len(DELAY_LEVELS_MS)} (the brokers' levels, 1 s to 2 h), or a negative number "
                "(to the dead letters now)",
                topic=self.message_queue.topic,
            )
        self._delay_level = level

    @property
    def auto_commit(self) -> bool:
        return True

    @auto_commit.setter
    def auto_commit(self, is_on: bool) -> None:
        raise StateError(
            "context.auto_commit is for @consumer.orderly: a concurrent group commits up to its "
            "oldest unfinished message; set context.ack_index for a part of a batch",
            topic=self.message_queue.topic,
        )

    def judge(self, result: object, results: ListenerResults, size: int | None = None) -> Verdict:
        verdict = judge(result, len(self.messages) if size is None else size, results)
        if result is ConsumeResult.SUCCESS or (result is None and not results.is_strict):
            return acknowledge(verdict, self.ack_index)
        return verdict

    def count_dropped(self, ends: Sequence[int]) -> None:
        if type(self.ack_index) is int:
            self.ack_index = ends[min(max(self.ack_index + 1, 0), len(ends) - 1)] - 1


ListenerAnswer = ConsumeResult | int | None
Listener = Callable[
    [Sequence[MessageView], ConsumeContext], ListenerAnswer | Awaitable[ListenerAnswer]
]
ConcurrentListener = Callable[
    [Sequence[MessageView], ConcurrentContext], ListenerAnswer | Awaitable[ListenerAnswer]
]


def require_listener(listener: Any, group: str) -> None:
    """Check that `listener` can be called as `listener(messages, context)`.

    Raises: ConfigError: it cannot.
    """
    if not callable(listener):
        raise ConfigError(
            f"listener {listener!r}: expected a function of (messages, context)", group=group
        )
    try:
        signature = inspect.signature(listener)
    except (TypeError, ValueError):
        return  # a builtin without a signature: only its first call can show it
    try:
        signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"listener {_named(listener, signature)}: it is called with two arguments, so it must "
            "accept (messages, context)",
            group=group,
        ) from None


def _named(listener: Any, signature: inspect.Signature) -> str:
    """Return a listener as its author knows it: its name, its parameters, and where it is."""
    name = getattr(listener, "__qualname__", None) or repr(listener)
    parameters = signature.parameters.values()
    names = ", ".join(str(each.replace(annotation=each.empty)) for each in parameters)
    code = getattr(inspect.unwrap(listener), "__code__", None)
    where = f", {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    return f"{name}({names}){where}"


# The result of a call.


class Settlement(Enum):
    """The fate of a batch after its listener call
    (docs/internals/semantics.md#listener-results)."""

    DONE = auto()  # commit it
    HOLD = auto()  # manual commit: finished, committed by a later COMMIT
    RETRY = auto()  # the unfinished messages are redelivered after a pause
    ROLLBACK = auto()  # manual commit: everything uncommitted is redelivered after a pause


class Verdict(NamedTuple):
    """The meaning of a listener's result for its batch.

    Args:
        done: the number of finished messages, counted from the first of the batch.
        error: what the listener raised, or why its result was not understood.
    """

    settlement: Settlement
    done: int
    error: BaseException | None = None


@lru_cache(maxsize=4096)
def verdict_of(settlement: Settlement, done: int) -> Verdict:
    """Return the one Verdict with these values; making a new one per call was slower."""
    return Verdict(settlement, done)


class ConsumeReturn(Enum):
    """The outcome of a listener call, as Java's ConsumeReturnType names it
    (docs/internals/semantics.md#hook-return-types)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"  # it took `consume_timeout_ms` or more, whatever it returned
    EXCEPTION = "EXCEPTION"
    RETURN_NULL = "RETURNNULL"  # it returned None, with `strict_results=True`
    FAILED = "FAILED"  # SUSPEND, ROLLBACK, or fewer than all messages are done


class ListenerResults(Value):
    """The results one kind of listener may return.

    Args:
        settlements: None counts as SUCCESS, and so does the count of all messages.
        expected: the results by name, for the error.
        is_strict: None counts as SUSPEND, as in Java.
    """

    settlements: Mapping[ConsumeResult, Settlement]
    expected: str
    is_strict: bool = False


AUTO_COMMIT = ListenerResults(
    {
        ConsumeResult.SUCCESS: Settlement.DONE,
        ConsumeResult.COMMIT: Settlement.DONE,
        # Java's orderly consumer commits at these two, too; the dispatcher warns of it once.
        ConsumeResult.ROLLBACK: Settlement.DONE,
        ConsumeResult.SUSPEND: Settlement.RETRY,
    },
    "None, a ConsumeResult",
)
MANUAL_COMMIT = ListenerResults(
    {
        ConsumeResult.SUCCESS: Settlement.HOLD,
        ConsumeResult.COMMIT: Settlement.DONE,
        ConsumeResult.ROLLBACK: Settlement.ROLLBACK,
        ConsumeResult.SUSPEND: Settlement.RETRY,
    },
    "None, a ConsumeResult",
)
# A call commits or rolls back itself, so ROLLBACK means it.
TRANSACTIONAL = replace(
    AUTO_COMMIT, settlements={**AUTO_COMMIT.settlements, ConsumeResult.ROLLBACK: Settlement.RETRY}
)
CONCURRENT = ListenerResults(
    {ConsumeResult.SUCCESS: Settlement.DONE, ConsumeResult.SUSPEND: Settlement.RETRY},
    "None, SUCCESS, SUSPEND",
)
_WHOLE_BATCH = (Settlement.DONE, Settlement.HOLD)


def judge(result: object, size: int, results: ListenerResults) -> Verdict:
    """Decide what a listener's result means for its batch of `size` messages.

    Raises: ConfigError: neither in the table nor a count in 0..size.
    """
    # A count by exact type: True is an int, too, but surely no count.
    if type(result) is int and 0 <= result < size:
        return verdict_of(Settlement.RETRY, result)
    if result is None:
        result = ConsumeResult.SUSPEND if results.is_strict else ConsumeResult.SUCCESS
    elif type(result) is int and result == size:
        result = ConsumeResult.SUCCESS
    # "SUCCESS", the string, equals the member; only the member is meant.
    settlement = results.settlements.get(result) if isinstance(result, ConsumeResult) else None
    if settlement is None:
        # As text it equals the member, and prints like it.
        is_text = type(result) is str and result in ConsumeResult.__members__
        hint = f"; write ConsumeResult.{result}, not its text" if is_text else ""
        raise ConfigError(
            f"listener returned {result!r}: expected {results.expected}, or how many of the "
            f"{size} messages are done{hint}"
        )
    return verdict_of(settlement, size if settlement in _WHOLE_BATCH else 0)


def acknowledge(verdict: Verdict, ack_index: object) -> Verdict:
    """Limit a successful verdict to the messages up to `ack_index`; None means all of them.

    Raises: ConfigError: it is not a number.
    """
    if ack_index is None:
        return verdict
    if type(ack_index) is not int:
        raise ConfigError(f"context.ack_index is {ack_index!r}: expected a number from -1, or None")
    size, done = verdict.done, min(max(ack_index + 1, 0), verdict.done)
    return verdict_of(Settlement.DONE if done == size else Settlement.RETRY, done)


AnyListener = Callable[[Sequence[MessageView], Any], Any]


def decoding(listener: AnyListener, codec: Codec) -> Any:
    """Return the listener, for whose messages `value()` uses `codec`; plain or `async def` as it
    was.
    """

    async def call_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        context.messages.decode_with(codec)
        return await listener(messages, context)

    def call_plain(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        context.messages.decode_with(codec)
        return listener(messages, context)

    return call_async if is_async(listener) else call_plain
